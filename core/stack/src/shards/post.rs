//! Mail between shards, and the rings that carry it: one for each pair and direction.
//!
//! A full ring loses packets, as any queue on a path does, and counts them. Messages are never
//! lost: those without a place wait here. News of neighbours go another way (`bulletin`).

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

/// An entry of a ring.
#[derive(Debug)]
pub(crate) enum Mail {
    /// As the device of an interface gave it.
    Packet { iface: IfaceId, packet: Packet, hops: u8 },
    /// A packet of this host to itself.
    Looped { looped: Looped, hops: u8 },
    /// A datagram that another shard reassembled.
    Received(Box<Received>),
    /// About a connection.
    Message(ShardMessage),
    /// To the first shard: input for control.
    ToControl { from: ShardId, told: ToControl },
    /// In place of a packet that was taken: as large, and empty.
    Empty(Packet),
}

/// A message between shards.
#[derive(Debug)]
pub(crate) enum ShardMessage {
    /// To the shard of a listener: a connection for it is established.
    Offer(Offer),
    /// The answer when the listener's queue is full. `Room` follows. `again` is the offer's.
    Full { listener: SocketId, from: ShardId, child: OfferedChild, again: bool },
    /// The answer when there is no such listener any more, or no room for the connection with its
    /// owner.
    Refused { child: OfferedChild },
    /// To a shard that was answered `Full`: there is a place.
    Room { listener: SocketId, from: ShardId },
    /// The answer to `Room` when no child waits there any more.
    Pass { listener: SocketId },
    /// To the shard that has a flow: a socket of the sender's connects from a port that its program
    /// chose.
    Claim { flow: Flow, socket: SocketId, by: ShardId },
    /// The answer: the flow is the socket's. An old connection used sequence numbers up to
    /// `iss_min`.
    Claimed { flow: Flow, socket: SocketId, iss_min: Option<SeqNum> },
    /// The answer when another connection has the flow.
    InUse { socket: SocketId },
    /// From owner to owner; the stack does not interpret it.
    Owner { from: ShardId, words: [u64; 3] },
}

/// A connection for a listener of another shard, which may have ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfferedChild {
    pub id: SocketId,
    /// The owner's number for it.
    pub user: u32,
    /// Tag that the owner gave it.
    pub tag: u32,
}

/// An offer of an established child.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub listener: SocketId,
    pub from: ShardId,
    pub child: OfferedChild,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// When it was made.
    pub at: Instant,
    /// The offer was answered `Full` before.
    pub again: bool,
    /// Further children that were answered `Full` wait behind it.
    pub more: bool,
}

impl Mail {
    /// An offer.
    pub fn offer(&self) -> Option<Offer> {
        match self {
            Mail::Message(ShardMessage::Offer(offer)) => Some(*offer),
            _ => None,
        }
    }

    /// The packet in it, whose buffer is another shard's.
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

/// A shard's ends of the rings to and from another one. On cache lines of its own: those of all
/// shards are made one after the other, and each writes to its own in every turn.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ShardPair {
    out: Giver<Mail>,
    /// Messages, and at most one [`Mail::ToControl`].
    waiting: VecDeque<Mail>,
    inbox: Taker<Mail>,
}

impl ShardPair {
    /// The ends of two shards.
    pub fn connect() -> (Self, Self) {
        let (there, from_here) = exchange(MAIL_MAX);
        let (back, from_there) = exchange(MAIL_MAX);
        let pair = |out, inbox| Self { out, waiting: VecDeque::new(), inbox };
        (pair(there, from_there), pair(back, from_here))
    }

    /// Hands over a packet. Returns it when the ring is full, or when messages wait for a place.
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

    /// Sends the other shard a message, with the next [`Pair::flush`] that has a place for it.
    pub fn tell(&mut self, message: ShardMessage) {
        self.waiting.push_back(Mail::Message(message));
    }

    /// Gives the first shard something for control, and takes no more when there is no place: false
    /// then.
    pub fn tell_control(&mut self, from: ShardId, told: ToControl, pool: &mut Pool) -> bool {
        self.waiting.push_back(Mail::ToControl { from, told });
        self.has_room(pool)
    }

    /// Whether all that waited has found its place.
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

    /// Messages that found no place yet.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the peer shard has sent anything.
    pub fn has_mail(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Takes mail of the peer shard, within a turn's limit. In exchange for each packet it gets an
    /// empty one, so that neither's pool runs dry if packets go one way.
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

    /// All packets go one way, and each pool has allocated no more than the ring holds.
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
