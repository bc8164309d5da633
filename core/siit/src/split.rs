//! Divides a translated packet into fragments.

use towpath_wire::ipv6_ext::{FRAGMENT_LEN, FragmentHeader};
use towpath_wire::{IpProtocol, ipv6};

/// Maximum length in bytes of the fragments of an IPv4 packet that routers may fragment. IPv6
/// routers do not fragment, so that each link must carry them (RFC 7915 section 4).
pub const FRAGMENT_MTU: usize = ipv6::MTU_MIN;

/// Divides an IPv6 packet without extension headers, or a fragment, into fragments of at most
/// [`FRAGMENT_MTU`] bytes, and passes each to `emit`. `ident` identifies the packet if it has no
/// fragment header. A packet that is short enough is passed on as it is.
pub fn split_v6(packet: &[u8], ident: u32, mut emit: impl FnMut(&[u8])) {
    let Some((header, _)) =
        ipv6::Header::parse(packet).ok().filter(|_| packet.len() > FRAGMENT_MTU)
    else {
        return emit(packet);
    };
    let named = header.next_header;
    let (mut whole, mut at) = (
        FragmentHeader {
            next_header: named,
            offset: 0,
            more: false,
            ident,
            header_at: ipv6::HEADER_LEN,
            named_at: 6,
        },
        ipv6::HEADER_LEN,
    );
    if named == IpProtocol::FRAGMENT
        && let Some([next, _, hi, lo, a, b, c, d]) =
            packet.get(at..).and_then(|it| it.first_chunk())
    {
        let field = u16::from_be_bytes([*hi, *lo]);
        whole.next_header = IpProtocol(*next);
        (whole.offset, whole.more) = (field & !7, field & 1 != 0);
        whole.ident = u32::from_be_bytes([*a, *b, *c, *d]);
        at += FRAGMENT_LEN;
    }
    const ROOM: usize = (FRAGMENT_MTU - ipv6::HEADER_LEN - FRAGMENT_LEN) & !7;
    let mut buffer = [0; FRAGMENT_MTU];
    let mut pieces = packet[at..].chunks(ROOM).peekable();
    let mut offset = whole.offset;
    while let Some(piece) = pieces.next() {
        let len = ipv6::HEADER_LEN + FRAGMENT_LEN + piece.len();
        let payload_len = (FRAGMENT_LEN + piece.len()) as u16;
        ipv6::Header { payload_len, next_header: IpProtocol::FRAGMENT, ..header }.emit(&mut buffer);
        let more = whole.more || pieces.peek().is_some();
        FragmentHeader { offset, more, ..whole }.emit(&mut buffer[ipv6::HEADER_LEN..]);
        buffer[ipv6::HEADER_LEN + FRAGMENT_LEN..len].copy_from_slice(piece);
        emit(&buffer[..len]);
        offset = offset.wrapping_add(piece.len() as u16);
    }
}
