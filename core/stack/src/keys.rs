//! Secrets of the socket layer.

use crate::net::hash::{self, Keyed};

/// Secrets, one per purpose, so that a leak of one does not compromise another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketKeys {
    /// Hashes tables and assigns flows to shards.
    pub table: Keyed,
    /// Key of initial sequence numbers (RFC 6528).
    pub isn: Keyed,
    /// Key of timestamp offsets (RFC 7323 §5.4).
    pub timestamps: Keyed,
    /// Key for choosing local ports (RFC 6056).
    pub ports: Keyed,
    /// Key of the Fast Open cookies given to clients (RFC 7413 §4.1.2).
    pub fast_open: Keyed,
}

impl SocketKeys {
    pub fn derive(seed: &[u8; 32]) -> Self {
        let key =
            |n: u64| Keyed([2 * n, 2 * n + 1].map(|label| hash::derive(seed, b"sockets", label)));
        Self { table: key(0), isn: key(1), timestamps: key(2), ports: key(3), fast_open: key(4) }
    }
}
