use std::net::Ipv6Addr;
use towpath_wire::ipv6_ext::{
    Chain, ChainError, FragmentHeader, HEADERS_MAX, OPTIONS_MAX, UpperLayer, emit_router_alert,
    upper_by_lengths, walk, walk_hop_by_hop,
};
use towpath_wire::{IpProtocol, ParseError, icmpv6, ipv6};

const TCP: u8 = 6;
const HOPS: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DEST: u8 = 60;

fn packet(first: u8, payload: &[u8]) -> Vec<u8> {
    let header = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: payload.len() as u16,
        next_header: IpProtocol(first),
        hop_limit: 64,
        src: Ipv6Addr::LOCALHOST,
        dst: Ipv6Addr::LOCALHOST,
    };
    let mut bytes = vec![0; 40];
    header.emit(&mut bytes);
    bytes.extend(payload);
    bytes
}

fn walked(first: u8, payload: &[u8]) -> Result<Chain, ChainError> {
    let packet = packet(first, payload);
    let (header, _) = ipv6::Header::parse(&packet).unwrap();
    walk(&packet, &header)
}

fn problem(code: u8, pointer: u32) -> ChainError {
    ChainError::ParamProblem { code, pointer, even_if_multicast: false }
}

/// Creates an options header of 8 bytes with one option of 4 bytes of data.
fn options_with(next: u8, kind: u8) -> [u8; 8] {
    [next, 0, kind, 4, 1, 2, 3, 4]
}

fn fragment(next: u8, offset: u16, more: bool) -> [u8; 8] {
    let mut bytes = [0; 8];
    FragmentHeader {
        next_header: IpProtocol(next),
        offset,
        more,
        ident: 0xdead_beef,
        header_at: 0,
        named_at: 0,
    }
    .emit(&mut bytes);
    bytes
}

#[test]
fn no_extension() {
    let chain = walked(TCP, &[0; 20]).unwrap();
    assert_eq!((chain.upper, chain.upper_at, chain.upper_named_at), (IpProtocol::TCP, 40, 6));
    assert_eq!(chain.fragment, None);
}

#[test]
fn all_of_them_in_order() {
    let mut payload = vec![];
    payload.extend(options_with(DEST, 0x1e));
    payload.extend(options_with(ROUTING, 0x1e));
    payload.extend([FRAGMENT, 0, 4, 0, 0, 0, 0, 0]);
    payload.extend(fragment(DEST, 0, false));
    payload.extend(options_with(TCP, 1));
    payload.extend([0; 20]);
    let chain = walked(HOPS, &payload).unwrap();
    assert_eq!((chain.upper, chain.upper_at, chain.upper_named_at), (IpProtocol::TCP, 80, 72));
    let fragment = chain.fragment.unwrap();
    assert!(fragment.is_atomic());
    assert_eq!((fragment.header_at, fragment.named_at, fragment.ident), (64, 56, 0xdead_beef));
}

#[test]
fn hop_by_hop_only_first() {
    let mut payload = vec![];
    payload.extend(options_with(HOPS, 1));
    payload.extend(options_with(TCP, 1));
    let error = problem(icmpv6::PARAM_UNKNOWN_NEXT_HEADER, 40);
    assert_eq!(walked(DEST, &payload), Err(error));
}

#[test]
fn unknown_options_by_action_bits() {
    let pointer = 42;
    let code = icmpv6::PARAM_UNKNOWN_OPTION;
    assert!(walked(DEST, &options_with(TCP, 0x1e)).is_ok());
    assert_eq!(
        walked(DEST, &options_with(TCP, 0x5e)),
        Err(ChainError::Discard(ParseError::BadOption))
    );
    let always = ChainError::ParamProblem { code, pointer, even_if_multicast: true };
    assert_eq!(walked(DEST, &options_with(TCP, 0x9e)), Err(always));
    assert_eq!(walked(DEST, &options_with(TCP, 0xde)), Err(problem(code, pointer)));
    // A jumbogram is not understood either (RFC 2675 option type 0xc2).
    assert_eq!(walked(HOPS, &options_with(TCP, 0xc2)), Err(problem(code, pointer)));
}

#[test]
fn option_past_the_end() {
    let payload = [TCP, 0, 0x1e, 5, 1, 2, 3, 4];
    assert_eq!(walked(DEST, &payload), Err(ChainError::Discard(ParseError::BadOption)));
    let payload = [TCP, 0, 0, 0, 0, 0, 0, 0x1e, 0, 0, 0, 0];
    assert_eq!(walked(DEST, &payload), Err(ChainError::Discard(ParseError::BadOption)));
}

#[test]
fn router_alert() {
    let mut payload = [0; 8];
    emit_router_alert(IpProtocol::ICMPV6, 0, &mut payload);
    assert_eq!(walked(HOPS, &payload).unwrap().router_alert, Some(0));
    let packet = packet(HOPS, &payload);
    let (header, _) = ipv6::Header::parse(&packet).unwrap();
    assert_eq!(walk_hop_by_hop(&packet, &header), Ok(Some(0)));
}

#[test]
fn a_router_does_not_look_past_hop_by_hop() {
    let mut payload = vec![];
    payload.extend(options_with(DEST, 1));
    payload.extend(options_with(TCP, 0xde));
    let packet = packet(HOPS, &payload);
    let (header, _) = ipv6::Header::parse(&packet).unwrap();
    assert_eq!(walk_hop_by_hop(&packet, &header), Ok(None));
    assert!(walk(&packet, &header).is_err());
}

#[test]
fn type_0_routing_is_not_obeyed() {
    for kind in [0, 2, 4, 253] {
        let done = [TCP, 0, kind, 0, 0, 0, 0, 0];
        assert!(walked(ROUTING, &done).is_ok());
        let pending = [TCP, 0, kind, 1, 0, 0, 0, 0];
        let error = problem(icmpv6::PARAM_ERRONEOUS_FIELD, 42);
        assert_eq!(walked(ROUTING, &pending), Err(error));
    }
}

#[test]
fn header_longer_than_the_packet() {
    let payload = [TCP, 1, 1, 4, 0, 0, 0, 0];
    for first in [HOPS, DEST, ROUTING] {
        assert_eq!(walked(first, &payload), Err(ChainError::Discard(ParseError::Truncated)));
    }
    assert_eq!(walked(FRAGMENT, &payload[..7]), Err(ChainError::Discard(ParseError::Truncated)));
    assert_eq!(walked(DEST, &[]), Err(ChainError::Discard(ParseError::Truncated)));
}

#[test]
fn fragments() {
    let mut payload = fragment(TCP, 0, true).to_vec();
    payload.extend([0; 24]);
    let chain = walked(FRAGMENT, &payload).unwrap();
    assert_eq!((chain.upper, chain.upper_at), (IpProtocol::TCP, 48));
    assert!(!chain.fragment.unwrap().is_atomic());

    payload.pop();
    let error = problem(icmpv6::PARAM_ERRONEOUS_FIELD, 4);
    assert_eq!(walked(FRAGMENT, &payload), Err(error));

    let mut last = fragment(TCP, 65528, false).to_vec();
    last.extend([0; 7]);
    assert!(walked(FRAGMENT, &last).is_ok());
    last.push(0);
    let error = problem(icmpv6::PARAM_ERRONEOUS_FIELD, 42);
    assert_eq!(walked(FRAGMENT, &last), Err(error));
}

/// The unfragmentable part counts towards the length of the reassembled packet.
#[test]
fn reassembled_length_includes_earlier_headers() {
    let mut last = options_with(FRAGMENT, 1).to_vec();
    last.extend(fragment(TCP, 65520, false));
    last.extend([0; 7]);
    assert!(walked(DEST, &last).is_ok());
    last.push(0);
    assert_eq!(walked(DEST, &last), Err(problem(icmpv6::PARAM_ERRONEOUS_FIELD, 50)));
}

#[test]
fn first_fragment_without_its_upper_layer() {
    let incomplete = problem(icmpv6::PARAM_INCOMPLETE_CHAIN, 0);
    let mut tiny = fragment(TCP, 0, true).to_vec();
    tiny.extend([0; 16]);
    assert_eq!(walked(FRAGMENT, &tiny), Err(incomplete));

    let mut hidden = fragment(DEST, 0, true).to_vec();
    hidden.extend([TCP, 1, 1, 4, 0, 0, 0, 0]);
    assert_eq!(walked(FRAGMENT, &hidden), Err(incomplete));

    // A later fragment has no header chain to check.
    let mut later = fragment(TCP, 8, true).to_vec();
    later.extend([0; 8]);
    assert!(walked(FRAGMENT, &later).is_ok());
}

#[test]
fn fragment_in_a_fragment() {
    let mut nested = fragment(FRAGMENT, 0, false).to_vec();
    nested.extend(fragment(TCP, 0, false));
    nested.extend([0; 20]);
    assert_eq!(walked(FRAGMENT, &nested), Err(ChainError::Discard(ParseError::Unsupported)));
    nested[..8].copy_from_slice(&fragment(FRAGMENT, 0, true));
    nested.extend([0; 4]);
    assert_eq!(walked(FRAGMENT, &nested), Err(ChainError::Discard(ParseError::Unsupported)));
}

#[test]
fn too_many_headers() {
    let chain_of = |count: usize| {
        let mut payload = Vec::new();
        for i in 1..=count {
            payload.extend(options_with(if i == count { TCP } else { DEST }, 1));
        }
        walked(DEST, &payload)
    };
    assert!(chain_of(HEADERS_MAX).is_ok());
    let at = 40 + 8 * HEADERS_MAX as u32;
    assert_eq!(chain_of(HEADERS_MAX + 1), Err(problem(icmpv6::PARAM_TOO_MANY_HEADERS, at)));
}

#[test]
fn too_many_options() {
    let header_of = |count: usize| {
        let mut payload = vec![TCP, 2];
        payload.extend([0x1e, 0].repeat(count));
        payload.resize(24, 0);
        walked(DEST, &payload)
    };
    assert!(header_of(OPTIONS_MAX).is_ok());
    let at = 42 + 2 * OPTIONS_MAX as u32;
    assert_eq!(header_of(OPTIONS_MAX + 1), Err(problem(icmpv6::PARAM_TOO_MANY_OPTIONS, at)));
}

fn found(first: u8, payload: &[u8]) -> Option<UpperLayer> {
    let packet = packet(first, payload);
    let (header, _) = ipv6::Header::parse(&packet).unwrap();
    upper_by_lengths(&packet, &header)
}

fn upper(protocol: u8, at: usize) -> Option<UpperLayer> {
    let protocol = IpProtocol(protocol);
    Some(UpperLayer { protocol, at, fragment_offset: 0, more_fragments: false })
}

#[test]
fn upper_layers_are_found_behind_as_many_headers_as_fit() {
    for count in (1..=200).chain([ipv6::PAYLOAD_LEN_MAX / 8]) {
        let mut payload = options_with(DEST, 1).repeat(count);
        payload[8 * (count - 1)] = TCP;
        assert_eq!(found(DEST, &payload), upper(TCP, 40 + 8 * count), "{count}");
    }
    // For rules, as for nftables, an authentication header is a transport header.
    assert_eq!(found(51, &[TCP, 4, 0, 0]), upper(51, 40));
}

#[test]
fn upper_layers_of_fragments_are_found_once() {
    let first = [&fragment(DEST, 0, true)[..], &options_with(TCP, 1), &[0; 24]].concat();
    let at = upper(TCP, 56).map(|it| UpperLayer { more_fragments: true, ..it });
    assert_eq!(found(FRAGMENT, &first), at);
    assert_eq!(found(FRAGMENT, &fragment(TCP, 0, false)), upper(TCP, 48));
    // The data of a later fragment has no header, whatever its next-header field says.
    let later = [&fragment(DEST, 16, false)[..], &options_with(TCP, 1)].concat();
    let at = upper(DEST, 48).map(|it| UpperLayer { fragment_offset: 16, ..it });
    assert_eq!(found(FRAGMENT, &later), at);
    let nested = [fragment(FRAGMENT, 0, false), fragment(TCP, 0, false)].concat();
    assert_eq!(found(FRAGMENT, &nested), None);
}
