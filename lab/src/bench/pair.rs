//! Client and server in one network, both started by one shell in it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cpu;
use crate::figures::Parts;
use crate::running::Running;

/// A shell and the server that it started, both ended when dropped.
pub struct Pair {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The shell, or the `towpath` that runs the shell.
    run: Running,
    is_ours: bool,
    shell: u32,
    server: u32,
    scratch: PathBuf,
}

impl Pair {
    /// Starts the shell by `command`, and the server.
    pub fn start(
        mut command: Command,
        is_ours: bool,
        server: &[String],
        scratch: &Path,
    ) -> Result<Self> {
        let shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("sh")?;
        let mut run = Running(shell);
        let orders = run.0.stdin.take().context("standard input")?;
        let answers = BufReader::new(run.0.stdout.take().context("standard output")?);
        let scratch = scratch.to_path_buf();
        let mut pair = Self { orders, answers, run, is_ours, shell: 0, server: 0, scratch };
        let errors = pair.file("server-errors");
        let server = quoted(server);
        let said = pair.order(&format!(
            "{server} </dev/null >/dev/null 2>{errors} & trap \"kill $!; wait $!\" EXIT; \
             trap exit TERM; echo $$ $!"
        ))?;
        let (shell, server) = said.split_once(' ').with_context(|| format!("{said:?}"))?;
        (pair.shell, pair.server) = (shell.parse()?, server.parse()?);
        Ok(pair)
    }

    /// Runs a client until it ends. Returns its standard output and standard error.
    pub fn run(&mut self, line: &[String]) -> Result<(String, String)> {
        let (out, errors) = (self.file("client-out"), self.file("client-errors"));
        self.order(&format!("{} </dev/null >{out} 2>{errors}; echo done", quoted(line)))?;
        let text = |name: &str| std::fs::read(self.scratch.join(name));
        let text = |name| Ok(String::from_utf8_lossy(&text(name)?).into_owned());
        text("client-out")
            .and_then(|out| Ok((out, text("client-errors")?)))
            .map_err(|error: std::io::Error| error.into())
    }

    /// Returns the CPU time in seconds that client, server and engine have used so far.
    pub fn used(&self) -> Result<Parts> {
        let engine = if self.is_ours { cpu::of(self.run.0.id())? } else { 0. };
        let client = cpu::of_ended_children(self.shell)?;
        Ok(Parts { client, program: cpu::of_tree(self.server)?, engine })
    }

    /// Returns the process ids of the shell, or of the `towpath` that runs it, and of the server.
    pub fn pids(&self) -> (u32, u32) {
        (self.run.0.id(), self.server)
    }

    /// Executes a script in the shell, and returns the line that it prints.
    fn order(&mut self, script: &str) -> Result<String> {
        writeln!(self.orders, "{script}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the shell has ended");
        Ok(line.trim().to_owned())
    }

    fn file(&self, name: &str) -> String {
        quoted(&[self.scratch.join(name).display().to_string()])
    }
}

impl Drop for Pair {
    /// Lets the shell end the server and wait for it, for a limited time.
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        let told = writeln!(self.orders, "exit");
        while told.is_ok() && Instant::now() < end && matches!(self.run.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Quotes words for a shell.
fn quoted(words: &[String]) -> String {
    let words: Vec<_> =
        words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_runs_clients_and_ends_with_its_server() {
        let scratch = std::env::temp_dir().join(format!("towpath-pair-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        let words = |line: &[&str]| line.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let server = words(&["sleep", "1000"]);
        let mut pair = Pair::start(Command::new("sh"), false, &server, &scratch).unwrap();
        let client = words(&["sh", "-c", "echo \"it's\" $1; echo no >&2", "-", "a  b"]);
        let said = pair.run(&client).unwrap();
        assert_eq!(said, ("it's a b\n".to_owned(), "no\n".to_owned()));
        assert!(pair.used().is_ok());
        let server = pair.server;
        drop(pair);
        std::fs::remove_dir_all(&scratch).unwrap();
        let is_there = Path::new("/proc").join(server.to_string()).join("exe").read_link().is_ok();
        assert!(!is_there, "the server lives on");
    }
}
