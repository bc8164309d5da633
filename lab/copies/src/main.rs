//! Counts copies in user space by running processes: each call of libc's memcpy and similar
//! functions with at least [`LEN_MIN`] bytes.
//!
//! ```text
//! copies PID...   counts copies by the threads of these processes, and by later threads
//! copies check    counts copies of its own, and fails unless the numbers are right
//! ```
//!
//! The program prints "ready", and counts until it reads a line. Then it prints a line
//! `THREAD COPIES BYTES OBJECT+0xADDRESS` for each thread and call site, with the address in the
//! object's file. At the end it prints "done".
//!
//! The kernel records each call by a breakpoint in libc, including the register with the length.
//! Only the given processes have the breakpoint, and it is removed when the descriptors are closed.
//! The program needs root, and a kernel with CONFIG_UPROBE_EVENTS. The following copies are not
//! counted:
//! - inlined copies, which compilers generate for small constant lengths,
//! - copies in programs that do not use this libc,
//! - copies by the kernel in system calls.
//!
//! Reading order: `functions` finds libc's copying functions, `events` sets the breakpoints, `ring`
//! reads the samples, and `callers` finds the call sites.
#![allow(clippy::print_stdout)] // Its output is what it is for.

mod callers;
mod events;
mod functions;
mod ring;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use callers::Objects;
use events::Events;
use functions::Functions;
use ring::Sample;

/// Minimum length of a counted copy in bytes. Shorter copies are headers and records, and the
/// compiler inlines most of them.
const LEN_MIN: u64 = 64;
/// Interval in ms at which the rings are read. A ring has room for more copies than a processor can
/// make in this time.
const LOOK_MS: i32 = 5;

/// Number of copies and bytes by thread and call site.
type Tally = BTreeMap<(u32, u64), (u64, u64)>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [word] if word == "check" => check(),
        [] => bail!("copies PID..., or copies check"),
        pids => {
            let pids: Vec<u32> = pids
                .iter()
                .map(|pid| pid.parse().with_context(|| format!("{pid:?} is not a process id")))
                .collect::<Result<_>>()?;
            count(&pids)
        }
    }
}

fn count(pids: &[u32]) -> Result<()> {
    let functions = Functions::find()?;
    let mut objects = BTreeMap::new();
    let mut threads = Vec::new();
    for &pid in pids {
        let of_process = Objects::of(pid)?;
        let libc = functions.path.display();
        ensure!(of_process.has(&functions.path), "process {pid} does not use {libc}");
        objects.insert(pid, of_process);
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = thread?.file_name().into_string().ok().context("a number")?;
            threads.push(thread.parse()?);
        }
    }
    let mut events = Events::of(&threads, &functions)?;
    let mut tally = Tally::new();
    let mut process_of = BTreeMap::new();
    let mut add = |sample: Sample| {
        if sample.len >= LEN_MIN {
            process_of.insert(sample.thread, sample.process);
            let sum = tally.entry((sample.thread, sample.caller)).or_default();
            *sum = (sum.0 + 1, sum.1 + sample.len);
        }
    };
    events.begin()?;
    say("ready")?;
    while !has_line()? {
        events.read(&mut add)?;
    }
    events.end(&mut add)?;
    for ((thread, caller), (copies, bytes)) in tally {
        let place = objects.get(&process_of[&thread]).and_then(|it| it.place(caller));
        let place = place.unwrap_or_else(|| "?".to_owned());
        say(&format!("{thread} {copies} {bytes} {place}"))?;
    }
    say("done")
}

/// Waits up to [`LOOK_MS`]. Returns whether standard input has a line or has ended.
fn has_line() -> Result<bool> {
    let mut input = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer refers to a single local pollfd.
    let ready = unsafe { libc::poll(&raw mut input, 1, LOOK_MS) };
    ensure!(ready >= 0, "poll: {}", std::io::Error::last_os_error());
    Ok(ready > 0)
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Compares the counts of this program's own copies with their known number.
fn check() -> Result<()> {
    /// Number of copies, and their lengths: one that is counted, and one below the minimum.
    const COPIES: u64 = 1000;
    const LENS: [usize; 2] = [4099, LEN_MIN as usize - 1];
    let functions = Functions::find()?;
    // SAFETY: gettid has no arguments, and always succeeds.
    let thread = u32::try_from(unsafe { libc::gettid() })?;
    let events = Events::of(&[thread], &functions)?;
    let (from, mut to) = (vec![7_u8; LENS[0]], vec![0_u8; LENS[0]]);
    let mut lens = BTreeMap::<u64, u64>::new();
    events.begin()?;
    for _ in 0..COPIES {
        for len in LENS {
            to[..black_box(len)].copy_from_slice(&black_box(&from)[..black_box(len)]);
            black_box(&mut to);
        }
    }
    std::thread::sleep(Duration::from_millis(1));
    events.end(&mut |sample| *lens.entry(sample.len).or_default() += 1)?;
    for len in LENS {
        let seen = lens.get(&(len as u64)).copied().unwrap_or(0);
        ensure!(seen == COPIES, "{seen} of {COPIES} copies of {len} bytes were seen");
    }
    Ok(())
}
