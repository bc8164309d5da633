//! Urgent data between two hosts: URG and its pointer on the wire, and the marks at the receiver.

use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

const MSS: usize = 1448;

/// Urgent pointers of a side's segments with URG, and how many bytes these carry.
fn pointers(pair: &Pair, side: Side) -> Vec<u16> {
    let urgent = pair.log.iter().filter(|packet| packet.from == side && packet.has(Flags::URG));
    urgent.map(|packet| packet.segment.urgent).collect()
}

//= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.5
//= type=test
//# The urgent pointer MUST point to the sequence number of the octet following the urgent
//# data (MUST-62).
#[test]
fn the_pointer_is_behind_the_urgent_byte() {
    let mut pair = Pair::connected();
    pair.write_bytes(A, b"abc");
    pair.write_urgent(A, b"12!");
    pair.write_bytes(A, b"def");
    pair.run_for(ms(500));
    // "abc" alone, "12!" with URG, and behind SND.UP nothing.
    assert_eq!(pointers(&pair, A), [3]);
    assert_eq!(pair.b.marks, [(5, Some(b'!'), true)]);
    assert_eq!(pair.b.received, b"abc12!def");
}

/// Nagle's algorithm, a cork and MSG_MORE hold nothing urgent back.
#[test]
fn urgent_data_does_not_wait() {
    let mut pair = Pair::connected();
    pair.a.connection().set_cork(true);
    pair.write_bytes(A, b"a");
    pair.run_for(ms(20));
    assert_eq!(pair.b.received, b"");
    pair.write_urgent(A, b"!");
    pair.run_for(ms(20));
    assert_eq!(pair.b.received, b"a!");
    pair.a.connection().set_cork(false);
    pair.write_bytes(A, b"b");
    pair.write_urgent(A, b"?");
    assert_eq!(pair.sent(A, Packet::is_data), 3, "before any acknowledgement");
}

//= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.5
//= type=test
//# A TCP implementation MUST support a sequence of urgent data of any length (MUST-31)
#[test]
fn every_segment_up_to_the_mark_says_so() {
    for iss in [1000, 0xffff_ff00] {
        let mut pair = Pair::with_iss(Config::default(), Config::default(), iss, iss);
        pair.connect(A);
        pair.run_for(ms(100));
        pair.write_urgent(A, &stream(10 * MSS));
        pair.write(A, 10 * MSS);
        pair.run_for(ms(2000));
        // No segment is left to the device to be cut: the pointers of the pieces differ.
        let wanted: Vec<_> = (1..=10).rev().map(|left| (left * MSS) as u16).collect();
        assert_eq!(pointers(&pair, A), wanted);
        assert_eq!(pair.b.received.len(), 20 * MSS);
        let at = 10 * MSS - 1;
        assert_eq!(pair.b.marks, [(at, None, true), (at, Some(pattern(at)), false)]);
    }
}

/// The pointer has 16 bits. Only segments from which SND.NXT is within reach say that more is
/// urgent, so that no receiver looks for the mark too early.
#[test]
fn a_mark_far_ahead_is_announced_late() {
    let mut pair = Pair::connected();
    pair.a.send_capacity = 1 << 20;
    pair.write_urgent(A, &stream(300_000));
    pair.run_for(ms(5000));
    assert_eq!(pair.b.received.len(), 300_000);
    assert_eq!(pair.b.marks.last(), Some(&(299_999, Some(pattern(299_999)), false)));
    let said = pointers(&pair, A);
    assert!(said.contains(&u16::MAX));
    assert!(said.iter().filter(|pointer| **pointer < u16::MAX).count() >= 40);
}

#[test]
fn what_was_lost_is_urgent_again() {
    let mut pair = Pair::connected();
    pair.fate = drop_data(A, &[0]);
    pair.write_urgent(A, b"ab!");
    pair.run_for(ms(2000));
    assert_eq!(pointers(&pair, A), [3, 3]);
    assert_eq!(pair.b.marks, [(2, Some(b'!'), true)]);
    // Acknowledged: it is over, also for what is sent later.
    pair.write_bytes(A, b"cd");
    pair.run_for(ms(500));
    assert_eq!((pointers(&pair, A).len(), &*pair.b.received), (2, &b"ab!cd"[..]));
}

/// The byte is there for MSG_OOB although bytes before it are missing.
#[test]
fn a_hole_does_not_hold_the_urgent_byte_up() {
    let mut pair = Pair::connected();
    pair.fate = drop_data(A, &[0]);
    pair.write_bytes(A, b"abc");
    pair.write_urgent(A, b"!");
    pair.run_for(ms(6));
    assert_eq!((&*pair.b.received, &*pair.b.marks), (&b""[..], &[(3, Some(b'!'), true)][..]));
    pair.run_for(ms(2000));
    assert_eq!((&*pair.b.received, pair.b.marks.len()), (&b"abc!"[..], 1));
}

#[test]
fn a_second_urgent_byte_makes_a_new_mark() {
    let mut pair = Pair::connected();
    pair.write_urgent(A, b"1");
    pair.write_urgent(A, b"2");
    pair.run_for(ms(500));
    assert_eq!(pair.b.marks, [(0, Some(b'1'), true), (1, Some(b'2'), true)]);
    assert_eq!(pair.b.received, b"12");
}

/// The mark is told through a window that is shut (RFC 9293 §3.8.6.1: "special allowance").
#[test]
fn a_shut_window_does_not_hold_the_pointer_up() {
    let mut pair = Pair::connected();
    (pair.b.reads, pair.b.recv_capacity) = (false, 10_000);
    pair.write(A, 10_000);
    pair.run_for(ms(3000));
    assert_eq!(pair.b.recv_fifo.len(), 10_000);
    pair.write_urgent(A, b"abc!");
    pair.run_for(ms(100_000));
    assert_eq!(pair.b.marks, [(10_003, None, true)]);
    let probes = pair.sent(A, |packet| packet.has(Flags::URG) && !packet.is_data());
    assert!(probes >= 1, "{probes}");
    pair.b.reads = true;
    pair.read(B, 10_000);
    pair.run_for(ms(5000));
    assert_eq!(pair.b.received.len(), 10_004);
    assert_eq!(pair.b.marks[1..], [(10_003, Some(b'!'), false)]);
}

/// A pointer of a peer may be anything.
#[test]
fn hostile_pointers_do_no_harm() {
    for iss in [5000, 0xffff_fff0] {
        let mut pair = Pair::with_iss(Config::default(), Config::default(), iss, iss);
        pair.connect(A);
        pair.run_for(ms(100));
        let flags = Flags::ACK | Flags::URG | Flags::PSH;
        let mut expected: Vec<(usize, Option<u8>, bool)> = Vec::new();
        let mut sent = 0;
        for pointer in [0, 1, 2, 3, 0x7fff, 0xffff, 1] {
            let segment =
                Segment { urgent: pointer, payload_len: 2, ..pair.segment_from(A, flags) };
            pair.inject(B, segment, b"xy");
            let at = sent + usize::from(pointer.saturating_sub(1));
            // An older mark than the last, which has not been reached, is none.
            if expected.iter().all(|(known, ..)| at > *known) {
                let byte = b"xy".get(usize::from(pointer.saturating_sub(1))).copied();
                expected.push((at, byte, true));
            }
            sent += 2;
            assert_eq!(pair.b.marks, expected, "{pointer}");
            assert_eq!(pair.b.received.len(), sent);
        }
    }
}

/// An old segment, a repeated one, and one with an ACK that no one could send.
#[test]
fn marks_of_old_and_forged_segments_are_none() {
    let mut pair = Pair::connected();
    pair.write_bytes(A, b"abcdef");
    pair.run_for(ms(500));
    let flags = Flags::ACK | Flags::URG;
    let right = pair.segment_from(A, flags);
    let old = Segment { seq: right.seq - 3, urgent: 2, payload_len: 3, ..right };
    pair.inject(B, old, b"def");
    let forged = Segment { ack: right.ack + 100_000, urgent: 9, ..right };
    pair.inject(B, forged, b"");
    assert_eq!(pair.b.marks, []);
    let fresh = Segment { urgent: 2, ..right };
    pair.inject(B, fresh, b"");
    pair.inject(B, fresh, b"");
    assert_eq!(pair.b.marks, [(7, None, true)]);
}

/// With as much behind a mark as sequence numbers count, the next mark is one again.
#[test]
fn marks_survive_the_turn_of_the_numbers() {
    let mut pair = Pair::connected();
    pair.write_urgent(A, b"1");
    pair.write(A, 3_000_000);
    pair.run_for(ms(60_000));
    pair.write_urgent(A, b"2");
    pair.run_for(ms(500));
    assert_eq!(pair.b.marks, [(0, Some(b'1'), true), (3_000_001, Some(b'2'), true)]);
}

/// Losses, reordering and repetition: the last mark always comes to be known, and no byte is lost.
#[test]
fn on_a_bad_link_the_last_mark_is_found() {
    for seed in 0..20 {
        let mut pair = Pair::connected();
        let bad = LinkConfig {
            delay_ns: 5_000_000,
            loss: losses(50),
            duplicate: chance(20),
            ..LinkConfig::default()
        };
        pair.lay([bad; 2], seed);
        for _ in 0..10 {
            pair.write(A, 5000);
            pair.write_urgent(A, b"!");
            pair.run_for(ms(200));
        }
        pair.run_for(ms(200_000));
        assert_eq!(pair.b.received.len(), 50_010, "{seed}");
        let last = pair.b.marks.last().expect("there are marks");
        assert_eq!((last.0, last.1), (50_009, Some(b'!')), "{seed}");
    }
}
