//! Parameters of a connection at birth.

use crate::congestion::CongestionKind;
use core::num::NonZeroU64;
use core::time::Duration;

/// Settings of a connection. The defaults are those of Linux unless a field says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The MSS option we send: link MTU without IP and TCP headers (RFC 9293 §3.7.1).
    pub mss_recv: u16,
    /// Largest segment that the path carries: path MTU without IP and TCP headers, TCP options not
    /// subtracted.
    pub mss_send_max: u16,
    /// Segment size that a peer without an MSS option accepts: 536 for IPv4, 1220 for IPv6
    /// (MUST-15).
    pub mss_default: u16,
    /// How the congestion window grows;
    /// [`Connection::set_congestion`](crate::Connection::set_congestion) changes it.
    pub congestion: CongestionKind,
    /// First congestion window in segments; 10 is RFC 6928's.
    pub initial_window: u8,
    /// The window scale that we offer, 0 to 14: what the largest receive buffer needs. Offered even
    /// when 0, so that the peer may scale.
    pub window_scale: u8,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// True switches Nagle's algorithm off (MUST-17).
    pub nodelay: bool,
    /// `None` is the default (MUST-25).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# they MUST default to off (MUST-25).
    pub keepalive: Option<KeepAliveConfig>,
    /// How long sent bytes may stay unacknowledged (RFC 5482); `None` leaves it to `retries`.
    pub user_timeout: Option<Duration>,
    /// Most bytes of payload a second (SO_MAX_PACING_RATE); `None` is no bound.
    pub max_pacing_rate: Option<NonZeroU64>,
    /// Times a SYN is sent again at doubled intervals, after [`SYN_LINEAR_TIMEOUTS`] repetitions at
    /// the first one. 7 gives up after 4 min 11 s: RFC 9293 asks for at least three minutes
    /// (MUST-23), Linux's 6 are two.
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# R2 for a SYN segment MUST be set large enough to provide retransmission of the segment for
    //# at least 3 minutes (MUST-23).
    pub syn_retries: u8,
    /// Times a SYN-ACK is sent again: Linux's `tcp_synack_retries`.
    pub syn_ack_retries: u8,
    /// Times in a row that bytes are sent again after a timeout (R2 of RFC 9293 §3.8.3), and that a
    /// window probe may stay unanswered. Linux's `tcp_retries2`, 15 to 25 minutes.
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# The value of R2 SHOULD correspond to at least 100 seconds (SHLD-11).
    pub retries: u8,
    /// As `retries`, when the program is gone: Linux's `tcp_orphan_retries`.
    pub orphan_retries: u8,
    /// Before the first measurement; 1 s is RFC 6298 §2.1.
    pub rto_initial: Duration,
    /// Least margin that is added to the smoothed round-trip time. RFC 6298 §2.4 wants a timeout of
    /// 1 s in all, from clocks of 500 ms. Our clock has microseconds. 200 ms beyond the round trip,
    /// as in Linux and FreeBSD, is above every delayed ACK.
    pub rto_min: Duration,
    /// RFC 6298 §2.5 allows a bound of at least 60 s; Linux has 120 s.
    pub rto_max: Duration,
    /// How long an ACK waits for company; below 500 ms (MUST-40). At most 500 ms is used.
    pub delayed_ack: Duration,
    /// 2 MSL (MUST-13): Linux's 60 s, not the 4 minutes of RFC 9293.
    pub time_wait: Duration,
    /// How long a closed socket waits for the peer's FIN: Linux's `tcp_fin_timeout`.
    pub fin_wait2_timeout: Duration,
    /// How long a corked short segment is held: Linux's 200 ms.
    pub cork: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mss_recv: 1460,
            mss_send_max: 1460,
            mss_default: MSS_DEFAULT,
            congestion: CongestionKind::default(),
            initial_window: 10,
            window_scale: 7,
            timestamps: true,
            sack: true,
            nodelay: false,
            keepalive: None,
            user_timeout: None,
            max_pacing_rate: None,
            syn_retries: 7,
            syn_ack_retries: 5,
            retries: 15,
            orphan_retries: 8,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            delayed_ack: Duration::from_millis(40),
            time_wait: Duration::from_secs(60),
            fin_wait2_timeout: Duration::from_secs(60),
            cork: Duration::from_millis(200),
        }
    }
}

/// Probing of an idle peer (RFC 9293 §3.8.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAliveConfig {
    /// Silence before the first probe; two hours by default (MUST-28).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# This interval MUST be configurable (MUST-27) and MUST default to no less than two hours
    //# (MUST-28).
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the peer is gone.
    pub probes: u8,
}

impl Default for KeepAliveConfig {
    fn default() -> KeepAliveConfig {
        KeepAliveConfig {
            idle: Duration::from_secs(7200),
            interval: Duration::from_secs(75),
            probes: 9,
        }
    }
}

/// Times that an active open repeats its SYN at the initial timeout, before the interval doubles.
///
/// Linux's `net.ipv4.tcp_syn_linear_timeouts` (since 6.5) has this default, and documents
/// timeouts of "1, 1, 1, 1, 1, 2, 4, ...". As there, the repetitions do not count as
/// [`Config::syn_retries`].
pub const SYN_LINEAR_TIMEOUTS: u8 = 4;

/// Least segment size by which payload is cut, whatever a peer or a router says: 24 bytes remain
/// under the longest options. Linux draws the line at 48 (`TCP_MIN_SND_MSS`).
pub(crate) const MSS_MIN: u16 = 64;
/// Segment size that every host takes (RFC 9293 §3.7.1, IPv4).
pub(crate) const MSS_DEFAULT: u16 = 536;
/// Payload that fits every packet: what IPv4 packets are cut to at least (552 bytes, Linux's
/// `min_pmtu`) without headers and the longest options. With a larger one a segment that passed
/// would be taken for one that did not.
pub(crate) const PAYLOAD_ALWAYS_FITS: u32 = 552 - 20 - 60;
/// RFC 7323 §2.3: a larger shift would let the window exceed 2^30.
pub(crate) const WINDOW_SCALE_MAX: u8 = 14;
/// Bytes of a timestamps option with its padding.
pub(crate) const TIMESTAMPS_LEN: u16 = 12;
/// Duplicate ACKs that mean loss (RFC 5681 §3.2).
pub(crate) const DUP_THRESH: u16 = 3;
/// ACKs sent without delay when a connection is new, so that the peer's slow start is not slowed:
/// Linux's `TCP_MAX_QUICKACKS`.
pub(crate) const QUICK_ACKS: u8 = 16;
/// Ranges remembered out of order, each way: 2 KiB at most, and enough for 1 % loss on 35 MB in
/// flight.
pub(crate) const RANGES_MAX: usize = 256;
/// Challenge ACKs in each `CHALLENGE_PERIOD_MS` (RFC 5961 §7 proposes 10 in 5 s).
pub(crate) const CHALLENGE_ACKS_MAX: u8 = 10;
pub(crate) const CHALLENGE_PERIOD_MS: u32 = 5_000;
/// MUST-40.
//= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
//# an ACK should not be excessively delayed; in particular, the delay MUST be less than 0.5 seconds
//# (MUST-40).
pub(crate) const DELAYED_ACK_MAX: Duration = Duration::from_millis(499);
