//! Decides which segment to send next, or why none is sent. Does not change the connection, which
//! is left to `emit`.

use crate::connection::{Connection, LastReset};
use crate::recovery::Hole;
use crate::segment::FifoLevels;
use crate::state::State;
use crate::time::Instant;
use towpath_wire::tcp::SeqNum;

/// Decision of [`Connection::plan`]: the next segment to send, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Send this segment. Pass it to `emit` before any other call on the connection. Discarding the
    /// segment is also permitted, because `plan` changes no state.
    Send(Transmit),
    /// No segment can be sent now, for this reason.
    Nothing(Idle),
}

/// Reason why no segment can be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Idle {
    /// All bytes that the program has written were sent.
    NoData,
    /// The peer's receive window is closed, or too small for a reasonable segment.
    ClosedWindow,
    /// The bytes in flight fill the congestion window.
    CongestionWindow,
    /// A segment shorter than the MSS waits until an earlier short one is acknowledged (Nagle's
    /// algorithm).
    Nagle,
    /// A segment shorter than the MSS waits because of TCP_CORK or MSG_MORE.
    Corked,
    /// The pacing rate delays the next bytes, see
    /// [`Config::max_pacing_rate`](crate::Config::max_pacing_rate).
    Pacing,
    /// The handshake is not complete, or the connection is closed.
    NotConnected,
}

/// A segment chosen by `plan`, to be passed to `emit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    pub(crate) kind: TransmitKind,
    pub(crate) seq: SeqNum,
    pub(crate) len: u32,
    pub(crate) segment_size: u16,
    pub(crate) fin: bool,
    pub(crate) push: bool,
}

impl Transmit {
    /// Returns the kind of the segment.
    pub fn kind(&self) -> TransmitKind {
        self.kind
    }

    /// Returns the payload length in bytes of the segment that `emit` will create.
    pub fn payload_len(&self) -> u32 {
        self.len
    }
}

/// Kind of a segment to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransmitKind {
    /// SYN or SYN-ACK.
    Syn,
    /// New bytes, a FIN, or both.
    Data,
    /// Retransmission of data or a FIN.
    Retransmit,
    /// An acknowledgement without data.
    Ack,
    /// Probe of the peer's closed receive window.
    WindowProbe,
    /// Keep-alive probe of an idle peer.
    KeepAlive,
    /// The RST that aborts the connection, or a RST that answers a segment that does not belong to
    /// it.
    Reset,
}

impl Connection {
    /// Returns the most urgent segment to send, with at most `max_payload` bytes of payload. If
    /// `max_payload` exceeds one segment, a lower layer must segment the data (TSO). If
    /// `max_payload` is smaller, one segment may be sent nevertheless.
    pub fn plan(&self, now: Instant, buffers: FifoLevels, max_payload: u32) -> Plan {
        // Send single segments if segmentation by the device would produce a wrong urgent pointer
        // or ACE field.
        let is_single = self.is_urgent() || self.ecn.needs_single_segments(&self.counters.ecn());
        let max_payload = if is_single { 0 } else { max_payload };
        if let Some(transmit) = self.plan_control(now, buffers, max_payload) {
            return Plan::Send(transmit);
        }
        if !self.state.is_synchronized() {
            return match self.state {
                State::SynReceived if self.ext.fast_open.is_server() => {
                    self.plan_before_handshake(now, buffers, max_payload)
                }
                State::SynReceived if self.owed.ack => Plan::Send(self.bare(TransmitKind::Ack)),
                _ => Plan::Nothing(Idle::NotConnected),
            };
        }
        if self.owed.dup_acks > 0 || self.ecn.owes_report() {
            return Plan::Send(self.bare(TransmitKind::Ack));
        }
        let max_payload = max_payload.max(self.segment_size());
        let idle = match self.plan_bytes(now, buffers, max_payload) {
            Ok(transmit) => return Plan::Send(transmit),
            Err(idle) => idle,
        };
        match self.plan_bare(buffers, idle) {
            Some(kind) => Plan::Send(self.bare(kind)),
            None => Plan::Nothing(idle),
        }
    }

    /// Returns the pending acknowledgement as a segment without data. Use this if there is no space
    /// for the data segment by which [`plan`](Self::plan) would acknowledge.
    pub fn plan_ack(&self) -> Option<Transmit> {
        let due = self.state.is_synchronized() && self.owed.ack;
        due.then(|| self.bare(TransmitKind::Ack))
    }

    /// Plans SYN and RST segments, and the data that precedes a RST.
    fn plan_control(
        &self,
        now: Instant,
        buffers: FifoLevels,
        max_payload: u32,
    ) -> Option<Transmit> {
        if let Some(seq) = self.owed.reset_reply() {
            return Some(Transmit { seq, ..self.bare(TransmitKind::Reset) });
        }
        if self.owed.is_aborting() {
            let last = self.plan_last(now, buffers, max_payload);
            return last.or_else(|| Some(self.bare(TransmitKind::Reset)));
        }
        if self.owed.syn {
            return self.plan_syn(buffers);
        }
        None
    }

    /// Plans the SYN with its data; `None` while the SYN waits for the program to write data.
    fn plan_syn(&self, buffers: FifoLevels) -> Option<Transmit> {
        //= https://www.rfc-editor.org/rfc/rfc7413#section-4.2.2
        //# when the SYN timer fires, the client SHOULD retransmit a SYN packet without data and
        //# Fast Open options.
        let first = self.snd.nxt == self.snd.iss;
        let (mss, fin_queued) = (self.snd.mss_with_options(), self.snd.fin_queued);
        let len =
            if first { self.ext.fast_open.syn_payload(buffers, mss, fin_queued)? } else { 0 };
        let segment_size = u16::try_from(len).unwrap_or(u16::MAX);
        Some(Transmit { seq: self.snd.iss, len, segment_size, ..self.bare(TransmitKind::Syn) })
    }

    /// Plans data in SYN-RECEIVED, before the client has acknowledged the SYN-ACK. The FIN has to
    /// wait for the acknowledgement (RFC 7413 §4.2.2).
    fn plan_before_handshake(&self, now: Instant, buffers: FifoLevels, max_payload: u32) -> Plan {
        let max_payload = self.within_burst(max_payload.max(self.segment_size()));
        let bytes = self.plan_new(buffers, self.room(now), max_payload);
        match self.pace(now, bytes) {
            Ok(transmit) if transmit.len > 0 => Plan::Send(Transmit { fin: false, ..transmit }),
            _ if self.owed.ack => Plan::Send(self.bare(TransmitKind::Ack)),
            Err(Idle::Pacing) => Plan::Nothing(Idle::Pacing),
            _ => Plan::Nothing(Idle::NotConnected),
        }
    }

    /// Plans new data or a FIN to be sent before the RST of [`abort`](Self::abort).
    fn plan_last(&self, now: Instant, buffers: FifoLevels, max_payload: u32) -> Option<Transmit> {
        if self.owed.reset != LastReset::BehindBytes {
            return None;
        }
        let max_payload = max_payload.max(self.segment_size());
        let max_payload = self.within_burst(max_payload);
        self.pace(now, self.plan_new(buffers, self.room(now), max_payload)).ok()
    }

    /// Plans a segment without data, unless a data segment is about to carry the same information.
    fn plan_bare(&self, buffers: FifoLevels, idle: Idle) -> Option<TransmitKind> {
        if self.owed.window_probe && idle == Idle::ClosedWindow && self.snd.flight() == 0 {
            let fin_wanted = self.snd.fin_queued && !self.snd.fin_sent;
            if fin_wanted || self.unsent(buffers) > 0 {
                return Some(TransmitKind::WindowProbe);
            }
        }
        if self.owed.keepalive && self.snd.flight() == 0 {
            return Some(TransmitKind::KeepAlive);
        }
        self.owed.ack.then_some(TransmitKind::Ack)
    }

    fn bare(&self, kind: TransmitKind) -> Transmit {
        Transmit { kind, seq: self.snd.nxt, len: 0, segment_size: 0, fin: false, push: false }
    }

    /// Plans data or a FIN, as far as the windows and the pacing rate allow.
    fn plan_bytes(
        &self,
        now: Instant,
        buffers: FifoLevels,
        max_payload: u32,
    ) -> Result<Transmit, Idle> {
        if !self.state.may_send() {
            return Err(Idle::NoData);
        }
        let max_payload = self.within_burst(max_payload);
        self.pace(now, self.plan_in_windows(now, buffers, max_payload))
    }

    /// Plans retransmissions first, then new data. A due tail loss probe precedes both.
    //= https://www.rfc-editor.org/rfc/rfc6675#section-4
    //# NextSeg () MUST return the sequence number range of the next segment that is to be
    //# transmitted, per the following rules:
    fn plan_in_windows(
        &self,
        now: Instant,
        buffers: FifoLevels,
        max_payload: u32,
    ) -> Result<Transmit, Idle> {
        if self.recovery.is_probe_due()
            && let Some(transmit) = self.plan_probe(buffers)
        {
            return Ok(transmit);
        }
        let room = self.room(now);
        if let Some(planned) = self.plan_forward(buffers, room, max_payload) {
            return planned;
        }
        //= https://www.rfc-editor.org/rfc/rfc6675#section-5
        //# (C.1) The scoreboard MUST be queried via NextSeg () for the sequence number range of the
        //# next segment to transmit (if any), and the given segment sent.
        if let Some(transmit) = self.plan_retransmit(room, max_payload) {
            return Ok(transmit);
        }
        //= https://www.rfc-editor.org/rfc/rfc6675#section-4
        //# (2) If no sequence number 'S2' per rule (1) exists but there exists available unsent
        //# data and the receiver's advertised window allows, the sequence range of one segment of
        //# up to SMSS octets of previously unsent data starting with sequence number HighData+1
        //# MUST be returned.
        self.plan_new(buffers, room, max_payload)
    }

    /// Plans new bytes before lost bytes while F-RTO checks whether a timeout was spurious. Returns
    /// `None` if there is no check, or if no new bytes may be sent. A retransmission then ends the
    /// check.
    fn plan_forward(
        &self,
        buffers: FifoLevels,
        room: u32,
        max_payload: u32,
    ) -> Option<Result<Transmit, Idle>> {
        let allowed = self.recovery.forward_room(self.snd.nxt, self.mss())?;
        let planned = self.plan_new(buffers, room.min(allowed), max_payload);
        let is_sent = self.snd.nxt != self.recovery.point;
        (planned.is_ok() || is_sent).then_some(planned)
    }

    /// Plans a tail loss probe: new data if it may be sent, otherwise the last segment in flight.
    /// The congestion window does not limit the probe (RFC 8985 §7.3).
    fn plan_probe(&self, buffers: FifoLevels) -> Option<Transmit> {
        let mss = self.segment_size();
        //= https://www.rfc-editor.org/rfc/rfc8985#section-7.3
        //# the sender SHOULD transmit a previously unsent data segment, if one exists and the
        //# receive window allows
        if let Ok(transmit) = self.plan_new(buffers, mss, mss) {
            return Some(transmit);
        }
        //= https://www.rfc-editor.org/rfc/rfc8985#section-7.3
        //# If such an unsent segment is not available, then the sender SHOULD retransmit the
        //# highest-sequence segment sent so far
        let start = self.recovery.record().map_or(self.snd.una, |it| it.last_start());
        let fin = u32::from(self.snd.fin_in_flight());
        // Start the probe after the last record boundary (MSG_EOR), because a transmission of the
        // flight record may contain several records.
        let boundary = self.recovery.boundary_before(self.snd.nxt - fin, self.snd.una);
        let start = start.max(boundary.unwrap_or(self.snd.una)).max(self.snd.una);
        let tail = match self.snd.nxt - start - fin {
            0 => 0,
            bytes => (bytes - 1) % mss + 1,
        };
        let hole = Hole { left: self.snd.nxt - tail - fin, right: self.snd.nxt };
        Some(self.retransmit(self.in_flight(hole)?, mss + fin))
    }

    /// Returns the free space of the congestion window in bytes.
    //= https://www.rfc-editor.org/rfc/rfc9937#section-3
    //# a connection MUST NOT send data if inflight (see below) matches or exceeds cwnd.
    //= https://www.rfc-editor.org/rfc/rfc6675#section-5
    //# The TCP MAY transmit previously unsent data segments as per Limited Transmit [RFC5681],
    //# except that the number of octets which may be sent is governed by pipe and cwnd
    pub(crate) fn room(&self, now: Instant) -> u32 {
        self.cwnd_now(now).saturating_sub(self.recovery.pipe(self.snd.una, self.snd.nxt))
    }

    /// Returns the congestion window or, after an idle period longer than the RTO, the restart
    /// window.
    ///
    //= https://www.rfc-editor.org/rfc/rfc5681#section-4.1
    //# Therefore, a TCP SHOULD set cwnd to no more than RW before beginning transmission if the TCP
    //# has not sent data in an interval exceeding the retransmission timeout.
    pub(crate) fn cwnd_now(&self, now: Instant) -> u32 {
        if self.is_restart(now) {
            self.congestion.restart_window(self.mss(), self.settings.initial_window)
        } else {
            self.congestion.cwnd()
        }
    }

    pub(crate) fn is_restart(&self, now: Instant) -> bool {
        self.snd.flight() == 0
            && self.counters.last_data_sent != Instant::ZERO
            && self.rtt.has_rto_passed(self.counters.last_data_sent, now)
    }

    fn plan_retransmit(&self, room: u32, max_payload: u32) -> Option<Transmit> {
        let hole = self.in_flight(self.recovery.next_hole()?)?;
        let mss = self.segment_size();
        let len = self.within_record(hole.left, hole.right - hole.left);
        let hole = Hole { right: hole.left + len, ..hole };
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# The sender MAY also retransmit old data beyond SND.UNA+SND.WND (MAY-7)
        if self.recovery.is_forced() {
            return Some(self.retransmit(hole, mss));
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# SHOULD retransmit normally the old unacknowledged data between SND.UNA and SND.UNA+SND.WND
        //# (SHLD-16).
        //= https://www.rfc-editor.org/rfc/rfc8985#section-9.3
        //# A segment marked as lost by RACK-TLP MUST NOT be retransmitted until congestion control
        //# deems this appropriate.
        //= https://www.rfc-editor.org/rfc/rfc6675#section-5
        //# (C) If cwnd - pipe >= 1 SMSS, the sender SHOULD transmit one or more segments
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.4
        //# Subsequent retransmissions MAY only be sent if they are within the window announced by
        //# the most recent <ACK>.
        if hole.left - self.snd.una >= self.snd.wnd || room < len.min(mss) {
            return None;
        }
        let whole = if room < len { room - room % mss } else { len };
        Some(self.retransmit(hole, whole.min(max_payload - max_payload % mss).max(mss)))
    }

    /// Returns the hole if all its bytes were sent. SACK blocks are validated on arrival, so this
    /// check fails only if the scoreboard is wrong. A hole beyond SND.NXT would send bytes that
    /// were never written. If the check fails, the retransmission timer later builds a new
    /// scoreboard.
    fn in_flight(&self, hole: Hole) -> Option<Hole> {
        let (start, end) = (hole.left - self.snd.una, hole.right - self.snd.una);
        let sent = start < end && end <= self.snd.flight();
        debug_assert!(sent, "{hole:?} is not in flight");
        sent.then_some(hole)
    }

    /// Plans a retransmission from the start of the hole, of at most `max` sequence numbers.
    fn retransmit(&self, hole: Hole, max: u32) -> Transmit {
        let right = hole.left + (hole.right - hole.left).min(max);
        let fin = self.snd.fin_sent && right == self.snd.nxt;
        let len = (right - hole.left) - u32::from(fin);
        Transmit {
            kind: TransmitKind::Retransmit,
            seq: hole.left,
            len,
            segment_size: self.segment_size() as u16,
            fin,
            push: len > 0 && right == self.snd.nxt,
        }
    }

    pub(crate) fn unsent(&self, buffers: FifoLevels) -> u32 {
        if self.snd.fin_sent { 0 } else { buffers.send_len.saturating_sub(self.data_in_flight()) }
    }

    fn plan_new(&self, buffers: FifoLevels, room: u32, max_payload: u32) -> Result<Transmit, Idle> {
        let unsent = self.unsent(buffers);
        let fin_wanted = self.snd.fin_queued && !self.snd.fin_sent;
        if unsent == 0 && !fin_wanted {
            //= https://www.rfc-editor.org/rfc/rfc6675#section-4
            //# then NextSeg () MUST indicate failure, and no segment is returned.
            return Err(Idle::NoData);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# However, a sending TCP peer MUST be robust against window shrinking, which may cause the
        //# "usable window" (see Section 3.8.6.2.1) to become negative (MUST-34).
        // If the peer shrank its window, the flight exceeds SND.WND.
        //= https://www.rfc-editor.org/rfc/rfc9937#section-3
        //# a connection MUST NOT send data with a sequence number higher than the sum of SND.UNA
        //# and rwnd.
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.4
        //# Implementations MUST ensure that they handle a shrinking window
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.4
        //# The initial transmission MUST be within the window announced by the most recent <ACK>.
        let usable = self.snd.wnd.saturating_sub(self.snd.flight());
        if usable == 0 {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
            //# the sender SHOULD NOT send new data (SHLD-15)
            return Err(Idle::ClosedWindow);
        }
        let len = self.length_of_new(unsent, usable, room, max_payload)?;
        let last = len == unsent;
        Ok(Transmit {
            kind: TransmitKind::Data,
            seq: self.snd.nxt,
            len,
            segment_size: self.segment_size() as u16,
            fin: fin_wanted && last && usable > len,
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
            //# MUST set the PSH bit in the last buffered segment (i.e., when there is no more queued data
            //# to be sent) (MUST-61).
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
            //# The transmitter SHOULD collapse successive bits when it packetizes data, to send the
            //# largest possible segment (SHLD-27).
            push: len > 0 && len == self.within_record(self.snd.nxt, unsent),
        })
    }

    /// Returns how many of the `unsent` bytes to send now, as one or several segments.
    fn length_of_new(
        &self,
        unsent: u32,
        usable: u32,
        room: u32,
        max_payload: u32,
    ) -> Result<u32, Idle> {
        if unsent == 0 {
            return Ok(0);
        }
        let mss = self.segment_size();
        let record = self.within_record(self.snd.nxt, unsent);
        let allowed = record.min(usable).min(max_payload);
        let whole = allowed.min(room);
        if self.owed.is_aborting() {
            return self.length_of_last(whole);
        }
        if whole < allowed && whole < mss {
            return Err(Idle::CongestionWindow);
        }
        if whole < record && whole < mss {
            return self.length_in_small_window(whole);
        }
        if whole < record {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
            //# a TCP implementation SHOULD send a maximum-sized segment whenever possible (SHLD-28)
            return Ok(whole - whole % mss);
        }
        let tail = whole % mss;
        // Send a short segment that ends a record (MSG_EOR) in the middle of the buffer, because
        // later data may not be added to it.
        match self.holds_short_segment() {
            Some(idle) if tail > 0 && record == unsent => match whole - tail {
                0 => Err(idle),
                full => Ok(full),
            },
            _ => Ok(whole),
        }
    }

    /// Returns the number of bytes to send before a RST: as many as the windows allow. Do not wait
    /// for more, because no ACK is processed any more. A short segment held back by TCP_CORK is
    /// lost, as on Linux.
    fn length_of_last(&self, whole: u32) -> Result<u32, Idle> {
        let corked = self.holds_short_segment() == Some(Idle::Corked);
        let held = if corked { whole % self.segment_size() } else { 0 };
        match whole - held {
            0 if corked => Err(Idle::Corked),
            0 => Err(Idle::CongestionWindow),
            len => Ok(len),
        }
    }

    /// Decides whether to send `len` bytes that are less than a segment and less than the unsent
    /// bytes: the sender's silly window syndrome avoidance.
    ///
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.2.1
    //# A TCP implementation MUST include a SWS avoidance algorithm in the sender (MUST-38).
    fn length_in_small_window(&self, len: u32) -> Result<u32, Idle> {
        // RFC 9293 has "SND.NXT = SND.UNA" in brackets here, because this condition is part of
        // Nagle's algorithm.
        let alone = self.settings.nodelay || self.snd.flight() == 0;
        let half = alone && len >= self.snd.max_wnd / 2;
        if half || self.owed.window_probe { Ok(len) } else { Err(Idle::ClosedWindow) }
    }

    /// Returns why a segment shorter than the MSS with the last bytes has to wait; `None` if it may
    /// be sent.
    fn holds_short_segment(&self) -> Option<Idle> {
        if self.snd.fin_queued {
            return None;
        }
        if self.settings.corked || self.snd.more_coming {
            return (!self.owed.cork_flush && !self.is_urgent()).then_some(Idle::Corked);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.4
        //# A TCP implementation SHOULD implement the Nagle algorithm to coalesce short segments
        //# (SHLD-7).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
        //# MUST NOT buffer data indefinitely (MUST-60)
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
        //# When an application issues a series of SEND calls without setting the PUSH flag, the TCP
        //# implementation MAY aggregate the data internally without sending it (MAY-16).
        // Minshall's variant of Nagle's algorithm: at most one short segment may be unacknowledged.
        // Unacknowledged full segments do not delay a short one, which saves a round trip in
        // request-response traffic. Urgent data is not delayed, as in Linux's `tcp_nagle_test`.
        (!self.settings.nodelay && self.snd.small_end.gt(self.snd.una) && !self.is_urgent())
            .then_some(Idle::Nagle)
    }

    /// Returns how many of the `len` bytes from sequence number `seq` on belong to the same record
    /// (MSG_EOR).
    #[inline]
    fn within_record(&self, seq: SeqNum, len: u32) -> u32 {
        self.recovery.within_boundary(seq, len, self.snd.una)
    }

    /// Returns the offset in the send FIFO of the byte with sequence number `seq`.
    pub(crate) fn send_offset(&self, seq: SeqNum) -> u32 {
        (seq - self.snd.una).saturating_sub(u32::from(self.syn_in_flight()))
    }
}
