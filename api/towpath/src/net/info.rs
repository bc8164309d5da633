//! Figures of a connection.

use std::io;
use std::time::Duration;

use towpath_shm::control::call;

use super::handle::{OwnedSocket, TCP};

/// TCP_INFO, as Linux numbers it.
const TCP_INFO: u32 = 11;
/// tcpi_snd_ssthresh before the first loss (TCP_INFINITE_SSTHRESH).
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
    /// Both ends may send.
    Established,
    /// A SYN was sent and not answered yet.
    SynSent,
    /// A SYN came, and its answer was not acknowledged yet.
    SynReceived,
    /// Our FIN was sent and is not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// Both have ended; late segments are waited for.
    TimeWait,
    /// No connection: it has ended, or there never was one.
    Closed,
    /// The peer has ended, this end may still send.
    CloseWait,
    /// The peer has ended, and our FIN is not acknowledged.
    LastAck,
    /// Both have sent a FIN at the same time.
    Closing,
}

/// Figures of a connection at one moment: what Linux gives with TCP_INFO (tcp(7)).
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
    /// Shortest round-trip time of late. None before the first measurement.
    pub rtt_min: Option<Duration>,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// Slow start threshold, in segments. None before the first loss.
    pub ssthresh: Option<u32>,
    /// Largest segment that is sent, in bytes.
    pub send_mss: u32,
    /// Largest segment that came, in bytes.
    pub recv_mss: u32,
    /// Path MTU, in bytes.
    pub path_mtu: u32,
    /// Window that the peer grants, in bytes.
    pub send_window: u32,
    /// Window that this end grants, in bytes.
    pub recv_window: u32,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Segments of these that the peer has by SACK.
    pub sacked: u32,
    /// Segments of these that are taken for lost.
    pub lost: u32,
    /// Segments of these that were sent again.
    pub retransmits: u32,
    /// Segments sent again since the connection began.
    pub retransmits_total: u32,
    /// Timeouts in a row without an answer.
    pub timeouts: u32,
    /// Segments by which reordering was seen to delay an ACK; 3 to begin with.
    pub reordering: u32,
    /// Bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes sent again.
    pub bytes_retransmitted: u64,
    /// Bytes sent and acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Bytes written and not sent yet.
    pub bytes_unsent: u32,
    /// Segments sent.
    pub segments_out: u32,
    /// Segments received.
    pub segments_in: u32,
    /// Segments received out of order.
    pub segments_out_of_order: u32,
    /// Time since bytes were sent. None: none were.
    pub since_sent: Option<Duration>,
    /// Time since bytes came. None: none did.
    pub since_received: Option<Duration>,
    /// Time in which there was something to send.
    pub busy: Duration,
    /// Part of it in which the peer's window was full.
    pub window_limited: Duration,
    /// Part of it in which the send buffer was full.
    pub buffer_limited: Duration,
    /// Whether timestamps are in use (RFC 7323 §3).
    pub timestamps: bool,
    /// Whether selective acknowledgments are in use (RFC 2018).
    pub sack: bool,
    /// Shifts of the send and of the receive window. None: they are not scaled (RFC 7323 §2).
    pub window_scale: Option<(u8, u8)>,
}

impl TcpInfo {
    pub(super) fn of(handle: &OwnedSocket) -> io::Result<Self> {
        let reply = handle.call(call::GET_OPTION, |request| {
            (request.a, request.b) = (TCP, TCP_INFO);
        })?;
        Ok(Self::parse(reply.payload()))
    }

    /// Reads `struct tcp_info` of Linux 6.1. A shorter one leaves the figures at its end zero.
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

/// TCP states as Linux numbers them.
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
