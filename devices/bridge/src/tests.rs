//! Tests a bridge of in-memory devices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use towpath_pool::{
    Batch, Checksum, LinkType, Offloads, Packet, Pool, Port, Protocol, Segmentation,
};

use super::{Bridge, BridgeConfig, BridgeError, Counters};

mod twin;

const STACK: [u8; 6] = [2, 0, 0, 0, 0, 0xee];
const ALL: [u8; 6] = [0xff; 6];
const S: u64 = 1_000_000_000;

/// Frames of a device, shared with the test.
struct State {
    arrived: Batch,
    sent: Batch,
    room: usize,
    gone: bool,
}

/// Device with limited transmit room.
struct Device {
    state: Arc<Mutex<State>>,
    bell: OwnedFd,
    offloads: Offloads,
}

impl Device {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }
}

impl Port for Device {
    fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut state = self.state();
        let n = state.arrived.len().min(max);
        out.extend(state.arrived.drain(..n));
        n
    }

    fn submit(&mut self, _: u64, _: &mut Pool, batch: &mut Batch) -> usize {
        let mut state = self.state();
        let n = batch.len().min(state.room - state.sent.len());
        state.sent.extend(batch.drain(..n));
        n
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn blocked(&self) -> bool {
        let state = self.state();
        state.sent.len() == state.room
    }

    fn is_gone(&self) -> bool {
        self.state().gone
    }
}

struct World {
    bridge: Bridge,
    devices: Vec<Arc<Mutex<State>>>,
    pool: Pool,
}

impl World {
    fn new(offloads: &[Offloads], config: BridgeConfig) -> Self {
        let mut devices = Vec::new();
        let mut ports: Vec<Box<dyn Port + Send>> = Vec::new();
        for offloads in offloads {
            let state = State { arrived: Batch::new(), sent: Batch::new(), room: 64, gone: false };
            devices.push(Arc::new(Mutex::new(state)));
            ports.push(Box::new(Device {
                state: Arc::clone(devices.last().expect("one")),
                bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("room"),
                offloads: *offloads,
            }));
        }
        let bridge = Bridge::new(ports, config).expect("descriptors");
        Self { bridge, devices, pool: Pool::default() }
    }

    fn three() -> Self {
        Self::new(&[Offloads::default(); 3], BridgeConfig::new(STACK))
    }

    fn frame(&mut self, dst: [u8; 6], src: [u8; 6]) -> Packet {
        let mut packet = self.pool.take(1500);
        for part in [&dst[..], &src, &[0x08, 0], &[0x45; 46]] {
            packet.push_back(part.len()).expect("room").copy_from_slice(part);
        }
        packet
    }

    fn state(&self, port: usize) -> MutexGuard<'_, State> {
        self.devices[port].lock().expect("no panic")
    }

    /// Receives a frame from a port and returns the number of frames passed to the stack.
    fn comes(&mut self, now_ns: u64, port: usize, dst: [u8; 6], src: [u8; 6]) -> usize {
        let frame = self.frame(dst, src);
        self.state(port).arrived.push_back(frame);
        self.bridge.poll(now_ns, &mut self.pool, &mut Batch::new(), 64)
    }

    fn stack_sends(&mut self, now_ns: u64, dst: [u8; 6]) {
        let mut batch = Batch::new();
        batch.push_back(self.frame(dst, STACK));
        assert_eq!(self.bridge.submit(now_ns, &mut self.pool, &mut batch), 1);
    }

    /// Returns the number of frames that each port has sent since the last call.
    fn sent(&self) -> Vec<usize> {
        (0..self.devices.len()).map(|port| self.state(port).sent.drain(..).count()).collect()
    }

    fn counters(&self) -> Counters {
        self.bridge.stats().counters()
    }
}

fn host(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

#[test]
fn a_frame_goes_where_its_destination_was_seen_and_to_all_before() {
    let mut w = World::three();
    assert_eq!(w.comes(0, 0, host(2), host(1)), 0);
    assert_eq!(w.sent(), [0, 1, 1]);
    assert_eq!(w.comes(0, 1, host(1), host(2)), 0);
    assert_eq!(w.sent(), [1, 0, 0]);
    w.comes(0, 0, host(2), host(1));
    assert_eq!(w.sent(), [0, 1, 0]);
    // A group's frame also goes to the stack; a frame to the stack goes nowhere else.
    assert_eq!(w.comes(0, 2, ALL, host(3)), 1);
    assert_eq!(w.sent(), [1, 1, 0]);
    assert_eq!(w.comes(0, 2, STACK, host(3)), 1);
    assert_eq!(w.sent(), [0, 0, 0]);
    w.stack_sends(0, host(3));
    assert_eq!(w.sent(), [0, 0, 1]);
    w.stack_sends(0, host(9));
    w.stack_sends(0, ALL);
    assert_eq!(w.sent(), [2, 2, 2]);
    let counters = w.counters();
    assert_eq!((counters.forwarded, counters.flooded, counters.to_stack), (3, 4, 2));
    assert_eq!(counters.addresses, 3);
}

#[test]
fn a_neighbour_that_moves_is_found_and_one_that_is_silent_is_forgotten() {
    let mut w = World::three();
    w.comes(0, 0, ALL, host(1));
    w.comes(S, 1, ALL, host(1));
    w.sent();
    w.stack_sends(300 * S, host(1));
    assert_eq!((w.sent(), w.counters().moved), (vec![0, 1, 0], 1));
    w.stack_sends(301 * S, host(1));
    assert_eq!(w.sent(), [1, 1, 1]);
}

#[test]
fn what_must_not_pass_is_dropped_and_counted() {
    let mut w = World::three();
    assert_eq!(w.comes(0, 0, host(2), ALL), 0);
    assert_eq!(w.comes(0, 0, ALL, STACK), 0);
    for last in [0, 0x0e, 0x0f] {
        assert_eq!(w.comes(0, 0, [0x01, 0x80, 0xc2, 0, 0, last], host(1)), 0);
    }
    assert_eq!(w.comes(0, 0, host(1), host(4)), 0);
    let short = {
        let mut packet = w.pool.take(64);
        packet.push_back(13).expect("room").fill(2);
        packet
    };
    w.state(0).arrived.push_back(short);
    for tag in [[0x81, 0x00], [0x88, 0xa8], [0x91, 0x00]] {
        let mut tagged = w.frame(ALL, host(1));
        tagged.linear_mut()[12..14].copy_from_slice(&tag);
        w.state(0).arrived.push_back(tagged);
    }
    let mut by_device = w.frame(ALL, host(1));
    by_device.meta.vlan = Some(10);
    w.state(0).arrived.push_back(by_device);
    assert_eq!(w.bridge.poll(0, &mut w.pool, &mut Batch::new(), 64), 0);
    assert_eq!(w.sent(), [0, 0, 0]);
    let counters = w.counters();
    assert_eq!((counters.malformed, counters.own_address), (2, 1));
    assert_eq!(counters.tagged, 4);
    assert_eq!((counters.link_local, counters.same_port), (3, 1));
    // The address after the reserved ones is an ordinary group.
    assert_eq!(w.comes(0, 0, [0x01, 0x80, 0xc2, 0, 0, 0x10], host(1)), 1);
    assert_eq!(w.sent(), [0, 1, 1]);
}

#[test]
fn a_port_that_takes_no_more_holds_up_nobody_else() {
    let mut w = World::three();
    w.comes(0, 1, ALL, host(2));
    w.comes(0, 2, ALL, host(3));
    w.sent();
    for _ in 0..64 + 1000 + 5 {
        w.stack_sends(0, host(2));
        w.stack_sends(0, host(3));
        w.state(2).sent.clear();
    }
    assert_eq!((w.state(1).sent.len(), w.counters().overflow), (64, 5));
    // The bridge's descriptor signals room, since an eventfd is always writable.
    let ready = |w: &World| {
        let fd = w.bridge.wake_fd().expect("an epoll instance");
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).expect("open") == 1
    };
    assert!(ready(&w));
    let mut got = 0;
    while got < 64 + 1000 {
        w.bridge.looked(true);
        w.bridge.poll(0, &mut w.pool, &mut Batch::new(), 64);
        got += w.state(1).sent.drain(..).count();
    }
    w.bridge.poll(0, &mut w.pool, &mut Batch::new(), 64);
    assert!(!ready(&w));
}

#[test]
fn a_port_that_has_gone_is_left_out() {
    let mut w = World::three();
    w.comes(0, 1, ALL, host(2));
    w.sent();
    w.state(1).gone = true;
    w.bridge.poll(0, &mut w.pool, &mut Batch::new(), 64);
    w.stack_sends(0, host(2));
    assert_eq!((w.sent(), w.counters().addresses), (vec![1, 0, 1], 1));
    assert!(!w.bridge.is_gone());
    for port in [0, 2] {
        w.state(port).gone = true;
    }
    w.bridge.poll(0, &mut w.pool, &mut Batch::new(), 64);
    assert!(w.bridge.is_gone());
}

#[test]
fn a_port_without_offloads_gets_finished_segments() {
    let all = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };
    let mut w = World::new(&[all, Offloads::default(), all], BridgeConfig::new(STACK));
    assert_eq!(w.bridge.offloads(), Offloads::default());
    let mut frame = w.frame(ALL, host(1));
    // IPv4 header, TCP header without options, 3000 bytes.
    let mut headers = [0; 40];
    (headers[0], headers[9], headers[32]) = (0x45, 6, 0x50);
    headers[2..4].copy_from_slice(&3040_u16.to_be_bytes());
    headers[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame.truncate(14);
    let mut large = w.pool.take(4000);
    large.push_back(14).expect("room").copy_from_slice(frame.linear());
    large.push_back(40).expect("room").copy_from_slice(&headers);
    large.push_back(3000).expect("room").fill(7);
    let how = Segmentation { protocol: Protocol::Tcp4, size: 1400, header_len: 54 };
    large.meta.segmentation = Some(how);
    large.meta.checksum = Checksum::Partial { start: 34, offset: 16 };
    w.state(0).arrived.push_back(large);
    assert_eq!(w.bridge.poll(0, &mut w.pool, &mut Batch::new(), 64), 1);
    let cut: Vec<_> = w.state(1).sent.drain(..).collect();
    assert_eq!(cut.iter().map(Packet::len).collect::<Vec<_>>(), [1454, 1454, 254]);
    for segment in &cut {
        assert_eq!((segment.meta.checksum, segment.meta.segmentation), (Checksum::Unknown, None));
        // A correct checksum sums up to all ones with pseudo-header and segment.
        let tcp = &segment.linear()[34..];
        let words = segment.linear()[26..34].chunks(2).chain(tcp.chunks(2));
        let mut sum: u32 = 6 + tcp.len() as u32;
        for word in words {
            sum += u32::from(word[0]) << 8 | word.get(1).map_or(0, |byte| u32::from(*byte));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        assert_eq!(sum, 0xffff);
    }
    let whole = w.state(2).sent.pop_front().expect("a copy");
    assert_eq!((whole.len(), whole.meta.segmentation), (3054, Some(how)));
}

/// The bridge drops such a packet, because it would otherwise send a frame that exceeds the MTU.
#[test]
fn segments_that_the_headers_do_not_describe_are_dropped() {
    let sums = Offloads { checksum: true, ..Offloads::default() };
    let mut w = World::new(&[sums, sums], BridgeConfig::new(STACK));
    let mut large = w.frame(host(9), host(1));
    large.push_back(1700).expect("room").fill(7);
    let segmentation = Segmentation { protocol: Protocol::Tcp4, size: 1400, header_len: 54 };
    large.meta.segmentation = Some(segmentation);
    large.meta.checksum = Checksum::Partial { start: 34, offset: 16 };
    w.state(0).arrived.push_back(large);
    w.bridge.poll(0, &mut w.pool, &mut Batch::new(), 64);
    assert_eq!((w.state(1).sent.len(), w.counters().malformed), (0, 1));
}

#[test]
fn ports_of_another_kind_are_refused() {
    struct Tun;
    impl Port for Tun {
        fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
            0
        }
        fn submit(&mut self, _: u64, _: &mut Pool, _: &mut Batch) -> usize {
            0
        }
        fn offloads(&self) -> Offloads {
            Offloads::default()
        }
        fn link_type(&self) -> LinkType {
            LinkType::Ip
        }
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }
    let refused = Bridge::new(vec![Box::new(Tun)], BridgeConfig::new(STACK));
    assert!(matches!(refused.err(), Some(BridgeError::NoEthernet(0))));
}
