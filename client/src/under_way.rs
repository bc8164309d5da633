//! Bytes and datagrams that one program of the run has sent to another, and that have not arrived.
//!
//! On Linux bytes over loopback are there when send(2) returns. Here they are there when the engine
//! has turned. A call that waits sees no difference. A call that does not wait must not be told
//! "nothing" when there is something. The reader pays, and only when something is missing: senders
//! and calls that wait cost what they cost before.
//!
//! ```text
//!   sender:  bytes ─► command ─► mark of the way = the sender
//!   reader:  nothing there ─► mark of the way ─► has its sender more than came? ─ no ─► "nothing"
//!                                                   │ yes
//!                                                   └─► wait for a turn ─► look again
//! ```
//!
//! A way is a connection in one direction, by its ports, or the port that datagrams are sent to.
//! Its mark hardly ever changes, so it costs the sender nothing. A stream has got as much as its
//! receive FIFO counts. Datagrams have left when their sender's transmit FIFO has released them,
//! and then another shard may have them.
//!
//! The awaited turn begins after the wait (`Status::beat`), so it takes the command. With several
//! shards packets go from one to another, by a third at most, which takes more turns. Bytes that do
//! not come then are held up otherwise, as by a window. A reader notes them beside the mark, and
//! does not wait for them again. The engine knows nothing of marks.
//!
//! Two ways may share a mark, by chance. A reader of the one that was overwritten may be early.

use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use rustix::thread::sched_yield;
use towpath_shm::layout::{
    Kind, MARKS, Mark, RawAddr, SLOTS_MAX, Slot, flags, op, option_bit, shard_of,
};

use crate::driver::{Turned, Who};
use crate::socket::ready;
use crate::{Client, Deadline, Socket};

/// Looks at a beat before others may have the processor: about 10 µs.
const SPINS: u32 = 200;
/// A reader waits so long for a turn at most: far longer than the engine takes.
const PATIENCE: Duration = Duration::from_millis(100);
/// Times that the reader leaves the processor to the engine before its patience ends. Otherwise a
/// machine that stands still for longer than [`PATIENCE`] would end the wait without a turn.
const YIELDS_MIN: u32 = 100;
/// Turns that a thread makes of an engine in its own process.
const TURNS: u32 = 4;
/// Turns to wait for: the end of a socket is sent in the turn after the one that takes the command.
const ROUNDS: u32 = 2;
/// The same where a packet goes by two shards to a third.
const ROUNDS_OF_SHARDS: u32 = 4;
/// Sockets of one call that are waited for.
const SOCKETS_MAX: usize = 32;

/// Readiness that ends a wait.
const ARRIVED: u32 = ready::IN | ready::RDHUP | ready::HUP | ready::ERR;

/// A connection in one direction, or a port of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteFlow {
    kind: Kind,
    /// The ports: to, from.
    ports: u32,
}

impl ByteFlow {
    fn new(kind: Kind, to: u16, from: u16) -> Self {
        Self { kind, ports: u32::from(to) << 16 | u32::from(from) }
    }

    /// The way out of a stream, if its peer is in the run.
    #[inline]
    pub fn out_of(slot: &Slot) -> Option<Self> {
        is_near_stream(slot).then(|| Self::new(Kind::Stream, slot.remote.port(), slot.local.port()))
    }

    /// The way of a datagram, if its receiver may be in the run. The engine has said so, or the
    /// address is of loopback, is the socket's own, or is one that many hosts have.
    pub fn of_datagram(slot: &Slot, to: &RawAddr) -> Option<Self> {
        let (is_near, port) = match to.family {
            0 => {
                let is_near = slot.flags.load(Relaxed) & flags::NEAR != 0;
                (is_near || is_shared(slot, &slot.remote.load()), slot.remote.port())
            }
            _ => (is_own(slot, to) || is_shared(slot, to), to.port),
        };
        is_near.then(|| Self::new(Kind::Datagram, port, 0))
    }

    /// The way into a socket.
    fn into(slot: &Slot) -> Option<Self> {
        match Kind::from_u32(slot.kind.load(Acquire)) {
            Some(Kind::Stream) if is_near_stream(slot) => {
                Some(Self::new(Kind::Stream, slot.local.port(), slot.remote.port()))
            }
            Some(Kind::Datagram) => Some(Self::new(Kind::Datagram, slot.local.port(), 0)),
            _ => None,
        }
    }

    fn hash(self) -> u32 {
        (self.ports ^ (self.kind as u32) << 8).wrapping_mul(0x9e37_79b1)
    }

    /// The number of its mark.
    fn number(self) -> u32 {
        self.hash() >> (u32::BITS - MARKS.ilog2())
    }

    /// Bits that tell ways with the same mark apart, as a rule.
    fn tag(self) -> u64 {
        u64::from(self.hash()) << SLOTS_MAX.ilog2() & TAGS
    }
}

fn is_near_stream(slot: &Slot) -> bool {
    slot.flags.load(Relaxed) & flags::NEAR != 0 && slot.kind.load(Acquire) == Kind::Stream as u32
}

fn is_own(slot: &Slot, to: &RawAddr) -> bool {
    to.to_socket_addr().is_some_and(|to| {
        let to = to.ip().to_canonical();
        let local = || slot.local.load().to_socket_addr();
        to.is_loopback()
            || to.is_unspecified()
            || local().is_some_and(|local| local.ip().to_canonical() == to)
    })
}

/// Whether an address may be a group or a broadcast address, of whose datagrams this host has
/// copies. SO_BROADCAST stands for the latter: a program does not know the lengths of networks.
fn is_shared(slot: &Slot, to: &RawAddr) -> bool {
    let may_broadcast = || slot.option_bits.load(Relaxed) & option_bit::BROADCAST != 0;
    to.to_socket_addr().is_some_and(|to| match to.ip().to_canonical() {
        IpAddr::V4(v4) => v4.is_multicast() || may_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    })
}

/// In a mark, above the number of the sender's slot: the sender has ended.
const ENDED: u64 = 1 << 31;

/// Place of the tags of ways, between.
const TAGS: u64 = ENDED - SLOTS_MAX as u64;
const _: () = assert!(SLOTS_MAX.is_power_of_two() && (SLOTS_MAX as u64) < ENDED);

/// Something that is missing, as far as can be seen.
#[derive(Debug, Clone, Copy)]
struct MissingBytes<'a> {
    socket: Socket,
    mark: &'a Mark,
    /// The sender, and the end of its bytes.
    what: u64,
}

/// The bytes and datagrams under way to some sockets.
#[derive(Debug)]
pub struct UnderWay<'a> {
    client: &'a Client,
    missing: [Option<MissingBytes<'a>>; SOCKETS_MAX],
    count: usize,
    /// Something has arrived since a call looked.
    any: bool,
}

impl<'a> UnderWay<'a> {
    /// To no socket yet.
    pub fn new(client: &'a Client) -> Self {
        Self { client, missing: [None; SOCKETS_MAX], count: 0, any: false }
    }

    /// Adds what is under way to a socket, in which a call has just found nothing.
    pub fn add(&mut self, socket: Socket) {
        let client = self.client;
        let Some(slot) = client.slot(socket) else { return };
        let Some(way) = ByteFlow::into(slot) else { return };
        for (mark, what) in marks(client, socket, slot, way) {
            if let Some(place) = self.missing.get_mut(self.count) {
                *place = Some(MissingBytes { socket, mark, what });
                self.count += 1;
            }
        }
        // In this order: what is not missing is seen.
        self.any |= socket.readiness(client) & ARRIVED != 0;
    }

    /// Waits until something has arrived, or until the engine is gone or does nothing. False:
    /// nothing has.
    pub fn wait(&self) -> bool {
        self.any || self.count > 0 && self.wait_for_turns()
    }

    #[cold]
    fn wait_for_turns(&self) -> bool {
        let client = self.client;
        let missing = || self.missing.iter().flatten();
        let shards = client.shards();
        for _ in 0..if shards == 1 { ROUNDS } else { ROUNDS_OF_SHARDS } {
            client.await_turns();
            if missing().any(|it| it.socket.readiness(client) & ARRIVED != 0) {
                return true;
            }
        }
        missing().for_each(|it| it.mark.vain.store(it.what, Relaxed));
        false
    }
}

/// The marks of a way that lead to something missing, and how that is known.
fn marks<'a>(
    client: &'a Client,
    socket: Socket,
    slot: &'a Slot,
    way: ByteFlow,
) -> impl Iterator<Item = (&'a Mark, u64)> {
    (0..client.shards()).filter_map(move |shard| {
        let mark = client.region().mark(shard, way.number());
        let what = missing(client, socket, slot, way, mark.sender.load(Relaxed))?;
        (what != mark.vain.load(Relaxed)).then_some((mark, what))
    })
}

/// Names the last bytes that the sender in a mark has sent on a way, if they have not arrived.
fn missing(
    client: &Client,
    socket: Socket,
    slot: &Slot,
    way: ByteFlow,
    sender: u64,
) -> Option<u64> {
    if sender == 0 {
        return None;
    }
    let (number, generation) = (sender as u32 % SLOTS_MAX, (sender >> 32) as u32);
    if sender & TAGS != way.tag() {
        // Another way has the same mark.
        return None;
    }
    let whose = (sender & (2 * ENDED - 1)) << 32;
    if sender & ENDED != 0 {
        // A reader that knows of the end does not ask.
        return Some(whose | u64::from(generation));
    }
    let from = client.region().slot(number)?;
    if from.generation.load(Acquire) != generation {
        return None;
    }
    let end = from.tx_tail.load(Acquire);
    let is_missing = if way.kind == Kind::Stream {
        end != slot.rx_tail.load(Acquire)
    } else {
        let shards = client.shards();
        let is_elsewhere = shard_of(number, shards) != shard_of(socket.slot, shards);
        is_elsewhere || end != from.tx_head.load(Acquire)
    };
    is_missing.then_some(whose | u64::from(end))
}

impl Client {
    /// Waits for what programs of the run have sent to a socket. For a call that has found nothing
    /// there, and would say so without a wait. True: look again.
    pub fn await_senders(&self, socket: Socket) -> bool {
        // As a rule there is nothing.
        let Some(slot) = self.slot(socket) else { return false };
        let Some(way) = ByteFlow::into(slot) else { return false };
        if marks(self, socket, slot, way).next().is_none() && socket.readiness(self) & ARRIVED == 0
        {
            return false;
        }
        let mut under_way = UnderWay::new(self);
        under_way.add(socket);
        under_way.wait()
    }

    /// [`Self::socket_command`], about the end of what a socket sends: `op` is SHUTDOWN or CLOSE.
    ///
    /// Waits for an end that the peer has sent before, as [`Self::await_senders`] does. Otherwise
    /// the engine might take both commands in one turn, so that both ends would close at once and
    /// go to TIME-WAIT. On Linux only the end that closes first does.
    pub fn tell_end(&self, socket: Socket, op: u32, a: u32) {
        // Afterwards the slot may be another socket's.
        let way = self.slot(socket).and_then(ByteFlow::out_of);
        if way.is_some() {
            self.await_senders(socket);
        }
        self.socket_command(socket, op, a, 0);
        if let Some(way) = way {
            self.mark(socket, way, ENDED);
        }
    }

    /// After bytes of a socket were published: tells the engine if it does not know, and their
    /// reader where to look.
    #[inline]
    pub(crate) fn tell_bytes(&self, socket: Socket, tell: bool, way: Option<ByteFlow>) {
        if tell {
            self.socket_command(socket, op::TX, 0, 0);
        }
        if let Some(way) = way {
            self.mark(socket, way, 0);
        }
    }

    #[inline]
    fn mark(&self, socket: Socket, way: ByteFlow, bits: u64) {
        let shard = shard_of(socket.slot, self.shards());
        let mark = self.region().mark(shard, way.number());
        let sender = u64::from(socket.generation) << 32 | way.tag() | u64::from(socket.slot) | bits;
        if mark.sender.load(Relaxed) != sender {
            mark.sender.store(sender, Relaxed);
        }
    }

    /// Waits for the end of a turn of each shard that begins now.
    pub(crate) fn await_turns(&self) {
        (0..self.shards()).for_each(|shard| self.await_turn(shard));
    }

    /// Waits for the end of a turn of a shard that begins now.
    fn await_turn(&self, shard: u32) {
        let status = self.status(shard);
        let due = status.due();
        let is_over = || !status.is_due_still(due) || self.is_dead();
        if let Some(driver) = self.driver() {
            if let Some(mut driver_lock) = driver.take(Who::Waits) {
                for _ in 0..TURNS {
                    if driver_lock.turn(None, is_over) == Turned::Ended || is_over() {
                        break;
                    }
                }
                return;
            }
        } else if self.processors() > 1 {
            for _ in 0..SPINS {
                if is_over() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        // The sender has rung, but an engine that has taken the command may sleep since.
        self.ring_shard(shard);
        let deadline = Deadline::after(PATIENCE);
        let mut yields = 0;
        while !is_over() && (yields < YIELDS_MIN || !deadline.left().is_zero()) {
            sched_yield();
            yields += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_that_are_near_each_other_have_marks_of_their_own() {
        let numbers: std::collections::BTreeSet<_> = [
            ByteFlow::new(Kind::Stream, 80, 40_000),
            ByteFlow::new(Kind::Stream, 40_000, 80),
            ByteFlow::new(Kind::Datagram, 80, 0),
            ByteFlow::new(Kind::Datagram, 40_000, 0),
        ]
        .into_iter()
        .chain((1..64).map(|n| ByteFlow::new(Kind::Stream, 80, 40_000 + n)))
        .map(ByteFlow::number)
        .collect();
        assert_eq!(numbers.len(), 67);
        assert!(numbers.iter().all(|&number| number < MARKS));
    }
}
