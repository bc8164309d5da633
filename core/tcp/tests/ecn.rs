//! Explicit Congestion Notification (RFC 3168, RFC 9768) between two connections.

use std::cell::Cell;
use std::rc::Rc;
use towpath_tcp::*;

use crate::world::Side::{A, B};
use crate::world::*;

fn config(ecn: EcnMode) -> Config {
    Config { ecn, ..Config::default() }
}

fn pair(ecn: EcnMode) -> Pair {
    Pair::new(config(ecn), config(ecn))
}

fn connected(ecn: EcnMode) -> Pair {
    Pair::connected_with(config(ecn), config(ecn))
}

fn info(pair: &mut Pair, side: Side) -> Info {
    let (now, host) = (pair.now, pair.host(side));
    let buffers = host.buffers();
    host.connection().info(now, buffers)
}

/// Returns the ECN flags of the packets that `filter` selects.
fn flags(pair: &Pair, filter: impl Fn(&Packet) -> bool) -> Vec<Flags> {
    let of = |packet: &Packet| Flags(packet.segment.flags.0 & Flags::ACE.0);
    pair.log.iter().filter(|packet| filter(packet)).map(of).collect()
}

fn of_a(packet: &Packet) -> bool {
    packet.from == A
}

/// Marks the data packets of A with these numbers, counted from now on.
fn mark_data(numbers: &'static [usize]) -> Box<dyn FnMut(&Packet) -> Fate> {
    let mut count = 0;
    Box::new(move |packet| {
        let is_data = of_a(packet) && packet.is_data();
        count += usize::from(is_data);
        if is_data && numbers.contains(&count) { Fate::Mark } else { Fate::Deliver }
    })
}

#[test]
fn handshake_negotiates_the_best_common_feedback() {
    use EcnMode::{Accept, AcceptAccurate, Accurate, Off, On};
    let (ece, setup) = (Flags::ECE, Flags::ECE | Flags::CWR);
    // The encoding of a SYN without ECT, in the SYN-ACK of a server with accurate ECN.
    let confirmed = Flags::CWR;
    for (client, server, syn, syn_ack) in [
        (Off, On, Flags::NONE, Flags::NONE),
        (Accept, On, Flags::NONE, Flags::NONE),
        (On, Off, setup, Flags::NONE),
        (On, On, setup, ece),
        (On, Accept, setup, ece),
        (On, Accurate, setup, ece),
        (Accurate, Off, Flags::ACE, Flags::NONE),
        (Accurate, Accept, Flags::ACE, ece),
        (Accurate, Accurate, Flags::ACE, confirmed),
        (Accurate, AcceptAccurate, Flags::ACE, confirmed),
        (AcceptAccurate, Accurate, Flags::NONE, Flags::NONE),
    ] {
        let mut pair = Pair::new(config(client), config(server));
        pair.connect(A);
        pair.run_for(ms(100));
        let case = format!("{client:?} to {server:?}");
        assert_eq!(flags(&pair, |packet| packet.has(Flags::SYN)), [syn, syn_ack], "{case}");
        for side in [A, B] {
            pair.write(side, 1000);
            pair.run_for(ms(100));
            let ecn = if syn_ack == Flags::NONE { Ecn::NotEct } else { Ecn::Ect0 };
            let sent = pair.log.iter().filter(|packet| packet.from == side);
            for packet in sent {
                let expected = if packet.is_data() { ecn } else { Ecn::NotEct };
                assert_eq!(packet.segment.ecn, expected, "{case}: {:?}", packet.segment.flags);
            }
            assert_eq!(info(&mut pair, side).ecn.is_negotiated, syn_ack != Flags::NONE, "{case}");
        }
        assert_eq!(info(&mut pair, A).ecn.is_seen, syn_ack != Flags::NONE, "{case}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.1.1
//= type=test
//# A host that receives no reply to an ECN-setup SYN within the normal
//# SYN retransmission timeout interval MAY resend the SYN and any
//# subsequent SYN retransmissions with CWR and ECE cleared.
#[test]
fn syn_falls_back_to_no_ecn_after_timeouts() {
    for (mode, expected) in [
        (EcnMode::On, [Flags::ECE | Flags::CWR, Flags::NONE, Flags::NONE]),
        (EcnMode::Accurate, [Flags::ACE, Flags::ACE, Flags::NONE]),
    ] {
        let mut pair = pair(mode);
        let mut count = 0;
        pair.fate = Box::new(move |packet| {
            count += usize::from(packet.has(Flags::SYN));
            if count < 3 { Fate::Drop } else { Fate::Deliver }
        });
        pair.connect(A);
        pair.run_for(ms(4_000));
        assert_eq!(flags(&pair, of_a)[..3], expected);
        pair.write(A, 1000);
        pair.run_for(ms(100));
        let is_marked = |packet: &Packet| packet.segment.ecn != Ecn::NotEct;
        assert!(!pair.log.iter().any(is_marked), "{mode:?}");
        assert_eq!(pair.b.received.len(), 1000);
    }
}

#[test]
fn server_gives_up_ecn_if_the_client_fell_back() {
    let mut pair = pair(EcnMode::On);
    let mut count = 0;
    pair.fate = Box::new(move |packet| {
        count += usize::from(packet.from == B);
        if packet.from == B && count == 1 { Fate::Drop } else { Fate::Deliver }
    });
    pair.connect(A);
    pair.run_for(ms(3_000));
    assert_eq!(flags(&pair, |packet| packet.from == B)[..2], [Flags::ECE, Flags::NONE]);
    for side in [A, B] {
        pair.write(side, 1000);
        pair.run_for(ms(100));
        assert!(!info(&mut pair, side).ecn.is_negotiated);
    }
    assert!(pair.log.iter().all(|packet| packet.segment.ecn == Ecn::NotEct));
}

//= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.3
//= type=test
//# After a TCP receiver sends an ACK packet with the ECN-Echo bit set,
//# that TCP receiver continues to set the ECN-Echo flag in all the ACK
//# packets it sends (whether they acknowledge CE data packets or non-CE
//# data packets) until it receives a CWR packet (a packet with the CWR
//# flag set).
#[test]
fn two_kinds_of_requests_reset_the_handshake() {
    let classic = Flags::ECE | Flags::CWR;
    for (first, second) in [(Flags::ACE, classic), (classic, Flags::ACE)] {
        for fast_open in [false, true] {
            let mut pair = pair(EcnMode::Accurate);
            pair.b.fast_open = fast_open;
            let syn = |flags, len| Segment {
                flags: Flags::SYN | flags,
                ..plain(SeqNum(1000), SeqNum(0), 1000, len)
            };
            pair.inject(B, syn(first, 10), &[0; 10]);
            pair.run_for(ms(1));
            pair.inject(B, syn(second, 0), &[]);
            pair.run_for(ms(1));
            let resets = pair.log.iter().filter(|packet| packet.has(Flags::RST)).count();
            assert!(resets > 0, "{first:?} {fast_open}");
        }
    }
}

#[test]
fn receiver_echoes_a_mark_until_cwr() {
    let mut pair = connected(EcnMode::On);
    pair.log.clear();
    pair.fate = mark_data(&[3]);
    pair.write(A, 100_000);
    pair.run_for(ms(500));
    pair.assert_received(B, 100_000);
    // The sender sets CWR once, on the first new data after it learnt of the mark.
    let cwrs = pair.log.iter().filter(|packet| packet.has(Flags::CWR)).collect::<Vec<_>>();
    let [cwr] = cwrs[..] else { panic!("{} packets with CWR", cwrs.len()) };
    assert!(cwr.is_data() && !cwr.retransmit);
    let echo = pair.log.iter().find(|packet| packet.from == B && packet.has(Flags::ECE)).unwrap();
    assert_eq!(cwr.sent, echo.sent + ms(5), "the echo has just arrived");
    // The receiver echoes the mark until it has received that segment, and not afterwards.
    let echoes = |packet: &&Packet| packet.from == B && packet.has(Flags::ECE);
    let last = pair.log.iter().rfind(echoes).unwrap();
    assert!(last.segment.ack.leq(cwr.segment.seq));
    let after = pair.log.iter().filter(|packet| packet.from == B);
    assert!(after.filter(|packet| packet.segment.ack.gt(cwr.segment.seq)).count() > 10);
    assert_eq!(
        (info(&mut pair, B).ecn.ce_segs_in, info(&mut pair, A).ecn.is_negotiated),
        (1, true)
    );
    assert!(info(&mut pair, A).ecn.delivered_ce > 0);
}

//= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.2
//= type=test
//# TCP should not react to congestion indications more than once every
//# window of data (or more loosely, more than once every round-trip
//# time).
#[test]
fn window_is_reduced_once_in_a_round_trip() {
    for (congestion, part) in [(CongestionKind::Cubic, 0.85), (CongestionKind::NewReno, 0.8)] {
        let config = Config { congestion, ..config(EcnMode::On) };
        let mut pair = Pair::connected_with(config, config);
        pair.write(A, 2_000_000);
        pair.run_for(ms(45));
        // All packets of one round trip of 10 ms are marked.
        let end = pair.now + ms(10);
        pair.fate = Box::new(move |packet| match packet.is_data() && packet.sent < end {
            true => Fate::Mark,
            false => Fate::Deliver,
        });
        let mut before = info(&mut pair, A);
        while info(&mut pair, A).ssthresh_bytes == before.ssthresh_bytes {
            before = info(&mut pair, A);
            assert!(pair.step() && pair.now < end + ms(20));
        }
        let after = info(&mut pair, A);
        let flight = f64::from(before.snd_nxt - after.snd_una);
        let cwnd = f64::from(before.cwnd_bytes);
        let reduced = if congestion == CongestionKind::Cubic { cwnd } else { flight };
        let expected = (reduced * part) as u32;
        assert!(after.ssthresh_bytes.abs_diff(expected) <= 1, "{congestion:?}: {expected}");
        assert_eq!(after.cwnd_bytes, after.ssthresh_bytes);
        pair.run_for(ms(60));
        assert_eq!(info(&mut pair, A).ssthresh_bytes, after.ssthresh_bytes);
        assert_eq!(pair.sent(A, |packet| packet.has(Flags::CWR)), 1);
    }
}

#[test]
fn a_loss_that_a_probe_repairs_is_confirmed_by_cwr() {
    let mut pair = connected(EcnMode::On);
    pair.log.clear();
    pair.fate = drop_data(A, &[9]);
    let before = info(&mut pair, A).cwnd_bytes;
    for _ in 0..2 {
        pair.write(A, 10 * 1448);
        pair.run_for(ms(400));
    }
    assert!(pair.a.timeouts.contains(&TimerKind::TailLossProbe));
    assert_eq!(pair.sent(A, |packet| packet.retransmit), 1);
    // The window had doubled.
    assert!(info(&mut pair, A).ssthresh_bytes < 2 * before);
    // The second flight reveals the loss of the first one. Data after the reduction has CWR once.
    pair.write(A, 1448);
    pair.run_for(ms(100));
    assert_eq!(pair.sent(A, |packet| packet.has(Flags::CWR) && packet.is_data()), 1);
}

//= https://www.rfc-editor.org/rfc/rfc8257#section-3.2
//= type=test
//# When sending an ACK, the ECE flag MUST be set if and only if DCTCP.CE is true.
#[test]
fn a_receiver_with_dctcp_echoes_a_mark_once() {
    let config = Config { congestion: CongestionKind::Dctcp, ..config(EcnMode::On) };
    let mut pair = Pair::connected_with(config, config);
    pair.log.clear();
    pair.fate = mark_data(&[3]);
    pair.write(A, 10 * 1448);
    pair.run_for(ms(100));
    let echoes = |packet: &Packet| packet.from == B && packet.has(Flags::ECE);
    let echo = pair.log.iter().find(|packet| echoes(packet)).expect("an echo");
    assert_eq!(echo.segment.ack, SeqNum(1001) + 3 * 1448);
    assert_eq!(pair.sent(B, echoes), 1);
}

//= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.5
//= type=test
//# ECN-capable TCP implementations MUST NOT set
//# either ECT codepoint (ECT(0) or ECT(1)) in the IP header for
//# retransmitted data packets
#[test]
fn retransmissions_have_neither_ect_nor_cwr() {
    let mut pair = connected(EcnMode::On);
    pair.log.clear();
    pair.fate = drop_data(A, &[4, 9]);
    pair.write(A, 200_000);
    pair.run_for(ms(2_000));
    pair.assert_received(B, 200_000);
    let again = pair.log.iter().filter(|packet| packet.retransmit).collect::<Vec<_>>();
    assert!(!again.is_empty());
    assert!(
        again.iter().all(|packet| packet.segment.ecn == Ecn::NotEct && !packet.has(Flags::CWR))
    );
    // The reduction after the loss is confirmed on new data.
    let cwrs = pair.log.iter().filter(|packet| packet.has(Flags::CWR));
    assert!(cwrs.inspect(|packet| assert_eq!(packet.segment.ecn, Ecn::Ect0)).count() > 0);
}

//= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.6
//= type=test
//# the TCP data sender MUST NOT set either an ECT codepoint
//# or the CWR bit on window probe packets.
#[test]
fn window_probes_have_no_ect() {
    let mut pair = connected(EcnMode::On);
    (pair.b.reads, pair.b.recv_capacity) = (false, 20_000);
    pair.write(A, 100_000);
    pair.run_for(ms(5_000));
    let first = pair.log.iter().position(|packet| packet.from == B && packet.segment.window == 0);
    let probes = pair.log[first.expect("the window closes")..].iter().filter(|packet| of_a(packet));
    let probes = probes.filter(|packet| packet.sent > Instant(1_000_000_000)).collect::<Vec<_>>();
    assert!(!probes.is_empty());
    assert!(probes.iter().all(|packet| packet.segment.ecn == Ecn::NotEct));
}

//= https://www.rfc-editor.org/rfc/rfc3168#section-6.1.5
//= type=test
//# the TCP data receiver SHOULD
//# ignore the ECN field on arriving data packets that are outside of the
//# receiver's current window.
#[test]
fn marks_outside_the_window_are_ignored() {
    let mut pair = connected(EcnMode::On);
    pair.write(A, 1000);
    pair.run_for(ms(100));
    let segment = pair.segment_from(A, Flags::ACK);
    for seq in [segment.seq - 500, segment.seq + 10_000_000] {
        let outside = Segment { seq, payload_len: 100, ecn: Ecn::Ce, ..segment };
        pair.inject(B, outside, &[0; 100]);
        pair.run_for(ms(100));
    }
    assert_eq!(pair.sent(B, |packet| packet.has(Flags::ECE) && !packet.has(Flags::SYN)), 0);
    assert_eq!(info(&mut pair, B).ecn.ce_segs_in, 0);
    let inside = Segment { payload_len: 100, ecn: Ecn::Ce, ..segment };
    pair.inject(B, inside, &[0; 100]);
    pair.run_for(ms(100));
    assert!(pair.sent(B, |packet| packet.has(Flags::ECE) && !packet.has(Flags::SYN)) > 0);
}

#[test]
fn a_long_segment_carries_cwr_once() {
    let mut pair = Pair::new(config(EcnMode::On), config(EcnMode::On));
    pair.a.tso = 65_000;
    pair.connect(A);
    pair.run_for(ms(100));
    pair.fate = mark_data(&[10]);
    pair.write(A, 2_000_000);
    pair.run_for(ms(1_000));
    pair.assert_received(B, 2_000_000);
    assert_eq!(pair.sent(A, |packet| packet.has(Flags::CWR) && packet.is_data()), 1);
}

#[test]
fn accurate_feedback_counts_each_mark() {
    let mut pair = connected(EcnMode::Accurate);
    let marked = Rc::new(Cell::new(0));
    let count = marked.clone();
    let mut number = 0;
    pair.fate = Box::new(move |packet| {
        number += usize::from(of_a(packet) && packet.is_data());
        // Bursts of marks that are longer than the counter in the header.
        let marks = of_a(packet) && packet.is_data() && number % 40 < 17;
        count.set(count.get() + u32::from(marks));
        if marks { Fate::Mark } else { Fate::Deliver }
    });
    pair.write(A, 400_000);
    pair.run_for(ms(4_000));
    pair.assert_received(B, 400_000);
    assert!(marked.get() > 100);
    assert_eq!(info(&mut pair, B).ecn.ce_segs_in, marked.get());
    assert_eq!(info(&mut pair, A).ecn.delivered_ce, marked.get());
    assert!(info(&mut pair, A).ssthresh_bytes < 1 << 30);
}

#[test]
fn accurate_client_reports_the_syn_ack_before_its_data() {
    let mut pair = pair(EcnMode::Accurate);
    pair.connect(A);
    pair.write(A, 1000);
    pair.run_for(ms(100));
    let sent = pair.log.iter().filter(|packet| of_a(packet)).collect::<Vec<_>>();
    assert!(!sent[1].is_data() && sent[2].is_data());
    // The SYN-ACK had no ECT; then the counter, which starts at 5.
    assert_eq!([sent[1].segment.flags.ace(), sent[2].segment.flags.ace()], [0b010, 5]);
    assert_eq!(info(&mut pair, B).ecn.delivered_ce, 0);
}

#[test]
fn simultaneous_opens_negotiate_ecn() {
    let mut pair = pair(EcnMode::On);
    pair.connect(A);
    pair.connect(B);
    pair.run_for(ms(3_000));
    for side in [A, B] {
        assert_eq!(pair.host(side).state(), Some(State::Established));
        pair.write(side, 1000);
        pair.run_for(ms(100));
        assert!(pair.sent(side, |packet| packet.segment.ecn == Ecn::Ect0) > 0);
    }
}

//= https://www.rfc-editor.org/rfc/rfc8257#section-3.2
//= type=test
//# If the CE codepoint is set and DCTCP.CE is false, set DCTCP.CE to
//# true and send an immediate ACK.
#[test]
fn dctcp_acknowledges_each_change_of_marks() {
    let config = Config { congestion: CongestionKind::Dctcp, ..config(EcnMode::On) };
    let mut pair = Pair::connected_with(config, config);
    pair.b.connection().set_quickack(false);
    pair.fate = mark_data(&[2, 3]);
    pair.write(A, 4 * 1448);
    pair.run_for(ms(9));
    let first = pair.log[0].segment.seq;
    let acks: Vec<_> = pair.log.iter().filter(|packet| packet.from == B).collect();
    let acks: Vec<_> =
        acks.iter().map(|it| ((it.segment.ack - first) / 1448, it.has(Flags::ECE))).collect();
    assert_eq!(acks, [(1, false), (2, true), (3, true), (4, false)]);
    pair.run_for(ms(20));
    assert_eq!(info(&mut pair, A).ecn.delivered_ce, 2);
    // The classic rule repeats ECE until CWR arrives, and marks are counted per ACK.
    pair.fate = Box::new(|_| Fate::Deliver);
    pair.write(B, 1000);
    pair.run_for(ms(20));
    assert!(!pair.log.last().expect("packets").has(Flags::ECE));
}
