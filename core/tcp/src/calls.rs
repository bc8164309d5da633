//! User calls of RFC 9293 §3.9.1: closing, aborting, settings, and notice of reads. Opening is in
//! module `open`; `plan` gets the bytes to send.

use crate::config::{KeepAliveConfig, QUICK_ACKS};
use crate::congestion::CongestionKind;
use crate::connection::{Connection, LastReset};
use crate::receive_space::WhenRead;
use crate::segment::FifoLevels;
use crate::state::State;
use crate::time::{Instant, millis};
use core::time::Duration;

impl Connection {
    /// Closes the send direction: a FIN follows the last byte of the send FIFO.
    pub fn shutdown_send(&mut self) {
        if self.snd.fin_queued || self.state == State::Closed {
            return;
        }
        self.snd.fin_queued = true;
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            // Send the FIN when the handshake is complete.
            _ => {}
        }
    }

    /// Closes both directions. The program does not read any more, so data that still arrives is
    /// answered with a RST. If received bytes are unread, call [`abort`](Self::abort) instead (RFC
    /// 9293 §3.6.1, SHLD-3).
    pub fn close(&mut self, now: Instant) {
        self.orphaned = true;
        if self.state == State::SynSent {
            self.enter_closed();
            return;
        }
        self.shutdown_send();
        if self.state == State::FinWait2 {
            self.arm_fin_wait2(now);
        }
    }

    /// Closes an active open whose program has already written bytes. Unlike [`close`](Self::close)
    /// in SYN-SENT, the connection stays: the bytes and then the FIN are sent after the handshake.
    pub fn close_behind_bytes(&mut self) {
        self.orphaned = true;
        self.shutdown_send();
    }

    /// Ends the connection with a RST. `plan` returns the RST after the bytes that the windows
    /// allow now; [`ConnectionEvent::Closed`](crate::ConnectionEvent::Closed) follows. From now on
    /// no segment is accepted and no byte is retransmitted. Bytes that exceed the windows are not
    /// sent.
    ///
    /// On Linux, send(2) itself sends the bytes that the windows allow, before the program can
    /// close the socket. Here the bytes wait for `plan`, so the RST must not overtake them.
    /// Otherwise a server that closes with part of the request unread could lose its answer (RFC
    /// 2525 §2.17).
    pub fn abort(&mut self) {
        let silent = matches!(self.state, State::SynSent | State::TimeWait | State::Closed);
        if self.state != State::Closed {
            let may_send = self.state.may_send();
            self.enter_closed();
            self.owed.reset = match may_send {
                true => LastReset::BehindBytes,
                false if silent => LastReset::Never,
                false => LastReset::Now,
            };
        }
    }

    /// Returns whether the final segments of an aborted connection, the last of them a RST, are
    /// still to be sent. Timers and windows do not delay them.
    pub fn is_aborting(&self) -> bool {
        self.owed.is_aborting()
    }

    /// Returns whether a read by the program can make a window update or an acknowledgement due. If
    /// so, call [`on_recv_consumed`] after each read. No update is needed while more than half of
    /// the receive buffer is advertised, because the next ACK carries the new window.
    ///
    /// [`on_recv_consumed`]: Self::on_recv_consumed
    pub fn awaits_reads(&self, buffers: FifoLevels) -> bool {
        self.state.may_receive() && (self.holds_back(buffers) || self.acks_when_read())
    }

    /// Returns whether the advertised window is at most half of the receive buffer.
    fn holds_back(&self, buffers: FifoLevels) -> bool {
        self.rcv.window() <= self.rcv.offerable(buffers.recv_capacity) / 2
    }

    /// Returns whether a delayed ACK should be sent when the program has read all bytes, as in
    /// Linux's `__tcp_cleanup_rbuf`. Otherwise a peer with Nagle's algorithm that sends short
    /// records would wait for the delayed ACK timer each time.
    fn acks_when_read(&self) -> bool {
        self.timers.delayed_ack != Instant::FAR && self.rcv.when_read == WhenRead::Acknowledges
    }

    /// Handles a read by the program. Returns true if a window update or an ACK is due now.
    pub fn on_recv_consumed(&mut self, _now: Instant, buffers: FifoLevels) -> bool {
        let opened = self.rcv.offerable(buffers.recv_free).saturating_sub(self.rcv.window());
        // Send the update when the window can grow by two segments, or by half of the buffer if
        // that is less. The update is then due at the latest when the program has read everything.
        let half = self.rcv.offerable(buffers.recv_capacity) / 2;
        let worth = half.min(2 * u32::from(self.settings.mss_recv)).max(1);
        let update = self.holds_back(buffers) && opened >= worth;
        let acknowledges = buffers.recv_unread == 0 && self.acks_when_read();
        let due = self.state.may_receive() && (update || acknowledges);
        self.owed.ack |= due;
        due
    }

    /// Turns Nagle's algorithm off (true) or on (MUST-17). As on Linux (tcp(7)), turning it off
    /// also sends the bytes that TCP_CORK or MSG_MORE held back, but does not affect later writes.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.settings.nodelay = nodelay;
        self.owed.cork_flush |= nodelay && (self.settings.corked || self.snd.more_coming);
    }

    /// Sets TCP_CORK: segments shorter than the MSS are held back for at most 200 ms, or until a
    /// call with false.
    pub fn set_cork(&mut self, corked: bool) {
        self.settings.corked = corked;
        if !corked {
            self.stop_cork();
        }
    }

    /// Records whether the last write had MSG_MORE. If so, segments shorter than the MSS are held
    /// back as with TCP_CORK, until a write without the flag.
    pub fn more_coming(&mut self, more: bool) {
        self.snd.more_coming = more;
        if !more && !self.settings.corked {
            self.stop_cork();
        }
    }

    /// Ends a record (MSG_EOR) after `end` bytes of the send buffer: no segment carries bytes from
    /// before and after that point. Returns false, and ignores the call, if too many record ends
    /// are pending.
    pub fn end_record(&mut self, end: u32) -> bool {
        if end == 0 || !self.state.is_synchronized() {
            return true;
        }
        let seq = self.snd.una + end + u32::from(self.syn_in_flight());
        self.recovery.add_boundary(seq, self.snd.una)
    }

    /// Stops the TCP_CORK timer. In FIN-WAIT-2, the same timer limits the wait for the peer's FIN,
    /// so it is not stopped.
    fn stop_cork(&mut self) {
        if self.state != State::FinWait2 {
            self.timers.hold = Instant::FAR;
        }
    }

    /// Sets the configuration of keep-alive probes, which detect a silent peer. `None` disables
    /// them.
    pub fn set_keepalive(&mut self, keepalive: Option<KeepAliveConfig>) {
        self.watch_peer(|watch| watch.set_keepalive(keepalive));
        self.arm_keepalive();
    }

    /// Sets the maximum time that sent bytes may stay unacknowledged; overrides
    /// [`Config::user_timeout`](crate::Config::user_timeout). Applies to bytes in flight too,
    /// counted from the last segment sent or received.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.watch_peer(|watch| watch.set_user_timeout(timeout));
    }

    /// Frees memory that is kept for tracking sent segments. Call this when the connection has been
    /// idle for a while.
    pub fn release_idle_memory(&mut self) {
        self.recovery.release_idle_memory();
    }

    /// Sets the maximum number of SYN retransmissions; overrides
    /// [`Config::syn_retries`](crate::Config::syn_retries).
    pub fn set_syn_retries(&mut self, retries: u8) {
        self.settings.syn_retries = retries;
    }

    /// Retransmits the SYN of an active open unless the peer has answered. The caller knows that
    /// the first SYN was lost, so timers stay unchanged and the SYN does not count as a retry.
    pub fn repeat_syn(&mut self) {
        if self.state == State::SynSent && self.snd.nxt != self.snd.iss {
            self.owed.syn = true;
            let rare = self.counters.rare_mut();
            rare.retransmitted = rare.retransmitted.wrapping_add(1);
        }
    }

    /// Sets the maximum time that a closed socket waits for the peer's FIN; overrides
    /// [`Config::fin_wait2_timeout`](crate::Config::fin_wait2_timeout).
    pub fn set_fin_wait2_timeout(&mut self, timeout: Duration) {
        self.settings.fin_wait2_ms = millis(timeout);
    }

    /// With true, enters quick ACK mode (TCP_QUICKACK): sends a pending ACK now and the next ones
    /// without delay. With false, returns to delayed ACKs.
    pub fn set_quickack(&mut self, quick: bool) {
        self.timers.quick_acks = if quick { QUICK_ACKS } else { 0 };
        if quick && self.timers.delayed_ack != Instant::FAR {
            self.owed.ack = true;
        }
    }

    /// Switches the congestion control algorithm. The congestion window stays the same.
    pub fn set_congestion(&mut self, kind: CongestionKind) {
        let start = self.congestion_start();
        self.congestion.set_kind(kind, &start);
        self.set_pacing(self.congestion.pacing_rate(), self.max_pacing_rate());
    }

    /// Sets the maximum delay of an ACK, capped at 499 ms (MUST-40).
    pub fn set_delayed_ack(&mut self, delay: Duration) {
        self.settings.set_delayed_ack(delay);
    }
}
