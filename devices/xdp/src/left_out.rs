//! Detects checksums that a sender on this machine has left incomplete.
//!
//! The kernel sends frames through a veth pair without computing their checksums. The checksum
//! field contains only the sum of the pseudo-header. XDP sockets do not report this state.

use towpath_pool::Checksum;

const IP_AT: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
const UDP: u8 = 17;
const V6_HEADER_LEN: usize = 40;
/// Mask of the more-fragments bit and the fragment offset (RFC 791, section 3.1).
const FRAGMENT: u16 = 0x3fff;

/// Returns the checksum state of a frame received from a veth. If the checksum equals the sum of
/// the pseudo-header, it is incomplete; otherwise it must be verified. A damaged frame is mistaken
/// for an incomplete one with a probability of 2^-16.
pub(crate) fn checksum(frame: &[u8]) -> Checksum {
    left_out(frame).unwrap_or_default()
}

fn left_out(frame: &[u8]) -> Option<Checksum> {
    let ip = frame.get(IP_AT..)?;
    let half = |at: usize| Some(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?]));
    let (addresses, protocol, start, end) = match frame.get(12..14)? {
        ethertype if ethertype == IPV4 => {
            let start = usize::from(ip.first()? & 0x0f) * 4;
            let is_whole = half(6)? & FRAGMENT == 0;
            is_whole.then_some((12..20, *ip.get(9)?, start, usize::from(half(2)?)))?
        }
        ethertype if ethertype == IPV6 => {
            let end = V6_HEADER_LEN + usize::from(half(4)?);
            (8..40, *ip.get(6)?, V6_HEADER_LEN, end)
        }
        _ => return None,
    };
    let offset = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    let len = end.checked_sub(start)?;
    if len < usize::from(offset) + 2 || end > ip.len() {
        return None;
    }
    let words = ip.get(addresses)?.as_chunks::<2>().0.iter().map(|word| u16::from_be_bytes(*word));
    let sum = words.map(u32::from).sum::<u32>() + u32::from(protocol) + len as u32;
    let once = (sum & 0xffff) + (sum >> 16);
    let folded = ((once & 0xffff) + (once >> 16)) as u16;
    let start = u16::try_from(IP_AT + start).ok()?;
    (half(usize::from(start) - IP_AT + usize::from(offset))? == folded)
        .then_some(Checksum::Partial { start, offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a UDP datagram with 4 bytes of payload from 10.1.0.1 to 10.1.0.2.
    fn udp(checksum: [u8; 2]) -> Vec<u8> {
        let ip = [0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2];
        let header = [0, 9, 0, 9, 0, 12, checksum[0], checksum[1], b'b', b'y', b't', b'e'];
        [&[0; 12][..], &IPV4, &ip, &header].concat()
    }

    /// Sum of the pseudo-header: 0x0a01 + 0x0001 + 0x0a01 + 0x0002 + 17 + 12.
    const PSEUDO: [u8; 2] = [0x14, 0x22];

    #[test]
    fn the_sum_of_the_pseudo_header_is_a_checksum_left_out() {
        assert_eq!(checksum(&udp(PSEUDO)), Checksum::Partial { start: 34, offset: 6 });
        assert_eq!(checksum(&udp([0x14, 0x23])), Checksum::Unknown);
        let mut fragment = udp(PSEUDO);
        fragment[14 + 6] = 0x20;
        assert_eq!(checksum(&fragment), Checksum::Unknown);
    }

    #[test]
    fn cut_frames_are_to_be_verified() {
        let whole = udp(PSEUDO);
        for len in 0..whole.len() {
            assert_eq!(checksum(&whole[..len]), Checksum::Unknown, "{len} bytes");
        }
    }
}
