//! Tests of connections over a device that is slower than they are.

use std::num::NonZeroU32;
use std::time::Duration;

use towpath_pool::{Batch, LinkType, Offloads, Pool};
use towpath_ring::Payload;
use towpath_tcp::CongestionKind;
use towpath_wire::{MacAddr, Prefix};

use super::world::{Conn, World, WorldConfig};
use crate::limits::{TX_OUTPUT_BYTES, TX_OUTPUT_PACKETS, TX_SHARE_BYTES};
use crate::net::{InterfaceConfig, Load, connection};
use crate::{
    DatagramOut, DropReason, Family, IfaceId, SendError, SocketError, SocketEvent, SocketId,
    SocketKind, SocketOption,
};

/// Fills the queue of a's device with packets of a closed connection.
pub fn fill(w: &mut World, packets: usize) {
    fill_by(w, packets, connection(1_000_000));
}

fn fill_by(w: &mut World, packets: usize, sender: Option<NonZeroU32>) {
    for _ in 0..packets {
        let mut packet = w.a.pool.take(0);
        packet.meta.sender = sender;
        w.a.stack.net.output(IfaceId(1)).enqueue(packet);
    }
}

/// A stuck device delays only the sending of packets.
#[test]
fn a_connection_that_waits_for_a_stuck_device_still_hears_and_ends() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 64);
    let (reader, reader_peer) = w.connected(listener, "10.0.0.2:80");
    let (limited, _) = w.connected(listener, "10.0.0.2:80");
    let (aborted, _) = w.connected(listener, "10.0.0.2:80");
    let limit = SocketOption::UserTimeout(Some(Duration::from_secs(2)));
    w.a.stack.set_option(limited.id, limit).unwrap();
    w.set_loss(1000);
    w.a.write(&limited, b"lost");
    w.run(100);
    w.set_loss(0);
    // From now on, a's device accepts no packets, and its queue is full enough to make connections
    // wait.
    let port = w.a.ports.remove(0);
    fill(&mut w, TX_OUTPUT_PACKETS);
    w.a.ports.push(Box::new(Stuck(port)));
    for conn in [&reader, &aborted] {
        w.a.write(conn, b"nobody takes this");
    }
    // After this time, the lost bytes are due for retransmission, too.
    w.run(500);
    assert_eq!(w.a.stack.counters().tcp_waits_for_output, 3);

    w.b.write(&reader_peer, b"news");
    w.run(50);
    assert!(w.a.host.has(reader.user, SocketEvent::Readable), "told what arrived");
    assert_eq!(w.a.read(&reader), b"news");
    w.a.abort(aborted.id);
    w.run(50);
    assert!(w.a.host.has(aborted.user, SocketEvent::Closed), "gone when it was aborted");
    let queue = w.a.stack.net.output(IfaceId(1));
    let sent = queue.iter().any(|packet| packet.linear().ends_with(b"nobody takes this"));
    assert!(sent, "its bytes are before its reset");
    w.run(3000);
    let timed_out = SocketEvent::Error(SocketError::TimedOut);
    assert!(w.a.host.has(limited.user, timed_out), "told when its time was over");
    assert!(
        w.a.stack.next_timeout().is_none_or(|next| next > w.now()),
        "nothing is due again and again"
    );

    // With a route over another interface, a connection that waits for the first device can
    // continue.
    let far = InterfaceConfig {
        name: "eth1".to_string(),
        link: LinkType::Ip,
        mac: MacAddr::UNSPECIFIED,
        mtu: 1500,
        offloads: Offloads::default(),
        addresses: Vec::new(),
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    };
    let far = w.a.stack.net.add_interface(w.a.now, far);
    w.a.stack.net.add_route(Prefix::host("10.0.0.2".parse().unwrap()), None, far, 0);
    w.run(3000);
    let sent = w.a.stack.net.output(far).iter().any(|packet| packet.len() > 40);
    assert!(sent, "it goes by the new route");
}

/// Creates connections that send as fast as possible, over a device that takes 1500 bytes per
/// millisecond.
fn slow(connections: usize) -> (World, Vec<(Conn, Conn)>, Vec<u8>) {
    let mut w = World::new(WorldConfig { rate: Some(1), ..WorldConfig::default() });
    w.b.host.capacity = (4 << 20, 4 << 20);
    let (listener, _) = w.b.listen("0.0.0.0:80", 64);
    let ends: Vec<_> = (0..connections)
        .map(|_| {
            let client = w.a.connect_with("10.0.0.2:80", 4 << 20, 4 << 20);
            w.wait(10_000, "accept", |w| !w.b.host.accepted.is_empty());
            (client, w.b.accept(listener).unwrap())
        })
        .collect();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
    (w, ends, bytes)
}

/// Maximum share of the queue: the limit, and the last packet that was created below it.
const SHARE_MOST: u32 = TX_SHARE_BYTES + 70_000;

#[test]
fn one_connection_does_not_fill_the_queue_for_others() {
    let (mut w, ends, bytes) = slow(2);
    let (bulk, quick) = (&ends[0], &ends[1]);
    // CUBIC ends slow start when the device's queue delays packets (HyStart++).
    let reno = SocketOption::Congestion(CongestionKind::NewReno);
    w.a.stack.set_option(bulk.0.id, reno).expect("a connection");
    w.a.write(&bulk.0, &bytes);
    let (mut most, mut got) = (0, 0);
    w.wait(60_000, "enough of it", |w| {
        got += w.b.read(&bulk.1).len();
        most = most.max(w.a.stack.net.output_load(IfaceId(1)).bytes);
        got > 1_000_000
    });
    assert!(w.a.stack.counters().tcp_waits_for_share > 0);
    assert_eq!(w.a.stack.counters().tcp_waits_for_output, 0, "nobody else was in its way");
    assert!(most > TX_SHARE_BYTES as usize, "its windows would have allowed more than {most}");
    assert!(most < SHARE_MOST as usize, "{most} bytes are in the queue");
    // A connection waits no longer than the packets of the other connection's share take.
    w.a.write(&quick.0, b"quick");
    let packets_ms = u64::from(SHARE_MOST) / 1448 + 5;
    w.wait(packets_ms, "the other one's turn", |w| w.b.read(&quick.1) == b"quick");
}

fn send(w: &mut World, id: SocketId, bytes: &[u8]) -> Result<(), SendError> {
    let out = DatagramOut { remote: Some("10.0.0.2:9".parse().unwrap()), ..DatagramOut::default() };
    let payload = Payload::new(bytes, Default::default());
    w.a.stack.send_datagram(w.a.now, id, &out, &payload, &mut w.a.pool)
}

/// A flood of datagrams from so many sockets that their shares fill the queue. The device's rate is
/// divided among datagrams and waiting connections.
#[test]
fn datagrams_without_end_leave_connections_their_part() {
    const MS: u32 = 20_000;
    for len in [1400, 30] {
        let (mut w, ends, bytes) = slow(2);
        let sockets: Vec<_> =
            (0..60).map(|_| w.a.open(SocketKind::Datagram, Family::V4).0).collect();
        // Send twice the device's rate.
        let each_ms = 5.max(2 * 1500 / (len + 28));
        let flood = |w: &mut World, n: usize| {
            for id in sockets.iter().cycle().take(n) {
                send(w, *id, &vec![7; len]).expect("what finds no place is lost");
            }
        };
        // The queue is full before the connections have bytes to send, and stays full.
        flood(&mut w, 6000);
        for (client, _) in &ends {
            w.a.write(client, &bytes);
        }
        let (mut got, mut before) = ([0; 2], 0);
        for ms in 0..MS {
            if ms == MS / 2 {
                before = w.cable.stats()[0].entered;
            }
            flood(&mut w, each_ms);
            w.run(1);
            for ((client, server), got) in ends.iter().zip(&mut got) {
                let n = w.b.read(server).len();
                // Skip the start, because the windows grow slowly while the queue delays
                // acknowledgements.
                *got += if ms >= MS / 2 { n } else { 0 };
                w.a.write(client, &bytes[..n]);
            }
        }
        // The device sends a full packet per millisecond.
        let most = MS as usize / 2 * 1448;
        assert!(got.iter().all(|got| *got > most / 8), "{got:?} of {most} beside {len} bytes");
        let packets = (w.cable.stats()[0].entered - before) as usize;
        let of_connections = got.iter().sum::<usize>() / 1448;
        assert!(of_connections < packets * 3 / 4, "datagrams have theirs, too: {got:?}");
    }
}

/// A socket whose owner calls `datagram_waits` never exceeds its share of the queue, and gets an
/// event when it may send again.
#[test]
fn a_socket_whose_owner_asks_has_its_share() {
    let (mut w, ends, bytes) = slow(1);
    let (id, user) = w.a.open(SocketKind::Datagram, Family::V4);
    let (mut sent, mut rounds) = (0, 0);
    let mut fill = |w: &mut World| {
        while !w.a.stack.datagram_waits(id) {
            send(w, id, &[7; 1400]).unwrap();
            sent += 1;
        }
        let load = w.a.stack.net.output_load(IfaceId(1)).bytes;
        assert!(load < 2 * SHARE_MOST as usize, "{load} bytes are in the queue");
    };
    fill(&mut w);
    w.a.write(&ends[0].0, &bytes);
    let mut got = 0;
    w.wait(60_000, "twenty shares", |w| {
        if w.a.host.has(user, SocketEvent::Writable) {
            w.a.host.take_events(user);
            rounds += 1;
            fill(w);
        }
        got += w.b.read(&ends[0].1).len();
        rounds == 20
    });
    assert_eq!(w.a.stack.counters().udp_waits_for_share, 21);
    assert_eq!(w.a.drops(DropReason::OutputFull), 0);
    assert!(got > 20 * TX_SHARE_BYTES as usize / 4, "the connection had {got} bytes meanwhile");
    // A large datagram is fragmented, and its fragments count towards the share.
    while w.a.stack.datagram_waits(id) {
        w.run(1);
    }
    (0..3).for_each(|_| send(&mut w, id, &[7; 50_000]).unwrap());
    assert!(w.a.stack.datagram_waits(id));
}

/// More connections than fit into the queue with their shares are served in turn.
#[test]
fn all_that_wait_for_a_device_have_their_turn() {
    let (mut w, ends, bytes) = slow(40);
    for (client, _) in &ends {
        assert_eq!(w.a.write(client, &bytes), bytes.len());
    }
    let mut got = vec![0; ends.len()];
    let mut most = Load::default();
    w.wait(100_000, "a part of each", |w| {
        for ((_, server), got) in ends.iter().zip(&mut got) {
            *got += w.b.read(server).len();
        }
        let load = w.a.stack.net.output_load(IfaceId(1));
        most.bytes = most.bytes.max(load.bytes);
        most.packets = most.packets.max(load.packets);
        got.iter().sum::<usize>() > 20_000_000
    });
    assert!(w.a.stack.counters().tcp_waits_for_output > 100);
    let over = most.bytes.saturating_sub(TX_OUTPUT_BYTES);
    assert!(over < 70_000 && most.packets < TX_OUTPUT_PACKETS + 100, "{most:?}");
    assert_eq!(w.a.drops(DropReason::OutputFull), 0);
    let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    assert!(4 * least > *most, "from {least} to {most} bytes: {got:?}");
}

/// A connection whose bytes wait for the device still acknowledges received bytes, because
/// otherwise its peer would wait, too.
#[test]
fn acknowledgements_do_not_wait_for_the_bytes_that_would_carry_them() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 64);
    let (here, there) = w.connected(listener, "10.0.0.2:80");
    w.set_stuck(true);
    fill(&mut w, TX_OUTPUT_PACKETS);
    w.a.write(&here, b"nobody takes this");
    w.settle();
    let before = w.a.stack.net.output_load(IfaceId(1)).packets;
    assert_eq!((before, w.a.stack.counters().tcp_waits_for_output), (TX_OUTPUT_PACKETS, 1));
    w.b.write(&there, &[7; 5000]);
    w.run(500);
    assert_eq!(w.a.read(&here).len(), 5000);
    let output = w.a.stack.net.output(IfaceId(1));
    // An ACK has timestamps, and D-SACK blocks for bytes that the peer retransmits meanwhile.
    let acks = output.iter().skip(before).filter(|packet| packet.len() <= 64).count();
    assert!(acks > 0 && acks == output.len() - before, "{acks} acknowledgements");
}

/// Queued packets refer to the program's bytes, in later turns and after their socket was closed.
#[test]
fn what_waits_for_a_device_is_not_copied() {
    let offloads = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: false };
    let mut w = World::new(WorldConfig { offloads, ..WorldConfig::default() });
    let (listener, _) = w.b.listen("0.0.0.0:80", 64);
    let (here, _) = w.connected(listener, "10.0.0.2:80");
    let bytes: Vec<u8> = (0..10_000u32).map(|n| (n / 7) as u8).collect();
    w.set_stuck(true);
    assert_eq!(w.a.write(&here, &bytes), bytes.len());
    w.run(10);
    w.a.abort(here.id);
    w.run(10);
    assert_eq!(w.a.state(here.id), None);
    let mut sent = Vec::new();
    for packet in w.a.stack.net.output(IfaceId(1)).iter() {
        let mut tail = vec![0; packet.tail.len() as usize];
        packet.tail.copy_to(0, &mut tail);
        sent.extend(tail);
    }
    assert_eq!(sent, bytes);
}

/// As on Linux, a datagram that does not fit is lost, and only sockets with IP_RECVERR get an
/// error.
#[test]
fn a_full_device_loses_datagrams_and_tells_who_asks_for_errors() {
    let mut w = World::new(WorldConfig::default());
    let (id, _) = w.a.open(SocketKind::Datagram, Family::V4);
    fill_by(&mut w, crate::net::limits::OUTPUT_PACKETS_MAX, None);
    let send = |w: &mut World| {
        let remote = Some("10.0.0.2:9".parse().unwrap());
        let out = DatagramOut { remote, ..Default::default() };
        let payload = Payload::new(b"lost", Default::default());
        w.a.stack.send_datagram(w.a.now, id, &out, &payload, &mut w.a.pool)
    };
    assert_eq!(send(&mut w), Ok(()));
    assert_eq!(w.a.drops(DropReason::OutputFull), 1);
    w.a.stack.set_option(id, SocketOption::RecvErrors(true)).unwrap();
    assert_eq!(send(&mut w), Err(SendError::QueueFull));
    assert_eq!(w.a.drops(DropReason::OutputFull), 2);
}

/// Port that accepts no packets, and still delivers received ones.
struct Stuck(Box<dyn towpath_pool::Port>);

impl towpath_pool::Port for Stuck {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.0.poll(now_ns, pool, out, max)
    }

    fn submit(&mut self, _now_ns: u64, _pool: &mut Pool, _batch: &mut Batch) -> usize {
        0
    }

    fn offloads(&self) -> Offloads {
        self.0.offloads()
    }

    fn link_type(&self) -> LinkType {
        self.0.link_type()
    }

    fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        self.0.next_timeout_ns()
    }
}

/// Adds a second interface without neighbours, to which routes may lead.
fn second(w: &mut World) -> IfaceId {
    let far = InterfaceConfig {
        name: "eth1".to_string(),
        link: LinkType::Ip,
        mac: MacAddr::UNSPECIFIED,
        mtu: 1500,
        offloads: Offloads::default(),
        addresses: Vec::new(),
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    };
    w.a.stack.net.add_interface(w.a.now, far)
}

/// A connection with a full share of a stuck device's queue changes to another route at once, like
/// connections in the queue for the device.
#[test]
fn who_waits_for_its_share_follows_its_route() {
    let (mut w, ends, bytes) = slow(1);
    w.a.write(&ends[0].0, &bytes);
    w.wait(60_000, "a share in the queue", |w| {
        w.b.read(&ends[0].1);
        let load = w.a.stack.net.output_load(IfaceId(1)).bytes;
        w.a.stack.counters().tcp_waits_for_share > 0 && load >= TX_SHARE_BYTES as usize
    });
    w.set_stuck(true);
    w.run(40_000);
    let far = second(&mut w);
    w.run(10);
    w.a.stack.net.add_route(Prefix::host("10.0.0.2".parse().unwrap()), None, far, 0);
    let start = w.now();
    w.wait(100_000, "it goes by the new route", |w| !w.a.stack.net.output(far).is_empty());
    let waited = w.now().since(start);
    assert!(waited < Duration::from_millis(100), "{waited:?}");
}

/// A connection that waits for a stuck device is bound to another device, which is busy, too, and
/// then waits for the latter.
#[test]
fn who_is_bound_to_another_device_waits_for_that_one() {
    for has_waited in [false, true] {
        let mut w = World::new(WorldConfig::default());
        let (listener, _) = w.b.listen("0.0.0.0:80", 64);
        let (here, _) = w.connected(listener, "10.0.0.2:80");
        let far = second(&mut w);
        w.a.stack.net.add_route(Prefix::ALL_V4, None, far, 9);
        w.run(10);
        w.set_stuck(true);
        fill(&mut w, TX_OUTPUT_PACKETS);
        if has_waited {
            w.a.write(&here, b"nobody takes this");
            w.run(10);
        }
        for _ in 0..TX_OUTPUT_PACKETS {
            let packet = w.a.pool.take(0);
            w.a.stack.net.output(far).enqueue(packet);
        }
        w.a.stack.set_option(here.id, SocketOption::Device(Some(far))).unwrap();
        w.a.write(&here, b"nor this");
        w.run(10);
        w.a.stack.net.output(far).hand_over(|batch| batch.clear());
        w.run(600_000);
        let sent = !w.a.stack.net.output(far).is_empty();
        assert!(sent, "its device has room; it had waited for the other one: {has_waited}");
    }
}

/// Thousands of connections send over a slow device while routes change and some are aborted. All
/// other bytes arrive in order, and no state is left.
#[test]
fn attack_crowd() {
    let mut w = World::new(WorldConfig { rate: Some(30), ..WorldConfig::default() });
    w.b.host.capacity = (32 << 10, 32 << 10);
    let (listener, _) = w.b.listen("0.0.0.0:80", 4096);
    let mut ends = Vec::new();
    for _ in 0..3000 {
        let client = w.a.connect_with("10.0.0.2:80", 32 << 10, 32 << 10);
        ends.push((client, None));
        w.settle();
    }
    let bytes: Vec<u8> = (0..30_000u32).map(|n| (n / 7) as u8).collect();
    for (client, _) in &ends {
        w.a.write(client, &bytes);
    }
    let mut got: std::collections::BTreeMap<u16, (Conn, Vec<u8>)> = Default::default();
    let mut dice = super::world::Dice::new(7, 0);
    let mut aborted = std::collections::BTreeSet::new();
    for ms in 0..400_000u32 {
        w.run(1);
        while let Some(server) = w.b.accept(listener) {
            got.insert(server.remote.port(), (server, Vec::new()));
        }
        if ms % 50 == 0 {
            for (server, bytes) in got.values_mut() {
                bytes.extend(w.b.read(server));
            }
        }
        if ms % 97 == 0 && ms < 20_000 {
            let far = Prefix::host(std::net::IpAddr::from([10, 9, 0, ms as u8]));
            w.a.stack.net.add_route(far, None, IfaceId(1), ms);
        }
        if ms % 20 == 0 && ms < 3_000 {
            let victim = dice.below(ends.len() as u64) as usize;
            if aborted.insert(victim) {
                w.a.abort(ends[victim].0.id);
            }
        }
        if ms % 1000 == 0 {
            let done = got.values().filter(|(_, got)| got.len() == bytes.len()).count();
            if done >= ends.len() - aborted.len() {
                break;
            }
        }
    }
    ends.retain(|(_, server): &(Conn, Option<Conn>)| server.is_none());
    let done = got.values().filter(|(_, got)| *got == bytes).count();
    let counters = w.a.stack.counters();
    println!(
        "{done} of {}; now {:?}; waits {} {}; full {}",
        ends.len() - aborted.len(),
        w.now(),
        counters.tcp_waits_for_output,
        counters.tcp_waits_for_share,
        w.a.drops(DropReason::OutputFull)
    );
    assert!(done >= ends.len() - aborted.len());
    for (n, (client, _)) in ends.iter().enumerate() {
        if !aborted.contains(&n) {
            w.a.close(client.id);
        }
    }
    for (server, _) in got.values() {
        w.b.close(server.id);
    }
    w.b.close(listener);
    w.assert_ends_empty();
    assert!(w.a.stack.net.output(IfaceId(1)).is_empty());
    assert_eq!(w.a.stack.net.output_load(IfaceId(1)), Load::default());
}
