//! Packets whose delivery takes several turns of the event loop, because their sockets have filters
//! with many instructions, or there are many sockets.
//!
//! Each program has a queue of packets, and the queues are served in round-robin order. A program
//! with long filters therefore delays only packets to its own sockets. Packets to sockets without a
//! filter never wait, except for multicast and broadcast packets with too many receivers for one
//! turn.

use std::collections::VecDeque;

use towpath_ring::Payload;

use crate::drop::DropReason;
use crate::host::{DatagramMeta, SocketId};
use crate::incoming::payload_of;
use crate::limits;
use crate::net::Local;

/// The datagrams of one received packet. A device or a sender may have merged several into the
/// packet.
#[derive(Debug)]
pub(crate) struct ArrivedDatagrams<'a> {
    pub local: &'a Local,
    pub meta: DatagramMeta,
    /// Concatenated payloads of all datagrams in the packet.
    pub payload: Payload<'a>,
    /// Payload length in bytes of each datagram in the packet; the last one may be shorter. 0 if
    /// the packet contains a single datagram.
    pub size: u32,
}

impl<'a> ArrivedDatagrams<'a> {
    /// Returns the datagrams of a packet whose transport header has `header_len` bytes.
    pub fn new(local: &'a Local, meta: DatagramMeta, header_len: usize) -> Self {
        let payload = payload_of(local, header_len);
        let size = local.packet.meta.segmentation.map_or(0, |how| u32::from(how.size));
        Self { local, meta, payload, size }
    }

    /// Returns the datagram that begins at offset `at` of the packet's payload.
    pub fn datagram(&self, at: u32) -> Payload<'a> {
        let rest = self.payload.len().saturating_sub(at);
        let len = if self.size == 0 { rest } else { rest.min(self.size) };
        self.payload.slice(at, len)
    }

    /// Returns the number of datagrams in the packet.
    pub fn count(&self) -> usize {
        let pieces = self.payload.len().checked_div(self.size).unwrap_or(0);
        pieces as usize + 1
    }
}

/// Numbers of datagrams that sockets received, lost and filtered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeliveryCount {
    pub taken: u32,
    /// Datagrams that were dropped because the receive queue of the destination socket was full.
    pub lost: u32,
    pub filtered: u32,
}

impl DeliveryCount {
    pub fn note(&mut self, has_room: bool) {
        *(if has_room { &mut self.taken } else { &mut self.lost }) += 1;
    }

    pub fn add(&mut self, other: Self) {
        self.taken += other.taken;
        self.lost += other.lost;
        self.filtered += other.filtered;
    }
}

/// Reason why a packet was not delivered to all of its receivers. The packet was dropped, or its
/// delivery continues later.
#[derive(Debug)]
pub(crate) enum Undelivered {
    Lost(DropReason),
    /// The delivery of the packet to these receivers continues in later turns of the event loop.
    Later(Recipients),
}

impl From<DropReason> for Undelivered {
    fn from(reason: DropReason) -> Self {
        Self::Lost(reason)
    }
}

/// Receivers of a packet, and how far its delivery has progressed.
#[derive(Debug)]
pub(crate) struct Recipients {
    pub list: Vec<SocketId>,
    /// Whether the list of receivers has been computed.
    pub is_known: bool,
    /// Hash of the packet's flow.
    pub hash: u64,
    /// Index in the list of the receiver to which the packet is delivered next.
    pub next: usize,
    /// Number of payload bytes of this packet that were already delivered to the next receiver in
    /// the list.
    pub at: u32,
    /// Number of datagrams of this packet that were delivered, filtered or lost so far.
    pub given: DeliveryCount,
}

impl Recipients {
    /// Creates the state of a packet's delivery from the list of all its receivers.
    pub fn new(list: Vec<SocketId>, hash: u64) -> Self {
        Self { list, is_known: true, hash, next: 0, at: 0, given: DeliveryCount::default() }
    }

    /// Creates the state of the delivery of a multicast or broadcast packet whose receivers are not
    /// determined yet.
    pub fn unknown(list: Vec<SocketId>, hash: u64) -> Self {
        Self { is_known: false, ..Self::new(list, hash) }
    }

    /// Advances to the next receiver, because the current one has got the whole packet.
    pub fn end_one(&mut self) {
        self.next += 1;
        self.at = 0;
    }
}

/// A packet that waits to be delivered, because socket filters have used up the limit of
/// instructions in this turn of the event loop.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub local: Local,
    pub meta: DatagramMeta,
    /// Length in bytes of the transport header, which precedes the payload.
    pub header_len: usize,
    pub receivers: Recipients,
}

impl Delivery {
    pub fn new(local: Local, meta: DatagramMeta, header_len: usize, receivers: Recipients) -> Self {
        Self { local, meta, header_len, receivers }
    }

    pub fn arrived(&self) -> ArrivedDatagrams<'_> {
        let Self { local, meta, header_len, receivers: _ } = self;
        ArrivedDatagrams::new(local, *meta, *header_len)
    }
}

/// Packets of one program that wait until the program's socket filters may run.
#[derive(Debug, Default)]
struct PayerLine {
    payer: u64,
    /// Total length in bytes of the waiting packets.
    bytes: usize,
    waiting: VecDeque<Delivery>,
}

/// Packets that wait until their socket filters may run, and lists of receivers that are kept for
/// reuse.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    /// Queues of waiting packets, one for each program. An empty queue is reused for the next
    /// program.
    lines: Vec<PayerLine>,
    /// Index of the queue that is served next.
    turn: usize,
    /// Number of waiting packets in all queues.
    len: usize,
    /// Empty lists of receivers, which are kept to reuse their memory.
    lists: Vec<Vec<SocketId>>,
}

impl Deliveries {
    /// Returns whether no packets wait.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether packets of the program `payer` wait.
    pub fn has_line(&self, payer: u64) -> bool {
        self.lines.iter().any(|line| line.payer == payer && !line.waiting.is_empty())
    }

    /// Returns an empty list for receivers, if possible with memory that is reused.
    pub fn take_list(&mut self) -> Vec<SocketId> {
        self.lists.pop().unwrap_or_default()
    }

    /// Returns the memory of a list of receivers for reuse.
    pub fn give_list(&mut self, mut list: Vec<SocketId>) {
        list.clear();
        if self.lists.len() < limits::LISTS_KEPT && list.capacity() <= limits::LISTED_KEPT {
            self.lists.push(list);
        }
    }

    /// Appends a packet to the queue of the program `payer`. Returns the packet if the queue is
    /// full.
    pub fn push(&mut self, payer: u64, delivery: Delivery) -> Option<Delivery> {
        let place = self.lines.iter().position(|it| it.payer == payer && !it.waiting.is_empty());
        let place = place.or_else(|| self.lines.iter().position(|line| line.waiting.is_empty()));
        let place = place.unwrap_or_else(|| {
            self.lines.push(PayerLine::default());
            self.lines.len() - 1
        });
        let line = &mut self.lines[place];
        let bytes = line.bytes + delivery.local.packet.len();
        let is_full = line.waiting.len() >= limits::WAITING_DELIVERIES_MAX
            || bytes > limits::WAITING_DELIVERY_BYTES_MAX;
        if is_full && !line.waiting.is_empty() {
            return Some(delivery);
        }
        (line.payer, line.bytes) = (payer, bytes);
        line.waiting.push_back(delivery);
        self.len += 1;
        None
    }

    /// Returns the queue that is served next; `None` if no packets wait.
    fn line(&mut self) -> Option<&mut PayerLine> {
        if self.len == 0 {
            return None;
        }
        let n = self.lines.len();
        let places = (self.turn..n).chain(0..self.turn.min(n));
        let mut waiting = places.filter(|place| !self.lines[*place].waiting.is_empty());
        self.turn = waiting.next()?;
        self.lines.get_mut(self.turn)
    }

    /// Removes the first packet of the queue whose turn it is. Returns the packet and the number of
    /// the program that owns the queue.
    pub fn pop(&mut self) -> Option<(Delivery, u64)> {
        let line = self.line()?;
        let delivery = line.waiting.pop_front()?;
        line.bytes -= delivery.local.packet.len();
        let payer = line.payer;
        self.len -= 1;
        Some((delivery, payer))
    }

    /// Puts a packet back to the front of the queue from which [`Self::pop`] has removed it.
    pub fn put_back(&mut self, payer: u64, delivery: Delivery) {
        let Some(line) = self.lines.get_mut(self.turn) else { return };
        line.payer = payer;
        line.bytes += delivery.local.packet.len();
        line.waiting.push_front(delivery);
        self.len += 1;
    }

    /// Advances to the queue that is served next.
    pub fn pass(&mut self) {
        self.turn = (self.turn + 1) % self.lines.len().max(1);
    }
}
