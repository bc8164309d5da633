//! `cargo run --release -p towpath-fuzz --example latency`: see [`towpath_fuzz::latency`].

#![allow(clippy::print_stdout)] // The example's purpose is its output.

use std::time::Duration;

use towpath_fuzz::latency::{ATTACK, Beside, attack, measure};

const ROUNDS: usize = 20_000;

fn main() {
    if std::env::args().nth(1).is_some_and(|argument| argument == ATTACK) {
        return attack();
    }
    for beside in [Beside::Computation(1), Beside::Computation(2), Beside::Attack] {
        let times = measure(beside, ROUNDS);
        for (what, times) in [("bytes", times.bytes), ("answer", times.answer)] {
            let at = |share: usize| -> Duration { times[times.len() * share / 1000] };
            let (p50, p99, p999) = (at(500), at(990), at(999));
            println!("{beside:?}, {what}: p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}");
        }
    }
}
