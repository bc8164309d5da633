//! Messages and packets between shards, and the rings that transport them: one per pair and
//! direction.
//!
//! A full ring drops packets, like any queue on a path, and counts them. Messages are never lost:
//! if the ring is full they wait here. Updates of neighbours use `update_queue` instead.

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

/// Entry of the ring between two shards.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A packet as received from the device of an interface.
    Packet { iface: IfaceId, packet: Packet, hops: u8 },
    /// A packet of this host to itself.
    Looped { looped: Looped, hops: u8 },
    /// A datagram that another shard reassembled.
    Received(Box<Received>),
    /// A message about a connection.
    Message(ShardMessage),
    /// Input for the control plane, sent to the first shard.
    ToControl { from: ShardId, told: ToControl },
    /// An empty packet buffer, returned in exchange for a packet of the same size that was taken.
    Empty(Packet),
}

/// A message between shards.
#[derive(Debug)]
pub(crate) enum ShardMessage {
    /// To the shard of a listener: a connection for the listener is established.
    Offer(Offer),
    /// Answer if the listener's queue is full; `Room` follows. `again` is copied from the offer.
    Full { listener: SocketId, from: ShardId, child: OfferedChild, again: bool },
    /// Answer if the listener no longer exists, or its owner has no room for the connection.
    Refused { child: OfferedChild },
    /// To a shard that was answered `Full`: a place is free.
    Room { listener: SocketId, from: ShardId },
    /// Answer to `Room` if no child waits for the listener any more.
    Pass { listener: SocketId },
    /// To the shard that has a flow: a socket of the sender connects from a port chosen by its
    /// program.
    Claim { flow: Flow, socket: SocketId, by: ShardId },
    /// Answer: the flow is assigned to the socket. An old connection used sequence numbers up to
    /// `iss_min`.
    Claimed { flow: Flow, socket: SocketId, iss_min: Option<SeqNum> },
    /// Answer if another connection uses the flow.
    InUse { socket: SocketId },
    /// Message between the owners of two stacks, which the stack does not interpret.
    Owner { from: ShardId, words: [u64; 3] },
}

/// A connection for a listener of another shard. The connection may have been closed meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfferedChild {
    pub id: SocketId,
    /// Number that the owner assigned to the connection.
    pub user: u32,
    /// Additional number from the stack's owner (`Host`), which the stack returns in
    /// `Host::enqueue` and `Host::refused`.
    pub tag: u32,
}

/// Offer of an established child.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub listener: SocketId,
    pub from: ShardId,
    pub child: OfferedChild,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Time of the offer.
    pub at: Instant,
    /// An earlier offer of the child was answered `Full`.
    pub again: bool,
    /// Further children that were answered `Full` wait for another offer.
    pub more: bool,
}

impl Mail {
    /// Returns the offer, if the entry is one.
    pub fn offer(&self) -> Option<Offer> {
        match self {
            Mail::Message(ShardMessage::Offer(offer)) => Some(*offer),
            _ => None,
        }
    }

    /// Returns the contained packet, whose buffer belongs to another shard.
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

/// A shard's ends of the rings to and from a peer shard. Aligned to cache lines: the ends of all
/// shards are allocated one after the other, and each shard writes to its own in every turn.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ShardPair {
    out: Giver<Mail>,
    /// Messages, and at most one [`Mail::ToControl`], that wait for room in the ring.
    waiting: VecDeque<Mail>,
    inbox: Taker<Mail>,
}

impl ShardPair {
    /// Creates the ends of two shards.
    pub fn connect() -> (Self, Self) {
        let (there, from_here) = exchange(MAIL_MAX);
        let (back, from_there) = exchange(MAIL_MAX);
        let pair = |out, inbox| Self { out, waiting: VecDeque::new(), inbox };
        (pair(there, from_there), pair(back, from_here))
    }

    /// Hands over a packet. Returns the packet if the ring is full, or messages wait for room.
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

    /// Sends a message to the peer shard, with the next [`ShardPair::flush`] that has room.
    pub fn tell(&mut self, message: ShardMessage) {
        self.waiting.push_back(Mail::Message(message));
    }

    /// Sends input for the control plane to the first shard. Returns false if the ring is full;
    /// call again only when there is room.
    pub fn tell_control(&mut self, from: ShardId, told: ToControl, pool: &mut Pool) -> bool {
        self.waiting.push_back(Mail::ToControl { from, told });
        self.has_room(pool)
    }

    /// Moves waiting messages into the ring. Returns whether none is left.
    pub fn has_room(&mut self, pool: &mut Pool) -> bool {
        self.put_waiting(pool);
        !self.has_waiting()
    }

    /// Publishes mail to the peer shard. Returns whether there is any.
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

    /// Returns whether messages wait for room in the ring.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether the peer shard has sent anything.
    pub fn has_mail(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Takes mail from the peer shard, up to the limit per turn. For each packet an empty one is
    /// returned, so that no pool is exhausted if packets flow in one direction.
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

    /// All packets flow in one direction; each pool allocates no more packets than the ring holds.
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
