//! The secrets of a host.

use super::hash;

/// Secrets, random and from outside: they make identifiers unpredictable and tables immune to
/// chosen keys. The same keys give the same run.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Hashes tables.
    pub tables: [u64; 2],
    /// Makes IP identifications.
    pub idents: [u64; 2],
    /// Makes interface identifiers (RFC 7217): keep it over restarts to keep addresses.
    pub interface_ids: [u64; 2],
    /// Seeds jitter.
    pub random: u64,
    /// Hashes the table of addresses.
    pub addresses: u64,
    /// Varies the limit of ICMP errors.
    pub error_limit: u64,
}

impl Keys {
    /// All keys from one secret.
    pub fn derive(seed: &[u8; 32]) -> Self {
        let key = |label: u64| hash::derive(seed, b"", label);
        Self {
            tables: [key(1), key(2)],
            idents: [key(3), key(4)],
            interface_ids: [key(5), key(6)],
            random: key(7),
            addresses: key(8),
            error_limit: key(9),
        }
    }

    /// Keys of one of several stacks that are one host. Identifications differ from shard to shard.
    pub(crate) fn of_shard(self, shard: u8) -> Self {
        let [first, second] = self.idents;
        let shard = u64::from(shard);
        let (random, error_limit) = (self.random ^ shard, self.error_limit ^ shard);
        Self { idents: [first, second ^ shard], random, error_limit, ..self }
    }
}
