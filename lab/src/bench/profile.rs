//! Profiles of a measurement: call stacks of the whole machine, recorded by perf(1) while a client
//! runs.
//!
//! The whole machine is sampled, because the kernel works for the server on any thread. For
//! example, much of the server's receive processing runs on the client's thread while it sends.
//! Therefore each stack begins with the owner of its thread.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::interrupt;
use crate::running::Running;

/// Samples per second and processor. A prime number, so that periodic events are not sampled too
/// often.
pub const HZ: u32 = 499;
/// Bytes of a program's stack that perf copies with each sample to find the callers, because
/// neither Rust's programs nor Debian's have frame pointers.
const STACK: u32 = 8 << 10;
/// Event to sample. Needs no hardware counters, which virtual machines lack.
const EVENT: &str = "cpu-clock";

/// Number of samples by folded stack: functions from the outermost to the innermost, separated by
/// semicolons.
pub type Stacks = BTreeMap<String, u64>;

/// Processes of engine and program, and the client's name.
pub struct Owners {
    pub engine: BTreeSet<u32>,
    pub program: BTreeSet<u32>,
    /// Name of the client's program, because its processes have ended before the samples are read.
    pub client: String,
}

/// A running perf, which writes its samples to a file.
pub struct Profile {
    running: Running,
    data: PathBuf,
}

/// Fails if perf is not installed, or the kernel does not permit this user to use it.
pub fn is_possible() -> Result<()> {
    let output = record(Path::new("-")).args(["--", "true"]).output();
    let output = output.context("perf is not installed (Debian: apt-get install linux-perf)")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf record (root is needed): {}", errors.trim());
    Ok(())
}

fn record(data: &Path) -> Command {
    let mut command = Command::new("perf");
    command.args(["record", "-q", "-N", "-a", "-e", EVENT, "-F", &HZ.to_string()]);
    command.args(["--call-graph", &format!("dwarf,{STACK}"), "-o"]).arg(data);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Profile {
    /// Starts to record.
    pub fn begin(scratch: &Path) -> Result<Self> {
        let data = scratch.join("perf.data");
        let child = record(&data).stderr(Stdio::null()).spawn().context("perf")?;
        let mut profile = Self { running: Running(child), data };
        // perf is recording once it has written the header of its file.
        let end = Instant::now() + Duration::from_secs(10);
        while std::fs::metadata(&profile.data).map_or(0, |it| it.len()) == 0 {
            let ended = profile.running.0.try_wait()?;
            ensure!(ended.is_none() && Instant::now() < end, "perf record does not begin");
            interrupt::sleep(Duration::from_millis(20))?;
        }
        Ok(profile)
    }

    /// Stops recording, and returns the stacks.
    pub fn end(mut self, owners: &Owners) -> Result<Stacks> {
        let pid = self.running.0.id().to_string();
        ensure!(Command::new("kill").args(["-INT", &pid]).status()?.success(), "kill");
        self.running.0.wait()?;
        let mut script = Command::new("perf");
        script.args(["script", "--no-inline", "-F", "comm,pid,ip,sym,dso", "-i"]).arg(&self.data);
        let output = script.stdin(Stdio::null()).output().context("perf script")?;
        if !output.status.success() {
            bail!("perf script: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        std::fs::remove_file(&self.data)?;
        let stacks = folded(&String::from_utf8_lossy(&output.stdout), owners);
        ensure!(!stacks.is_empty(), "perf saw nothing");
        Ok(stacks)
    }
}

/// Parses the samples of `perf script`. Skips idle processors, and processes that are not part of
/// the measurement.
fn folded(text: &str, owners: &Owners) -> Stacks {
    let mut stacks = Stacks::new();
    for sample in text.split("\n\n") {
        let mut lines = sample.lines().filter(|line| !line.trim().is_empty());
        let Some(owner) = lines.next().and_then(|head| owner(head, owners)) else { continue };
        let mut frames: Vec<String> = lines.filter_map(frame).collect();
        let is_idle = frames.iter().any(|it| it == "do_idle_[k]");
        if frames.is_empty() || owner == NOBODY && is_idle && !has_interrupt(&frames) {
            continue;
        }
        frames.push(owner.to_owned());
        frames.reverse();
        *stacks.entry(frames.join(";")).or_default() += 1;
    }
    stacks
}

/// Owner of kernel work for no process: interrupts on an idle processor.
const NOBODY: &str = "kernel";

/// Returns whether an idle processor handles an interrupt. The interrupt of the sample itself is
/// not part of the stack.
fn has_interrupt(frames: &[String]) -> bool {
    frames.iter().any(|it| it.contains("softirq"))
}

/// Returns the owner of a sample by its first line: the thread's name, which may contain any
/// characters, and the process id.
fn owner<'a>(head: &str, owners: &'a Owners) -> Option<&'a str> {
    let (name, pid) = head.trim_end().rsplit_once(char::is_whitespace)?;
    let (name, pid): (_, u32) = (name.trim(), pid.parse().ok()?);
    // The kernel truncates thread names to 15 bytes.
    let client = owners.client.get(..15).unwrap_or(&owners.client);
    if owners.engine.contains(&pid) {
        Some("engine")
    } else if owners.program.contains(&pid) {
        Some("program")
    } else if pid == 0 || name.starts_with("ksoftirqd") {
        Some(NOBODY)
    } else {
        (name == client).then_some("client")
    }
}

/// Returns the function in a line such as `  7f00 name (/lib/libc.so.6)`; kernel functions are
/// marked. Returns `None` if the stack is incomplete there.
fn frame(line: &str) -> Option<String> {
    let (address, rest) = line.trim().trim_end_matches(" (deleted))").split_once(' ')?;
    let (symbol, object) = rest.rsplit_once(" (")?;
    if object.starts_with("[unknown]") {
        return None;
    }
    let object = object.trim_end_matches(')').rsplit('/').next()?;
    let is_kernels = address.len() == 16 && address.starts_with("ffff");
    let name = match symbol {
        "[unknown]" if is_kernels => "[kernel]".to_owned(),
        "[unknown]" => format!("[{}]", object.trim_matches(['[', ']'])),
        _ if is_kernels => format!("{symbol}_[k]"),
        _ => symbol.to_owned(),
    };
    Some(name.replace(';', ":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "\
a b   12 \n\
\t    7f0000000010 towpath::b;c (/x/towpath (deleted))\n\
\t    7f0000000020 [unknown] (/lib/libc.so.6)\n\
\tffffffffffffffff [unknown] ([unknown])\n\
\n\
swapper     0 \n\
\tffffffff81000000 default_idle ([kernel.kallsyms])\n\
\tffffffff81000000 do_idle ([kernel.kallsyms])\n\
\n\
swapper     0 \n\
\tffffffff81000000 net_rx_action ([kernel.kallsyms])\n\
\tffffffff81000000 handle_softirqs ([kernel.kallsyms])\n\
\tffffffff81000000 do_idle ([kernel.kallsyms])\n\
\n\
wrk    99 \n\
\tffffffff81000000 tcp_sendmsg ([kernel.kallsyms])\n\
\t    7f0000000010 main (/usr/bin/wrk)\n\
\n\
cargo    98 \n\
\t    7f0000000010 main (/usr/bin/cargo)\n\n";

    #[test]
    fn stacks_are_folded_and_what_has_no_part_is_left_out() {
        let owners = Owners { engine: [12].into(), program: [13].into(), client: "wrk".to_owned() };
        let stacks: Vec<_> = folded(SCRIPT, &owners).into_iter().collect();
        let is = [
            ("client;main;tcp_sendmsg_[k]", 1),
            ("engine;[libc.so.6];towpath::b:c", 1),
            ("kernel;do_idle_[k];handle_softirqs_[k];net_rx_action_[k]", 1),
        ];
        assert_eq!(stacks, is.map(|(stack, n)| (stack.to_owned(), n)));
    }
}
