//! [`SlotEntry`], the engine's private state of one socket. Values that few sockets have are boxed,
//! to keep the entry small.

use std::collections::VecDeque;

use towpath_ring::{EngineRecv, EngineSend};
use towpath_shm::layout::Kind;
use towpath_stack::{DatagramError, ListenerName, SocketId};
use towpath_tcp::{CongestionKind, FastOpenKeys, Instant};

use super::holders::Holders;
use super::stamping::{DatagramStamps, Stamp, StreamStamps};

/// The engine's private state of a socket. Every connection has one, so rarely used values are in
/// boxes.
#[derive(Debug)]
pub(crate) struct SlotEntry {
    pub generation: u32,
    /// The socket's id in the network stack. `None` after the stack has closed the socket.
    pub id: Option<SocketId>,
    /// Number of `Closed` events of the stack to ignore. Each belongs to an earlier socket of the
    /// stack that was replaced while this slot was in use.
    pub former: u32,
    pub kind: Kind,
    /// Address family of the socket: [`AF_INET`] or [`AF_INET6`].
    pub family: u32,
    /// Status [`flags`] of the socket. Changes are published to programs at the latest at the end
    /// of the event loop's iteration.
    pub flags: u32,
    /// Processes that have a descriptor of the socket. While a connection waits in an accept queue,
    /// its listener instead.
    pub holders: Holders,
    /// [`event`] bits of which programs are notified at the end of the current iteration of the
    /// event loop.
    pub news: u8,
    /// Whether a program has written invalid positions or lengths to the shared slot. The engine
    /// has then reset the socket, and ignores further writes.
    pub hostile: bool,
    /// Whether all processes have closed the socket, while the stack still closes its connection.
    pub closing: bool,
    /// Whether the slot is in the queue of the [sweep](crate::shard::sockets::queues::Sweep), which
    /// frees memory of idle sockets.
    pub swept: bool,
    /// FIFOs and state of a listener or datagram socket. For these, the stack has no buffers.
    pub owned: Option<Box<Owned>>,
    rare: Option<Box<Rare>>,
}

const _: () = assert!(size_of::<Option<SlotEntry>>() <= 72);

/// Value of SO_MAX_PACING_RATE that means no limit, as on Linux.
pub(crate) const UNPACED: u64 = u64::MAX;

/// Options that a program has set, and temporary states of a socket. Most sockets have only default
/// values, and allocate no `Rare`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rare {
    /// Value of SO_RCVBUF in bytes, doubled as on Linux. 0: the size is autotuned.
    pub rcvbuf: u32,
    /// Value of SO_SNDBUF in bytes, doubled as on Linux. 0: the size is autotuned.
    pub sndbuf: u32,
    /// Value of TCP_WINDOW_CLAMP in bytes. 0: no limit.
    pub window_clamp: u32,
    /// Whether IP_FREEBIND is set: the socket may be bound to an address that the stack does not
    /// have.
    pub free_bind: bool,
    /// Value of IP_LOCAL_PORT_RANGE: first and last port that may be chosen automatically. 0: no
    /// bound.
    pub local_ports: (u16, u16),
    /// Value of SO_MAX_PACING_RATE in bytes per second. [`UNPACED`]: no limit.
    pub max_pacing_rate: u64,
    /// Value of TCP_SYNCNT, the maximum number of SYN retransmissions. 0: the option was not set.
    pub syn_retries: u8,
    /// Value of IP_MINTTL, the minimum TTL of received IPv4 packets. 0: any TTL.
    pub min_ttl: u8,
    /// Value of IPV6_MINHOPCOUNT, the minimum hop limit of received IPv6 packets. 0: any hop limit.
    pub min_hops: u8,
    /// Value of TCP_MAXSEG in bytes. 0: the MSS depends on the path only.
    pub mss_max: u16,
    /// Value of TCP_LINGER2, the maximum time in FIN-WAIT-2 in seconds. 0: the default applies.
    pub linger2_s: i8,
    /// Whether TCP_SAVE_SYN is set: connections keep the headers of their SYN.
    pub save_syn: bool,
    /// Value of TCP_FASTOPEN, the maximum number of pending Fast Open connections of a listener. 0:
    /// disabled.
    pub fast_open_queue: u32,
    /// TCP_FASTOPEN_KEY; `None` if it was not set.
    pub fast_open_keys: Option<FastOpenKeys>,
    /// Interface to which SO_BINDTODEVICE binds the socket, by 1-based number. 0: not bound to an
    /// interface.
    pub device: u32,
    /// Value of a listener's TCP_DEFER_ACCEPT in seconds. 0: connections can be accepted without
    /// bytes.
    pub defer_accept_s: u32,
    /// Congestion control algorithm that TCP_CONGESTION has set. `None`: the option was not set.
    pub congestion: Option<CongestionKind>,
    pub waits: SlotWaits,
    /// Whether SO_LOCK_FILTER is set, so that the socket's filter cannot be changed.
    pub filter_locked: bool,
    /// Numbers of two sends with MSG_ZEROCOPY: the first one whose completion was not reported, and
    /// the next one.
    pub zero_copied: (u32, u32),
    /// Value of SO_INCOMING_CPU, and the number of packets that the socket had received when the
    /// option was set. `None` if the option was not set.
    pub processor: Option<(i32, u32)>,
    /// Transmit timestamps of a stream (SO_TIMESTAMPING). `None` if none are requested or pending.
    pub stamps: Option<StreamStamps>,
}

/// Deadlines of a socket that waits to be received by a process (SCM_RIGHTS), or for its first
/// bytes (TCP_DEFER_ACCEPT).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotWaits {
    /// Time at which a socket in flight (SCM_RIGHTS) is closed unless a process receives it. `None`
    /// if the socket is not in flight.
    pub in_flight_until: Option<Instant>,
    /// Time at which a connection with TCP_DEFER_ACCEPT can be accepted even if no bytes have
    /// arrived. `None` if the accept is not deferred.
    pub deferred: Option<Instant>,
    /// Listener in a peer shard to which the connection is offered when it can be accepted.
    pub to_offer: Option<ListenerName>,
}

/// Values of a socket on which no option was set.
static ORDINARY: Rare = Rare {
    rcvbuf: 0,
    sndbuf: 0,
    window_clamp: 0,
    free_bind: false,
    local_ports: (0, 0),
    max_pacing_rate: UNPACED,
    syn_retries: 0,
    min_ttl: 0,
    min_hops: 0,
    mss_max: 0,
    linger2_s: 0,
    save_syn: false,
    fast_open_queue: 0,
    fast_open_keys: None,
    device: 0,
    defer_accept_s: 0,
    congestion: None,
    waits: SlotWaits { in_flight_until: None, deferred: None, to_offer: None },
    filter_locked: false,
    zero_copied: (0, 0),
    processor: None,
    stamps: None,
};

impl Rare {
    /// Returns the size of the receive buffer in bytes that a socket option has set. 0: the size is
    /// autotuned.
    pub fn recv_fixed(&self) -> u32 {
        match (self.rcvbuf, self.window_clamp) {
            (0, other) | (other, 0) => other,
            (rcvbuf, clamp) => rcvbuf.min(clamp),
        }
    }
}

/// FIFOs of a listener or datagram socket, with the state of their contents.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// FIFO with received datagrams. For a listener, [`towpath_shm::layout::AcceptRecord`]s about
    /// connections in its accept queue.
    pub rx: Option<EngineRecv>,
    /// FIFO with datagrams to send.
    pub tx: Option<EngineSend>,
    /// Number of received datagrams that were dropped because the FIFO `rx` was full, or by a
    /// socket filter.
    pub drops: u64,
    /// Error reports that the program has not read yet (IP_RECVERR), oldest first.
    pub errors: VecDeque<DatagramError>,
    /// Transmit timestamps that the program has not read yet, oldest first.
    pub sent: VecDeque<Stamp>,
    /// Kinds of transmit timestamps that the program has requested by SO_TIMESTAMPING.
    pub stamping: DatagramStamps,
    /// Whether the slot is in the queue `to_send` ([`crate::shard::sockets::queues`]).
    pub backlogged: bool,
    /// Number of bytes at the start of `tx` to which packets refer. The program must not overwrite
    /// them until the packets are sent.
    pub tx_lent: u32,
    /// Connections of the listener that no process has opened yet, oldest first: those in the
    /// accept queue, and those just removed from it. Other shards may run some of them.
    pub children: VecDeque<Child>,
    /// Backlog that the program has passed to listen(2). As on Linux, one more connection can wait
    /// in the accept queue.
    pub backlog: u32,
}

/// A connection in an accept queue, or removed from it but not claimed by a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub slot: u32,
    pub generation: u32,
    /// Position in the listener's FIFO that follows the record of the connection.
    pub end: u32,
    /// Whether a program has removed the record from the accept queue. The connection is reset
    /// unless a process claims it in time.
    pub orphaned: bool,
}

impl SlotEntry {
    pub(super) fn new(generation: u32, kind: Kind, family: u32) -> Self {
        Self {
            generation,
            id: None,
            former: 0,
            kind,
            family,
            flags: 0,
            holders: Holders::None,
            news: 0,
            hostile: false,
            closing: false,
            swept: false,
            owned: None,
            rare: None,
        }
    }

    /// Returns the options and states that few sockets have. Most have the default values.
    pub fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&ORDINARY)
    }

    /// Changes options and states that few sockets have. Frees the box if all of them have default
    /// values.
    pub fn set_rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_else(|| Box::new(ORDINARY.clone()));
        change(&mut rare);
        self.rare = Some(rare).filter(|rare| **rare != ORDINARY);
    }

    /// Returns the slot and generation of a connection's listener, if no process has claimed the
    /// connection yet.
    pub fn unclaimed(&self) -> Option<(u32, u32)> {
        match self.holders {
            Holders::Unclaimed(listener, generation) => Some((listener, generation)),
            _ => None,
        }
    }

    /// Returns the FIFOs of a listener or datagram socket, which are created when first needed.
    pub fn owned(&mut self) -> &mut Owned {
        self.owned.get_or_insert_default()
    }

    pub fn is_datagram(&self) -> bool {
        matches!(self.kind, Kind::Datagram | Kind::Echo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::sockets::slots::AF_INET;

    #[test]
    fn what_is_rare_is_kept_while_it_differs() {
        let mut entry = SlotEntry::new(1, Kind::Stream, AF_INET);
        entry.set_rare(|rare| rare.waits.in_flight_until = None);
        assert!(entry.rare.is_none());
        entry.set_rare(|rare| rare.sndbuf = 9);
        assert_eq!(entry.rare().sndbuf, 9);
        entry.set_rare(|rare| rare.sndbuf = 0);
        assert!(entry.rare.is_none());
    }
}
