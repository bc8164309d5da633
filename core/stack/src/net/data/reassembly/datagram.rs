//! An incomplete datagram: its fragments, and their reassembly into a packet.

use towpath_pool::{Meta, Packet, Pool};

use super::Fragment;
use crate::drop::DropReason;
use crate::net::data::offload::refresh_ipv4_checksum;
use crate::net::limits::FRAGMENTS_MAX;

/// The fragments of a datagram that have been received so far.
#[derive(Debug)]
pub(super) struct Datagram {
    /// Received fragments, sorted by offset; no two of them overlap.
    pieces: Vec<FragmentBytes>,
    /// Total length of the received fragments' data in bytes.
    received: usize,
    /// Length of the datagram's payload in bytes; `None` until the last fragment has arrived.
    total: Option<usize>,
    /// IP headers of the datagram's first fragment.
    header: Vec<u8>,
    next_header: Option<(usize, u8)>,
    /// Set of the ECN codepoints of the received fragments, as bits 0 to 3.
    ecn: u8,
    pub group: bool,
}

/// Data of a fragment, in an allocation of exactly its size. A packet buffer has 2 KiB or 68 KiB,
/// and would therefore waste memory for a small fragment.
#[derive(Debug)]
struct FragmentBytes {
    from: usize,
    bytes: Box<[u8]>,
}

impl FragmentBytes {
    fn end(&self) -> usize {
        self.from + self.bytes.len()
    }
}

/// Memory in bytes that a fragment needs in addition to its data. The memory is for its list entry,
/// counted twice because the list may be half empty, and the overhead of the allocator.
pub(super) const PIECE_OVERHEAD: usize = 96;
const _: () = assert!(2 * size_of::<FragmentBytes>() + 32 <= PIECE_OVERHEAD);

/// Returns an error if the fragment is invalid, regardless of the other fragments of its datagram.
pub(super) fn check_bounds(fragment: &Fragment) -> Result<(), DropReason> {
    let len = fragment.len();
    let in_eights = len > 0 && len.is_multiple_of(8);
    // In IPv4, the maximum length includes the IP header of the reassembled packet, which has at
    // least 20 bytes.
    let header = if fragment.key.src.is_ipv4() { 20 } else { 0 };
    let fits = fragment.offset + len + header <= 65535;
    if fits && (in_eights || !fragment.more) { Ok(()) } else { Err(DropReason::FragmentInvalid) }
}

impl Datagram {
    pub(super) fn new(group: bool) -> Self {
        Self {
            pieces: Vec::new(),
            received: 0,
            total: None,
            header: Vec::new(),
            next_header: None,
            ecn: 0,
            group,
        }
    }

    /// Returns the approximate memory of the datagram in bytes, without its table entries.
    pub(super) fn cost(&self) -> usize {
        self.received + self.header.len() + self.pieces.len() * PIECE_OVERHEAD
    }

    /// Stores a fragment of the datagram; `bytes` is the packet with the fragment. Returns true if
    /// the same fragment was already received.
    pub(super) fn insert(&mut self, fragment: &Fragment, bytes: &[u8]) -> Result<bool, DropReason> {
        let (from, to) = (fragment.offset, fragment.offset + fragment.len());
        let data = &bytes[fragment.header.1..fragment.end];
        let extent = self.pieces.last().map_or(0, FragmentBytes::end);
        let beyond = self.total.is_some_and(|total| to > total);
        let shorter = !fragment.more && extent > to;
        let other_end = !fragment.more && self.total.is_some_and(|total| total != to);
        if beyond || shorter || other_end {
            return Err(DropReason::FragmentInvalid);
        }
        let at = self.pieces.partition_point(|piece| piece.end() <= from);
        match self.pieces.get(at) {
            Some(piece) if piece.from == from && *piece.bytes == *data => return Ok(true),
            //= https://www.rfc-editor.org/rfc/rfc8200#section-4.5
            //# If any of the fragments being reassembled overlap with any
            //# other fragments being reassembled for the same packet,
            //# reassembly of that packet must be abandoned and all the
            //# fragments that have been received for that packet must be
            //# discarded
            Some(piece) if piece.from < to => return Err(DropReason::FragmentOverlap),
            _ => {}
        }
        if self.pieces.len() >= FRAGMENTS_MAX {
            return Err(DropReason::FragmentLimit);
        }
        self.pieces.insert(at, FragmentBytes { from, bytes: data.into() });
        self.received += data.len();
        if !fragment.more {
            self.total = Some(to);
        }
        self.ecn |= 1 << (fragment.tos & 3);
        self.group |= fragment.group;
        if from == 0 {
            self.header = bytes[fragment.header.0..fragment.header.1].to_vec();
            self.next_header = fragment.next_header;
        }
        Ok(false)
    }

    pub(super) fn is_complete(&self) -> bool {
        // Since the fragments do not overlap, the datagram is complete if their lengths add up to
        // its total length.
        self.total == Some(self.received)
    }

    /// Returns the reassembled packet; `None` if the ECN fields of the fragments are inconsistent.
    pub(super) fn into_packet(mut self, meta: Meta, pool: &mut Pool) -> Option<Packet> {
        let ecn = merged_ecn(self.ecn)?;
        match self.next_header {
            Some((at, next_header)) => {
                *self.header.get_mut(at)? = next_header;
                let whole = self.header.len().checked_sub(towpath_wire::ipv6_ext::FRAGMENT_LEN)?;
                self.header.truncate(whole);
                let payload_len = whole.checked_sub(40)? + self.received;
                let payload_len = u16::try_from(payload_len).ok()?;
                self.header.get_mut(4..6)?.copy_from_slice(&payload_len.to_be_bytes());
                let byte = self.header.get_mut(1)?;
                *byte = *byte & 0xcf | ecn << 4;
            }
            None => {
                let total_len = u16::try_from(self.header.len() + self.received).ok()?;
                self.header.get_mut(2..4)?.copy_from_slice(&total_len.to_be_bytes());
                self.header.get_mut(6..8)?.fill(0);
                let byte = self.header.get_mut(1)?;
                *byte = *byte & 0xfc | ecn;
                refresh_ipv4_checksum(&mut self.header);
            }
        }
        let mut packet = pool.take(self.header.len() + self.received);
        packet.push_back(self.header.len())?.copy_from_slice(&self.header);
        for piece in &self.pieces {
            packet.push_back(piece.bytes.len())?.copy_from_slice(&piece.bytes);
        }
        packet.meta = Meta { arrival_ns: meta.arrival_ns, ..Meta::default() };
        Some(packet)
    }

    /// Returns the first fragment as a packet, to be quoted in an ICMP error; `None` if it has not
    /// arrived.
    pub(super) fn quote(&self) -> Option<Vec<u8>> {
        let first = self.pieces.first().filter(|piece| piece.from == 0)?;
        Some([&self.header[..], &first.bytes].concat())
    }
}

/// Returns the ECN codepoint of the reassembled packet, from the set of its fragments' codepoints.
//= https://www.rfc-editor.org/rfc/rfc3168#section-5.3
//# Further, if any fragment of an IP packet to be reassembled has the CE
//# codepoint set, then one of two actions MUST be taken:
//# * Set the CE codepoint on the reassembled packet.  However, this
//# MUST NOT occur if any of the other fragments contributing to
//# this reassembly carries the Not-ECT codepoint.
//# * The packet is dropped, instead of being reassembled
fn merged_ecn(seen: u8) -> Option<u8> {
    const NOT_ECT: u8 = 1 << 0;
    const ECT_1: u8 = 1 << 1;
    const ECT_0: u8 = 1 << 2;
    const CE: u8 = 1 << 3;
    match seen {
        _ if seen & CE != 0 => (seen & NOT_ECT == 0).then_some(3),
        _ if seen & NOT_ECT != 0 => Some(0),
        _ if seen & ECT_0 != 0 => Some(2),
        _ => Some(u8::from(seen & ECT_1 != 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecn_is_merged() {
        assert_eq!(merged_ecn(0b0001), Some(0));
        assert_eq!(merged_ecn(0b0100), Some(2));
        assert_eq!(merged_ecn(0b0010), Some(1));
        assert_eq!(merged_ecn(0b1100), Some(3));
        assert_eq!(merged_ecn(0b1001), None);
    }
}
