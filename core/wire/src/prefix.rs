//! An IP address with a prefix length, such as `10.0.0.2/24`.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use crate::ParseError;

/// An IP address and a prefix length, which does not exceed the length of the address. The bits
/// after the prefix length (host bits) are kept. A value can therefore contain both an interface
/// address (10.0.0.2) and its network (10.0.0.0/24).
///
/// ```
/// use towpath_wire::Prefix;
/// let prefix: Prefix = "10.0.0.2/24".parse()?;
/// assert!(prefix.contains("10.0.0.77".parse().unwrap()));
/// assert_eq!(prefix.trunc().to_string(), "10.0.0.0/24");
/// assert!("10.0.0.2/33".parse::<Prefix>().is_err());
/// # Ok::<(), towpath_wire::ParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// The prefix 0.0.0.0/0 of the IPv4 default route.
    pub const ALL_V4: Self = Self { addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED), len: 0 };
    /// The prefix ::/0 of the IPv6 default route.
    pub const ALL_V6: Self = Self { addr: IpAddr::V6(Ipv6Addr::UNSPECIFIED), len: 0 };

    /// Creates the prefix `addr/len`; `None` if `len` exceeds the 32 or 128 bits of the address.
    #[must_use]
    pub const fn new(addr: IpAddr, len: u8) -> Option<Self> {
        if len <= bits_of(addr) { Some(Self { addr, len }) } else { None }
    }

    /// Creates the prefix that contains only `addr`: /32 or /128.
    #[must_use]
    pub const fn host(addr: IpAddr) -> Self {
        Self { addr, len: bits_of(addr) }
    }

    /// Returns the address, including the bits after the prefix length.
    #[inline]
    #[must_use]
    pub const fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Returns the prefix length in bits.
    // A prefix of length 0 contains every address, so `is_empty` would be misleading.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// Returns whether the prefix contains exactly one address.
    #[must_use]
    pub const fn is_host(&self) -> bool {
        self.len == bits_of(self.addr)
    }

    /// Returns the first address of the network: the bits after the prefix length are zero.
    #[inline]
    #[must_use]
    pub const fn network(&self) -> IpAddr {
        match self.addr {
            IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask_v4(self.len))),
            IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask_v6(self.len))),
        }
    }

    /// Returns the prefix with the bits after the prefix length set to zero.
    #[must_use]
    pub const fn trunc(&self) -> Self {
        Self { addr: self.network(), len: self.len }
    }

    /// Returns the last address of the network: the bits after the prefix length are one.
    #[must_use]
    pub const fn last(&self) -> IpAddr {
        match self.addr {
            IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() | !mask_v4(self.len))),
            IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() | !mask_v6(self.len))),
        }
    }

    /// Returns whether `addr` is of the same IP version, and inside the network.
    #[inline]
    #[must_use]
    pub const fn contains(&self, addr: IpAddr) -> bool {
        match (self.addr, addr) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()) & mask_v4(self.len) == 0,
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()) & mask_v6(self.len) == 0,
            _ => false,
        }
    }

    /// Returns whether the whole prefix `other` is inside this network.
    #[must_use]
    pub const fn contains_prefix(&self, other: &Self) -> bool {
        self.len <= other.len && self.contains(other.addr)
    }

    /// Returns the directed broadcast address of the network. Returns `None` for IPv6, for a
    /// point-to-point /31 (RFC 3021), and for a /32.
    #[inline]
    #[must_use]
    pub const fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.last() {
            IpAddr::V4(last) if self.len < 31 => Some(last),
            _ => None,
        }
    }

    /// Returns whether `addr` is the directed broadcast address of this network.
    #[inline]
    #[must_use]
    pub fn is_broadcast(&self, addr: Ipv4Addr) -> bool {
        self.broadcast() == Some(addr)
    }

    /// Returns the netmask of an IPv4 prefix, such as 255.255.255.0 for a /24; `None` for IPv6.
    #[must_use]
    pub const fn netmask_v4(&self) -> Option<Ipv4Addr> {
        match self.addr {
            IpAddr::V4(_) => Some(Ipv4Addr::from_bits(mask_v4(self.len))),
            IpAddr::V6(_) => None,
        }
    }
}

const fn bits_of(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

#[inline]
const fn mask_v4(len: u8) -> u32 {
    match u32::MAX.checked_shl(32 - len as u32) {
        Some(mask) => mask,
        None => 0,
    }
}

#[inline]
const fn mask_v6(len: u8) -> u128 {
    match u128::MAX.checked_shl(128 - len as u32) {
        Some(mask) => mask,
        None => 0,
    }
}

impl From<IpAddr> for Prefix {
    fn from(addr: IpAddr) -> Self {
        Self::host(addr)
    }
}

impl FromStr for Prefix {
    type Err = ParseError;

    /// Parses a prefix such as `10.0.0.2/24` or `fd00::2/64`. An address without a length becomes a
    /// /32 or /128.
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let (addr, len) = match s.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (s, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| ParseError::BadAddress)?;
        let Some(len) = len else { return Ok(Self::host(addr)) };
        if len.is_empty() || !len.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ParseError::BadLength);
        }
        let len = len.parse().map_err(|_| ParseError::BadLength)?;
        Self::new(addr, len).ok_or(ParseError::BadLength)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
