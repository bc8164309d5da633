//! Bytes in the SYN (RFC 7413), case by case.

use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

/// Bytes that a SYN takes along: the MSS that is assumed without one from the server, less the
/// longest options.
const SYN_BYTES: usize = 536 - 40;

fn pair() -> Pair {
    let mut pair = Pair::new(Config::default(), Config::default());
    (pair.a.fast_open, pair.b.fast_open) = (true, true);
    pair
}

/// Opens, with `len` bytes written before.
fn open(pair: &mut Pair, len: usize) {
    pair.a.to_write.extend(stream(len));
    pair.connect(A);
}

fn outcome(pair: &mut Pair, side: Side) -> FastOpenOutcome {
    let (now, host) = (pair.now, pair.host(side));
    let buffers = host.buffers();
    host.connection().info(now, buffers).fast_open
}

/// Payload lengths of the SYNs that A sent.
fn syns(pair: &Pair) -> Vec<u32> {
    let of_a = pair.log.iter().filter(|packet| packet.from == A && packet.has(Flags::SYN));
    of_a.map(|packet| packet.segment.payload_len).collect()
}

#[test]
fn the_answer_comes_within_one_round_trip() {
    let mut pair = pair();
    open(&mut pair, 100);
    pair.run_for(ms(5));
    assert_eq!(pair.b.received, stream(100));
    assert_eq!(pair.b.state(), Some(State::SynReceived));
    pair.write(B, 3_000);
    pair.run_for(ms(5));
    assert_eq!(pair.a.received.len(), 3_000, "one round trip of 10 ms has passed");
    pair.run_for(ms(100));
    for side in [A, B] {
        assert_eq!(pair.host(side).state(), Some(State::Established));
        assert_eq!(outcome(&mut pair, side), FastOpenOutcome { data_acked: true, failure: None });
        assert_eq!(pair.sent(side, |packet| packet.retransmit), 0);
    }
    assert_eq!(syns(&pair), [100]);
    assert_eq!(pair.a.events, [ConnectionEvent::Connected]);
    assert!(pair.a.send_fifo.is_empty() && pair.b.send_fifo.is_empty());
    let (now, buffers) = (pair.now, pair.a.buffers());
    assert_eq!(pair.a.connection().info(now, buffers).rtt, ms(10));
}

#[test]
fn the_syn_waits_for_the_first_bytes() {
    let mut pair = pair();
    pair.connect(A);
    pair.run_for(ms(500));
    assert!(pair.log.is_empty());
    pair.write(A, 10);
    pair.run_for(ms(5));
    assert_eq!((syns(&pair), pair.b.received.len()), (vec![10], 10));
}

#[test]
fn the_end_of_the_stream_without_bytes_lets_the_syn_go() {
    let mut pair = pair();
    pair.connect(A);
    pair.shutdown(A);
    pair.run_for(ms(50));
    assert_eq!(syns(&pair), [0]);
    assert_eq!(pair.b.events, [ConnectionEvent::PeerClosed]);
}

#[test]
fn more_than_a_segment_follows_the_handshake() {
    let mut pair = pair();
    open(&mut pair, 100_000);
    pair.run_until(Duration::from_secs(5), |pair| pair.b.received.len() == 100_000);
    pair.assert_received(B, 100_000);
    assert_eq!(syns(&pair), [SYN_BYTES as u32]);
    assert_eq!(pair.sent(A, |packet| packet.retransmit), 0);
}

#[test]
fn the_mss_of_the_cookie_bounds_the_bytes() {
    for (mss, path, expected) in [(1460, 1460, 1420), (1460, 1000, 960), (9000, 1460, 1420)] {
        let mut pair = pair();
        pair.a.config.mss_default = mss;
        pair.a.config.mss_send_max = path;
        open(&mut pair, 5_000);
        pair.run_for(ms(200));
        assert_eq!(syns(&pair), [expected]);
        pair.assert_received(B, 5_000);
    }
}

/// The server has another secret now, or a box on the way took the option out.
#[test]
fn bytes_that_the_syn_ack_does_not_acknowledge_go_again_at_once() {
    let mut pair = pair();
    pair.b.fast_open = false;
    open(&mut pair, 2_000);
    pair.run_for(ms(30));
    pair.assert_received(B, 2_000);
    assert!(pair.a.timeouts.is_empty(), "{:?}", pair.a.timeouts);
    assert_eq!(pair.sent(A, |packet| packet.retransmit), 1);
    let failure = Some(FastOpenFailure::DataNotAcked);
    assert_eq!(outcome(&mut pair, A), FastOpenOutcome { data_acked: false, failure });
    assert_eq!(outcome(&mut pair, B), FastOpenOutcome::default());
}

#[test]
fn a_server_without_room_takes_the_bytes_later() {
    let mut pair = pair();
    pair.b.recv_capacity = 40;
    pair.b.config.window_scale = 0;
    open(&mut pair, 100);
    pair.run_for(ms(5));
    assert_eq!(pair.b.received, stream(40));
    pair.run_until(Duration::from_secs(5), |pair| pair.b.received.len() == 100);
    pair.assert_received(B, 100);
}

/// Boxes that drop SYNs with bytes are known (RFC 7413 section 7.1).
#[test]
fn a_path_that_drops_syns_with_bytes_costs_one_timeout() {
    let mut pair = pair();
    pair.fate = Box::new(|packet| match packet.has(Flags::SYN) && packet.is_data() {
        true => Fate::Drop,
        false => Fate::Deliver,
    });
    open(&mut pair, 100);
    assert!(!pair.a.connection().has_repeated_syn());
    pair.run_for(ms(1_003));
    assert!(pair.a.connection().has_repeated_syn());
    let took = pair.run_until(Duration::from_secs(5), |pair| pair.b.received.len() == 100);
    assert!(took < ms(20), "{took:?}");
    assert_eq!(syns(&pair), [100, 0]);
    let failure = Some(FastOpenFailure::SynRepeated);
    assert_eq!(outcome(&mut pair, A), FastOpenOutcome { data_acked: false, failure });
}

/// The SYN-ACK to the first SYN comes after the second SYN has left.
#[test]
fn a_late_syn_ack_acknowledges_the_bytes_all_the_same() {
    let mut pair = pair();
    pair.fate = Box::new(|packet| match packet.from == B && packet.has(Flags::SYN) {
        true => Fate::Late(ms(1_050)),
        false => Fate::Deliver,
    });
    open(&mut pair, 100);
    pair.run_for(Duration::from_secs(5));
    assert_eq!(syns(&pair), [100, 0]);
    pair.assert_received(B, 100);
    assert!(outcome(&mut pair, A).data_acked);
    for side in [A, B] {
        assert_eq!(pair.host(side).state(), Some(State::Established));
    }
    assert_eq!(pair.sent(A, |packet| packet.is_data() && !packet.has(Flags::SYN)), 0);
}

/// Bytes of the early answer arrive without the SYN-ACK, which was lost, and mean nothing to the
/// client. The SYN-ACK and those bytes go again.
#[test]
fn a_lost_syn_ack_costs_one_timeout_and_no_byte() {
    let mut pair = pair();
    let mut lost = false;
    pair.fate = Box::new(move |packet| {
        if !lost && packet.from == B && packet.has(Flags::SYN) {
            lost = true;
            return Fate::Drop;
        }
        Fate::Deliver
    });
    open(&mut pair, 100);
    pair.run_for(ms(5));
    pair.write(B, 3_000);
    let took = pair.run_until(Duration::from_secs(5), |pair| pair.a.received.len() == 3_000);
    assert!(took < ms(1_100), "{took:?}");
    pair.run_for(Duration::from_secs(1));
    pair.assert_received(A, 3_000);
    pair.assert_received(B, 100);
    assert!(pair.a.send_fifo.is_empty() && pair.b.send_fifo.is_empty());
}

/// The client's SYN with bytes is answered, and its acknowledgement gets lost.
#[test]
fn a_server_whose_client_falls_silent_gives_up() {
    let mut pair = pair();
    pair.fate = Box::new(|packet| if packet.has(Flags::SYN) { Fate::Deliver } else { Fate::Drop });
    open(&mut pair, 100);
    pair.run_for(ms(20));
    pair.a.life = Life::Listening;
    pair.run_until(Duration::from_secs(200), |pair| matches!(pair.b.life, Life::Gone));
    assert_eq!(pair.b.events, [ConnectionEvent::TimedOut, ConnectionEvent::Closed]);
    let syn_acks = |packet: &Packet| packet.has(Flags::SYN | Flags::ACK);
    assert_eq!(pair.sent(B, syn_acks), 1 + usize::from(Config::default().syn_ack_retries));
}

#[test]
fn a_reset_of_the_client_is_told_to_the_program_that_has_the_connection() {
    let mut pair = pair();
    pair.fate = Box::new(|packet| if packet.from == A { Fate::Deliver } else { Fate::Drop });
    open(&mut pair, 100);
    pair.run_for(ms(5));
    let syn = pair.log[0].segment;
    let reset = Segment { seq: syn.seq + 101, flags: Flags::RST, payload_len: 0, ..syn };
    pair.inject(B, reset, &[]);
    assert_eq!(pair.b.events, [ConnectionEvent::Reset, ConnectionEvent::Closed]);
}

#[test]
fn a_server_that_closes_at_once_ends_behind_the_handshake() {
    let mut pair = pair();
    open(&mut pair, 100);
    pair.run_for(ms(5));
    pair.write(B, 10);
    pair.close(B);
    pair.run_for(ms(5));
    pair.assert_received(A, 10);
    assert!(!pair.a.events.contains(&ConnectionEvent::PeerClosed), "the FIN waits");
    pair.run_for(ms(20));
    assert!(pair.a.events.contains(&ConnectionEvent::PeerClosed));
}

#[test]
fn a_client_that_closes_at_once_loses_nothing_that_it_wrote() {
    let mut pair = pair();
    open(&mut pair, 100);
    pair.a.connection().close_behind_bytes();
    pair.run_for(ms(50));
    pair.assert_received(B, 100);
    assert_eq!(pair.b.events, [ConnectionEvent::Connected, ConnectionEvent::PeerClosed]);
}

#[test]
fn a_refused_connection_is_refused() {
    let mut pair = pair();
    pair.b.life = Life::Gone;
    open(&mut pair, 100);
    pair.run_for(ms(100));
    assert_eq!(pair.a.events, [ConnectionEvent::Refused, ConnectionEvent::Closed]);
}
