//! How a connection is opened, actively or by a handshake that a [`HalfOpen`](crate::HalfOpen) went
//! through, and what the handshake settles.

use crate::config::{Config, WINDOW_SCALE_MAX};
use crate::connection::Connection;
use crate::fast_open::FastOpenFailure;
use crate::half_open::Handshake;
use crate::recovery::Recovery;
use crate::state::State;
use crate::time::Instant;
use towpath_wire::tcp::{Options, SeqNum};

impl Connection {
    /// An active open, in SYN-SENT. `plan` yields the SYN. `timestamp_offset` makes the timestamps
    /// of this connection unlike those of others (RFC 7323 §5.4).
    pub fn connect(config: Config, iss: SeqNum, timestamp_offset: u32, now: Instant) -> Connection {
        let mut connection = Connection::opening(&config, iss, timestamp_offset, now);
        connection.owed.syn = true;
        connection
    }

    /// An active open whose SYN carries the first bytes. The SYN waits until the program has
    /// written, or has ended its direction. [`Config::mss_default`] bounds these bytes:
    /// the MSS that the server announced with the cookie, if it is known.
    pub fn connect_with_data(
        config: Config,
        iss: SeqNum,
        timestamp_offset: u32,
        now: Instant,
    ) -> Connection {
        let mut connection = Connection::connect(config, iss, timestamp_offset, now);
        connection.ext.fast_open.set_client();
        connection
    }

    /// Notes that the SYN asks for a cookie, for want of one to send.
    pub fn note_no_cookie(&mut self) {
        self.ext.fast_open.fail(FastOpenFailure::NoCookie);
    }

    /// Whether bytes may be in flight, or written, although the handshake is under way.
    pub fn is_fast_opening(&self) -> bool {
        match self.state {
            State::SynSent => self.ext.fast_open.is_client(),
            State::SynReceived => self.ext.fast_open.is_server(),
            _ => false,
        }
    }

    /// The SYN of an active open waits no more for bytes: the program wrote none on purpose.
    pub fn open_without_bytes(&mut self) {
        self.ext.fast_open.hurry();
    }

    /// Whether the SYN of this active open was sent more than once.
    pub fn has_repeated_syn(&self) -> bool {
        self.ext.fast_open.is_client() && self.ext.fast_open.is_repeated()
    }

    /// Gives a connection whose SYN was not sent yet numbers beyond `iss_min`, if it has not such
    /// already. An old connection between the same ports ended there.
    pub fn begin_after(&mut self, iss_min: SeqNum) {
        if self.state != State::SynSent || self.snd.nxt != self.snd.iss {
            return;
        }
        let iss = crate::isn::not_before(iss_min, self.snd.iss);
        self.snd.restart(iss);
        self.recovery = Recovery::new(iss);
        self.recovery.set_sack(self.ext.sack);
    }

    /// A passive open whose handshake is over, in ESTABLISHED. The segment that finished the
    /// handshake is then given to `on_segment`, for it may carry bytes.
    pub fn accept(config: Config, handshake: Handshake, now: Instant) -> Connection {
        let mut connection = Connection::opening(&config, handshake.iss, handshake.ts_offset, now);
        connection.state = State::Established;
        connection.apply_options(&handshake.peer_options());
        connection.snd.una = handshake.iss + 1;
        connection.snd.nxt = connection.snd.una;
        connection.rcv.start(handshake.irs, u32::from(handshake.recv_window));
        connection.snd.set_window(handshake.send_window, handshake.irs + 1, connection.snd.una);
        connection.ext.ts_recent = handshake.ts_recent;
        if let Some(rtt) = handshake.rtt {
            connection.rtt.on_sample(rtt);
        }
        connection.on_established(now, handshake.retransmitted);
        connection
    }

    fn opening(config: &Config, iss: SeqNum, ts_offset: u32, now: Instant) -> Connection {
        let mut connection = Connection::new(config, iss, ts_offset, now);
        connection.watch_peer(|watch| {
            watch.set_keepalive(config.keepalive);
            watch.set_user_timeout(config.user_timeout);
        });
        connection.set_max_pacing_rate(config.max_pacing_rate);
        connection
    }

    /// Takes what the peer's SYN offers; what only one side offers is off.
    pub(crate) fn apply_options(&mut self, options: &Options) {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
        //# If an MSS Option is not received at connection setup, TCP implementations MUST assume a
        //# default send MSS of 536 (576 - 40) for IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
        // Without the option it stays `Config::mss_default`, which goes by the address family.
        self.snd.mss_peer = options.mss.unwrap_or(self.snd.mss_peer);
        match options.window_scale {
            Some(shift) => self.snd.wscale = shift.min(WINDOW_SCALE_MAX),
            None => (self.snd.wscale, self.rcv.wscale) = (0, 0),
        }
        self.ext.apply(options);
        self.recovery.set_sack(self.ext.sack);
    }

    /// The handshake is over: everything that depended on it is set.
    pub(crate) fn on_established(&mut self, now: Instant, syn_retransmitted: bool) {
        self.state = if self.snd.fin_queued { State::FinWait1 } else { State::Established };
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
}
