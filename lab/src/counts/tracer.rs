//! Traces all system calls of some threads. The kernel writes each call to a private buffer of
//! tracefs. Unlike ptrace(2), tracing stops no thread.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Number of calls by thread and system call number.
pub type Calls = BTreeMap<(u32, i64), u64>;

/// Size of each processor's buffer in KiB. An event takes 72 bytes; a lost event fails the
/// measurement.
const BUFFER_KIB: u32 = 64 << 10;

/// A private buffer of events, removed on drop.
pub struct Tracer {
    instance: PathBuf,
    /// Directory on which this process has mounted tracefs, if it was not mounted.
    mounted: Option<PathBuf>,
}

impl Tracer {
    /// Creates a buffer. Needs root, and a kernel with CONFIG_FTRACE_SYSCALLS.
    pub fn new() -> Result<Self> {
        let usual = Path::new("/sys/kernel/tracing");
        let mounted = if usual.join("instances").exists() { None } else { Some(mount()?) };
        let instances = mounted.as_deref().unwrap_or(usual).join("instances");
        let instance = instances.join(format!("towpath-counts-{}", std::process::id()));
        let tracer = Self { instance, mounted };
        fs::create_dir(&tracer.instance)
            .with_context(|| format!("{} (root is needed)", tracer.instance.display()))?;
        tracer.set("tracing_on", "0")?;
        tracer.set("buffer_size_kb", &BUFFER_KIB.to_string())?;
        // Also trace new threads and processes of the traced ones.
        tracer.set("options/event-fork", "1")?;
        Ok(tracer)
    }

    /// Starts to trace these threads.
    pub fn begin(&self, threads: &[u32]) -> Result<()> {
        let threads: Vec<String> = threads.iter().map(u32::to_string).collect();
        self.set("set_event_pid", &threads.join(" "))?;
        self.set("trace", "")?;
        self.set("events/raw_syscalls/sys_enter/enable", "1")?;
        self.set("tracing_on", "1")
    }

    /// Stops tracing, and returns the calls.
    pub fn end(&self) -> Result<Calls> {
        self.set("tracing_on", "0")?;
        self.set("events/raw_syscalls/sys_enter/enable", "0")?;
        for processor in fs::read_dir(self.instance.join("per_cpu"))? {
            let stats = fs::read_to_string(processor?.path().join("stats"))?;
            for line in stats.lines() {
                let is_loss = ["overrun:", "commit overrun:", "dropped events:"]
                    .iter()
                    .any(|name| line.strip_prefix(name).is_some_and(|n| n.trim() != "0"));
                ensure!(!is_loss, "the kernel's buffer of {BUFFER_KIB} KiB was full: {line}");
            }
        }
        let trace = BufReader::new(fs::File::open(self.instance.join("trace"))?);
        let mut calls = Calls::new();
        for line in trace.lines() {
            if let Some(call) = parse(&line?) {
                *calls.entry(call).or_default() += 1;
            }
        }
        Ok(calls)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.instance.join(file);
        fs::write(&path, value).with_context(|| path.display().to_string())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.instance) {
            eprintln!("{}: {error}", self.instance.display());
        }
        if let Some(folder) = &self.mounted {
            let is_gone = Command::new("umount").arg(folder).status().is_ok_and(|it| it.success());
            if !is_gone || fs::remove_dir(folder).is_err() {
                eprintln!("{}: still there", folder.display());
            }
        }
    }
}

/// Mounts tracefs on a new directory.
fn mount() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("towpath-tracefs-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let status = Command::new("mount")
        .args(["-t", "tracefs", "tracefs"])
        .arg(&folder)
        .stderr(Stdio::null())
        .status();
    if !status.is_ok_and(|it| it.success()) {
        fs::remove_dir(&folder)?;
        anyhow::bail!("tracefs cannot be mounted: root and CONFIG_FTRACE_SYSCALLS are needed");
    }
    Ok(folder)
}

/// Parses thread and call number of a line such as
/// `  name-12 [001] ..... 3.456789: sys_enter: NR 0 (5, ...)`. The name may contain any characters.
fn parse(line: &str) -> Option<(u32, i64)> {
    let (before, after) = line.rsplit_once(": sys_enter: NR ")?;
    let number = after.split(' ').next()?.parse().ok()?;
    // The flags and the time after the processor contain no brackets.
    let (who, _) = before.rsplit_once('[')?;
    Some((who.trim_end().rsplit_once('-')?.1.parse().ok()?, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_thread_and_number() {
        let line = " redis-server-1234    [001] .....  1517.250466: sys_enter: NR 232 (5, 7f, 1)";
        assert_eq!(parse(line), Some((1234, 232)));
        let odd = " a [0] b: c-9     [000] d.h1. 7.5: sys_enter: NR -1 (0)";
        assert_eq!(parse(odd), Some((9, -1)));
        assert_eq!(parse("# tracer: nop"), None);
        assert_eq!(parse("  x-1 [000] ..... 1.0: sys_exit: NR 0 = 3"), None);
    }
}
