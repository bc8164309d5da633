//! Items that a queueing discipline can queue.

use towpath_wire::Ecn;

/// An item that a queueing discipline can queue: a packet, or a test item.
pub trait Queueable: Send {
    /// Returns the length of the item on the link in bytes, including the link header.
    fn bytes(&self) -> usize;

    /// Returns a hash that is equal for all items of a flow.
    fn flow_hash(&self) -> u32 {
        0
    }

    /// Returns the ECN field of the item's IP header.
    fn ecn(&self) -> Ecn {
        Ecn::NotEct
    }

    /// Marks an ECN-capable item with CE. Returns whether the item has CE afterwards, even if it
    /// had CE before.
    fn mark_ce(&mut self) -> bool {
        false
    }

    /// Returns the priority that Linux derives from the TOS field (`rt_tos2priority`): 0 best
    /// effort, 2 bulk, 4 interactive bulk, 6 interactive, 7 control.
    fn priority(&self) -> u8 {
        0
    }
}
