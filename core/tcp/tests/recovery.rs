//! Loss recovery with SACK: time to repair losses, and spurious retransmissions.

use std::time::Duration;

use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

const MSS: usize = 1448;

/// Creates a pair of hosts in which the data packets with these numbers from A are lost.
fn losing(lost: &[usize]) -> Pair {
    let mut pair = Pair::connected();
    pair.fate = drop_data(A, lost);
    pair
}

/// Creates a pair of hosts in which A's data packets with these numbers arrive late.
fn delaying(late: &[(usize, Duration)]) -> Pair {
    let late = late.to_vec();
    let mut pair = Pair::connected();
    let mut seen = 0;
    pair.fate = Box::new(move |packet| {
        if packet.from != A || !packet.is_data() {
            return Fate::Deliver;
        }
        seen += 1;
        let entry = late.iter().find(|(number, _)| *number + 1 == seen);
        entry.map_or(Fate::Deliver, |(_, delay)| Fate::Late(*delay))
    });
    pair
}

/// Sends `len` bytes from A. Returns the time until all have arrived.
fn transfer(pair: &mut Pair, len: usize) -> Duration {
    pair.write(A, len);
    let took = pair.run_until(Duration::from_secs(20), |pair| pair.b.received.len() == len);
    pair.assert_received(B, len);
    took
}

fn info(pair: &mut Pair) -> Info {
    let (now, buffers) = (pair.now, pair.a.buffers());
    pair.a.connection().info(now, buffers)
}

fn resent(pair: &Pair) -> usize {
    pair.sent(A, |packet| packet.retransmit)
}

/// Returns the SACK blocks of the last ACK from B, relative to A's first byte.
fn blocks(pair: &Pair) -> Vec<(u32, u32)> {
    let ack = pair.log.iter().rfind(|packet| packet.from == B).expect("an ACK");
    let first = SeqNum(1001);
    ack.segment.options.sack.iter().map(|(left, right)| (left - first, right - first)).collect()
}

/// Receives segments of A with these numbers at B in one turn. Returns the SACK blocks of each ACK,
/// in segments.
fn acks_of_batch(pair: &mut Pair, numbers: &[u32]) -> Vec<Vec<(u32, u32)>> {
    let (first, mss) = (SeqNum(1001), MSS as u32);
    let (now, sent) = (pair.now, pair.log.len());
    let plain = pair.segment_from(A, Flags::ACK);
    for number in numbers {
        let segment = Segment { seq: first + number * mss, payload_len: mss, ..plain };
        let buffers = pair.b.buffers();
        pair.b.connection().on_segment(now, &segment, buffers);
    }
    pair.turn(B);
    let acks = pair.log[sent..].iter().map(|packet| packet.segment.options.sack);
    acks.map(|sack| sack.iter().map(|(l, r)| ((l - first) / mss, (r - first) / mss)).collect())
        .collect()
}

#[test]
fn a_batch_with_many_gaps_is_reported_in_several_acks() {
    let mut pair = Pair::connected();
    let acks = acks_of_batch(&mut pair, &[1, 3, 4, 6, 8, 10]);
    let expected: [&[(u32, u32)]; 5] = [
        &[(1, 2)],
        &[(3, 5), (1, 2)],
        &[(6, 7), (3, 5), (1, 2)],
        &[(8, 9), (6, 7), (3, 5)],
        &[(10, 11), (8, 9), (6, 7)],
    ];
    assert_eq!(acks, expected);
    // Segments that extend the newest range need no further ACK.
    assert_eq!(acks_of_batch(&mut pair, &[11, 12, 13]), [[(10, 14), (8, 9), (6, 7)]]);
}

#[test]
fn a_duplicate_in_a_batch_is_reported_by_the_last_ack() {
    let mut pair = Pair::connected();
    let acks = acks_of_batch(&mut pair, &[1, 3, 5, 3]);
    assert_eq!(acks.last(), Some(&vec![(3, 4), (3, 4), (5, 6)]));
    assert_eq!(acks.iter().filter(|blocks| blocks[1..].contains(&blocks[0])).count(), 1);
}

#[test]
fn the_send_buffer_has_room_for_bytes_reported_by_sack() {
    let mut pair = losing(&[0]);
    pair.write(A, 8 * MSS);
    pair.run_for(ms(12));
    let connection = pair.a.connection();
    let wanted = connection.send_buffer_wanted() - 2 * connection.cwnd();
    assert_eq!(wanted, 7 * MSS as u32);
}

#[test]
fn two_losses_without_new_data_need_no_timeout() {
    // RFC 6675's NextSeg would send the second hole by rule 3.
    let mut pair = losing(&[4, 8]);
    assert!(transfer(&mut pair, 10 * MSS) < ms(50));
    assert_eq!(resent(&pair), 2);
}

#[test]
fn one_segment_beyond_a_hole_suffices_after_a_quarter_of_the_round_trip() {
    let mut pair = losing(&[8]);
    let took = transfer(&mut pair, 10 * MSS);
    assert!(took > ms(15) && took < ms(20), "{took:?}");
    assert!(pair.a.timeouts.contains(&TimerKind::Reordering));
    assert_eq!(resent(&pair), 1);
}

#[test]
fn sack_blocks_of_an_overtaken_ack_count() {
    let mut pair = Pair::connected();
    pair.fate = Box::new(|packet| if packet.from == B { Fate::Drop } else { Fate::Deliver });
    pair.write(A, 10 * MSS);
    pair.run_for(ms(6));
    let (first, mss) = (SeqNum(1001), MSS as u32);
    let ack = pair.segment_from(B, Flags::ACK);
    pair.inject(A, Segment { ack: first + 2 * mss, ..ack }, &[]);
    let mut overtaken = Segment { ack: first + mss, ..ack };
    overtaken.options.sack.push(first + 4 * mss, first + 8 * mss);
    pair.inject(A, overtaken, &[]);
    assert!(resent(&pair) > 0, "the third segment is lost");
}

#[test]
fn a_lost_tail_is_probed_after_two_round_trips() {
    let mut pair = losing(&[7, 8, 9]);
    let took = transfer(&mut pair, 10 * MSS);
    assert!(took < ms(60), "{took:?}");
    assert!(pair.a.timeouts.contains(&TimerKind::TailLossProbe));
    assert!(!pair.a.timeouts.contains(&TimerKind::Retransmit));
}

#[test]
fn data_from_the_peer_does_not_postpone_a_probe() {
    let mut pair = losing(&[7, 8, 9]);
    pair.write(A, 10 * MSS);
    // Each segment from B repeats its acknowledgement of the first seven segments.
    for _ in 0..60 {
        pair.write(B, MSS);
        pair.run_for(ms(1));
    }
    assert!(pair.a.timeouts.contains(&TimerKind::TailLossProbe));
    pair.assert_received(B, 10 * MSS);
}

#[test]
fn a_probe_sends_new_data_first() {
    // The peer's window has room for more than the congestion window.
    let mut pair = losing(&(0..10).collect::<Vec<_>>());
    let took = transfer(&mut pair, 11 * MSS);
    let probe = pair.log.iter().filter(|packet| packet.from == A).nth(10).expect("a probe");
    assert!(!probe.retransmit && probe.segment.payload_len as usize == MSS, "{probe:?}");
    assert!(took < ms(100), "{took:?}");
}

#[test]
fn a_lost_fin_is_probed() {
    let mut pair = losing(&[8, 9]);
    pair.a.shutdown_when_written = true;
    pair.write(A, 10 * MSS);
    let took = pair.run_until(Duration::from_secs(5), |pair| {
        pair.b.events.contains(&ConnectionEvent::PeerClosed)
    });
    assert!(took < ms(60), "{took:?}");
    pair.assert_received(B, 10 * MSS);
}

#[test]
fn a_probe_that_repairs_the_only_loss_reduces_the_window() {
    let mut pair = losing(&[9]);
    let before = info(&mut pair).cwnd_bytes;
    transfer(&mut pair, 10 * MSS);
    pair.write(A, 3 * MSS);
    pair.run_for(ms(100));
    assert_eq!(resent(&pair), 1);
    let after = info(&mut pair);
    // The window had doubled.
    assert!(after.ssthresh_bytes < 2 * before, "{after:?}");
}

#[test]
fn a_window_update_after_the_repair_is_no_duplicate_of_a_probe() {
    let mut pair = losing(&[9]);
    let before = info(&mut pair).cwnd_bytes;
    transfer(&mut pair, 10 * MSS);
    pair.run_for(ms(60));
    let update = pair.segment_from(B, Flags::ACK);
    pair.inject(A, update, &[]);
    pair.write(A, 3 * MSS);
    pair.run_for(ms(100));
    let after = info(&mut pair);
    // The window had doubled.
    assert!(after.ssthresh_bytes < 2 * before, "{after:?}");
}

#[test]
fn a_probe_for_a_delayed_ack_reduces_nothing() {
    let mut pair = Pair::connected();
    // The path slows down for one flight: the probe arrives as a duplicate, and D-SACK reports it.
    pair.fate = Box::new(|packet| match packet.from {
        A if packet.is_data() => Fate::Late(ms(50)),
        _ => Fate::Deliver,
    });
    transfer(&mut pair, 5 * MSS);
    pair.fate = Box::new(|_| Fate::Deliver);
    pair.run_for(ms(200));
    let after = info(&mut pair);
    assert_eq!((resent(&pair), after.ssthresh), (1, 0x7fff_ffff));
    assert!(after.reordering.dsack_dups >= 1);
}

#[test]
fn a_lost_retransmission_is_found_by_later_bytes() {
    let mut pair = Pair::connected();
    let mut copies = 0;
    pair.fate = Box::new(move |packet| {
        let is_head = packet.from == A && packet.segment.seq == SeqNum(1001) && packet.is_data();
        copies += usize::from(is_head);
        if is_head && copies <= 3 { Fate::Drop } else { Fate::Deliver }
    });
    // Each loss of a copy halves the window again (RFC 5681 section 4.3).
    let took = transfer(&mut pair, 100_000);
    assert!(took < ms(200), "{took:?}");
    assert!(!pair.a.timeouts.contains(&TimerKind::Retransmit));
}

#[test]
fn a_retransmission_lost_after_a_timeout_reduces_again() {
    let mut pair = Pair::connected();
    let mut seen = 0;
    // The flight, its probe, and the second retransmission after the timeout are lost.
    pair.fate = Box::new(move |packet| {
        seen += usize::from(packet.from == A && packet.is_data());
        let is_lost = packet.from == A && packet.is_data() && (seen <= 11 || seen == 13);
        if is_lost { Fate::Drop } else { Fate::Deliver }
    });
    transfer(&mut pair, 10 * MSS);
    let timeouts = pair.a.timeouts.iter().filter(|it| **it == TimerKind::Retransmit).count();
    let after = info(&mut pair);
    assert_eq!((timeouts, after.ssthresh), (1, 2), "7 after the timeout alone");
}

#[test]
fn a_late_segment_is_not_sent_twice_once_reordering_is_known() {
    let mut pair = delaying(&[(30, ms(3)), (150, ms(2)), (250, ms(2))]);
    transfer(&mut pair, 500_000);
    pair.run_for(ms(100));
    let after = info(&mut pair);
    assert_eq!(resent(&pair), 1, "the first late segment only");
    let reordering = after.reordering;
    assert!(reordering.seen > 0 && reordering.degree > 3, "{reordering:?}");
    assert_eq!(reordering.dsack_dups, 1);
}

#[test]
fn a_spurious_recovery_is_undone() {
    for timestamps in [false, true] {
        let config = Config { timestamps, ..Config::default() };
        let mut pair = Pair::connected_with(config, config);
        let mut seen = 0;
        pair.fate = Box::new(move |packet| {
            seen += usize::from(packet.from == A && packet.is_data());
            let is_late = seen == 31 && packet.from == A && packet.is_data();
            if is_late { Fate::Late(ms(8)) } else { Fate::Deliver }
        });
        transfer(&mut pair, 300_000);
        pair.run_for(ms(100));
        let after = info(&mut pair);
        assert_eq!(resent(&pair), 1);
        assert_eq!((after.ca_state, after.ssthresh), (0, 0x7fff_ffff), "timestamps: {timestamps}");
    }
}

#[test]
fn timestamps_undo_a_recovery_by_the_ack_that_ends_it() {
    let config = Config { timestamps: true, ..Config::default() };
    let mut pair = Pair::connected_with(config, config);
    let mut seen = 0;
    // The first segment is late. Its retransmission is lost, so that no D-SACK reports it.
    pair.fate = Box::new(move |packet| {
        if packet.from != A || !packet.is_data() {
            return Fate::Deliver;
        }
        seen += 1;
        match seen {
            1 => Fate::Late(ms(8)),
            _ if packet.retransmit => Fate::Drop,
            _ => Fate::Deliver,
        }
    });
    transfer(&mut pair, 10 * MSS);
    pair.run_for(ms(20));
    let after = info(&mut pair);
    assert_eq!((resent(&pair), after.ca_state, after.ssthresh), (1, 0, 0x7fff_ffff));
}

#[test]
fn a_recovery_is_undone_after_its_end() {
    let mut pair = Pair::connected();
    // The probe overtakes the flight, and so do the retransmissions that follow.
    pair.fate = Box::new(|packet| match packet.from {
        A if packet.is_data() && !packet.retransmit => Fate::Late(ms(100)),
        _ => Fate::Deliver,
    });
    transfer(&mut pair, 5 * MSS);
    assert!(info(&mut pair).ssthresh < 10);
    pair.run_for(ms(200));
    assert_eq!((resent(&pair), info(&mut pair).ssthresh), (5, 0x7fff_ffff));
}

#[test]
fn a_spurious_timeout_is_undone() {
    let mut pair = Pair::connected();
    transfer(&mut pair, 20 * MSS);
    let before = info(&mut pair);
    // All packets of a flight are delayed for longer than the timeout.
    pair.fate = Box::new(|packet| match packet.from {
        A if packet.is_data() => Fate::Late(ms(500)),
        _ => Fate::Deliver,
    });
    pair.write(A, 5 * MSS);
    pair.run_for(ms(300));
    assert_eq!(info(&mut pair).ca_state, 4);
    pair.run_for(ms(1000));
    let after = info(&mut pair);
    assert!(pair.a.timeouts.contains(&TimerKind::Retransmit));
    assert_eq!((after.ca_state, after.ssthresh), (0, before.ssthresh));
    assert!(after.cwnd_bytes >= before.cwnd_bytes, "{after:?}");
}

/// Returns a pair without timestamps after a transfer, and the sender's state. A's window has room
/// for 20 segments.
fn pair_without_timestamps() -> (Pair, Info) {
    let config = Config { timestamps: false, ..Config::default() };
    let mut pair = Pair::connected_with(config, config);
    transfer(&mut pair, 20 * MSS);
    // The last ACKs arrive.
    pair.run_for(ms(10));
    pair.log.clear();
    let before = info(&mut pair);
    (pair, before)
}

/// Returns whether each data packet of A since the timeout was a retransmission.
fn data_since_timeout(pair: &Pair) -> Vec<bool> {
    let data = pair.log.iter().filter(|packet| packet.from == A && packet.is_data());
    let since = data.skip_while(|packet| !packet.retransmit);
    since.map(|packet| packet.retransmit).collect()
}

#[test]
fn acks_of_bytes_sent_once_undo_a_timeout_without_timestamps() {
    let (mut pair, before) = pair_without_timestamps();
    // The path pauses for longer than the timeout, and for longer than two of them.
    for pause in [ms(300), ms(800)] {
        pair.log.clear();
        pair.a.timeouts.clear();
        let end = pair.now + pause;
        pair.fate = Box::new(move |packet| match packet.from {
            A if packet.is_data() && packet.sent < end => Fate::Late(end.since(packet.sent)),
            _ => Fate::Deliver,
        });
        pair.write(A, 100 * MSS);
        pair.run_for(pause);
        let timeouts = pair.a.timeouts.iter().filter(|it| **it == TimerKind::Retransmit).count();
        assert_eq!(info(&mut pair).ca_state, 4);
        pair.run_for(ms(1000));
        assert_eq!(resent(&pair), timeouts, "only the first segment");
        let after = info(&mut pair);
        assert_eq!((after.ca_state, after.ssthresh), (0, before.ssthresh), "{pause:?}");
        assert!(after.cwnd_bytes >= before.cwnd_bytes, "{after:?}");
    }
}

#[test]
fn new_bytes_after_a_timeout_confirm_the_loss() {
    let (mut pair, before) = pair_without_timestamps();
    let end = pair.now + ms(200);
    pair.fate = Box::new(move |packet| match packet.from {
        A if packet.is_data() && packet.sent < end => Fate::Drop,
        _ => Fate::Deliver,
    });
    pair.write(A, 100 * MSS);
    pair.run_for(ms(5000));
    assert_eq!(pair.b.received.len(), 120 * MSS);
    let sent = data_since_timeout(&pair);
    assert_eq!(sent[..4], [true, false, false, true]);
    let after = info(&mut pair);
    assert!(after.ssthresh_bytes < before.cwnd_bytes, "{after:?}");
}

#[test]
fn without_new_bytes_retransmissions_continue_after_a_timeout() {
    let (mut pair, _) = pair_without_timestamps();
    let end = pair.now + ms(200);
    pair.fate = Box::new(move |packet| match packet.from {
        A if packet.is_data() && packet.sent < end => Fate::Drop,
        _ => Fate::Deliver,
    });
    pair.write(A, 5 * MSS);
    let took = pair.run_until(Duration::from_secs(5), |pair| pair.b.received.len() == 25 * MSS);
    // Another timeout would take 400 ms more.
    assert!(took < ms(400), "{took:?}");
}

#[test]
fn a_timeout_within_recovery_is_undone_to_the_target_of_the_recovery() {
    let mut pair = Pair::connected();
    transfer(&mut pair, 300_000);
    // A segment is lost. Its retransmission and later segments are late, so the timer expires.
    let mut seen = 0;
    pair.fate = Box::new(move |packet| {
        seen += usize::from(packet.from == A && packet.is_data());
        match seen {
            1 if packet.from == A => Fate::Drop,
            20.. if packet.from == A && packet.is_data() => Fate::Late(ms(500)),
            _ => Fate::Deliver,
        }
    });
    pair.write(A, 300_000);
    let expired = |pair: &mut Pair| pair.a.timeouts.contains(&TimerKind::Retransmit);
    pair.run_until(Duration::from_secs(5), expired);
    assert_eq!(info(&mut pair).ca_state, 4);
    while info(&mut pair).ca_state == 4 {
        pair.run_for(ms(1));
    }
    let after = info(&mut pair);
    assert!(after.cwnd_bytes > 2 * MSS as u32, "not undone: {after:?}");
    // Some ACKs have arrived since the undo.
    assert!(after.cwnd_bytes <= after.ssthresh_bytes + 2 * MSS as u32, "{after:?}");
}

#[test]
fn recovery_sends_no_burst() {
    let mut pair = losing(&[100]);
    // Segments arrive one after the other, so their ACKs do, too.
    pair.ways[A as usize].rate = Some(100_000_000);
    transfer(&mut pair, 400_000);
    let from = pair.log.iter().find(|packet| packet.retransmit).expect("a retransmission").sent;
    // Segments that A sends, and ACKs that reach A, at each instant of the recovery.
    let mut instants = std::collections::BTreeMap::<Instant, (usize, usize)>::new();
    for packet in &pair.log {
        let time = if packet.from == B { packet.sent + ms(5) } else { packet.sent };
        if time < from || time >= from + ms(10) {
            continue;
        }
        let (sent, acks) = instants.entry(time).or_default();
        *sent += usize::from(packet.from == A && packet.is_data());
        *acks += usize::from(packet.from == B);
    }
    assert!(instants.values().map(|(sent, _)| sent).sum::<usize>() > 10, "{instants:?}");
    for (sent, acks) in instants.values() {
        assert!(sent <= &(acks + 1), "{instants:?}");
    }
}

#[test]
fn repeated_bytes_below_rcv_nxt_are_reported() {
    let mut pair = Pair::connected();
    pair.write(A, 3 * MSS);
    pair.run_for(ms(100));
    let packet = pair.log.iter().find(|packet| packet.is_data()).expect("data").clone();
    let payload = stream(MSS);
    pair.inject(B, packet.segment, &payload);
    assert_eq!(blocks(&pair), [(0, MSS as u32)]);
    pair.write(B, 10);
    assert!(blocks(&pair).is_empty(), "reported once");
}

#[test]
fn repeated_bytes_beyond_a_hole_are_reported_with_their_range() {
    let mut pair = Pair::connected();
    pair.fate = drop_data(A, &[0]);
    pair.write(A, 5 * MSS);
    pair.run_for(ms(6));
    let mss = MSS as u32;
    assert_eq!(blocks(&pair), [(mss, 5 * mss)]);
    let packet = pair.log.iter().filter(|packet| packet.is_data()).nth(2).expect("data").clone();
    pair.inject(B, packet.segment, &stream(3 * MSS)[2 * MSS..]);
    assert_eq!(blocks(&pair), [(2 * mss, 3 * mss), (mss, 5 * mss)]);
}

#[test]
fn peers_without_sack_get_no_report() {
    let config = Config { sack: false, ..Config::default() };
    let mut pair = Pair::connected_with(config, config);
    pair.write(A, MSS);
    pair.run_for(ms(100));
    let packet = pair.log.iter().find(|packet| packet.is_data()).expect("data").clone();
    pair.inject(B, packet.segment, &stream(MSS));
    assert!(blocks(&pair).is_empty());
}
