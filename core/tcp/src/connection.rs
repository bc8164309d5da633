//! A connection's variables, values derived from them, and its end. The stages that use it (`open`,
//! `receive`, `plan`, `emit`, `timeouts`, `calls`) are not used here.
//!
//! Budget: [`Connection`] is the largest part of what an idle connection costs, and there may be a
//! million of them. Rarely needed parts live in boxes, which exist while they are needed:
//! [`Watch`], the scoreboard in [`Recovery`], and [`Assembler`]. Rare figures, urgent data and
//! pacing share a box in [`Counters`].

use crate::challenge::ChallengeLimit;
use crate::config::{Config, MSS_DEFAULT, MSS_MIN, TIMESTAMPS_LEN, WINDOW_SCALE_MAX};
use crate::congestion::Congestion;
use crate::counters::Counters;
use crate::event::{ConnectionEvent, pending};
use crate::fast_open::FastOpen;
use crate::ranges::Assembler;
use crate::recovery::Recovery;
use crate::rtt::Rtt;
use crate::settings::Settings;
use crate::state::State;
use crate::time::Instant;
use crate::time_wait::{EndedConnection, TimeWait};
use crate::timers::Timers;
use crate::timestamps;
use crate::watch::Watch;
use towpath_wire::tcp::{Options, SackBlocks, SeqNum, Timestamps};

/// A TCP connection. The crate's documentation says in which order to call what.
#[derive(Debug)]
pub struct Connection {
    pub(crate) state: State,
    pub(crate) owed: Owed,
    pub(crate) settings: Settings,
    events: u16,

    // The send sequence space (RFC 9293 §3.3.1).
    pub(crate) iss: SeqNum,
    pub(crate) snd_una: SeqNum,
    pub(crate) snd_nxt: SeqNum,
    /// Scaled.
    pub(crate) snd_wnd: u32,
    pub(crate) snd_wl1: SeqNum,
    pub(crate) snd_wl2: SeqNum,
    /// The largest window the peer ever offered.
    pub(crate) max_snd_wnd: u32,
    /// End of the last short segment sent (Minshall's variant of Nagle's algorithm).
    pub(crate) small_end: SeqNum,
    /// Bytes below were sent when the congestion window was what held them back.
    pub(crate) limited_end: SeqNum,
    pub(crate) mss_peer: u16,
    /// Largest segment, options included, that the path MTU and the program's TCP_MAXSEG allow.
    mss_path: u16,
    pub(crate) snd_wscale: u8,
    /// MSG_MORE on the last write.
    pub(crate) more_coming: bool,
    pub(crate) fin_queued: bool,
    pub(crate) fin_sent: bool,
    /// The program is gone; bytes that arrive have no reader.
    pub(crate) orphaned: bool,
    pub(crate) fast_open: FastOpen,

    // The receive sequence space.
    pub(crate) rcv_nxt: SeqNum,
    /// The right edge that the peer was told last; before the peer's SYN, `rcv_nxt` plus our SYN's
    /// window.
    pub(crate) rcv_adv: SeqNum,
    /// The furthest right edge that it was ever told: what it sent up to there is taken if there is
    /// room.
    pub(crate) rcv_max: SeqNum,
    /// The last acknowledgement sent.
    pub(crate) rcv_acked: SeqNum,
    pub(crate) rcv_wscale: u8,
    /// The largest payload seen: what counts as a full segment.
    pub(crate) rcv_mss: u16,
    pub(crate) when_read: WhenRead,
    /// There is one only while something came ahead of its turn.
    pub(crate) assembler: Option<Box<Assembler>>,

    // Timestamps (RFC 7323).
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) scaling: bool,
    pub(crate) ts_recent: u32,
    /// When that was, as [`Instant::coarse`] has it.
    pub(crate) ts_recent_at: u32,
    pub(crate) ts_offset: u32,

    pub(crate) rtt: Rtt,
    /// When the bytes were sent whose round trip is being measured; [`Instant::FAR`]: none are.
    timed_at: Instant,
    /// Number from which on an acknowledgement covers the timed bytes.
    timed_end: SeqNum,
    pub(crate) congestion: Congestion,
    pub(crate) recovery: Recovery,
    pub(crate) timers: Timers,
    pub(crate) watch: Option<Box<Watch>>,
    pub(crate) challenge: ChallengeLimit,
    pub(crate) counters: Counters,
}

/// The largest share of an idle connection's memory (`core/stack/src/socket.rs` has the table).
const _: () = assert!(size_of::<Connection>() <= 336);

/// Effect on a delayed acknowledgement when the program has read all bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenRead {
    /// More segments are likely to come, or the delay to end.
    Nothing,
    /// The last bytes ended a write: a short segment, or one with PSH. The acknowledgement goes.
    Acknowledges,
    /// The program answers what it receives, and its answers carry acknowledgements.
    Answers,
}

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
            settings: Settings::new(config),
            events: 0,
            iss,
            snd_una: iss,
            snd_nxt: iss,
            snd_wnd: 0,
            snd_wl1: SeqNum(0),
            snd_wl2: SeqNum(0),
            max_snd_wnd: 0,
            small_end: iss,
            limited_end: iss,
            mss_peer: config.mss_default,
            mss_path: config.mss_send_max,
            snd_wscale: 0,
            more_coming: false,
            fin_queued: false,
            fin_sent: false,
            orphaned: false,
            fast_open: FastOpen::default(),
            rcv_nxt: SeqNum(0),
            rcv_adv: SeqNum(0),
            rcv_max: SeqNum(0),
            rcv_acked: SeqNum(0),
            rcv_wscale: config.window_scale.min(WINDOW_SCALE_MAX),
            // Below every usual segment, so that the first ones count as full.
            rcv_mss: config.mss_recv.min(MSS_DEFAULT),
            when_read: WhenRead::Nothing,
            assembler: None,
            timestamps: config.timestamps,
            sack: config.sack,
            scaling: true,
            ts_recent: 0,
            ts_recent_at: now.coarse(),
            ts_offset,
            rtt: Rtt::new(config.rto_initial, config.rto_min, config.rto_max),
            timed_at: Instant::FAR,
            timed_end: iss,
            congestion: Congestion::new(
                config.congestion,
                u32::from(config.mss_default),
                config.initial_window,
            ),
            recovery: Recovery::new(iss),
            timers: Timers::new(now),
            watch: None,
            challenge: ChallengeLimit::default(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn set_send_window(&mut self, window: u32, wl1: SeqNum, wl2: SeqNum) {
        self.snd_wnd = window;
        self.snd_wl1 = wl1;
        self.snd_wl2 = wl2;
        self.max_snd_wnd = self.max_snd_wnd.max(window);
    }

    /// The largest payload of a segment with the usual options: what congestion control counts in.
    ///
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
    //# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS",
    //# MUST be the smaller (MUST-16) of the send MSS (that reflects the available reassembly buffer
    //# size at the remote host, the EMTU_R [19]) and the largest transmission size permitted by the
    //# IP layer (EMTU_S [19])
    pub(crate) fn mss(&self) -> u32 {
        let options = if self.timestamps { TIMESTAMPS_LEN } else { 0 };
        u32::from(self.mss_without_options() - options)
    }

    pub(crate) fn mss_without_options(&self) -> u16 {
        self.mss_peer.min(self.mss_path).min(self.half_window()).max(MSS_MIN)
    }

    /// Half the largest window that the peer ever offered. A larger segment would fit into the
    /// peer's buffer alone, and be sent when the peer has read all. So each segment would wait for
    /// the acknowledgement of the one before, which the peer delays. On a link with segments of 64
    /// KiB that is the rule. Linux does the same (`tcp_bound_to_half_wnd`), and leaves windows of
    /// up to 536 bytes alone.
    fn half_window(&self) -> u16 {
        match self.max_snd_wnd {
            0 => u16::MAX,
            least if least <= u32::from(MSS_DEFAULT) => MSS_DEFAULT,
            largest => u16::try_from(largest / 2).unwrap_or(u16::MAX),
        }
    }

    /// The largest payload of a segment sent now: SACK blocks take room.
    pub(crate) fn segment_size(&self) -> u32 {
        match self.sack_blocks_count() {
            0 => self.mss(),
            count => self.mss() - 4 - 8 * count as u32,
        }
    }

    /// Blocks beside timestamps: 40 - 12 - 4 bytes are room for three.
    fn sack_blocks_max(&self) -> usize {
        if self.timestamps { 3 } else { SackBlocks::COUNT_MAX }
    }

    fn sack_blocks_count(&self) -> usize {
        match &self.assembler {
            Some(assembler) if self.sack => assembler.blocks_count(self.sack_blocks_max()),
            _ => 0,
        }
    }

    /// The options of a segment without SYN.
    pub(crate) fn segment_options(&self, now: Instant) -> Options {
        let sack = match &self.assembler {
            Some(assembler) if self.sack => assembler.blocks(self.sack_blocks_max()),
            _ => SackBlocks::new(),
        };
        Options { timestamps: self.timestamps_option(now), sack, ..Options::default() }
    }

    pub(crate) fn timestamps_option(&self, now: Instant) -> Option<Timestamps> {
        self.timestamps.then(|| timestamps::option(now, self.ts_offset, self.ts_recent))
    }

    /// Sequence numbers sent and not acknowledged.
    #[inline]
    pub(crate) fn flight(&self) -> u32 {
        self.snd_nxt - self.snd_una
    }

    /// Whether our SYN is sent and not acknowledged. The state decides, too: `snd_una` equals `iss`
    /// again after each 4 GiB, also in CLOSED while bytes go before the RST.
    pub(crate) fn syn_in_flight(&self) -> bool {
        matches!(self.state, State::SynSent | State::SynReceived)
            && self.snd_una == self.iss
            && self.snd_nxt != self.iss
    }

    /// Our FIN is sent and not acknowledged.
    pub(crate) fn fin_in_flight(&self) -> bool {
        self.fin_sent && self.snd_una != self.snd_nxt
    }

    /// The peer has acknowledged our FIN, after which nothing is sent that takes a number.
    pub(crate) fn fin_acked(&self) -> bool {
        self.fin_sent && self.snd_una == self.snd_nxt
    }

    /// Bytes of the send FIFO in flight.
    pub(crate) fn data_in_flight(&self) -> u32 {
        self.flight() - u32::from(self.syn_in_flight()) - u32::from(self.fin_in_flight())
    }

    /// Number behind the last that the peer's window allows.
    pub(crate) fn window_end(&self) -> SeqNum {
        self.snd_una + self.snd_wnd
    }

    /// Bytes that the peer may still send, as far as it knows.
    pub(crate) fn recv_window(&self) -> u32 {
        self.rcv_adv - self.rcv_nxt
    }

    /// Rest of the largest window that the peer was ever told. The peer may have sent up to that
    /// edge before it heard of a smaller window, and its acknowledgements have numbers up to there.
    pub(crate) fn recv_window_max(&self) -> u32 {
        self.rcv_max - self.rcv_nxt
    }

    /// RCV.NXT has advanced: neither edge of the window is left behind it.
    pub(crate) fn keep_edges_ahead(&mut self) {
        self.rcv_adv = self.rcv_adv.max(self.rcv_nxt);
        self.rcv_max = self.rcv_max.max(self.rcv_adv);
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
        self.assembler = None;
    }

    /// Stops all timers.
    pub(crate) fn stop_timers(&mut self) {
        self.timers = Timers::new(self.timers.last_recv);
        self.watch = None;
        if let Some(pacer) = self.counters.pacing_mut() {
            pacer.wake = Instant::FAR;
        }
    }

    /// The round trip of what ends before `end` and was sent at `now` is measured.
    pub(crate) fn start_timing(&mut self, now: Instant, end: SeqNum) {
        (self.timed_at, self.timed_end) = (now, end);
    }

    /// The timed bytes were sent again, so they give no sample: an acknowledgement may be of either
    /// copy (Karn's algorithm, RFC 6298 §3).
    pub(crate) fn stop_timing(&mut self) {
        self.timed_at = Instant::FAR;
    }

    /// The segment at SND.UNA is sent again: of its copies, this is the one whose round trip can be
    /// told.
    pub(crate) fn note_repeated(&mut self, now: Instant) {
        self.counters.rare_mut().ts_repeated = now.millis().wrapping_add(self.ts_offset);
    }

    /// The measurement under way: the first number beyond what is measured, and when that was sent.
    #[inline]
    pub(crate) fn timed(&self) -> Option<(SeqNum, Instant)> {
        (self.timed_at != Instant::FAR).then_some((self.timed_end, self.timed_at))
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
            State::Closed if !self.is_aborting() && self.owed.reset_reply().is_none() => {
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
            snd_nxt: self.snd_nxt,
            rcv_nxt: self.rcv_nxt,
            rcv_wnd: self.recv_window_max(),
            rcv_wscale: self.rcv_wscale,
            timestamps: self.timestamps,
            ts_recent: self.ts_recent,
            ts_offset: self.ts_offset,
        };
        TimeWait::new(ended, self.timers.last_recv, self.settings.time_wait_ms)
    }

    /// The path carries `mss` bytes of TCP payload and options. Bytes in flight that were cut
    /// larger and got lost go again in the new size.
    pub fn on_path_mtu(&mut self, mss: u16) {
        let before = self.mss_without_options();
        self.mss_path = mss;
        let shrunk = self.mss_without_options() < before;
        self.congestion.on_mss(self.mss());
        let flight = self.flight();
        let long = flight.saturating_sub(self.recovery.short_tail.into());
        if shrunk && self.state.may_send() && long > 0 {
            // RFC 1191 §6.5: resend at once, and do not take it for congestion. The router's drops
            // are not known one by one. Behind the last long segment there are short ones, which
            // passed.
            self.recovery.resend(self.snd_una, self.snd_una + long, self.snd_nxt);
            self.stop_timing();
        }
    }

    /// An ICMP error came for a segment of ours that starts at `seq`. True when it ended the
    /// connection: only a hard error in SYN-SENT does (RFC 5461), and only when `seq` is in flight
    /// (RFC 5927). A soft one is remembered, and names the reason when the connection times out.
    pub fn on_unreachable(&mut self, hard: bool, seq: SeqNum) -> bool {
        if !seq.is_within(self.snd_una, self.flight()) {
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

    /// The largest window of at most `room` bytes that the window field can express: whole units of
    /// the window scale, at most 65535 of them.
    pub(crate) fn offerable(&self, room: u32) -> u32 {
        (room >> self.rcv_wscale).min(u32::from(u16::MAX)) << self.rcv_wscale
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeepAlive;
    use crate::half_open::Handshake;
    use crate::segment::{Buffers, Segment};
    use core::time::Duration;
    use towpath_wire::tcp::Flags;

    const BUFFERS: Buffers = Buffers {
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
        assert!(connection.assembler.is_none() && connection.watch.is_none());
        receive(&mut connection, 200, 100, Flags::FIN);
        assert!(connection.assembler.is_some());
        receive(&mut connection, 100, 100, Flags::PSH);
        assert_eq!(connection.state, State::CloseWait);
        assert!(connection.assembler.is_none());
        connection.set_keepalive(Some(KeepAlive::default()));
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
        assert!(connection.assembler.is_some());
        // Bytes beyond the FIN do not exist.
        receive(&mut connection, 0, 150, Flags::PSH);
        assert_eq!(connection.rcv_nxt, SeqNum(201) + 101);
        assert_eq!(connection.state, State::CloseWait);
    }
}
