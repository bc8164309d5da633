//! Reasons why a packet is refused at a hook.

use towpath_filter::Action;

/// Reason why a packet is refused at a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleRefusal {
    Dropped,
    Rejected {
        /// Whether the sender gets a reset or an ICMP error.
        is_answered: bool,
    },
    /// A fragment that could hide or overwrite a transport header.
    Fragment,
    /// A packet whose transport header cannot be found.
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

    /// Suppresses the answer unless the packet was sent to a unicast address. Otherwise each member
    /// of a group would answer.
    pub(super) fn answered_if(self, is_unicast: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Rejected { .. } => Self::Rejected { is_answered: is_unicast() },
            refusal => refusal,
        }
    }
}
