//! Tests translations by vectors, round trips and arbitrary bytes.

use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use towpath_siit::{
    AddressMap, AddressPool, FRAGMENT_MTU, MAPPING_TIMEOUT_NS, PoolRefusal, TranslationPrefix,
    Untranslatable, split_v6, v4_to_v6, v6_to_v4,
};
use towpath_wire::ipv6_ext::FragmentHeader;
use towpath_wire::{IpProtocol, checksum, icmpv4, icmpv6, ipv4, ipv6};

const HOST_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 3);
const SERVER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 33);
const HOST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 7);

/// A host and all addresses of the well-known prefix.
struct OneHost;

impl AddressMap for OneHost {
    fn v4_of(&self, addr: Ipv6Addr) -> Option<Ipv4Addr> {
        TranslationPrefix::WELL_KNOWN.extract(addr).or((addr == HOST).then_some(HOST_V4))
    }

    fn v6_of(&self, addr: Ipv4Addr) -> Option<Ipv6Addr> {
        Some(if addr == HOST_V4 { HOST } else { TranslationPrefix::WELL_KNOWN.embed(addr) })
    }
}

fn server() -> Ipv6Addr {
    TranslationPrefix::WELL_KNOWN.embed(SERVER_V4)
}

fn packet_v6(next_header: IpProtocol, payload: &[u8]) -> Vec<u8> {
    between(HOST, server(), next_header, payload)
}

fn between(src: Ipv6Addr, dst: Ipv6Addr, next_header: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; ipv6::HEADER_LEN];
    let header = ipv6::Header {
        traffic_class: 0xb8,
        flow_label: 0,
        payload_len: payload.len() as u16,
        next_header,
        hop_limit: 61,
        src,
        dst,
    };
    header.emit(&mut packet);
    packet.extend_from_slice(payload);
    packet
}

fn header_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: IpProtocol, len: usize) -> ipv4::Header {
    ipv4::Header {
        tos: 0xb8,
        total_len: (ipv4::HEADER_LEN + len) as u16,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 61,
        protocol,
        src,
        dst,
        options: ipv4::Options::EMPTY,
    }
}

fn packet_of(header: &ipv4::Header, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; header.header_len()];
    header.emit(&mut packet);
    packet.extend_from_slice(payload);
    packet
}

/// Returns the packet of the server to the host.
fn packet_v4(protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    packet_of(&header_v4(SERVER_V4, HOST_V4, protocol, payload.len()), payload)
}

fn to_v4(packet: &[u8]) -> Result<Vec<u8>, Untranslatable> {
    let mut out = Vec::new();
    v6_to_v4(packet, HOST_V4, SERVER_V4, &OneHost, 0x1234, &mut out).map(|()| out)
}

fn to_v6(packet: &[u8]) -> Result<Vec<u8>, Untranslatable> {
    let mut out = Vec::new();
    v4_to_v6(packet, server(), HOST, &OneHost, &mut out).map(|()| out)
}

/// Returns a datagram with a valid checksum between IPv6 addresses.
fn datagram_v6(src: Ipv6Addr, dst: Ipv6Addr, data: &[u8]) -> Vec<u8> {
    let mut udp = vec![0x10, 1, 0, 53];
    udp.extend_from_slice(&((8 + data.len()) as u16).to_be_bytes());
    udp.extend_from_slice(&[0, 0]);
    udp.extend_from_slice(data);
    let pseudo = checksum::pseudo_v6(src, dst, IpProtocol::UDP, udp.len() as u32);
    // A checksum of 0 would mean that there is none.
    let sum = match checksum::finish(checksum::sum(&udp, pseudo)) {
        0 => 0xffff,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    udp
}

fn is_valid_v4(packet: &[u8]) -> bool {
    let (header, payload) = ipv4::Header::parse(packet).expect("an IPv4 packet");
    let len = (payload.end - payload.start) as u16;
    let pseudo = match header.protocol {
        IpProtocol::ICMP => 0,
        protocol => checksum::pseudo_v4(header.src, header.dst, protocol, len),
    };
    let start = payload.start;
    ipv4::checksum_ok(&packet[..start])
        && checksum::finish(checksum::sum(&packet[payload], pseudo)) == 0
}

fn is_valid_v6(packet: &[u8]) -> bool {
    let (header, payload) = ipv6::Header::parse(packet).expect("an IPv6 packet");
    let len = (payload.end - payload.start) as u32;
    let pseudo = checksum::pseudo_v6(header.src, header.dst, header.next_header, len);
    checksum::finish(checksum::sum(&packet[payload], pseudo)) == 0
}

/// The examples of RFC 6052 section 2.4.
#[test]
fn addresses_are_embedded_at_each_length() {
    let cases = [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
    ];
    for (prefix, embedded) in cases {
        let known: TranslationPrefix = prefix.parse().expect(prefix);
        let embedded: Ipv6Addr = embedded.parse().expect(embedded);
        assert_eq!(known.embed(SERVER_V4), embedded, "{prefix}");
        assert_eq!(known.extract(embedded), Some(SERVER_V4), "{prefix}");
        assert_eq!(known.to_string(), prefix);
    }
    let known = TranslationPrefix::WELL_KNOWN;
    assert_eq!(known.extract("64:ff9b:0:0:0:1:c000:221".parse().unwrap()), None);
    assert_eq!(known.extract("64:ff9b:1::c000:221".parse().unwrap()), None);
    let suffix = "2001:db8:c000:221::1".parse().unwrap();
    assert_eq!("2001:db8::/32".parse::<TranslationPrefix>().unwrap().extract(suffix), None);
    for wrong in
        ["64:ff9b::/95", "64:ff9b::1/96", "10.0.0.0/8", "2001:db8:0:0:100::/96", "ff00::/32"]
    {
        assert!(wrong.parse::<TranslationPrefix>().is_err(), "{wrong}");
    }
}

#[test]
fn the_well_known_prefix_represents_no_private_addresses() {
    let own: TranslationPrefix = "2001:db8::/96".parse().unwrap();
    for (addr, is_private) in
        [("10.1.2.3", true), ("100.64.0.1", true), ("169.254.0.1", true), ("8.8.8.8", false)]
    {
        let addr = addr.parse().unwrap();
        assert_eq!(TranslationPrefix::WELL_KNOWN.represents(addr), !is_private, "{addr}");
        assert!(own.represents(addr), "{addr}");
    }
    for addr in ["0.0.0.1", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        assert!(!own.represents(addr.parse().unwrap()), "{addr}");
    }
}

#[test]
fn a_datagram_keeps_its_fields_and_a_valid_checksum() {
    let udp = datagram_v6(HOST, server(), b"question");
    let packet = to_v4(&packet_v6(IpProtocol::UDP, &udp)).unwrap();
    let (header, payload) = ipv4::Header::parse(&packet).unwrap();
    assert_eq!((header.src, header.dst, header.ttl, header.tos), (HOST_V4, SERVER_V4, 61, 0xb8));
    // Routers may fragment it, because it is shorter than each IPv6 path allows.
    assert_eq!((header.dont_fragment, header.ident), (false, 0x1234));
    assert_eq!(packet[payload.start + 8..], b"question"[..]);
    assert!(is_valid_v4(&packet));
    let long = datagram_v6(HOST, server(), &[7; 1300]);
    let packet = to_v4(&packet_v6(IpProtocol::UDP, &long)).unwrap();
    let (header, _) = ipv4::Header::parse(&packet).unwrap();
    assert_eq!((header.dont_fragment, header.ident), (true, 0));
    // The sum of a damaged datagram stays wrong.
    let mut damaged = udp.clone();
    damaged[9] ^= 1;
    assert!(!is_valid_v4(&to_v4(&packet_v6(IpProtocol::UDP, &damaged)).unwrap()));
}

#[test]
fn extension_headers_are_removed() {
    let udp = datagram_v6(HOST, server(), b"question");
    let options = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp].concat();
    let packet = to_v4(&packet_v6(IpProtocol::DESTINATION_OPTIONS, &options)).unwrap();
    assert!(is_valid_v4(&packet));
    assert_eq!(packet.len(), ipv4::HEADER_LEN + udp.len());
    // A routing header with segments left, and no next header.
    let routed = [&[17, 0, 4, 1, 0, 0, 0, 0][..], &udp].concat();
    let refused = to_v4(&packet_v6(IpProtocol::ROUTING, &routed));
    assert_eq!(refused, Err(Untranslatable::NoCounterpart));
    let refused = to_v4(&packet_v6(IpProtocol::NO_NEXT_HEADER, &[]));
    assert_eq!(refused, Err(Untranslatable::NoCounterpart));
}

#[test]
fn a_datagram_without_a_checksum_gets_one() {
    let mut udp = datagram_v6(HOST, server(), b"answer");
    udp[6..8].fill(0);
    assert!(is_valid_v6(&to_v6(&packet_v4(IpProtocol::UDP, &udp)).unwrap()));
    let mut first = header_v4(SERVER_V4, HOST_V4, IpProtocol::UDP, udp.len());
    (first.more_fragments, first.dont_fragment) = (true, false);
    let refused = to_v6(&packet_of(&first, &udp));
    assert_eq!(refused, Err(Untranslatable::NoChecksum));
}

#[test]
fn fragments_keep_identification_and_offset() {
    let piece = FragmentHeader {
        next_header: IpProtocol::UDP,
        offset: 1232,
        more: true,
        ident: 0xdead_beef,
        header_at: 0,
        named_at: 0,
    };
    let mut payload = vec![0; 8];
    piece.emit(&mut payload);
    payload.extend_from_slice(&[9; 64]);
    let packet = to_v4(&packet_v6(IpProtocol::FRAGMENT, &payload)).unwrap();
    let (header, range) = ipv4::Header::parse(&packet).unwrap();
    let fields =
        (header.ident, header.fragment_offset, header.more_fragments, header.dont_fragment);
    assert_eq!(fields, (0xbeef, 1232, true, false));
    assert_eq!(packet[range], [9; 64]);
    // The end of the packet would be beyond 65,535 bytes.
    FragmentHeader { offset: 65_456, ..piece }.emit(&mut payload);
    let refused = to_v4(&packet_v6(IpProtocol::FRAGMENT, &payload));
    assert_eq!(refused, Err(Untranslatable::TooLong));
    let mut header = header_v4(SERVER_V4, HOST_V4, IpProtocol::UDP, 64);
    (header.fragment_offset, header.ident, header.dont_fragment) = (1232, 0xbeef, false);
    let packet = to_v6(&packet_of(&header, &[9; 64])).unwrap();
    assert_eq!(packet[6], IpProtocol::FRAGMENT.0);
    assert_eq!(packet[40..48], [17, 0, 4, 0xd0, 0, 0, 0xbe, 0xef]);
    assert_eq!(packet[48..], [9; 64]);
    // A fragment of ICMP has no checksum that could be computed.
    header.protocol = IpProtocol::ICMP;
    let refused = to_v6(&packet_of(&header, &[9; 64]));
    assert_eq!(refused, Err(Untranslatable::FragmentedIcmp));
}

#[test]
fn a_long_packet_is_divided() {
    let udp = datagram_v6(server(), HOST, &[5; 3000]);
    let packet = between(server(), HOST, IpProtocol::UDP, &udp);
    let mut pieces = Vec::new();
    split_v6(&packet, 77, |piece| pieces.push(piece.to_vec()));
    let mut whole = Vec::new();
    for (n, piece) in pieces.iter().enumerate() {
        assert!(piece.len() <= FRAGMENT_MTU && ipv6::Header::parse(piece).is_ok());
        let field = u16::from_be_bytes([piece[42], piece[43]]);
        assert_eq!(usize::from(field & !7), whole.len());
        assert_eq!(field & 1 == 1, n + 1 < pieces.len());
        assert_eq!((piece[40], &piece[44..48]), (17, &[0, 0, 0, 77][..]));
        whole.extend_from_slice(&piece[48..]);
    }
    assert_eq!((pieces.len(), whole), (3, udp));
    // A fragment keeps its identification, and its last part more fragments.
    let first = pieces[0].clone();
    let mut again = Vec::new();
    split_v6(&first, 1, |piece| again.push(piece.to_vec()));
    assert_eq!(again, [first]);
}

#[test]
fn echo_messages_are_translated_both_ways() {
    let mut echo = vec![128, 0, 0, 0, 0, 7, 0, 1, 1, 2, 3];
    icmpv6::fill_checksum(&mut echo, HOST, server());
    let packet = to_v4(&packet_v6(IpProtocol::ICMPV6, &echo)).unwrap();
    assert!(is_valid_v4(&packet));
    assert_eq!((packet[20], packet[9], &packet[24..]), (8, 1, &echo[4..]));
    let mut reply = vec![0, 0, 0, 0, 0, 7, 0, 1, 1, 2, 3];
    icmpv4::fill_checksum(&mut reply);
    let packet = to_v6(&packet_v4(IpProtocol::ICMP, &reply)).unwrap();
    assert!(is_valid_v6(&packet));
    assert_eq!((packet[40], packet[6], &packet[44..]), (129, 58, &reply[4..]));
    // Neighbour discovery and timestamps stay on their link and in their version.
    let refused = to_v4(&packet_v6(IpProtocol::ICMPV6, &[135, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(refused, Err(Untranslatable::NoCounterpart));
    let refused = to_v6(&packet_v4(IpProtocol::ICMP, &[13, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(refused, Err(Untranslatable::NoCounterpart));
}

/// Returns an ICMPv4 error about a datagram of the host to the server.
fn error_v4(kind: u8, code: u8, word: u32) -> Vec<u8> {
    let udp =
        to_v4(&packet_v6(IpProtocol::UDP, &datagram_v6(HOST, server(), b"question"))).unwrap();
    let mut message = vec![kind, code, 0, 0];
    message.extend_from_slice(&word.to_be_bytes());
    message.extend_from_slice(&udp);
    icmpv4::fill_checksum(&mut message);
    message
}

#[test]
fn errors_of_ipv4_are_translated_with_their_quotation() {
    let cases = [
        ((3, 0, 0), (1, 0, 0)),
        ((3, 1, 0), (1, 0, 0)),
        ((3, 2, 0), (4, 1, 6)),
        ((3, 3, 0), (1, 4, 0)),
        ((3, 4, 1400), (2, 0, 1420)),
        ((3, 4, 600), (2, 0, 1280)),
        ((3, 4, 0), (2, 0, 1280)),
        ((3, 10, 0), (1, 1, 0)),
        ((3, 13, 0), (1, 1, 0)),
        ((11, 0, 0), (3, 0, 0)),
        ((11, 1, 0), (3, 1, 0)),
        ((12, 0, 8 << 24), (4, 0, 7)),
        ((12, 2, 16 << 24), (4, 0, 24)),
    ];
    for ((kind, code, word), wanted) in cases {
        let packet = to_v6(&packet_v4(IpProtocol::ICMP, &error_v4(kind, code, word))).unwrap();
        assert!(is_valid_v6(&packet));
        let word = u32::from_be_bytes(packet[44..48].try_into().unwrap());
        assert_eq!((packet[40], packet[41], word), wanted, "type {kind} code {code}");
        let (quoted, _) = ipv6::Header::parse_quoted(&packet[48..]).unwrap();
        assert_eq!((quoted.src, quoted.dst), (HOST, server()));
        assert!(is_valid_v6(&packet[48..]), "the quoted datagram has its checksum again");
    }
    for (kind, code, word) in [(3, 14, 0), (5, 0, 0), (12, 1, 0), (12, 0, 5 << 24), (4, 0, 0)] {
        let refused = to_v6(&packet_v4(IpProtocol::ICMP, &error_v4(kind, code, word)));
        assert_eq!(refused, Err(Untranslatable::NoCounterpart), "type {kind} code {code}");
    }
    let mut damaged = error_v4(3, 1, 0);
    damaged[30] ^= 1;
    let refused = to_v6(&packet_v4(IpProtocol::ICMP, &damaged));
    assert_eq!(refused, Err(Untranslatable::Malformed));
}

/// Returns an ICMPv6 error about a datagram of the server to the host.
fn error_v6(kind: u8, code: u8, word: u32) -> Vec<u8> {
    let udp = datagram_v6(server(), HOST, b"answer");
    let mut message = vec![kind, code, 0, 0];
    message.extend_from_slice(&word.to_be_bytes());
    message.extend_from_slice(&between(server(), HOST, IpProtocol::UDP, &udp));
    icmpv6::fill_checksum(&mut message, HOST, server());
    message
}

#[test]
fn errors_of_ipv6_are_translated_with_their_quotation() {
    let cases = [
        ((1, 0, 0), (3, 1, 0)),
        ((1, 1, 0), (3, 10, 0)),
        ((1, 3, 0), (3, 1, 0)),
        ((1, 4, 0), (3, 3, 0)),
        ((2, 0, 1420), (3, 4, 1400)),
        ((2, 0, 1 << 20), (3, 4, 65_535)),
        ((3, 0, 0), (11, 0, 0)),
        ((4, 1, 6), (3, 2, 0)),
        ((4, 0, 7), (12, 0, 8 << 24)),
        ((4, 0, 30), (12, 0, 16 << 24)),
    ];
    for ((kind, code, word), wanted) in cases {
        let packet = to_v4(&packet_v6(IpProtocol::ICMPV6, &error_v6(kind, code, word))).unwrap();
        assert!(is_valid_v4(&packet));
        let word = u32::from_be_bytes(packet[24..28].try_into().unwrap());
        assert_eq!((packet[20], packet[21], word), wanted, "type {kind} code {code}");
        let (quoted, _) = ipv4::Header::parse_quoted(&packet[28..]).unwrap();
        assert_eq!((quoted.src, quoted.dst), (SERVER_V4, HOST_V4));
        assert!(is_valid_v4(&packet[28..]), "the quoted datagram has its checksum again");
    }
    for (kind, code, word) in [(1, 5, 0), (4, 2, 0), (4, 0, 2), (4, 0, 40), (100, 0, 0)] {
        let refused = to_v4(&packet_v6(IpProtocol::ICMPV6, &error_v6(kind, code, word)));
        assert_eq!(refused, Err(Untranslatable::NoCounterpart), "type {kind} code {code}");
    }
    let mut unknown = error_v6(1, 4, 0);
    unknown[47] ^= 1;
    icmpv6::fill_checksum(&mut unknown, HOST, server());
    let refused = to_v4(&packet_v6(IpProtocol::ICMPV6, &unknown));
    assert_eq!(refused, Err(Untranslatable::UnknownQuote));
}

#[test]
fn a_host_keeps_its_address_until_it_is_silent() {
    let mut pool = AddressPool::new("198.18.0.0/28".parse().unwrap()).unwrap();
    let host = |network: u16, n: u16| Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, n);
    let own = [pool.own(), pool.reporter()];
    assert_eq!(own, [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)]);
    let first = pool.take(host(1, 1), 0).unwrap();
    assert_eq!((first, pool.take(host(1, 1), 5)), (HOST_V4, Ok(HOST_V4)));
    assert_eq!((pool.v6_of(HOST_V4), pool.v4_of(host(1, 1))), (Some(host(1, 1)), Some(HOST_V4)));
    // A /64 has a quarter of the 12 addresses.
    for n in 2..=3 {
        pool.take(host(1, n), 10).unwrap();
    }
    assert_eq!(pool.take(host(1, 4), 10), Err(PoolRefusal::NetworkFull));
    for network in 2..=10 {
        pool.take(host(network, 1), 10).unwrap();
    }
    assert_eq!(pool.take(host(11, 1), 10), Err(PoolRefusal::Exhausted));
    // The first host goes on to send, so that another one loses its address.
    let minute = 60 * 1_000_000_000;
    assert_eq!(pool.take(host(1, 1), minute), Ok(HOST_V4));
    let later = MAPPING_TIMEOUT_NS + 10;
    pool.take(host(11, 1), later).unwrap();
    assert_eq!((pool.len(), pool.v4_of(host(1, 1))), (2, Some(HOST_V4)));
    assert_eq!(own.map(|own| pool.v6_of(own)), [None, None]);
    assert!(AddressPool::new("198.18.0.0/31".parse().unwrap()).is_none());
    assert!(AddressPool::new("198.18.0.1/24".parse().unwrap()).is_none());
    assert!(AddressPool::new("2001:db8::/64".parse().unwrap()).is_none());
}

proptest! {
    /// A packet that was translated twice has the same payload, and a valid checksum.
    #[test]
    fn a_datagram_comes_back(data in proptest::collection::vec(any::<u8>(), 0..1400)) {
        let udp = datagram_v6(HOST, server(), &data);
        let there = to_v4(&packet_v6(IpProtocol::UDP, &udp)).expect("a datagram");
        prop_assert!(is_valid_v4(&there));
        let mut back = Vec::new();
        v4_to_v6(&there, HOST, server(), &OneHost, &mut back).expect("a datagram");
        prop_assert!(is_valid_v6(&back));
        prop_assert_eq!(&back[40..], &udp[..]);
    }

    #[test]
    fn arbitrary_bytes_are_translated_or_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200)
    ) {
        let versions = [(6, 6, [58, 17, 44, 60]), (4, 9, [1, 17, 6, 47])];
        for (version, protocol_at, protocols) in versions {
            let len = bytes.len();
            if let Some(first) = bytes.first_mut() {
                *first = if version == 6 { 0x60 } else { 0x45 };
            }
            if let Some(protocol) = bytes.get_mut(protocol_at) {
                *protocol = protocols[usize::from(*protocol) % protocols.len()];
            }
            if len >= 40 {
                let payload = (len - 40) as u16;
                let total = if version == 6 { payload } else { len as u16 };
                let at = if version == 6 { 4 } else { 2 };
                bytes[at..at + 2].copy_from_slice(&total.to_be_bytes());
            }
            let translated = if version == 6 { to_v4(&bytes) } else { to_v6(&bytes) };
            if let Ok(packet) = translated {
                match version {
                    6 => prop_assert!(ipv4::Header::parse(&packet).is_ok()),
                    _ => prop_assert!(ipv6::Header::parse(&packet).is_ok()),
                }
                let mut pieces = 0;
                split_v6(&packet, 1, |_| pieces += 1);
                prop_assert_eq!(pieces, 1);
            }
        }
    }
}
