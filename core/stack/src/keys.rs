//! The secrets of the sockets of a host.

use crate::net::hash::{self, Keyed};

/// Secrets, each for one purpose: a leak of one compromises no other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketKeys {
    /// Hashes the tables, and divides flows among shards.
    pub table: Keyed,
    /// RFC 6528: initial sequence numbers.
    pub isn: Keyed,
    /// RFC 7323 §5.4: timestamp offsets.
    pub timestamps: Keyed,
    /// RFC 6056: local ports.
    pub ports: Keyed,
    /// RFC 7413 §4.1.2: cookies of clients.
    pub fast_open: Keyed,
}

impl SocketKeys {
    pub fn derive(seed: &[u8; 32]) -> Self {
        let key =
            |n: u64| Keyed([2 * n, 2 * n + 1].map(|label| hash::derive(seed, b"sockets", label)));
        Self { table: key(0), isn: key(1), timestamps: key(2), ports: key(3), fast_open: key(4) }
    }
}
