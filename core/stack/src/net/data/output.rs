//! Output queue of an interface: all frames that the interface sends pass through this queue.
//!
//! ```text
//!  frame ─► admit? ─► enqueue ─► │ packets: first in, first out │ ─► hand_over ─► Port::submit
//!              │ no                  what each sender has: Shares │ ─► drained
//!              ▼                                                        │
//!           dropped, or its connection waits (`crate::tcp::tx`) ◄────────────┘ goes on
//! ```
//! The queue counts packets as they will be on the wire. A packet of 64 KiB that the device or the
//! kernel cuts into 45 counts as 45, each with its headers. Connections are counted apart from
//! other senders, so that neither kind fills the queue for the other.
//!
//! - Senders other than connections may queue [`OUTPUT_BYTES_MAX`] and [`OUTPUT_PACKETS_MAX`].
//!   Packets that keep a link working ([`is_control`]) have a reserve beyond these limits.
//! - Connections wait at half of these limits ([`crate::limits::TX_OUTPUT_BYTES`]).
//! - Each connection waits earlier, when its own limit (share) is reached. UDP sockets may request
//!   such a limit.
//!
//! Senders get bandwidth in proportion to their bytes in the queue. If the device is slow and
//! connections wait, other senders may together queue as much as connections have queued, but at
//! least [`OUTPUT_BESIDE_BYTES`]. Otherwise senders without flow control would get almost all
//! bandwidth.
//!
//! Queued packets refer to bytes in the FIFOs of their sockets; the FIFOs prevent writes to these
//! bytes as long as they are queued ([`towpath_ring::SendBuffer`]). If closed sockets thereby keep
//! too much memory, the packets are copied ([`Output::copy_forsaken`]).
//!
//! A packet counts until the device has taken it. Code that reorders packets or limits their rate
//! therefore belongs between `enqueue` and `hand_over`.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::ops::{AddAssign, Sub, SubAssign};

use hashbrown::HashMap;
use towpath_pool::{Batch, Packet, Pool};
use towpath_wire::tcp::Flags;
use towpath_wire::{IpProtocol, ipv4, ipv6};

use crate::limits::TX_SHARE_BYTES;
use crate::net::hash::Cheap;
use crate::net::limits::{
    OUTPUT_BESIDE_BYTES, OUTPUT_BESIDE_PACKETS, OUTPUT_BYTES_MAX, OUTPUT_PACKETS_MAX,
    OUTPUT_RESERVE_BYTES, OUTPUT_RESERVE_PACKETS,
};

/// Number of queued bytes at which a sender that waits may continue: half of the smallest limit per
/// sender.
const SHARE_LOW: u32 = TX_SHARE_BYTES / 2;

/// Bit that is set in the sender identifiers of UDP sockets, and clear in those of connections.
const OF_DATAGRAMS: u32 = 1 << 31;

/// Returns the sender identifier of the connection at `index` of the socket table. If a later
/// socket gets the same index, queued packets of the earlier socket count toward the limit of the
/// later one.
pub(crate) fn connection(index: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(index + 1)
}

/// Returns the sender identifier of the UDP socket at `index` of the socket table.
pub(crate) fn datagrams(index: u32) -> Option<NonZeroU32> {
    NonZeroU32::new((index + 1) | OF_DATAGRAMS)
}

/// Returns the index in the socket table of the socket with this sender identifier.
pub(crate) fn place(sender: NonZeroU32) -> u32 {
    (sender.get() & !OF_DATAGRAMS) - 1
}

fn is_connection(sender: Option<NonZeroU32>) -> bool {
    sender.is_some_and(|sender| sender.get() & OF_DATAGRAMS == 0)
}

const MOST: Load = Load { packets: OUTPUT_PACKETS_MAX, bytes: OUTPUT_BYTES_MAX };

/// Size of packets as they are sent on the wire, after segmentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of packets after segmentation.
    pub packets: usize,
    /// Total bytes of the packets after segmentation. Each segment counts with its own headers,
    /// including the link header.
    pub bytes: usize,
}

impl Load {
    /// Returns the size of a packet on the wire. `packet` begins with the first header that counts.
    pub(in crate::net) fn of(packet: &Packet) -> Self {
        let Some(how) = packet.meta.segmentation else {
            return Self { packets: 1, bytes: packet.len() };
        };
        let packets = how.pieces(packet.len());
        Self { packets, bytes: packet.len() + (packets - 1) * usize::from(how.header_len) }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl Sub for Load {
    type Output = Self;

    fn sub(mut self, other: Self) -> Self {
        self -= other;
        self
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        self.packets -= other.packets;
        self.bytes -= other.bytes;
    }
}

/// Limit of the output queue that another packet would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::net) enum QueueFull {
    /// Limit of bytes, [`OUTPUT_BYTES_MAX`].
    Bytes,
    /// Limit of packets, [`OUTPUT_PACKETS_MAX`].
    Packets,
    /// Limit of the reserve for control packets, [`OUTPUT_RESERVE_BYTES`] or
    /// [`OUTPUT_RESERVE_PACKETS`].
    Reserve,
}

/// Output queue of an interface, in front of its device.
#[derive(Debug, Default)]
pub struct Output {
    /// Queued packets, the oldest first.
    packets: Batch,
    /// Size and sender of each queued packet, in the order of the packets.
    notes: VecDeque<Note>,
    load: Load,
    /// Size of the queued packets that connections have sent.
    connections: Load,
    /// Whether packets remained in the queue when they were last passed to the device.
    is_behind: bool,
    shares: Shares,
}

#[derive(Debug, Clone, Copy)]
struct Note {
    load: Load,
    sender: Option<NonZeroU32>,
}

impl Output {
    /// Returns the number of queued packets; a packet to be segmented counts once.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the size of the queued packets on the wire.
    #[inline]
    pub fn load(&self) -> Load {
        self.load
    }

    /// Returns the size on the wire of the queued packets that connections have sent.
    #[inline]
    pub(crate) fn connections(&self) -> Load {
        self.connections
    }

    /// Returns the number of bytes on the wire that `sender` has in the queue.
    #[inline]
    pub fn share(&self, sender: NonZeroU32) -> u32 {
        self.shares.of(sender)
    }

    /// Returns the connections and UDP sockets with packets in the queue for which a limit per
    /// sender applies.
    pub(crate) fn senders(&self) -> impl Iterator<Item = NonZeroU32> {
        self.shares.bytes.keys().copied()
    }

    /// Returns the queued packets, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter()
    }

    /// Calls `take` with the queued packets, to pass them to the device. `take` must remove the
    /// packets that the device accepts from the front of the batch, and must not add any. Returns
    /// the number of removed packets.
    pub fn hand_over(&mut self, take: impl FnOnce(&mut Batch)) -> usize {
        take(&mut self.packets);
        let taken = self.notes.len().saturating_sub(self.packets.len());
        // Add up consecutive packets of one sender, so that each run of packets needs only one
        // lookup of the sender.
        let mut run = Note { load: Load::default(), sender: None };
        for Note { load, sender } in self.notes.drain(..taken) {
            self.load -= load;
            if is_connection(sender) {
                self.connections -= load;
            }
            if sender != run.sender {
                self.shares.take(run);
                run = Note { load: Load::default(), sender };
            }
            run.load += load;
        }
        self.shares.take(run);
        self.is_behind = !self.packets.is_empty();
        debug_assert_eq!(self.notes.len(), self.packets.len(), "a port put packets into the queue");
        taken
    }

    /// Copies the packets that refer to the send buffer of a closed socket, so that the buffer's
    /// memory can be freed. Returns the number of copied packets.
    pub(in crate::net) fn copy_forsaken(&mut self, pool: &mut Pool) -> u64 {
        let mut copied = 0;
        for packet in self.packets.iter_mut().filter(|packet| packet.tail.is_forsaken()) {
            packet.linearize(pool);
            copied += 1;
        }
        copied
    }

    /// Removes and returns a sender that waited for space and may continue, because few of its
    /// bytes remain in the queue. Its socket may have been closed since.
    pub(crate) fn pop_drained(&mut self) -> Option<NonZeroU32> {
        self.shares.drained.pop()
    }

    /// Returns the limit of the output queue that another packet of `sender` would exceed; `None`
    /// if it may be queued. The reserve for control packets is not counted as space.
    #[inline]
    pub(in crate::net) fn full(&self, sender: Option<NonZeroU32>) -> Option<QueueFull> {
        let (has, most) = match is_connection(sender) {
            true => (self.connections, MOST),
            false => (self.others(), self.most_of_others()),
        };
        if has.bytes >= most.bytes {
            return Some(QueueFull::Bytes);
        }
        (has.packets >= most.packets).then_some(QueueFull::Packets)
    }

    fn others(&self) -> Load {
        self.load - self.connections
    }

    fn most_of_others(&self) -> Load {
        if !self.is_behind || self.connections.packets == 0 {
            return MOST;
        }
        Load {
            packets: self.connections.packets.max(OUTPUT_BESIDE_PACKETS),
            bytes: self.connections.bytes.max(OUTPUT_BESIDE_BYTES),
        }
    }

    /// Returns whether the reserve for control packets has space for another packet.
    pub(in crate::net) fn has_reserve(&self) -> bool {
        let others = self.others();
        others.bytes < OUTPUT_BYTES_MAX + OUTPUT_RESERVE_BYTES
            && others.packets < OUTPUT_PACKETS_MAX + OUTPUT_RESERVE_PACKETS
    }

    /// Appends a frame to the output queue. The frame is an admitted packet, or a segment or
    /// fragment of one. All parts of an admitted packet are queued, even if they exceed the limit.
    #[inline]
    pub(crate) fn enqueue(&mut self, packet: Packet) {
        let note = Note { load: Load::of(&packet), sender: packet.meta.sender };
        self.load += note.load;
        if is_connection(note.sender) {
            self.connections += note.load;
        }
        if let Some(sender) = note.sender {
            self.shares.add(sender, note.load.bytes as u32);
        }
        self.packets.push_back(packet);
        self.notes.push_back(note);
    }
}

/// Number of queued bytes of each sender. Only senders with queued packets have an entry, so there
/// are at most as many entries as packets.
#[derive(Debug, Default)]
struct Shares {
    bytes: HashMap<NonZeroU32, u32, Cheap>,
    drained: Vec<NonZeroU32>,
}

impl Shares {
    fn of(&self, sender: NonZeroU32) -> u32 {
        self.bytes.get(&sender).copied().unwrap_or(0)
    }

    fn add(&mut self, sender: NonZeroU32, bytes: u32) {
        *self.bytes.entry(sender).or_insert(0) += bytes;
    }

    fn take(&mut self, Note { load, sender }: Note) {
        let Some(sender) = sender else { return };
        let Some(share) = self.bytes.get_mut(&sender) else { return };
        let before = *share;
        *share = before.saturating_sub(load.bytes as u32);
        if before > SHARE_LOW && *share <= SHARE_LOW {
            self.drained.push(sender);
        }
        if *share == 0 {
            self.bytes.remove(&sender);
        }
    }
}

/// Returns whether an IP packet serves a protocol and carries no program data. Examples are ICMP
/// errors, multicast membership reports, and TCP segments without payload and SYN.
pub(in crate::net) fn is_control(packet: &Packet) -> bool {
    let bytes = packet.linear();
    if let Ok((header, at)) = ipv6::Header::parse_quoted(bytes) {
        return is_control_message(header.next_header, packet, at);
    }
    match ipv4::Header::parse_quoted(bytes) {
        Ok((header, at)) => is_control_message(header.protocol, packet, at),
        Err(_) => false,
    }
}

/// Returns whether a packet is an ICMP message other than an echo, a membership report (IGMP, MLD),
/// or a TCP segment without payload and SYN. `at` is the offset of the transport header.
pub(in crate::net) fn is_control_message(protocol: IpProtocol, packet: &Packet, at: usize) -> bool {
    const ECHO_V4: [u8; 2] = [0, 8];
    const ECHO_V6: [u8; 2] = [128, 129];
    const DATA_OFFSET: usize = 12;
    const FLAGS: usize = 13;
    let Some(bytes) = packet.linear().get(at..) else { return false };
    match protocol {
        IpProtocol::ICMP => bytes.first().is_some_and(|kind| !ECHO_V4.contains(kind)),
        IpProtocol::ICMPV6 => bytes.first().is_some_and(|kind| !ECHO_V6.contains(kind)),
        // IGMP, and MLD reports, which have a hop-by-hop header with a router alert (RFC 3810 §5).
        IpProtocol::IGMP | IpProtocol::HOP_BY_HOP => true,
        IpProtocol::TCP => {
            let (Some(offset), Some(flags)) = (bytes.get(DATA_OFFSET), bytes.get(FLAGS)) else {
                return false;
            };
            let header_len = usize::from(offset >> 4) * 4;
            let opens = Flags(u16::from(*flags)).contains(Flags::SYN);
            packet.len() == at + header_len && !opens
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use towpath_pool::{Protocol, Segmentation};
    use towpath_ring::{
        Attach, EngineSend, Region, SendBuffer, WINDOW_MAX, Windows, lock_tx, program_fifo,
    };

    use super::*;

    const HEADER_LEN: u16 = 54;

    fn packet(pool: &mut Pool, len: usize, size: Option<u16>, sender: u32) -> Packet {
        let mut packet = pool.take(len);
        packet.push_back(len).expect("taken with room");
        packet.meta.sender = NonZeroU32::new(sender);
        packet.meta.segmentation = size.map(|size| Segmentation {
            protocol: Protocol::Tcp4,
            size,
            header_len: HEADER_LEN,
        });
        packet
    }

    /// Computes the size of a packet on the wire by dividing it into segments, to test `Load::of`.
    fn on_the_wire(len: usize, size: Option<u16>) -> Load {
        let Some(size) = size else { return Load { packets: 1, bytes: len } };
        let mut load = Load::default();
        let mut left = len - usize::from(HEADER_LEN);
        loop {
            let piece = left.min(size.into());
            load += Load { packets: 1, bytes: piece + usize::from(HEADER_LEN) };
            left -= piece;
            if left == 0 {
                return load;
            }
        }
    }

    proptest! {
        /// The counters, in total and by sender, always match the packets that are in the queue.
        #[test]
        fn the_counts_are_those_of_what_is_in_it(
            steps in prop::collection::vec(
                (0..3u8, 60..60_000usize, prop::option::of(1..1500u16), 0..4u32), 1..80
            )
        ) {
            let (mut pool, mut output) = (Pool::default(), Output::default());
            let mut model: VecDeque<(u32, Load)> = VecDeque::new();
            let mut told = [0; 4];
            for (step, len, size, sender) in steps {
                let before = [0, 1, 2, 3].map(|sender| of(&model, sender).bytes as u32);
                if step > 0 {
                    output.enqueue(packet(&mut pool, len, size, sender));
                    model.push_back((sender, on_the_wire(len, size)));
                } else {
                    let n = len % (model.len() + 1);
                    let taken = output.hand_over(|batch| {
                        batch.drain(..n).for_each(|packet| pool.give(packet));
                    });
                    prop_assert_eq!(taken, n);
                    model.drain(..n);
                }
                for sender in 1..4 {
                    let now = of(&model, sender).bytes as u32;
                    prop_assert_eq!(output.share(NonZeroU32::new(sender).unwrap()), now);
                    let drained = before[sender as usize] > SHARE_LOW && now <= SHARE_LOW;
                    told[sender as usize] += u32::from(drained);
                }
                while let Some(sender) = output.pop_drained() {
                    told[sender.get() as usize] -= 1;
                }
                prop_assert_eq!(told, [0; 4]);
                let all = (0..4).map(|sender| of(&model, sender));
                let all = all.fold(Load::default(), |mut sum, load| { sum += load; sum });
                prop_assert_eq!((output.load(), output.len()), (all, model.len()));
            }
            output.hand_over(Batch::clear);
            prop_assert_eq!(output.load(), Load::default());
            prop_assert!(output.is_empty() && output.shares.bytes.is_empty());
        }
    }

    /// The device accepts no packets. Sockets with a SO_SNDBUF of 16 MiB each queue a packet and
    /// are closed. If packets were not copied, each would keep the 16 MiB of its socket's buffer.
    #[test]
    fn a_packet_does_not_keep_the_memory_of_many_sockets_that_are_gone() {
        const LIMIT: u64 = 1 << 30;
        let region = Region::create().expect("memory");
        let windows = Windows::new(&region, LIMIT);
        let (mut pool, mut output) = (Pool::default(), Output::default());
        let mut copied = 0;
        for slot in 0..80 {
            let mut send = EngineSend::new(&windows, slot, WINDOW_MAX, WINDOW_MAX);
            assert_eq!(send.attach(), Attach::Done, "{slot}: there is no memory left");
            let shared = region.slot(slot).expect("there are so many");
            {
                let _guard = lock_tx(shared, 0, || true);
                program_fifo::write(&region, shared, 0, &[slot as u8; 1000]);
                let _ = program_fifo::publish(shared, 1000);
            }
            assert!(send.pull());
            let mut frame = packet(&mut pool, HEADER_LEN.into(), None, slot + 1);
            frame.tail = send.peek(0, 1000);
            output.enqueue(frame);
            drop(send);
            if windows.take_forsaken() {
                copied += output.copy_forsaken(&mut pool);
            }
            let kept = windows.usage().assigned as u64 * u64::from(WINDOW_MAX);
            assert!(kept <= LIMIT / 16, "{slot}: {kept} bytes");
        }
        assert!(copied > 70, "{copied} were copied");
        for (slot, frame) in (0u8..).zip(output.iter()) {
            let mut bytes = [0; 1000];
            frame.copy_to(HEADER_LEN.into(), &mut bytes);
            assert_eq!(bytes, [slot; 1000]);
        }
        let load = Load { packets: 80, bytes: 80 * (1000 + usize::from(HEADER_LEN)) };
        assert_eq!(output.load(), load);
        output.hand_over(Batch::clear);
        assert_eq!((output.load(), windows.usage().assigned), (Load::default(), 0));
    }

    fn of(model: &VecDeque<(u32, Load)>, wanted: u32) -> Load {
        let mut sum = Load::default();
        model.iter().filter(|(sender, _)| *sender == wanted).for_each(|(_, load)| sum += *load);
        sum
    }
}
