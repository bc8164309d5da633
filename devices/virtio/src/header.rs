//! The virtio header that precedes each frame: `struct virtio_net_hdr_v1` (virtio 1.2 §5.1.6), 12
//! bytes in native byte order, as on Linux.

use towpath_pool::{Checksum, Meta, Protocol, Segmentation};

/// Length of the virtio header in bytes, set on TUN/TAP devices by TUNSETVNETHDRSZ.
pub const HEADER_LEN: usize = 12;
/// Length in bytes of `struct virtio_net_hdr`, which packet sockets use (PACKET_VNET_HDR). The last
/// field, the number of buffers, is missing.
pub const HEADER_LEN_LEGACY: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Flag of a TCP packet to be segmented, of which only the first segment may have CWR.
const GSO_ECN: u8 = 0x80;

/// Bit of CWR in the flags byte of a TCP header.
const TCP_CWR: u8 = 0x80;
/// Offsets of the data offset and of the flags in a TCP header.
const TCP_DATA_OFFSET: usize = 12;
const TCP_FLAGS: usize = 13;
const TCP_HEADER_MIN: usize = 20;
/// Offsets of the checksum in a TCP header and in a UDP header.
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;
const UDP_HEADER_LEN: usize = 8;

/// Error: fields of the virtio header contradict each other or the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the virtio header contradicts itself or its frame")]
pub struct Malformed;

/// Parses the virtio header of a frame, and returns the frame's metadata.
///
/// Offsets must be inside the frame. The length of the headers is read from the frame, because
/// `hdr_len` is only a hint about the sender's memory layout.
///
/// # Errors
/// Returns [`Malformed`] if an offset is beyond the end of the frame, the segmentation type is
/// unknown, or the segment size is 0. Also if a frame to be segmented has no partial checksum at
/// the offset of its protocol.
pub fn parse(header: &[u8; HEADER_LEN], frame: &[u8]) -> Result<Meta, Malformed> {
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let (flags, gso_type, gso_size, start, offset) =
        (header[0], header[1], word(4), word(6), word(8));

    let checksum = if flags & NEEDS_CSUM != 0 {
        let end = usize::from(start) + usize::from(offset) + 2;
        if end > frame.len() {
            return Err(Malformed);
        }
        Checksum::Partial { start, offset }
    } else if flags & DATA_VALID != 0 {
        Checksum::Verified
    } else {
        Checksum::Unknown
    };
    let segmentation = match gso_type & !GSO_ECN {
        GSO_NONE => None,
        kind => Some(parse_segmentation(kind, gso_size, checksum, frame)?),
    };
    Ok(Meta { checksum, segmentation, ..Meta::default() })
}

fn parse_segmentation(
    kind: u8,
    size: u16,
    checksum: Checksum,
    frame: &[u8],
) -> Result<Segmentation, Malformed> {
    // A sender that sets gso_type must set NEEDS_CSUM as well (virtio 1.2, 5.1.6.4.1).
    let Checksum::Partial { start, offset } = checksum else { return Err(Malformed) };
    let start = usize::from(start);
    let (protocol, transport_len) = match (kind, offset) {
        (GSO_TCPV4, TCP_CHECKSUM) => (Protocol::Tcp4, tcp_header_len(frame, start)?),
        (GSO_TCPV6, TCP_CHECKSUM) => (Protocol::Tcp6, tcp_header_len(frame, start)?),
        (GSO_UDP_L4, UDP_CHECKSUM) => (Protocol::Udp, UDP_HEADER_LEN),
        _ => return Err(Malformed),
    };
    let header_len = start + transport_len;
    if size == 0 || header_len > frame.len() {
        return Err(Malformed);
    }
    let header_len = u16::try_from(header_len).map_err(|_| Malformed)?;
    Ok(Segmentation { protocol, size, header_len })
}

fn tcp_header_len(frame: &[u8], start: usize) -> Result<usize, Malformed> {
    let byte = frame.get(start + TCP_DATA_OFFSET).ok_or(Malformed)?;
    let len = usize::from(byte >> 4) * 4;
    if len < TCP_HEADER_MIN { Err(Malformed) } else { Ok(len) }
}

/// Creates the virtio header for a packet to be sent. `linear` is the packet's buffer, which
/// contains its protocol headers.
///
/// # Errors
/// Returns [`Malformed`] if the packet is to be segmented but its checksum is complete, because the
/// device could not compute the checksum of each segment.
pub fn emit(meta: &Meta, linear: &[u8]) -> Result<[u8; HEADER_LEN], Malformed> {
    let mut header = [0; HEADER_LEN];
    let mut put = |at: usize, value: u16| header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    let mut flags = 0;
    let mut gso_type = GSO_NONE;
    if let Checksum::Partial { start, offset } = meta.checksum {
        flags = NEEDS_CSUM;
        put(6, start);
        put(8, offset);
    }
    if let Some(cut) = meta.segmentation {
        let Checksum::Partial { start, .. } = meta.checksum else { return Err(Malformed) };
        gso_type = match cut.protocol {
            Protocol::Tcp4 => GSO_TCPV4 | ecn(linear, start),
            Protocol::Tcp6 => GSO_TCPV6 | ecn(linear, start),
            Protocol::Udp => GSO_UDP_L4,
        };
        put(2, cut.header_len);
        put(4, cut.size);
    }
    (header[0], header[1]) = (flags, gso_type);
    Ok(header)
}

fn ecn(linear: &[u8], start: u16) -> u8 {
    let flags = linear.get(usize::from(start) + TCP_FLAGS).copied().unwrap_or(0);
    if flags & TCP_CWR != 0 { GSO_ECN } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u8, gso: u8, words: [u16; 5]) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        (out[0], out[1]) = (flags, gso);
        for (i, word) in words.into_iter().enumerate() {
            out[2 + 2 * i..4 + 2 * i].copy_from_slice(&word.to_ne_bytes());
        }
        out
    }

    /// Builds a frame for tests: Ethernet, IPv4, and TCP with 12 bytes of options and 3000 bytes of
    /// payload.
    fn tcp_frame() -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 32 + 3000];
        frame[34 + TCP_DATA_OFFSET] = 8 << 4;
        let last = frame.len() - 20;
        frame[last + TCP_DATA_OFFSET] = 6 << 4;
        frame
    }

    #[test]
    fn header_length_comes_from_the_frame() {
        // Linux sets hdr_len to a wrong value of 1500 for packets in one buffer. The value must be
        // ignored.
        let meta =
            parse(&header(NEEDS_CSUM, GSO_TCPV4, [1500, 1448, 34, 16, 1]), &tcp_frame()).unwrap();
        assert_eq!(meta.checksum, Checksum::Partial { start: 34, offset: 16 });
        let cut = Segmentation { protocol: Protocol::Tcp4, size: 1448, header_len: 66 };
        assert_eq!(meta.segmentation, Some(cut));
    }

    #[test]
    fn checksum_states() {
        let state = |flags| parse(&header(flags, 0, [0; 5]), &[0; 60]).map(|m| m.checksum);
        assert_eq!(state(0), Ok(Checksum::Unknown));
        assert_eq!(state(DATA_VALID), Ok(Checksum::Verified));
        assert_eq!(state(NEEDS_CSUM), Ok(Checksum::Partial { start: 0, offset: 0 }));
    }

    #[test]
    fn contradictions_are_refused() {
        let frame = tcp_frame();
        let len = frame.len() as u16;
        let cases = [
            ("checksum behind the end", header(NEEDS_CSUM, 0, [0, 0, len - 17, 16, 0])),
            ("overflowing offsets", header(NEEDS_CSUM, 0, [0, 0, 0xffff, 0xffff, 0])),
            ("cut without checksum", header(0, GSO_TCPV4, [66, 1448, 34, 16, 0])),
            ("cut with a vouched checksum", header(DATA_VALID, GSO_TCPV4, [66, 1448, 34, 16, 0])),
            ("segments of nothing", header(NEEDS_CSUM, GSO_TCPV4, [66, 0, 34, 16, 0])),
            ("unknown kind", header(NEEDS_CSUM, 3, [66, 1448, 34, 16, 0])),
            ("data offset below five", header(NEEDS_CSUM, GSO_TCPV4, [66, 1448, 100, 16, 0])),
            ("TCP options behind the end", header(NEEDS_CSUM, GSO_TCPV4, [0, 9, len - 20, 16, 0])),
            ("checksum of UDP in TCP", header(NEEDS_CSUM, GSO_TCPV4, [66, 1448, 34, 6, 0])),
            ("checksum of TCP in UDP", header(NEEDS_CSUM, GSO_UDP_L4, [42, 1448, 34, 16, 0])),
            ("checksum in the port of UDP", header(NEEDS_CSUM, GSO_UDP_L4, [42, 1448, 34, 2, 0])),
        ];
        for (name, bytes) in cases {
            assert_eq!(parse(&bytes, &frame).err(), Some(Malformed), "{name}");
        }
    }

    #[test]
    fn no_header_panics() {
        // Every combination of flags and segmentation types, with offsets around the ends of short
        // frames.
        for frame in [&[][..], &[0xff; 13], &[0xff; 60]] {
            for flags in 0..8 {
                for kind in (0..8).chain(0x80..0x88) {
                    for at in [0, 12, 13, 47, 48, 59, 60, 0xffff] {
                        let _ = parse(&header(flags, kind, [at, at, at, at, at]), frame);
                    }
                }
            }
        }
    }

    #[test]
    fn emit_then_parse_is_the_identity() {
        let meta = Meta {
            checksum: Checksum::Partial { start: 34, offset: 16 },
            segmentation: Some(Segmentation {
                protocol: Protocol::Tcp4,
                size: 1448,
                header_len: 66,
            }),
            ..Meta::default()
        };
        let mut frame = tcp_frame();
        let bytes = emit(&meta, &frame).unwrap();
        let back = parse(&bytes, &frame).unwrap();
        assert_eq!((back.checksum, back.segmentation), (meta.checksum, meta.segmentation));
        assert_eq!(bytes[1], GSO_TCPV4);
        frame[34 + TCP_FLAGS] = TCP_CWR;
        assert_eq!(emit(&meta, &frame).unwrap()[1], GSO_TCPV4 | GSO_ECN);
    }

    #[test]
    fn a_cut_needs_a_partial_checksum() {
        let segmentation =
            Some(Segmentation { protocol: Protocol::Udp, size: 100, header_len: 42 });
        let meta = Meta { segmentation, ..Meta::default() };
        assert_eq!(emit(&meta, &[]), Err(Malformed));
    }
}
