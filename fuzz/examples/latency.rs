//! `cargo run --release -p towpath-fuzz --example latency`: see [`towpath_fuzz::latency`].

#![allow(clippy::print_stdout)] // It is what it is for.

use std::time::Duration;

use towpath_fuzz::latency::{Beside, measure};

const ROUNDS: usize = 20_000;

fn main() {
    for beside in [Beside::Computation, Beside::Attack] {
        let times = measure(beside, ROUNDS);
        for (what, times) in [("bytes", times.bytes), ("answer", times.answer)] {
            let at = |share: usize| -> Duration { times[times.len() * share / 1000] };
            let (p50, p99, p999) = (at(500), at(990), at(999));
            println!("{beside:?}, {what}: p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}");
        }
    }
}
