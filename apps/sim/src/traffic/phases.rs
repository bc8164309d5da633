//! Times in which on-off traffic is sent, and times in which it is not.

use super::program::ProgramContext;
use crate::scenario::PhasesPlan;

/// The phases of a flow, from its first call on.
#[derive(Debug)]
pub(super) struct Phases {
    plan: PhasesPlan,
    is_on: bool,
    /// Time at which the phase ends.
    until: u64,
}

impl Phases {
    pub fn new(plan: PhasesPlan) -> Self {
        Self { plan, is_on: false, until: 0 }
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Time of the next change; `u64::MAX` for traffic that stays on.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Changes the phase if its time is over; true when it did.
    pub fn advance(&mut self, cx: &mut ProgramContext<'_>) -> bool {
        if self.until > cx.now {
            return false;
        }
        self.is_on = !self.is_on;
        let PhasesPlan { on_ns, off_ns, is_constant } = self.plan;
        let mean = if self.is_on { on_ns } else { off_ns };
        self.until = match () {
            () if off_ns == 0 => u64::MAX,
            () if is_constant => cx.now.saturating_add(mean.max(1)),
            () => cx.now + cx.exponential(mean).max(1),
        };
        true
    }
}
