//! Messages and packets between shards, and the rings that transport them. Each pair of shards has
//! a ring for each direction.
//!
//! A full ring drops packets, like any queue on a path, and counts them. Messages are never lost:
//! if the ring is full, they wait in a list. Updates of neighbours use `update_queue` instead.

use std::collections::VecDeque;
use std::net::SocketAddr;

use towpath_pool::{Packet, Pool};
use towpath_ring::{Giver, Taker, exchange};
use towpath_tcp::{Instant, SeqNum};

use super::ShardId;
use crate::host::SocketId;
use crate::limits::{MAIL_A_TURN, MAIL_MAX};
use crate::net::{IfaceId, Looped, Received, ToControl};
use crate::tables::flow::Flow;

/// An entry of the ring between two shards.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A packet that was received from the device of an interface.
    Packet { iface: IfaceId, packet: Packet, hops: u8 },
    /// A packet from this host to itself.
    Looped { looped: Looped, hops: u8 },
    /// A datagram that the sending shard reassembled, or a packet whose addresses it rewrote (NAT).
    Received(Box<Received>),
    /// A message about a connection.
    Message(ShardMessage),
    /// A report or packet for the control part of the IP layer, which the first shard runs.
    ToControl { from: ShardId, told: ToControl },
    /// An empty packet buffer. The receiver of a packet returns one of the same size in exchange,
    /// so that the pool of the sender is not exhausted.
    Empty(Packet),
}

/// A message between shards.
#[derive(Debug)]
pub(crate) enum ShardMessage {
    /// To the shard of a listener: offers an established connection for the listener.
    Offer(Offer),
    /// Answer to `Offer`: the listener's accept queue is full. The message `Room` follows when a
    /// place is free. `again` is copied from the offer.
    Full { listener: SocketId, from: ShardId, child: OfferedChild, again: bool },
    /// Answer to `Offer`: the listener no longer exists, or its owner has no space for the
    /// connection.
    Refused { child: OfferedChild },
    /// To a shard whose `Offer` was answered by `Full`: a place in the listener's accept queue is
    /// free.
    Room { listener: SocketId, from: ShardId },
    /// Answer to `Room`: no connection waits for the listener any more.
    Pass { listener: SocketId },
    /// To the shard that has a flow: a socket of the sending shard requests the flow for a
    /// connection. The program chose the port of this connection.
    Claim { flow: Flow, socket: SocketId, by: ShardId },
    /// Answer to `Claim`: the flow is assigned to the socket. An earlier connection used sequence
    /// numbers up to `iss_min`.
    Claimed { flow: Flow, socket: SocketId, iss_min: Option<SeqNum> },
    /// Answer to `Claim`: another connection uses the flow.
    InUse { socket: SocketId },
    /// A message between the owners of two stacks. The stack does not interpret it.
    Owner { from: ShardId, words: [u64; 3] },
}

/// A connection for a listener of another shard. The connection may have been closed since it was
/// offered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfferedChild {
    pub id: SocketId,
    /// Number that the owner of the stack assigned to the connection.
    pub user: u32,
    /// Additional number that the owner of the stack assigned to the connection. The stack passes
    /// it to `Host::enqueue` and `Host::refused`.
    pub tag: u32,
}

/// Offer of an established connection to a listener of another shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub listener: SocketId,
    pub from: ShardId,
    pub child: OfferedChild,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Time of the turn of the event loop in which the offer was made.
    pub at: Instant,
    /// Whether an earlier offer of the same connection was answered by `Full`.
    pub again: bool,
    /// Whether further connections that were answered `Full` wait for the listener.
    pub more: bool,
}

impl Mail {
    /// Returns the offer, if the entry is an offer.
    pub fn offer(&self) -> Option<Offer> {
        match self {
            Mail::Message(ShardMessage::Offer(offer)) => Some(*offer),
            _ => None,
        }
    }

    /// Returns the packet in this entry, if there is one. Its buffer belongs to the pool of the
    /// sending shard.
    fn packet(&self) -> Option<&Packet> {
        match self {
            Mail::Packet { packet, .. } => Some(packet),
            Mail::Looped { looped, .. } => Some(&looped.packet),
            Mail::Received(received) => match &**received {
                Received::Local(local) => Some(&local.packet),
                Received::EchoReply(echo) | Received::EchoRequest(echo) => Some(&echo.local.packet),
                Received::IcmpError(_) => None,
            },
            Mail::ToControl { told: ToControl::Punt(punt), .. } => Some(punt.packet()),
            Mail::ToControl { .. } | Mail::Message(_) | Mail::Empty(_) => None,
        }
    }
}

/// The ends of the two rings between this shard (stack) and another one. The ends are aligned to
/// cache lines, because those of all shards are allocated next to each other. Otherwise shards
/// would write to the same cache line in every turn of the event loop.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ShardPair {
    out: Giver<Mail>,
    /// Messages, and at most one [`Mail::ToControl`], that wait for space in the ring.
    waiting: VecDeque<Mail>,
    inbox: Taker<Mail>,
}

impl ShardPair {
    /// Creates the two rings between two shards, and returns the ends for each shard.
    pub fn connect() -> (Self, Self) {
        let (there, from_here) = exchange(MAIL_MAX);
        let (back, from_there) = exchange(MAIL_MAX);
        let pair = |out, inbox| Self { out, waiting: VecDeque::new(), inbox };
        (pair(there, from_there), pair(back, from_here))
    }

    /// Sends a packet to the other shard. Returns the packet if the ring is full, or if messages
    /// wait for space.
    pub fn hand_over(&mut self, mail: Mail, pool: &mut Pool) -> Option<Mail> {
        if !self.has_room(pool) {
            return Some(mail);
        }
        self.put(mail, pool)
    }

    fn put(&mut self, mail: Mail, pool: &mut Pool) -> Option<Mail> {
        match self.out.give(mail) {
            Ok(Some(Mail::Empty(packet))) => pool.give(packet),
            Ok(_) => {}
            Err(mail) => return Some(mail),
        }
        None
    }

    /// Queues a message for the other shard. [`ShardPair::flush`] sends it as soon as the ring has
    /// space.
    pub fn tell(&mut self, message: ShardMessage) {
        self.waiting.push_back(Mail::Message(message));
    }

    /// Sends a report or control packet for the control part of the IP layer to the first shard.
    /// Returns false if the ring is full; the caller must then wait until there is space.
    pub fn tell_control(&mut self, from: ShardId, told: ToControl, pool: &mut Pool) -> bool {
        self.waiting.push_back(Mail::ToControl { from, told });
        self.has_room(pool)
    }

    /// Moves waiting messages into the ring. Returns whether none is left waiting.
    pub fn has_room(&mut self, pool: &mut Pool) -> bool {
        self.put_waiting(pool);
        !self.has_waiting()
    }

    /// Makes queued packets and messages visible to the other shard. Returns whether there were
    /// any.
    pub fn flush(&mut self, pool: &mut Pool) -> bool {
        self.put_waiting(pool);
        self.out.publish()
    }

    fn put_waiting(&mut self, pool: &mut Pool) {
        while let Some(mail) = self.waiting.pop_front() {
            if let Some(mail) = self.put(mail, pool) {
                self.waiting.push_front(mail);
                return;
            }
        }
    }

    /// Returns whether messages wait for space in the ring.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether the other shard has sent packets or messages.
    pub fn has_mail(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Takes packets and messages of the other shard, up to the limit per turn of the event loop.
    /// An empty packet is returned for each received one. Otherwise the other shard's pool of
    /// packets would be exhausted if packets are sent only in one direction.
    pub fn take(&mut self, pool: &mut Pool, batch: &mut VecDeque<Mail>) {
        for _ in 0..MAIL_A_TURN {
            let taken = self.inbox.take(|mail| {
                let empty = mail.packet().map(|packet| Mail::Empty(empty_like(packet, pool)));
                (mail, empty)
            });
            let Some(mail) = taken else { break };
            batch.push_back(mail);
        }
        self.inbox.give_back();
    }
}

fn empty_like(packet: &Packet, pool: &mut Pool) -> Packet {
    let buffer = packet.headroom() + packet.linear().len() + packet.tailroom();
    pool.take(buffer.saturating_sub(Pool::HEADROOM))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(pool: &mut Pool, len: usize) -> Mail {
        let packet = pool.take(len);
        Mail::Packet { iface: IfaceId(1), packet, hops: 0 }
    }

    /// If all packets are sent in one direction, each pool allocates at most as many packets as the
    /// ring holds.
    #[test]
    fn pools_keep_what_they_have() {
        let (mut one, mut other) = ShardPair::connect();
        let mut pools = [Pool::default(), Pool::default()];
        let mut batch = VecDeque::new();
        for round in 0..50 * MAIL_MAX as usize {
            let mail = packet(&mut pools[0], [100, 30_000][round % 2]);
            assert!(one.hand_over(mail, &mut pools[0]).is_none());
            assert!(one.flush(&mut pools[0]) && other.has_mail());
            other.take(&mut pools[1], &mut batch);
            match batch.pop_front() {
                Some(Mail::Packet { packet, .. }) => pools[1].give(packet),
                mail => panic!("{mail:?}"),
            }
        }
        for pool in &pools {
            assert!(pool.allocated() <= u64::from(MAIL_MAX) + 2, "{}", pool.allocated());
        }
    }

    #[test]
    fn packets_find_no_place_and_messages_wait() {
        let (mut one, mut other) = ShardPair::connect();
        let mut pool = Pool::default();
        one.tell(ShardMessage::Room { listener: SocketId(9), from: ShardId(0) });
        for _ in 0..MAIL_MAX - 1 {
            let mail = packet(&mut pool, 100);
            assert!(one.hand_over(mail, &mut pool).is_none());
        }
        for waits in [false, true] {
            if waits {
                one.tell(ShardMessage::Room { listener: SocketId(0), from: ShardId(0) });
            }
            let mail = packet(&mut pool, 100);
            assert!(one.hand_over(mail, &mut pool).is_some());
        }
        for n in 1..3 {
            one.tell(ShardMessage::Room { listener: SocketId(n), from: ShardId(0) });
        }
        assert!(one.flush(&mut pool) && one.has_waiting());
        let (mut batch, mut messages) = (VecDeque::new(), Vec::new());
        while messages.len() < 4 {
            other.take(&mut pool, &mut batch);
            for mail in batch.drain(..) {
                match mail {
                    Mail::Message(ShardMessage::Room { listener, .. }) => messages.push(listener.0),
                    mail => assert_eq!(messages, [9], "{mail:?}"),
                }
            }
            one.flush(&mut pool);
        }
        assert_eq!(messages, [9, 0, 1, 2]);
        assert!(!one.has_waiting() && !other.has_mail());
    }
}
