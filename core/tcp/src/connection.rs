//! The connection: its variables, its birth and its end.
//!
//! Budget: [`Connection`] is the largest part of what an idle connection costs, and there may be a
//! million of them. What most connections never need lives in boxes that exist while it is needed:
//! [`Watch`], the scoreboard in [`Recovery`], [`Assembler`], and the rare figures in [`Counters`].

use crate::config::{
    CHALLENGE_ACKS_MAX, CHALLENGE_PERIOD_MS, Config, MSS_DEFAULT, MSS_MIN, QUICK_ACKS,
    TIMESTAMPS_LEN, WINDOW_SCALE_MAX,
};
use crate::congestion::Congestion;
use crate::counters::Counters;
use crate::event::ConnectionEvent;
use crate::half_open::Handshake;
use crate::ranges::Assembler;
use crate::recovery::Recovery;
use crate::rtt::Rtt;
use crate::segment::Buffers;
use crate::settings::Settings;
use crate::state::State;
use crate::time::Instant;
use crate::time_wait::TimeWait;
use crate::timers::Timers;
use crate::timestamps;
use crate::watch::Watch;
use core::time::Duration;
use towpath_wire::tcp::{Options, SackBlocks, SeqNum, Timestamps};

/// One TCP connection. The crate's documentation says in which order to call what.
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

    // The receive sequence space.
    pub(crate) rcv_nxt: SeqNum,
    /// The right edge that the peer was told last; before the peer's SYN, `rcv_nxt` plus our SYN's window.
    pub(crate) rcv_adv: SeqNum,
    /// The furthest right edge that it was ever told: what it sent up to there is taken if there is room.
    pub(crate) rcv_max: SeqNum,
    /// The last acknowledgement sent.
    pub(crate) rcv_acked: SeqNum,
    pub(crate) rcv_wscale: u8,
    /// The largest payload seen: what counts as a full segment.
    pub(crate) rcv_mss: u16,
    pub(crate) quick_acks: u8,
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
    /// They are acknowledged from here on.
    timed_end: SeqNum,
    pub(crate) congestion: Congestion,
    pub(crate) recovery: Recovery,
    pub(crate) timers: Timers,
    pub(crate) watch: Option<Box<Watch>>,
    pub(crate) challenge: ChallengeLimit,
    pub(crate) counters: Counters,
}

/// The largest share of an idle connection's memory (`core/stack/src/socket.rs` has the table).
const _: () = assert!(size_of::<Connection>() <= 344);

/// What the program's reading all of the bytes does to an acknowledgement that is delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenRead {
    /// More segments are likely to come, or the delay to end.
    Nothing,
    /// The last bytes ended a write: a short segment, or one with PSH. The acknowledgement goes.
    Acknowledges,
    /// The program answers what it receives, and its answers carry acknowledgements.
    Answers,
}

/// What `plan` has to send apart from bytes.
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
    pub(crate) reset: bool,
    replies: bool,
    reply: SeqNum,
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

/// At most [`CHALLENGE_ACKS_MAX`](crate::config::CHALLENGE_ACKS_MAX) answers to doubtful segments a
/// period, so that nobody makes us reflect traffic or loop with a confused peer (RFC 5961 §7).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChallengeLimit {
    /// The number of the period, of which there are less than 2²⁰ before milliseconds wrap, and in the
    /// lowest byte the answers in it.
    period_and_used: u32,
}

impl ChallengeLimit {
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        let period = now.millis() / CHALLENGE_PERIOD_MS;
        if self.period_and_used >> 8 != period {
            self.period_and_used = period << 8;
        }
        let allowed = self.period_and_used & 0xff < u32::from(CHALLENGE_ACKS_MAX);
        self.period_and_used += u32::from(allowed);
        allowed
    }
}

/// Events waiting for `poll_event`, as bits in the order of their delivery.
pub(crate) mod pending {
    pub(crate) const CONNECTED: u16 = 1 << 0;
    pub(crate) const PEER_CLOSED: u16 = 1 << 1;
    pub(crate) const SEND_CLOSED: u16 = 1 << 2;
    pub(crate) const RESET: u16 = 1 << 3;
    pub(crate) const REFUSED: u16 = 1 << 4;
    pub(crate) const UNREACHABLE: u16 = 1 << 5;
    pub(crate) const TIMED_OUT: u16 = 1 << 6;
    /// The last event was delivered.
    pub(crate) const ENDED: u16 = 1 << 15;
}

pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

impl Connection {
    /// An active open, in SYN-SENT. `plan` yields the SYN. `timestamp_offset` makes the timestamps of
    /// this connection unlike those of others (RFC 7323 §5.4).
    pub fn connect(config: Config, iss: SeqNum, timestamp_offset: u32, now: Instant) -> Connection {
        let mut connection = Connection::new(&config, iss, timestamp_offset, now);
        connection.owed.syn = true;
        connection
    }

    /// A passive open whose handshake is over, in ESTABLISHED. The segment that finished the handshake
    /// is then given to `on_segment`, for it may carry bytes.
    pub fn accept(config: Config, handshake: Handshake, now: Instant) -> Connection {
        let mut connection = Connection::new(&config, handshake.iss, handshake.ts_offset, now);
        connection.state = State::Established;
        connection.apply_options(&handshake.peer_options());
        connection.snd_una = handshake.iss + 1;
        connection.snd_nxt = connection.snd_una;
        connection.start_receiving(handshake.irs, u32::from(handshake.recv_window));
        connection.set_send_window(handshake.send_window, handshake.irs + 1, connection.snd_una);
        connection.ts_recent = handshake.ts_recent;
        if let Some(rtt) = handshake.rtt {
            connection.rtt.on_sample(rtt);
        }
        connection.on_established(now, handshake.retransmitted);
        connection
    }

    fn new(config: &Config, iss: SeqNum, ts_offset: u32, now: Instant) -> Connection {
        let mut connection = Connection {
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
            rcv_nxt: SeqNum(0),
            rcv_adv: SeqNum(0),
            rcv_max: SeqNum(0),
            rcv_acked: SeqNum(0),
            rcv_wscale: config.window_scale.min(WINDOW_SCALE_MAX),
            // Below every usual segment, so that the first ones count as full.
            rcv_mss: config.mss_recv.min(MSS_DEFAULT),
            quick_acks: QUICK_ACKS,
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
        };
        connection.watch_peer(|watch| {
            watch.set_keepalive(config.keepalive);
            watch.set_user_timeout(config.user_timeout);
        });
        connection
    }

    /// Takes what the peer's SYN offers; what only one side offers is off.
    pub(crate) fn apply_options(&mut self, options: &Options) {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
        //# If an MSS Option is not received at connection setup, TCP implementations MUST assume a
        //# default send MSS of 536 (576 - 40) for IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
        // Without the option it stays `Config::mss_default`, which goes by the address family.
        self.mss_peer = options.mss.unwrap_or(self.mss_peer);
        match options.window_scale {
            Some(shift) => self.snd_wscale = shift.min(WINDOW_SCALE_MAX),
            None => {
                self.scaling = false;
                self.snd_wscale = 0;
                self.rcv_wscale = 0;
            }
        }
        self.sack &= options.sack_permitted;
        self.recovery.set_sack(self.sack);
        self.timestamps &= options.timestamps.is_some();
    }

    /// The peer's SYN fixes where its numbers start.
    pub(crate) fn start_receiving(&mut self, irs: SeqNum, window: u32) {
        self.rcv_nxt = irs + 1;
        self.rcv_acked = self.rcv_nxt;
        self.rcv_adv = self.rcv_nxt + window;
        self.rcv_max = self.rcv_adv;
    }

    pub(crate) fn set_send_window(&mut self, window: u32, wl1: SeqNum, wl2: SeqNum) {
        self.snd_wnd = window;
        self.snd_wl1 = wl1;
        self.snd_wl2 = wl2;
        self.max_snd_wnd = self.max_snd_wnd.max(window);
    }

    /// The handshake is over: everything that depended on it is set.
    pub(crate) fn on_established(&mut self, now: Instant, syn_retransmitted: bool) {
        self.state = if self.fin_queued { State::FinWait1 } else { State::Established };
        self.rtt.clear_backoff();
        if syn_retransmitted {
            self.rtt.on_handshake_retransmitted();
        }
        self.congestion.on_established(self.mss(), self.settings.initial_window, syn_retransmitted);
        self.timers.retransmits = 0;
        self.timers.last_recv = now;
        self.arm_keepalive();
        self.arm_persist(now);
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

    fn mss_without_options(&self) -> u16 {
        self.mss_peer.min(self.mss_path).min(self.half_window()).max(MSS_MIN)
    }

    /// Half the largest window that the peer ever offered. Of larger segments only one fits into its
    /// buffer, and it would be sent when the peer has read all: each segment would wait for the
    /// acknowledgement of the one before, which the peer delays. On a link with segments of 64 KiB that
    /// is the rule. As Linux (`tcp_bound_to_half_wnd`), which leaves windows of up to 536 bytes alone.
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

    /// Our SYN is sent and not acknowledged. The state is looked at as well, because `snd_una` equals `iss` again
    /// after each 4 GiB.
    pub(crate) fn syn_in_flight(&self) -> bool {
        !self.state.is_synchronized() && self.snd_una == self.iss && self.snd_nxt != self.iss
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

    /// One past the last number that the peer's window allows.
    pub(crate) fn window_end(&self) -> SeqNum {
        self.snd_una + self.snd_wnd
    }

    /// What the peer may still send, as far as it knows.
    pub(crate) fn recv_window(&self) -> u32 {
        self.rcv_adv - self.rcv_nxt
    }

    /// What is left of the largest window that the peer was ever told. It may have sent up to that edge before
    /// it heard that the window is smaller, and its acknowledgements have numbers up to there.
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

    /// Enters CLOSED and sends nothing more, but for a RST that answers a segment of another connection.
    pub(crate) fn enter_closed(&mut self) {
        self.state = State::Closed;
        let Owed { replies, reply, .. } = self.owed;
        self.owed = Owed { replies, reply, ..Owed::default() };
        self.stop_timers();
        self.assembler = None;
    }

    /// The round trip of what ends before `end` and was sent at `now` is measured.
    pub(crate) fn start_timing(&mut self, now: Instant, end: SeqNum) {
        (self.timed_at, self.timed_end) = (now, end);
    }

    /// What is being measured was sent again: nobody can tell which of the two is acknowledged (Karn's
    /// algorithm, RFC 6298 §3), so it gives no sample.
    pub(crate) fn stop_timing(&mut self) {
        self.timed_at = Instant::FAR;
    }

    /// The segment at SND.UNA is sent again: of its copies, this is the one whose round trip can be told.
    pub(crate) fn note_repeated(&mut self, now: Instant) {
        self.counters.rare_mut().ts_repeated = now.millis().wrapping_add(self.ts_offset);
    }

    /// The measurement under way: the first number beyond what is measured, and when that was sent.
    #[inline]
    pub(crate) fn timed(&self) -> Option<(SeqNum, Instant)> {
        (self.timed_at != Instant::FAR).then_some((self.timed_end, self.timed_at))
    }

    /// What happened since, oldest first; `None` when that was all.
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
            State::Closed if !self.owed.reset && self.owed.reset_reply().is_none() => {
                ConnectionEvent::Closed
            }
            State::TimeWait if !self.owed.ack => ConnectionEvent::TimeWait(TimeWait::of(self)),
            _ => return None,
        };
        self.events |= pending::ENDED;
        Some(end)
    }

    /// No more bytes from the program: a FIN follows the last byte of the send FIFO.
    pub fn shutdown_send(&mut self) {
        if self.fin_queued || self.state == State::Closed {
            return;
        }
        self.fin_queued = true;
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

    /// Ends the connection with a RST, which `plan` yields; then comes [`ConnectionEvent::Closed`].
    pub fn abort(&mut self) {
        let silent = matches!(self.state, State::SynSent | State::TimeWait | State::Closed);
        if self.state != State::Closed {
            self.enter_closed();
            self.owed.reset = !silent;
        }
    }

    /// The path carries `mss` bytes of TCP payload and options. Bytes in flight that were cut larger
    /// and got lost go again in the new size.
    pub fn on_path_mtu(&mut self, mss: u16) {
        let before = self.mss_without_options();
        self.mss_path = mss;
        let shrunk = self.mss_without_options() < before;
        self.congestion.on_mss(self.mss());
        let flight = self.flight();
        let long = flight.saturating_sub(self.recovery.short_tail.into());
        if shrunk && self.state.may_send() && long > 0 {
            // RFC 1191 §6.5: resend at once, and do not take it for congestion. Which segments the router
            // dropped is not known one by one; behind the last long one there are short ones, which passed.
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

    /// Whether a read by the program can make a window update or an acknowledgement due, so that
    /// [`on_recv_consumed`] has to be called when it reads. While more than half of the buffer is open to the
    /// peer it is not held back, and the next ACK carries the news.
    ///
    /// [`on_recv_consumed`]: Self::on_recv_consumed
    pub fn awaits_reads(&self, buffers: Buffers) -> bool {
        self.state.may_receive() && (self.holds_back(buffers) || self.acks_when_read())
    }

    /// Whether the peer is told of less than half of the buffer.
    fn holds_back(&self, buffers: Buffers) -> bool {
        self.recv_window() <= self.offerable(buffers.recv_capacity) / 2
    }

    /// Whether an acknowledgement is delayed for which the peer may wait, and which no answer will carry: it goes when
    /// the program has read all, as in Linux's `__tcp_cleanup_rbuf`. A peer with Nagle's algorithm that sends one
    /// short record after the other would wait for the delay with each.
    fn acks_when_read(&self) -> bool {
        self.timers.delayed_ack != Instant::FAR && self.when_read == WhenRead::Acknowledges
    }

    /// The largest window of at most `room` bytes that the window field can express: whole units of the window
    /// scale, at most 65535 of them.
    pub(crate) fn offerable(&self, room: u32) -> u32 {
        (room >> self.rcv_wscale).min(u32::from(u16::MAX)) << self.rcv_wscale
    }

    /// The program read bytes. True: a window update or an acknowledgement is due now.
    pub fn on_recv_consumed(&mut self, _now: Instant, buffers: Buffers) -> bool {
        let opened = self.offerable(buffers.recv_free).saturating_sub(self.recv_window());
        // At most half of the buffer, so that it is due at the latest when the program has read all.
        let half = self.offerable(buffers.recv_capacity) / 2;
        let worth = half.min(2 * u32::from(self.settings.mss_recv)).max(1);
        let update = self.holds_back(buffers) && opened >= worth;
        let acknowledges = buffers.recv_unread == 0 && self.acks_when_read();
        let due = self.state.may_receive() && (update || acknowledges);
        self.owed.ack |= due;
        due
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
    use crate::segment::Segment;
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
            iss: SeqNum(100),
            irs: SeqNum(200),
            mss_peer: Some(1460),
            send_scale: Some(7),
            sack: true,
            timestamps: false,
            ts_recent: 0,
            ts_offset: 0,
            send_window: 65_536,
            recv_window: 65_535,
            rtt: None,
            retransmitted: false,
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
        // What is beyond the FIN does not exist.
        receive(&mut connection, 0, 150, Flags::PSH);
        assert_eq!(connection.rcv_nxt, SeqNum(201) + 101);
        assert_eq!(connection.state, State::CloseWait);
    }
}
