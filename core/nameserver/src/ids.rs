//! Unpredictable identifiers and ports of queries.

use core::hash::Hasher;

use siphasher::sip::SipHasher13;

/// First and number of the UDP ports from which queries are sent: all that are not well known.
const FIRST_PORT: u64 = 1024;
const PORTS: u64 = 65_536 - FIRST_PORT;

/// Values of a query that an attacker must guess to forge its answer (RFC 5452 §9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuerySecret {
    /// Identifier of the message.
    pub id: u16,
    /// Source port.
    pub port: u16,
}

/// Generator of [`QuerySecret`]s that an attacker cannot predict, even from earlier ones: the keyed
/// hash of a counter.
#[derive(Debug, Clone)]
pub struct QuerySecrets {
    key: [u64; 2],
    count: u64,
}

impl QuerySecrets {
    /// Creates a generator. `key` must be random and secret.
    pub fn new(key: [u64; 2]) -> Self {
        Self { key, count: 0 }
    }

    /// Returns the values of the next query.
    pub fn next_secret(&mut self) -> QuerySecret {
        self.count += 1;
        let mut hasher = SipHasher13::new_with_keys(self.key[0], self.key[1]);
        hasher.write_u64(self.count);
        let bits = hasher.finish();
        QuerySecret { id: bits as u16, port: (FIRST_PORT + (bits >> 16) % PORTS) as u16 }
    }
}
