//! Converts a decision of `plan` to a segment, and updates the connection's state.

use crate::config::PAYLOAD_ALWAYS_FITS;
use crate::congestion::IdlePeriod;
use crate::connection::{Connection, LastReset};
use crate::counters::SendLimit;
use crate::plan::{Idle, Transmit, TransmitKind};
use crate::receive_space::WhenRead;
use crate::segment::{FifoLevels, Outgoing};
use crate::state::State;
use crate::time::Instant;
use towpath_wire::tcp::{Flags, Options, SeqNum};

impl Connection {
    /// Converts a decision of [`plan`](Self::plan) to a segment, which then counts as sent. Call
    /// this with the arguments of `plan`, and without another call between the two.
    pub fn emit(&mut self, now: Instant, transmit: Transmit, buffers: FifoLevels) -> Outgoing {
        let wire = transmit.len.div_ceil(u32::from(transmit.segment_size.max(1))).max(1);
        self.counters.segs_out = self.counters.segs_out.wrapping_add(wire);
        match transmit.kind {
            TransmitKind::Reset => self.emit_reset(now, transmit),
            TransmitKind::Syn => self.emit_syn(now, transmit, buffers),
            TransmitKind::Data => {
                let out = self.emit_segment(now, transmit, buffers);
                self.on_data_sent(now, &transmit, wire);
                out
            }
            TransmitKind::Retransmit => {
                let out = self.emit_segment(now, transmit, buffers);
                self.on_retransmitted(now, &transmit, wire);
                out
            }
            TransmitKind::Ack => {
                // An ACK has SEQ = SND.NXT. In SYN-RECEIVED, too, SND.NXT is beyond our SYN.
                self.timers.quick_acks = self.timers.quick_acks.saturating_sub(1);
                self.emit_segment(now, transmit, buffers)
            }
            TransmitKind::WindowProbe => {
                self.on_window_probe_sent(now);
                let out = self.emit_probe(now, transmit, buffers);
                // The keep-alive probe's sequence number is old, so the peer ignores its URG flag.
                // Announce urgent data by an additional ACK, as in Linux's `tcp_write_wakeup`.
                self.owed.ack |= self.is_urgent();
                out
            }
            TransmitKind::KeepAlive => {
                self.owed.keepalive = false;
                self.emit_probe(now, transmit, buffers)
            }
        }
    }

    fn emit_reset(&mut self, now: Instant, transmit: Transmit) -> Outgoing {
        let out = if self.owed.take_reset_reply().is_some() {
            Outgoing::bare(transmit.seq, SeqNum(0), Flags::RST, 0)
        } else {
            self.owed.reset = LastReset::Never;
            Outgoing::bare(transmit.seq, self.rcv.nxt, Flags::RST | Flags::ACK, 0)
        };
        //= https://www.rfc-editor.org/rfc/rfc7323#section-3.2
        //# Once TSopt has been successfully negotiated, that is both <SYN> and <SYN,ACK> contain
        //# TSopt, the TSopt MUST be sent in every non-<RST> segment for the duration of the
        //# connection, and SHOULD be sent in an <RST> segment (see Section 5.2 for details).
        // In SYN-SENT no options are negotiated yet.
        let negotiated = self.state != State::SynSent;
        //= https://www.rfc-editor.org/rfc/rfc7323#section-5.2
        //# If an <RST> is being generated because of a user abort, and Snd.TS.OK is set, then a
        //# Timestamps option SHOULD be included in the <RST>.
        let timestamps = self.ext.timestamps_option(now).filter(|_| negotiated);
        Outgoing { options: Options { timestamps, ..Options::default() }, ..out }
    }

    fn emit_syn(&mut self, now: Instant, transmit: Transmit, buffers: FifoLevels) -> Outgoing {
        let first = self.snd.nxt == self.snd.iss;
        let reply = self.state == State::SynReceived;
        self.owed.syn = false;
        // If an earlier SYN was sent, its data may be in flight, so only the first SYN sets
        // SND.NXT.
        if first {
            self.snd.nxt = self.snd.iss + 1 + transmit.len;
        }
        let window = u16::try_from(buffers.recv_free).unwrap_or(u16::MAX);
        self.rcv.announce(u32::from(window));
        if first {
            self.rtt.start_timing(now, self.snd.iss + 1);
            self.note_progress(now);
            self.on_syn_data_sent(now, transmit.len);
        } else {
            self.rtt.stop_timing();
            self.note_repeated(now);
            self.ext.fast_open.on_syn_repeated();
        }
        // Do not change the timer for a SYN that is retransmitted after a timeout, because the
        // timeout has already set it.
        if first || reply {
            self.timers.retransmit = now + self.rtt.rto();
        }
        let mut out = Outgoing {
            options: Options {
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
                //# TCP implementations SHOULD send an MSS Option in every SYN segment when its
                //# receive MSS differs from the default 536 for IPv4 or 1220 for IPv6 (SHLD-5), and
                //# MAY send it always (MAY-3).
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.2
                //# This field may be sent in the initial connection request (i.e., in segments with
                //# the SYN control bit set) and MUST NOT be sent in other segments (MUST-65).
                mss: Some(self.settings.mss_recv),
                // A SYN-ACK contains only options that the SYN offered (RFC 7323 §2.2).
                //= https://www.rfc-editor.org/rfc/rfc7323#section-2.2
                //# a TCP that is prepared to scale windows SHOULD send the option, even if its own
                //# scale factor is 1 and the exponent 0.
                //= https://www.rfc-editor.org/rfc/rfc7323#section-2.3
                //# The Window Scale option MUST be sent with shift.cnt = R, where R is the value
                //# that the TCP would like to use for its receive window.
                //= https://www.rfc-editor.org/rfc/rfc7323#section-2.2
                //# The three-byte Window Scale option MAY be sent in a <SYN> segment by a TCP.
                window_scale: self.ext.scaling.then_some(self.rcv.wscale),
                sack_permitted: self.ext.sack,
                //= https://www.rfc-editor.org/rfc/rfc7323#section-3.2
                //# A TCP MAY send the TSopt in an initial <SYN> segment (i.e., segment containing a
                //# SYN bit and no ACK bit), and MAY send a TSopt in <SYN,ACK> only if it received a
                //# TSopt in the initial <SYN> segment for the connection.
                timestamps: self.ext.timestamps_option(now),
                ..Options::default()
            },
            retransmit: !first,
            len: transmit.len,
            segment_size: transmit.segment_size,
            ..Outgoing::bare(self.snd.iss, SeqNum(0), Flags::SYN, window)
        };
        //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.1
        //# A host MUST NOT set ECT on SYN or SYN-ACK packets.
        let sent = self.timers.retransmits;
        if reply {
            out.ack = self.rcv.nxt;
            out.flags |= Flags::ACK | self.ecn.syn_ack_flags(sent, self.counters.ecn().peer);
            self.on_ack_sent();
        } else {
            out.flags |= self.ecn.syn_flags(sent);
        }
        out
    }

    /// Records that the SYN was sent with `len` bytes of data (TCP Fast Open).
    fn on_syn_data_sent(&mut self, now: Instant, len: u32) {
        if len == 0 {
            return;
        }
        self.note_paced(now, len);
        self.ext.fast_open.on_data_sent();
        self.counters.last_data_sent = now;
        self.counters.data_segs_out = self.counters.data_segs_out.wrapping_add(1);
    }

    fn emit_segment(&mut self, now: Instant, transmit: Transmit, buffers: FifoLevels) -> Outgoing {
        let window = self.advertise(buffers);
        let mut flags = Flags::ACK;
        if self.ecn.is_negotiated() {
            flags |= self.emit_feedback(transmit.kind);
        }
        if transmit.push {
            flags |= Flags::PSH;
        }
        if transmit.fin {
            flags |= Flags::FIN;
        }
        let mut out = Outgoing {
            options: self.segment_options(now),
            send_offset: if transmit.len > 0 { self.send_offset(transmit.seq) } else { 0 },
            len: transmit.len,
            segment_size: transmit.segment_size,
            retransmit: transmit.kind == TransmitKind::Retransmit,
            ..Outgoing::bare(transmit.seq, self.rcv.nxt, flags, window)
        };
        if self.counters.urgent().is_some()
            && let Some(pointer) = self.urgent_pointer(transmit.seq)
        {
            (out.flags, out.urgent) = (out.flags | Flags::URG, pointer);
        }
        if transmit.kind == TransmitKind::Data && transmit.len > 0 && self.ecn.is_negotiated() {
            self.mark_new_data(&mut out);
        }
        match self.counters.ecn().former_acks.len() {
            0 => self.on_ack_sent(),
            _ => self.acknowledge_former(&mut out),
        }
        out
    }

    /// Changes an ACK so that it acknowledges only the bytes before the first change of the ECN
    /// feedback. The ACK has the feedback for these bytes. The next segment acknowledges the later
    /// bytes.
    #[cold]
    fn acknowledge_former(&mut self, out: &mut Outgoing) {
        let former = self.counters.rare_mut().ecn.former_acks.take();
        let Some((ack, differs)) = former else { return };
        self.counters.clear_dsack();
        let later = (out.ack - ack) >> self.rcv.wscale;
        out.window = out.window.saturating_add(u16::try_from(later).unwrap_or(u16::MAX));
        out.ack = ack;
        if differs {
            out.flags = Flags(out.flags.0 ^ Flags::ECE.0);
        }
        self.owed.dup_acks = self.owed.dup_acks.saturating_sub(1);
        (self.owed.ack, self.rcv.acked) = (true, ack);
    }

    /// Sets the ECN field of new data, and CWR if the window was reduced.
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.4
    //# pure
    //# acknowledgement packets (e.g., packets that do not contain any
    //# accompanying data) MUST be sent with the not-ECT codepoint.
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.5
    //# ECN-capable TCP implementations MUST NOT set
    //# either ECT codepoint (ECT(0) or ECT(1)) in the IP header for
    //# retransmitted data packets
    //= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.6
    //# the TCP data sender MUST NOT set either an ECT codepoint
    //# or the CWR bit on window probe packets.
    fn mark_new_data(&mut self, out: &mut Outgoing) {
        out.ecn = self.ecn.codepoint();
        out.flags |= self.ecn.take_cwr();
    }

    /// Returns the flags with ECN feedback about marked packets. The feedback counts as reported.
    fn emit_feedback(&mut self, kind: TransmitKind) -> Flags {
        let counts = self.counters.ecn();
        if counts.received != counts.reported {
            self.counters.rare_mut().ecn.reported = counts.received;
        }
        self.ecn.feedback_flags(kind == TransmitKind::Ack, &counts)
    }

    /// Creates a segment that the peer cannot accept and therefore has to answer. Its sequence
    /// number is SND.UNA - 1, and it has no payload.
    ///
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
    //= type=exception
    //= reason=A probe without bytes draws the same ACK, and no byte is ever in flight beyond the window. Linux probes so too.
    //# The sending TCP peer must regularly transmit at least one octet of new data (if available), or
    //# retransmit to the receiving TCP peer even if the send window is zero, in order to "probe" the
    //# window.
    fn emit_probe(&mut self, now: Instant, transmit: Transmit, buffers: FifoLevels) -> Outgoing {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
        //# An implementation SHOULD send a keep-alive segment with no data (SHLD-12)
        let probe = Transmit { seq: self.snd.una - 1, ..transmit };
        self.emit_segment(now, probe, buffers)
    }

    /// Computes the window field, and records the right edge up to which the peer may send from now
    /// on.
    ///
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.2.2
    //# A TCP implementation MUST include a SWS avoidance algorithm in the receiver (MUST-39).
    fn advertise(&mut self, buffers: FifoLevels) -> u16 {
        let current = self.rcv.window();
        let half = self.rcv.offerable(buffers.recv_capacity) / 2;
        let step = half.min(u32::from(self.settings.mss_recv)).max(1);
        let opened = buffers.recv_free.saturating_sub(current);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
        //# A TCP implementation MAY keep its offered receive window closed indefinitely (MAY-8).
        let window =
            if opened >= step { buffers.recv_free } else { current.min(buffers.recv_free) };
        let scale = self.rcv.wscale;
        let unit = 1u32 << scale;
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.3
        //# MUST be right-shifted by Rcv.Wind.Shift bits:
        let mut field = window >> scale;
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# A TCP receiver SHOULD NOT shrink the window, i.e., move the right window edge to the
        //# left (SHLD-14).
        // Do not move the right edge of the window left, except by less than one unit of the window
        // scale (RFC 7323 §2.4). If the buffer itself shrank (SO_RCVBUF, low memory), we do
        // announce a smaller window. Otherwise the peer would send bytes in vain, retransmit after
        // a timeout, and never probe the window. Bytes up to the old edge are still accepted if
        // they fit.
        if window & (unit - 1) != 0 && (field + 1) << scale <= buffers.recv_free {
            field += 1;
        }
        let field = field.min(u32::from(u16::MAX));
        self.rcv.announce(field << scale);
        field as u16
    }

    /// Records that a segment with the current acknowledgement number was sent.
    fn on_ack_sent(&mut self) {
        self.rcv.acked = self.rcv.nxt;
        if let Some(assembler) = &mut self.rcv.assembler {
            assembler.on_reported();
        }
        // The last SACK blocks, and the D-SACK, follow in another ACK.
        let has_more = self.ext.sack && self.owed.dup_acks > 0;
        if !has_more {
            //= https://www.rfc-editor.org/rfc/rfc2883#section-4
            //# (2) Each duplicate contiguous sequence of data received is reported in at most one
            //# D-SACK block.
            self.counters.clear_dsack();
        }
        self.owed.dup_acks = self.owed.dup_acks.saturating_sub(1);
        self.owed.ack = has_more;
        self.timers.delayed_ack = Instant::FAR;
        if self.rcv.when_read == WhenRead::Acknowledges {
            self.rcv.when_read = WhenRead::Nothing;
        }
    }

    fn on_data_sent(&mut self, now: Instant, transmit: &Transmit, wire: u32) {
        let mss = self.mss();
        if self.snd.flight() == 0 {
            self.note_progress(now);
            let active = self.counters.last_data_sent.max(self.timers.last_recv);
            self.congestion.on_idle_over(&IdlePeriod {
                now,
                length: now.since(active),
                is_app_limited: self.counters.is_idle(),
            });
        }
        if self.snd.flight() > 0 || self.congestion.is_model() {
            self.ensure_record(now);
        }
        if transmit.len > 0 {
            if self.is_restart(now) {
                self.congestion.on_restart(mss, self.settings.initial_window);
            }
            self.counters.last_data_sent = now;
            self.counters.data_segs_out = self.counters.data_segs_out.wrapping_add(wire);
            self.note_paced(now, transmit.len);
            self.leave_quick_acks(now);
        }
        let numbers = transmit.len + u32::from(transmit.fin);
        let in_flight = self.recovery.pipe(self.snd.una, self.snd.nxt) + numbers;
        if let Some(record) = self.recovery.record_mut() {
            record.on_sent(now, self.snd.nxt + numbers, in_flight);
        }
        self.recovery.on_bytes_sent(numbers);
        let size = u32::from(transmit.segment_size.max(1));
        //= https://www.rfc-editor.org/rfc/rfc6298#section-3
        //# A TCP implementation MUST take at least one RTT measurement per RTT
        if self.rtt.timed().is_none() {
            // Measure the round-trip time of the first segment only, because a receiver may
            // acknowledge each segment separately.
            let first = transmit.len.min(size) + u32::from(transmit.fin && transmit.len <= size);
            self.rtt.start_timing(now, self.snd.nxt + first);
        }
        self.snd.nxt += numbers;
        self.recovery.short_tail =
            self.recovery.short_tail.saturating_add(u16::try_from(numbers).unwrap_or(u16::MAX));
        self.note_long(transmit);
        self.snd.fin_sent |= transmit.fin;
        if !transmit.len.is_multiple_of(size) {
            self.snd.small_end = self.snd.nxt;
        }
        let pipe = self.recovery.pipe(self.snd.una, self.snd.nxt);
        self.congestion.on_sent(self.snd.una, self.snd.nxt, pipe, mss);
        self.arm_retransmit_if_idle(now);
        // Data was sent, so the peer's window is open. The persist timer for closed windows uses
        // the same field as the retransmission timer.
        self.timers.persisting = false;
        if self.recovery.is_probe_due() {
            self.on_probe_sent(now, false);
        } else {
            self.schedule_probe(now);
        }
        self.owed.window_probe = false;
        self.owed.cork_flush = false;
        self.owed.keepalive = false;
        self.timers.hold = Instant::FAR;
        self.counters.enter(now, SendLimit::Network);
    }

    /// Records the end of the last segment that may be too long for a path with a small MTU.
    /// SND.NXT already includes this segment.
    fn note_long(&mut self, transmit: &Transmit) {
        let size = u32::from(transmit.segment_size.max(1));
        let tail = transmit.len % size;
        let end = match transmit.len - tail {
            _ if tail > PAYLOAD_ALWAYS_FITS => transmit.len,
            whole if size > PAYLOAD_ALWAYS_FITS => whole,
            _ => 0,
        };
        if end > 0 {
            let behind = u16::try_from(self.snd.nxt - (transmit.seq + end)).unwrap_or(u16::MAX);
            self.recovery.short_tail = self.recovery.short_tail.min(behind);
        }
    }

    fn on_retransmitted(&mut self, now: Instant, transmit: &Transmit, wire: u32) {
        self.note_long(transmit);
        let right = transmit.seq + transmit.len + u32::from(transmit.fin);
        self.ensure_record(now);
        self.recovery.on_retransmit(now, transmit.seq, right, self.snd.una);
        self.recovery.on_bytes_sent(right - transmit.seq);
        if self.recovery.is_probe_due() {
            //= https://www.rfc-editor.org/rfc/rfc8985#section-7.3
            //# The sender MUST follow the RACK transmission procedures in the "Upon Transmitting a
            //# Data Segment" section upon sending either a retransmission or a new data loss probe.
            self.on_probe_sent(now, true);
        }
        self.congestion.on_retransmitted(self.snd.una, self.snd.nxt);
        // Stop the RTT measurement (Karn's algorithm), because the retransmitted bytes may be the
        // ones being measured.
        self.rtt.stop_timing();
        self.counters.last_data_sent = now;
        self.note_paced(now, transmit.len);
        let rare = self.counters.rare_mut();
        rare.bytes_retransmitted += u64::from(transmit.len);
        rare.retransmitted = rare.retransmitted.wrapping_add(wire);
        if transmit.len > 0 {
            rare.data_retransmitted = rare.data_retransmitted.wrapping_add(wire);
            self.counters.data_segs_out = self.counters.data_segs_out.wrapping_add(wire);
        }
        if transmit.seq == self.snd.una {
            self.note_repeated(now);
            // Restart the timer, because the oldest bytes were just retransmitted.
            //= https://www.rfc-editor.org/rfc/rfc6298#section-5
            //# a segment is never retransmitted too early, i.e., less than one RTO after the
            //# previous transmission of that segment.
            self.timers.retransmit = now + self.rtt.rto();
        }
        self.arm_retransmit_if_idle(now);
    }

    fn on_window_probe_sent(&mut self, now: Instant) {
        self.owed.window_probe = false;
        // The user timeout starts at the first probe of a closed window.
        if self.timers.persist_backoff == 0 {
            self.note_progress(now);
        }
        self.timers.window_probes = self.timers.window_probes.saturating_add(1);
        self.timers.persist_backoff = self.timers.persist_backoff.saturating_add(1);
        self.timers.persisting = true;
        self.timers.retransmit = now + self.persist_interval();
    }

    /// Leaves quick ACK mode if the program sends data soon after receiving, because that data
    /// carries the ACKs.
    fn leave_quick_acks(&mut self, now: Instant) {
        let delay_ms = u32::from(self.settings.delayed_ack_ms);
        let ack_due = self.counters.last_data_recv.after_millis(delay_ms);
        if self.counters.data_segs_in > 0 && now < ack_due {
            self.timers.quick_acks = 0;
            self.rcv.when_read = WhenRead::Answers;
        }
    }

    /// Marks delivery rate samples as application limited, because all written bytes are sent and
    /// the network has room for more. The mark ends when the bytes in flight are acknowledged.
    fn note_app_limited(&mut self) {
        if self.recovery.record().is_none() {
            return;
        }
        let pipe = self.recovery.pipe(self.snd.una, self.snd.nxt);
        let has_room = pipe < self.congestion.cwnd();
        if let Some(record) = self.recovery.record_mut().filter(|_| has_room) {
            record.set_app_limited(pipe);
        }
    }

    /// Records that nothing more is sent now, because `plan` returned
    /// [`Plan::Nothing`](crate::Plan::Nothing) with this reason.
    ///
    /// Starts the timers of TCP_CORK and pacing, and counts the time during which windows and
    /// buffers limit sending. Without this call, the last short segment would never be sent if the
    /// program does not clear TCP_CORK.
    pub fn on_idle(&mut self, now: Instant, idle: Idle, buffers: FifoLevels) {
        if idle == Idle::NoData {
            // The bytes to be flushed were sent. TCP_CORK may hold back bytes written later.
            self.owed.cork_flush = false;
            self.note_app_limited();
        }
        match idle {
            Idle::Corked if self.timers.hold == Instant::FAR => {
                self.timers.hold = now.after_millis(u32::from(self.settings.cork_ms));
            }
            Idle::ClosedWindow => self.counters.enter(now, SendLimit::PeerWindow),
            Idle::NoData if self.snd.flight() > 0 && buffers.send_len >= buffers.send_capacity => {
                self.counters.enter(now, SendLimit::SendBuffer);
            }
            Idle::CongestionWindow => self.counters.enter(now, SendLimit::Network),
            Idle::Pacing => self.arm_pacing(now),
            _ => {}
        }
    }
}
