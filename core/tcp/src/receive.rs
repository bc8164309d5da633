//! Processing of received segments: RFC 9293 §3.10.7, one function per step, in the RFC's order.
//!
//! Module `acceptance` has the first four steps, `acknowledgment` the fifth, `urgent` the sixth,
//! and `text` the last two. `feedback` passes the result of the fifth step to congestion control.

mod acceptance;
mod acknowledgment;
mod congestion_marks;
mod feedback;
mod text;

use towpath_wire::tcp::{Flags, SeqNum};

use crate::config::Config;
use crate::connection::Connection;
use crate::disposition::{Disposition, FifoChanges, SegmentDropReason};
use crate::ecn::EcnState;
use crate::event::pending;
use crate::receive_space::{NewText, WhenRead};
use crate::segment::{FifoLevels, Segment};
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// Creates a passive open in SYN-RECEIVED from a SYN with a valid Fast Open cookie. Apply the
    /// returned changes to the send and receive FIFOs, whose current levels are `buffers`.
    pub fn accept_with_data(
        config: Config,
        syn: &Segment,
        iss: SeqNum,
        timestamp_offset: u32,
        now: Instant,
        buffers: FifoLevels,
    ) -> (Connection, FifoChanges) {
        let mut connection = Connection::connect(config, iss, timestamp_offset, now);
        connection.settings.syn_retries = config.syn_ack_retries;
        connection.ext.fast_open.set_server();
        connection.count_segment(syn);
        connection.rcv.announce(buffers.recv_free);
        connection.accept_syn(now, syn);
        connection.ecn = EcnState::answer(config.ecn, syn.flags);
        connection.note_peer_syn(syn);
        connection.state = State::SynReceived;
        let mut received = FifoChanges::default();
        connection.take_syn_text(now, syn, buffers, &mut received);
        if received.commit > 0 {
            connection.ext.fast_open.on_data_received();
        }
        (connection, received)
    }

    /// Processes a segment received on this connection. The caller has verified the checksum.
    ///
    /// `buffers` are the levels of the FIFOs before the segment. The caller must apply the returned
    /// [`FifoChanges`] to the FIFOs.
    pub fn on_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        buffers: FifoLevels,
    ) -> Disposition {
        self.count_segment(segment);
        let result = match self.state {
            State::Closed => Err(SegmentDropReason::AfterClose),
            State::SynSent => self.on_segment_in_syn_sent(now, segment, buffers),
            State::SynReceived => self.on_segment_in_syn_received(now, segment, buffers),
            _ => self.on_segment_in_sequence(now, segment, buffers),
        };
        match result {
            Ok(received) => Disposition::Accepted(received),
            Err(reason) => Disposition::Dropped(reason),
        }
    }

    fn count_segment(&mut self, segment: &Segment) {
        let segments = u32::from(segment.segments.max(1));
        self.counters.segs_in = self.counters.segs_in.wrapping_add(segments);
        if segment.payload_len > 0 {
            self.counters.data_segs_in = self.counters.data_segs_in.wrapping_add(segments);
        }
    }

    /// Processes a segment received in SYN-SENT (RFC 9293 §3.10.7.3).
    fn on_segment_in_syn_sent(
        &mut self,
        now: Instant,
        segment: &Segment,
        buffers: FifoLevels,
    ) -> Result<FifoChanges, SegmentDropReason> {
        let acked = segment.flags.contains(Flags::ACK);
        if acked && !segment.ack.is_within(self.snd.iss + 1, self.snd.nxt - self.snd.iss) {
            if segment.flags.contains(Flags::RST) {
                return Err(SegmentDropReason::ResetIgnored);
            }
            self.owed.set_reset_reply(segment.ack);
            return Err(SegmentDropReason::BadAck);
        }
        if segment.flags.contains(Flags::RST) {
            if !acked {
                return Err(SegmentDropReason::ResetIgnored);
            }
            self.enter_closed();
            self.raise(pending::REFUSED);
            return Ok(FifoChanges::default());
        }
        if !segment.flags.contains(Flags::SYN) {
            return Err(SegmentDropReason::Unexpected);
        }
        self.accept_syn(now, segment);
        if !acked {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5
            //# A TCP implementation MUST support simultaneous open attempts (MUST-10).
            // Simultaneous open. Data in the peer's SYN is not acknowledged, so the peer
            // retransmits the data.
            self.state = State::SynReceived;
            self.owed.syn = true;
            self.ecn = self.ecn.answer_to_offer(segment.flags);
            self.note_peer_syn(segment);
            return Ok(FifoChanges::default());
        }
        self.ecn.on_syn_ack(segment.flags);
        self.note_peer_syn(segment);
        let mut received = FifoChanges::default();
        if buffers.send_len > self.data_in_flight() {
            // The SYN had no space for these bytes (TCP Fast Open). As on Linux, send them now, and
            // let them carry the ACK of the server's bytes instead of sending a separate one.
            self.timers.quick_acks = 0;
            self.rcv.when_read = WhenRead::Answers;
        }
        self.on_syn_acked(now, segment, &mut received);
        self.owed.ack = true;
        let text =
            self.rcv.trim(segment.seq + 1, segment.payload_len, segment.flags.contains(Flags::FIN));
        self.process_text(now, segment, text, buffers, &mut received);
        Ok(received)
    }

    /// Initializes the connection from the peer's SYN or SYN-ACK.
    fn accept_syn(&mut self, now: Instant, segment: &Segment) {
        self.apply_options(&segment.options);
        let window = self.rcv.window();
        self.rcv.start(segment.seq, window);
        // Do not scale the window of a SYN (RFC 7323 §2.2).
        self.snd.set_window(u32::from(segment.window), segment.seq, segment.ack);
        self.update_mss();
        self.ext.note_timestamp(now, segment);
        self.timers.last_recv = now;
    }

    /// Processes a segment in SYN-RECEIVED (RFC 9293 §3.10.7.4). A client that missed the SYN-ACK
    /// retransmits its SYN. We recognize this SYN by SND.WL1, which is still the peer's initial
    /// sequence number.
    fn on_segment_in_syn_received(
        &mut self,
        now: Instant,
        segment: &Segment,
        buffers: FifoLevels,
    ) -> Result<FifoChanges, SegmentDropReason> {
        let is_syn = segment.flags.contains(Flags::SYN)
            && !segment.flags.intersects(Flags::ACK | Flags::RST);
        if self.ext.fast_open.is_server() && is_syn && segment.seq == self.snd.wl1 {
            if !self.ecn.on_syn_again(segment.flags) {
                self.raise(self.ext.fast_open.reset_event());
                self.abort();
                return Err(SegmentDropReason::SynInWindow);
            }
            self.note_peer_syn(segment);
            self.owed.syn = true;
            return Ok(FifoChanges::default());
        }
        self.on_segment_in_sequence(now, segment, buffers)
    }

    /// Processes a segment in a synchronized state or SYN-RECEIVED (RFC 9293 §3.10.7.4).
    fn on_segment_in_sequence(
        &mut self,
        now: Instant,
        segment: &Segment,
        buffers: FifoLevels,
    ) -> Result<FifoChanges, SegmentDropReason> {
        //= https://www.rfc-editor.org/rfc/rfc7323#section-5.3
        //# PAWS processing MUST take precedence over the regular TCP acceptability check
        //= https://www.rfc-editor.org/rfc/rfc7323#section-5.3
        //# the timestamp MUST be checked only when a segment first arrives at the receiver
        self.check_timestamps(now, segment)?;
        let text = self.check_sequence(now, segment)?;
        // Test all rare flags at once, so that segments without them take a short path.
        if segment.flags.intersects(Flags::RST | Flags::SYN | Flags::URG) {
            return self.on_flagged_segment(now, segment, text, buffers);
        }
        if self.state == State::Closed {
            return Ok(FifoChanges::default());
        }
        let mut received = FifoChanges::default();
        self.check_ack(now, segment, buffers, &mut received)?;
        self.note_marks(segment);
        self.ext.update_timestamp(now, segment, self.rcv.acked);
        self.note_heard(now);
        self.process_text(now, segment, text, buffers, &mut received);
        Ok(received)
    }

    /// Continues [`Self::on_segment_in_sequence`] at the third step for a segment with RST, SYN or
    /// URG.
    #[cold]
    fn on_flagged_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        text: NewText,
        buffers: FifoLevels,
    ) -> Result<FifoChanges, SegmentDropReason> {
        self.check_reset(now, segment)?;
        self.check_syn(now, segment)?;
        let mut received = FifoChanges::default();
        if self.state == State::Closed {
            return Ok(received);
        }
        if self.ext.fast_open.is_client() && self.is_syn_of_peer(segment) {
            // Simultaneous open with data in both SYNs. As on Linux, acknowledge the SYN-ACK
            // separately, because the peer may not know yet that we received its SYN.
            self.owed.ack = true;
            self.note_repeated_text(segment.seq, 1);
        }
        self.check_ack(now, segment, buffers, &mut received)?;
        self.note_marks(segment);
        self.ext.update_timestamp(now, segment, self.rcv.acked);
        self.note_heard(now);
        received.urgent = self.check_urgent(segment);
        self.process_text(now, segment, text, buffers, &mut received);
        Ok(received)
    }
}
