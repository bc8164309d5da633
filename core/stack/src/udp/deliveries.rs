//! Packets whose datagrams are given to their sockets in portions, because the filters of these
//! sockets have many instructions, or because there are many sockets.
//!
//! Each program has a line of packets, and lines take turns: a program with long filters delays the
//! packets of its own sockets. Packets to sockets without filter never wait, with one exception:
//! multicast and broadcast ones whose receivers are too many for a turn.

use std::collections::VecDeque;

use towpath_ring::Payload;

use crate::drop::DropReason;
use crate::host::{DatagramMeta, SocketId};
use crate::incoming::payload_of;
use crate::limits;
use crate::net::Local;

/// Datagrams of one packet, which a device or a sender may have merged.
#[derive(Debug)]
pub(crate) struct ArrivedDatagrams<'a> {
    pub local: &'a Local,
    pub meta: DatagramMeta,
    /// Payloads of all.
    pub payload: Payload<'a>,
    /// Length of each but the last; 0: there is one.
    pub size: u32,
}

impl<'a> ArrivedDatagrams<'a> {
    /// The datagrams of a packet behind `header_len` bytes of transport header.
    pub fn new(local: &'a Local, meta: DatagramMeta, header_len: usize) -> Self {
        let payload = payload_of(local, header_len);
        let size = local.packet.meta.segmentation.map_or(0, |how| u32::from(how.size));
        Self { local, meta, payload, size }
    }

    /// The datagram that begins at `at` of the payload.
    pub fn datagram(&self, at: u32) -> Payload<'a> {
        let rest = self.payload.len().saturating_sub(at);
        let len = if self.size == 0 { rest } else { rest.min(self.size) };
        self.payload.slice(at, len)
    }

    /// Number of datagrams.
    pub fn count(&self) -> usize {
        let pieces = self.payload.len().checked_div(self.size).unwrap_or(0);
        pieces as usize + 1
    }
}

/// Datagrams of a packet, by their outcome.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeliveryCount {
    pub taken: u32,
    /// The socket had no room.
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

/// Why a packet is not with all of its receivers.
#[derive(Debug)]
pub(crate) enum Undelivered {
    Lost(DropReason),
    /// To these in later turns.
    Later(Recipients),
}

impl From<DropReason> for Undelivered {
    fn from(reason: DropReason) -> Self {
        Self::Lost(reason)
    }
}

/// The receivers of a packet, and how far its delivery has come.
#[derive(Debug)]
pub(crate) struct Recipients {
    pub list: Vec<SocketId>,
    /// The list is complete.
    pub is_known: bool,
    /// Hash of the flow.
    pub hash: u64,
    /// Place in the list of the next one.
    pub next: usize,
    /// Bytes of the payload that the next one has been given.
    pub at: u32,
    /// Outcome so far.
    pub given: DeliveryCount,
}

impl Recipients {
    /// All sockets that take the packet.
    pub fn new(list: Vec<SocketId>, hash: u64) -> Self {
        Self { list, is_known: true, hash, next: 0, at: 0, given: DeliveryCount::default() }
    }

    /// Receivers of a multicast or broadcast packet that are still to be found.
    pub fn unknown(list: Vec<SocketId>, hash: u64) -> Self {
        Self { is_known: false, ..Self::new(list, hash) }
    }

    /// The next one has the packet.
    pub fn end_one(&mut self) {
        self.next += 1;
        self.at = 0;
    }
}

/// A packet that waits for filters.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub local: Local,
    pub meta: DatagramMeta,
    /// Bytes of transport header in front of the payload.
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

/// The packets of one program that wait.
#[derive(Debug, Default)]
struct PayerLine {
    payer: u64,
    /// Bytes of the packets.
    bytes: usize,
    waiting: VecDeque<Delivery>,
}

/// Packets that wait for filters, and lists for their receivers.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    /// Lines of programs. An empty one is used again for the next program.
    lines: Vec<PayerLine>,
    /// Place of the line whose turn it is.
    turn: usize,
    /// Packets of all lines.
    len: usize,
    /// Empty lists, kept for their memory.
    lists: Vec<Vec<SocketId>>,
}

impl Deliveries {
    /// Whether no packet waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether packets of a program wait.
    pub fn has_line(&self, payer: u64) -> bool {
        self.lines.iter().any(|line| line.payer == payer && !line.waiting.is_empty())
    }

    /// An empty list.
    pub fn take_list(&mut self) -> Vec<SocketId> {
        self.lists.pop().unwrap_or_default()
    }

    /// Takes the memory of a list back.
    pub fn give_list(&mut self, mut list: Vec<SocketId>) {
        list.clear();
        if self.lists.len() < limits::LISTS_KEPT && list.capacity() <= limits::LISTED_KEPT {
            self.lists.push(list);
        }
    }

    /// Puts a packet at the end of the line of a program. Returns it when the line is full.
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

    /// The line whose turn it is, if any packet waits.
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

    /// Takes the first packet of the line whose turn it is. Its program is the second result.
    pub fn pop(&mut self) -> Option<(Delivery, u64)> {
        let line = self.line()?;
        let delivery = line.waiting.pop_front()?;
        line.bytes -= delivery.local.packet.len();
        let payer = line.payer;
        self.len -= 1;
        Some((delivery, payer))
    }

    /// Puts a packet back where [`Self::pop`] took it from.
    pub fn put_back(&mut self, payer: u64, delivery: Delivery) {
        let Some(line) = self.lines.get_mut(self.turn) else { return };
        line.payer = payer;
        line.bytes += delivery.local.packet.len();
        line.waiting.push_front(delivery);
        self.len += 1;
    }

    /// The next line has its turn.
    pub fn pass(&mut self) {
        self.turn = (self.turn + 1) % self.lines.len().max(1);
    }
}
