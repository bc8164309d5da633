//! Connections and a device that does not keep up.

use std::time::Duration;

use towpath_pool::{Batch, LinkType, Offloads, Pool};
use towpath_ring::Payload;
use towpath_wire::{MacAddr, Prefix};

use super::world::{LinkConfig, World};
use crate::net::InterfaceConfig;
use crate::{
    DatagramOut, DropReason, Family, SendError, SocketError, SocketEvent, SocketKind, SocketOption,
};

/// A device that takes nothing holds up what is to be sent, and nothing else.
#[test]
fn who_waits_for_a_stuck_device_still_hears_and_ends() {
    let mut w = World::new(LinkConfig::default());
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
    // What the device of a takes from now on stays in its queue, which is full enough already.
    let port = w.a.ports.remove(0);
    for _ in 0..crate::limits::TX_OUTPUT_MAX {
        let packet = w.a.pool.take(0);
        w.a.stack.net.output(crate::IfaceId(1)).push_back(packet);
    }
    w.a.ports.push(Box::new(Stuck(port)));
    for conn in [&reader, &aborted] {
        w.a.write(conn, b"nobody takes this");
    }
    // By then the lost bytes are to go again, too.
    w.run(500);
    assert_eq!(w.a.stack.counters().tcp_waits_for_output, 3);

    w.b.write(&reader_peer, b"news");
    w.run(50);
    assert!(w.a.host.has(reader.user, SocketEvent::Readable), "told what arrived");
    assert_eq!(w.a.read(&reader), b"news");
    w.a.abort(aborted.id);
    w.run(50);
    assert!(w.a.host.has(aborted.user, SocketEvent::Closed), "gone when it was aborted");
    w.run(3000);
    let timed_out = SocketEvent::Error(SocketError::TimedOut);
    assert!(w.a.host.has(limited.user, timed_out), "told when its time was over");
    assert!(
        w.a.stack.next_timeout().is_none_or(|next| next > w.now()),
        "nothing is due again and again"
    );

    // A route over another interface: a connection that waits for the first device need not wait any more.
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
    };
    let far = w.a.stack.net.add_interface(w.a.now, far);
    w.a.stack.net.add_route(Prefix::host("10.0.0.2".parse().unwrap()), None, far, 0);
    w.run(3000);
    let sent = w.a.stack.net.output(far).iter().any(|packet| packet.len() > 40);
    assert!(sent, "it goes by the new route");
}

/// As Linux: a datagram for which there is no room is lost, and an error for those only who ask for errors.
#[test]
fn a_full_device_loses_datagrams_and_tells_who_asks_for_errors() {
    let mut w = World::new(LinkConfig::default());
    let (id, _) = w.a.open(SocketKind::Datagram, Family::V4);
    for _ in 0..crate::net::limits::OUTPUT_LEN_MAX {
        let packet = w.a.pool.take(0);
        w.a.stack.net.output(crate::IfaceId(1)).push_back(packet);
    }
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

/// Takes nothing, and gives what arrives.
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
