//! Clients of a gateway, to which per-client limits apply.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A client, identified by its address. For IPv6 only the first 64 bits are used, because a host
/// can use any address in its network (RFC 4291 §2.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Client(IpAddr);

/// Bits of an IPv6 address that are the interface identifier, which the host chooses.
const INTERFACE_IDENTIFIER: u128 = u64::MAX as u128;

impl Client {
    /// Represents the program behind the gateway. No real client has the unspecified address.
    pub(crate) const PROGRAM: Self = Self(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

    pub(crate) fn at(ip: IpAddr) -> Self {
        Self(match ip.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !INTERFACE_IDENTIFIER).into(),
            v4 => v4,
        })
    }

    /// Returns whether per-client limits apply to this client. The limits do not apply to the
    /// program, or to clients with a loopback address of this host.
    pub(crate) fn has_share(self) -> bool {
        // An IPv6 address is truncated to 64 bits, so ::1 becomes ::, the unspecified address. No
        // other unicast address has this prefix.
        !self.0.is_loopback() && !self.0.is_unspecified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_client() {
        let client = |text: &str| Client::at(text.parse().unwrap());
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
        assert!(client("192.0.2.1").has_share() && client("2001:db8::1").has_share());
        assert!(!client("127.0.0.9").has_share() && !client("::1").has_share());
        assert!(!Client::PROGRAM.has_share());
    }
}
