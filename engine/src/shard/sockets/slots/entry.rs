//! The engine's state of one socket: in the table what all have, in boxes what few have.

use std::collections::VecDeque;

use towpath_ring::{EngineRecv, EngineSend};
use towpath_shm::layout::Kind;
use towpath_stack::{DatagramError, ListenerName, SocketId};
use towpath_tcp::{CongestionKind, Instant};

use super::holders::Holders;

/// A socket's entry. Budget: each connection has one, so values that few sockets have are in boxes.
#[derive(Debug)]
pub(crate) struct SlotEntry {
    pub generation: u32,
    /// In the stack; None when the stack has let go of it.
    pub id: Option<SocketId>,
    /// Sockets of the stack that `id` has replaced under this slot, and whose `Closed` has not come
    /// yet. The next `former` events `Closed` for this slot are about those.
    pub former: u32,
    pub kind: Kind,
    /// [`AF_INET`] or [`AF_INET6`].
    pub family: u32,
    /// [`flags`], as published.
    pub flags: u32,
    /// Processes that have a descriptor for it, or whose queue it is in.
    pub holders: Holders,
    /// [`event`] bits that programs are told of at the end of the turn.
    pub news: u8,
    /// A program wrote impossible positions or lengths into its FIFOs: the socket is reset, and
    /// nothing that its slot says is looked at any more.
    pub hostile: bool,
    /// No process has the socket any more; it waits for the stack to finish.
    pub closing: bool,
    /// The slot is in the queue of the [sweep](crate::shard::sockets::queues::Sweep).
    pub swept: bool,
    /// State that the stack does not hold for us: of listeners and datagram sockets.
    pub owned: Option<Box<Owned>>,
    rare: Option<Box<Rare>>,
}

const _: () = assert!(size_of::<Option<SlotEntry>>() <= 72);

/// SO_MAX_PACING_RATE of a socket without a bound, as Linux has it.
pub(crate) const UNPACED: u64 = u64::MAX;

/// Options that were set, and states that a socket is in for a while. Most sockets have none of it,
/// and no box for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rare {
    /// SO_RCVBUF and SO_SNDBUF, doubled as Linux does; 0: autotuned.
    pub rcvbuf: u32,
    /// See `rcvbuf`.
    pub sndbuf: u32,
    /// TCP_WINDOW_CLAMP; 0: none.
    pub window_clamp: u32,
    /// IP_FREEBIND.
    pub free_bind: bool,
    /// IP_LOCAL_PORT_RANGE: first and last port to be chosen; 0: no bound.
    pub local_ports: (u16, u16),
    /// SO_MAX_PACING_RATE; [`UNPACED`]: no bound.
    pub max_pacing_rate: u64,
    /// TCP_SYNCNT; 0: never set.
    pub syn_retries: u8,
    /// IP_MINTTL and IPV6_MINHOPCOUNT.
    pub min_ttl: u8,
    /// See `min_ttl`.
    pub min_hops: u8,
    /// TCP_MAXSEG; 0: what the path carries.
    pub mss_max: u16,
    /// TCP_LINGER2; 0: the default.
    pub linger2_s: i8,
    /// TCP_SAVE_SYN.
    pub save_syn: bool,
    /// TCP_FASTOPEN; 0: off.
    pub fast_open_queue: u32,
    /// SO_BINDTODEVICE as an interface's number; 0: none.
    pub device: u32,
    /// TCP_DEFER_ACCEPT of a listener; 0: off.
    pub defer_accept_s: u32,
    /// TCP_CONGESTION, if it was set.
    pub congestion: Option<CongestionKind>,
    pub waits: Waits,
    /// SO_LOCK_FILTER.
    pub filter_locked: bool,
    /// MSG_ZEROCOPY: number of the first send that was not reported, and of the next one.
    pub zero_copied: (u32, u32),
    /// SO_INCOMING_CPU as it was set, and how much had come then.
    pub processor: Option<(i32, u32)>,
}

/// Deadlines of a socket that waits for a program or for bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waits {
    /// No process holds the socket, but it lies in a message: if none adopts it until then it is
    /// closed.
    pub in_flight_until: Option<Instant>,
    /// An accepted connection that waits for its first bytes, until then.
    pub deferred: Option<Instant>,
    /// The listener that it is offered to then, when that is in another shard.
    pub to_offer: Option<ListenerName>,
}

/// A socket on which nothing was set.
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
    waits: Waits { in_flight_until: None, deferred: None, to_offer: None },
    filter_locked: false,
    zero_copied: (0, 0),
    processor: None,
};

impl Rare {
    /// The size that options give the receive buffer; 0: autotuned.
    pub fn recv_fixed(&self) -> u32 {
        match (self.rcvbuf, self.window_clamp) {
            (0, other) | (other, 0) => other,
            (rcvbuf, clamp) => rcvbuf.min(clamp),
        }
    }
}

/// FIFOs that the engine itself works on.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// [`towpath_shm::layout::AcceptRecord`]s or datagrams.
    pub rx: Option<EngineRecv>,
    /// Datagrams.
    pub tx: Option<EngineSend>,
    /// Datagrams that found no room in `rx`, or that a filter dropped.
    pub drops: u64,
    /// Reports that the program has not read (IP_RECVERR), oldest first.
    pub errors: VecDeque<DatagramError>,
    /// When datagrams were sent that the program wants to know of, oldest first.
    pub sent: VecDeque<SentAt>,
    /// SO_TIMESTAMPING, as far as sending is concerned.
    pub stamping: Stamping,
    /// The slot is in `to_send` ([`crate::shard::sockets::queues`]).
    pub backlogged: bool,
    /// Bytes of `tx` that are in packets and not to be overwritten before these are out.
    pub tx_lent: u32,
    /// Connections that were put into `rx` and not claimed, oldest first. Their slots may be in
    /// other shards.
    pub children: VecDeque<Child>,
    /// As many may wait there, and one more.
    pub backlog: u32,
}

/// SO_TIMESTAMPING: reports of sent datagrams that a program wants.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stamping {
    /// SOF_TIMESTAMPING_TX_SOFTWARE.
    pub on: bool,
    /// SOF_TIMESTAMPING_OPT_ID: the number of the next one.
    pub next_id: Option<u32>,
}

/// When a datagram was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentAt {
    /// Its number; 0 where the program did not ask for numbers.
    pub id: u32,
    pub unix_ns: u64,
}

/// A connection in an accept queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub slot: u32,
    pub generation: u32,
    /// Position in the listener's FIFO behind its record.
    pub end: u32,
    /// The connection was popped, and is reset if no process claims it in time.
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

    /// Values that few sockets change.
    pub fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&ORDINARY)
    }

    /// Changes what few sockets have; memory for it is there while there is something to keep.
    pub fn set_rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_else(|| Box::new(ORDINARY.clone()));
        change(&mut rare);
        self.rare = Some(rare).filter(|rare| **rare != ORDINARY);
    }

    /// The listener's slot and generation, of a connection that no program has claimed.
    pub fn unclaimed(&self) -> Option<(u32, u32)> {
        match self.holders {
            Holders::Unclaimed(listener, generation) => Some((listener, generation)),
            _ => None,
        }
    }

    /// Its own FIFOs, made when first needed.
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
