//! Configuration of a new TCP connection.

use crate::congestion::CongestionKind;
use crate::ecn::EcnMode;
use crate::fast_open::{FastOpenKeys, FastOpenModes};
use core::num::NonZeroU64;
use core::time::Duration;

/// Settings of a connection. The defaults are those of Linux unless a field says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// MSS option that we send: MTU of the link minus IP and TCP headers (RFC 9293 §3.7.1).
    pub mss_recv: u16,
    /// Maximum segment size of the path: path MTU minus IP and TCP headers. TCP options are not
    /// subtracted.
    pub mss_send_max: u16,
    /// Segment size used if the peer sends no MSS option: 536 for IPv4, 1220 for IPv6 (MUST-15).
    pub mss_default: u16,
    /// Congestion control algorithm; can be changed later by
    /// [`Connection::set_congestion`](crate::Connection::set_congestion).
    pub congestion: CongestionKind,
    /// Initial congestion window in segments; 10 is the value of RFC 6928.
    pub initial_window: u8,
    /// Window scale that we offer, 0 to 14, chosen for the largest receive buffer. We offer it even
    /// if it is 0, because otherwise the peer may not scale its own window.
    pub window_scale: u8,
    /// Whether to offer window scaling (RFC 7323).
    pub scaling: bool,
    /// Whether to offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Whether to offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// When Explicit Congestion Notification is used (RFC 3168, RFC 9768).
    pub ecn: EcnMode,
    /// Whether Nagle's algorithm is off (MUST-17).
    pub nodelay: bool,
    /// Keep-alive probes; `None`, the default, sends none (MUST-25).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# they MUST default to off (MUST-25).
    pub keepalive: Option<KeepAliveConfig>,
    /// Maximum time that sent bytes may stay unacknowledged (RFC 5482). With `None`, only the
    /// number of `retries` is limited.
    pub user_timeout: Option<Duration>,
    /// Maximum pacing rate in payload bytes per second (SO_MAX_PACING_RATE); `None` means
    /// unlimited.
    pub max_pacing_rate: Option<NonZeroU64>,
    /// Maximum SYN retransmissions with exponential backoff, after [`SYN_LINEAR_TIMEOUTS`]
    /// retransmissions at the initial timeout. The default of 7 gives up after 4 min 11 s. RFC 9293
    /// requires at least three minutes (MUST-23); Linux's 6 last about two.
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# R2 for a SYN segment MUST be set large enough to provide retransmission of the segment for
    //# at least 3 minutes (MUST-23).
    pub syn_retries: u8,
    /// Whether clients and listeners use TCP Fast Open (RFC 7413).
    pub fast_open: FastOpenModes,
    /// Keys of the Fast Open cookies that a listener sends; `None` means the random key of the
    /// host.
    pub fast_open_keys: Option<FastOpenKeys>,
    /// When a listener sends SYN cookies (RFC 4987). Peers within its own process get none, because
    /// their half-open connections have reserved places in the accept queue.
    pub syn_cookies: SynCookies,
    /// Maximum number of SYN-ACK retransmissions: Linux's `tcp_synack_retries`.
    pub syn_ack_retries: u8,
    /// Maximum consecutive retransmission timeouts (R2 of RFC 9293 §3.8.3), and maximum unanswered
    /// window probes. Linux's `tcp_retries2`, 15 to 25 minutes.
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# The value of R2 SHOULD correspond to at least 100 seconds (SHLD-11).
    pub retries: u8,
    /// Maximum number of retransmissions after the program has closed the socket, in place of
    /// `retries`: Linux's `tcp_orphan_retries`.
    pub orphan_retries: u8,
    /// Retransmission timeout before the first RTT measurement; 1 s as in RFC 6298 §2.1.
    pub rto_initial: Duration,
    /// Minimum margin that the retransmission timeout adds to the smoothed round-trip time. 200 ms,
    /// as in Linux and FreeBSD, exceed any usual delayed ACK. RFC 6298 §2.4 recommends a minimum
    /// timeout of 1 s for clocks with 500 ms granularity; ours counts nanoseconds.
    pub rto_min: Duration,
    /// Maximum retransmission timeout. RFC 6298 §2.5 allows a bound of at least 60 s; Linux has 120
    /// s.
    pub rto_max: Duration,
    /// Maximum delay of an ACK; values above 499 ms are capped (MUST-40).
    pub delayed_ack: Duration,
    /// Duration of TIME-WAIT: 60 s as in Linux, not the 4 minutes (2 MSL) of RFC 9293 (MUST-13).
    pub time_wait: Duration,
    /// Maximum time in FIN-WAIT-2 after the program has closed the socket: Linux's
    /// `tcp_fin_timeout`.
    pub fin_wait2_timeout: Duration,
    /// Maximum time that TCP_CORK holds back a segment shorter than the MSS: 200 ms as in Linux.
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
            scaling: true,
            timestamps: true,
            sack: true,
            ecn: EcnMode::default(),
            nodelay: false,
            keepalive: None,
            user_timeout: None,
            max_pacing_rate: None,
            syn_retries: 7,
            fast_open: FastOpenModes::default(),
            fast_open_keys: None,
            syn_cookies: SynCookies::default(),
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

/// Configuration of keep-alive probes (RFC 9293 §3.8.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAliveConfig {
    /// Idle time before the first probe; two hours by default (MUST-28).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# This interval MUST be configurable (MUST-27) and MUST default to no less than two hours
    //# (MUST-28).
    pub idle: Duration,
    /// Time between two keep-alive probes.
    pub interval: Duration,
    /// Number of unanswered keep-alive probes after which the connection times out.
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

/// Number of SYN retransmissions at the initial timeout, before the timeout doubles with each
/// further one.
///
/// Same default as Linux's `net.ipv4.tcp_syn_linear_timeouts` (since 6.5), which documents timeouts
/// of "1, 1, 1, 1, 1, 2, 4, ...". As in Linux, these retransmissions do not count against
/// [`Config::syn_retries`].
pub const SYN_LINEAR_TIMEOUTS: u8 = 4;

/// Minimum segment size in bytes, whatever the peer's MSS option or ICMP messages say. 24 bytes of
/// data remain after the longest TCP options. Linux's minimum is 48 (`TCP_MIN_SND_MSS`).
pub(crate) const MSS_MIN: u16 = 64;
/// Segment size that every IPv4 host accepts (RFC 9293 §3.7.1).
pub(crate) const MSS_DEFAULT: u16 = 536;
/// Payload size in bytes that fits any path. The size is the minimum path MTU that we accept for
/// IPv4 (552, Linux's `min_pmtu`) minus headers and the longest options. With a larger value,
/// segments that fit the path could be mistaken for segments that are too long.
pub(crate) const PAYLOAD_ALWAYS_FITS: u32 = 552 - 20 - 60;
/// Maximum window scale (RFC 7323 §2.3): a larger shift would let the window exceed 2^30.
pub(crate) const WINDOW_SCALE_MAX: u8 = 14;
/// Length of the timestamps option with its padding, in bytes.
pub(crate) const TIMESTAMPS_LEN: u16 = 12;
/// Number of duplicate ACKs that indicate a loss (RFC 5681 §3.2).
pub(crate) const DUP_THRESH: u16 = 3;
/// Number of ACKs that a new connection sends without delay, because delayed ACKs would slow the
/// peer's slow start: Linux's `TCP_MAX_QUICKACKS`.
pub(crate) const QUICK_ACKS: u8 = 16;
/// Maximum number of challenge ACKs in each period of `CHALLENGE_PERIOD_MS` milliseconds. RFC 5961
/// §7 proposes 10 in 5 s.
pub(crate) const CHALLENGE_ACKS_MAX: u8 = 10;
pub(crate) const CHALLENGE_PERIOD_MS: u32 = 5_000;
/// Maximum delay of an ACK (MUST-40).
//= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
//# an ACK should not be excessively delayed; in particular, the delay MUST be less than 0.5 seconds
//# (MUST-40).
pub(crate) const DELAYED_ACK_MAX: Duration = Duration::from_millis(499);

/// When a listener uses SYN cookies, as Linux's `net.ipv4.tcp_syncookies`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Never send SYN cookies: 0 on Linux.
    Off,
    /// Send SYN cookies while a listener has its maximum number of half-open connections: 1 on
    /// Linux.
    #[default]
    UnderPressure,
    /// Answer each SYN with a SYN cookie, to test peers: 2 on Linux.
    Always,
}

impl SynCookies {
    /// All variants, each with its name and the number of Linux's setting.
    const ALL: [(Self, &str, &str); 3] =
        [(Self::Off, "off", "0"), (Self::UnderPressure, "on", "1"), (Self::Always, "always", "2")];

    /// Returns the name of the variant in configurations.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(it, ..)| *it == self).map_or("", |(_, name, _)| name)
    }

    /// Returns the variant with this name. The numbers of Linux's `tcp_syncookies` are accepted as
    /// well.
    pub fn from_word(word: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, name, number)| word == *name || word == *number);
        found.map(|(it, ..)| *it)
    }
}
