//! Items that a discipline can queue.

use towpath_wire::Ecn;

/// An item that a discipline can queue: a packet, or a test item.
pub trait Queueable: Send {
    /// Returns the length on the link in bytes, including the link header.
    fn bytes(&self) -> usize;

    /// Returns the flow hash, equal for all items of a flow.
    fn flow_hash(&self) -> u32 {
        0
    }

    /// Returns the ECN field.
    fn ecn(&self) -> Ecn {
        Ecn::NotEct
    }

    /// Sets CE if the item is ECN-capable, and returns whether it is marked now. An item that
    /// already has CE counts as marked.
    fn mark_ce(&mut self) -> bool {
        false
    }

    /// Returns the priority that Linux derives from TOS (`rt_tos2priority`): 0 best effort, 2 bulk,
    /// 4 interactive bulk, 6 interactive, 7 control.
    fn priority(&self) -> u8 {
        0
    }
}
