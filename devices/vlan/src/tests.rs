//! Tests a trunk over an in-memory device.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use towpath_pool::{
    Batch, Checksum, LinkType, Offloads, Packet, Pool, Port, Protocol, Segmentation,
};

use super::{Vlan, VlanError, VlanPort, split};

/// Device with limited transmit room, and with queued received frames.
struct Device {
    link: LinkType,
    room: usize,
    sent: Batch,
    arrived: Batch,
    bell: OwnedFd,
}

impl Device {
    fn new(room: usize) -> Self {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        Self { link: LinkType::Ethernet, room, sent: Batch::new(), arrived: Batch::new(), bell }
    }
}

impl Port for Device {
    fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let n = self.arrived.len().min(max);
        out.extend(self.arrived.drain(..n));
        n
    }

    fn submit(&mut self, _: u64, _: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len().min(self.room - self.sent.len());
        self.sent.extend(batch.drain(..n));
        n
    }

    fn offloads(&self) -> Offloads {
        Offloads { checksum: true, ..Offloads::default() }
    }

    fn link_type(&self) -> LinkType {
        self.link
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn blocked(&self) -> bool {
        self.sent.len() == self.room
    }
}

const IPV4: [u8; 2] = [0x08, 0x00];

/// Builds a frame with the given EtherTypes and tags after its addresses, and a payload.
fn frame(pool: &mut Pool, behind: &[u8], payload: &[u8]) -> Packet {
    let mut packet = pool.take(1500);
    let addresses: Vec<u8> = (1..=12).collect();
    for part in [&addresses[..], behind, payload] {
        packet.push_back(part.len()).expect("room").copy_from_slice(part);
    }
    packet
}

/// Ports for untagged frames, VLAN 10 and VLAN 20.
fn trunk(
    arrived: impl FnOnce(&mut Pool) -> Vec<Packet>,
    room: usize,
) -> (Vec<VlanPort<Device>>, Pool) {
    let (mut device, mut pool) = (Device::new(room), Pool::default());
    device.arrived.extend(arrived(&mut pool));
    let vlans = [Vlan::Untagged, Vlan::Tagged(10), Vlan::Tagged(20)];
    (split(device, &vlans).expect("descriptors"), pool)
}

fn receive(port: &mut VlanPort<Device>, pool: &mut Pool) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    port.poll(0, pool, &mut batch, 64);
    batch.iter().map(|frame| frame.linear()[12..].to_vec()).collect()
}

#[test]
fn each_frame_goes_to_the_port_of_its_vlan_without_its_tag() {
    let (mut ports, mut pool) = trunk(
        |pool| {
            let mut by_device = frame(pool, &IPV4, b"device");
            by_device.meta.vlan = Some(0x6014);
            vec![
                frame(pool, &IPV4, b"none"),
                frame(pool, &[0x81, 0, 0xe0, 10, 8, 0], b"ten"),
                frame(pool, &[0x81, 0, 0xa0, 0, 8, 0], b"priority"),
                by_device,
            ]
        },
        8,
    );
    assert_eq!(receive(&mut ports[1], &mut pool), [b"\x08\x00ten"]);
    assert_eq!(ports[0].next_timeout_ns(), Some(0));
    assert_eq!(receive(&mut ports[0], &mut pool), [&b"\x08\x00none"[..], b"\x08\x00priority"]);
    assert_eq!(receive(&mut ports[2], &mut pool), [b"\x08\x00device"]);
    assert!(ports.iter().all(|port| port.next_timeout_ns().is_none()));
}

/// Frames with two tags must be dropped. Otherwise each would enter VLAN 10 or 20, or cross a
/// bridge.
#[test]
fn frames_with_two_tags_or_with_a_foreign_one_are_no_ports() {
    let tags: [&[u8]; 8] = [
        &[0x81, 0, 0, 0, 0x81, 0, 0, 10, 8, 0],
        &[0x81, 0, 0, 20, 0x81, 0, 0, 10, 8, 0],
        &[0x81, 0, 0, 0, 0x88, 0xa8, 0, 10, 8, 0],
        &[0x88, 0xa8, 0, 10, 8, 0],
        &[0x88, 0xa8, 0, 0, 8, 0],
        &[0x88, 0xa8, 0, 0, 0x88, 0xa8, 0, 10, 8, 0],
        &[0x91, 0, 0, 10, 8, 0],
        &[0x92, 0, 0, 10, 8, 0],
    ];
    let (mut ports, mut pool) = trunk(
        |pool| {
            let mut by_device = frame(pool, &[0x88, 0xa8, 0, 10, 8, 0], b"");
            by_device.meta.vlan = Some(0);
            let frames = tags.map(|tags| frame(pool, tags, b""));
            frames.into_iter().chain([by_device]).collect()
        },
        8,
    );
    for port in &mut ports {
        assert_eq!(receive(port, &mut pool), Vec::<Vec<u8>>::new());
    }
    let counters = ports[0].counters();
    assert_eq!((counters.rx_foreign, counters.rx_malformed), (9, 0));
}

#[test]
fn what_belongs_to_nobody_is_dropped_and_counted() {
    let (mut ports, mut pool) = trunk(
        |pool| {
            let mut short = pool.take(64);
            short
                .push_back(14)
                .expect("room")
                .copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0]);
            vec![frame(pool, &[0x81, 0, 0, 30, 8, 0], b"thirty"), short, pool.take(64)]
        },
        8,
    );
    assert!(receive(&mut ports[1], &mut pool).is_empty());
    let counters = ports[2].counters();
    assert_eq!((counters.rx_foreign, counters.rx_malformed), (1, 1));
    // The empty frame is passed on, and the stack rejects it.
    assert_eq!(ports[0].poll(0, &mut pool, &mut Batch::new(), 64), 1);
}

#[test]
fn a_sent_frame_has_the_tag_and_its_headers_places() {
    let (mut ports, mut pool) = trunk(|_| Vec::new(), 8);
    let segmentation = Segmentation { protocol: Protocol::Tcp4, size: 1400, header_len: 54 };
    let mut batch = Batch::new();
    for place in 0..3 {
        let mut packet = frame(&mut pool, &IPV4, &[place; 60]);
        packet.meta.checksum = Checksum::Partial { start: 34, offset: 16 };
        packet.meta.segmentation = Some(segmentation);
        batch.push_back(packet);
        assert_eq!(ports[usize::from(place)].submit(0, &mut pool, &mut batch), 1);
    }
    let mut trunk = ports[0].trunk();
    let sent: Vec<_> = trunk.port.sent.drain(..).collect();
    assert_eq!(sent[0].linear()[12..15], [8, 0, 0]);
    assert_eq!(sent[0].meta.checksum, Checksum::Partial { start: 34, offset: 16 });
    assert_eq!(sent[1].linear()[..12], *(1..=12).collect::<Vec<u8>>());
    assert_eq!(sent[1].linear()[12..19], [0x81, 0, 0, 10, 8, 0, 1]);
    assert_eq!(sent[2].linear()[12..19], [0x81, 0, 0, 20, 8, 0, 2]);
    for packet in &sent[1..] {
        assert_eq!(packet.meta.checksum, Checksum::Partial { start: 38, offset: 16 });
        assert_eq!(packet.meta.segmentation, Some(Segmentation { header_len: 58, ..segmentation }));
    }
    // Received again, the frames are the original ones.
    trunk.port.arrived.extend(sent);
    drop(trunk);
    for port in &mut ports {
        port.poll(0, &mut pool, &mut batch, 64);
    }
    assert_eq!(batch.len(), 3);
    for (place, packet) in (0..).zip(&batch) {
        assert_eq!(packet.linear()[12..15], [8, 0, place]);
        assert_eq!(packet.meta.checksum, Checksum::Partial { start: 34, offset: 16 });
        assert_eq!(packet.meta.segmentation, Some(segmentation));
    }
}

#[test]
fn a_full_device_is_waited_for_by_all_and_nothing_is_lost() {
    let (mut ports, mut pool) = trunk(|_| Vec::new(), 2);
    let mut batch = Batch::new();
    batch.extend((0..3).map(|n| frame(&mut pool, &IPV4, &[n])));
    assert_eq!(ports[1].submit(0, &mut pool, &mut batch), 3);
    assert!(ports[2].blocked());
    batch.push_back(frame(&mut pool, &IPV4, &[3]));
    assert_eq!(ports[2].submit(0, &mut pool, &mut batch), 0);
    let take = |ports: &[VlanPort<Device>]| -> Vec<(u8, u8)> {
        let mut trunk = ports[0].trunk();
        trunk.port.sent.drain(..).map(|it| (it.linear()[15], it.linear()[18])).collect()
    };
    assert_eq!(take(&ports), [(10, 0), (10, 1)]);
    assert_eq!(ports[2].submit(0, &mut pool, &mut batch), 1);
    assert_eq!(take(&ports), [(10, 2), (20, 3)]);
    assert!(!ports[2].blocked());
}

#[test]
fn nobody_polls_a_port_and_its_frames_stay_few() {
    let (mut ports, mut pool) =
        trunk(|pool| (0..2000).map(|_| frame(pool, &[0x81, 0, 0, 10, 8, 0], b"x")).collect(), 1);
    for _ in 0..2000 / 64 + 1 {
        assert!(receive(&mut ports[0], &mut pool).is_empty());
    }
    assert_eq!(ports[0].counters().rx_overflow, 2000 - 1024);
    assert_eq!(ports[1].poll(0, &mut pool, &mut Batch::new(), 5000), 1024);
}

#[test]
fn what_cannot_be_split_is_refused() {
    let twice = split(Device::new(1), &[Vlan::Tagged(5), Vlan::Tagged(5)]);
    assert!(matches!(twice.err(), Some(VlanError::Twice(Vlan::Tagged(5)))));
    let ip = Device { link: LinkType::Ip, ..Device::new(1) };
    assert!(matches!(split(ip, &[]).err(), Some(VlanError::NoEthernet)));
    for id in [0, 4095, 65535] {
        assert!(matches!(Vlan::tagged(id), Err(VlanError::Id(_))));
    }
}
