//! A close that turns into a reset: bytes written before it leave first, within the windows.

use std::time::Duration;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

/// A close with unread bytes, or with SO_LINGER 0, in the same turn as the write before it.
fn write_and_abort(pair: &mut Pair, len: usize) {
    pair.a.send_fifo.extend((0..len).map(pattern));
    pair.abort(A);
}

/// Flags of the segments that A sent since the log was cleared, and numbers from the first on.
fn sent(pair: &Pair) -> Vec<(Flags, u32)> {
    let from_a = pair.log.iter().filter(|packet| packet.from == A);
    let segments: Vec<_> = from_a.map(|packet| packet.segment).collect();
    segments.iter().map(|segment| (segment.flags, segment.seq - segments[0].seq)).collect()
}

const DATA: Flags = Flags(Flags::ACK.0 | Flags::PSH.0);
const RESET: Flags = Flags(Flags::ACK.0 | Flags::RST.0);

#[test]
fn bytes_written_before_an_abort_precede_its_reset() {
    let mut pair = Pair::connected();
    write_and_abort(&mut pair, 15);
    assert_eq!(sent(&pair), [(DATA, 0), (RESET, 15)]);
    pair.run_for(ms(50));
    pair.assert_received(B, 15);
    let [connected, reset, closed] =
        [ConnectionEvent::Connected, ConnectionEvent::Reset, ConnectionEvent::Closed];
    assert_eq!(pair.a.events, [connected, closed]);
    assert_eq!(pair.b.events, [reset, closed]);
    assert!(matches!(pair.a.life, Life::Gone) && matches!(pair.b.life, Life::Gone));
}

#[test]
fn the_syn_counts_as_delivered_after_the_end() {
    let mut pair = Pair::connected();
    let (now, buffers) = (pair.now, FifoLevels::default());
    let connection = pair.a.connection();
    let before = connection.info(now, buffers).delivered;
    connection.abort();
    assert_eq!(connection.info(now, buffers).delivered, before);
    assert!(before > 0);
}

/// Every turn of the owner sends little, as when its budget is used up.
#[test]
fn bytes_before_a_reset_leave_in_as_many_turns_as_the_owner_needs() {
    let mut pair = Pair::connected();
    let now = pair.now;
    let buffers = FifoLevels { send_len: 3000, send_capacity: 1 << 20, ..FifoLevels::default() };
    let connection = pair.a.connection();
    connection.abort();
    let mut sent = Vec::new();
    while let Plan::Send(transmit) = connection.plan(now, buffers, 1) {
        assert_eq!(connection.poll_event(), None, "the reset is owed still");
        assert!(connection.is_aborting());
        let outgoing = connection.emit(now, transmit, buffers);
        assert_eq!(connection.next_timeout(), None, "no acknowledgement is waited for");
        // An acknowledgement that comes meanwhile makes room for nothing.
        let ack = Segment { payload_len: 10, ..ack_of(&outgoing) };
        assert_eq!(
            connection.on_segment(now, &ack, buffers),
            Disposition::Dropped(SegmentDropReason::AfterClose)
        );
        sent.push((outgoing.flags, outgoing.send_offset, outgoing.len));
    }
    assert_eq!(
        sent,
        [(Flags::ACK, 0, 1448), (Flags::ACK, 1448, 1448), (DATA, 2896, 104), (RESET, 0, 0)]
    );
    assert_eq!(connection.poll_event(), Some(ConnectionEvent::Closed));
}

fn ack_of(outgoing: &Outgoing) -> Segment {
    Segment {
        seq: outgoing.ack,
        ack: outgoing.seq + outgoing.len,
        flags: Flags::ACK,
        window: u16::MAX,
        urgent: 0,
        options: outgoing.options,
        payload_len: 0,
        arrival: Instant(1),
        ecn: towpath_tcp::Ecn::NotEct,
        segments: 1,
    }
}

#[test]
fn bytes_beyond_the_window_are_lost_with_a_reset() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.b.recv_capacity = 10_000;
    pair.b.reads = false;
    pair.connect(A);
    pair.run_for(ms(100));
    let (now, buffers) = (pair.now, pair.a.buffers());
    let window = pair.a.connection().info(now, buffers).snd_wnd;
    assert!((9_000..=10_000).contains(&window), "{window}");
    write_and_abort(&mut pair, 60_000);
    pair.run_for(ms(50));
    assert!(pair.b.events.contains(&ConnectionEvent::Reset));
    pair.read(B, usize::MAX);
    pair.assert_received(B, window as usize);
}

#[test]
fn bytes_beyond_the_congestion_window_are_lost_with_a_reset() {
    let mut pair = Pair::connected();
    let (now, buffers) = (pair.now, pair.a.buffers());
    let cwnd = pair.a.connection().info(now, buffers).cwnd_bytes;
    write_and_abort(&mut pair, 200_000);
    pair.run_for(ms(50));
    assert!(pair.b.events.contains(&ConnectionEvent::Reset));
    pair.assert_received(B, cwnd as usize);
}

#[test]
fn a_shut_window_lets_no_byte_go_before_the_reset() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.b.recv_capacity = 10_000;
    pair.b.reads = false;
    pair.connect(A);
    pair.write(A, 60_000);
    pair.run_for(Duration::from_secs(1));
    pair.log.clear();
    pair.abort(A);
    assert_eq!(sent(&pair), [(RESET, 0)]);
}

#[test]
fn a_fin_that_was_asked_for_goes_between_the_bytes_and_the_reset() {
    let mut pair = Pair::connected();
    pair.a.send_fifo.extend((0..15).map(pattern));
    pair.a.connection().shutdown_send();
    pair.abort(A);
    assert_eq!(sent(&pair), [(DATA | Flags::FIN, 0), (RESET, 16)]);
    pair.run_for(ms(50));
    pair.assert_received(B, 15);
    assert!(pair.b.events.contains(&ConnectionEvent::PeerClosed));
    assert!(pair.b.events.contains(&ConnectionEvent::Reset));
}

/// The bytes of the peer arrive in the same turn as the close, before anything was sent.
#[test]
fn bytes_that_arrive_after_a_close_are_reset_behind_what_was_written() {
    let mut pair = Pair::connected();
    let request = Segment { payload_len: 10, ..pair.segment_from(B, Flags::ACK) };
    let now = pair.now;
    pair.a.send_fifo.extend((0..15).map(pattern));
    pair.a.connection().close(now);
    pair.inject(A, request, &[7; 10]);
    assert_eq!(sent(&pair), [(DATA | Flags::FIN, 0), (RESET, 16)]);
    pair.run_for(ms(50));
    pair.assert_received(B, 15);
}

/// The segment that comes after the close acknowledges earlier bytes, so that the FIFO begins with
/// others.
#[test]
fn an_ack_that_comes_with_bytes_after_a_close_counts() {
    let mut pair = Pair::connected();
    pair.write(A, 100);
    pair.step();
    let request = Segment { payload_len: 10, ..pair.segment_from(B, Flags::ACK) };
    let now = pair.now;
    pair.a.send_fifo.extend((100..115).map(pattern));
    pair.a.connection().close(now);
    pair.log.clear();
    pair.inject(A, request, &[7; 10]);
    assert_eq!(pair.a.send_fifo.len(), 15, "the first bytes are acknowledged");
    assert_eq!(sent(&pair), [(DATA | Flags::FIN, 0), (RESET, 16)]);
    pair.run_for(ms(50));
    pair.assert_received(B, 115);
}

#[test]
fn nagle_holds_nothing_back_before_a_reset_and_a_cork_does() {
    for (corked, received) in [(false, 20), (true, 10)] {
        let mut pair = Pair::connected();
        pair.write(A, 10);
        if corked {
            pair.a.connection().set_cork(true);
        }
        pair.log.clear();
        pair.a.send_fifo.extend((10..20).map(pattern));
        pair.abort(A);
        pair.run_for(ms(50));
        assert!(pair.b.events.contains(&ConnectionEvent::Reset));
        pair.assert_received(B, received);
    }
}

#[test]
fn bytes_lost_before_a_reset_are_not_sent_again() {
    let mut pair = Pair::connected();
    pair.fate = drop_data(A, &[0]);
    write_and_abort(&mut pair, 15);
    pair.run_for(Duration::from_secs(60));
    assert_eq!(pair.sent(A, Packet::is_data), 1);
    assert!(pair.b.events.contains(&ConnectionEvent::Reset));
    pair.assert_received(B, 0);
}
