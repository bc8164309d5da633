//! Reasons why a packet is refused at a hook.

use towpath_filter::Action;

/// Reason why a packet is refused at a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleRefusal {
    Dropped,
    Rejected {
        /// Its sender gets an error or a reset.
        is_answered: bool,
    },
    /// A fragment that could hide a transport header.
    Fragment,
    /// No transport header was found.
    Hidden,
}

impl RuleRefusal {
    #[inline]
    pub(super) fn of(action: Action) -> Result<(), Self> {
        match action {
            Action::Accept => Ok(()),
            Action::Drop => Err(Self::Dropped),
            Action::Reject => Err(Self::Rejected { is_answered: true }),
        }
    }

    /// Answers only a packet to a unicast address, because otherwise each member of a group would
    /// answer.
    pub(super) fn answered_if(self, is_unicast: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Rejected { .. } => Self::Rejected { is_answered: is_unicast() },
            refusal => refusal,
        }
    }
}
