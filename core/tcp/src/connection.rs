//! A TCP connection: its parts, values derived from several of them, and its end. The processing
//! stages (modules `open`, `receive`, `plan`, `emit`, `timeouts`, `calls`) use this module, but not
//! vice versa.
//!
//! Budget: [`Connection`] takes most of the memory of an idle connection, and there may be a
//! million of them. Rarely needed parts are boxed and exist only while needed: [`PeerWatch`], the
//! scoreboard and flight record in [`Recovery`], and the assembler in [`ReceiveSpace`]. Rare
//! counters, urgent data and pacing share a box in [`ConnectionCounters`].

use crate::config::Config;
use crate::congestion::Congestion;
use crate::counters::ConnectionCounters;
use crate::ecn::EcnState;
use crate::event::{ConnectionEvent, pending};
use crate::extensions::Extensions;
use crate::receive_space::ReceiveSpace;
use crate::recovery::Recovery;
use crate::rtt::Rtt;
use crate::send_space::SendSpace;
use crate::settings::ConnectionSettings;
use crate::state::State;
use crate::time::Instant;
use crate::time_wait::{EndedConnection, TimeWait};
use crate::timers::Timers;
use crate::watch::PeerWatch;
use towpath_wire::tcp::{Options, SeqNum};

/// A TCP connection. See the crate's documentation for the order in which to call its methods.
#[derive(Debug)]
pub struct Connection {
    pub(crate) state: State,
    pub(crate) owed: Owed,
    pub(crate) settings: ConnectionSettings,
    events: u8,
    pub(crate) ecn: EcnState,
    /// Whether the program has closed the socket, so that bytes that arrive from now on cannot be
    /// read.
    pub(crate) orphaned: bool,
    /// Whether this end opened the connection (active open).
    pub(crate) is_active: bool,
    /// Result of [`Self::mss`], which each segment needs several times.
    mss: u16,
    pub(crate) snd: SendSpace,
    pub(crate) rcv: ReceiveSpace,
    pub(crate) ext: Extensions,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    pub(crate) recovery: Recovery,
    pub(crate) timers: Timers,
    pub(crate) watch: Option<Box<PeerWatch>>,
    pub(crate) counters: ConnectionCounters,
}

/// Limit the size, because a connection is the largest part of an idle socket's memory.
/// `core/stack/src/socket.rs` has a table of all parts.
const _: () = assert!(size_of::<Connection>() <= 336);

/// Pending segments other than data, which `plan` sends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owed {
    pub(crate) syn: bool,
    /// Whether an ACK must be sent now.
    pub(crate) ack: bool,
    /// Number of duplicate ACKs to send, one by one and without data. A peer without SACK counts
    /// them (RFC 5681 §4.2). With SACK, they precede the ACK of `ack`: each of them has another
    /// first SACK block.
    pub(crate) dup_acks: u8,
    pub(crate) window_probe: bool,
    pub(crate) keepalive: bool,
    /// Whether a segment shorter than the MSS may be sent in spite of TCP_CORK.
    pub(crate) cork_flush: bool,
    /// Time at which the RST that aborts this connection is sent.
    pub(crate) reset: LastReset,
    replies: bool,
    reply: SeqNum,
}

/// When to send the RST that aborts a connection. The enum takes one byte, because the size of
/// `Connection` is limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LastReset {
    /// No RST must be sent.
    #[default]
    Never,
    /// The RST follows the bytes that the windows allow to send, and the FIN if one is queued.
    BehindBytes,
    /// The RST is the next segment.
    Now,
}

impl Owed {
    /// Schedules a RST with this sequence number, in answer to a segment that does not belong to
    /// this connection. The state of the connection does not change.
    pub(crate) fn set_reset_reply(&mut self, seq: SeqNum) {
        (self.replies, self.reply) = (true, seq);
    }

    /// Returns whether the connection is aborted and its RST is still to be sent.
    pub(crate) fn is_aborting(&self) -> bool {
        self.reset != LastReset::Never
    }

    pub(crate) fn reset_reply(&self) -> Option<SeqNum> {
        self.replies.then_some(self.reply)
    }

    pub(crate) fn take_reset_reply(&mut self) -> Option<SeqNum> {
        std::mem::take(&mut self.replies).then_some(self.reply)
    }
}

impl Connection {
    /// Creates a connection that has not sent or received any segment. Used by module `open` for
    /// both active and passive opens.
    pub(crate) fn new(config: &Config, iss: SeqNum, ts_offset: u32, now: Instant) -> Connection {
        let mut connection = Connection {
            state: State::SynSent,
            owed: Owed::default(),
            settings: ConnectionSettings::new(config),
            events: 0,
            ecn: EcnState::offer(config.ecn),
            orphaned: false,
            is_active: false,
            mss: 0,
            snd: SendSpace::new(config, iss),
            rcv: ReceiveSpace::new(config),
            ext: Extensions::new(config, ts_offset, now),
            rtt: Rtt::new(config.rto_initial, config.rto_min, config.rto_max),
            congestion: Congestion::new(
                config.congestion,
                u32::from(config.mss_default),
                config.initial_window,
                iss,
            ),
            recovery: Recovery::new(iss),
            timers: Timers::new(now),
            watch: None,
            counters: ConnectionCounters::default(),
        };
        connection.update_mss();
        connection
    }

    /// Returns the payload of a full segment without SACK blocks, the unit of congestion control.
    #[inline]
    pub(crate) fn mss(&self) -> u32 {
        u32::from(self.mss)
    }

    /// Returns whether [`Self::update_mss`] was called after each change.
    pub(crate) fn is_mss_current(&self) -> bool {
        self.mss == self.effective_mss()
    }

    fn effective_mss(&self) -> u16 {
        self.snd.mss_with_options() - self.ext.options_len()
    }

    /// Updates [`Self::mss`] after the options, the path's segment size or the largest window of
    /// the peer changed.
    pub(crate) fn update_mss(&mut self) {
        self.mss = self.effective_mss();
    }

    /// Returns the maximum payload in bytes of a segment sent now, which is reduced by its SACK
    /// blocks.
    pub(crate) fn segment_size(&self) -> u32 {
        match self
            .ext
            .sack_blocks_count(self.counters.dsack().is_some(), self.rcv.assembler.as_deref())
        {
            0 => self.mss(),
            count => self.mss() - 4 - 8 * count as u32,
        }
    }

    /// Returns the TCP options of a segment without SYN.
    pub(crate) fn segment_options(&self, now: Instant) -> Options {
        // The last ACK reports the D-SACK, because the range that contains it changed last.
        let skip = self.owed.dup_acks;
        let dsack = self.counters.dsack().filter(|_| skip == 0);
        let sack = self.ext.sack_blocks(dsack, self.rcv.assembler.as_deref(), skip);
        Options { timestamps: self.ext.timestamps_option(now), sack, ..Options::default() }
    }

    /// Returns whether our SYN is sent but not acknowledged. `snd.una` alone is not sufficient,
    /// because it equals `snd.iss` again after each 4 GiB.
    pub(crate) fn syn_in_flight(&self) -> bool {
        matches!(self.state, State::SynSent | State::SynReceived)
            && self.snd.una == self.snd.iss
            && self.snd.nxt != self.snd.iss
    }

    /// Returns the number of bytes from the send FIFO that are in flight, without SYN and FIN.
    pub(crate) fn data_in_flight(&self) -> u32 {
        self.snd.flight() - u32::from(self.syn_in_flight()) - u32::from(self.snd.fin_in_flight())
    }

    pub(crate) fn retries(&self) -> u8 {
        if self.orphaned { self.settings.orphan_retries } else { self.settings.retries }
    }

    pub(crate) fn raise(&mut self, event: u8) {
        self.events |= event;
    }

    /// Enters CLOSED and cancels all segments to be sent, except a RST in answer to a segment that
    /// does not belong to this connection.
    pub(crate) fn enter_closed(&mut self) {
        self.state = State::Closed;
        let Owed { replies, reply, .. } = self.owed;
        self.owed = Owed { replies, reply, ..Owed::default() };
        self.stop_timers();
        self.rcv.assembler = None;
    }

    pub(crate) fn enter_time_wait(&mut self) {
        self.state = State::TimeWait;
        self.stop_timers();
        self.rcv.assembler = None;
    }

    pub(crate) fn stop_timers(&mut self) {
        self.timers = Timers::new(self.timers.last_recv);
        self.watch = None;
        if let Some(pacer) = self.counters.pacing_mut() {
            pacer.wake = Instant::FAR;
        }
    }

    /// Notifies the ECN state that the congestion window was reduced, so that the window is not
    /// reduced again in this round trip.
    pub(crate) fn note_reduced(&mut self) {
        if self.ecn.is_negotiated() {
            self.ecn.on_reduced();
            self.counters.rare_mut().ecn.reduced_until = self.snd.nxt;
        }
    }

    /// Records the time at which the segment at SND.UNA is retransmitted. The timestamp echoed by a
    /// later ACK then shows whether it acknowledges the original or the retransmission.
    pub(crate) fn note_repeated(&mut self, now: Instant) {
        self.counters.rare_mut().ts_repeated = now.millis().wrapping_add(self.ext.ts_offset);
    }

    /// Removes and returns the oldest event; `None` if there is none.
    #[inline]
    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        // Return early, because this function is called after every segment, and usually there is
        // no event.
        if self.events == 0 && !matches!(self.state, State::Closed | State::TimeWait) {
            return None;
        }
        self.next_event()
    }

    fn next_event(&mut self) -> Option<ConnectionEvent> {
        const TABLE: [(u8, ConnectionEvent); 7] = [
            (pending::CONNECTED, ConnectionEvent::Connected),
            (pending::PEER_CLOSED, ConnectionEvent::PeerClosed),
            (pending::SEND_CLOSED, ConnectionEvent::SendClosed),
            (pending::RESET, ConnectionEvent::Reset),
            (pending::REFUSED, ConnectionEvent::Refused),
            (pending::UNREACHABLE, ConnectionEvent::Unreachable),
            (pending::TIMED_OUT, ConnectionEvent::TimedOut),
        ];
        for (bit, event) in TABLE {
            if self.events & bit != 0 {
                self.events &= !bit;
                return Some(event);
            }
        }
        if self.events & pending::ENDED != 0 {
            return None;
        }
        let end = match self.state {
            State::Closed if !self.owed.is_aborting() && self.owed.reset_reply().is_none() => {
                ConnectionEvent::Closed
            }
            State::TimeWait if !self.owed.ack => ConnectionEvent::TimeWait(self.time_wait()),
            _ => return None,
        };
        self.events |= pending::ENDED;
        Some(end)
    }

    /// Returns the state that represents the connection in TIME-WAIT, which began when the last
    /// segment of the peer arrived.
    fn time_wait(&self) -> TimeWait {
        let ended = EndedConnection {
            snd_nxt: self.snd.nxt,
            rcv_nxt: self.rcv.nxt,
            rcv_wnd: self.rcv.window_max(),
            rcv_wscale: self.rcv.wscale,
            timestamps: self.ext.timestamps,
            ts_recent: self.ext.ts_recent,
            ts_offset: self.ext.ts_offset,
        };
        TimeWait::new(ended, self.timers.last_recv, self.settings.time_wait_ms)
    }

    /// Sets the path's maximum segment size: `mss` bytes of TCP payload and options. Bytes in
    /// flight in larger segments are retransmitted in the new size.
    //= https://www.rfc-editor.org/rfc/rfc7323#section-5.7
    //# any TCP implementation that implements PAWS MUST also implement Path MTU Discovery.
    pub fn on_path_mtu(&mut self, mss: u16) {
        let before = self.snd.mss_with_options();
        self.snd.mss_path = mss;
        self.update_mss();
        let shrunk = self.snd.mss_with_options() < before;
        self.congestion.on_mss(self.mss());
        let flight = self.snd.flight();
        if shrunk && self.state == State::SynSent && flight > 1 {
            // A router dropped the SYN because it was too long with its data. Retransmit the SYN
            // without data.
            self.owed.syn = true;
        }
        let long = flight.saturating_sub(self.recovery.short_tail.into());
        if shrunk && self.state.may_send() && long > 0 {
            // Retransmit at once without a congestion response (RFC 1191 §6.5). We do not know
            // which segments the router dropped. The short segments at the end of the flight fit
            // the path and are not retransmitted.
            self.recovery.resend(self.snd.una, self.snd.una + long, self.snd.nxt);
            self.rtt.stop_timing();
        }
    }

    /// Handles an ICMP error about our segment with sequence number `seq`; ignored unless `seq` is
    /// in flight (RFC 5927). Returns true if the error ended the connection: only a hard error in
    /// SYN-SENT does (RFC 5461). A soft error is remembered, and becomes the reason if the
    /// connection times out.
    pub fn on_unreachable(&mut self, hard: bool, seq: SeqNum) -> bool {
        if !self.snd.is_outstanding(seq) {
            return false;
        }
        if hard && self.state == State::SynSent {
            self.enter_closed();
            self.raise(pending::UNREACHABLE);
            return true;
        }
        self.timers.unreachable = true;
        false
    }

    /// Returns the connection's current state.
    pub fn state(&self) -> State {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeepAliveConfig;
    use crate::congestion::LossEvent;
    use crate::half_open::Handshake;
    use crate::segment::{FifoLevels, Segment};
    use core::time::Duration;
    use towpath_wire::tcp::Flags;

    const BUFFERS: FifoLevels = FifoLevels {
        recv_free: 65_536,
        recv_capacity: 65_536,
        recv_unread: 0,
        send_len: 0,
        send_capacity: 65_536,
    };

    fn connection() -> Connection {
        let handshake = Handshake {
            mss_peer: Some(1460),
            send_scale: Some(7),
            sack: true,
            send_window: 65_536,
            ..Handshake::without_options(SeqNum(100), SeqNum(200))
        };
        Connection::accept(Config::default(), handshake, Instant(1))
    }

    fn receive(connection: &mut Connection, offset: u32, len: u32, flags: Flags) {
        connection.on_segment(Instant(2), &segment(offset, len, flags), BUFFERS);
    }

    fn segment(offset: u32, len: u32, flags: Flags) -> Segment {
        Segment {
            seq: SeqNum(201) + offset,
            ack: SeqNum(101),
            flags: Flags::ACK | flags,
            window: 512,
            urgent: 0,
            options: Options::default(),
            payload_len: len,
            arrival: Instant(2),
            ecn: towpath_wire::Ecn::NotEct,
            segments: 1,
        }
    }

    #[test]
    fn the_congestion_window_has_room_for_a_segment_that_became_longer() {
        let handshake = Handshake {
            mss_peer: Some(1460),
            send_window: 500,
            ..Handshake::without_options(SeqNum(100), SeqNum(200))
        };
        let mut connection = Connection::accept(Config::default(), handshake, Instant(1));
        let short = connection.mss();
        connection.congestion.on_loss(LossEvent { flight: short, mss: short });
        let window = Segment { window: 4000, ..segment(0, 0, Flags(0)) };
        connection.on_segment(Instant(2), &window, BUFFERS);
        connection.congestion.on_recovery_exit();
        assert!(connection.mss() > 2 * short && connection.congestion.cwnd() > connection.mss());
    }

    #[test]
    fn boxes_exist_only_while_they_are_needed() {
        let mut connection = connection();
        receive(&mut connection, 0, 100, Flags::PSH);
        assert!(connection.rcv.assembler.is_none() && connection.watch.is_none());
        receive(&mut connection, 200, 100, Flags::FIN);
        assert!(connection.rcv.assembler.is_some());
        receive(&mut connection, 100, 100, Flags::PSH);
        assert_eq!(connection.state, State::CloseWait);
        assert!(connection.rcv.assembler.is_none());
        connection.set_keepalive(Some(KeepAliveConfig::default()));
        connection.set_user_timeout(Some(Duration::from_secs(1)));
        connection.set_keepalive(None);
        assert!(connection.watch.is_some());
        connection.set_user_timeout(None);
        assert!(connection.watch.is_none());
    }

    #[test]
    fn a_fin_ahead_of_its_turn_waits_alone() {
        let mut connection = connection();
        receive(&mut connection, 100, 0, Flags::FIN);
        assert_eq!(connection.state, State::Established);
        assert!(connection.rcv.assembler.is_some());
        // Bytes beyond the peer's FIN are ignored.
        receive(&mut connection, 0, 150, Flags::PSH);
        assert_eq!(connection.rcv.nxt, SeqNum(201) + 101);
        assert_eq!(connection.state, State::CloseWait);
    }
}
