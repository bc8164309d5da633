//! A rule that a world breaks.

use std::fmt;

/// A rule that a world breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFault {
    /// Rule, which is the same for all worlds that break it.
    pub rule: String,
    /// Details: when, where, and the numbers.
    pub what: String,
}

impl fmt::Display for RuleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken: {}\n  {}", self.rule, self.what)
    }
}
