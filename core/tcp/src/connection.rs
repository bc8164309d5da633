//! A connection: its parts, values that need several of them, and its end. The stages that use it
//! (`open`, `receive`, `plan`, `emit`, `timeouts`, `calls`) are not used here.
//!
//! Budget: [`Connection`] is the largest part of what an idle connection costs, and there may be a
//! million of them. Rarely needed parts live in boxes, which exist while they are needed:
//! [`PeerWatch`], scoreboard and flight record in [`Recovery`], and the assembler in
//! [`ReceiveSpace`]. Rare figures, urgent data and pacing share a box in [`ConnectionCounters`].

use crate::config::Config;
use crate::congestion::Congestion;
use crate::counters::ConnectionCounters;
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

/// A TCP connection. The crate's documentation says in which order to call what.
#[derive(Debug)]
pub struct Connection {
    pub(crate) state: State,
    pub(crate) owed: Owed,
    pub(crate) settings: ConnectionSettings,
    events: u16,
    /// The program has closed the socket, so that no reader exists for bytes that arrive.
    pub(crate) orphaned: bool,
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

/// The largest share of an idle connection's memory (`core/stack/src/socket.rs` has the table).
const _: () = assert!(size_of::<Connection>() <= 336);

/// Segments that `plan` has to send apart from bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owed {
    pub(crate) syn: bool,
    /// An acknowledgement now.
    pub(crate) ack: bool,
    /// Acknowledgements to be sent one by one and without bytes, so that a peer without SACK can
    /// count them (RFC 5681 §4.2).
    pub(crate) dup_acks: u8,
    pub(crate) window_probe: bool,
    pub(crate) keepalive: bool,
    /// A short segment may go although corked.
    pub(crate) cork_flush: bool,
    /// The RST that ends this connection.
    pub(crate) reset: LastReset,
    replies: bool,
    reply: SeqNum,
}

/// When the RST goes that ends a connection. In the space of a bool: `Connection` has a budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LastReset {
    /// None is owed.
    #[default]
    Never,
    /// Bytes that the windows have room for, and then a FIN that was asked for, go before it.
    BehindBytes,
    /// Next.
    Now,
}

impl Owed {
    /// A RST with this number, for a segment that is not of this connection; the connection stays.
    pub(crate) fn set_reset_reply(&mut self, seq: SeqNum) {
        (self.replies, self.reply) = (true, seq);
    }

    /// Whether the RST that ends the connection is due.
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
    /// Before anything was sent or received. `open` makes one for either side of a handshake.
    pub(crate) fn new(config: &Config, iss: SeqNum, ts_offset: u32, now: Instant) -> Connection {
        Connection {
            state: State::SynSent,
            owed: Owed::default(),
            settings: ConnectionSettings::new(config),
            events: 0,
            orphaned: false,
            snd: SendSpace::new(config, iss),
            rcv: ReceiveSpace::new(config),
            ext: Extensions::new(config, ts_offset, now),
            rtt: Rtt::new(config.rto_initial, config.rto_min, config.rto_max),
            congestion: Congestion::new(
                config.congestion,
                u32::from(config.mss_default),
                config.initial_window,
            ),
            recovery: Recovery::new(iss),
            timers: Timers::new(now),
            watch: None,
            counters: ConnectionCounters::default(),
        }
    }

    /// Payload of a full segment without SACK blocks: the unit of congestion control.
    pub(crate) fn mss(&self) -> u32 {
        u32::from(self.snd.mss_with_options() - self.ext.options_len())
    }

    /// The largest payload of a segment sent now: SACK blocks take room.
    pub(crate) fn segment_size(&self) -> u32 {
        match self.ext.sack_blocks_count(self.rcv.assembler.as_deref()) {
            0 => self.mss(),
            count => self.mss() - 4 - 8 * count as u32,
        }
    }

    /// The options of a segment without SYN.
    pub(crate) fn segment_options(&self, now: Instant) -> Options {
        let sack = self.ext.sack_blocks(self.rcv.assembler.as_deref());
        Options { timestamps: self.ext.timestamps_option(now), sack, ..Options::default() }
    }

    /// Whether our SYN is sent and not acknowledged. The state decides, too: `snd_una` equals `iss`
    /// again after each 4 GiB, also in CLOSED while bytes go before the RST.
    pub(crate) fn syn_in_flight(&self) -> bool {
        matches!(self.state, State::SynSent | State::SynReceived)
            && self.snd.una == self.snd.iss
            && self.snd.nxt != self.snd.iss
    }

    /// Bytes of the send FIFO in flight.
    pub(crate) fn data_in_flight(&self) -> u32 {
        self.snd.flight() - u32::from(self.syn_in_flight()) - u32::from(self.snd.fin_in_flight())
    }

    pub(crate) fn retries(&self) -> u8 {
        if self.orphaned { self.settings.orphan_retries } else { self.settings.retries }
    }

    pub(crate) fn raise(&mut self, event: u16) {
        self.events |= event;
    }

    /// Enters CLOSED and sends nothing more, but for a RST that answers a segment of another
    /// connection.
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

    /// Stops all timers.
    pub(crate) fn stop_timers(&mut self) {
        self.timers = Timers::new(self.timers.last_recv);
        self.watch = None;
        if let Some(pacer) = self.counters.pacing_mut() {
            pacer.wake = Instant::FAR;
        }
    }

    /// The segment at SND.UNA is sent again: of its copies, this is the one whose round trip can be
    /// told.
    pub(crate) fn note_repeated(&mut self, now: Instant) {
        self.counters.rare_mut().ts_repeated = now.millis().wrapping_add(self.ext.ts_offset);
    }

    /// Events since the last call, oldest first; `None` after the last one.
    #[inline]
    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        // As good as always, and asked after each segment.
        if self.events == 0 && !matches!(self.state, State::Closed | State::TimeWait) {
            return None;
        }
        self.next_event()
    }

    fn next_event(&mut self) -> Option<ConnectionEvent> {
        const TABLE: [(u16, ConnectionEvent); 7] = [
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

    /// The connection's successor in TIME-WAIT. The connection entered that state when it heard
    /// from the peer last.
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

    /// The path carries `mss` bytes of TCP payload and options. Bytes in flight that were cut
    /// larger and got lost go again in the new size.
    pub fn on_path_mtu(&mut self, mss: u16) {
        let before = self.snd.mss_with_options();
        self.snd.mss_path = mss;
        let shrunk = self.snd.mss_with_options() < before;
        self.congestion.on_mss(self.mss());
        let flight = self.snd.flight();
        let long = flight.saturating_sub(self.recovery.short_tail.into());
        if shrunk && self.state.may_send() && long > 0 {
            // RFC 1191 §6.5: resend at once, and do not take it for congestion. The router's drops
            // are not known one by one. Behind the last long segment there are short ones, which
            // passed.
            self.recovery.resend(self.snd.una, self.snd.una + long, self.snd.nxt);
            self.rtt.stop_timing();
        }
    }

    /// An ICMP error came for a segment of ours that starts at `seq`. True when it ended the
    /// connection: only a hard error in SYN-SENT does (RFC 5461), and only when `seq` is in flight
    /// (RFC 5927). A soft one is remembered, and names the reason when the connection times out.
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

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeepAliveConfig;
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
        let segment = Segment {
            seq: SeqNum(201) + offset,
            ack: SeqNum(101),
            flags: Flags::ACK | flags,
            window: 512,
            urgent: 0,
            options: Options::default(),
            payload_len: len,
            arrival: Instant(2),
            ce: false,
            segments: 1,
        };
        connection.on_segment(Instant(2), &segment, BUFFERS);
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
        // Bytes beyond the FIN do not exist.
        receive(&mut connection, 0, 150, Flags::PSH);
        assert_eq!(connection.rcv.nxt, SeqNum(201) + 101);
        assert_eq!(connection.state, State::CloseWait);
    }
}
