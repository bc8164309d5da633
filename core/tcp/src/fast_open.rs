//! TCP Fast Open (RFC 7413): bytes that travel in the SYN.
//!
//! The connection knows no cookie. The owner of a client checks that it has one before it calls
//! [`Connection::connect_with_data`], and puts it into the SYN. The owner of a server checks the
//! cookie of a SYN before it calls [`Connection::accept_with_data`].
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

use crate::config::Config;
use crate::connection::Connection;
use crate::disposition::{DropReason, FifoChanges};
use crate::event::pending;
use crate::plan::{Idle, Plan, Transmit, TransmitKind};
use crate::segment::{Buffers, Segment};
use crate::state::State;
use crate::time::Instant;
use towpath_wire::tcp::{Flags, SeqNum};

/// Longest options of a header, for which the bytes of a SYN leave room: Linux's
/// `MAX_TCP_OPTION_SPACE`.
const OPTIONS_LEN_MAX: u32 = 40;

/// Part of a connection in Fast Open, in the one byte that [`Connection`]'s budget has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FastOpen(u8);

impl FastOpen {
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

    fn add(&mut self, bit: u8) {
        self.0 |= bit;
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// The reason that is in place already stays.
    fn fail(&mut self, why: FastOpenFailure) {
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

impl Connection {
    /// An active open whose SYN carries the first bytes. The SYN waits until the program has
    /// written, or has ended its direction. [`Config::mss_default`] bounds these bytes:
    /// the MSS that the server announced with the cookie, if it is known.
    pub fn connect_with_data(
        config: Config,
        iss: SeqNum,
        timestamp_offset: u32,
        now: Instant,
    ) -> Connection {
        let mut connection = Connection::connect(config, iss, timestamp_offset, now);
        connection.fast_open.add(FastOpen::CLIENT);
        connection
    }

    /// Notes that the SYN asks for a cookie, for want of one to send.
    pub fn note_no_cookie(&mut self) {
        self.fast_open.fail(FastOpenFailure::NoCookie);
    }

    /// A passive open by a SYN whose cookie is valid, in SYN-RECEIVED. The changes are for its
    /// FIFOs, which are as `buffers` says.
    pub fn accept_with_data(
        config: Config,
        syn: &Segment,
        iss: SeqNum,
        timestamp_offset: u32,
        now: Instant,
        buffers: Buffers,
    ) -> (Connection, FifoChanges) {
        let mut connection = Connection::connect(config, iss, timestamp_offset, now);
        connection.settings.syn_retries = config.syn_ack_retries;
        connection.fast_open.add(FastOpen::SERVER);
        connection.count_segment(syn);
        connection.rcv_adv = connection.rcv_nxt + buffers.recv_free;
        connection.accept_syn(now, syn);
        connection.state = State::SynReceived;
        let mut received = FifoChanges::default();
        connection.take_syn_text(now, syn, buffers, &mut received);
        if received.commit > 0 {
            connection.fast_open.add(FastOpen::DATA_ACKED);
        }
        (connection, received)
    }

    /// Whether bytes may be in flight, or written, although the handshake is under way.
    pub fn is_fast_opening(&self) -> bool {
        match self.state {
            State::SynSent => self.fast_open.is_client(),
            State::SynReceived => self.fast_open.is_server(),
            _ => false,
        }
    }

    /// The SYN of an active open waits no more for bytes: the program wrote none on purpose.
    pub fn open_without_bytes(&mut self) {
        self.fast_open.add(FastOpen::HURRIED);
    }

    /// Whether the SYN of this active open was sent more than once.
    pub fn has_repeated_syn(&self) -> bool {
        self.fast_open.is_client() && self.fast_open.has(FastOpen::REPEATED)
    }

    /// Whether bytes may be in flight before the peer has acknowledged our SYN.
    pub(crate) fn has_early_bytes(&self) -> bool {
        self.fast_open.is_server() || self.fast_open.has(FastOpen::DATA_SENT)
    }

    /// As [`close`](Self::close) of an active open whose program has written bytes: these go, and
    /// then the FIN, once the handshake is over.
    pub fn close_behind_bytes(&mut self) {
        self.orphaned = true;
        self.shutdown_send();
    }

    /// The SYN, with as many bytes as it takes along.
    pub(crate) fn plan_syn(&self, buffers: Buffers) -> Option<Transmit> {
        let first = self.snd_nxt == self.iss;
        let mut len = 0;
        if self.fast_open.is_client() && first {
            let waits = !self.fin_queued && !self.fast_open.has(FastOpen::HURRIED);
            if buffers.send_len == 0 && waits {
                return None;
            }
            len = buffers.send_len.min(self.syn_payload_max());
        }
        let segment_size = u16::try_from(len).unwrap_or(u16::MAX);
        Some(Transmit { seq: self.iss, len, segment_size, ..self.bare(TransmitKind::Syn) })
    }

    /// Bytes that the SYN takes along: a segment less the longest options (RFC 7413 §4.1.3).
    fn syn_payload_max(&self) -> u32 {
        u32::from(self.mss_without_options()).saturating_sub(OPTIONS_LEN_MAX)
    }

    /// The SYN went out with `len` bytes.
    pub(crate) fn on_syn_data_sent(&mut self, now: Instant, len: u32) {
        if len == 0 {
            return;
        }
        self.note_paced(now, len);
        self.fast_open.add(FastOpen::DATA_SENT);
        self.counters.last_data_sent = now;
        self.counters.data_segs_out = self.counters.data_segs_out.wrapping_add(1);
    }

    /// The SYN or SYN-ACK goes again.
    pub(crate) fn on_syn_repeated(&mut self) {
        self.fast_open.add(FastOpen::REPEATED);
        if self.fast_open.is_client() {
            self.fast_open.fail(FastOpenFailure::SynRepeated);
        }
    }

    /// Bytes that go in SYN-RECEIVED, before the client has acknowledged the SYN-ACK. The FIN waits
    /// for that (RFC 7413 §4.2.2).
    pub(crate) fn plan_before_handshake(
        &self,
        now: Instant,
        buffers: Buffers,
        max_payload: u32,
    ) -> Plan {
        let max_payload = self.within_burst(max_payload.max(self.segment_size()));
        let bytes = self.plan_new(buffers, self.room(now), max_payload);
        match self.pace(now, bytes) {
            Ok(transmit) if transmit.len > 0 => Plan::Send(Transmit { fin: false, ..transmit }),
            _ if self.owed.ack => Plan::Send(self.bare(TransmitKind::Ack)),
            Err(Idle::Pacing) => Plan::Nothing(Idle::Pacing),
            _ => Plan::Nothing(Idle::NotConnected),
        }
    }

    /// RFC 9293 §3.10.7.4 in SYN-RECEIVED, where a client that has no SYN-ACK repeats its SYN.
    /// SND.WL1 is the peer's initial number there.
    pub(crate) fn on_segment_in_syn_received(
        &mut self,
        now: Instant,
        segment: &Segment,
        buffers: Buffers,
    ) -> Result<FifoChanges, DropReason> {
        let is_syn = segment.flags.contains(Flags::SYN)
            && !segment.flags.intersects(Flags::ACK | Flags::RST);
        if self.fast_open.is_server() && is_syn && segment.seq == self.snd_wl1 {
            self.owed.syn = true;
            return Ok(FifoChanges::default());
        }
        self.on_segment_in_sequence(now, segment, buffers)
    }

    /// The event of a RST in SYN-RECEIVED. A program that has the connection already is told that
    /// the peer reset it, as on Linux.
    pub(crate) fn reset_event_before_handshake(&self) -> u16 {
        if self.fast_open.is_server() { pending::RESET } else { pending::REFUSED }
    }

    /// The peer acknowledged our SYN and `bytes` bytes behind it, when bytes are or were in flight.
    pub(crate) fn on_early_bytes_acked(&mut self, now: Instant, bytes: u32) {
        self.counters.bytes_acked += u64::from(bytes);
        if self.fast_open.has(FastOpen::DATA_SENT) {
            match bytes {
                0 => self.fast_open.fail(FastOpenFailure::DataNotAcked),
                _ => self.fast_open.add(FastOpen::DATA_ACKED),
            }
        }
        if self.flight() == 0 {
            return;
        }
        // A client's bytes are lost: the server that took the SYN did not take them. A server's
        // are on their way, unless the SYN-ACK before them was lost.
        if self.fast_open.is_client() || self.fast_open.has(FastOpen::REPEATED) {
            self.recovery.resend(self.snd_una, self.snd_nxt, self.snd_nxt);
            self.stop_timing();
        }
        self.timers.retransmit = now + self.rtt.rto();
    }
}
