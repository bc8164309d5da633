//! Tests of a port with a twin.

use std::net::IpAddr;

use super::*;
use crate::{OwnAddresses, TwinPort, TwinSelection};

const OWN: [u8; 4] = [192, 0, 2, 2];
const LATER: [u8; 4] = [192, 0, 2, 3];

struct Joined {
    port: TwinPort,
    device: Arc<Mutex<State>>,
    twin: Arc<Mutex<State>>,
    own: OwnAddresses,
    pool: Pool,
}

fn device() -> (Arc<Mutex<State>>, Box<dyn Port + Send>) {
    let state = State { arrived: Batch::new(), sent: Batch::new(), room: 64, gone: false };
    let (state, flags) = (Arc::new(Mutex::new(state)), EventfdFlags::CLOEXEC);
    let bell = eventfd(0, flags | EventfdFlags::NONBLOCK).expect("room");
    let offloads = Offloads::default();
    let port = Device { state: Arc::clone(&state), bell, offloads };
    (state, Box::new(port))
}

impl Joined {
    fn new() -> Self {
        let ((device, port), (twin, twin_port)) = (self::device(), self::device());
        let own = OwnAddresses::default();
        own.set(&[IpAddr::from(OWN)]);
        let selection = TwinSelection::new(&[], STACK);
        let port = TwinPort::new(port, twin_port, selection, own.clone()).expect("descriptors");
        Self { port, device, twin, own, pool: Pool::default() }
    }

    /// Returns a frame of IPv4 with this protocol and the ports of BGP.
    fn frame(&mut self, destination: [u8; 4], protocol: u8) -> Packet {
        let mut header = [0; 20];
        (header[0], header[9]) = (0x45, protocol);
        header[16..].copy_from_slice(&destination);
        let mut packet = self.pool.take(1500);
        for part in [&STACK[..], &host(1), &[0x08, 0], &header, &[0, 179, 0, 179]] {
            packet.push_back(part.len()).expect("room").copy_from_slice(part);
        }
        packet
    }

    /// Receives a frame, and returns the numbers of frames for the stack and for the twin.
    fn receives(&mut self, frame: Packet) -> [usize; 2] {
        self.device.lock().expect("no panic").arrived.push_back(frame);
        let mut out = Batch::new();
        let count = self.port.poll(0, &mut self.pool, &mut out, 64);
        assert_eq!(count, out.len());
        [out.len(), self.twin.lock().expect("no panic").sent.drain(..).count()]
    }
}

#[test]
fn selected_frames_reach_the_twin_alone() {
    let mut joined = Joined::new();
    let (bgp, transit) = (joined.frame(OWN, 6), joined.frame([198, 51, 100, 1], 6));
    assert_eq!(joined.receives(bgp), [0, 1]);
    assert_eq!(joined.receives(transit), [1, 0]);
    let igmp = joined.frame([224, 0, 0, 1], 2);
    assert_eq!(joined.receives(igmp), [1, 1]);
    let mut tagged = joined.frame(OWN, 6);
    tagged.meta.vlan = Some(5);
    assert_eq!(joined.receives(tagged), [1, 0]);
    let counters = joined.port.counters();
    let twin = &counters[0].1;
    assert_eq!(twin[..2], [("to_twin", 1), ("to_both", 1)]);
}

#[test]
fn later_addresses_of_the_router_are_followed() {
    let mut joined = Joined::new();
    let early = joined.frame(LATER, 6);
    assert_eq!(joined.receives(early), [1, 0]);
    joined.own.set(&[IpAddr::from(LATER)]);
    let late = joined.frame(LATER, 6);
    assert_eq!(joined.receives(late), [0, 1]);
}

#[test]
fn frames_of_the_twin_leave_by_the_port_before_those_of_the_stack() {
    let mut joined = Joined::new();
    joined.device.lock().expect("no panic").room = 0;
    let frame = joined.frame([224, 0, 0, 5], 89);
    joined.twin.lock().expect("no panic").arrived.push_back(frame);
    assert_eq!(joined.port.poll(0, &mut joined.pool, &mut Batch::new(), 64), 0);
    let mut batch: Batch = [joined.frame(OWN, 1)].into();
    assert_eq!(joined.port.submit(0, &mut joined.pool, &mut batch), 0);
    assert!(joined.port.blocked());
    joined.device.lock().expect("no panic").room = 9;
    assert_eq!(joined.port.submit(0, &mut joined.pool, &mut batch), 1);
    let protocols: Vec<_> = {
        let state = joined.device.lock().expect("no panic");
        state.sent.iter().map(|frame| frame.linear()[14 + 9]).collect()
    };
    assert_eq!(protocols, [89, 1]);
}

#[test]
fn frames_of_the_twin_are_dropped_while_the_port_is_blocked() {
    let mut joined = Joined::new();
    joined.device.lock().expect("no panic").room = 0;
    for _ in 0..1100 {
        let frame = joined.frame([224, 0, 0, 5], 89);
        joined.twin.lock().expect("no panic").arrived.push_back(frame);
    }
    for _ in 0..1100 / 64 + 1 {
        joined.port.poll(0, &mut joined.pool, &mut Batch::new(), 64);
    }
    assert!(joined.twin.lock().expect("no panic").arrived.is_empty(), "the twin is read");
    let counters = joined.port.counters();
    assert_eq!(counters[0].1[2..], [("from_twin", 1000), ("overflow", 100)]);
}

#[test]
fn a_removed_twin_does_not_stop_the_port() {
    let mut joined = Joined::new();
    joined.twin.lock().expect("no panic").gone = true;
    for _ in 0..3 {
        let bgp = joined.frame(OWN, 6);
        assert_eq!(joined.receives(bgp), [0, 0]);
    }
    assert!(!joined.port.is_gone());
    let transit = joined.frame([198, 51, 100, 1], 6);
    assert_eq!(joined.receives(transit), [1, 0]);
    assert_eq!(joined.port.counters()[0].1[3], ("overflow", 3));
}
