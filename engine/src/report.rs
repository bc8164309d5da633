//! State and counters that an engine reports.

use std::borrow::Cow;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

/// Maximum number of processes listed per socket, because a listener may be shared by thousands.
pub const HOLDERS_SHOWN: usize = 32;

/// Counters with their names, by layer of the engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Counters of the engine, such as iterations of the event loop, commands, and processes that
    /// were attached or removed for a protocol violation.
    pub engine: Vec<(&'static str, u64)>,
    /// Counters of the socket layer: [`towpath_stack::Counters`].
    pub sockets: Vec<(&'static str, u64)>,
    /// Counters of the IP layer: [`towpath_stack::net::NetCounters`].
    pub net: Vec<(&'static str, u64)>,
    /// Numbers of dropped packets by reason: [`towpath_stack::DropReason`].
    pub drops: Vec<(&'static str, u64)>,
}

impl Counters {
    /// Adds the registry's counters to the shards' counters with the same names.
    pub(crate) fn add_registry(&mut self, counters: &[(&'static str, u64)]) {
        for (name, value) in counters {
            if let Some((_, sum)) = self.engine.iter_mut().find(|(known, _)| known == name) {
                *sum += value;
            }
        }
    }

    /// Combines the counters of two shards. The result is the sum, or the greater value if the
    /// counter is a maximum.
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
    /// Counters after the last iteration of the event loop.
    pub counters: Counters,
    /// Number of bytes that were not delivered when the engine ended, and are lost: see
    /// [`Left::unsent`]. Does not include shards (event loops) on other threads.
    pub unsent: u64,
}

/// Why an engine that ends with its last program still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Number of processes that use the engine.
    pub processes: usize,
    /// Number of bytes that were not delivered yet. Each FIN to be sent and each queued packet
    /// counts as one byte.
    pub unsent: u64,
}

/// A socket, as `towpath ss` displays it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SocketEntry {
    /// Protocol of the socket: `tcp`, `udp` or `icmp`.
    pub proto: &'static str,
    /// State of the socket with the name used by `ss`, such as `LISTEN`, `ESTAB` or `UNCONN`.
    pub state: &'static str,
    /// Number of bytes received and not yet read. For a listener: number of connections that wait
    /// for accept(2).
    pub recv_q: u32,
    /// Number of bytes queued and not acknowledged. For a listener, its backlog.
    pub send_q: u32,
    /// Local address and port as text. `None` if the socket is not bound yet.
    pub local: Option<String>,
    /// Address and port of the peer as text; `None` if there is no peer.
    pub remote: Option<String>,
    /// Congestion window in segments; 0 if there is no connection.
    pub cwnd: u32,
    /// Smoothed round-trip time in microseconds (SRTT of RFC 6298); 0 before the first measurement.
    pub rtt_us: u32,
    /// Name of the congestion control algorithm, as returned by TCP_CONGESTION; `None` if there is
    /// no connection.
    pub congestion: Option<&'static str>,
    /// Further values of a TCP connection; `None` if the socket has no connection.
    #[serde(flatten)]
    pub tcp: Option<TcpFigures>,
    /// IDs of the processes that have the socket open, at most [`HOLDERS_SHOWN`]. Processes report
    /// their IDs themselves.
    pub pids: Vec<u32>,
    /// Size of the receive buffer in bytes.
    pub recv_buffer: u32,
    /// Size of the send buffer in bytes.
    pub send_buffer: u32,
    /// Whether IPV6_V6ONLY is set on the socket.
    pub v6_only: bool,
    /// Name of the interface to which the socket is bound (SO_BINDTODEVICE). `None`: any.
    pub device: Option<String>,
    /// Index of the socket's slot in shared memory. [`u32::MAX`] for a connection without a socket.
    pub slot: u32,
}

/// Values of a connection's congestion control algorithm, named as in `ss -i`. Gains are in
/// percent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionValues {
    /// BBR: bandwidth in bytes per second, minimum round-trip time, and gains.
    Bbr {
        /// Estimated bandwidth in bytes per second.
        bw: u64,
        /// Minimum round-trip time in microseconds. 0 before the first measurement.
        mrtt_us: u32,
        /// Pacing rate in percent of the estimated bandwidth.
        pacing_gain: u32,
        /// Congestion window in percent of the bandwidth-delay product.
        cwnd_gain: u32,
    },
    /// DCTCP (RFC 8257): bytes marked as having experienced congestion.
    Dctcp {
        /// Estimated fraction of marked bytes, in units of 1/1024.
        alpha: u32,
        /// Number of marked bytes in the current observation window.
        ab_ecn: u32,
        /// Number of bytes acknowledged in the current observation window (DCTCP).
        ab_tot: u32,
    },
    /// TCP Vegas: minimum round-trip times of the connection and of the current round trip.
    Vegas {
        /// Minimum round-trip time of the connection in microseconds; 0 before the first
        /// measurement.
        basertt_us: u32,
        /// Minimum round-trip time during the current round trip in microseconds; 0 before the
        /// first measurement.
        minrtt_us: u32,
    },
}

/// Values of a TCP connection, named as in `ss -i`. Values are in bytes or segments unless the name
/// contains another unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpFigures {
    /// Whether TCP timestamps are used (RFC 7323).
    pub ts: bool,
    /// Whether selective acknowledgments are used (RFC 2018).
    pub sack: bool,
    /// Whether ECN was negotiated (RFC 3168).
    pub ecn: bool,
    /// Whether the peer has sent ECN-capable packets.
    pub ecnseen: bool,
    /// Window scale announced by the peer, 0 to 14 (RFC 7323 §2.2); `None` without window scaling.
    pub snd_wscale: Option<u8>,
    /// Window scale announced by this host, 0 to 14; `None` without window scaling.
    pub rcv_wscale: Option<u8>,
    /// Current retransmission timeout in microseconds, including exponential backoff (RFC 6298).
    pub rto_us: u32,
    /// Name of the running timer, as `ss -o` displays it: `on`, `persist`, `keepalive` or
    /// `timewait`. `None`: no timer is running.
    pub timer: Option<Cow<'static, str>>,
    /// Time in milliseconds until the running timer expires. 0 if none is running.
    pub timer_ms: u64,
    /// Number of times that the current retransmission timeout was doubled (exponential backoff).
    pub backoff: u8,
    /// Variation of the round-trip time in microseconds (RTTVAR of RFC 6298); 0 before the first
    /// measurement.
    pub rttvar_us: u32,
    /// Minimum round-trip time in microseconds. 0 before the first measurement.
    pub minrtt_us: u32,
    /// Maximum delay of an ACK in microseconds.
    pub ato_us: u32,
    /// Maximum segment size in bytes: payload of a full segment.
    pub mss: u32,
    /// Path MTU in bytes. 0: there is no route.
    pub pmtu: u32,
    /// Largest payload of a received segment in bytes.
    pub rcvmss: u32,
    /// Maximum segment size in bytes announced by this host.
    pub advmss: u32,
    /// Slow-start threshold in segments. `None` if it was not set yet.
    pub ssthresh: Option<u32>,
    /// Number of payload bytes sent, including retransmissions.
    pub bytes_sent: u64,
    /// Number of payload bytes retransmitted.
    pub bytes_retrans: u64,
    /// Number of payload bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Number of payload bytes received in order. Each byte counts once.
    pub bytes_received: u64,
    /// Number of segments sent, with and without payload, counted after segmentation offload. The
    /// counter wraps at 32 bits.
    pub segs_out: u32,
    /// Number of segments received, counted before receive offload merged them. The counter wraps
    /// at 32 bits.
    pub segs_in: u32,
    /// Number of segments sent with payload. The counter wraps at 32 bits.
    pub data_segs_out: u32,
    /// Number of segments received with payload. The counter wraps at 32 bits.
    pub data_segs_in: u32,
    /// Milliseconds since payload was last sent. `None` if never.
    pub lastsnd_ms: Option<u64>,
    /// Milliseconds since payload was last received. `None` if never.
    pub lastrcv_ms: Option<u64>,
    /// Milliseconds since the last valid ACK was received (`tcpi_last_ack_recv`). `None` if never.
    pub lastack_ms: Option<u64>,
    /// Current pacing rate in bytes per second. `None` if sends are not paced.
    pub pacing_rate: Option<NonZeroU64>,
    /// Value of SO_MAX_PACING_RATE in bytes per second. `None`: no limit is set.
    pub pacing_rate_max: Option<NonZeroU64>,
    /// Values of the congestion control algorithm; `None` if it reports none.
    #[serde(default)]
    pub congestion_values: Option<CongestionValues>,
    /// Number of segments that the peer has received according to its ACKs and SACK blocks
    /// (`tcpi_delivered`).
    pub delivered: u32,
    /// Number of received segments that the peer reported as marked with Congestion Experienced
    /// (CE).
    pub delivered_ce: u32,
    /// Total time in milliseconds during which the connection had data to send.
    pub busy_ms: u64,
    /// Time in milliseconds, as a part of `busy_ms`, in which the peer's receive window limited
    /// sending.
    pub rwnd_limited_ms: u64,
    /// Part of `busy_ms`, in milliseconds, during which the size of the send buffer limited what
    /// could be sent.
    pub sndbuf_limited_ms: u64,
    /// Number of segments in flight: sent and not acknowledged.
    pub unacked: u32,
    /// Number of segments in flight that were retransmitted.
    pub retrans: u32,
    /// Total number of retransmitted segments of the connection.
    pub retrans_total: u32,
    /// Number of segments in flight that are considered lost, including retransmitted ones.
    pub lost: u32,
    /// Number of segments in flight that the peer has reported in SACK blocks (RFC 2018).
    pub sacked: u32,
    /// Number of bytes that the program has written and that were not sent yet.
    pub notsent: u32,
    /// Number of segments received out of order.
    pub rcv_ooopack: u32,
    /// Receive window last advertised by the peer, in bytes.
    pub snd_wnd: u32,
    /// Receive window last advertised by this host, in bytes.
    pub rcv_wnd: u32,
}

/// Counters of the engine, without those of its network stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EngineCounters {
    /// Number of iterations (turns) of the event loop.
    pub turns: u64,
    /// Number of times that the event loop slept.
    pub sleeps: u64,
    /// Number of threads that have taken over shards (event loops) from another thread.
    pub threads: u64,
    /// Number of work steps caused by programs, each about 100 ns: commands, events, datagrams,
    /// changed socket references, examined slots. A request counts as [`REQUEST`] steps, and an
    /// extra iteration of the stack as [`STACK_TURN`].
    pub work: u64,
    /// Maximum increase of `work` during one turn of the event loop.
    pub work_turn_max: u64,
    /// Number of commands read from the rings of programs.
    pub commands: u64,
    /// Number of commands that were invalid, or that were about closed sockets.
    pub commands_stale: u64,
    /// Number of requests of programs.
    pub requests: u64,
    /// Number of requests that waited until descriptors were closed.
    pub requests_waited: u64,
    /// Number of batches in which CLONE and HELLO requests were handled. A request of a process
    /// with many sockets takes several batches.
    pub request_portions: u64,
    /// Number of processes that have attached.
    pub attached: u64,
    /// Number of processes that could not attach, because of the maximum number of processes or
    /// because no descriptors were free.
    pub channels_refused: u64,
    /// Number of processes that were removed because they violated the protocol of their channel.
    pub hostile_channels: u64,
    /// Number of sockets that were reset because a program wrote an invalid FIFO position.
    pub hostile_sockets: u64,
    /// Number of locks of closed sockets that the engine released by force, because too many of
    /// them named the same process as holder.
    pub locks_disbelieved: u64,
    /// Number of programs' datagrams that could not be sent.
    pub datagrams_refused: u64,
    /// Number of spawned programs that did not attach to the engine, such as static or set-user-id
    /// programs.
    pub strangers: u64,
    /// Number of executed programs that use the kernel's sockets, as reported before exec.
    pub outsiders: u64,
    /// Number of connections that a process took from an accept queue without reporting that it had
    /// accepted them.
    pub unclaimed: u64,
    /// Number of times that a program had to wait for send buffer memory.
    pub starved: u64,
    /// Number of times that acknowledged bytes were freed late, because a packet still referred to
    /// them.
    pub unpinned: u64,
    /// Number of attempts to provide send buffer memory to a socket.
    pub memory_tries: u64,
    /// Number of times that a process acquired a reference to a socket.
    pub holds_made: u64,
    /// Number of events written to rings of processes.
    pub events: u64,
    /// Maximum number of events written in one iteration of the event loop.
    pub events_turn_max: u64,
    /// Number of times that threads which slept on a socket were woken. Each costs one system call.
    pub wakes: u64,
    /// Number of SIGURG signals sent to the owners of sockets (F_SETOWN).
    pub signals: u64,
    /// Number of slots that were examined to list sockets.
    pub slots_listed: u64,
    /// Number of errors that were not reported to a program, because its socket's error queue was
    /// full.
    pub errors_lost: u64,
    /// Number of socket filters (BPF) that were rejected because of their memory limit.
    pub filters_refused: u64,
    /// Number of callbacks of the stack that should never happen in an engine.
    pub unexpected: u64,
}

/// Number of work steps (of about 100 ns) of a request: reading and handling it, replying, and
/// waking the waiting thread.
pub(crate) const REQUEST: usize = 16;
/// Number of work steps (of about 100 ns) of an iteration of the stack: the maximum number of
/// packets that it handles.
pub(crate) const STACK_TURN: usize = 256;

impl EngineCounters {
    /// Adds `steps` to the number of work steps.
    #[inline]
    pub fn work(&mut self, steps: usize) {
        self.work += steps as u64;
    }

    /// Returns the names and values of all counters, in a fixed order.
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
