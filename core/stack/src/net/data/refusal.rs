//! Reasons why a packet is refused at a hook of the packet filter.

use towpath_filter::Action;

/// Reason why a packet is refused at a hook of the packet filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleRefusal {
    Dropped,
    Rejected {
        /// Whether the sender is answered by a TCP reset or an ICMP error.
        is_answered: bool,
    },
    /// The packet is a fragment that could hide or overwrite a transport header.
    Fragment,
    /// The transport header of the packet cannot be found.
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
    /// of a multicast group would answer.
    pub(super) fn answered_if(self, is_unicast: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Rejected { .. } => Self::Rejected { is_answered: is_unicast() },
            refusal => refusal,
        }
    }
}
