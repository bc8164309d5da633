//! The link of `lab/link`: delay and loss between a client and the remaining hosts.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::running::Running;

/// Delay and loss of a link, in each direction.
pub struct Link {
    pub delay_ms: u32,
    /// Percentage of lost packets.
    pub loss_percent: f64,
}

/// The process that carries frames.
pub struct Carrier {
    run: Running,
    said: BufReader<ChildStdout>,
}

impl Carrier {
    /// Starts the link between two ends, each a namespace and a TAP device in it.
    pub fn start(program: &Path, link: &Link, ends: [(&str, &str); 2], seed: u64) -> Result<Self> {
        // Run the link with real-time priority (sched(7), SCHED_FIFO), so that its delay is the
        // same on a busy machine.
        let first = ["chrt", "-f", "1"];
        let is_first = Command::new(first[0]).args(&first[1..]).arg("true").status();
        let mut command = if is_first.is_ok_and(|status| status.success()) {
            let mut command = Command::new(first[0]);
            command.args(&first[1..]).arg(program);
            command
        } else {
            Command::new(program)
        };
        let [from, to] = ends;
        command.args(["--from", from.0, from.1, "--to", to.0, to.1]);
        command.arg("--delay-us").arg((link.delay_ms * 1000).to_string());
        command.arg("--loss").arg((link.loss_percent / 100.).to_string());
        command.arg("--seed").arg(seed.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut run = Running(command.spawn().with_context(|| program.display().to_string())?);
        let mut said = BufReader::new(run.0.stdout.take().context("standard output")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        ensure!(line == "ready\n", "{command:?} ended");
        Ok(Self { run, said })
    }

    /// Ends the process by closing its input. Fails if the link has lost frames by overload.
    pub fn end(mut self) -> Result<()> {
        drop(self.run.0.stdin.take());
        let mut said = String::new();
        self.said.read_to_string(&mut said)?;
        faults(&said).map_or(Ok(()), |faults| anyhow::bail!("{faults}"))
    }
}

/// Returns the faults of a link: frames lost by overload, or missing counts.
fn faults(said: &str) -> Option<String> {
    let counts: Value = serde_json::from_str(said).unwrap_or_default();
    let numbers =
        [&counts["there"]["full"], &counts["back"]["full"], &counts["dropped_by_devices"]];
    let dropped: Option<u64> = numbers.into_iter().map(Value::as_u64).sum();
    (dropped != Some(0)).then(|| format!("the link dropped frames by itself: {}", said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_believed_that_dropped_nothing_but_what_it_was_to_lose() {
        let said = |there: u32, back: u32, devices: u32| {
            format!(
                "{{\"there\": {{\"lost\": 9, \"full\": {there}}}, \"back\": {{\"full\": {back}}}, \
                 \"dropped_by_devices\": {devices}}}\n"
            )
        };
        assert_eq!(faults(&said(0, 0, 0)), None);
        for dropped in [said(1, 0, 0), said(0, 1, 0), said(0, 0, 1)] {
            assert!(faults(&dropped).is_some_and(|why| why.contains(dropped.trim())));
        }
        assert!(faults("").is_some() && faults("{\"there\": 1}").is_some());
    }
}
