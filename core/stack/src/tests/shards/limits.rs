//! Tests that reach each limit between shards.

use towpath_wire::{IpProtocol, ipv4};

use super::frames::{STRANGER, answer, gratuitous, receivers};
use super::hosts::{COUNTS, Hosts, mac};
use crate::limits::{CHANGES_UNSEEN_MAX, MAIL_MAX, UPDATES_WAITING_MAX};
use crate::net::limits::{
    GROUP_REPORTS_MAX, ICMP_BURST, ICMP_BURST_JITTER, NEIGHBOR_REPORTS_MAX, NEIGHBORS_ASKED_MAX,
    NEXT_HOPS_MAX, PATH_MTUS_TOLD_PER_SECOND, TASKS_A_TURN,
};
use crate::{BindOptions, Budget, DropReason, Family, IfaceId, SocketKind, StackConfig};

/// Solicits the absent hosts of a /16 while the first shard runs no turn. Waiting requests are
/// bounded, and present neighbours are found when the first shard continues.
#[test]
fn a_sender_to_hosts_that_are_not_there_fills_nothing() {
    let w = &mut Hosts::ethernet(4, 1, StackConfig::default(), false);
    w.run(3000);
    let wide = "10.1.0.1/16".parse().expect("a prefix");
    let now = w.now();
    assert!(w.sides[0][0].stack.net.add_address(now, IfaceId(1), wide));
    let scan = w.open_in(0, 3, SocketKind::Datagram, Family::V4);
    let sent = 20_000u32;
    for n in 0..sent {
        let to = format!("10.1.{}.{}:9", 1 + n / 200, 1 + n % 200);
        w.send_to(scan, Some(&to), b"?").expect("sent");
        if n % 100 == 0 {
            turn(w, 0, 3);
        }
    }
    turn(w, 0, 3);
    let untold = u64::from(sent) - u64::from(MAIL_MAX) - 1 - NEIGHBOR_REPORTS_MAX as u64;
    let net = &w.sides[0][3].stack.net;
    assert_eq!(net.counters().data.neighbor_notices_full, untold);
    assert!(net.waiting() <= NEXT_HOPS_MAX);
    assert_eq!(w.drops(0, DropReason::ShardFull), 0);
    // The first shard handles the requests, and then has room for those of all shards.
    w.settle();
    let server = w.bound(1, SocketKind::Datagram, "10.0.0.2:53", BindOptions::default());
    for shard in 0..4 {
        let client = w.open_in(0, shard, SocketKind::Datagram, Family::V4);
        w.send_to(client, Some("10.0.0.2:53"), b"x").expect("sent");
        w.run(20);
        assert_eq!(w.datagrams(server).len(), 1, "shard {shard}");
    }
    assert!(w.sides[0][0].stack.net.neighbors().count() <= NEIGHBORS_ASKED_MAX + 2);
    w.run(10_000);
    assert!(w.sides[0].iter().all(|node| node.stack.net.waiting() == 0));
}

/// Frames that any host can forge change a neighbour's MAC address, while a shard that uses the
/// neighbour runs no turn. The shard loses no packets, and no update of another neighbour. The
/// first shard sleeps meanwhile.
#[test]
fn news_of_one_neighbour_displace_nothing() {
    let w = &mut Hosts::ethernet(2, 1, StackConfig::default(), false);
    w.run(3000);
    let client = w.open_in(0, 1, SocketKind::Datagram, Family::V4);
    for to in ["10.0.0.2:53", "10.0.0.3:53"] {
        w.send_to(client, Some(to), b"x").expect("sent");
    }
    w.run(1);
    w.inject(0, &answer("10.0.0.3", STRANGER));
    w.run(20);
    let mut receivers_before = receivers(w);
    receivers_before.sort_unstable();
    assert_eq!(receivers_before, [mac(1), STRANGER]);
    w.run(1000);
    let local = w.open_in(0, 1, SocketKind::Datagram, Family::V4);
    w.bind(local, "127.0.0.1:53", BindOptions::default()).expect("bind");
    let beside = w.open_in(0, 0, SocketKind::Datagram, Family::V4);
    let moves = MAIL_MAX as usize + UPDATES_WAITING_MAX + 10;
    for n in 0..moves {
        let moved = if n % 2 == 0 { mac(1) } else { STRANGER };
        w.inject_at(0, 0, &gratuitous("10.0.0.3", moved));
        if n == MAIL_MAX as usize + 10 {
            w.inject_at(0, 0, &gratuitous("10.0.0.2", STRANGER));
        }
        turn(w, 0, 0);
    }
    let first = &w.sides[0][0];
    assert_eq!(first.stack.counters().shard_news_lost, 0);
    assert!(first.stack.next_timeout().is_none_or(|next| next > first.now));
    for _ in 0..MAIL_MAX / 2 {
        w.send_to(beside, Some("127.0.0.1:53"), b"x").expect("sent");
    }
    w.run(10);
    assert_eq!(w.datagrams(local).len(), MAIL_MAX as usize / 2);
    assert_eq!(w.drops(0, DropReason::ShardFull), 0);
    w.take_seen();
    w.send_to(client, Some("10.0.0.2:53"), b"x").expect("sent");
    w.run(20);
    assert_eq!(receivers(w), [STRANGER]);
}

/// A program in another shard joins and leaves many groups while the first shard runs no turn, and
/// stays in one group. Its reports, and the first shard's work for them per turn, are bounded.
/// Routers learn of the last group.
#[test]
fn a_program_that_joins_and_leaves_does_not_keep_the_first_shard() {
    let w = &mut Hosts::ethernet(2, 1, StackConfig::default(), false);
    w.run(10_000);
    let sock = w.open_in(0, 1, SocketKind::Datagram, Family::V4);
    let now = w.now();
    let pairs = 4 * GROUP_REPORTS_MAX as u32;
    for n in 0..=pairs {
        let group = std::net::IpAddr::from((0xef01_0000 + n).to_be_bytes());
        let stack = &mut w.node(sock).stack;
        stack.join_group(now, sock.id, group, Some(IfaceId(1)), None).expect("joined");
        if n < pairs {
            stack.leave_group(now, sock.id, group, Some(IfaceId(1)), None).expect("left");
        }
    }
    turn(w, 0, 1);
    w.take_seen();
    turn(w, 0, 0);
    assert!((1..=TASKS_A_TURN).contains(&w.take_seen().len()));
    let control = w.sides[0][0].stack.net.counters().control;
    assert!(control.group_reports_full > u64::from(pairs) - GROUP_REPORTS_MAX as u64);
    w.run(3000);
    let last = (0xef01_0000 + pairs).to_be_bytes();
    let reports = w.take_seen();
    assert!(reports.len() <= 3 * GROUP_REPORTS_MAX);
    assert!(reports.iter().any(|frame| frame.windows(4).any(|bytes| bytes == last)));
    assert_eq!(w.drops(0, DropReason::OutputFull), 0);
}

/// A shard accepts a path MTU report, but has no room to pass it on, until the router repeats the
/// report.
#[test]
fn a_path_mtu_that_was_not_told_is_told_when_it_is_reported_again() {
    let way = |n: u32| std::net::IpAddr::from((0x0a01_0100 + n).to_be_bytes());
    for reporter in 0..2 {
        let w = &mut Hosts::ethernet(2, 1, StackConfig::default(), false);
        w.run(3000);
        let wide = "10.1.0.1/16".parse().expect("a prefix");
        let now = w.now();
        assert!(w.sides[0][0].stack.net.add_address(now, IfaceId(1), wide));
        w.settle();
        let report = |w: &mut Hosts, n: u32| {
            let (now, net) = (w.now(), &mut w.sides[0][reporter].stack.net);
            net.set_path_mtu(now, ([10, 1, 0, 1].into(), way(n)), None, 1000);
        };
        let known = |w: &Hosts| {
            let net = &w.sides[0][1 - reporter].stack.net;
            (0..1000).filter(|n| net.path_mtu(w.now(), way(*n)) == 1000).count()
        };
        (0..1000).for_each(|n| report(w, n));
        w.settle();
        let part = PATH_MTUS_TOLD_PER_SECOND as usize / 2;
        assert_eq!(known(w), part, "of shard {reporter}");
        assert_eq!(w.sides[0][0].stack.counters().shard_news_lost, 0);
        for _ in 0..1000_usize.div_ceil(part) {
            w.run(1000);
            (0..1000).for_each(|n| report(w, n));
            w.settle();
        }
        assert_eq!(known(w), 1000, "of shard {reporter}");
    }
    // The queue of reports to control had no room.
    let w = &mut Hosts::ethernet(2, 1, StackConfig::default(), false);
    w.run(3000);
    let wide = "10.1.0.1/16".parse().expect("a prefix");
    let now = w.now();
    assert!(w.sides[0][0].stack.net.add_address(now, IfaceId(1), wide));
    let scan = w.open_in(0, 1, SocketKind::Datagram, Family::V4);
    for n in 0..NEIGHBOR_REPORTS_MAX + 10 {
        let to = format!("10.1.{}.{}:9", 1 + n / 200, 1 + n % 200);
        w.send_to(scan, Some(&to), b"?").expect("sent");
    }
    for expected in [1500, 1000] {
        let now = w.now();
        w.sides[0][1].stack.net.set_path_mtu(now, ([10, 1, 0, 1].into(), way(0)), None, 1000);
        w.settle();
        let net = &w.sides[0][0].stack.net;
        assert_eq!(net.path_mtu(w.now(), way(0)), expected);
    }
}

/// Many hosts send to ports without a socket. All shards together send as many errors as a single
/// one would.
#[test]
fn errors_are_limited_for_the_host() {
    for count in COUNTS {
        let w = &mut Hosts::new(count, 1, StackConfig::default());
        w.settle();
        w.take_seen();
        for n in 0..250u8 {
            let mut packet = vec![0; ipv4::HEADER_LEN + 8];
            let header = ipv4::Header {
                tos: 0,
                total_len: packet.len() as u16,
                ident: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: 64,
                protocol: IpProtocol::UDP,
                src: [10, 0, 0, n.max(2)].into(),
                dst: [10, 0, 0, 1].into(),
                options: ipv4::Options::EMPTY,
            };
            header.emit(&mut packet);
            packet[20..26].copy_from_slice(&[9, n, 9, 9, 0, 8]);
            w.inject(0, &packet);
        }
        w.settle();
        let errors = w.take_seen().iter().filter(|packet| packet[9] == 1).count() as u64;
        let least = (ICMP_BURST - ICMP_BURST_JITTER) / 2;
        assert!((least..=ICMP_BURST).contains(&errors), "{errors} of {count} shards");
    }
}

/// Any shard may reassemble fragments of a datagram for the first shard. If the first shard runs no
/// turn, the datagram is dropped and counted.
#[test]
fn packets_for_control_are_bounded() {
    let w = &mut Hosts::new(2, 1, StackConfig::default());
    let igmp = |ident: u16, offset: u16, more: bool| {
        let mut packet = vec![0; ipv4::HEADER_LEN + 8];
        let header = ipv4::Header {
            tos: 0,
            total_len: packet.len() as u16,
            ident,
            dont_fragment: false,
            more_fragments: more,
            fragment_offset: offset,
            ttl: 1,
            protocol: IpProtocol::IGMP,
            src: [10, 0, 0, 2].into(),
            dst: [10, 0, 0, 1].into(),
            options: ipv4::Options::EMPTY,
        };
        header.emit(&mut packet);
        packet
    };
    let mut woken = 0;
    for ident in 0..2 * MAIL_MAX as u16 {
        for (offset, more) in [(0, true), (8, false)] {
            w.inject_at(0, 1, &igmp(ident, offset, more));
        }
        woken |= turn(w, 0, 1);
    }
    // The ring to the first shard is full, whichever shard reassembles the packets.
    assert_eq!(woken, 1);
    assert!(w.drops(0, DropReason::ShardFull) >= u64::from(MAIL_MAX) - 2);
    w.settle();
    assert!(w.sides[0].iter().all(|node| node.stack.net.waiting() == 0));
}

/// Turns one shard. Returns the shards for which it has mail.
fn turn(w: &mut Hosts, side: usize, shard: usize) -> u16 {
    let node = &mut w.sides[side][shard];
    let (now, budget) = (node.now, Budget::default());
    node.stack.turn(now, &mut node.host, &mut node.ports, &mut node.pool, budget).mail
}

#[test]
fn a_shard_that_does_not_keep_up_loses_packets_and_they_are_counted() {
    let w = &mut Hosts::new(2, 1, StackConfig::default());
    let server = w.open_in(0, 1, SocketKind::Datagram, Family::V4);
    w.bind(server, "127.0.0.1:53", BindOptions::default()).expect("bind");
    let client = w.open_in(0, 0, SocketKind::Datagram, Family::V4);
    let mut woken = 0;
    for _ in 0..MAIL_MAX + 10 {
        w.send_to(client, Some("127.0.0.1:53"), b"x").expect("sent");
        woken |= turn(w, 0, 0);
    }
    assert_eq!(woken, 1 << 1, "it is to be woken");
    assert_eq!(w.drops(0, DropReason::ShardFull), 10);
    w.settle();
    assert_eq!(w.datagrams(server).len(), MAIL_MAX as usize);
    // The ring has room again.
    w.send_to(client, Some("127.0.0.1:53"), b"x").expect("sent");
    w.settle();
    assert_eq!(w.datagrams(server).len(), 1);
}

/// A shard without packets sleeps while listeners in other shards open and close.
#[test]
fn a_shard_that_sleeps_is_woken_when_it_has_much_to_learn() {
    let w = &mut Hosts::new(2, 1, StackConfig::default());
    w.settle();
    let listener = w.open_in(0, 0, SocketKind::Stream, Family::V4);
    w.bind(listener, "127.0.0.1:80", BindOptions::default()).expect("bind");
    w.node(listener).stack.listen(listener.id, 1).expect("listen");
    let mut changes = 1;
    while turn(w, 0, 0) == 0 {
        w.node(listener).stack.set_note(listener.id, [changes; 10]);
        changes += 1;
    }
    assert_eq!(changes, CHANGES_UNSEEN_MAX);
    turn(w, 0, 1);
    assert_eq!(turn(w, 0, 0), 0, "it has seen them");
    // Wake the shard, because it may have connections of the closed listener, which must be reset.
    w.close(listener);
    assert_eq!(turn(w, 0, 0), 1 << 1);
    assert!(w.sides[0][1].stack.has_mail());
    turn(w, 0, 1);
    assert_eq!(turn(w, 0, 0), 0, "it has seen that");
    assert_eq!(w.sides[0][1].stack.usage().binds, 0);
}
