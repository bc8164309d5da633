//! IPv4 options into which a router writes its address or the time: Record Route and Timestamp (RFC
//! 791).

use core::net::Ipv4Addr;

use towpath_tcp::Instant;
use towpath_wire::ipv4;

use super::offload::refresh_ipv4_checksum;

const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;

/// Writes the address `own` or the time into the options that request it and have room. `packet`
/// starts with its IPv4 header of `header_len` bytes, whose options are valid.
//= https://www.rfc-editor.org/rfc/rfc1812#section-5.3.13.5
//# Routers MUST support the Record Route option in forwarded packets.
pub(super) fn stamp(packet: &mut [u8], header_len: usize, own: Option<Ipv4Addr>, now: Instant) {
    let (Some(header), Some(own)) = (packet.get_mut(..header_len), own) else { return };
    let options = &mut header[ipv4::HEADER_LEN..];
    let mut at = 0;
    let mut changed = false;
    while let Some(&kind) = options.get(at) {
        let len = match kind {
            END_OF_OPTIONS => break,
            NO_OPERATION => 1,
            _ => usize::from(options.get(at + 1).copied().unwrap_or(0)),
        };
        let Some(option) = options.get_mut(at..at + len).filter(|option| !option.is_empty()) else {
            break;
        };
        changed |= match kind {
            RECORD_ROUTE => record(option, &own.octets()),
            TIMESTAMP => stamp_time(option, own, now),
            _ => false,
        };
        at += len;
    }
    if changed {
        refresh_ipv4_checksum(header);
    }
}

/// Writes `entry` into an option, at the position that its pointer states. The pointer is the
/// option's third byte, and counts from 1. Returns false if there is no space.
fn record(option: &mut [u8], entry: &[u8]) -> bool {
    let Some(pointer) = option.get(2).map(|pointer| usize::from(*pointer)) else { return false };
    let Some(start) = pointer.checked_sub(1).filter(|start| *start >= 3) else { return false };
    let Some(room) = option.get_mut(start..start + entry.len()) else { return false };
    room.copy_from_slice(entry);
    option[2] = (pointer + entry.len()) as u8;
    true
}

/// Writes the Timestamp option, for all its flags: times only, addresses with times, and times of
/// given addresses.
//= https://www.rfc-editor.org/rfc/rfc1812#section-5.3.13.6
//# Routers MUST support the timestamp option in forwarded packets.
fn stamp_time(option: &mut [u8], own: Ipv4Addr, now: Instant) -> bool {
    const TIMES: u8 = 0;
    const ADDRESSES_AND_TIMES: u8 = 1;
    /// Flag that marks a time as not relative to midnight UT (RFC 791). We always set it, because
    /// the stack's clock may have any origin.
    const NONSTANDARD: u32 = 1 << 31;
    let Some(&flags) = option.get(3) else { return false };
    let millis = (now.0 / 1_000_000) as u32 | NONSTANDARD;
    let mut entry = [0; 8];
    entry[..4].copy_from_slice(&own.octets());
    entry[4..].copy_from_slice(&millis.to_be_bytes());
    let written = match flags & 0xf {
        TIMES => record_from(option, &entry[4..]),
        ADDRESSES_AND_TIMES => record_from(option, &entry),
        // The option lists the addresses that may write the time. Do nothing unless the next
        // address in the list is one of this router.
        _ => return false,
    };
    if !written {
        // If there is no space for the entry, increment the overflow counter, which has four bits.
        let overflow = option[3] >> 4;
        option[3] = (overflow + u8::from(overflow < 15)) << 4 | flags & 0xf;
    }
    true
}

/// Like [`record`], for the Timestamp option, whose entries begin after its fourth byte instead of
/// the third.
fn record_from(option: &mut [u8], entry: &[u8]) -> bool {
    option.get(2).is_some_and(|pointer| *pointer >= 5) && record(option, entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Option<Ipv4Addr> = Some(Ipv4Addr::new(192, 0, 2, 1));

    fn header(options: &[u8]) -> Vec<u8> {
        let header = ipv4::Header {
            tos: 0,
            total_len: 60,
            ident: 1,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 9,
            protocol: towpath_wire::IpProtocol::UDP,
            src: Ipv4Addr::new(10, 0, 0, 1),
            dst: Ipv4Addr::new(10, 0, 0, 2),
            options: ipv4::Options::new(options).unwrap(),
        };
        let mut bytes = vec![0; header.header_len()];
        header.emit(&mut bytes);
        bytes
    }

    fn stamped(options: &[u8]) -> Vec<u8> {
        let mut bytes = header(options);
        let len = bytes.len();
        stamp(&mut bytes, len, OWN, Instant(5_000_000));
        assert!(ipv4::checksum_ok(&bytes));
        bytes.split_off(ipv4::HEADER_LEN)
    }

    #[test]
    fn an_address_goes_where_the_pointer_says() {
        let empty = [1, RECORD_ROUTE, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(stamped(&empty), [1, RECORD_ROUTE, 11, 8, 192, 0, 2, 1, 0, 0, 0, 0]);
        let full = [1, RECORD_ROUTE, 7, 8, 9, 9, 9, 9];
        assert_eq!(stamped(&full), full);
        let bad_pointer = [1, RECORD_ROUTE, 7, 1, 9, 9, 9, 9];
        assert_eq!(stamped(&bad_pointer), bad_pointer);
    }

    #[test]
    fn a_time_is_marked_as_not_of_the_day_and_overflow_is_counted() {
        let times = [TIMESTAMP, 8, 5, 0, 0, 0, 0, 0];
        assert_eq!(stamped(&times), [TIMESTAMP, 8, 9, 0, 0x80, 0, 0, 5]);
        let both = [TIMESTAMP, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(stamped(&both), [TIMESTAMP, 12, 13, 1, 192, 0, 2, 1, 0x80, 0, 0, 5]);
        let full = [TIMESTAMP, 8, 9, 0x20, 1, 2, 3, 4];
        assert_eq!(stamped(&full), [TIMESTAMP, 8, 9, 0x30, 1, 2, 3, 4]);
        let counted = [TIMESTAMP, 8, 9, 0xf0, 1, 2, 3, 4];
        assert_eq!(stamped(&counted), counted);
    }
}
