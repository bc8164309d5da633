//! Socket handles.

/// Identifies a socket of a node. A handle is never reused. A later socket at the same table index
/// has a different generation, so the handle of a removed socket is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketHandle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SocketHandle {
    /// Returns the index in the socket table: small, and unique among the node's current sockets.
    pub fn index(self) -> usize {
        self.index as usize
    }
}
