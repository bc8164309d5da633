//! Active and passive opens, and the results of the handshake. For a passive open,
//! [`HalfOpen`](crate::HalfOpen) performs the handshake.

use crate::config::{Config, WINDOW_SCALE_MAX};
use crate::connection::Connection;
use crate::fast_open::FastOpenFailure;
use crate::half_open::Handshake;
use crate::recovery::Recovery;
use crate::state::State;
use crate::time::Instant;
use towpath_wire::tcp::{Options, SeqNum};

impl Connection {
    /// Creates an active open in SYN-SENT. Its SYN is returned by `plan`. `timestamp_offset` should
    /// differ between connections, so that their timestamps do not reveal a common clock (RFC 7323
    /// §5.4).
    pub fn connect(config: Config, iss: SeqNum, timestamp_offset: u32, now: Instant) -> Connection {
        let mut connection = Connection::opening(&config, iss, timestamp_offset, now);
        connection.owed.syn = true;
        connection.is_active = true;
        connection
    }

    /// Creates an active open whose SYN carries data. The SYN waits until the program has written
    /// bytes or closed the send direction. [`Config::mss_default`] limits the length of the data.
    /// Set this field to the MSS that the server announced together with the cookie, if known.
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

    /// Records that no Fast Open cookie is known, so that the SYN requests one.
    pub fn note_no_cookie(&mut self) {
        self.ext.fast_open.fail(FastOpenFailure::NoCookie);
    }

    /// Returns whether data may be written or in flight before the handshake is complete (TCP Fast
    /// Open).
    pub fn is_fast_opening(&self) -> bool {
        match self.state {
            State::SynSent => self.ext.fast_open.is_client(),
            State::SynReceived => self.ext.fast_open.is_server(),
            _ => false,
        }
    }

    /// Makes the SYN of an active open be sent without waiting for data.
    pub fn open_without_bytes(&mut self) {
        self.ext.fast_open.hurry();
    }

    /// Returns whether the SYN of this active open was sent more than once.
    pub fn has_repeated_syn(&self) -> bool {
        self.ext.fast_open.is_client() && self.ext.fast_open.is_repeated()
    }

    /// Advances the initial sequence number to at least `iss_min`, unless the SYN was already sent.
    /// An earlier connection between the same ports has used the numbers before `iss_min`.
    pub fn begin_after(&mut self, iss_min: SeqNum) {
        if self.state != State::SynSent || self.snd.nxt != self.snd.iss {
            return;
        }
        let iss = crate::isn::not_before(iss_min, self.snd.iss);
        self.snd.restart(iss);
        self.recovery = Recovery::new(iss);
        self.recovery.set_sack(self.ext.sack);
    }

    /// Creates a passive open in ESTABLISHED from a completed handshake. Pass the segment that
    /// completed the handshake to `on_segment` afterwards, because it may carry data. Options that
    /// the SYN-ACK announced apply even if `config` has changed since.
    pub fn accept(config: Config, handshake: Handshake, now: Instant) -> Connection {
        // Otherwise the two ends would scale windows differently, or the peer would drop segments
        // that lack the negotiated timestamps.
        let config = Config {
            scaling: handshake.send_scale.is_some(),
            window_scale: handshake.recv_scale.unwrap_or(config.window_scale),
            timestamps: handshake.timestamps,
            sack: handshake.sack,
            ..config
        };
        let mut connection = Connection::opening(&config, handshake.iss, handshake.ts_offset, now);
        connection.state = State::Established;
        connection.apply_options(&handshake.peer_options());
        connection.snd.una = handshake.iss + 1;
        connection.snd.nxt = connection.snd.una;
        connection.rcv.start(handshake.irs, u32::from(handshake.recv_window));
        connection.snd.set_window(handshake.send_window, handshake.irs + 1, connection.snd.una);
        connection.update_mss();
        connection.ext.ts_recent = handshake.ts_recent;
        connection.ecn = handshake.ecn;
        if let Some(rtt) = handshake.rtt {
            connection.rtt.on_sample(now, rtt);
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

    /// Applies the options of the peer's SYN; options that only one side offers are disabled.
    //= https://www.rfc-editor.org/rfc/rfc7323#section-2.2
    //# A Window Scale option in a segment without a SYN bit MUST be ignored.
    pub(crate) fn apply_options(&mut self, options: &Options) {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
        //# If an MSS Option is not received at connection setup, TCP implementations MUST assume a
        //# default send MSS of 536 (576 - 40) for IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
        // If the peer sent no MSS option, keep the value of `Config::mss_default`, which depends on
        // the IP version.
        self.snd.mss_peer = options.mss.unwrap_or(self.snd.mss_peer);
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.2
        //# both sides MUST send Window Scale options in their <SYN> segments to enable window
        //# scaling in either direction.
        //= https://www.rfc-editor.org/rfc/rfc7323#section-2.3
        //# a TCP MUST set Snd.Wind.Shift to S and MUST set Rcv.Wind.Shift to R; otherwise, it MUST
        //# set both Snd.Wind.Shift and Rcv.Wind.Shift to zero.
        match options.window_scale.filter(|_| self.ext.scaling) {
            //= https://www.rfc-editor.org/rfc/rfc7323#section-2.3
            //# the shift count MUST be limited to 14 (which allows windows of 2^30 = 1 GiB).
            Some(shift) => self.snd.wscale = shift.min(WINDOW_SCALE_MAX),
            None => (self.snd.wscale, self.rcv.wscale) = (0, 0),
        }
        self.ext.apply(options);
        self.update_mss();
        self.recovery.set_sack(self.ext.sack);
    }

    /// Enters ESTABLISHED, or FIN-WAIT-1 if a FIN is queued, and sets the state that depends on the
    /// handshake.
    pub(crate) fn on_established(&mut self, now: Instant, syn_retransmitted: bool) {
        self.state = if self.snd.fin_queued { State::FinWait1 } else { State::Established };
        self.rtt.clear_backoff();
        if syn_retransmitted {
            self.rtt.on_handshake_retransmitted();
        }
        let (start, initial_window) = (self.congestion_start(), self.settings.initial_window);
        self.congestion.on_established(&start, initial_window, syn_retransmitted);
        self.update_pacing();
        self.timers.retransmits = 0;
        self.timers.last_recv = now;
        (self.counters.last_data_sent, self.counters.last_data_recv) = (now, now);
        self.arm_keepalive();
        self.arm_persist(now);
    }
}
