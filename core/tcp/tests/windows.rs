//! Windows: what is offered has a place, what is read is told, and what is shut ends.

use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

/// The window that `side` offered last, scaled by 2^7.
fn offered(pair: &Pair, side: Side) -> Option<u32> {
    let last = pair.log.iter().rfind(|packet| packet.from == side)?;
    Some(u32::from(last.segment.window) << 7)
}

/// SO_RCVBUF is set on a connection, which offered more before.
#[test]
fn a_receive_buffer_that_became_smaller_offers_what_it_has() {
    let mut pair = Pair::connected();
    (pair.b.reads, pair.b.recv_capacity) = (false, 8192);
    pair.write(A, 100_000);
    pair.run_for(ms(50));
    assert!(pair.b.recv_fifo.len() > 8192 - 128);
    assert_eq!(offered(&pair, B), Some(0), "of what is full nothing is offered");
    pair.log.clear();
    pair.read(B, 8192);
    assert_eq!(offered(&pair, B), Some(8192), "and the peer hears that there is room again");
    pair.b.reads = true;
    let took = pair.run_until(Duration::from_secs(60), |pair| pair.b.received.len() == 100_000);
    // Some 12 round trips of 10 ms; one that waits for the timer takes 200 ms.
    assert!(took < ms(190), "{took:?}");
    pair.assert_received(B, 100_000);
}

/// The peer had sent more when it heard that the window is smaller. Its acknowledgements have
/// numbers beyond that window, and count.
#[test]
fn acknowledgements_from_beyond_a_smaller_window_are_heard() {
    let mut pair = Pair::connected();
    (pair.b.reads, pair.b.recv_capacity) = (false, 4096);
    pair.write(A, 100_000);
    pair.run_for(ms(50));
    pair.write(B, 1000);
    pair.run_for(ms(50));
    pair.assert_received(A, 1000);
    assert!(pair.b.send_fifo.is_empty(), "they were acknowledged");
}

/// An update comes for every part and every order of reads of a full buffer, at the latest when all
/// is read.
#[test]
fn reads_are_awaited_until_a_window_update_is_due() {
    for mss_recv in [536, 1460, 65_483] {
        for unread in [33_000, 40_000, 64_256, 65_535] {
            let config = Config { mss_recv, ..Config::default() };
            let mut connection = accepted(config, 1460);
            let segment = plain(SeqNum(201), SeqNum(101), 512, unread);
            connection.on_segment(Instant(2), &segment, BUFFERS);
            let after =
                |free| FifoLevels { recv_free: free, recv_unread: 65_536 - free, ..BUFFERS };
            send_all(&mut connection, after(65_536 - unread));
            for free in 65_536 - unread.. {
                assert!(free <= 65_536, "{mss_recv}, {unread}: nothing was said");
                if connection.on_recv_consumed(Instant(2), after(free)) {
                    break;
                }
                assert!(connection.awaits_reads(after(free)), "{mss_recv}, {unread}, {free}");
            }
        }
    }
}

/// The window field has 16 bits, and says multiples of a unit: what it cannot say is no news.
#[test]
fn a_window_update_says_what_the_field_can_say() {
    for (window_scale, recv_capacity, mss_recv) in [
        (0, 1 << 20, 1460),
        (0, 1 << 20, 65_483),
        (7, 200, 1460),
        (14, 20_000, 1460),
        (14, 10_000, 536),
    ] {
        for free in [recv_capacity, recv_capacity / 2, 40_000] {
            let config = Config { window_scale, mss_recv, ..Config::default() };
            let mut connection = accepted(config, 1460);
            let after = |free: u32| {
                let recv_free = free.min(recv_capacity);
                FifoLevels { recv_free, recv_capacity, ..BUFFERS }
            };
            let len = recv_capacity.min(64_000);
            let segment = plain(SeqNum(201), SeqNum(101), 512, len);
            connection.on_segment(Instant(2), &segment, after(u32::MAX));
            send_all(&mut connection, after(0));
            connection.on_recv_consumed(Instant(2), after(free));
            send_all(&mut connection, after(free));
            let again = connection.on_recv_consumed(Instant(2), after(free));
            assert!(!again, "{window_scale}, {recv_capacity}, {mss_recv}: it was said");
        }
    }
}

/// A connection accepted from a peer, its numbers from 100 and 200 on.
fn accepted(config: Config, mss_peer: u16) -> Connection {
    Connection::accept(config, handshake(mss_peer), Instant(1))
}

fn handshake(mss_peer: u16) -> Handshake {
    let plain = Handshake::without_options(SeqNum(100), SeqNum(200));
    let (send_scale, send_window) = (Some(7), 512 << 7);
    Handshake { mss_peer: Some(mss_peer), send_scale, sack: true, send_window, ..plain }
}

/// Sends all that may go now; returns how much that is.
fn send_all(connection: &mut Connection, buffers: FifoLevels) -> u32 {
    let mut sent = 0;
    while let Plan::Send(transmit) = connection.plan(Instant(2), buffers, 0) {
        sent += connection.emit(Instant(2), transmit, buffers).len;
    }
    sent
}

/// The peer's buffer holds hardly more than a segment: nothing waits for its delayed
/// acknowledgement while half of it is free.
#[test]
fn half_of_the_peers_buffer_is_used_while_bytes_are_in_flight() {
    let large = Config { mss_recv: 65_483, mss_send_max: 65_483, ..Config::default() };
    for nodelay in [true, false] {
        let mut connection = accepted(Config { nodelay, ..large }, 65_483);
        assert_eq!(send_all(&mut connection, FifoLevels { send_len: 1, ..BUFFERS }), 1);
        connection.on_segment(Instant(2), &plain(SeqNum(201), SeqNum(101), 260, 0), BUFFERS);
        let sent = send_all(&mut connection, FifoLevels { send_len: 700_000, ..BUFFERS });
        assert!(sent >= 32_768, "nodelay {nodelay}: {sent} of a window of 33280");
    }
}

/// A lost SYN leaves a congestion window of one segment (RFC 6928 section 2). The peer's first
/// scaled window makes segments larger, and a smaller congestion window would let none go, ever.
#[test]
fn one_segment_may_go_however_large_segments_become() {
    let large = Config { mss_recv: 65_483, mss_send_max: 65_483, ..Config::default() };
    let handshake = Handshake { send_window: 65_535, retransmitted: true, ..handshake(65_483) };
    let mut connection = Connection::accept(large, handshake, Instant(1));
    connection.on_segment(Instant(2), &plain(SeqNum(201), SeqNum(101), 512, 0), BUFFERS);
    let sent = send_all(&mut connection, FifoLevels { send_len: 700_000, ..BUFFERS });
    assert_eq!(sent, 32_768, "half of a window of 65536");
}

#[test]
fn the_window_follows_an_acknowledgement_that_advances_with_old_bytes() {
    let mut connection = accepted(Config { nodelay: true, ..Config::default() }, 1460);
    let buffers = FifoLevels { send_len: 5120, ..BUFFERS };
    assert_eq!(send_all(&mut connection, buffers), 5120);
    // A segment ahead of its turn has the latest number; then the one before it comes again.
    connection.on_segment(Instant(2), &plain(SeqNum(301), SeqNum(101), 512, 10), buffers);
    connection.on_segment(Instant(2), &plain(SeqNum(201), SeqNum(101 + 5120), 472, 100), buffers);
    let info = connection.info(Instant(2), BUFFERS);
    assert_eq!((info.snd_una, info.snd_wnd), (SeqNum(5221), 472 << 7));
}

#[test]
fn the_window_of_a_simultaneous_opens_syn_ack_is_not_scaled() {
    let now = Instant(2);
    let mut connection = Connection::connect(Config::default(), SeqNum(100), 0, now);
    send_all(&mut connection, BUFFERS);
    let options = Options { mss: Some(1460), window_scale: Some(7), ..Options::default() };
    let syn = Segment { flags: Flags::SYN, options, ..plain(SeqNum(200), SeqNum(0), 1000, 0) };
    connection.on_segment(now, &syn, BUFFERS);
    send_all(&mut connection, BUFFERS);
    let flags = Flags::SYN | Flags::ACK;
    connection.on_segment(now, &Segment { flags, ack: SeqNum(101), ..syn }, BUFFERS);
    assert_eq!(connection.state(), State::Established);
    assert_eq!(connection.info(now, BUFFERS).snd_wnd, 1000);
}

#[test]
fn what_was_never_sent_cannot_be_acknowledged() {
    let mut connection = accepted(Config::default(), 1460);
    for ack in [SeqNum(100), SeqNum(99), SeqNum(100) - 60_000] {
        let segment = plain(SeqNum(201), ack, 512, 10);
        let dropped = connection.on_segment(Instant(2), &segment, BUFFERS);
        assert_eq!(dropped, Disposition::Dropped(SegmentDropReason::BadAck), "{ack:?}");
    }
    let segment = plain(SeqNum(201), SeqNum(101), 512, 10);
    let taken = connection.on_segment(Instant(2), &segment, BUFFERS);
    assert!(matches!(taken, Disposition::Accepted(FifoChanges { commit: 10, .. })));
}

/// A writes to B, whose program does not read, until the window is shut.
fn shut(config: Config) -> Pair {
    let mut pair = Pair::new(config, Config::default());
    (pair.b.recv_capacity, pair.b.reads) = (10_000, false);
    pair.connect(A);
    pair.write(A, 60_000);
    pair.run_until(Duration::from_secs(1), |pair| pair.b.recv_fifo.len() > 10_000 - 128);
    pair
}

#[test]
fn a_user_timeout_ends_a_shut_window_whose_probes_are_answered() {
    let config = Config { user_timeout: Some(Duration::from_secs(2)), ..Config::default() };
    let mut pair = shut(config);
    let timed_out = |pair: &mut Pair| pair.a.events.contains(&ConnectionEvent::TimedOut);
    let took = pair.run_until(Duration::from_secs(60), timed_out);
    // From the first probe on, which is a timeout after the window was shut.
    assert!((ms(2000)..ms(2600)).contains(&took), "{took:?}");
}

#[test]
fn a_user_timeout_leaves_a_slow_reader_and_a_finished_sender() {
    let config = Config { user_timeout: Some(Duration::from_secs(2)), ..Config::default() };
    let mut pair = shut(config);
    for _ in 0..20 {
        pair.run_for(ms(1500));
        pair.read(B, 5000);
    }
    pair.assert_received(B, 60_000);
    assert_eq!(pair.a.state(), Some(State::Established));
    // Nothing is left to be sent, whatever the last window was.
    pair.run_for(Duration::from_secs(60));
    assert_eq!(pair.a.state(), Some(State::Established));
}

#[test]
fn a_reset_has_a_timestamp_like_all_segments() {
    for timestamps in [true, false] {
        let mut pair =
            Pair::connected_with(Config { timestamps, ..Config::default() }, Config::default());
        pair.abort(A);
        let reset = pair.log.last().expect("a segment").segment;
        assert!(reset.flags.contains(Flags::RST));
        assert_eq!(reset.options.timestamps.is_some(), timestamps);
    }
}

#[test]
fn a_peer_that_answers_no_keepalive_is_reset() {
    let second = Duration::from_secs(1);
    let keepalive = Some(KeepAliveConfig { idle: 10 * second, interval: second, probes: 3 });
    let mut pair =
        Pair::connected_with(Config { keepalive, ..Config::default() }, Config::default());
    pair.fate = Box::new(|packet| if packet.from == B { Fate::Drop } else { Fate::Deliver });
    pair.run_until(60 * second, |pair| pair.a.events.contains(&ConnectionEvent::Closed));
    assert!(pair.a.events.contains(&ConnectionEvent::TimedOut));
    assert_eq!(pair.sent(A, |packet| packet.has(Flags::RST)), 1);
    pair.run_for(second);
    assert_eq!(
        pair.b.events,
        [ConnectionEvent::Reset, ConnectionEvent::Closed],
        "it is there, and hears of it"
    );
}

/// The segment that finishes the handshake is not always the first.
#[test]
fn a_timestamp_of_a_segment_ahead_of_its_turn_is_not_the_recent_one() {
    let now = Instant(1_000_000_000);
    let stamp = |value| Some(Timestamps { value, echo: 0 });
    let syn = Segment {
        flags: Flags::SYN,
        options: Options { timestamps: stamp(10), ..Options::default() },
        ..plain(SeqNum(200), SeqNum(0), 1000, 0)
    };
    let mut half = HalfOpen::new(&Config::default(), &syn, SeqNum(500), 0, now);
    half.syn_ack(now, 60_000);
    let first = |value, seq| Segment {
        options: Options { timestamps: stamp(value), ..Options::default() },
        ..plain(seq, SeqNum(501), 1000, 100)
    };
    let second = first(30, SeqNum(301));
    let HalfOpenVerdict::Established(handshake) = half.on_segment(now, &second) else {
        panic!("it acknowledges our SYN")
    };
    let mut connection = Connection::accept(Config::default(), handshake, now);
    connection.on_segment(now, &second, BUFFERS);
    let received = connection.on_segment(now, &first(20, SeqNum(201)), BUFFERS);
    assert!(
        matches!(received, Disposition::Accepted(FifoChanges { commit: 200, .. })),
        "{received:?}"
    );
}
