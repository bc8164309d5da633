//! Accounts usage (such as connections or bytes) by source address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Key of a client, for which limits apply: its IPv4 address, or the first 64 bits of its IPv6
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ClientKey(IpAddr);

impl ClientKey {
    pub(super) fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self(ip),
            IpAddr::V6(ip) => {
                let network = ip.to_bits() & !u128::from(u64::MAX);
                Self(Ipv6Addr::from_bits(network).into())
            }
        }
    }
}

/// Usage of each source in connections or bytes. Sources with zero have no entry, so the limit on
/// the total also bounds the table.
#[derive(Debug, Default)]
pub(super) struct ClientShares {
    used: HashMap<ClientKey, usize>,
}

impl ClientShares {
    /// Returns the usage of a source.
    pub(super) fn used(&self, client: ClientKey) -> usize {
        self.used.get(&client).copied().unwrap_or(0)
    }

    /// Adds to the usage of a source.
    pub(super) fn add(&mut self, client: ClientKey, amount: usize) {
        *self.used.entry(client).or_default() += amount;
    }

    /// Subtracts from the usage of a source.
    pub(super) fn sub(&mut self, client: ClientKey, amount: usize) {
        if let Some(used) = self.used.get_mut(&client) {
            *used = used.saturating_sub(amount);
            if *used == 0 {
                self.used.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_ipv6_network_share_a_limit() {
        let key = |text: &str| ClientKey::of(text.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:0:0:9"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
    }

    #[test]
    fn a_source_without_an_amount_takes_no_memory() {
        let mut shares = ClientShares::default();
        let client = ClientKey::of([192, 0, 2, 1].into());
        shares.add(client, 2);
        shares.sub(client, 1);
        assert_eq!(shares.used(client), 1);
        shares.sub(client, 1);
        assert!(shares.used.is_empty());
    }
}
