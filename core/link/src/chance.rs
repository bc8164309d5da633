//! Probabilities, and correlated random draws.

use towpath_qdisc::Dice;

use crate::{Chance, Loss};

/// A probability from 0 to 1, in steps of 2^-32 as in tc-netem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Probability(u32);

impl Probability {
    /// Probability 0: the event never occurs.
    pub const NEVER: Self = Self(0);
    /// Probability 1: the event always occurs.
    pub const ALWAYS: Self = Self(u32::MAX);

    /// Creates a probability; `None` if the number is less than 0 or greater than 1.
    pub fn new(number: f64) -> Option<Self> {
        // Use at least one step, because a small positive probability must not become zero.
        let steps = (number * f64::from(u32::MAX)).round() as u32;
        (0. ..=1.).contains(&number).then(|| Self(steps.max(u32::from(number > 0.))))
    }

    /// Returns the probability as a number from 0 to 1.
    pub fn value(self) -> f64 {
        f64::from(self.0) / f64::from(u32::MAX)
    }

    /// Returns 1 minus the probability.
    #[must_use]
    pub fn complement(self) -> Self {
        Self(u32::MAX - self.0)
    }

    /// Returns whether the event occurs, given a random draw of 32 bits: never for probability 0,
    /// always for 1.
    fn strikes(self, draw: u32) -> bool {
        self.0 != 0 && draw <= self.0
    }
}

/// A source of random numbers, each of which may be correlated with the previous one (`get_crandom`
/// of Linux's sch_netem.c).
#[derive(Debug)]
pub(crate) struct Correlated {
    dice: Dice,
    last: u32,
}

impl Correlated {
    pub(crate) fn new(dice: Dice) -> Self {
        Self { dice, last: 0 }
    }

    /// Returns the next random number of 32 bits.
    pub(crate) fn draw(&mut self, correlation: Probability) -> u32 {
        let fresh = self.dice.next_u32();
        if correlation == Probability::NEVER {
            return fresh;
        }
        let weight = u64::from(correlation.0) + 1;
        let mixed = u64::from(fresh) * ((1 << 32) - weight) + u64::from(self.last) * weight;
        self.last = (mixed >> 32) as u32;
        self.last
    }

    /// Returns whether an event with this probability occurs. No random number is drawn if the
    /// probability is 0.
    pub(crate) fn strikes(&mut self, chance: Chance) -> bool {
        chance.probability != Probability::NEVER
            && chance.probability.strikes(self.draw(chance.correlation))
    }

    /// Returns a random number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.dice.below(bound)
    }
}

/// State of the loss model of a link.
#[derive(Debug)]
pub(crate) struct Losses {
    draws: Correlated,
    is_bad: bool,
    /// Number of packets that the loss model has decided on.
    seen: u64,
}

impl Losses {
    pub(crate) fn new(dice: Dice) -> Self {
        Self { draws: Correlated::new(dice), is_bad: false, seen: 0 }
    }

    /// Decides whether the next packet is lost.
    pub(crate) fn strike(&mut self, loss: Loss) -> bool {
        let number = self.seen;
        self.seen += 1;
        match loss {
            Loss::Numbered { first, count } => number.checked_sub(first).is_some_and(|n| n < count),
            Loss::Random(chance) => self.draws.strikes(chance),
            Loss::GilbertElliott { to_bad, to_good, in_bad, in_good } => {
                let independent = Probability::NEVER;
                let (lost, leaves) =
                    if self.is_bad { (in_bad, to_good) } else { (in_good, to_bad) };
                let is_lost = lost.strikes(self.draws.draw(independent));
                self.is_bad ^= leaves.strikes(self.draws.draw(independent));
                is_lost
            }
        }
    }
}
