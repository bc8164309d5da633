//! A violation of a rule by a simulated world.

use std::fmt;

/// Rule that a simulated world violates, with details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFault {
    /// Name of the violated rule, the same for all worlds that violate this rule.
    pub rule: String,
    /// Details of the violation: time, place and numbers.
    pub what: String,
}

impl fmt::Display for RuleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken: {}\n  {}", self.rule, self.what)
    }
}
