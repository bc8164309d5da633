//! The seventh and eighth steps of RFC 9293 §3.10.7.4: the text and the FIN. Computes the position
//! of the text in the receive FIFO, and schedules its acknowledgement.

use towpath_wire::tcp::{Flags, SeqNum};

use crate::connection::Connection;
use crate::disposition::{FifoChanges, SegmentDropReason, Write};
use crate::event::pending;
use crate::ranges::Inserted;
use crate::receive_space::{NewText, WhenRead};
use crate::segment::{FifoLevels, Segment};
use crate::state::State;
use crate::time::Instant;

/// Maximum distance in sequence numbers from RCV.NXT back to the start of an acceptable segment:
/// sixteen times the longest IP packet.
const SEQ_AGE_MAX: u32 = 1 << 20;

/// Maximum number of new bytes without an immediate acknowledgement, even if they are less than two
/// segments. On a link with segments of 64 KiB, a sender may have a window of only one segment. The
/// sender would have to wait for each delayed ACK. The RFC permits more frequent ACKs.
const ACK_BYTES_MAX: u32 = 16 * 1024;

/// Number of received bytes after which the receiver estimates the round-trip time. Fewer bytes fit
/// in the initial receive buffer of 128 KiB, so connections with short answers need no memory for
/// the estimate.
const RECV_RTT_FROM: u64 = 64 * 1024;

impl Connection {
    /// Seventh and eighth steps of RFC 9293 §3.10.7.4: processes the segment text, and checks the
    /// FIN bit.
    #[inline]
    pub(super) fn process_text(
        &mut self,
        now: Instant,
        segment: &Segment,
        text: NewText,
        buffers: FifoLevels,
        received: &mut FifoChanges,
    ) {
        if !self.state.may_receive() {
            if self.state == State::TimeWait && segment.flags.contains(Flags::FIN) {
                self.owed.ack = true;
            }
            return;
        }
        let cut = text.len + text.payload_offset < segment.payload_len;
        if text.payload_offset > 0 {
            self.note_repeated_text(text.seq - text.payload_offset, segment.payload_len);
        }
        if text.len > 0 {
            if self.orphaned {
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
                //# if new data is received after CLOSE is called, its TCP implementation SHOULD send a RST
                //# to show that data was lost (SHLD-3).
                self.refuse_text(segment);
                // Process the segment's ACK although its payload is dropped. The acknowledged bytes
                // need not be sent before the RST.
                received.payload_dropped = Some(SegmentDropReason::AfterClose);
                return;
            }
            self.store(now, segment, text, buffers, received);
        } else if segment.payload_len > 0 {
            // The segment is a window probe, or an old duplicate. Acknowledge it.
            self.owed.ack = true;
            received.payload_dropped = cut.then_some(SegmentDropReason::OutOfWindow);
        }
        if text.fin && received.payload_dropped.is_none() {
            self.owed.ack = true;
            let fin = text.seq + text.len;
            if fin == self.rcv.nxt {
                self.process_fin();
                return;
            }
            self.rcv.assembler.get_or_insert_default().fin = Some(fin);
        }
        if self.rcv.fin_ahead() == Some(self.rcv.nxt) {
            self.process_fin();
        }
    }

    /// Aborts the connection because data arrived after the program closed the socket.
    #[cold]
    fn refuse_text(&mut self, segment: &Segment) {
        if self.timers.retransmits == 0 {
            // Send the bytes that the program wrote before it closed the socket, and then the RST.
            // On Linux, these bytes were already sent by send(2).
            return self.abort();
        }
        // The bytes in flight are lost. The peer accepts only a RST with its RCV.NXT, which is the
        // segment's ACK number.
        self.enter_closed();
        self.owed.set_reset_reply(segment.ack);
    }

    /// Schedules a D-SACK for the bytes before RCV.NXT that a segment repeated (RFC 2883 §4.1). The
    /// peer can then detect a spurious retransmission.
    #[cold]
    pub(super) fn note_repeated_text(&mut self, seq: SeqNum, len: u32) {
        let before = self.rcv.nxt - seq;
        if self.ext.sack && len > 0 && 0 < before && before <= SEQ_AGE_MAX {
            //= https://www.rfc-editor.org/rfc/rfc2883#section-4
            //# (3) The left edge of the D-SACK block specifies the first sequence number of the
            //# duplicate contiguous sequence, and the right edge of the D-SACK block specifies the
            //# sequence number immediately following the last sequence in the duplicate contiguous
            //# sequence.
            //= https://www.rfc-editor.org/rfc/rfc9768#section-3.1.1
            //# If SACK is implemented
            //# with AccECN, Duplicate Selective Acknowledgement (D-SACK) [RFC2883]
            //# MUST also be implemented.
            self.counters.set_dsack(seq, seq + len.min(before));
        }
    }

    /// Returns the number of bytes after RCV.NXT that the receive buffer needs for the payload of a
    /// segment. Returns at most `free`, and 0 if no byte can be stored.
    #[inline]
    pub fn needed_space(&self, segment: &Segment, free: u32) -> u32 {
        let len = segment.payload_len;
        if segment.flags.contains(Flags::SYN) {
            return len.min(free);
        }
        let start = segment.seq - self.rcv.nxt;
        match start.checked_add(len) {
            // The segment starts before RCV.NXT.
            None => start.wrapping_add(len).min(free),
            Some(end) if start < free && len > 0 => end.min(free),
            Some(_) => 0,
        }
    }

    /// Processes the data of a SYN with a valid Fast Open cookie.
    pub(super) fn take_syn_text(
        &mut self,
        now: Instant,
        syn: &Segment,
        buffers: FifoLevels,
        received: &mut FifoChanges,
    ) {
        let text = self.rcv.trim(syn.seq + 1, syn.payload_len, false);
        if text.len > 0 {
            self.store(now, syn, text, buffers, received);
        }
    }

    /// Computes the position of new payload in the receive FIFO.
    fn store(
        &mut self,
        now: Instant,
        segment: &Segment,
        text: NewText,
        buffers: FifoLevels,
        received: &mut FifoChanges,
    ) {
        let offset = text.seq - self.rcv.nxt;
        let room = buffers.recv_free.saturating_sub(offset);
        let len = text.len.min(room);
        if len == 0 {
            self.owed.ack = true;
            received.payload_dropped = Some(SegmentDropReason::NoRoom);
            return;
        }
        if len < text.len {
            received.payload_dropped = Some(SegmentDropReason::NoRoom);
        }
        let end = text.seq + len;
        let mut urgent = received.payload_dropped.is_some();
        if offset == 0 {
            let old = self.rcv.nxt;
            if self.rcv.advance(end) {
                urgent = true;
                self.owe_sacks();
            }
            received.commit = self.rcv.nxt - old;
            self.rcv.keep_edges_ahead();
            // Keep SND.WL1 at most [`SEQ_AGE_MAX`] behind RCV.NXT. If all ACKs of the peer were
            // old, it would never move, and could fall behind by half the sequence space.
            self.snd.wl1 = self.snd.wl1.max(self.rcv.nxt - SEQ_AGE_MAX);
            self.counters.bytes_received += u64::from(received.commit);
            self.measure_recv_rtt(segment);
        } else if !self.hold(text.seq, end, received) {
            return;
        }
        received.write =
            Some(Write { payload_offset: text.payload_offset, fifo_offset: offset, len });
        self.counters.last_data_recv = now;
        self.schedule_ack(now, segment, urgent);
    }

    /// Estimates the round-trip time from in-order data received.
    #[inline]
    fn measure_recv_rtt(&mut self, segment: &Segment) {
        if self.counters.bytes_received < RECV_RTT_FROM {
            return;
        }
        let (nxt, window_end) = (self.rcv.nxt, self.rcv.adv);
        if !self.ext.timestamps {
            self.counters.recv_rtt_mut().on_data(segment.arrival, nxt, window_end);
        } else if let Some(timestamps) = segment.options.timestamps
            && segment.payload_len >= u32::from(self.rcv.mss)
        {
            let now_ms = segment.arrival.millis().wrapping_add(self.ext.ts_offset);
            self.counters.recv_rtt_mut().on_echo(now_ms, timestamps.echo);
        }
    }

    /// Records out-of-order data with sequence numbers `seq` to `end`. Returns false if the data
    /// was already received, or if there is no space to track its range.
    fn hold(&mut self, seq: SeqNum, end: SeqNum, received: &mut FifoChanges) -> bool {
        self.owed.ack = true;
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# A TCP implementation MAY send an ACK segment acknowledging RCV.NXT when a valid
        //# segment arrives that is in the window but not at the left window edge (MAY-13).
        if !self.ext.sack {
            self.owed.dup_acks = self.owed.dup_acks.saturating_add(1);
        }
        let rare = self.counters.rare_mut();
        rare.out_of_order_in = rare.out_of_order_in.wrapping_add(1);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# Segments with higher beginning sequence numbers SHOULD be held for later processing
        //# (SHLD-31).
        let assembler = self.rcv.assembler.get_or_insert_default();
        if let Some((left, right)) = assembler.repeated(seq, end).filter(|_| self.ext.sack) {
            //= https://www.rfc-editor.org/rfc/rfc2883#section-4.2
            //# only the first such duplicate sub-segment is reported in the SACK option.
            self.counters.set_dsack(left, right);
        }
        let inserted = assembler.insert(seq, end);
        self.owe_sacks();
        match inserted {
            Inserted::New => true,
            Inserted::Known => false,
            Inserted::Full => {
                received.payload_dropped = Some(SegmentDropReason::TooManyRanges);
                false
            }
        }
    }

    /// Schedules an ACK for each range of out-of-order data that changed since the last ACK. A
    /// single ACK has room for three of them, but a turn of the event loop may receive more. The
    /// peer would retransmit the bytes of unreported ranges.
    //= https://www.rfc-editor.org/rfc/rfc2018#section-4
    //# any segment remaining part of a non-contiguous block of data held by the data receiver is
    //# reported in at least three successive SACK options
    fn owe_sacks(&mut self) {
        if self.ext.sack {
            let changed = self.rcv.assembler.as_ref().map_or(0, |it| it.unreported());
            self.owed.dup_acks = changed.saturating_sub(1);
        }
    }

    /// Schedules the acknowledgement of new data, either now or delayed.
    fn schedule_ack(&mut self, now: Instant, segment: &Segment, urgent: bool) {
        let segments = segment.segments.max(1);
        let size = (segment.payload_len / u32::from(segments)).min(u32::from(u16::MAX)) as u16;
        self.rcv.mss = self.rcv.mss.max(size);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
        //# An ACK SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of
        //# new data
        let two = (2 * u32::from(self.rcv.mss)).min(ACK_BYTES_MAX);
        let enough = self.rcv.nxt - self.rcv.acked >= two || segments >= 2;
        let ends_write = size < self.rcv.mss || segment.flags.contains(Flags::PSH);
        if ends_write && self.rcv.when_read == WhenRead::Nothing {
            self.rcv.when_read = WhenRead::Acknowledges;
        }
        if urgent || enough || self.timers.quick_acks > 0 || self.rcv.assembler.is_some() {
            self.owed.ack = true;
        } else if self.timers.delayed_ack == Instant::FAR {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
            //# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18)
            self.timers.delayed_ack = now.after_millis(self.settings.delayed_ack_ms.into());
        }
    }

    fn process_fin(&mut self) {
        self.rcv.nxt += 1;
        self.rcv.keep_edges_ahead();
        self.rcv.assembler = None;
        self.owed.ack = true;
        self.raise(pending::PEER_CLOSED);
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(),
            _ => {}
        }
    }
}
