//! Reports of an engine about itself.

use std::borrow::Cow;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

/// Most processes named with one socket: a listener may be shared by thousands.
pub const HOLDERS_SHOWN: usize = 32;

/// Counters by layer, each with its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Counters of the engine: turns, commands, processes that attached or were cut off.
    pub engine: Vec<(&'static str, u64)>,
    /// Counters of the socket layer: [`towpath_stack::Counters`].
    pub sockets: Vec<(&'static str, u64)>,
    /// Counters of the IP layer: [`towpath_stack::net::NetCounters`].
    pub net: Vec<(&'static str, u64)>,
    /// Lost packets by reason: [`towpath_stack::DropReason`].
    pub drops: Vec<(&'static str, u64)>,
}

impl Counters {
    /// Adds the registry's counters to those of the shards, which have a row for each.
    pub(crate) fn add_registry(&mut self, counters: &[(&'static str, u64)]) {
        for (name, value) in counters {
            if let Some((_, sum)) = self.engine.iter_mut().find(|(known, _)| known == name) {
                *sum += value;
            }
        }
    }

    /// Joins the counters of two shards: the sum of each, or the greater one where it is a maximum.
    pub(crate) fn add(&mut self, other: Self) {
        let each = [
            (&mut self.engine, other.engine),
            (&mut self.sockets, other.sockets),
            (&mut self.net, other.net),
            (&mut self.drops, other.drops),
        ];
        for (sums, others) in each {
            if sums.is_empty() {
                *sums = others;
                continue;
            }
            for ((name, sum), (other_name, other)) in sums.iter_mut().zip(others) {
                debug_assert_eq!(*name, other_name);
                *sum = if name.ends_with("_max") { other.max(*sum) } else { *sum + other };
            }
        }
    }
}

/// The result of [`crate::Engine::run`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// As they are after the last turn.
    pub counters: Counters,
    /// Bytes that were not delivered when the engine ended, and are lost: see [`Left::unsent`].
    /// Shards with threads of their own are not counted.
    pub unsent: u64,
}

/// Why an engine still runs that ends with its last program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Processes that are attached.
    pub processes: usize,
    /// Bytes not delivered, an end of a stream and a packet that waits each counted as one.
    pub unsent: u64,
}

/// A socket, for `towpath ss`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SocketEntry {
    /// `tcp`, `udp` or `icmp`.
    pub proto: &'static str,
    /// As `ss` names it: `LISTEN`, `ESTAB`, `UNCONN` ...
    pub state: &'static str,
    /// Unread bytes; connections to accept for a listener.
    pub recv_q: u32,
    /// Bytes not acknowledged; the backlog for a listener.
    pub send_q: u32,
    /// Bound or chosen address with its port, as text; None for a socket that has none yet.
    pub local: Option<String>,
    /// The peer's address, likewise; None without a peer.
    pub remote: Option<String>,
    /// Congestion window in segments; 0 when there is none.
    pub cwnd: u32,
    /// Smoothed round trip in microseconds (SRTT of RFC 6298); 0 before the first measurement.
    pub rtt_us: u32,
    /// Congestion control, by the name that TCP_CONGESTION has for it; None without a connection.
    pub congestion: Option<&'static str>,
    /// Further values of TCP about a connection.
    #[serde(flatten)]
    pub tcp: Option<TcpFigures>,
    /// Processes that hold it and have said which they are, as they say; at most [`HOLDERS_SHOWN`].
    pub pids: Vec<u32>,
    /// Bytes that its receive buffer may hold.
    pub recv_buffer: u32,
    /// Bytes that its send buffer may hold.
    pub send_buffer: u32,
    /// IPV6_V6ONLY.
    pub v6_only: bool,
    /// Name of the interface that it is bound to (SO_BINDTODEVICE).
    pub device: Option<String>,
    /// Index of the slot; [`u32::MAX`]: it is no socket (any more).
    pub slot: u32,
}

/// Figures of a connection, named as `ss -i` names them; the unit is in the name where it is not
/// bytes or segments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpFigures {
    /// Timestamps are used (RFC 7323).
    pub ts: bool,
    /// Selective acknowledgements are used (RFC 2018).
    pub sack: bool,
    /// Shift count of the peer's windows, 0 to 14 (RFC 7323 §2.2). None: windows are not scaled.
    pub snd_wscale: Option<u8>,
    /// Shift count of ours. None: windows are not scaled.
    pub rcv_wscale: Option<u8>,
    /// Retransmission timeout in force, its doublings included (RFC 6298).
    pub rto_us: u32,
    /// The timer that runs, as `ss -o` names it: `on`, `persist`, `keepalive` or `timewait`.
    pub timer: Option<Cow<'static, str>>,
    /// How long until it fires; 0 when none runs.
    pub timer_ms: u64,
    /// Doublings of the timeout in force.
    pub backoff: u8,
    /// RTTVAR of RFC 6298; 0 before the first measurement.
    pub rttvar_us: u32,
    /// Least round trip; 0 before the first.
    pub minrtt_us: u32,
    /// How long an ACK waits at most for data to go with.
    pub ato_us: u32,
    /// Payload of a full segment.
    pub mss: u32,
    /// Path MTU; 0: no route.
    pub pmtu: u32,
    /// Largest payload of a segment received.
    pub rcvmss: u32,
    /// The MSS that was announced.
    pub advmss: u32,
    /// Slow-start threshold in segments; None: none yet.
    pub ssthresh: Option<u32>,
    /// Payload sent, retransmissions included.
    pub bytes_sent: u64,
    /// The part of it that was sent before.
    pub bytes_retrans: u64,
    /// Payload that the peer acknowledged.
    pub bytes_acked: u64,
    /// Payload received in order, each byte once.
    pub bytes_received: u64,
    /// Segments sent, those without payload too, as the device cut them; wraps, as do the next
    /// three.
    pub segs_out: u32,
    /// Segments received, merged ones counted as the peer sent them.
    pub segs_in: u32,
    /// Segments sent with payload.
    pub data_segs_out: u32,
    /// Segments received with payload.
    pub data_segs_in: u32,
    /// Milliseconds since data was sent; `None`: never. So the next two.
    pub lastsnd_ms: Option<u64>,
    /// Milliseconds since data was received.
    pub lastrcv_ms: Option<u64>,
    /// Milliseconds since the last valid ACK (`tcpi_last_ack_recv`).
    pub lastack_ms: Option<u64>,
    /// Bytes a second that SO_MAX_PACING_RATE allows; None: any number.
    pub pacing_rate: Option<NonZeroU64>,
    /// Segments that the peer has.
    pub delivered: u32,
    /// Time with something to send.
    pub busy_ms: u64,
    /// Part of `busy_ms` that was limited by the peer's window.
    pub rwnd_limited_ms: u64,
    /// Part of `busy_ms` that was limited by the send buffer.
    pub sndbuf_limited_ms: u64,
    /// Segments in flight.
    pub unacked: u32,
    /// Segments in flight that were sent again.
    pub retrans: u32,
    /// Segments sent again in all.
    pub retrans_total: u32,
    /// Segments in flight that are deemed lost, whether they were sent again or not.
    pub lost: u32,
    /// Segments in flight that the peer has reported in SACK blocks (RFC 2018).
    pub sacked: u32,
    /// Bytes written and not sent.
    pub notsent: u32,
    /// Segments that arrived ahead of their turn.
    pub rcv_ooopack: u32,
    /// The peer's window.
    pub snd_wnd: u32,
    /// Ours.
    pub rcv_wnd: u32,
}

/// Counters of the engine itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EngineCounters {
    /// Turns of the loop.
    pub turns: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Threads that got shards from another one.
    pub threads: u64,
    /// Steps of some 100 ns that programs have caused: commands, holds, events, datagrams, looks at
    /// slots. A request counts as [`REQUEST`], a turn of the stack within another as
    /// [`STACK_TURN`].
    pub work: u64,
    /// Most of them in one turn.
    pub work_turn_max: u64,
    /// Commands of programs.
    pub commands: u64,
    /// Commands that made no sense, or were about sockets that are gone.
    pub commands_stale: u64,
    /// Requests of programs.
    pub requests: u64,
    /// Requests that waited until descriptors were closed.
    pub requests_waited: u64,
    /// Portions of CLONEs and HELLOs: more than there are of these when processes have many
    /// sockets.
    pub request_portions: u64,
    /// Processes that attached.
    pub attached: u64,
    /// Processes that could not be: too many, or no descriptors left for them.
    pub channels_refused: u64,
    /// Processes cut off because they broke the rules of the channel.
    pub hostile_channels: u64,
    /// Sockets reset because a program wrote impossible positions.
    pub hostile_sockets: u64,
    /// Locks of sockets that ended, taken away because too many were said to be one process's.
    pub locks_disbelieved: u64,
    /// Datagrams that could not be sent.
    pub datagrams_refused: u64,
    /// Spawned programs that did not attach: static or set-user-id ones.
    pub strangers: u64,
    /// Programs that processes said they execute, whose sockets are the kernel's.
    pub outsiders: u64,
    /// Connections that were taken off an accept queue and never claimed.
    pub unclaimed: u64,
    /// Times that a program had to wait for transmit memory.
    pub starved: u64,
    /// Times that bytes which the peer had acknowledged became room later, because a packet pointed
    /// to them.
    pub unpinned: u64,
    /// Tries to give a program transmit memory.
    pub memory_tries: u64,
    /// Times that a process came to hold a socket.
    pub holds_made: u64,
    /// Events put into rings.
    pub events: u64,
    /// Most of them in one turn.
    pub events_turn_max: u64,
    /// Times that threads asleep on a socket were woken, a system call each.
    pub wakes: u64,
    /// SIGURGs sent to owners of sockets.
    pub signals: u64,
    /// Slots looked at for lists of sockets.
    pub slots_listed: u64,
    /// Reports that found a full error queue.
    pub errors_lost: u64,
    /// Filters of sockets for which there was no memory.
    pub filters_refused: u64,
    /// Callbacks of the stack that cannot happen here.
    pub unexpected: u64,
}

/// A request in steps: it is copied, dealt with and answered, and its thread is woken.
pub(crate) const REQUEST: usize = 16;
/// A turn of the stack in steps: its budget, in packets.
pub(crate) const STACK_TURN: usize = 256;

impl EngineCounters {
    /// Counts steps of work.
    #[inline]
    pub fn work(&mut self, steps: usize) {
        self.work += steps as u64;
    }

    /// Names and values in a fixed order.
    pub fn list(&self) -> Vec<(&'static str, u64)> {
        let Self {
            turns,
            sleeps,
            threads,
            work,
            work_turn_max,
            commands,
            commands_stale,
            requests,
            requests_waited,
            request_portions,
            attached,
            channels_refused,
            hostile_channels,
            hostile_sockets,
            locks_disbelieved,
            datagrams_refused,
            strangers,
            outsiders,
            unclaimed,
            starved,
            unpinned,
            memory_tries,
            holds_made,
            events,
            events_turn_max,
            wakes,
            signals,
            slots_listed,
            errors_lost,
            filters_refused,
            unexpected,
        } = *self;
        vec![
            ("turns", turns),
            ("sleeps", sleeps),
            ("threads", threads),
            ("work", work),
            ("work_turn_max", work_turn_max),
            ("commands", commands),
            ("commands_stale", commands_stale),
            ("requests", requests),
            ("requests_waited", requests_waited),
            ("request_portions", request_portions),
            ("attached", attached),
            ("channels_refused", channels_refused),
            ("hostile_channels", hostile_channels),
            ("hostile_sockets", hostile_sockets),
            ("locks_disbelieved", locks_disbelieved),
            ("datagrams_refused", datagrams_refused),
            ("strangers", strangers),
            ("outsiders", outsiders),
            ("unclaimed", unclaimed),
            ("starved", starved),
            ("unpinned", unpinned),
            ("memory_tries", memory_tries),
            ("holds_made", holds_made),
            ("events", events),
            ("events_turn_max", events_turn_max),
            ("wakes", wakes),
            ("signals", signals),
            ("slots_listed", slots_listed),
            ("errors_lost", errors_lost),
            ("filters_refused", filters_refused),
            ("unexpected", unexpected),
        ]
    }
}
