//! IPv6 addresses that contain an IPv4 address (RFC 6052).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use towpath_wire::Prefix;

/// Lengths that a translation prefix may have (RFC 6052 section 2.2).
const LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];

/// Number of the octet that is always zero, and that an IPv4 address steps over.
const RESERVED_OCTET: usize = 8;

/// IPv6 prefix whose addresses contain IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TranslationPrefix {
    network: Ipv6Addr,
    len: u8,
}

impl TranslationPrefix {
    /// The well-known prefix 64:ff9b::/96.
    pub const WELL_KNOWN: Self =
        Self { network: Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), len: 96 };

    /// Creates a translation prefix. Returns `None` if the prefix is one of IPv4, has host bits or
    /// another length, or if octet 8 of a /96 is not zero.
    #[must_use]
    pub fn new(prefix: Prefix) -> Option<Self> {
        let IpAddr::V6(network) = prefix.addr() else { return None };
        let is_valid = LENGTHS.contains(&prefix.len())
            && prefix.trunc() == prefix
            && network.octets()[RESERVED_OCTET] == 0
            && !network.is_multicast();
        is_valid.then_some(Self { network, len: prefix.len() })
    }

    /// Returns the prefix with its length.
    #[must_use]
    pub fn prefix(self) -> Prefix {
        Prefix::new(self.network.into(), self.len).unwrap_or(Prefix::ALL_V6)
    }

    /// Returns the octets of an IPv6 address in which the IPv4 address is.
    fn places(self) -> [usize; 4] {
        let mut at = usize::from(self.len / 8);
        [(); 4].map(|()| {
            at += usize::from(at == RESERVED_OCTET);
            at += 1;
            at - 1
        })
    }

    /// Returns the IPv6 address that contains `addr`.
    #[must_use]
    pub fn embed(self, addr: Ipv4Addr) -> Ipv6Addr {
        let mut octets = self.network.octets();
        for (place, octet) in self.places().into_iter().zip(addr.octets()) {
            octets[place] = octet;
        }
        octets.into()
    }

    /// Returns the IPv4 address in `addr`. Returns `None` if `addr` is not in the prefix, or its
    /// remaining octets are not zero.
    #[must_use]
    pub fn extract(self, addr: Ipv6Addr) -> Option<Ipv4Addr> {
        let octets = addr.octets();
        let embedded = Ipv4Addr::from(self.places().map(|place| octets[place]));
        (self.embed(embedded) == addr).then_some(embedded)
    }

    /// Returns whether the prefix may represent `addr`. The well-known prefix represents no private
    /// and other local addresses, because they differ from network to network.
    //= https://www.rfc-editor.org/rfc/rfc6052#section-3.1
    //# The Well-Known Prefix MUST NOT be used to represent non-global IPv4
    //# addresses, such as those defined in [RFC1918]
    #[must_use]
    pub fn represents(self, addr: Ipv4Addr) -> bool {
        let [first, second, ..] = addr.octets();
        let is_host = first != 0 && first < 224 && first != 127;
        let is_shared = first == 100 && second & 0xc0 == 64;
        let is_local = addr.is_private() || addr.is_link_local() || is_shared;
        is_host && !(self == Self::WELL_KNOWN && is_local)
    }
}

impl FromStr for TranslationPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let prefix = text.parse::<Prefix>().ok().and_then(Self::new);
        prefix.ok_or_else(|| {
            format!(
                "{text:?} is not a prefix for translation: expected an IPv6 prefix of length 32, \
                 40, 48, 56, 64 or 96, as 64:ff9b::/96"
            )
        })
    }
}

impl fmt::Display for TranslationPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.len)
    }
}
