//! Neighbour discovery for IPv6 (RFC 4861), with route information (RFC 4191).
//!
//! [`Message::parse`] performs all validity checks of RFC 4861 §6.1, §7.1 and §8.1 except the
//! checksum, so the message that it returns needs no further checks. Options that may occur several
//! times (prefixes, routes) are read from the same bytes by [`options`].

use core::net::Ipv6Addr;

use crate::bytes::{at, be16, head_mut, ipv6_at};
use crate::{MacAddr, ParseError, addr};

/// ICMPv6 type of a router solicitation.
pub const ROUTER_SOLICIT: u8 = 133;
/// ICMPv6 type of a router advertisement.
pub const ROUTER_ADVERT: u8 = 134;
/// ICMPv6 type of a neighbour solicitation.
pub const NEIGHBOR_SOLICIT: u8 = 135;
/// ICMPv6 type of a neighbour advertisement.
pub const NEIGHBOR_ADVERT: u8 = 136;
/// ICMPv6 type of a redirect.
pub const REDIRECT: u8 = 137;

/// Hop limit of every neighbour discovery packet. The value proves that no router has forwarded the
/// packet.
pub const HOP_LIMIT: u8 = 255;
/// Maximum length in bytes of a message that [`Message::emit`] writes.
pub const MESSAGE_LEN_MAX: usize = 48;

/// Fields of the IPv6 header that are needed to check the validity of a neighbour discovery
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Source address of the packet.
    pub src: Ipv6Addr,
    /// Destination address of the packet.
    pub dst: Ipv6Addr,
    /// Hop limit that the packet had on arrival.
    pub hop_limit: u8,
}

/// A neighbour discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A router solicitation, by which a host asks for router advertisements.
    RouterSolicit {
        /// MAC address of the host; `None` if the option is missing.
        source_ll: Option<MacAddr>,
    },
    /// A router advertisement.
    RouterAdvert(RouterAdvert),
    /// A neighbour solicitation: requests the MAC address of `target`, or checks whether `target`
    /// is still reachable.
    NeighborSolicit {
        /// IP address whose MAC address is requested.
        target: Ipv6Addr,
        /// MAC address of the sender; `None` in duplicate address detection.
        source_ll: Option<MacAddr>,
    },
    /// A neighbour advertisement: reports that the MAC address of `target` is `target_ll`.
    NeighborAdvert {
        /// Whether the sender is a router.
        router: bool,
        /// Whether the message answers a solicitation.
        solicited: bool,
        /// Whether the message may replace the MAC address in an existing entry.
        override_: bool,
        /// IP address whose MAC address is advertised.
        target: Ipv6Addr,
        /// MAC address of `target`; `None` if the option is missing.
        target_ll: Option<MacAddr>,
    },
    /// A redirect, by which a router reports that `target` is a better first hop for packets to
    /// `dst`.
    Redirect {
        /// Address of the better first hop. The address is `dst` itself if `dst` is on the link.
        target: Ipv6Addr,
        /// Destination address whose packets are redirected.
        dst: Ipv6Addr,
        /// MAC address of `target`; `None` if the option is missing.
        target_ll: Option<MacAddr>,
    },
}

/// Contents of a router advertisement, without its prefixes and routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterAdvert {
    /// Hop limit that hosts should use for outgoing packets; 0 if it is unspecified.
    pub hop_limit: u8,
    /// Whether addresses are available by DHCPv6.
    pub managed: bool,
    /// Whether other configuration is available by DHCPv6.
    pub other: bool,
    /// Preference of the router as a default router (RFC 4191).
    pub preference: Preference,
    /// Time in seconds for which the router is a default router; 0 if it is not one.
    pub lifetime_s: u16,
    /// Time in milliseconds for which a neighbour counts as reachable after a confirmation; 0 if it
    /// is unspecified.
    pub reachable_ms: u32,
    /// Time between two neighbour solicitations in milliseconds; 0 if it is unspecified.
    pub retrans_ms: u32,
    /// MAC address of the router; `None` if the option is missing.
    pub source_ll: Option<MacAddr>,
    /// MTU of the link in bytes; `None` if the option is missing.
    pub mtu: Option<u32>,
}

/// Preference of a router or a route (RFC 4191 §2.1), in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Preference {
    /// The router or route is used only if there is no alternative.
    Low,
    /// The default preference.
    #[default]
    Medium,
    /// The router or route is preferred over those with a lower preference.
    High,
}

impl Preference {
    //= https://www.rfc-editor.org/rfc/rfc4191#section-2.2
    //# If the Reserved (10) value is received, the receiver MUST treat the value as if it were (00).
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0b01 => Self::High,
            0b11 => Self::Low,
            _ => Self::Medium,
        }
    }

    const fn to_bits(self) -> u8 {
        match self {
            Self::Low => 0b11,
            Self::Medium => 0b00,
            Self::High => 0b01,
        }
    }
}

impl Message {
    /// Parses and validates a neighbour discovery message. `data` is the whole payload of the IP
    /// packet. Returns the message, and the length of its fixed part, after which the options
    /// begin. Returns [`ParseError::Unsupported`] for other ICMPv6 types.
    pub fn parse(data: &[u8], envelope: &Envelope) -> Result<(Self, usize), ParseError> {
        let [kind, code, _, _] = *at::<4>(data, 0)?;
        let fixed_len = fixed_len(kind).ok_or(ParseError::Unsupported)?;
        //= https://www.rfc-editor.org/rfc/rfc4861#section-7.1.1
        //# -  The IP Hop Limit field has a value of 255, i.e., the packet
        //# could not possibly have been forwarded by a router.
        if envelope.hop_limit != HOP_LIMIT {
            return Err(ParseError::BadHopLimit);
        }
        if code != 0 {
            return Err(ParseError::BadCode);
        }
        let area = data.get(fixed_len..).ok_or(ParseError::Truncated)?;
        let found = Found::collect(area)?;
        let message = match kind {
            ROUTER_SOLICIT => router_solicit(&found, envelope)?,
            ROUTER_ADVERT => router_advert(data, &found, envelope)?,
            NEIGHBOR_SOLICIT => neighbor_solicit(data, &found, envelope)?,
            NEIGHBOR_ADVERT => neighbor_advert(data, &found, envelope)?,
            _ => redirect(data, &found, envelope)?,
        };
        Ok((message, fixed_len))
    }

    /// Writes the message to `buf`, with its MAC address and MTU options and the checksum 0, and
    /// returns its length in bytes. The caller may append further options using
    /// [`PrefixInfo::emit`], and then calls [`crate::icmpv6::fill_checksum`].
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let kind = self.kind();
        let fixed_len = match *self {
            Self::RouterSolicit { .. } => 8,
            Self::RouterAdvert(_) => 16,
            Self::NeighborSolicit { .. } | Self::NeighborAdvert { .. } => 24,
            Self::Redirect { .. } => 40,
        };
        buf[..fixed_len].fill(0);
        buf[0] = kind;
        match *self {
            Self::RouterSolicit { source_ll } => {
                fixed_len + emit_link_addr(OPT_SOURCE_LL, source_ll, &mut buf[fixed_len..])
            }
            Self::RouterAdvert(advert) => advert.emit_fields(buf, fixed_len),
            Self::NeighborSolicit { target, source_ll } => {
                buf[8..24].copy_from_slice(&target.octets());
                fixed_len + emit_link_addr(OPT_SOURCE_LL, source_ll, &mut buf[fixed_len..])
            }
            Self::NeighborAdvert { router, solicited, override_, target, target_ll } => {
                buf[4] = flag(router, 0x80) | flag(solicited, 0x40) | flag(override_, 0x20);
                buf[8..24].copy_from_slice(&target.octets());
                fixed_len + emit_link_addr(OPT_TARGET_LL, target_ll, &mut buf[fixed_len..])
            }
            Self::Redirect { target, dst, target_ll } => {
                buf[8..24].copy_from_slice(&target.octets());
                buf[24..40].copy_from_slice(&dst.octets());
                fixed_len + emit_link_addr(OPT_TARGET_LL, target_ll, &mut buf[fixed_len..])
            }
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::RouterSolicit { .. } => ROUTER_SOLICIT,
            Self::RouterAdvert(_) => ROUTER_ADVERT,
            Self::NeighborSolicit { .. } => NEIGHBOR_SOLICIT,
            Self::NeighborAdvert { .. } => NEIGHBOR_ADVERT,
            Self::Redirect { .. } => REDIRECT,
        }
    }
}

impl RouterAdvert {
    fn emit_fields(&self, buf: &mut [u8], fixed_len: usize) -> usize {
        let flags = flag(self.managed, 0x80) | flag(self.other, 0x40);
        buf[4] = self.hop_limit;
        buf[5] = flags | self.preference.to_bits() << 3;
        buf[6..8].copy_from_slice(&self.lifetime_s.to_be_bytes());
        buf[8..12].copy_from_slice(&self.reachable_ms.to_be_bytes());
        buf[12..16].copy_from_slice(&self.retrans_ms.to_be_bytes());
        let mut len = fixed_len;
        len += emit_link_addr(OPT_SOURCE_LL, self.source_ll, &mut buf[len..]);
        if let Some(mtu) = self.mtu {
            let option = head_mut::<8>(&mut buf[len..]);
            option[..4].copy_from_slice(&[OPT_MTU, 1, 0, 0]);
            option[4..].copy_from_slice(&mtu.to_be_bytes());
            len += 8;
        }
        len
    }
}

/// An option of a neighbour discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NdpOption {
    /// MAC address of the message's sender.
    SourceLinkAddr(MacAddr),
    /// MAC address of the message's target.
    TargetLinkAddr(MacAddr),
    /// A prefix that is on the link, or from which addresses are configured.
    PrefixInfo(PrefixInfo),
    /// MTU of the link in bytes.
    Mtu(u32),
    /// A route through the router that sends the message.
    RouteInfo(RouteInfo),
    /// An option that should be skipped. The option is not supported (such as redirected header and
    /// RDNSS), or has an unexpected length.
    Unknown {
        /// Type of the option.
        kind: u8,
    },
}

/// A prefix information option (RFC 4861 §4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixInfo {
    /// The prefix; its bits after `len` are undefined.
    pub prefix: Ipv6Addr,
    /// Length of the prefix in bits, at most 128.
    pub len: u8,
    /// Whether the addresses of the prefix are on-link.
    pub on_link: bool,
    /// Whether addresses may be autoconfigured from the prefix (RFC 4862).
    pub autonomous: bool,
    /// Valid lifetime of the prefix in seconds; `u32::MAX` if it is infinite.
    pub valid_s: u32,
    /// Preferred lifetime in seconds of addresses with this prefix; `u32::MAX` if it is infinite.
    pub preferred_s: u32,
}

/// A route information option (RFC 4191 §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// Destination prefix of the route; its bits after `len` are zero.
    pub prefix: Ipv6Addr,
    /// Length of the prefix in bits, at most 128.
    pub len: u8,
    /// Preference among routes to the same prefix.
    pub preference: Preference,
    /// Lifetime of the route in seconds; `u32::MAX` if it is infinite.
    pub lifetime_s: u32,
}

impl PrefixInfo {
    /// Length of the prefix information option in bytes.
    pub const LEN: usize = 32;

    /// Writes the option to `buf`, and returns its length in bytes, 32.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let o = head_mut::<{ Self::LEN }>(buf);
        o.fill(0);
        o[0] = OPT_PREFIX_INFO;
        o[1] = (Self::LEN / 8) as u8;
        o[2] = self.len;
        o[3] = flag(self.on_link, 0x80) | flag(self.autonomous, 0x40);
        o[4..8].copy_from_slice(&self.valid_s.to_be_bytes());
        o[8..12].copy_from_slice(&self.preferred_s.to_be_bytes());
        o[16..].copy_from_slice(&self.prefix.octets());
        Self::LEN
    }
}

impl RouteInfo {
    /// Length in bytes of the route information option that [`Self::emit`] writes.
    pub const LEN: usize = 24;

    /// Writes the option to `buf`, and returns its length in bytes, 24.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let o = head_mut::<{ Self::LEN }>(buf);
        o[..4].copy_from_slice(&[
            OPT_ROUTE_INFO,
            (Self::LEN / 8) as u8,
            self.len,
            self.preference.to_bits() << 3,
        ]);
        o[4..8].copy_from_slice(&self.lifetime_s.to_be_bytes());
        o[8..].copy_from_slice(&self.prefix.octets());
        Self::LEN
    }
}

/// Returns an iterator over the options of the neighbour discovery message in `data`. The iterator
/// is empty for other messages. The iterator yields no errors if [`Message::parse`] has accepted
/// the message; otherwise the first error ends the iteration.
#[must_use]
pub fn options(data: &[u8]) -> Options<'_> {
    let fixed_len = data.first().and_then(|kind| fixed_len(*kind));
    Options { rest: fixed_len.and_then(|len| data.get(len..)).unwrap_or_default() }
}

/// Iterator over the options of a neighbour discovery message.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl Iterator for Options<'_> {
    type Item = Result<NdpOption, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let option = match self.rest {
            //= https://www.rfc-editor.org/rfc/rfc4861#section-4.6
            //# The value 0 is invalid.  Nodes MUST silently discard an ND packet that contains an
            //# option with length zero.
            [_, 0, ..] => None,
            [_, units, ..] => self.rest.split_at_checked(usize::from(*units) * 8),
            _ => None,
        };
        let Some((option, rest)) = option else {
            self.rest = &[];
            return Some(Err(ParseError::BadOption));
        };
        self.rest = rest;
        Some(parse_option(option))
    }
}

const OPT_SOURCE_LL: u8 = 1;
const OPT_TARGET_LL: u8 = 2;
const OPT_PREFIX_INFO: u8 = 3;
/// Type of the option in a redirect that contains the redirected packet (RFC 4861 §4.6.3).
pub const OPT_REDIRECTED_HEADER: u8 = 4;
const OPT_MTU: u8 = 5;
const OPT_ROUTE_INFO: u8 = 24;

const fn fixed_len(kind: u8) -> Option<usize> {
    match kind {
        ROUTER_SOLICIT => Some(8),
        ROUTER_ADVERT => Some(16),
        NEIGHBOR_SOLICIT | NEIGHBOR_ADVERT => Some(24),
        REDIRECT => Some(40),
        _ => None,
    }
}

/// Parses one option, whose length is a positive multiple of 8. Options with invalid content, such
/// as a prefix of 129 bits, are skipped like unknown ones. RFC 4861 invalidates the whole message
/// only for an invalid option length.
//= https://www.rfc-editor.org/rfc/rfc4861#section-6.1.2
//# All included options have a length that is greater than zero.
fn parse_option(option: &[u8]) -> Result<NdpOption, ParseError> {
    let kind = option.first().copied().unwrap_or_default();
    let parsed = match (kind, option.len()) {
        (OPT_SOURCE_LL, 8) => NdpOption::SourceLinkAddr(MacAddr(*at::<6>(option, 2)?)),
        (OPT_TARGET_LL, 8) => NdpOption::TargetLinkAddr(MacAddr(*at::<6>(option, 2)?)),
        (OPT_MTU, 8) => NdpOption::Mtu(u32_at(option, 4)?),
        (OPT_PREFIX_INFO, PrefixInfo::LEN) => {
            let [len, flags] = *at::<2>(option, 2)?;
            //= https://www.rfc-editor.org/rfc/rfc4861#section-4.6.2
            //# The value ranges from 0 to 128.
            if len > 128 {
                return Ok(NdpOption::Unknown { kind });
            }
            NdpOption::PrefixInfo(PrefixInfo {
                prefix: ipv6_at(option, 16)?,
                len,
                on_link: flags & 0x80 != 0,
                autonomous: flags & 0x40 != 0,
                valid_s: u32_at(option, 4)?,
                preferred_s: u32_at(option, 8)?,
            })
        }
        (OPT_ROUTE_INFO, 8 | 16 | 24) => return parse_route_info(option),
        _ => NdpOption::Unknown { kind },
    };
    Ok(parsed)
}

fn parse_route_info(option: &[u8]) -> Result<NdpOption, ParseError> {
    let [len, flags] = *at::<2>(option, 2)?;
    //= https://www.rfc-editor.org/rfc/rfc4191#section-2.3
    //# If the Reserved (10) value is received, the Route Information Option MUST be ignored.
    if flags >> 3 & 3 == 0b10 {
        return Ok(NdpOption::Unknown { kind: OPT_ROUTE_INFO });
    }
    let carried = option.get(8..).unwrap_or_default();
    let mut prefix = [0; 16];
    prefix[..carried.len()].copy_from_slice(carried);
    if usize::from(len) > carried.len() * 8 {
        return Ok(NdpOption::Unknown { kind: OPT_ROUTE_INFO });
    }
    Ok(NdpOption::RouteInfo(RouteInfo {
        prefix: Ipv6Addr::from(prefix),
        len,
        preference: Preference::from_bits(flags >> 3),
        lifetime_s: u32_at(option, 4)?,
    }))
}

fn u32_at(data: &[u8], offset: usize) -> Result<u32, ParseError> {
    at::<4>(data, offset).map(|b| u32::from_be_bytes(*b))
}

/// The options that should occur only once in a message. If an option is repeated, the first one is
/// used.
#[derive(Default)]
struct Found {
    source_ll: Option<MacAddr>,
    target_ll: Option<MacAddr>,
    mtu: Option<u32>,
}

impl Found {
    fn collect(area: &[u8]) -> Result<Self, ParseError> {
        let mut found = Self::default();
        for option in (Options { rest: area }) {
            match option? {
                NdpOption::SourceLinkAddr(mac) => found.source_ll = found.source_ll.or(Some(mac)),
                NdpOption::TargetLinkAddr(mac) => found.target_ll = found.target_ll.or(Some(mac)),
                NdpOption::Mtu(mtu) => found.mtu = found.mtu.or(Some(mtu)),
                _ => {}
            }
        }
        Ok(found)
    }
}

fn router_solicit(found: &Found, envelope: &Envelope) -> Result<Message, ParseError> {
    //= https://www.rfc-editor.org/rfc/rfc4861#section-6.1.1
    //# -  If the IP source address is the unspecified address, there is no
    //# source link-layer address option in the message.
    if envelope.src.is_unspecified() && found.source_ll.is_some() {
        return Err(ParseError::BadOption);
    }
    Ok(Message::RouterSolicit { source_ll: found.source_ll })
}

fn router_advert(data: &[u8], found: &Found, envelope: &Envelope) -> Result<Message, ParseError> {
    //= https://www.rfc-editor.org/rfc/rfc4861#section-6.1.2
    //# -  IP Source Address is a link-local address.
    if !envelope.src.is_unicast_link_local() {
        return Err(ParseError::BadAddress);
    }
    let h = at::<16>(data, 0)?;
    Ok(Message::RouterAdvert(RouterAdvert {
        hop_limit: h[4],
        managed: h[5] & 0x80 != 0,
        other: h[5] & 0x40 != 0,
        preference: Preference::from_bits(h[5] >> 3),
        lifetime_s: be16(h[6], h[7]),
        reachable_ms: u32_at(data, 8)?,
        retrans_ms: u32_at(data, 12)?,
        source_ll: found.source_ll,
        mtu: found.mtu,
    }))
}

fn neighbor_solicit(
    data: &[u8],
    found: &Found,
    envelope: &Envelope,
) -> Result<Message, ParseError> {
    let target = ipv6_at(data, 8)?;
    if target.is_multicast() {
        return Err(ParseError::BadAddress);
    }
    //= https://www.rfc-editor.org/rfc/rfc4861#section-7.1.1
    //# -  If the IP source address is the unspecified address, the IP
    //# destination address is a solicited-node multicast address.
    if envelope.src.is_unspecified() {
        if !addr::is_solicited_node(envelope.dst) {
            return Err(ParseError::BadAddress);
        }
        if found.source_ll.is_some() {
            return Err(ParseError::BadOption);
        }
    }
    Ok(Message::NeighborSolicit { target, source_ll: found.source_ll })
}

fn neighbor_advert(data: &[u8], found: &Found, envelope: &Envelope) -> Result<Message, ParseError> {
    let target = ipv6_at(data, 8)?;
    let [flags] = *at::<1>(data, 4)?;
    let solicited = flags & 0x40 != 0;
    if target.is_multicast() {
        return Err(ParseError::BadAddress);
    }
    //= https://www.rfc-editor.org/rfc/rfc4861#section-7.1.2
    //# -  If the IP Destination Address is a multicast address the
    //# Solicited flag is zero.
    if envelope.dst.is_multicast() && solicited {
        return Err(ParseError::BadField);
    }
    Ok(Message::NeighborAdvert {
        router: flags & 0x80 != 0,
        solicited,
        override_: flags & 0x20 != 0,
        target,
        target_ll: found.target_ll,
    })
}

fn redirect(data: &[u8], found: &Found, envelope: &Envelope) -> Result<Message, ParseError> {
    let (target, dst) = (ipv6_at(data, 8)?, ipv6_at(data, 24)?);
    //= https://www.rfc-editor.org/rfc/rfc4861#section-8.1
    //# -  The ICMP Target Address is either a link-local address (when
    //# redirected to a router) or the same as the ICMP Destination
    //# Address (when redirected to the on-link destination).
    let target_ok = target.is_unicast_link_local() || target == dst;
    if !envelope.src.is_unicast_link_local() || dst.is_multicast() || !target_ok {
        return Err(ParseError::BadAddress);
    }
    Ok(Message::Redirect { target, dst, target_ll: found.target_ll })
}

fn emit_link_addr(kind: u8, mac: Option<MacAddr>, buf: &mut [u8]) -> usize {
    let Some(mac) = mac else { return 0 };
    let option = head_mut::<8>(buf);
    option[..2].copy_from_slice(&[kind, 1]);
    option[2..].copy_from_slice(&mac.0);
    option.len()
}

const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}
