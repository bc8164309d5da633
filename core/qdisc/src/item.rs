//! Items that a discipline queues.

/// The ECN field of an IP header (RFC 3168 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// 00: the sender takes a drop as the only signal of congestion.
    #[default]
    NotEct,
    /// 01: ECN-capable; L4S's identifier (RFC 9331).
    Ect1,
    /// 10: ECN-capable.
    Ect0,
    /// 11: congestion was experienced on the way here.
    Ce,
}

impl Ecn {
    /// The lower two bits of a TOS or traffic class byte.
    pub fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// An item that a discipline can queue: a packet, or a stand-in of a test.
pub trait Queueable: Send {
    /// Length on the link, in bytes, with its link header.
    fn bytes(&self) -> usize;

    /// Hash of the flow that the item belongs to: equal for all items of a flow.
    fn flow_hash(&self) -> u32 {
        0
    }

    /// ECN field of the item.
    fn ecn(&self) -> Ecn {
        Ecn::NotEct
    }

    /// Sets CE, and returns true, if the item is ECN-capable; an item that has CE already counts as
    /// marked.
    fn mark_ce(&mut self) -> bool {
        false
    }

    /// Priority as Linux derives it from TOS (`rt_tos2priority`): 0 best effort, 2 bulk, 4
    /// interactive bulk, 6 interactive, 7 control.
    fn priority(&self) -> u8 {
        0
    }
}
