//! A violation of a rule by a simulated world.

use std::fmt;

/// Violation of a rule by a simulated world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFault {
    /// Name of the rule, the same for all worlds that violate it.
    pub rule: String,
    /// Details: time, place and numbers.
    pub what: String,
}

impl fmt::Display for RuleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken: {}\n  {}", self.rule, self.what)
    }
}
