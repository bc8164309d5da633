//! The program that `cargo lab shards` measures: hosts of several shards. Each shard has a thread,
//! and a queue of a device in memory.
//!
//! ```text
//! shards time HOSTS SHARDS WORK MILLISECONDS    packets, requests, bytes and mail of a second
//! shards trace SHARDS WORK TURNS                under valgrind: the same of so many turns a shard
//! ```
//! Reading order: `peer` is the other end of the device, which puts every packet into the queue of
//! the shard that owns it. `program` uses the sockets; `shard` is a stack with both. The threads
//! are in this file.
//!
//! In `trace` one thread runs at a time, and stores to [`MARKS`] before and after each turn. From
//! these stores, readers of the trace know the shard of each memory access.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)] // Measurements are its output.
#![allow(clippy::disallowed_methods)] // The threads, and the time that they take, are measured.

mod peer;
mod program;
mod shard;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use towpath_stack::Instant;

use peer::Work;
use shard::{Shard, Totals, host};

/// Start of the clock.
const START: Instant = Instant(1_000_000_000);
/// Maximum time for the handshakes of all connections.
const SETUP: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match &words[..] {
        ["time", hosts, shards, work, ms] => {
            let time = Duration::from_millis(ms.parse()?);
            let totals = timed(hosts.parse()?, shards.parse()?, Work::named(work)?, time)?;
            println!("{}", totals.per_second(time));
        }
        ["trace", shards, work, turns] => {
            traced(shards.parse()?, Work::named(work)?, turns.parse()?)?;
        }
        _ => bail!("time HOSTS SHARDS WORK MILLISECONDS, or trace SHARDS WORK TURNS"),
    }
    Ok(())
}

/// Runs all shards at once, each on a thread. Threads have separate processors if there are enough.
fn timed(hosts: usize, shards: usize, work: Work, time: Duration) -> Result<Totals> {
    let processors = thread::available_parallelism()?.get();
    let all: Vec<Shard> = (0..hosts).flat_map(|n| host(shards, work, n as u8, START)).collect();
    let (count, ready, begun) = (all.len(), AtomicUsize::new(0), std::time::Instant::now());
    let start = Barrier::new(count);
    let now = || START + begun.elapsed();
    thread::scope(|scope| {
        let threads: Vec<_> = all
            .into_iter()
            .enumerate()
            .map(|(n, mut shard)| {
                let (ready, start, now) = (&ready, &start, &now);
                scope.spawn(move || {
                    pin(n % processors)?;
                    let mut is_ready = false;
                    // Run all shards until each is ready, because a handshake needs the listener's
                    // shard.
                    while ready.load(Ordering::Relaxed) < count {
                        shard.turn(now());
                        if !is_ready && shard.is_ready() {
                            is_ready = true;
                            ready.fetch_add(1, Ordering::Relaxed);
                        }
                        ensure!(begun.elapsed() < SETUP, "shard {n} has no connections");
                        thread::yield_now();
                    }
                    start.wait();
                    let (before, end) = (shard.totals(), now() + time);
                    while now() < end {
                        shard.turn(now());
                    }
                    shard.totals_since(&before)
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().expect("a shard does not panic")).sum()
    })
}

/// Binds the current thread to one processor.
fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).context("sched_setaffinity")
}

/// Words that mark turns in the trace, on a page without other data.
#[repr(align(4096))]
struct Marks([AtomicU32; 1024]);

/// A store to word 0 starts the measurement. Stores to words 1 + 2 n and 2 + 2 n begin and end a
/// turn of shard n.
static MARKS: Marks = Marks([const { AtomicU32::new(0) }; 1024]);

fn mark(word: usize) {
    compiler_fence(Ordering::SeqCst);
    MARKS.0[word].store(1, Ordering::SeqCst);
    compiler_fence(Ordering::SeqCst);
}

/// Pause before and after a traced turn, in which the main thread goes to sleep. The trace records
/// the time of a memory access but not its thread, so only one thread may run.
const PAUSE: Duration = Duration::from_millis(4);

/// Handle of a shard's thread, which executes one turn per request.
struct Turner {
    /// Time of the requested turn, and the pause before it.
    go: Sender<(Instant, Duration)>,
    done: Receiver<(bool, Totals)>,
}

impl Turner {
    fn turn(&self, now: Instant, pause: Duration) -> Result<(bool, Totals)> {
        self.go.send((now, pause))?;
        let done = self.done.recv()?;
        thread::sleep(pause);
        Ok(done)
    }
}

/// Runs turns one at a time. The clock advances by the same step per round, so that all runs are
/// equal.
fn traced(shards: usize, work: Work, turns: u32) -> Result<()> {
    const WARM: u32 = 24;
    eprintln!("marks {:x}", &raw const MARKS as usize);
    // Wait for the reader of the trace, which needs this address before the first mark.
    std::io::stdin().read_line(&mut String::new())?;
    let turners: Vec<Turner> =
        host(shards, work, 0, START).into_iter().enumerate().map(turner).collect();
    let mut now = START;
    let mut round = |pause| -> Result<(bool, Totals)> {
        now += Duration::from_micros(20);
        let (mut ready, mut totals) = (true, Totals::default());
        for turner in &turners {
            let (is_ready, so_far) = turner.turn(now, pause)?;
            ready &= is_ready;
            totals = totals + so_far;
        }
        Ok((ready, totals))
    };
    let mut setup = 0;
    while !round(Duration::ZERO)?.0 {
        setup += 1;
        ensure!(setup < 10_000, "the shards have no connections");
    }
    let mut before = Totals::default();
    for _ in 0..WARM {
        before = round(PAUSE)?.1;
    }
    mark(0);
    let mut after = before;
    for _ in 0..turns {
        after = round(PAUSE)?.1;
    }
    eprintln!("{}", after.since(&before)?);
    Ok(())
}

fn turner((n, mut shard): (usize, Shard)) -> Turner {
    let (go, told) = channel();
    let (answer, done) = channel();
    thread::spawn(move || {
        while let Ok((now, pause)) = told.recv() {
            thread::sleep(pause);
            mark(1 + 2 * n);
            shard.turn(now);
            mark(2 + 2 * n);
            if answer.send((shard.is_ready(), shard.totals())).is_err() {
                break;
            }
        }
    });
    Turner { go, done }
}
