//! User calls of RFC 9293 §3.9.1: the end of a connection, its settings, and that bytes were read.
//! Opening is in `open`; `plan` asks for bytes to be sent.

use crate::config::{KeepAliveConfig, QUICK_ACKS};
use crate::congestion::CongestionKind;
use crate::connection::{Connection, LastReset};
use crate::receive_space::WhenRead;
use crate::segment::FifoLevels;
use crate::state::State;
use crate::time::{Instant, millis};
use core::time::Duration;

impl Connection {
    /// No more bytes from the program: a FIN follows the last byte of the send FIFO.
    pub fn shutdown_send(&mut self) {
        if self.snd.fin_queued || self.state == State::Closed {
            return;
        }
        self.snd.fin_queued = true;
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            // The handshake has to end first.
            _ => {}
        }
    }

    /// The program is gone in both directions, and nobody reads what may still come: such bytes are
    /// answered with a RST. When the program left bytes unread, call [`abort`](Self::abort) instead
    /// (RFC 9293 §3.6.1, SHLD-3).
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

    /// As [`close`](Self::close) of an active open whose program has written bytes: these go, and
    /// then the FIN, once the handshake is over.
    pub fn close_behind_bytes(&mut self) {
        self.orphaned = true;
        self.shutdown_send();
    }

    /// Ends the connection with a RST, which `plan` yields behind the bytes that the windows have
    /// room for now; then comes [`ConnectionEvent::Closed`](crate::ConnectionEvent::Closed).
    /// Nothing is received any more, and no byte is sent twice: bytes that find no room, or get
    /// lost, are lost.
    ///
    /// On Linux send(2) itself sends what the windows allow, so that a close behind it never
    /// overtakes these bytes. Here the bytes wait for `plan`. A RST that went first would destroy
    /// the answer of a server that closes with a part of the request unread (RFC 2525 §2.17).
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

    /// Whether the last segments, up to a RST, are due. No timer or window delays these.
    pub fn is_aborting(&self) -> bool {
        self.owed.is_aborting()
    }

    /// Whether a read by the program can make a window update or an acknowledgement due, so that
    /// [`on_recv_consumed`] has to be called when it reads. While more than half of the buffer is
    /// open to the peer it is not held back, and the next ACK carries the news.
    ///
    /// [`on_recv_consumed`]: Self::on_recv_consumed
    pub fn awaits_reads(&self, buffers: FifoLevels) -> bool {
        self.state.may_receive() && (self.holds_back(buffers) || self.acks_when_read())
    }

    /// Whether the peer is told of less than half of the buffer.
    fn holds_back(&self, buffers: FifoLevels) -> bool {
        self.rcv.window() <= self.rcv.offerable(buffers.recv_capacity) / 2
    }

    /// Whether an acknowledgement is delayed for which the peer may wait, and which no answer will
    /// carry. As in Linux's `__tcp_cleanup_rbuf`, it goes when the program has read all. A peer
    /// with Nagle's algorithm that sends one short record after the other would wait for the delay
    /// with each.
    fn acks_when_read(&self) -> bool {
        self.timers.delayed_ack != Instant::FAR && self.rcv.when_read == WhenRead::Acknowledges
    }

    /// The program read bytes. True: a window update or an acknowledgement is due now.
    pub fn on_recv_consumed(&mut self, _now: Instant, buffers: FifoLevels) -> bool {
        let opened = self.rcv.offerable(buffers.recv_free).saturating_sub(self.rcv.window());
        // At most half of the buffer, so that it is due at the latest when the program has read
        // all.
        let half = self.rcv.offerable(buffers.recv_capacity) / 2;
        let worth = half.min(2 * u32::from(self.settings.mss_recv)).max(1);
        let update = self.holds_back(buffers) && opened >= worth;
        let acknowledges = buffers.recv_unread == 0 && self.acks_when_read();
        let due = self.state.may_receive() && (update || acknowledges);
        self.owed.ack |= due;
        due
    }

    /// Nagle's algorithm off (true) or on (MUST-17). Turning it off also sends bytes that a cork or
    /// MSG_MORE holds back, as on Linux (tcp(7)). Bytes that are written later are held back again.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.settings.nodelay = nodelay;
        self.owed.cork_flush |= nodelay && (self.settings.corked || self.snd.more_coming);
    }

    /// Holds short segments back, for 200 ms at most, until this is taken away.
    pub fn set_cork(&mut self, corked: bool) {
        self.settings.corked = corked;
        if !corked {
            self.stop_cork();
        }
    }

    /// The program said with its last bytes that more will follow at once (MSG_MORE): as a cork,
    /// until told otherwise.
    pub fn more_coming(&mut self, more: bool) {
        self.snd.more_coming = more;
        if !more && !self.settings.corked {
            self.stop_cork();
        }
    }

    /// In FIN-WAIT-2 the same timer limits the wait for the peer's FIN, and runs on.
    fn stop_cork(&mut self) {
        if self.state != State::FinWait2 {
            self.timers.hold = Instant::FAR;
        }
    }

    /// Probes a silent peer, or stops doing so.
    pub fn set_keepalive(&mut self, keepalive: Option<KeepAliveConfig>) {
        self.watch_peer(|watch| watch.set_keepalive(keepalive));
        self.arm_keepalive();
    }

    /// How long sent bytes may stay unacknowledged, in place of
    /// [`Config::user_timeout`](crate::Config::user_timeout). The time counts for bytes already in
    /// flight, from when something was last sent or heard.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.watch_peer(|watch| watch.set_user_timeout(timeout));
    }

    /// Frees memory that is kept for the next flight. For the owner of a connection that was idle
    /// for a while.
    pub fn release_idle_memory(&mut self) {
        self.recovery.release_idle_memory();
    }

    /// Times a SYN is sent again, in place of [`Config::syn_retries`](crate::Config::syn_retries).
    pub fn set_syn_retries(&mut self, retries: u8) {
        self.settings.syn_retries = retries;
    }

    /// Sends the SYN of an active open once more, if the peer has not answered it. The timers stay
    /// as they are, and the SYN counts as none of the retries: the caller knows that the first one
    /// is lost.
    pub fn repeat_syn(&mut self) {
        if self.state == State::SynSent && self.snd.nxt != self.snd.iss {
            self.owed.syn = true;
            let rare = self.counters.rare_mut();
            rare.retransmitted = rare.retransmitted.wrapping_add(1);
        }
    }

    /// How long a closed socket waits for the peer's FIN, in place of
    /// [`Config::fin_wait2_timeout`](crate::Config::fin_wait2_timeout).
    pub fn set_fin_wait2_timeout(&mut self, timeout: Duration) {
        self.settings.fin_wait2_ms = millis(timeout);
    }

    /// True sends what is due now and the next ACKs without delay; false goes back to delaying.
    pub fn set_quickack(&mut self, quick: bool) {
        self.timers.quick_acks = if quick { QUICK_ACKS } else { 0 };
        if quick && self.timers.delayed_ack != Instant::FAR {
            self.owed.ack = true;
        }
    }

    /// The window stays, the way in which it grows changes.
    pub fn set_congestion(&mut self, kind: CongestionKind) {
        self.congestion.set_kind(kind);
    }

    /// At most 499 ms (MUST-40).
    pub fn set_delayed_ack(&mut self, delay: Duration) {
        self.settings.set_delayed_ack(delay);
    }
}
