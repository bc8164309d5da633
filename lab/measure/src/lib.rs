//! Measurement of `cargo lab packets`, the same for Towpath and for its peers in Rust.
//!
//! A program is called as `PROGRAM MILLISECONDS [PART]`, and measures each case whose name contains
//! PART for about this time. With `NUMBERx` instead of MILLISECONDS, it calls each case this number
//! of times, to count instructions. The output has a line per case. Its tab-separated fields are
//! name, ns, allocations and allocated bytes per packet, and a word about the result. Programs that
//! do the same work print the same word.
//!
//! ```no_run
//! use towpath_lab_measure::{Counting, Run};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! let mut run = Run::from_arguments()?;
//! let mut bytes = [0u8; 64];
//! run.measure(|| bytes.fill(std::hint::black_box(7)));
//! run.say("fill 64 B", &format!("{:?}", bytes))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod allocator;
mod headers;

use std::error::Error;
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

pub use allocator::Counting;
pub use headers::{
    DST_PORT, DST_V4, DST_V6, ECHO_PAYLOAD, Kind, SEQ, SRC_PORT, SRC_V4, SRC_V6, WINDOW, digest,
};

/// Arguments of a program, and the figures of its last case.
pub struct Run {
    limit: Limit,
    part: String,
    last: Figures,
}

/// Length of a case's measurement.
#[derive(Debug, Clone, Copy)]
enum Limit {
    Time(Duration),
    Calls(u64),
}

/// Costs per packet: time, allocations, and allocated bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    ns: f64,
    allocations: f64,
    bytes: f64,
}

impl Run {
    /// Creates a run from the command line.
    ///
    /// # Errors
    /// The mistake in the command line.
    pub fn from_arguments() -> Result<Self, Box<dyn Error>> {
        let mut words = std::env::args().skip(1);
        let limit = words.next().ok_or("MILLISECONDS [PART], or NUMBERx [PART]")?;
        let limit = match limit.strip_suffix('x') {
            Some(calls) => Limit::Calls(calls.parse::<u64>()?.max(1)),
            None => Limit::Time(Duration::from_millis(limit.parse::<u64>()?.max(1))),
        };
        let part = words.next().unwrap_or_default();
        Ok(Self { limit, part, last: Figures::default() })
    }

    /// Returns the time to measure each case; `None` if a number of calls is given.
    pub fn time(&self) -> Option<Duration> {
        match self.limit {
            Limit::Time(time) => Some(time),
            Limit::Calls(_) => None,
        }
    }

    /// Returns whether a case is selected.
    pub fn wants(&self, name: &str) -> bool {
        name.contains(&self.part)
    }

    /// Measures `work`, which processes one packet per call. Its result is passed to `black_box`.
    pub fn measure<T>(&mut self, work: impl FnMut() -> T) {
        self.measure_batches(1, work);
    }

    /// Measures `work`, which processes `packets` packets per call.
    pub fn measure_batches<T>(&mut self, packets: u64, mut work: impl FnMut() -> T) {
        let mut calls = |count: u64| -> Duration {
            let start = Instant::now();
            for _ in 0..count {
                black_box(work());
            }
            start.elapsed()
        };
        // Warm up caches and one-time allocations, and determine the number of calls that fill the
        // time.
        let count = match self.limit {
            Limit::Time(time) => calls_in(time, &mut calls),
            Limit::Calls(count) => {
                calls(count);
                count
            }
        };
        let before = allocator::counted();
        let took = calls(count);
        let after = allocator::counted();
        let each = |all: u64| all as f64 / (count * packets) as f64;
        self.last = Figures {
            ns: took.as_secs_f64() * 1e9 / (count * packets) as f64,
            allocations: each(after.0 - before.0),
            bytes: each(after.1 - before.1),
        };
    }

    /// Prints the figures of the last measurement, and a word about its result.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn say(&self, name: &str, made: &str) -> Result<(), Box<dyn Error>> {
        let Figures { ns, allocations, bytes } = self.last;
        writeln!(std::io::stdout(), "{name}\t{ns:.3}\t{allocations:.6}\t{bytes:.3}\t{made}")?;
        Ok(())
    }
}

/// Returns the number of calls that take about `time`.
fn calls_in(time: Duration, calls: &mut impl FnMut(u64) -> Duration) -> u64 {
    let mut count = 1;
    loop {
        let took = calls(count);
        if took >= time / 8 {
            let each = took.as_secs_f64() / count as f64;
            return ((time.as_secs_f64() / each) as u64).max(1);
        }
        count *= 2;
    }
}
