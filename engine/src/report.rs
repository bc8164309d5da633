//! State and counters that an engine reports.

use std::borrow::Cow;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

/// Maximum number of processes listed with one socket: a listener may have thousands.
pub const HOLDERS_SHOWN: usize = 32;

/// Counters by layer, with their names.
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
    /// Adds the registry's counters to those of the shards with the same names.
    pub(crate) fn add_registry(&mut self, counters: &[(&'static str, u64)]) {
        for (name, value) in counters {
            if let Some((_, sum)) = self.engine.iter_mut().find(|(known, _)| known == name) {
                *sum += value;
            }
        }
    }

    /// Combines the counters of two shards: their sum, or the greater one for a maximum.
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
    /// Counters after the last turn.
    pub counters: Counters,
    /// Bytes that were lost because they were not delivered when the engine ended: see
    /// [`Left::unsent`]. Excludes shards on other threads.
    pub unsent: u64,
}

/// State of an engine that is to end with its last program, and reason why it still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Number of attached processes.
    pub processes: usize,
    /// Bytes that were not delivered. FINs to be sent and queued packets count as one each.
    pub unsent: u64,
}

/// A socket, as `towpath ss` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SocketEntry {
    /// `tcp`, `udp` or `icmp`.
    pub proto: &'static str,
    /// State, as `ss` names it: `LISTEN`, `ESTAB`, `UNCONN` ...
    pub state: &'static str,
    /// Unread bytes; for a listener, connections to accept.
    pub recv_q: u32,
    /// Bytes not acknowledged; for a listener, its backlog.
    pub send_q: u32,
    /// Local address with its port, as text; `None` if the socket is not bound yet.
    pub local: Option<String>,
    /// Peer's address with its port, as text; `None` without a peer.
    pub remote: Option<String>,
    /// Congestion window in segments; 0 without a connection.
    pub cwnd: u32,
    /// Smoothed round-trip time in microseconds (SRTT of RFC 6298); 0 before the first measurement.
    pub rtt_us: u32,
    /// Name of the congestion control, as for TCP_CONGESTION; `None` without a connection.
    pub congestion: Option<&'static str>,
    /// Further values of a TCP connection.
    #[serde(flatten)]
    pub tcp: Option<TcpFigures>,
    /// Ids of holders, as sent by these processes; at most [`HOLDERS_SHOWN`].
    pub pids: Vec<u32>,
    /// Capacity of the receive buffer, in bytes.
    pub recv_buffer: u32,
    /// Capacity of the send buffer, in bytes.
    pub send_buffer: u32,
    /// Whether IPV6_V6ONLY is set.
    pub v6_only: bool,
    /// Name of the bound interface (SO_BINDTODEVICE).
    pub device: Option<String>,
    /// Index of the slot; [`u32::MAX`] for a connection without a socket.
    pub slot: u32,
}

/// Values of a congestion control algorithm, named as in `ss -i`. Gains are in percent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionValues {
    /// BBR: bandwidth in bytes per second, minimum round-trip time, and gains.
    Bbr {
        /// Estimated bandwidth in bytes per second.
        bw: u64,
        /// Minimum round-trip time; 0 before the first measurement.
        mrtt_us: u32,
        /// Pacing rate relative to the bandwidth.
        pacing_gain: u32,
        /// Window relative to the bandwidth-delay product.
        cwnd_gain: u32,
    },
    /// DCTCP.
    Dctcp {
        /// Estimated fraction of marked bytes, in 1/1024.
        alpha: u32,
        /// Marked bytes in the current observation window.
        ab_ecn: u32,
        /// Acknowledged bytes in the current observation window.
        ab_tot: u32,
    },
    /// Vegas: round-trip times of the connection and of the current round trip.
    Vegas {
        /// Minimum round-trip time of the connection; 0 before the first measurement.
        basertt_us: u32,
        /// Minimum of the current round trip; 0 before the first measurement.
        minrtt_us: u32,
    },
}

/// Values of a connection, named as in `ss -i`. Units are bytes or segments unless the name
/// contains another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpFigures {
    /// Whether timestamps are used (RFC 7323).
    pub ts: bool,
    /// Whether selective acknowledgments are used (RFC 2018).
    pub sack: bool,
    /// Whether ECN was negotiated (RFC 3168).
    pub ecn: bool,
    /// Whether the peer has sent ECN-capable packets.
    pub ecnseen: bool,
    /// Window scale of the peer, 0 to 14 (RFC 7323 §2.2); `None` without window scaling.
    pub snd_wscale: Option<u8>,
    /// Our window scale; `None` without window scaling.
    pub rcv_wscale: Option<u8>,
    /// Current retransmission timeout, including backoff (RFC 6298).
    pub rto_us: u32,
    /// Running timer, as `ss -o` names it: `on`, `persist`, `keepalive` or `timewait`.
    pub timer: Option<Cow<'static, str>>,
    /// Time until the timer fires; 0 if none is running.
    pub timer_ms: u64,
    /// Number of times that the current timeout was doubled.
    pub backoff: u8,
    /// RTTVAR of RFC 6298; 0 before the first measurement.
    pub rttvar_us: u32,
    /// Minimum round-trip time; 0 before the first measurement.
    pub minrtt_us: u32,
    /// Maximum delay of an ACK.
    pub ato_us: u32,
    /// Maximum segment size: payload of a full segment.
    pub mss: u32,
    /// Path MTU; 0: no route.
    pub pmtu: u32,
    /// Largest payload of a received segment.
    pub rcvmss: u32,
    /// MSS that we announced.
    pub advmss: u32,
    /// Slow-start threshold in segments; `None` if not set yet.
    pub ssthresh: Option<u32>,
    /// Payload sent, including retransmissions.
    pub bytes_sent: u64,
    /// Payload retransmitted.
    pub bytes_retrans: u64,
    /// Payload that the peer acknowledged.
    pub bytes_acked: u64,
    /// Payload received in order, each byte once.
    pub bytes_received: u64,
    /// Segments sent, with and without payload, counted after segmentation offload. The counter
    /// wraps, like the next three.
    pub segs_out: u32,
    /// Segments received, counted before receive offload merged them.
    pub segs_in: u32,
    /// Segments sent with payload.
    pub data_segs_out: u32,
    /// Segments received with payload.
    pub data_segs_in: u32,
    /// Milliseconds since data was sent; `None` if never.
    pub lastsnd_ms: Option<u64>,
    /// Milliseconds since data was received; `None` if never.
    pub lastrcv_ms: Option<u64>,
    /// Milliseconds since the last valid ACK (`tcpi_last_ack_recv`); `None` if never.
    pub lastack_ms: Option<u64>,
    /// Current pacing rate in bytes per second; `None` if nothing paces.
    pub pacing_rate: Option<NonZeroU64>,
    /// Value of SO_MAX_PACING_RATE in bytes per second; `None` without a limit.
    pub pacing_rate_max: Option<NonZeroU64>,
    /// Values of the congestion control algorithm; `None` if it has none of its own.
    #[serde(default)]
    pub congestion_values: Option<CongestionValues>,
    /// Segments delivered to the peer.
    pub delivered: u32,
    /// Delivered segments that the peer reported as marked with CE.
    pub delivered_ce: u32,
    /// Time with data to send.
    pub busy_ms: u64,
    /// Part of `busy_ms` that was limited by the peer's window.
    pub rwnd_limited_ms: u64,
    /// Part of `busy_ms` that was limited by the send buffer.
    pub sndbuf_limited_ms: u64,
    /// Segments in flight.
    pub unacked: u32,
    /// Segments in flight that were retransmitted.
    pub retrans: u32,
    /// Total number of retransmitted segments.
    pub retrans_total: u32,
    /// Segments in flight that are considered lost, whether retransmitted or not.
    pub lost: u32,
    /// Segments in flight that the peer has reported in SACK blocks (RFC 2018).
    pub sacked: u32,
    /// Bytes written but not sent.
    pub notsent: u32,
    /// Segments received out of order.
    pub rcv_ooopack: u32,
    /// Receive window that the peer advertised.
    pub snd_wnd: u32,
    /// Our receive window.
    pub rcv_wnd: u32,
}

/// Counters of the engine itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EngineCounters {
    /// Turns of the loop.
    pub turns: u64,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Threads that took over shards from another thread.
    pub threads: u64,
    /// Steps of work that programs caused, some 100 ns each: commands, holds, events, datagrams,
    /// slots checked. A request counts as [`REQUEST`], an extra turn of the stack as
    /// [`STACK_TURN`].
    pub work: u64,
    /// Maximum of `work` in one turn.
    pub work_turn_max: u64,
    /// Commands of programs.
    pub commands: u64,
    /// Commands that were invalid, or about sockets that have ended.
    pub commands_stale: u64,
    /// Requests of programs.
    pub requests: u64,
    /// Requests that waited for descriptors to be closed.
    pub requests_waited: u64,
    /// Batches of CLONEs and HELLOs. Greater than their number if processes have many sockets.
    pub request_portions: u64,
    /// Processes that attached.
    pub attached: u64,
    /// Processes that could not attach, because of the maximum number or a lack of descriptors.
    pub channels_refused: u64,
    /// Processes cut off because they broke the rules of the channel.
    pub hostile_channels: u64,
    /// Sockets reset because a program wrote invalid positions.
    pub hostile_sockets: u64,
    /// Locks of ended sockets that were seized, because too many of them named one process.
    pub locks_disbelieved: u64,
    /// Datagrams that could not be sent.
    pub datagrams_refused: u64,
    /// Spawned programs that did not attach, such as static or set-user-id ones.
    pub strangers: u64,
    /// Programs that use the kernel's sockets, as processes reported before executing them.
    pub outsiders: u64,
    /// Connections that were popped from an accept queue and never claimed.
    pub unclaimed: u64,
    /// Number of times that a program had to wait for transmit memory.
    pub starved: u64,
    /// Number of times that acknowledged bytes were freed late, because a packet still referred to
    /// them.
    pub unpinned: u64,
    /// Attempts to attach transmit memory.
    pub memory_tries: u64,
    /// Number of holds added: a process acquired a socket.
    pub holds_made: u64,
    /// Events pushed to rings.
    pub events: u64,
    /// Maximum number of events in one turn.
    pub events_turn_max: u64,
    /// Wake-ups of threads that slept on a socket, one system call each.
    pub wakes: u64,
    /// SIGURGs sent to owners of sockets.
    pub signals: u64,
    /// Slots checked for listings of sockets.
    pub slots_listed: u64,
    /// Reports dropped because an error queue was full.
    pub errors_lost: u64,
    /// Socket filters refused for lack of memory.
    pub filters_refused: u64,
    /// Callbacks of the stack that never happen in an engine.
    pub unexpected: u64,
}

/// Steps of work for a request: reading, handling, replying, and waking its thread.
pub(crate) const REQUEST: usize = 16;
/// Steps of work for a turn of the stack: its budget in packets.
pub(crate) const STACK_TURN: usize = 256;

impl EngineCounters {
    /// Counts steps of work.
    #[inline]
    pub fn work(&mut self, steps: usize) {
        self.work += steps as u64;
    }

    /// Returns names and values in a fixed order.
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
