//! Ethernet frames with router solicitations and advertisements.

use core::net::Ipv6Addr;

use towpath_dns::Name;
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::ndp::{self, Envelope, Message, PrefixInfo, RouterAdvert};
use towpath_wire::{IpProtocol, MacAddr, addr, icmpv6, ipv6};

/// Maximum number of prefixes, and of nameservers, in an advertisement. All options together are
/// shorter than the minimum MTU of IPv6.
pub const PREFIXES_MAX: usize = 16;
/// Maximum number of nameservers in an advertisement.
pub const SERVERS_MAX: usize = 8;
/// Maximum length in bytes of the search domains in an advertisement.
const SEARCH_LEN_MAX: usize = 256;
/// Types of the options for nameservers and search domains (RFC 8106 §5).
const OPT_RDNSS: u8 = 25;
const OPT_DNSSL: u8 = 31;

/// Content of an advertisement.
#[derive(Debug)]
pub struct AdvertContent<'a> {
    /// Ethernet address of the router.
    pub mac: MacAddr,
    /// Link-local address of the router.
    pub source: Ipv6Addr,
    /// Fields of the advertisement.
    pub fields: RouterAdvert,
    /// Prefixes of the link.
    pub prefixes: &'a [PrefixInfo],
    /// Nameservers of the hosts.
    pub servers: &'a [Ipv6Addr],
    /// Search domains of the hosts.
    pub search: &'a [Name],
    /// Lifetime in seconds of the nameservers and search domains.
    pub names_lifetime_s: u32,
}

/// Returns whether a frame may be a router solicitation. Called for each packet that the interface
/// receives, so it must be fast.
#[inline]
pub fn concerns(frame: &[u8]) -> bool {
    const IP: usize = ethernet::HEADER_LEN;
    const TYPE: usize = IP + ipv6::HEADER_LEN;
    let Some(head) = frame.first_chunk::<{ TYPE + 1 }>() else { return false };
    head[12..14] == [0x86, 0xdd]
        && head[IP + 6] == IpProtocol::ICMPV6.0
        && head[IP + 7] == ndp::HOP_LIMIT
        && head[TYPE] == ndp::ROUTER_SOLICIT
}

/// Returns whether a frame is a valid router solicitation (RFC 4861 §6.1.1). If `is_verified` is
/// true, the checksum is not verified again.
pub fn is_solicitation(frame: &[u8], is_verified: bool) -> bool {
    let valid = || {
        let (link, at) = ethernet::Header::parse(frame).ok()?;
        let packet = frame.get(at..)?;
        let (ip, range) = ipv6::Header::parse(packet).ok()?;
        let message = packet.get(range)?;
        let is_icmp = link.ethertype == EtherType::IPV6 && ip.next_header == IpProtocol::ICMPV6;
        let is_intact = is_verified || icmpv6::checksum_ok(message, ip.src, ip.dst);
        let envelope = Envelope { src: ip.src, dst: ip.dst, hop_limit: ip.hop_limit };
        let (message, _) = Message::parse(message, &envelope).ok()?;
        (is_icmp && is_intact && matches!(message, Message::RouterSolicit { .. })).then_some(())
    };
    valid().is_some()
}

/// Returns the frame of an advertisement to all hosts of the link.
pub fn advertisement(content: &AdvertContent<'_>) -> Vec<u8> {
    let mut message = vec![0; ipv6::MTU_MIN];
    let mut len = Message::RouterAdvert(content.fields).emit(&mut message);
    for prefix in content.prefixes.iter().take(PREFIXES_MAX) {
        len += prefix.emit(&mut message[len..]);
    }
    message.truncate(len);
    put_servers(&mut message, content);
    put_search(&mut message, content);
    icmpv6::fill_checksum(&mut message, content.source, addr::ALL_NODES);
    let ip = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: message.len() as u16,
        next_header: IpProtocol::ICMPV6,
        hop_limit: ndp::HOP_LIMIT,
        src: content.source,
        dst: addr::ALL_NODES,
    };
    let link = ethernet::Header {
        dst: MacAddr::from_multicast_v6(addr::ALL_NODES),
        src: content.mac,
        vlan: None,
        ethertype: EtherType::IPV6,
    };
    let mut frame = vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN];
    let at = link.emit(&mut frame);
    ip.emit(&mut frame[at..]);
    frame.extend(message);
    frame
}

/// Appends the option for nameservers (RFC 8106 §5.1).
fn put_servers(message: &mut Vec<u8>, content: &AdvertContent<'_>) {
    let servers = &content.servers[..content.servers.len().min(SERVERS_MAX)];
    if !servers.is_empty() {
        message.extend([OPT_RDNSS, 1 + 2 * servers.len() as u8, 0, 0]);
        message.extend(content.names_lifetime_s.to_be_bytes());
        servers.iter().for_each(|server| message.extend(server.octets()));
    }
}

/// Appends the option for search domains (RFC 8106 §5.2).
fn put_search(message: &mut Vec<u8>, content: &AdvertContent<'_>) {
    let mut names = Vec::new();
    for name in content.search {
        if names.len() + name.wire().len() <= SEARCH_LEN_MAX {
            names.extend(name.wire());
        }
    }
    if !names.is_empty() {
        names.resize(names.len().next_multiple_of(8), 0);
        message.extend([OPT_DNSSL, 1 + (names.len() / 8) as u8, 0, 0]);
        message.extend(content.names_lifetime_s.to_be_bytes());
        message.extend(names);
    }
}
