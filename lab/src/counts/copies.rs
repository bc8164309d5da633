//! Counts copies of processes in user space, using the program `lab/copies`, because the system
//! calls for it require unsafe code.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::running::Running;

/// Copies of one thread at one call site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    pub thread: u32,
    pub copies: u64,
    pub bytes: u64,
    /// Call site as a file and an offset: `/lib/a.so+0x1234`.
    pub place: String,
}

/// Fails if the kernel does not permit counting, or the counts are wrong.
pub fn is_possible(programs: &Path) -> Result<()> {
    let output = Command::new(programs.join("copies")).arg("check").output().context("copies")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", errors.trim().replace('\n', " "));
    Ok(())
}

/// Running process of `lab/copies`, which counts until it is told to end.
pub struct Copier {
    running: Running,
    said: BufReader<ChildStdout>,
}

impl Copier {
    /// Starts to count copies by all threads of these processes.
    pub fn begin(programs: &Path, processes: &[u32]) -> Result<Self> {
        let mut command = Command::new(programs.join("copies"));
        command.args(processes.iter().map(u32::to_string));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("copies")?;
        let said = BufReader::new(child.stdout.take().context("piped")?);
        let mut copier = Self { running: Running(child), said };
        let line = copier.line()?;
        ensure!(line == "ready", "copies said {line:?}");
        Ok(copier)
    }

    /// Stops counting, and returns the copies.
    pub fn end(mut self) -> Result<Vec<Copied>> {
        writeln!(self.running.0.stdin.as_mut().context("piped")?)?;
        let mut all = Vec::new();
        loop {
            let line = self.line()?;
            if line == "done" {
                // The kernel removes the breakpoints when the process ends.
                self.running.0.wait()?;
                return Ok(all);
            }
            all.push(parse(&line).with_context(|| format!("copies said {line:?}"))?);
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        ensure!(!line.is_empty(), "copies could not be counted; see above");
        Ok(line.trim_end().to_owned())
    }
}

fn parse(line: &str) -> Option<Copied> {
    let mut words = line.splitn(4, ' ');
    let thread = words.next()?.parse().ok()?;
    let mut number = || words.next()?.parse().ok();
    let (copies, bytes) = (number()?, number()?);
    Some(Copied { thread, copies, bytes, place: words.next()?.to_owned() })
}

/// Returns function and line of a call site by addr2line(1), including inlined functions. Returns
/// the call site unchanged if addr2line does not know it.
pub fn name(place: &str) -> String {
    let ask = || {
        let (file, address) = place.rsplit_once('+')?;
        let mut command = Command::new("addr2line");
        command.args(["-Cfipa", "-e", file, address]);
        let output = command.stderr(Stdio::null()).output().ok()?;
        names(&String::from_utf8_lossy(&output.stdout))
    };
    ask().unwrap_or_else(|| place.to_owned())
}

/// Parses the output of addr2line: each function, the innermost first, and the line of the first
/// that is not part of Rust's libraries.
fn names(text: &str) -> Option<String> {
    let mut names = Vec::new();
    for line in text.lines() {
        let line = line.split_once(": ").map_or(line, |(_, line)| line);
        let line = line.trim_start().trim_start_matches("(inlined by) ");
        let (function, at) = line.split_once(" at ")?;
        if function == "??" {
            return None;
        }
        if !at.starts_with("/rustc/") && !at.contains("/rust/library/") {
            let at = at.split(" (discriminator").next().unwrap_or(at);
            let file: Vec<&str> = at.rsplit('/').take(4).collect();
            let file: Vec<&str> = file.into_iter().rev().collect();
            // Without a line number, addr2line prints a compilation unit instead, which is omitted.
            let has_line = !at.ends_with('?');
            names.push(match has_line {
                true => format!("{function} ({})", file.join("/")),
                false => function.to_owned(),
            });
        }
    }
    (!names.is_empty()).then(|| names[..names.len().min(4)].join(" < "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_copied_what_where() {
        let is = Copied { thread: 7, copies: 2, bytes: 2896, place: "/a b+0x12".to_owned() };
        assert_eq!(parse("7 2 2896 /a b+0x12"), Some(is));
        assert_eq!(parse("7 2 2896"), None);
        assert_eq!(parse("7 2 x ?"), None);
    }

    #[test]
    fn names_are_of_functions_that_are_not_rusts_own() {
        let text = "0x1234: core::ptr::copy at /rustc/abc/library/core/src/ptr/mod.rs:3\n \
                    (inlined by) a::b::c at /w/x/memory/shm/src/mapping.rs:183 (discriminator 2)\n \
                    (inlined by) a::d at /w/x/client/src/send.rs:9\n";
        let is = "a::b::c (memory/shm/src/mapping.rs:183) < a::d (x/client/src/send.rs:9)";
        assert_eq!(names(text).as_deref(), Some(is));
        assert_eq!(names("0x1: ?? at ??:0\n"), None);
    }
}
