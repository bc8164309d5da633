//! Names of sockets.

/// Names a socket of a node. A handle is dead once its socket is gone, and never comes back: its
/// place in the table is used again with another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketHandle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SocketHandle {
    /// Place in the table: small, and no other living socket of the node has it.
    pub fn index(self) -> usize {
        self.index as usize
    }
}
