//! Secret keys of a host.

use super::hash;

/// Secret random keys from the owner. The keys make identifiers unpredictable, and prevent chosen
/// collisions in tables. Equal keys give equal runs.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Key of hash tables.
    pub tables: [u64; 2],
    /// Key of IP identifications.
    pub idents: [u64; 2],
    /// Key of interface identifiers (RFC 7217). Keep it over restarts, so that the host keeps its
    /// addresses.
    pub interface_ids: [u64; 2],
    /// Seed of random delays.
    pub random: u64,
    /// Key of the address table's hash function.
    pub addresses: u64,
    /// Seed of the random variation of the ICMP error limit.
    pub error_limit: u64,
    /// Key of a tracker's tables and ports.
    pub tracker: [u64; 2],
}

impl Keys {
    /// Derives all keys from one secret.
    pub fn derive(seed: &[u8; 32]) -> Self {
        let key = |label: u64| hash::derive(seed, b"", label);
        Self {
            tables: [key(1), key(2)],
            idents: [key(3), key(4)],
            interface_ids: [key(5), key(6)],
            random: key(7),
            addresses: key(8),
            error_limit: key(9),
            tracker: [key(10), key(11)],
        }
    }

    /// Returns the keys of one shard of a host. Only the key of identifications differs from shard
    /// to shard.
    pub(crate) fn of_shard(self, shard: u8) -> Self {
        let [first, second] = self.idents;
        let shard = u64::from(shard);
        let (random, error_limit) = (self.random ^ shard, self.error_limit ^ shard);
        Self { idents: [first, second ^ shard], random, error_limit, ..self }
    }
}
