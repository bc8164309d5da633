//! Tests that the work per packet does not grow with the number of sockets.

use std::net::SocketAddr;

use towpath_ring::Payload;
use towpath_wire::tcp;

use super::world::{Recv, Send, World, WorldConfig};
use crate::tables::flow::{Flow, FlowRef};
use crate::{
    BindOptions, ConnectError, DatagramOut, Family, IfaceId, SocketEvent, SocketId, SocketKind,
    SocketOption, StackConfig,
};

/// Returns the number of entries that b has compared and moved so far, in tables and the timer
/// wheel.
fn work(w: &mut World) -> u64 {
    let stack = &w.b.stack;
    stack.flows.compared.get()
        + stack.flows.moved.get()
        + stack.datagrams.peers.table.compared.get()
        + stack.datagrams.peers.table.moved.get()
        + stack.ports.tcp.compared()
        + stack.ports.udp.compared()
        + stack.wheel.operations
}

/// Creates idle connections at b, to addresses without hosts, with buffers of minimum size.
fn crowd(w: &mut World, count: u32) -> Vec<SocketId> {
    let remote = |n: u32| {
        SocketAddr::from(((0x0b00_0000 + n / 50_000).to_be_bytes(), (n % 50_000) as u16 + 1))
    };
    let local: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let now = w.b.now;
    // All connections share a send buffer, which idle connections never use.
    let send = Send::new(4096);
    (0..count)
        .map(|n| {
            let recv = Recv::new(1, 1);
            w.b.stack.connect_from(now, local, remote(n), 7, recv, send.clone()).expect("room")
        })
        .collect()
}

fn request_work(count: u32) -> (u64, u64) {
    let mut w = World::new(WorldConfig::default());
    w.set_loss(1000);
    crowd(&mut w, count);
    // The SYNs are lost, so all connections wait for their retransmission.
    w.settle();
    w.set_loss(0);
    let (listener, _) = w.b.listen("0.0.0.0:8080", 128);
    let received = |w: &World| w.b.stack.counters().tcp_received;
    // The work includes the handshake.
    let (before, packets) = (work(&mut w), received(&w));
    let (client, server) = w.connected(listener, "10.0.0.2:8080");
    for _ in 0..100 {
        w.a.write(&client, b"request");
        w.wait(500, "request", |w| w.b.host.has(server.user, SocketEvent::Readable));
        w.b.host.take_events(server.user);
        w.b.read(&server);
        w.b.write(&server, b"answer");
        w.wait(500, "answer", |w| !w.a.read(&client).is_empty());
    }
    // The other connections' timers do not fire within the second that this takes.
    assert_eq!(w.b.stack.sockets.len() as u32, count + 2);
    (work(&mut w) - before, received(&w) - packets)
}

#[test]
fn tcp_work_does_not_grow() {
    let few = request_work(10);
    let more = request_work(10_000);
    let many = request_work(200_000);
    assert_eq!(few.1, many.1, "the same packets");
    // Hashes of 32 bits rarely collide: one additional comparison in a million.
    assert!(more.0 <= few.0 + 5 && many.0 <= few.0 + 5, "{few:?} {more:?} {many:?}");
}

/// The work of a turn is limited, however many timers are due.
#[test]
fn no_turn_does_much_more_than_others() {
    let worst = |count: u32| {
        let mut w = World::new(WorldConfig::default());
        w.set_loss(1000);
        crowd(&mut w, count);
        w.settle();
        let end = w.now() + std::time::Duration::from_secs(8);
        let mut most = 0;
        while let Some(next) = w.b.stack.next_timeout().filter(|next| *next < end) {
            w.b.now = next.max(w.b.now);
            let before = work(&mut w);
            w.b.turn();
            most = most.max(work(&mut w) - before);
        }
        assert!(w.b.stack.counters().timers_fired > u64::from(count), "all of them came");
        most
    };
    // Each timer is moved at most five times, unlinked, fired and armed again.
    let limit = 4 * crate::limits::TIMERS_A_TURN as u64;
    let (few, many) = (worst(20_000), worst(200_000));
    assert!(few <= limit && many <= limit, "{few}, {many} of {limit}");
}

#[test]
fn udp_work_does_not_grow() {
    let work_with = |count: u32| {
        let mut w = World::new(WorldConfig::default());
        let free = BindOptions { free_bind: true, ..Default::default() };
        for n in 0..count {
            let (id, _) = w.b.open(SocketKind::Datagram, Family::V4);
            let addr = SocketAddr::from((
                (0x7f00_0000 + n / 40_000 + 1).to_be_bytes(),
                1000 + (n % 40_000) as u16,
            ));
            w.b.stack.bind(id, addr, free).expect("bind");
        }
        let (server, _) = w.b.open(SocketKind::Datagram, Family::V4);
        w.b.stack.bind(server, "10.0.0.2:53".parse().unwrap(), free).expect("bind");
        let (id, _) = w.a.open(SocketKind::Datagram, Family::V4);
        let out =
            DatagramOut { remote: Some("10.0.0.2:53".parse().unwrap()), ..Default::default() };
        let before = work(&mut w);
        for _ in 0..100 {
            let payload = Payload::new(b"x", Default::default());
            w.a.stack.send_datagram(w.a.now, id, &out, &payload, &mut w.a.pool).unwrap();
        }
        w.run(10);
        assert_eq!(w.b.host.datagrams.len(), 100);
        work(&mut w) - before
    };
    let few = work_with(10);
    assert!(work_with(200_000) <= few + 100, "at most a comparison of a collision a packet");
}

/// Measures the work to close, or connect again, one of many sockets with the same port and peer.
#[test]
fn work_does_not_grow_with_those_that_are_connected_alike() {
    let work_with = |count: usize| {
        let mut w = World::new(WorldConfig::default());
        let options = BindOptions { reuse_addr: true, ..Default::default() };
        let ids: Vec<_> = (0..count)
            .map(|_| {
                let (id, _) = w.b.open(SocketKind::Datagram, Family::V4);
                w.b.stack.bind(id, "10.0.0.2:53".parse().unwrap(), options).unwrap();
                w.b.stack.connect_datagram(w.b.now, id, "10.0.0.1:9".parse().unwrap()).unwrap();
                id
            })
            .collect();
        let before = work(&mut w);
        for at in [0, count / 2, count - 2] {
            w.b.stack.disconnect(ids[at]);
            w.b.stack.connect_datagram(w.b.now, ids[at], "10.0.0.1:9".parse().unwrap()).unwrap();
            w.b.close(ids[at]);
        }
        work(&mut w) - before
    };
    let (few, many) = (work_with(10), work_with(10_000));
    assert!(many <= few + 2, "{many} after {few}");
}

/// Measures the work for a datagram and a SYN while many sockets share a port, on this device and
/// others.
#[test]
fn work_does_not_grow_with_those_that_share_a_port() {
    let work_with = |count: u32, kind: SocketKind| {
        let mut w = World::new(WorldConfig::default());
        let options = BindOptions { reuse_port: true, ..Default::default() };
        let member = |w: &mut World, device| {
            let (id, _) = w.b.open(kind, Family::V4);
            w.b.stack.set_option(id, SocketOption::Device(device)).unwrap();
            w.b.stack.bind(id, "10.0.0.2:53".parse().unwrap(), options).unwrap();
            if matches!(kind, SocketKind::Stream) {
                w.b.stack.listen(id, 8).unwrap();
            }
            id
        };
        let ids: Vec<_> = (0..count).map(|_| member(&mut w, None)).collect();
        let elsewhere = Some(IfaceId::LOOPBACK);
        let away: Vec<_> = (0..count).map(|_| member(&mut w, elsewhere)).collect();
        let before = work(&mut w);
        match kind {
            SocketKind::Stream => {
                (0..100).for_each(|n| w.inject(&syn(0x0b00_0000 + n, 53)));
                w.settle();
                assert_eq!(w.b.stack.counters().tcp_syns, 100);
            }
            _ => {
                let (id, _) = w.a.open(SocketKind::Datagram, Family::V4);
                let remote = Some("10.0.0.2:53".parse().unwrap());
                let out = DatagramOut { remote, ..Default::default() };
                for _ in 0..100 {
                    let payload = Payload::new(b"x", Default::default());
                    w.a.stack.send_datagram(w.a.now, id, &out, &payload, &mut w.a.pool).unwrap();
                }
                w.run(10);
                assert_eq!(w.b.host.datagrams.len(), 100);
            }
        }
        let packets = work(&mut w) - before;
        // A member leaves the group and joins again: the first, middle or last one.
        let before = work(&mut w);
        for id in [ids[0], ids[ids.len() / 2], away[0]] {
            w.b.stack.set_option(id, SocketOption::Device(Some(IfaceId(1)))).unwrap();
            w.b.stack.set_option(id, SocketOption::Device(None)).unwrap();
            w.b.close(id);
            member(&mut w, None);
        }
        (packets, work(&mut w) - before)
    };
    for kind in [SocketKind::Datagram, SocketKind::Stream] {
        let (few, many) = (work_with(4, kind), work_with(4000, kind));
        // At most one comparison due to a hash collision for each packet and call.
        assert!(many.0 <= few.0 + 100 && many.1 <= few.1 + 20, "{kind:?}: {few:?} {many:?}");
    }
}

/// Measures the work of a bind, a connect that chooses a port, and a close, while many sockets hold
/// a port.
#[test]
fn work_does_not_grow_with_those_that_hold_a_port() {
    let work_with = |count: u32, kind: SocketKind| {
        let config = StackConfig { ephemeral: 5000..=5000, ..StackConfig::default() };
        let mut w = World::with(WorldConfig::default(), config, false);
        let options = BindOptions { reuse_addr: true, ..Default::default() };
        let hold = |w: &mut World, addr: u32| {
            let (id, _) = w.b.open(kind, Family::V4);
            w.b.stack.bind(id, SocketAddr::from((addr.to_be_bytes(), 5000)), options).unwrap();
            id
        };
        let ids: Vec<_> = (0..count).map(|n| hold(&mut w, 0x7f00_0100 + n)).collect();
        for _ in 0..count {
            hold(&mut w, 0x7f00_0001);
        }
        let before = work(&mut w);
        for id in [ids[0], ids[ids.len() / 2]] {
            w.b.close(id);
        }
        hold(&mut w, 0x7f00_0001);
        hold(&mut w, 0x7f00_0100);
        if matches!(kind, SocketKind::Stream) {
            let (id, _) = w.b.open(SocketKind::Stream, Family::V4);
            let (now, recv, send) = (w.b.now, Recv::new(1, 1), Send::new(4096));
            w.b.stack.connect(now, id, "10.0.0.1:80".parse().unwrap(), recv, send).unwrap();
        }
        work(&mut w) - before
    };
    for kind in [SocketKind::Datagram, SocketKind::Stream] {
        let (few, many) = (work_with(4, kind), work_with(4000, kind));
        // At most one comparison due to a hash collision for each call.
        assert!(many <= few + 5, "{kind:?}: {few} {many}");
    }
}

/// Finding the last free port costs as much as the first. A connect that finds no port stays within
/// the limit.
#[test]
fn a_port_costs_as_much_when_nearly_all_are_in_use() {
    let mut w = World::new(WorldConfig::default());
    w.set_loss(1000);
    let send = Send::new(4096);
    // Returns the result of a connect, and the number of probed ports.
    let connect = |w: &mut World, to: &str| {
        let before = w.a.stack.counters().ports_probed;
        let (id, _) = w.a.open(SocketKind::Stream, Family::V4);
        let (now, recv) = (w.a.now, Recv::new(1, 1));
        let connected = w.a.stack.connect(now, id, to.parse().unwrap(), recv, send.clone());
        (connected.map(|()| id), w.a.stack.counters().ports_probed - before)
    };
    let range = w.a.stack.config().ephemeral.clone();
    let mut ids = Vec::new();
    for port in range {
        let (id, tried) = connect(&mut w, "10.0.0.2:80");
        assert_eq!(tried, 1, "{port}");
        ids.push(id.expect("a port is left"));
    }
    let (refused, tried) = connect(&mut w, "10.0.0.2:80");
    assert_eq!(refused, Err(ConnectError::NoPort));
    assert!(tried <= crate::limits::PORTS_PROBED_MAX.into(), "{tried} tried");
    assert_eq!(w.a.stack.counters().ports_exhausted, 1);
    assert!(connect(&mut w, "10.0.0.2:81").0.is_ok(), "towards another peer all are free");
    w.settle();
    w.a.abort(ids[ids.len() / 2]);
    w.settle();
    let (id, tried) = connect(&mut w, "10.0.0.2:80");
    assert!(id.is_ok() && tried == 1, "the one that was freed: {tried} tried");
}

#[test]
fn a_syn_flood_is_bounded_and_does_no_harm() {
    let config =
        StackConfig { syn_cache_max: 600, tcp: without_cookies(), ..StackConfig::default() };
    let mut w = World::with(WorldConfig::default(), config, false);
    let (flooded, _) = w.b.listen("0.0.0.0:80", 4096);
    let (quiet, _) = w.b.listen("0.0.0.0:81", 16);
    for n in 0..2000u32 {
        w.inject(&syn(0x0b00_0000 + n, 80));
        if n % 100 == 0 {
            w.settle();
        }
    }
    w.settle();
    assert_eq!(w.b.stack.handshakes.half_open.len(), 300, "half of it is left for others");
    assert_eq!(w.b.drops(crate::DropReason::SynCacheFull), 1700);
    let flow = |n: u32| Flow {
        local: [10, 0, 0, 2].into(),
        remote: (0x0b00_0000 + n).to_be_bytes().into(),
        local_port: 80,
        remote_port: 1234,
    };
    let find = |w: &World, n| w.b.stack.find_flow(w.b.stack.keys.table.ends(&flow(n)), &flow(n));
    // The oldest client may still answer. After it had time to do so, a new one replaces it.
    assert!(matches!(find(&w, 0), Some(FlowRef::HalfOpen(_))));
    w.run(1000);
    w.inject(&syn(0x0b00_0000 + 5000, 80));
    w.settle();
    assert!(matches!(find(&w, 5000), Some(FlowRef::HalfOpen(_))));
    assert_eq!(find(&w, 0), None);
    assert_eq!(w.b.stack.counters().tcp_half_open_displaced, 1);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 300);
    let (client, server) = w.connected(quiet, "10.0.0.2:81");
    w.a.abort(client.id);
    w.b.abort(server.id);
    w.b.close(flooded);
    w.b.close(quiet);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 0);
    w.assert_ends_empty();
}

/// Settings of listeners that send no SYN cookies.
pub fn without_cookies() -> towpath_tcp::Config {
    let syn_cookies = towpath_tcp::SynCookies::Off;
    towpath_tcp::Config { syn_cookies, ..towpath_tcp::Config::default() }
}

/// Creates a SYN from port `port` of `src` to 10.0.0.2, with valid checksums.
pub fn syn(src: u32, port: u16) -> Vec<u8> {
    segment(src, port, tcp::Flags::SYN, tcp::SeqNum(77), tcp::SeqNum(0))
}

/// Creates a segment without payload from port `port` of `src` to 10.0.0.2, with valid checksums.
pub fn segment(
    src: u32,
    port: u16,
    flags: tcp::Flags,
    seq: tcp::SeqNum,
    ack: tcp::SeqNum,
) -> Vec<u8> {
    let header = tcp::Header {
        src_port: 1234,
        dst_port: port,
        seq,
        ack,
        flags,
        window: 1000,
        checksum: 0,
        urgent: 0,
        header_len: 0,
        options: tcp::Options::default(),
    };
    packet(src, header)
}

/// Creates an IPv4 packet from `src` to 10.0.0.2 with a TCP header and no payload.
pub fn packet(src: u32, mut tcp: tcp::Header) -> Vec<u8> {
    use towpath_wire::{IpProtocol, checksum, ipv4};
    let tcp_len = tcp.emitted_len();
    tcp.checksum = 0;
    let (src, dst) = (std::net::Ipv4Addr::from_bits(src), std::net::Ipv4Addr::new(10, 0, 0, 2));
    let header = ipv4::Header {
        tos: 0,
        total_len: 20 + tcp_len as u16,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: IpProtocol::TCP,
        src,
        dst,
        options: ipv4::Options::EMPTY,
    };
    let mut bytes = vec![0; 20 + tcp_len];
    header.emit(&mut bytes);
    tcp.emit(&mut bytes[20..]);
    let pseudo = checksum::pseudo_v4(src, dst, IpProtocol::TCP, tcp_len as u16);
    tcp.checksum = checksum::finish(checksum::sum(&bytes[20..], pseudo));
    tcp.emit(&mut bytes[20..]);
    bytes
}
