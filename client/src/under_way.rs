//! Waits for bytes and datagrams that another program using the same engine (network stack) has
//! sent, and that have not arrived yet.
//!
//! On Linux, bytes over loopback arrive before send(2) returns. Here they arrive in the next turn
//! (iteration) of the engine's event loop. A blocking call sees no difference. A nonblocking call
//! must not return EAGAIN if bytes were sent before, so it waits for a turn. To detect this, each
//! flow has a record in shared memory of its last sender, called mark. Only a reader without unread
//! bytes checks the mark.
//!
//! ```text
//!   sender:  bytes ─► command ─► mark of the flow = the sender
//!   reader:  no bytes ─► mark of the flow ─► has the sender sent more than arrived? ─ no ─► EAGAIN
//!                                                   │ yes
//!                                                   └─► wait for a turn ─► look again
//! ```
//!
//! A flow is one direction of a connection, identified by its ports, or the port that datagrams are
//! sent to. The mark of a flow rarely changes, so senders rarely write to it. The receive FIFO of a
//! stream counts the bytes that have arrived. Datagrams have been sent when the sender's transmit
//! FIFO has released them. With several shards (engine threads), they may then still be on the way
//! to another shard.
//!
//! The reader waits for a turn that begins after the wait (`Status::beat`), so that the turn
//! processes the sender's command. With several shards, it waits for more turns, because packets
//! may pass one further shard. If bytes do not arrive in these turns, they wait for something else,
//! such as a window. The reader then records the bytes in the mark, so that no reader waits for
//! them again. The engine does not use marks.
//!
//! Two flows may share a mark, and overwrite each other's sender. A reader may then return EAGAIN
//! too early.

use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use rustix::thread::sched_yield;
use towpath_shm::layout::{
    Kind, MARKS, Mark, RawAddr, SLOTS_MAX, Slot, flags, op, option_bit, shard_of,
};
use towpath_shm::spin::LOOKS;

use crate::driver::{Turned, Who};
use crate::socket::ready;
use crate::{Client, Deadline, Socket};

/// Maximum time for which a reader waits for an iteration of the engine's event loop, which
/// normally takes much less.
const PATIENCE: Duration = Duration::from_millis(100);
/// Minimum number of sched_yield(2) calls before a wait ends. If the machine was suspended,
/// [`PATIENCE`] may have passed although the engine has not run.
const YIELDS_MIN: u32 = 100;
/// Maximum number of iterations for which a reader runs the event loop of an engine in its own
/// process.
const TURNS: u32 = 4;
/// Number of iterations of the engine's event loop to wait for. A FIN is sent in the iteration
/// after the one that reads the SHUTDOWN or CLOSE command.
const ROUNDS: u32 = 2;
/// Number of iterations of the engine's event loop to wait for if the engine has several shards
/// (threads).
const ROUNDS_OF_SHARDS: u32 = 4;
/// Maximum number of sockets for which one call waits.
const SOCKETS_MAX: usize = 32;

/// Readiness bits of a socket with which a wait ends.
const ARRIVED: u32 = ready::IN | ready::RDHUP | ready::HUP | ready::ERR;

/// A direction of a connection, or all datagrams to one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteFlow {
    kind: Kind,
    /// Destination port and source port, packed in one word.
    ports: u32,
}

impl ByteFlow {
    fn new(kind: Kind, to: u16, from: u16) -> Self {
        Self { kind, ports: u32::from(to) << 16 | u32::from(from) }
    }

    /// Returns the flow of the bytes that a stream sends. `None` if its peer does not use the same
    /// engine.
    #[inline]
    pub fn out_of(slot: &Slot) -> Option<Self> {
        is_near_stream(slot).then(|| Self::new(Kind::Stream, slot.remote.port(), slot.local.port()))
    }

    /// Returns the flow of a datagram; `None` if its receiver cannot use the same engine. The
    /// receiver may use it if the engine has set `NEAR` on the socket. The same is true if the
    /// destination is a loopback, multicast or broadcast address, or the socket's own address.
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

    /// Returns the flow of the bytes or datagrams that a socket receives.
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

    /// Returns the index of the flow's mark, the word in shared memory that names the flow's last
    /// sender.
    fn number(self) -> u32 {
        self.hash() >> (u32::BITS - MARKS.ilog2())
    }

    /// Returns hash bits by which flows that share a mark (record of the last sender) are
    /// distinguished, except by rare coincidence.
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

/// Returns whether an address may be a multicast or broadcast address, so that this host receives
/// the datagram as well. With SO_BROADCAST, every IPv4 address may be a broadcast address, because
/// the prefix lengths of networks are not known here.
fn is_shared(slot: &Slot, to: &RawAddr) -> bool {
    let may_broadcast = || slot.option_bits.load(Relaxed) & option_bit::BROADCAST != 0;
    to.to_socket_addr().is_some_and(|to| match to.ip().to_canonical() {
        IpAddr::V4(v4) => v4.is_multicast() || may_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    })
}

/// Bit of a mark which records that the sender has shut down its send direction or closed the
/// socket. The bit is above those of the sender's slot number.
const ENDED: u64 = 1 << 31;

/// Mask of the bits in a mark that contain the tag of the flow.
const TAGS: u64 = ENDED - SLOTS_MAX as u64;
const _: () = assert!(SLOTS_MAX.is_power_of_two() && (SLOTS_MAX as u64) < ENDED);

/// Bytes that were sent to a socket and have not arrived yet.
#[derive(Debug, Clone, Copy)]
struct MissingBytes<'a> {
    socket: Socket,
    mark: &'a Mark,
    /// Identifies the bytes by their sender and end position, to record in [`Mark::vain`] that a
    /// wait for them failed.
    what: u64,
}

/// A call's wait for bytes and datagrams that were sent to its sockets but have not arrived yet.
#[derive(Debug)]
pub struct UnderWay<'a> {
    client: &'a Client,
    missing: [Option<MissingBytes<'a>>; SOCKETS_MAX],
    count: usize,
    /// Whether a socket has become ready since the call found it not ready.
    any: bool,
}

impl<'a> UnderWay<'a> {
    /// Creates a wait that covers no socket yet.
    pub fn new(client: &'a Client) -> Self {
        Self { client, missing: [None; SOCKETS_MAX], count: 0, any: false }
    }

    /// Adds a socket that a call has just found not ready.
    pub fn add(&mut self, socket: Socket) {
        let client = self.client;
        let Some(slot) = client.slot(socket) else { return };
        let Some(flow) = ByteFlow::into(slot) else { return };
        for (mark, what) in marks(client, socket, slot, flow) {
            if let Some(place) = self.missing.get_mut(self.count) {
                *place = Some(MissingBytes { socket, mark, what });
                self.count += 1;
            }
        }
        // Check the readiness after the marks, so that bytes that have arrived in between are
        // noticed.
        self.any |= socket.readiness(client) & ARRIVED != 0;
    }

    /// Waits until bytes arrive, the engine ends, or the maximum number of turns has passed.
    /// Returns whether bytes have arrived.
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

/// Returns the marks (records of the last sender) of a flow whose senders have sent bytes that have
/// not arrived yet. Each is returned with the value for [`Mark::vain`].
fn marks<'a>(
    client: &'a Client,
    socket: Socket,
    slot: &'a Slot,
    flow: ByteFlow,
) -> impl Iterator<Item = (&'a Mark, u64)> {
    (0..client.shards()).filter_map(move |shard| {
        let mark = client.region().mark(shard, flow.number());
        let what = missing(client, socket, slot, flow, mark.sender.load(Relaxed))?;
        (what != mark.vain.load(Relaxed)).then_some((mark, what))
    })
}

/// Returns a value that identifies the last bytes of the sender recorded in a mark. `None` if these
/// bytes have arrived.
fn missing(
    client: &Client,
    socket: Socket,
    slot: &Slot,
    flow: ByteFlow,
    sender: u64,
) -> Option<u64> {
    if sender == 0 {
        return None;
    }
    let (number, generation) = (sender as u32 % SLOTS_MAX, (sender >> 32) as u32);
    if sender & TAGS != flow.tag() {
        // The tags differ, so the mark was written for a different flow.
        return None;
    }
    let whose = (sender & (2 * ENDED - 1)) << 32;
    if sender & ENDED != 0 {
        // The sender has shut down or closed, but its FIN has not arrived: otherwise the reader
        // would have received the end of file.
        return Some(whose | u64::from(generation));
    }
    let from = client.region().slot(number)?;
    if from.generation.load(Acquire) != generation {
        return None;
    }
    let end = from.tx_tail.load(Acquire);
    let is_missing = if flow.kind == Kind::Stream {
        end != slot.rx_tail.load(Acquire)
    } else {
        let shards = client.shards();
        let is_elsewhere = shard_of(number, shards) != shard_of(socket.slot, shards);
        is_elsewhere || end != from.tx_head.load(Acquire)
    };
    is_missing.then_some(whose | u64::from(end))
}

impl Client {
    /// Waits for bytes that other programs using the same engine have sent to a socket, and that
    /// have not arrived yet. Called before a call returns EAGAIN. Returns whether the call should
    /// try again.
    pub fn await_senders(&self, socket: Socket) -> bool {
        // Return early if no bytes are missing, which is the usual case.
        let Some(slot) = self.slot(socket) else { return false };
        let Some(flow) = ByteFlow::into(slot) else { return false };
        if marks(self, socket, slot, flow).next().is_none() && socket.readiness(self) & ARRIVED == 0
        {
            return false;
        }
        let mut under_way = UnderWay::new(self);
        under_way.add(socket);
        under_way.wait()
    }

    /// Sends the engine the command SHUTDOWN or CLOSE (`op`), after which the socket sends no more
    /// bytes.
    ///
    /// First waits for a FIN that a peer using the same engine has already sent. Otherwise the
    /// engine might process both commands in one iteration of its event loop. Both sockets would
    /// then close simultaneously and enter TIME-WAIT. On Linux, only the socket that closes first
    /// does.
    pub fn tell_end(&self, socket: Socket, op: u32, a: u32) {
        // Determine the flow before the wait, because afterwards the slot may belong to a new
        // socket.
        let flow = self.slot(socket).and_then(ByteFlow::out_of);
        if flow.is_some() {
            self.await_senders(socket);
        }
        self.socket_command(socket, op, a, 0);
        if let Some(flow) = flow {
            self.mark(socket, flow, ENDED);
        }
    }

    /// Stores the sender of published bytes in the mark of their flow, for the reader. If `tell` is
    /// set, notifies the engine of the bytes.
    #[inline]
    pub(crate) fn tell_bytes(&self, socket: Socket, tell: bool, flow: Option<ByteFlow>) {
        if tell {
            self.socket_command(socket, op::TX, 0, 0);
        }
        if let Some(flow) = flow {
            self.mark(socket, flow, 0);
        }
    }

    #[inline]
    fn mark(&self, socket: Socket, flow: ByteFlow, bits: u64) {
        let shard = shard_of(socket.slot, self.shards());
        let mark = self.region().mark(shard, flow.number());
        let sender =
            u64::from(socket.generation) << 32 | flow.tag() | u64::from(socket.slot) | bits;
        if mark.sender.load(Relaxed) != sender {
            mark.sender.store(sender, Relaxed);
        }
    }

    /// Waits until the event loop of each shard (engine thread) has completed an iteration that
    /// began after this call.
    pub(crate) fn await_turns(&self) {
        (0..self.shards()).for_each(|shard| self.await_turn(shard));
    }

    /// Waits until the event loop of a shard (engine thread) has completed an iteration that began
    /// after this call.
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
            for _ in 0..LOOKS {
                if is_over() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        // Wake the shard (event loop): it may have processed the sender's command already, and
        // sleep again.
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
    fn similar_flows_have_different_marks() {
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
