//! The engine's state of one socket. Values that few sockets have are in boxes.

use std::collections::VecDeque;

use towpath_ring::{EngineRecv, EngineSend};
use towpath_shm::layout::Kind;
use towpath_stack::{DatagramError, ListenerName, SocketId};
use towpath_tcp::{CongestionKind, Instant};

use super::holders::Holders;
use super::stamping::{DatagramStamps, Stamp, StreamStamps};

/// A socket's entry. Every connection has one, so rarely used values are boxed.
#[derive(Debug)]
pub(crate) struct SlotEntry {
    pub generation: u32,
    /// Socket in the stack; `None` after the stack has closed it.
    pub id: Option<SocketId>,
    /// Number of this slot's earlier stack sockets whose `Closed` event is pending. The next
    /// `former` `Closed` events of the slot belong to those sockets and are ignored.
    pub former: u32,
    pub kind: Kind,
    /// [`AF_INET`] or [`AF_INET6`].
    pub family: u32,
    /// [`flags`] that are published, or will be at the end of the turn.
    pub flags: u32,
    /// Processes that have a descriptor of the socket, or the listener whose queue contains it.
    pub holders: Holders,
    /// [`event`] bits that are sent to the programs at the end of the turn.
    pub news: u8,
    /// Whether a program wrote invalid positions or lengths. The socket was then reset, and the
    /// words of its slot are ignored.
    pub hostile: bool,
    /// Whether no process holds the socket, and the stack is still finishing it.
    pub closing: bool,
    /// Whether the slot is in the queue of the [sweep](crate::shard::sockets::queues::Sweep).
    pub swept: bool,
    /// FIFOs and state of listeners and datagram sockets, which the stack does not keep.
    pub owned: Option<Box<Owned>>,
    rare: Option<Box<Rare>>,
}

const _: () = assert!(size_of::<Option<SlotEntry>>() <= 72);

/// Value of SO_MAX_PACING_RATE without a limit, as on Linux.
pub(crate) const UNPACED: u64 = u64::MAX;

/// Options that were set, and temporary states. Most sockets have defaults only, and need no box
/// for this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rare {
    /// SO_RCVBUF, doubled as Linux does; 0: autotuned.
    pub rcvbuf: u32,
    /// SO_SNDBUF, doubled as Linux does; 0: autotuned.
    pub sndbuf: u32,
    /// TCP_WINDOW_CLAMP; 0: none.
    pub window_clamp: u32,
    /// IP_FREEBIND.
    pub free_bind: bool,
    /// IP_LOCAL_PORT_RANGE: first and last port to choose from; 0: no bound.
    pub local_ports: (u16, u16),
    /// SO_MAX_PACING_RATE in bytes per second; [`UNPACED`]: no bound.
    pub max_pacing_rate: u64,
    /// TCP_SYNCNT; 0: never set.
    pub syn_retries: u8,
    /// IP_MINTTL: minimum TTL of received IPv4 packets; 0: any.
    pub min_ttl: u8,
    /// IPV6_MINHOPCOUNT: minimum hop limit of received IPv6 packets; 0: any.
    pub min_hops: u8,
    /// TCP_MAXSEG; 0: the path's MSS.
    pub mss_max: u16,
    /// TCP_LINGER2; 0: the default.
    pub linger2_s: i8,
    /// TCP_SAVE_SYN.
    pub save_syn: bool,
    /// TCP_FASTOPEN; 0: off.
    pub fast_open_queue: u32,
    /// SO_BINDTODEVICE as 1-based number of the interface; 0: none.
    pub device: u32,
    /// TCP_DEFER_ACCEPT of a listener; 0: off.
    pub defer_accept_s: u32,
    /// TCP_CONGESTION; `None` if it was not set.
    pub congestion: Option<CongestionKind>,
    pub waits: SlotWaits,
    /// SO_LOCK_FILTER.
    pub filter_locked: bool,
    /// MSG_ZEROCOPY: numbers of the first unreported send and of the next send.
    pub zero_copied: (u32, u32),
    /// SO_INCOMING_CPU: its value, and the count of received packets when it was set.
    pub processor: Option<(i32, u32)>,
    /// SO_TIMESTAMPING of a stream, as far as it is about sent bytes.
    pub stamps: Option<StreamStamps>,
}

/// Deadlines of a socket that waits for a program or for bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotWaits {
    /// Time at which a socket in flight, which no process holds, is closed unless a process
    /// receives it.
    pub in_flight_until: Option<Instant>,
    /// Time at which a connection deferred by TCP_DEFER_ACCEPT is accepted without bytes.
    pub deferred: Option<Instant>,
    /// Listener in a peer shard to which the deferred connection is offered later.
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
    /// Returns the receive buffer's size in bytes that a socket option set; 0: autotuned.
    pub fn recv_fixed(&self) -> u32 {
        match (self.rcvbuf, self.window_clamp) {
            (0, other) | (other, 0) => other,
            (rcvbuf, clamp) => rcvbuf.min(clamp),
        }
    }
}

/// FIFOs of listeners and datagram sockets, and the state that belongs to them.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// Received datagrams, or [`towpath_shm::layout::AcceptRecord`]s of a listener.
    pub rx: Option<EngineRecv>,
    /// Datagrams to send.
    pub tx: Option<EngineSend>,
    /// Number of datagrams dropped because `rx` was full, or by a filter.
    pub drops: u64,
    /// Reports that the program has not read (IP_RECVERR), oldest first.
    pub errors: VecDeque<DatagramError>,
    /// Transmit timestamps that the program has not read, oldest first.
    pub sent: VecDeque<Stamp>,
    /// Transmit part of SO_TIMESTAMPING.
    pub stamping: DatagramStamps,
    /// Whether the slot is in `to_send` ([`crate::shard::sockets::queues`]).
    pub backlogged: bool,
    /// Bytes at the front of `tx` to which packets refer. The program must not overwrite these
    /// bytes until the packets are sent.
    pub tx_lent: u32,
    /// Connections whose records were pushed to `rx` and that no process has claimed, oldest first.
    /// Their slots may be in peer shards.
    pub children: VecDeque<Child>,
    /// Backlog of listen(2). As on Linux, the queue may have one connection more.
    pub backlog: u32,
}

/// A connection in an accept queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub slot: u32,
    pub generation: u32,
    /// Position in the listener's FIFO after the connection's record.
    pub end: u32,
    /// Whether the program has popped the record. The connection is reset unless a process claims
    /// it in time.
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

    /// Returns the options and states that few sockets have.
    pub fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&ORDINARY)
    }

    /// Changes rarely used values. The box is freed when all have their defaults again.
    pub fn set_rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_else(|| Box::new(ORDINARY.clone()));
        change(&mut rare);
        self.rare = Some(rare).filter(|rare| **rare != ORDINARY);
    }

    /// Returns the listener's slot and generation if no process has claimed the connection.
    pub fn unclaimed(&self) -> Option<(u32, u32)> {
        match self.holders {
            Holders::Unclaimed(listener, generation) => Some((listener, generation)),
            _ => None,
        }
    }

    /// Returns the engine's part of the socket, created at first use.
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
