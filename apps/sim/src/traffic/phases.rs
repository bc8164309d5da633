//! On and off phases of on-off traffic.

use super::program::ProgramContext;
use crate::scenario::PhasesPlan;

/// State of a flow's phases. The first phase starts with the first call of [`Self::advance`].
#[derive(Debug)]
pub(super) struct Phases {
    plan: PhasesPlan,
    is_on: bool,
    /// Time at which the current phase ends, in ns.
    until: u64,
}

impl Phases {
    pub fn new(plan: PhasesPlan) -> Self {
        Self { plan, is_on: false, until: 0 }
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the time at which the phase changes next, or `u64::MAX` for traffic that is always
    /// on.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Starts the next phase if the current one is over. Returns whether a new phase started.
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
