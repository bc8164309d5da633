//! Counts copies in user space, by processes that run: each call of libc's memcpy and its kin of
//! [`LEN_MIN`] bytes or more.
//!
//! ```text
//! copies PID...   counts copies by the threads of these processes, and by later threads
//! copies check    counts copies of its own, and fails unless the numbers are right
//! ```
//!
//! The program says "ready", and counts until it is sent a line. For each thread and place it then
//! prints its copies (`THREAD COPIES BYTES OBJECT+0xADDRESS`, the address as the object's file has
//! it), and "done".
//!
//! A breakpoint in libc has the kernel write down each call, with the register that has the length
//! in it. Only these processes have the breakpoint, and it goes with the descriptors: nothing of
//! the machine is changed. The program needs root, and a kernel with CONFIG_UPROBE_EVENTS. Copies
//! that the program cannot see:
//! - code that the compiler has put in place of a call, which it does for a small constant length,
//! - copies of a program without this libc,
//! - copies of the kernel in system calls.
//!
//! Reading order: `functions` finds out where libc's copies begin, `events` has them written down,
//! `ring` reads that, and `callers` says from where they were called.
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

/// Copies of fewer bytes are not counted: they are headers and records, and most of them no call at
/// all.
const LEN_MIN: u64 = 64;
/// How often what was written down is read. The ring has place for some hundred thousand copies,
/// which take longer.
const LOOK_MS: i32 = 5;

/// Thread and place of a call, and how many copies and bytes that was.
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

/// Whether there is a line on standard input, or its end, for which it waits a little.
fn has_line() -> Result<bool> {
    let mut input = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one record that lives here.
    let ready = unsafe { libc::poll(&raw mut input, 1, LOOK_MS) };
    ensure!(ready >= 0, "poll: {}", std::io::Error::last_os_error());
    Ok(ready > 0)
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Counts its own copies, of which it knows how many there are.
fn check() -> Result<()> {
    /// Copies, and the bytes of each: one that counts, and one that is too small for that.
    const COPIES: u64 = 1000;
    const LENS: [usize; 2] = [4099, LEN_MIN as usize - 1];
    let functions = Functions::find()?;
    // SAFETY: it has no arguments, and always succeeds.
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
