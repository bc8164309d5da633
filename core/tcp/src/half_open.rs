//! A passive open before the handshake is complete. The state is small, because it has no buffers
//! and no congestion control.

mod syn_cookie;

use crate::challenge::ChallengeLimit;
use crate::config::{Config, WINDOW_SCALE_MAX};
use crate::disposition::SegmentDropReason;
use crate::ecn::EcnState;
use crate::reset::reset_for;
use crate::segment::{Outgoing, Segment};
use crate::time::{Instant, millis};
use crate::timestamps;
use core::time::Duration;
use towpath_wire::Ecn;
use towpath_wire::tcp::{Flags, Options, SeqNum, Timestamps};

pub use syn_cookie::{COOKIE_LIFETIME, CookieClaims};

/// A connection in SYN-RECEIVED after a passive open (RFC 9293 §3.3.2).
///
/// Send [`syn_ack`](Self::syn_ack) once after `new`, and again whenever `on_timeout` returns true.
#[derive(Debug, Clone)]
pub struct HalfOpen {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5
    //# a TCP implementation MUST keep track of whether a connection has reached SYN-RECEIVED state
    //# as the result of a passive OPEN or an active OPEN (MUST-11).
    iss: SeqNum,
    irs: SeqNum,
    ts_recent: u32,
    ts_offset: u32,
    mss_peer: Option<u16>,
    mss_recv: u16,
    recv_window: u16,
    /// Window scale of the peer, if both ends offered the option.
    send_scale: Option<u8>,
    recv_scale: u8,
    sack: bool,
    timestamps: bool,
    ecn: EcnState,
    /// ECN codepoint in the IP header of the peer's last SYN.
    peer_ecn: Ecn,
    /// Number of SYN-ACKs sent, including those that answer a retransmitted SYN.
    sent: u8,
    /// Number of retransmission timeouts that have expired.
    timeouts: u8,
    retries: u8,
    rto_ms: u32,
    rto_max_ms: u32,
    sent_at: Instant,
    deadline: Instant,
    challenge: ChallengeLimit,
}

/// Result of a completed handshake; pass it to [`Connection::accept`](crate::Connection::accept).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// Our initial sequence number.
    pub iss: SeqNum,
    /// The peer's initial sequence number.
    pub irs: SeqNum,
    /// The peer's MSS option, if it sent one.
    pub mss_peer: Option<u16>,
    /// Window scale of the peer, if both ends offered the option.
    pub send_scale: Option<u8>,
    /// Window scale of our SYN-ACK, which applies if `send_scale` is set. `None` stands for
    /// [`Config::window_scale`].
    pub recv_scale: Option<u8>,
    /// Whether both ends support selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Whether both ends send timestamps (RFC 7323).
    pub timestamps: bool,
    /// Negotiated use of Explicit Congestion Notification.
    pub ecn: EcnState,
    /// TS.Recent of RFC 7323: the peer's timestamp to echo.
    pub ts_recent: u32,
    /// Offset in milliseconds between our clock and the timestamps that we send.
    pub ts_offset: u32,
    /// Receive window of the peer in bytes, from the last segment.
    pub send_window: u32,
    /// Receive window in bytes that our last SYN-ACK advertised.
    pub recv_window: u16,
    /// Time from our SYN-ACK to its acknowledgement; `None` if it was sent more than once.
    pub rtt: Option<Duration>,
    /// Whether the SYN-ACK was sent more than once.
    pub retransmitted: bool,
}

impl Handshake {
    /// Creates the result of a handshake with a peer that offered no options. Windows are not
    /// scaled.
    ///
    /// ```
    /// use towpath_tcp::{Handshake, SeqNum};
    ///
    /// let plain = Handshake::without_options(SeqNum(100), SeqNum(200));
    /// let handshake = Handshake { mss_peer: Some(1460), sack: true, ..plain };
    /// assert_eq!((handshake.send_scale, handshake.send_window), (None, 65_535));
    /// ```
    pub fn without_options(iss: SeqNum, irs: SeqNum) -> Self {
        Self {
            iss,
            irs,
            mss_peer: None,
            send_scale: None,
            recv_scale: None,
            sack: false,
            timestamps: false,
            ecn: EcnState::default(),
            ts_recent: 0,
            ts_offset: 0,
            send_window: u16::MAX.into(),
            recv_window: u16::MAX,
            rtt: None,
            retransmitted: false,
        }
    }

    pub(crate) fn peer_options(&self) -> Options {
        Options {
            mss: self.mss_peer,
            window_scale: self.send_scale,
            sack_permitted: self.sack,
            timestamps: self.timestamps.then(Timestamps::default),
            ..Options::default()
        }
    }
}

/// Limit the size of a half-open connection, because a SYN flood fills a table of them.
const _: () = assert!(size_of::<HalfOpen>() <= 100);

/// Result of a segment for a half-open connection, which states what the caller must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfOpenVerdict {
    /// The handshake is complete. Create the connection, then pass the same segment to it.
    Established(Handshake),
    /// The peer reset the connection. Drop the half-open connection.
    Reset,
    /// Send this challenge ACK. The half-open connection is unchanged.
    ChallengeAck(Outgoing),
    /// The peer retransmitted its SYN. Send [`HalfOpen::syn_ack`] again.
    ResendSynAck,
    /// Drop the segment, for this reason, without an answer.
    Drop(SegmentDropReason),
    /// Send this RST. The state of the half-open connection did not change.
    SendReset(Outgoing),
}

impl HalfOpen {
    /// Creates a half-open connection from a SYN to a listener. The caller has checked that the
    /// segment has SYN and neither ACK nor RST.
    pub fn new(
        config: &Config,
        syn: &Segment,
        iss: SeqNum,
        ts_offset: u32,
        now: Instant,
    ) -> HalfOpen {
        let options = &syn.options;
        let offered = options.window_scale.filter(|_| config.scaling);
        HalfOpen {
            iss,
            irs: syn.seq,
            ts_recent: options.timestamps.map_or(0, |timestamps| timestamps.value),
            ts_offset,
            mss_peer: options.mss,
            mss_recv: config.mss_recv,
            recv_window: 0,
            send_scale: offered.map(|shift| shift.min(WINDOW_SCALE_MAX)),
            recv_scale: offered.map_or(0, |_| config.window_scale.min(WINDOW_SCALE_MAX)),
            sack: config.sack && options.sack_permitted,
            timestamps: config.timestamps && options.timestamps.is_some(),
            ecn: EcnState::answer(config.ecn, syn.flags),
            peer_ecn: syn.ecn,
            sent: 0,
            timeouts: 0,
            retries: config.syn_ack_retries,
            rto_ms: millis(config.rto_initial),
            rto_max_ms: millis(config.rto_max),
            sent_at: now,
            deadline: now + config.rto_initial,
            challenge: ChallengeLimit::default(),
        }
    }

    /// Returns the SYN-ACK, for the first transmission and for retransmissions. `recv_window` is
    /// the free receive space in bytes. The window of a SYN is never scaled.
    pub fn syn_ack(&mut self, now: Instant, recv_window: u32) -> Outgoing {
        self.sent = self.sent.saturating_add(1);
        self.sent_at = now;
        self.recv_window = u16::try_from(recv_window).unwrap_or(u16::MAX);
        let flags = Flags::SYN | Flags::ACK | self.ecn.syn_ack_flags(self.timeouts, self.peer_ecn);
        Outgoing {
            options: Options {
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
                //# TCP endpoints MUST implement both sending and receiving the MSS Option
                //# (MUST-14).
                mss: Some(self.mss_recv),
                //= https://www.rfc-editor.org/rfc/rfc7323#section-2.2
                //# If a Window Scale option was received in the initial <SYN> segment, then this
                //# option MAY be sent in the <SYN,ACK> segment.
                //= https://www.rfc-editor.org/rfc/rfc7323#section-2.3
                //# it SHOULD send its own Window Scale option in the <SYN,ACK> segment.
                window_scale: self.send_scale.map(|_| self.recv_scale),
                sack_permitted: self.sack,
                timestamps: self.timestamps_option(now),
                ..Options::default()
            },
            retransmit: self.sent > 1,
            ..Outgoing::bare(self.iss, self.irs + 1, flags, self.recv_window)
        }
    }

    /// Handles a segment received in SYN-RECEIVED (RFC 9293 §3.10.7.4).
    pub fn on_segment(&mut self, now: Instant, segment: &Segment) -> HalfOpenVerdict {
        let flags = segment.flags;
        if flags.contains(Flags::SYN)
            && !flags.intersects(Flags::ACK | Flags::RST)
            && segment.seq == self.irs
        {
            if self.ecn.on_syn_again(segment.flags) {
                self.peer_ecn = segment.ecn;
                return HalfOpenVerdict::ResendSynAck;
            }
            let reset = reset_for(segment).map(HalfOpenVerdict::SendReset);
            return reset.unwrap_or(HalfOpenVerdict::Drop(SegmentDropReason::SynInWindow));
        }
        if let Err(verdict) = self.check_timestamps(now, segment) {
            return verdict;
        }
        let rcv_nxt = self.irs + 1;
        let window = u32::from(self.recv_window);
        // Accept a segment that starts in the receive window, or that starts before the window and
        // extends into it.
        let acceptable = segment.seq.is_within(rcv_nxt, window + 1)
            || rcv_nxt.is_within(segment.seq, segment.seq_len());
        if flags.contains(Flags::RST) {
            return match acceptable {
                true if segment.seq == rcv_nxt => HalfOpenVerdict::Reset,
                // A RST with RCV.NXT < SEG.SEQ < RCV.NXT+RCV.WND must be answered with a challenge
                // ACK (RFC 5961 section 3.2).
                true if segment.seq.is_within(rcv_nxt, window) => {
                    self.challenge(now, SegmentDropReason::ResetInWindow)
                }
                _ => HalfOpenVerdict::Drop(SegmentDropReason::OutOfWindow),
            };
        }
        if !acceptable {
            return self.challenge(now, SegmentDropReason::OutOfWindow);
        }
        if flags.contains(Flags::SYN) {
            return self.challenge(now, SegmentDropReason::SynInWindow);
        }
        if !flags.contains(Flags::ACK) {
            return HalfOpenVerdict::Drop(SegmentDropReason::NoAck);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# If the segment acknowledgment is not acceptable, form a reset segment <SEQ=SEG.ACK><CTL=RST>
        if segment.ack != self.iss + 1 {
            return HalfOpenVerdict::SendReset(Outgoing {
                options: Options { timestamps: self.timestamps_option(now), ..Options::default() },
                ..Outgoing::bare(segment.ack, SeqNum(0), Flags::RST, 0)
            });
        }
        HalfOpenVerdict::Established(self.handshake(segment))
    }

    fn check_timestamps(&mut self, now: Instant, segment: &Segment) -> Result<(), HalfOpenVerdict> {
        if !self.timestamps {
            return Ok(());
        }
        timestamps::check(self.ts_recent, segment).map_err(|reason| match reason {
            SegmentDropReason::Paws => self.challenge(now, reason),
            reason => HalfOpenVerdict::Drop(reason),
        })
    }

    fn challenge(&mut self, now: Instant, reason: SegmentDropReason) -> HalfOpenVerdict {
        if !self.challenge.allow(now) {
            return HalfOpenVerdict::Drop(reason);
        }
        let window = self.recv_window >> self.recv_scale;
        HalfOpenVerdict::ChallengeAck(Outgoing {
            options: Options { timestamps: self.timestamps_option(now), ..Options::default() },
            ..Outgoing::bare(self.iss + 1, self.irs + 1, Flags::ACK, window)
        })
    }

    fn handshake(&self, segment: &Segment) -> Handshake {
        let rtt = (self.sent == 1).then(|| segment.arrival.since(self.sent_at));
        let mut ecn = self.ecn;
        ecn.on_handshake_ack(segment);
        Handshake {
            iss: self.iss,
            irs: self.irs,
            mss_peer: self.mss_peer,
            send_scale: self.send_scale,
            recv_scale: Some(self.recv_scale),
            sack: self.sack,
            timestamps: self.timestamps,
            ecn,
            // Do not update TS.Recent from this segment. The connection updates it when it receives
            // the segment in order. If this segment overtook others, its timestamp would make the
            // others look old.
            ts_recent: self.ts_recent,
            ts_offset: self.ts_offset,
            send_window: u32::from(segment.window) << self.send_scale.unwrap_or(0),
            recv_window: self.recv_window,
            rtt,
            retransmitted: self.sent > 1,
        }
    }

    fn timestamps_option(&self, now: Instant) -> Option<Timestamps> {
        self.timestamps.then(|| timestamps::option(now, self.ts_offset, self.ts_recent))
    }

    /// Returns the time at which `on_timeout` must be called.
    pub fn next_timeout(&self) -> Instant {
        self.deadline
    }

    /// Handles a retransmission timeout. Call it when `now` has reached `next_timeout`. Returns
    /// true if [`syn_ack`](Self::syn_ack) should be sent again. Returns false if the peer does not
    /// answer and the half-open connection should be dropped.
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        if self.timeouts >= self.retries {
            return false;
        }
        self.timeouts += 1;
        self.rto_ms = self.rto_ms.saturating_mul(2).min(self.rto_max_ms);
        self.deadline = now + Duration::from_millis(u64::from(self.rto_ms));
        true
    }

    /// Returns our initial sequence number.
    pub fn iss(&self) -> SeqNum {
        self.iss
    }

    /// Returns the peer's initial sequence number.
    pub fn irs(&self) -> SeqNum {
        self.irs
    }
}
