//! Sends frames on a queue of a DPDK port.

use towpath_pool::{Batch, Checksum, Packet, Pool, Protocol};

use crate::open::Queue;
use crate::sys::{DriverWork, work};

/// Length of an Ethernet header in bytes.
const ETHERNET_LEN: u16 = 14;
/// Maximum lengths in bytes of IP and transport header: `rte_mbuf_core.h` has 9 and 8 bits for
/// them.
const L3_LEN_MAX: u16 = 511;
const L4_LEN_MAX: u16 = 255;
/// EtherType of IPv6.
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Offsets of the checksum in TCP (RFC 9293) and UDP (RFC 768) headers, in bytes.
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;

impl Queue {
    /// Passes packets from the front of `batch` to the driver until its queue is full. Returns the
    /// number of packets removed from the batch.
    pub(crate) fn transmit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let owner = self.owner(pool);
        let before = batch.len();
        self.blocked = false;
        loop {
            if self.gone {
                self.counters.tx_refused += batch.len() as u64;
                batch.drain(..).for_each(|packet| pool.give(packet));
                break;
            }
            if self.sender.waiting() == 0 {
                self.stage(owner, pool, batch);
            }
            let offered = self.sender.send();
            if offered > 0 {
                self.pace.busy(now_ns);
            }
            if self.sender.waiting() > 0 {
                self.blocked = true;
                self.counters.tx_blocked += 1;
                break;
            }
            if offered == 0 {
                self.blocked = !batch.is_empty();
                break;
            }
        }
        before - batch.len()
    }

    /// Moves packets from the front of the batch to mbufs, as many as one call of the driver takes.
    fn stage(&mut self, owner: towpath_pool::Owner, pool: &mut Pool, batch: &mut Batch) {
        while self.sender.has_room() {
            let Some(packet) = batch.front_mut() else { return };
            let mut work = Some(DriverWork::default());
            if packet.meta.checksum != Checksum::Unknown || packet.meta.segmentation.is_some() {
                sum_others(packet, pool);
                work = left_to_do(packet);
            }
            let Some(packet) = batch.pop_front() else { return };
            let Some(work) = work else {
                self.counters.tx_malformed += 1;
                pool.give(packet);
                continue;
            };
            let len = packet.len();
            let packet = match self.sender.push_frame(packet, owner, work) {
                Ok(()) => {
                    self.counters.tx_in_place += 1;
                    self.count(len);
                    continue;
                }
                Err(packet) => packet,
            };
            let copied = self.sender.push_copy(len, work, |at, to| packet.copy_to(at, to));
            if !copied {
                self.counters.tx_no_mbuf += 1;
                return batch.push_front(packet);
            }
            self.count(len);
            pool.give(packet);
        }
    }

    fn count(&mut self, len: usize) {
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
    }
}

/// Computes the checksum of a protocol other than TCP and UDP, such as ICMP, because drivers do
/// not.
fn sum_others(packet: &mut Packet, pool: &mut Pool) {
    let Checksum::Partial { start, offset } = packet.meta.checksum else { return };
    if matches!(offset, TCP_CHECKSUM | UDP_CHECKSUM) {
        return;
    }
    packet.linearize(pool);
    let (start, offset) = (usize::from(start), usize::from(offset));
    let Some(rest) = packet.linear_mut().get_mut(start..) else { return };
    if offset + 2 > rest.len() {
        return;
    }
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    // A sum of 32 bits does not overflow, because a packet has at most 64 KiB.
    let mut sum: u32 = rest.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    rest[offset..offset + 2].copy_from_slice(&(!sum as u16).to_be_bytes());
    packet.meta.checksum = Checksum::Unknown;
}

/// Returns the offloads to request from the driver; `None` if the packet's metadata are invalid.
fn left_to_do(packet: &Packet) -> Option<DriverWork> {
    let Checksum::Partial { start, offset } = packet.meta.checksum else {
        return packet.meta.segmentation.is_none().then(DriverWork::default);
    };
    let mut bits = match offset {
        TCP_CHECKSUM => work::TCP,
        UDP_CHECKSUM => work::UDP,
        _ => return None,
    };
    if packet.linear().get(12..14) == Some(&IPV6) {
        bits |= work::IPV6;
    }
    let l3_len = start.checked_sub(ETHERNET_LEN).filter(|len| *len <= L3_LEN_MAX)?;
    if usize::from(start) + usize::from(offset) + 2 > packet.linear().len() {
        return None;
    }
    let Some(cut) = packet.meta.segmentation else {
        return Some(DriverWork { bits, l3_len, l4_len: 0, segment: 0 });
    };
    // The C code in `shim/` reads the headers from the first mbuf segment, so they must all be
    // there.
    let is_tcp = matches!(cut.protocol, Protocol::Tcp4 | Protocol::Tcp6) && bits & work::TCP != 0;
    let l4_len = cut.header_len.checked_sub(start).filter(|len| *len <= L4_LEN_MAX)?;
    let fits = usize::from(cut.header_len) <= packet.linear().len() && cut.size > 0;
    let bits = bits | work::SEGMENT;
    (is_tcp && fits).then_some(DriverWork { bits, l3_len, l4_len, segment: cut.size })
}

#[cfg(test)]
mod tests {
    use towpath_pool::Segmentation;

    use super::*;

    fn packet(pool: &mut Pool, kind: [u8; 2], len: usize) -> Packet {
        let mut packet = pool.take(len);
        packet.push_back(len).expect("room").fill(0);
        packet.linear_mut()[12..14].copy_from_slice(&kind);
        packet
    }

    #[test]
    fn a_complete_packet_leaves_nothing() {
        let packet = packet(&mut Pool::default(), [8, 0], 60);
        assert_eq!(left_to_do(&packet), Some(DriverWork::default()));
    }

    #[test]
    fn sums_are_of_tcp_or_udp() {
        let pool = &mut Pool::default();
        let mut v4 = packet(pool, [8, 0], 60);
        v4.meta.checksum = Checksum::Partial { start: 34, offset: 6 };
        let wanted = DriverWork { bits: work::UDP, l3_len: 20, ..DriverWork::default() };
        assert_eq!(left_to_do(&v4), Some(wanted));
        let mut v6 = packet(pool, IPV6, 80);
        v6.meta.checksum = Checksum::Partial { start: 54, offset: 16 };
        let wanted =
            DriverWork { bits: work::TCP | work::IPV6, l3_len: 40, ..DriverWork::default() };
        assert_eq!(left_to_do(&v6), Some(wanted));
        v6.meta.checksum = Checksum::Partial { start: 54, offset: 2 };
        assert_eq!(left_to_do(&v6), None);
        for start in [4, 63, 600] {
            v6.meta.checksum = Checksum::Partial { start, offset: 16 };
            assert_eq!(left_to_do(&v6), None, "{start}");
        }
        let mut long = packet(pool, IPV6, 1000);
        long.meta.checksum = Checksum::Partial { start: 600, offset: 16 };
        assert_eq!(left_to_do(&long), None, "beyond what an mbuf can state");
    }

    /// Completes the checksum of an ICMP echo request (RFC 792) with identifier 1, which DPDK
    /// drivers do not support.
    #[test]
    fn sums_of_other_protocols_are_completed() {
        let pool = &mut Pool::default();
        let mut packet = packet(pool, [8, 0], 34 + 9);
        packet.linear_mut()[34..].copy_from_slice(&[8, 0, 0, 0, 0, 1, 0, 0, 0xff]);
        packet.meta.checksum = Checksum::Partial { start: 34, offset: 2 };
        sum_others(&mut packet, pool);
        assert_eq!(packet.meta.checksum, Checksum::Unknown);
        // The sum 0x0800 + 0x0001 + 0xff00 is 0x1_0701; adding the carry gives 0x0702.
        assert_eq!(packet.linear()[36..38], (!0x0702_u16).to_be_bytes());
        packet.meta.checksum = Checksum::Partial { start: 42, offset: 2 };
        sum_others(&mut packet, pool);
        assert_eq!(left_to_do(&packet), None, "behind the end");
    }

    #[test]
    fn a_cut_needs_headers_and_a_partial_sum() {
        let mut packet = packet(&mut Pool::default(), [8, 0], 3000);
        let cut = Segmentation { protocol: Protocol::Tcp4, size: 1448, header_len: 66 };
        packet.meta.segmentation = Some(cut);
        assert_eq!(left_to_do(&packet), None);
        packet.meta.checksum = Checksum::Partial { start: 34, offset: 16 };
        let bits = work::TCP | work::SEGMENT;
        let wanted = DriverWork { bits, l3_len: 20, l4_len: 32, segment: 1448 };
        assert_eq!(left_to_do(&packet), Some(wanted));
        packet.meta.segmentation = Some(Segmentation { header_len: 3001, ..cut });
        assert_eq!(left_to_do(&packet), None);
        packet.meta.segmentation = Some(Segmentation { protocol: Protocol::Udp, ..cut });
        assert_eq!(left_to_do(&packet), None);
    }
}
