//! Peers that the test plays itself, segment by segment: what one may do that is rare, and what one
//! may not do.

use std::time::Duration;
use towpath_tcp::*;

use crate::world::ms;

const MSS: u32 = 1460;
/// The peer's window field, without a scale.
const OPEN: u16 = 60_000;

/// A connection, accepted without timestamps; our bytes begin at 101, the peer's at 201. The FIFOs
/// are lengths.
struct Lab {
    connection: Connection,
    now: Instant,
    send_len: u32,
    /// In order, and read by nobody.
    unread: u32,
}

impl Lab {
    fn new(config: Config) -> Lab {
        let handshake = Handshake {
            mss_peer: Some(MSS as u16),
            sack: config.sack,
            send_window: OPEN.into(),
            recv_window: 60_000,
            ..Handshake::without_options(SeqNum(100), SeqNum(200))
        };
        let now = Instant(1_000_000_000);
        let connection = Connection::accept(config, handshake, now);
        Lab { connection, now, send_len: 0, unread: 0 }
    }

    fn buffers(&self) -> FifoLevels {
        FifoLevels {
            recv_free: 60_000 - self.unread,
            recv_capacity: 60_000,
            recv_unread: self.unread,
            send_len: self.send_len,
            send_capacity: 1 << 20,
        }
    }

    fn info(&self) -> Info {
        self.connection.info(self.now, self.buffers())
    }

    /// Everything that may be sent now.
    fn sent(&mut self) -> Vec<Outgoing> {
        let mut sent = Vec::new();
        while let Plan::Send(transmit) = self.connection.plan(self.now, self.buffers(), 0) {
            sent.push(self.connection.emit(self.now, transmit, self.buffers()));
        }
        sent
    }

    fn write(&mut self, len: u32) -> Vec<Outgoing> {
        self.send_len += len;
        self.sent()
    }

    /// A segment of the peer: `seq` and `ack` count from the first byte of either side.
    fn receive(&mut self, seq: u32, ack: u32, window: u16, len: u32, flags: Flags) -> Disposition {
        let segment = Segment {
            seq: SeqNum(201) + seq,
            ack: SeqNum(101) + ack,
            flags: Flags::ACK | flags,
            window,
            urgent: 0,
            options: Options::default(),
            payload_len: len,
            arrival: self.now,
            ecn: towpath_tcp::Ecn::NotEct,
            segments: 1,
        };
        let disposition = self.connection.on_segment(self.now, &segment, self.buffers());
        if let Disposition::Accepted(changes) = disposition {
            self.send_len -= changes.released;
            self.unread += changes.commit;
        }
        disposition
    }

    fn ack(&mut self, ack: u32, window: u16) -> Vec<Outgoing> {
        self.receive(0, ack, window, 0, Flags::NONE);
        self.sent()
    }

    /// Waits for the next timer, which must be of this kind. A tail loss probe may precede it.
    fn time_out(&mut self, kind: TimerKind) -> Vec<Outgoing> {
        let (at, next) = self.connection.next_timeout().expect("a timer");
        if next == TimerKind::TailLossProbe && kind != next {
            self.time_out(next);
            return self.time_out(kind);
        }
        assert_eq!(next, kind);
        self.now = at;
        self.connection.on_timeout(self.now, self.now);
        self.sent()
    }

    fn events(&mut self) -> Vec<ConnectionEvent> {
        std::iter::from_fn(|| self.connection.poll_event()).collect()
    }
}

fn bytes_of(sent: &[Outgoing]) -> u32 {
    sent.iter().map(|out| out.len).sum()
}

/// The peer's bytes left it before our FIN arrived there, and its acknowledgement of the FIN
/// overtakes them.
#[test]
fn bytes_with_an_acknowledgement_from_before_our_fin_are_taken() {
    let mut lab = Lab::new(Config::default());
    lab.connection.shutdown_send();
    assert!(lab.sent()[0].flags.contains(Flags::FIN));
    lab.receive(10, 1, OPEN, 0, Flags::NONE);
    assert_eq!(lab.connection.state(), State::FinWait2);
    let taken = lab.receive(0, 0, OPEN, 10, Flags::NONE);
    assert!(matches!(taken, Disposition::Accepted(FifoChanges { commit: 10, .. })), "{taken:?}");
    // Our SYN was no byte: nobody acknowledges it once more.
    let dropped = lab.receive(10, u32::MAX, OPEN, 10, Flags::NONE);
    assert_eq!(dropped, Disposition::Dropped(SegmentDropReason::BadAck));
}

/// Two segments of 40 bytes make us send a window at most once: after that the timer has to find
/// the loss.
#[test]
fn a_window_that_is_shut_and_opened_again_and_again_is_not_filled_each_time() {
    for config in [Config::default(), Config { sack: false, ..Config::default() }] {
        let mut lab = Lab::new(config);
        let flight = 10 * MSS;
        assert_eq!(bytes_of(&lab.write(flight)), flight);
        let flap = |lab: &mut Lab| -> u32 {
            let mut again = 0;
            for _ in 0..100 {
                again += bytes_of(&lab.ack(0, 0));
                again += bytes_of(&lab.ack(0, OPEN));
            }
            again
        };
        assert_eq!(
            flap(&mut lab),
            flight,
            "the first time it may have been lost at the shut window"
        );
        let again = bytes_of(&lab.time_out(TimerKind::Retransmit));
        assert_eq!(again, MSS);
        assert_eq!(flap(&mut lab), MSS, "of what the timer sent likewise");
    }
}

/// A shut window is no congestion. A timeout after it reopened is.
#[test]
fn a_timeout_after_the_window_was_given_again_is_congestion() {
    let mut lab = Lab::new(Config::default());
    lab.write(10 * MSS);
    lab.ack(0, 0);
    let before = lab.info();
    assert_eq!(bytes_of(&lab.ack(0, OPEN)), 10 * MSS);
    let after = lab.info();
    assert_eq!(
        (after.cwnd_bytes, after.ssthresh_bytes),
        (before.cwnd_bytes, before.ssthresh_bytes)
    );
    lab.time_out(TimerKind::Retransmit);
    let lost = lab.info();
    assert_eq!((lost.cwnd_bytes, lost.ssthresh_bytes), (MSS, 7 * MSS));
}

/// RFC 5681 section 4.3 holds ssthresh while one segment is sent again and again, not while the
/// path drops one after the other.
#[test]
fn a_timeout_after_progress_is_new_congestion() {
    let mut lab = Lab::new(Config::default());
    lab.write(10 * MSS);
    lab.time_out(TimerKind::TailLossProbe);
    for _ in 0..3 {
        lab.time_out(TimerKind::Retransmit);
        assert_eq!(lab.info().ssthresh_bytes, 7 * MSS);
    }
    assert_eq!(bytes_of(&lab.ack(MSS, OPEN)), 2 * MSS);
    lab.time_out(TimerKind::Retransmit);
    assert_eq!(lab.info().ssthresh_bytes, 2 * MSS);
}

/// RFC 6582 section 3.2 step 1: these duplicates answer what was sent again needlessly.
#[test]
fn duplicate_acknowledgements_of_what_a_timeout_sent_again_repeat_nothing() {
    let mut lab = Lab::new(Config { sack: false, ..Config::default() });
    lab.write(5 * MSS);
    lab.time_out(TimerKind::Retransmit);
    lab.ack(5 * MSS, OPEN);
    let new = lab.write(5 * MSS);
    assert!(new.iter().all(|out| !out.retransmit) && bytes_of(&new) > 0);
    for _ in 0..4 {
        let sent = lab.ack(5 * MSS, OPEN);
        assert!(sent.iter().all(|out| !out.retransmit), "{sent:?}");
    }
}

/// After the peer's FIN and our own, the peer may not have got our last bytes, or our FIN.
#[test]
fn a_reset_is_told_after_both_ends() {
    for unacknowledged in [false, true] {
        let mut lab = Lab::new(Config::default());
        lab.write(10);
        lab.receive(0, 0, OPEN, 0, Flags::FIN);
        lab.connection.shutdown_send();
        lab.sent();
        assert_eq!(lab.connection.state(), State::LastAck);
        if !unacknowledged {
            lab.receive(1, 10, OPEN, 0, Flags::NONE);
        }
        lab.receive(1, 10, OPEN, 0, Flags::RST);
        assert_eq!(lab.connection.state(), State::Closed);
        assert!(lab.events().contains(&ConnectionEvent::Reset));
    }
}

#[test]
fn a_user_timeout_is_kept_while_nothing_is_asked_for() {
    let config = Config { user_timeout: Some(Duration::from_secs(2)), ..Config::default() };
    let mut lab = Lab::new(config);
    let start = lab.now;
    lab.write(10);
    // Timers fire, and whoever visits connections does not get round to this one.
    while !lab.events().contains(&ConnectionEvent::TimedOut) {
        let (at, _) = lab.connection.next_timeout().expect("a timer");
        assert!(at >= lab.now && at - start <= ms(2000));
        lab.now = at;
        lab.connection.on_timeout(at, at);
    }
    assert_eq!(lab.now - start, ms(2000));
}

/// A partial acknowledgement means that the next segment is lost, too (RFC 6582 section 3.2). The
/// segment is sent again once, and not for each of its bytes.
#[test]
fn acknowledgements_byte_by_byte_repeat_no_segment_each_time() {
    let mut lab = Lab::new(Config { sack: false, ..Config::default() });
    lab.write(10 * MSS);
    let mut again = 0;
    for _ in 0..3 {
        again += bytes_of(&lab.ack(0, OPEN));
    }
    assert_eq!(again, MSS, "three duplicates");
    for ack in 1..=MSS {
        again += bytes_of(&lab.ack(ack, OPEN));
    }
    assert_eq!(again, 2 * MSS);
    let rest = bytes_of(&lab.ack(2 * MSS, OPEN));
    assert_eq!(rest, MSS, "and the next one");
}
