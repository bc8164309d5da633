//! Packets with tampered bytes, at any shard.

use super::hosts::{HandshakeEnd, Hosts, for_each_link};
use crate::{BindOptions, Family, SocketKind};

/// Changes, removes or appends bytes of a packet.
fn tamper(w: &mut Hosts, mut packet: Vec<u8>) -> Vec<u8> {
    for _ in 0..1 + w.dice.below(4) {
        let at = w.dice.below(packet.len() as u64) as usize;
        packet[at] = w.dice.next_u64() as u8;
    }
    match w.dice.below(4) {
        0 => packet.truncate(1 + w.dice.below(packet.len() as u64) as usize),
        1 => packet.extend([0xff; 7]),
        _ => {}
    }
    packet
}

/// No packet causes a panic or endless work, and the hosts work afterwards.
#[test]
fn tampered_packets_harm_nobody() {
    for_each_link(|w| {
        let listener = w.listen(1, "[::]:80", 10);
        let server = w.bound(1, SocketKind::Datagram, "0.0.0.0:53", BindOptions::default());
        let client = w.open(0, SocketKind::Datagram, Family::V4);
        let ping = w.open(0, SocketKind::Echo, Family::V4);
        let mut ends: Vec<HandshakeEnd> = Vec::new();
        for round in 0..20 {
            let remote = ["10.0.0.2:80", "[fd00::2]:80"][round % 2];
            let end = w.connect(0, remote);
            w.write(&end, &[1; 5000]);
            w.send_to(client, Some("10.0.0.2:53"), &[2; 3000]).expect("sent");
            w.send_to(client, Some("10.0.0.2:54"), b"nobody").expect("sent");
            w.send_to(ping, Some("10.0.0.2:0"), &[8, 0, 0, 0, 0, 0, 0, 1]).expect("sent");
            w.run(20);
            for packet in w.take_seen() {
                let side = w.dice.below(2) as usize;
                let packet = tamper(w, packet);
                w.inject(side, &packet);
            }
            w.run(5);
            w.take_seen();
            ends.push(end);
            ends.extend(w.accept(listener));
        }
        ends.iter().for_each(|end| w.node(end.sock).abort(end.sock.id));
        while let Some(end) = w.accept(listener) {
            w.node(end.sock).abort(end.sock.id);
        }
        w.run(200_000);
        w.node(server).host.datagrams.clear();
        w.send_to(client, Some("10.0.0.2:53"), b"still there?").expect("sent");
        let last = w.connect(0, "10.0.0.2:80");
        w.wait(10_000, "accept", |w| w.queued(listener) > 0);
        let accepted = w.accept(listener).expect("queued");
        assert_eq!(w.datagrams(server).len(), 1);
        for sock in [listener, server, client, ping, last.sock, accepted.sock] {
            w.node(sock).abort(sock.id);
        }
        w.assert_ends_empty();
    });
}
