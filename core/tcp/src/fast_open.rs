//! TCP Fast Open (RFC 7413): bytes that travel in the SYN.
//!
//! The connection knows no cookie. The owner of a client checks that it has one before it calls
//! [`connect_with_data`], and puts it into the SYN. The owner of a server checks the cookie of a
//! SYN before it calls [`accept_with_data`].
//!
//! [`connect_with_data`]: crate::Connection::connect_with_data
//! [`accept_with_data`]: crate::Connection::accept_with_data
//!
//! ```text
//!  client                                   server
//!  SynSent    ── SYN, cookie, bytes ──────▶ SynReceived: the program may read and answer
//!  Established ◀──────────── SYN,ACK ──────
//!              ◀────────────── bytes ──────
//!              ── ACK ────────────────────▶ Established
//! ```
//!
//! A SYN that is sent again has neither cookie nor bytes: the path may drop SYNs that have.
//! Bytes that the SYN-ACK does not acknowledge are sent again at once.

use crate::event::pending;
use crate::segment::FifoLevels;

/// Longest options of a header, for which the bytes of a SYN leave room: Linux's
/// `MAX_TCP_OPTION_SPACE`.
const OPTIONS_LEN_MAX: u32 = 40;

/// State of Fast Open, in the one byte that the budget of [`Connection`](crate::Connection) has
/// left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FastOpenState(u8);

impl FastOpenState {
    /// An active open whose SYN waits for bytes.
    const CLIENT: u8 = 1;
    /// A passive open whose SYN had a valid cookie.
    const SERVER: u8 = 2;
    /// The SYN carried bytes.
    const DATA_SENT: u8 = 4;
    /// The bytes of the SYN were acknowledged, by either side.
    const DATA_ACKED: u8 = 8;
    /// The SYN or SYN-ACK went more than once.
    const REPEATED: u8 = 16;
    /// The SYN waits for no bytes.
    const HURRIED: u8 = 32;
    /// Place of a [`FastOpenFailure`].
    const FAIL_SHIFT: u8 = 6;

    pub(crate) fn is_client(self) -> bool {
        self.0 & Self::CLIENT != 0
    }

    pub(crate) fn is_server(self) -> bool {
        self.0 & Self::SERVER != 0
    }

    pub(crate) fn set_client(&mut self) {
        self.add(Self::CLIENT);
    }

    pub(crate) fn set_server(&mut self) {
        self.add(Self::SERVER);
    }

    /// The SYN stops waiting for bytes.
    pub(crate) fn hurry(&mut self) {
        self.add(Self::HURRIED);
    }

    /// The SYN or SYN-ACK was sent more than once.
    pub(crate) fn is_repeated(self) -> bool {
        self.has(Self::REPEATED)
    }

    /// Whether bytes may be in flight before the peer has acknowledged our SYN.
    pub(crate) fn has_early_bytes(self) -> bool {
        self.is_server() || self.has(Self::DATA_SENT)
    }

    /// Bytes that a SYN sent for the first time carries: a segment of `mss` less the longest
    /// options (RFC 7413 §4.1.3). `None` if the SYN waits for bytes; `fin_queued` ends the wait.
    pub(crate) fn syn_payload(
        self,
        buffers: FifoLevels,
        mss: u16,
        fin_queued: bool,
    ) -> Option<u32> {
        if !self.is_client() {
            return Some(0);
        }
        if buffers.send_len == 0 && !fin_queued && !self.has(Self::HURRIED) {
            return None;
        }
        Some(buffers.send_len.min(u32::from(mss).saturating_sub(OPTIONS_LEN_MAX)))
    }

    pub(crate) fn on_data_sent(&mut self) {
        self.add(Self::DATA_SENT);
    }

    /// The bytes of a peer's SYN were taken.
    pub(crate) fn on_data_received(&mut self) {
        self.add(Self::DATA_ACKED);
    }

    /// The SYN or SYN-ACK goes again.
    pub(crate) fn on_syn_repeated(&mut self) {
        self.add(Self::REPEATED);
        if self.is_client() {
            self.fail(FastOpenFailure::SynRepeated);
        }
    }

    /// The peer acknowledged our SYN and `bytes` bytes behind it.
    pub(crate) fn on_syn_acked(&mut self, bytes: u32) {
        if self.has(Self::DATA_SENT) {
            match bytes {
                0 => self.fail(FastOpenFailure::DataNotAcked),
                _ => self.add(Self::DATA_ACKED),
            }
        }
    }

    /// Whether bytes are lost that the peer's answer to the SYN leaves unacknowledged. A server
    /// that took the SYN alone did not take a client's bytes. Bytes of a server are on their way,
    /// unless the SYN-ACK before them was lost.
    pub(crate) fn has_lost_bytes(self) -> bool {
        self.is_client() || self.is_repeated()
    }

    /// The event of a RST in SYN-RECEIVED. A program that has the connection already is notified of
    /// the reset, as on Linux.
    pub(crate) fn reset_event(self) -> u16 {
        if self.is_server() { pending::RESET } else { pending::REFUSED }
    }

    fn add(&mut self, bit: u8) {
        self.0 |= bit;
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Notes a reason, unless one was noted before.
    pub(crate) fn fail(&mut self, why: FastOpenFailure) {
        if self.0 >> Self::FAIL_SHIFT == 0 {
            self.0 |= (why as u8) << Self::FAIL_SHIFT;
        }
    }

    pub(crate) fn outcome(self) -> FastOpenOutcome {
        FastOpenOutcome {
            data_acked: self.has(Self::DATA_ACKED),
            failure: match self.0 >> Self::FAIL_SHIFT {
                0 => None,
                1 => Some(FastOpenFailure::NoCookie),
                2 => Some(FastOpenFailure::DataNotAcked),
                _ => Some(FastOpenFailure::SynRepeated),
            },
        }
    }
}

/// Fate of the bytes in a SYN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FastOpenOutcome {
    /// Bytes in the SYN were acknowledged with it: those of a client by its server, or of a peer by
    /// this host. Linux's `TCPI_OPT_SYN_DATA`.
    pub data_acked: bool,
    /// Why a client's SYN took no bytes along.
    pub failure: Option<FastOpenFailure>,
}

/// Why Fast Open spared a client no round trip: Linux's `enum tcp_fastopen_client_fail`, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FastOpenFailure {
    /// The client had no cookie, and asked for one.
    NoCookie = 1,
    /// The server acknowledged the SYN alone.
    DataNotAcked = 2,
    /// No answer came to the SYN, which was sent again without bytes.
    SynRepeated = 3,
}
