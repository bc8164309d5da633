//! Sequences of arrivals and departures, identical for a discipline and its reference.

use towpath_qdisc::{Dice, Ecn};

use crate::item::{MS, Numbered};

/// An action of a test.
pub enum Step {
    Put(Numbered),
    Take,
}

/// Simulates a bottleneck: packets are taken at a rate, and several flows send at changing rates.
///
/// Phases are overload, light load and idle periods, so that a control loop goes through all its
/// states.
pub fn bottleneck(seed: u64, packets: u64, flows: u32, ecn: bool) -> Vec<(u64, Step)> {
    let mut dice = Dice::new(seed, 0);
    let mut steps = Vec::new();
    let (mut now_ns, mut free_ns, mut gap_ns) = (MS, MS, MS);
    for number in 0..packets {
        if number % 400 == 0 {
            // A packet takes about a millisecond, so the load is between three quarters and three
            // times the rate.
            gap_ns = MS / 3 + dice.below(MS);
            now_ns += if dice.falls(0.2) { 3_000 * MS } else { 0 };
        }
        now_ns += gap_ns / 2 + dice.below(gap_ns);
        while free_ns <= now_ns {
            steps.push((free_ns, Step::Take));
            free_ns += MS / 2 + dice.below(MS);
        }
        let bytes = 60 + dice.below(1440) as usize;
        let capable = ecn && dice.falls(0.5);
        steps.push((
            now_ns,
            Step::Put(Numbered {
                flow: dice.below(flows.into()) as u32,
                ecn: if capable { Ecn::Ect0 } else { Ecn::NotEct },
                priority: dice.below(16) as u8,
                ..Numbered::new(number, bytes)
            }),
        ));
    }
    for n in 0..2 * packets {
        steps.push((free_ns.max(now_ns) + n * MS / 4, Step::Take));
    }
    steps
}
