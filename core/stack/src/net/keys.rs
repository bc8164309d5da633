//! Secret keys of a host's IP layer.

use super::hash;

/// Secret random keys that the owner of the stack provides. The keys make identifiers
/// unpredictable, and prevent that a peer chooses colliding table entries. With equal keys, the
/// stack behaves the same.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Key of the hash tables.
    pub tables: [u64; 2],
    /// Key of the generator of IP identifications.
    pub idents: [u64; 2],
    /// Key of IPv6 interface identifiers (RFC 7217). If it is kept over restarts, the host keeps
    /// its addresses.
    pub interface_ids: [u64; 2],
    /// Seed of the generator of random delays.
    pub random: u64,
    /// Key of the hash function for the table of addresses.
    pub addresses: u64,
    /// Seed of the generator that varies the limit of ICMP errors.
    pub error_limit: u64,
    /// Key of the tables and port numbers of a tracker, such as NAT.
    pub tracker: [u64; 2],
}

impl Keys {
    /// Derives all keys from one secret seed.
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

    /// Returns the keys of one shard of a host. Only the key of IP identifications differs between
    /// shards.
    pub(crate) fn of_shard(self, shard: u8) -> Self {
        let [first, second] = self.idents;
        let shard = u64::from(shard);
        let (random, error_limit) = (self.random ^ shard, self.error_limit ^ shard);
        Self { idents: [first, second ^ shard], random, error_limit, ..self }
    }
}
