//! Tests that random and forged packets, and too many settings, do no harm.

use proptest::prelude::*;

use super::world::{Conn, World, WorldConfig};
use crate::{DropReason, OptionError, SocketOption};
use towpath_pool::LinkType;

/// Returns both ends of an established connection that has transferred some bytes, and its packets.
fn established(link: LinkType) -> (World, Conn, Conn, Vec<Vec<u8>>) {
    let mut w = World::new(WorldConfig { link, ..WorldConfig::default() });
    let (listener, _) = w.b.listen("[::]:80", 8);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    w.keep_seen();
    w.a.write(&client, b"a request of some length");
    w.run(50);
    w.b.read(&server);
    w.run(50);
    let seen = w.take_seen();
    assert!(!seen.is_empty());
    (w, client, server, seen)
}

fn still_works(w: &mut World, client: &Conn, server: &Conn) {
    w.a.write(client, b"still there?");
    let mut got = Vec::new();
    w.wait(60_000, "request", |w| {
        got.extend(w.b.read(server));
        got.len() >= 12
    });
    assert_eq!(got, b"still there?");
    w.b.write(server, b"yes");
    let mut got = Vec::new();
    w.wait(60_000, "answer", |w| {
        got.extend(w.a.read(client));
        got.len() >= 3
    });
    assert_eq!(got, b"yes");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_frames(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..40),
        ethernet: bool
    ) {
        let link = if ethernet { LinkType::Ethernet } else { LinkType::Ip };
        let (mut w, client, server, _) = established(link);
        for frame in frames {
            w.inject(&frame);
        }
        w.run(10);
        still_works(&mut w, &client, &server);
    }

    /// Real packets with some changed bytes pass more checks than random bytes. Checksums are
    /// corrected so that later checks are reached. Ports and sequence numbers differ from the
    /// connection's, because off-path attackers do not know them.
    #[test]
    fn mangled_packets(
        picks in prop::collection::vec(
            (
                any::<prop::sample::Index>(),
                prop::collection::vec((0usize..120, any::<u8>()), 1..6),
                any::<u16>()
            ),
            1..30
        ),
        ethernet: bool,
    ) {
        let link = if ethernet { LinkType::Ethernet } else { LinkType::Ip };
        let (mut w, client, server, seen) = established(link);
        let at = if ethernet { 14 } else { 0 };
        for (pick, changes, port) in picks {
            let mut bytes = pick.get(&seen).clone();
            for (place, value) in changes {
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = value;
                }
            }
            // Avoid the connection's own ports, because only an on-path attacker knows them.
            if let Some(ports) = bytes.get_mut(at + 20..at + 22) {
                ports.copy_from_slice(&(port | 1).min(1023).to_be_bytes());
            }
            let at = at.min(bytes.len());
            fix_checksums(&mut bytes[at..]);
            w.inject(&bytes);
        }
        w.run(10);
        still_works(&mut w, &client, &server);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The peer of an established connection sends arbitrary segments, which can harm only this
    /// connection. Other connections continue, and no state is left at the end.
    #[test]
    fn a_hostile_peer_harms_itself(
        picks in prop::collection::vec(
            (
                any::<prop::sample::Index>(),
                prop::collection::vec((24usize..120, any::<u8>()), 1..8),
                any::<bool>()
            ),
            1..40
        ),
    ) {
        let (mut w, hostile, theirs, _) = established(LinkType::Ip);
        let (listener, _) = w.b.listen("[::]:81", 8);
        let (client, server) = w.connected(listener, "10.0.0.2:81");
        w.take_seen();
        w.a.write(&hostile, &[5; 3000]);
        w.b.write(&theirs, &[6; 3000]);
        w.run(5);
        let from_peer = |packet: &Vec<u8>| packet[12..16] == [10, 0, 0, 1];
        let seen: Vec<_> = w.take_seen().into_iter().filter(from_peer).collect();
        for (pick, changes, lets_time_pass) in picks {
            let mut bytes = pick.get(&seen).clone();
            // Change any bytes after the ports: sequence numbers, flags, window, options, payload.
            for (place, value) in changes {
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = value;
                }
            }
            fix_checksums(&mut bytes);
            w.inject(&bytes);
            if lets_time_pass {
                w.run(5);
            }
        }
        w.run(10);
        still_works(&mut w, &client, &server);
        for (node, ids) in
            [(&mut w.a, [hostile.id, client.id]), (&mut w.b, [theirs.id, server.id])]
        {
            ids.into_iter().for_each(|id| node.abort(id));
        }
        // A SYN of the peer leaves a handshake, which ends when its last SYN-ACK times out.
        w.run(200_000);
        let usage = w.b.stack.usage();
        prop_assert_eq!((usage.flows, usage.timers, usage.orphans), (0, 0, 0));
    }
}

/// A send buffer that provides fewer bytes than it announced is an internal error. Debug builds
/// panic, and release builds send no segment with wrong bytes.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "0 bytes are there"))]
fn no_segment_goes_without_its_bytes() {
    for len in [100, 5000] {
        let (mut w, client, server, _) = established(LinkType::Ip);
        client.send.withhold();
        w.a.write(&client, &vec![1; len]);
        w.run(1000);
        assert!(w.b.read(&server).is_empty());
        assert!(w.a.drops(DropReason::TcpPayloadMissing) > 0);
        assert!(w.take_seen().iter().all(|packet| packet.len() < 100), "headers alone went out");
    }
}

/// The memory that a receive buffer announced may be taken by another socket before the segment
/// arrives. The payload then counts as lost, and its retransmission is received.
#[test]
fn a_segment_without_memory_is_retransmitted() {
    let (mut w, client, server, _) = established(LinkType::Ip);
    server.recv.refuse(1);
    w.a.write(&client, b"hello");
    w.run(10);
    assert!(w.b.read(&server).is_empty());
    assert_eq!(w.b.drops(DropReason::TcpNoRoom), 1);
    w.run(1000);
    assert_eq!(w.b.read(&server), b"hello");
    still_works(&mut w, &client, &server);
}

/// Corrects the checksums of an IPv4 packet with a TCP segment; ignores other packets.
fn fix_checksums(packet: &mut [u8]) {
    use towpath_wire::{IpProtocol, checksum};
    if packet.len() < 40 || packet[0] != 0x45 {
        return;
    }
    packet[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&packet[..20], 0));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let address =
        |n: usize| std::net::Ipv4Addr::new(packet[n], packet[n + 1], packet[n + 2], packet[n + 3]);
    let len = u16::from_be_bytes([packet[2], packet[3]]).clamp(40, packet.len() as u16) - 20;
    let pseudo = checksum::pseudo_v4(address(12), address(16), IpProtocol::TCP, len);
    packet[36..38].fill(0);
    let sum = checksum::finish(checksum::sum(&packet[20..20 + usize::from(len)], pseudo));
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
}

/// Changes of a connection's segment, and the expected drop reasons.
#[test]
fn each_reason_for_a_dropped_segment_is_counted() {
    use towpath_wire::tcp::{self, Flags, Timestamps};
    type Change = fn(&mut tcp::Header);
    let cases: [(Change, DropReason); 7] = [
        (|header| header.seq += 1 << 30, DropReason::TcpOutOfWindow),
        (|header| header.ack += 1 << 30, DropReason::TcpBadAck),
        (|header| header.flags = Flags::PSH, DropReason::TcpNoAck),
        (|header| header.flags |= Flags::SYN, DropReason::TcpSynInWindow),
        (
            |header| {
                header.seq += 1;
                header.flags = Flags::RST;
            },
            DropReason::TcpResetInWindow,
        ),
        (|header| header.options.timestamps = None, DropReason::TcpTimestampMissing),
        (
            |header| header.options.timestamps = Some(Timestamps { value: 0, echo: 0 }),
            DropReason::TcpPaws,
        ),
    ];
    for (change, reason) in cases {
        let (mut w, client, server, _) = established(LinkType::Ip);
        w.a.write(&client, b"ten bytes!");
        w.a.turn();
        let mut bytes = w.take_seen().swap_remove(0);
        w.run(50);
        w.b.read(&server);
        // Use the next sequence number, which was not sent yet.
        let mut header = tcp::Header::parse(&bytes[20..]).unwrap();
        header.seq += 10;
        change(&mut header);
        let payload = bytes.split_off(20 + usize::from(header.header_len));
        bytes.resize(20 + header.emitted_len(), 0);
        header.emit(&mut bytes[20..]);
        bytes.extend(payload);
        let len = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        fix_checksums(&mut bytes);
        let before = w.b.stack.net.counters().data.drops.clone();
        w.inject(&bytes);
        w.b.turn();
        let drops = &w.b.stack.net.counters().data.drops;
        assert_eq!(drops.of(reason), before.of(reason) + 1, "{reason:?}");
        assert_eq!(drops.total(), before.total() + 1, "{reason:?}");
        still_works(&mut w, &client, &server);
    }
}

/// If the payload of a segment is dropped and only its ACK is used, the payload counts as lost.
#[test]
fn dropped_payload_is_counted() {
    let (mut w, client, server, _) = established(LinkType::Ip);
    // Send more out-of-order ranges than the receiver stores.
    w.a.write(&client, &[1; 60_000]);
    w.set_loss(1000);
    w.a.turn();
    w.set_loss(0);
    let seen = w.take_seen();
    let long = seen.iter().find(|packet| packet.len() == 1500).expect("a full segment");
    for n in 1..400u32 {
        let mut bytes = long.clone();
        let seq = u32::from_be_bytes([long[24], long[25], long[26], long[27]]) + 20 * n;
        bytes[24..28].copy_from_slice(&seq.to_be_bytes());
        let header_len = usize::from(bytes[32] >> 4) * 4;
        bytes.truncate(20 + header_len + 10);
        let len = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        fix_checksums(&mut bytes);
        w.inject(&bytes);
        w.b.turn();
    }
    assert!(w.b.drops(DropReason::TcpTooManyRanges) > 0);
    let mut got = 0;
    w.wait(60_000, "all bytes", |w| {
        got += w.b.read(&server).len();
        got == 60_000
    });
}

#[test]
fn record_ends_beyond_the_limit_are_counted() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, _) = w.connected(listener, "10.0.0.2:80");
    for end in 1..=5000 {
        let set = w.a.stack.set_option(client.id, SocketOption::RecordEnd(end));
        let expected = if end <= 4096 { Ok(()) } else { Err(OptionError::TooMany) };
        assert_eq!(set, expected, "{end}");
    }
    assert_eq!(w.a.stack.counters().tcp_record_ends_ignored, 5000 - 4096);
}
