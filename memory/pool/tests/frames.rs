//! Packets in device memory must behave exactly like packets in buffers of the pool.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use towpath_dice::Dice;
use towpath_pool::{
    Batch, Fragments, LinkType, Offloads, Owner, Packet, Pool, Port, Protocol, Segmentation,
    Stretch,
};
use towpath_shm::Mapping;

/// Payload size of a frame in bytes.
const FRAME_LEN: usize = 2048;

/// An in-memory device that receives into a limited number of its own frames.
struct Device {
    owner: Option<Owner>,
    /// Frames without a packet.
    free: Vec<&'static mut [u8]>,
    arriving: VecDeque<Vec<u8>>,
    /// Number of polls that found a packet but no free frame.
    starved: usize,
}

impl Device {
    fn new(frames: usize) -> Self {
        let frame = || vec![0; Pool::HEADROOM + FRAME_LEN].leak();
        let free = std::iter::repeat_with(frame).take(frames).collect();
        Self { owner: None, free, arriving: VecDeque::new(), starved: 0 }
    }
}

impl Port for Device {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let owner = *self.owner.get_or_insert_with(|| pool.add_owner());
        while let Some(frame) = pool.take_frame(owner) {
            self.free.push(frame);
        }
        let mut received = 0;
        while received < max && !self.arriving.is_empty() {
            let Some(frame) = self.free.pop() else {
                self.starved += 1;
                break;
            };
            let Some(bytes) = self.arriving.pop_front() else { break };
            let mut packet = Packet::in_frame(frame, owner);
            packet.spare_mut()[..bytes.len()].copy_from_slice(&bytes);
            packet.received(bytes.len());
            packet.meta.arrival_ns = now_ns;
            out.push_back(packet);
            received += 1;
        }
        received
    }

    /// Copies all packets, even those in frames of the device.
    fn submit(&mut self, _now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len();
        for packet in batch.drain(..) {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(0, &mut bytes);
            self.arriving.push_back(bytes);
            pool.give(packet);
        }
        n
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

#[test]
fn a_device_goes_on_with_the_frames_that_come_back() {
    let (mut pool, mut batch) = (Pool::default(), Batch::new());
    let mut device = Device::new(4);
    device.arriving.extend((0..6).map(|n| vec![n; 1500]));
    assert_eq!(device.poll(0, &mut pool, &mut batch, 64), 4);
    assert_eq!(device.poll(0, &mut pool, &mut batch, 64), 0, "all frames are out");
    assert_eq!(device.starved, 2);
    // The frames come back in a different order.
    pool.give(batch.remove(2).unwrap());
    assert_eq!(device.poll(0, &mut pool, &mut batch, 64), 1);
    let seen: Vec<u8> = batch.iter().map(|packet| packet.linear()[0]).collect();
    assert_eq!(seen, [0, 1, 3, 4]);
    // The device sends the received packets again, many times, without an allocation.
    for _ in 0..1000 {
        assert!(device.submit(0, &mut pool, &mut batch) > 0);
        assert!(device.poll(0, &mut pool, &mut batch, 64) > 0);
        for packet in &mut batch {
            packet.pull_front(20).unwrap();
            packet.push_front(20);
            assert_eq!(packet.len(), 1500);
        }
    }
    assert_eq!((pool.allocated(), device.arriving.len() + batch.len()), (0, 5));
}

#[test]
fn two_devices_get_their_own_frames() {
    let (mut pool, mut batch) = (Pool::default(), Batch::new());
    let mut devices = [Device::new(3), Device::new(5)];
    for device in &mut devices {
        device.arriving.extend((0..8).map(|n| vec![n; 60]));
        device.poll(0, &mut pool, &mut batch, 64);
    }
    batch.push_back(pool.take(60));
    batch.drain(..).rev().for_each(|packet| pool.give(packet));
    for (device, frames) in devices.iter_mut().zip([3, 5]) {
        device.arriving.clear();
        device.poll(0, &mut pool, &mut batch, 64);
        assert_eq!(device.free.len(), frames);
    }
}

/// Two shards, each with a pool and a queue of one device.
#[test]
fn a_frame_of_another_shard_goes_to_the_queue_of_the_same_device() {
    let (mut near, mut far) = (Pool::default(), Pool::default());
    let owner = near.add_owner();
    let frame = || vec![0; Pool::HEADROOM + FRAME_LEN].leak();
    // The queue of the second shard has not been polled yet.
    far.give(Packet::in_frame(frame(), owner));
    let its_owner = far.add_owner();
    far.give(Packet::in_frame(frame(), owner));
    assert_eq!(its_owner, owner);
    let back = std::iter::from_fn(|| far.take_frame(its_owner)).count();
    assert_eq!((back, near.take_frame(owner).is_none()), (2, true));
}

#[test]
fn a_packet_in_a_frame_becomes_the_frame_again() {
    let mut pool = Pool::default();
    let (owner, other) = (pool.add_owner(), pool.add_owner());
    let mut packet = Packet::in_frame(vec![0; Pool::HEADROOM + FRAME_LEN].leak(), owner);
    packet.push_back(5).expect("room").copy_from_slice(b"bytes");
    packet.push_front(2).copy_from_slice(b"in");
    let packet = packet.into_frame(other).expect_err("another device's");
    let (frame, range) = packet.into_frame(owner).expect("all bytes are in it");
    assert_eq!(&frame[range], b"inbytes");
    assert!(pool.take(64).into_frame(owner).is_err());
}

#[test]
#[should_panic(expected = "a frame of 192 bytes")]
fn a_frame_has_room_for_headers() {
    let owner = Pool::default().add_owner();
    let _ = Packet::in_frame(vec![0; Pool::HEADROOM].leak(), owner);
}

/// Applies the same random operation to a packet, regardless of its memory.
fn step(packet: &mut Packet, pool: &mut Pool, (what, n): (usize, usize), tail: &Fragments) {
    let fill = |bytes: &mut [u8]| bytes.fill(n as u8);
    match what {
        0 => fill(packet.push_front(n.min(packet.headroom()))),
        1 => drop(packet.pull_front(n)),
        2 => packet.push_back(n).into_iter().for_each(fill),
        3 => packet.truncate(n),
        4 if packet.tail.is_empty() => packet.tail = tail.slice(0, n as u32),
        5 => packet.linearize(pool),
        6 => {
            let how = Segmentation { protocol: Protocol::Udp, size: 1000, header_len: 8 };
            packet.meta.segmentation = Some(how);
        }
        _ => fill(packet.linear_mut()),
    }
}

#[test]
fn nobody_sees_whose_bytes_they_are_and_all_frames_come_back() {
    const FRAMES: usize = 8;
    let memory = Arc::new(Mapping::private(1 << 12).unwrap());
    memory.write(0, &[0xaa; 1 << 12]);
    let tail = Fragments::new(Stretch::new(&memory, 0, 1 << 12), None);
    let mut pool = Pool::default();
    let mut device = Device::new(FRAMES);
    let mut dice = Dice::new(1, 0);
    let mut pairs: Vec<(Packet, Packet)> = Vec::new();
    for _ in 0..20_000 {
        device.arriving.push_back(vec![dice.index(256) as u8; dice.index(FRAME_LEN)]);
        let mut batch = Batch::new();
        device.poll(0, &mut pool, &mut batch, 1);
        device.arriving.clear();
        for packet in batch {
            // Exactly as much space as a frame has.
            let mut twin = pool.take(Pool::SMALL);
            twin.push_back(packet.len().min(Pool::SMALL)).unwrap();
            twin.linear_mut().copy_from_slice(&packet.linear()[..packet.len().min(Pool::SMALL)]);
            let mut packet = packet;
            packet.truncate(twin.len());
            pairs.push((packet, twin));
        }
        if !pairs.is_empty() {
            let at = dice.index(pairs.len());
            let (what, n) = (dice.index(9), dice.index(1500));
            if what == 8 || pairs.len() == FRAMES {
                let (packet, twin) = pairs.swap_remove(at);
                pool.give(packet);
                pool.give(twin);
                continue;
            }
            let (packet, twin) = &mut pairs[at];
            // Small buffers of the pool are shorter than these frames.
            if what == 2 && n > twin.tailroom() {
                continue;
            }
            for packet in [&mut *packet, &mut *twin] {
                step(packet, &mut pool, (what, n), &tail);
            }
            assert_eq!((packet.linear(), packet.len()), (twin.linear(), twin.len()));
            assert_eq!(packet.headroom(), twin.headroom());
        }
    }
    for (packet, twin) in pairs {
        pool.give(packet);
        pool.give(twin);
    }
    device.poll(0, &mut pool, &mut Batch::new(), 0);
    assert_eq!(device.free.len(), FRAMES, "a frame was lost");
}
