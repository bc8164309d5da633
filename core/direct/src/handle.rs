//! Socket handles.

/// Identifies a socket of a node. A handle is dead once its socket is removed and is never reused:
/// another socket at the same index gets another generation.
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
