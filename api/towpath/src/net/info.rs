//! State and statistics of a connection.

use std::io;
use std::time::Duration;

use towpath_shm::control::call;

use super::handle::{OwnedSocket, TCP};

/// Number of the socket option TCP_INFO in Linux.
const TCP_INFO: u32 = 11;
/// Value of `tcpi_snd_ssthresh` before the first loss (TCP_INFINITE_SSTHRESH).
const SSTHRESH_UNSET: u32 = 0x7fff_ffff;

/// State of a connection (RFC 9293 §3.3.2).
///
/// # Examples
/// ```
/// use towpath::net::TcpState;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let stack = towpath::Stack::builder().loopback().start()?;
/// # let listener = stack.listen("127.0.0.1:0")?;
/// let client = stack.connect(listener.local_addr()?)?;
/// assert_eq!(client.info()?.state, TcpState::Established);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TcpState {
    /// The connection is established, and both ends may send.
    Established,
    /// A SYN was sent and not answered yet.
    SynSent,
    /// A SYN was received, and our SYN-ACK is not acknowledged yet.
    SynReceived,
    /// Our FIN was sent and is not acknowledged yet.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// Both ends have closed; delayed segments may still arrive.
    TimeWait,
    /// There is no connection: it has ended, or was never opened.
    Closed,
    /// The peer has sent FIN; this end may still send.
    CloseWait,
    /// The peer has sent FIN, and our FIN is not acknowledged.
    LastAck,
    /// Both ends have sent FIN at the same time.
    Closing,
}

/// A snapshot of a connection's state: the values of Linux's TCP_INFO (tcp(7)).
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let stack = towpath::Stack::builder().loopback().start()?;
/// # let listener = stack.listen("127.0.0.1:0")?;
/// let info = stack.connect(listener.local_addr()?)?.info()?;
/// println!("{:?} ± {:?}, window {} segments", info.rtt, info.rtt_variance, info.cwnd);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// State of the connection.
    pub state: TcpState,
    /// Smoothed round-trip time, in µs; zero before the first measurement.
    pub rtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_variance: Duration,
    /// Recent minimum of the round-trip time; `None` before the first measurement.
    pub rtt_min: Option<Duration>,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// Slow-start threshold, in segments; `None` before the first loss.
    pub ssthresh: Option<u32>,
    /// Maximum segment size for sending, in bytes.
    pub send_mss: u32,
    /// Largest received segment, in bytes.
    pub recv_mss: u32,
    /// Path MTU, in bytes.
    pub path_mtu: u32,
    /// Receive window of the peer, in bytes.
    pub send_window: u32,
    /// Our receive window, in bytes.
    pub recv_window: u32,
    /// Segments in flight: sent and not acknowledged.
    pub unacked: u32,
    /// Segments in flight that the peer has reported by SACK.
    pub sacked: u32,
    /// Segments in flight that are considered lost.
    pub lost: u32,
    /// Segments in flight that were retransmitted.
    pub retransmits: u32,
    /// Total number of retransmitted segments.
    pub retransmits_total: u32,
    /// Number of consecutive retransmission timeouts since the peer last acknowledged data.
    pub timeouts: u32,
    /// Maximum observed reordering, in segments; initially 3.
    pub reordering: u32,
    /// Bytes sent, including retransmissions.
    pub bytes_sent: u64,
    /// Bytes retransmitted.
    pub bytes_retransmitted: u64,
    /// Bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order. The peer's FIN counts as one byte, as in Linux.
    pub bytes_received: u64,
    /// Bytes that were written to the socket and not sent yet.
    pub bytes_unsent: u32,
    /// Total number of segments sent.
    pub segments_out: u32,
    /// Total number of segments received.
    pub segments_in: u32,
    /// Segments received out of order.
    pub segments_out_of_order: u32,
    /// Time since data was last sent; `None` if never.
    pub since_sent: Option<Duration>,
    /// Time since data was last received; `None` if never.
    pub since_received: Option<Duration>,
    /// Total time during which the connection had data to send.
    pub busy: Duration,
    /// Part of the time `busy` during which the peer's receive window limited sending.
    pub window_limited: Duration,
    /// Part of the time `busy` during which the size of the send buffer limited sending.
    pub buffer_limited: Duration,
    /// Whether timestamps are in use (RFC 7323 §3).
    pub timestamps: bool,
    /// Whether selective acknowledgments are in use (RFC 2018).
    pub sack: bool,
    /// Window scales for sending and receiving; `None` without window scaling (RFC 7323 §2).
    pub window_scale: Option<(u8, u8)>,
}

impl TcpInfo {
    pub(super) fn of(handle: &OwnedSocket) -> io::Result<Self> {
        let reply = handle.call(call::GET_OPTION, |request| {
            (request.a, request.b) = (TCP, TCP_INFO);
        })?;
        Ok(Self::parse(reply.payload()))
    }

    /// Parses `struct tcp_info` of Linux 6.1. Fields that are missing in a shorter struct become
    /// zero.
    fn parse(bytes: &[u8]) -> Self {
        let raw = Raw(bytes);
        let options = raw.byte(5);
        let has_sent = raw.long(200) > 0;
        let has_received = raw.long(128) > 0;
        Self {
            state: state(raw.byte(0)),
            rtt: raw.micros(68),
            rtt_variance: raw.micros(72),
            rtt_min: Some(raw.micros(148))
                .filter(|time| !time.is_zero() && raw.word(148) != u32::MAX),
            rto: raw.micros(8),
            cwnd: raw.word(80),
            ssthresh: Some(raw.word(76)).filter(|ssthresh| *ssthresh < SSTHRESH_UNSET),
            send_mss: raw.word(16),
            recv_mss: raw.word(20),
            path_mtu: raw.word(60),
            send_window: raw.word(228),
            recv_window: raw.word(232),
            unacked: raw.word(24),
            sacked: raw.word(28),
            lost: raw.word(32),
            retransmits: raw.word(36),
            retransmits_total: raw.word(100),
            timeouts: raw.byte(2).into(),
            reordering: raw.word(88),
            bytes_sent: raw.long(200),
            bytes_retransmitted: raw.long(208),
            bytes_acked: raw.long(120),
            bytes_received: raw.long(128),
            bytes_unsent: raw.word(144),
            segments_out: raw.word(136),
            segments_in: raw.word(140),
            segments_out_of_order: raw.word(224),
            since_sent: has_sent.then(|| raw.millis(44)),
            since_received: has_received.then(|| raw.millis(52)),
            busy: Duration::from_micros(raw.long(168)),
            window_limited: Duration::from_micros(raw.long(176)),
            buffer_limited: Duration::from_micros(raw.long(184)),
            timestamps: options & 1 != 0,
            sack: options & 2 != 0,
            window_scale: (options & 4 != 0).then(|| (raw.byte(6) & 15, raw.byte(6) >> 4)),
        }
    }
}

/// Converts a TCP state from Linux's numbering.
fn state(number: u8) -> TcpState {
    match number {
        1 => TcpState::Established,
        2 => TcpState::SynSent,
        3 => TcpState::SynReceived,
        4 => TcpState::FinWait1,
        5 => TcpState::FinWait2,
        6 => TcpState::TimeWait,
        8 => TcpState::CloseWait,
        9 => TcpState::LastAck,
        11 => TcpState::Closing,
        _ => TcpState::Closed,
    }
}

struct Raw<'a>(&'a [u8]);

impl Raw<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    fn byte(&self, at: usize) -> u8 {
        self.array::<1>(at)[0]
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    fn long(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    fn micros(&self, at: usize) -> Duration {
        Duration::from_micros(self.word(at).into())
    }

    fn millis(&self, at: usize) -> Duration {
        Duration::from_millis(self.word(at).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes() -> [u8; 240] {
        let mut bytes = [0; 240];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &[8, 0, 2, 0, 0, 7, 0x27]);
        put(8, &200_000u32.to_ne_bytes());
        put(68, &1500u32.to_ne_bytes());
        put(76, &SSTHRESH_UNSET.to_ne_bytes());
        put(80, &10u32.to_ne_bytes());
        put(128, &77u64.to_ne_bytes());
        put(52, &3u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn figures_come_from_their_places() {
        let info = TcpInfo::parse(&bytes());
        assert_eq!((info.state, info.timeouts, info.cwnd), (TcpState::CloseWait, 2, 10));
        assert_eq!((info.rtt, info.rto), (Duration::from_micros(1500), Duration::from_millis(200)));
        assert_eq!((info.timestamps, info.sack, info.window_scale), (true, true, Some((7, 2))));
        assert_eq!((info.ssthresh, info.rtt_min, info.bytes_received), (None, None, 77));
        assert_eq!((info.since_sent, info.since_received), (None, Some(Duration::from_millis(3))));
    }

    #[test]
    fn a_shorter_structure_leaves_its_figures_zero() {
        let info = TcpInfo::parse(&bytes()[..100]);
        assert_eq!((info.cwnd, info.bytes_received, info.recv_window), (10, 0, 0));
    }
}
