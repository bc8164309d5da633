//! In-memory ports: an endless source of frames, and a sink.

use std::os::fd::BorrowedFd;

use towpath_pool::{Batch, LinkType, Offloads, Owner, Packet, Pool, Port};

/// Length of a frame in memory in bytes, without Ethernet's checksum: 64 bytes on the wire.
pub const FRAME_LEN: usize = 60;

/// Number of frames of a device in flight, about as many as testpmd's cache of mbufs holds.
const FRAMES: usize = 256;
const FRAME_BYTES: usize = 2048;

/// Port that delivers its frames repeatedly, each in memory of the device, as a DPDK driver does.
pub struct Source {
    frames: Vec<[u8; 64]>,
    next: usize,
    owner: Option<Owner>,
}

impl Source {
    /// Creates a port that delivers the first [`FRAME_LEN`] bytes of these frames.
    pub fn new(frames: Vec<[u8; 64]>) -> Self {
        Self { frames, next: 0, owner: None }
    }

    fn owner(&mut self, pool: &mut Pool) -> Owner {
        *self.owner.get_or_insert_with(|| {
            let owner = pool.add_owner();
            for _ in 0..FRAMES {
                pool.give(Packet::in_frame(vec![0; FRAME_BYTES].leak(), owner));
            }
            owner
        })
    }
}

impl Port for Source {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let owner = self.owner(pool);
        for n in 0..max {
            let Some(frame) = pool.take_frame(owner) else { return n };
            let mut packet = Packet::in_frame(frame, owner);
            packet.push_back(FRAME_LEN).expect("room").copy_from_slice(self.next_frame());
            packet.meta.arrival_ns = now_ns;
            out.push_back(packet);
        }
        max
    }

    fn submit(&mut self, _now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        take_all(pool, batch)
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Source {
    fn next_frame(&mut self) -> &[u8] {
        let frame = &self.frames[self.next];
        self.next += 1;
        if self.next == self.frames.len() {
            self.next = 0;
        }
        &frame[..FRAME_LEN]
    }
}

/// Port that accepts all frames and delivers none.
#[derive(Default)]
pub struct Sink;

impl Port for Sink {
    fn poll(&mut self, _now_ns: u64, _pool: &mut Pool, _out: &mut Batch, _max: usize) -> usize {
        0
    }

    fn submit(&mut self, _now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        take_all(pool, batch)
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn take_all(pool: &mut Pool, batch: &mut Batch) -> usize {
    let count = batch.len();
    batch.drain(..).for_each(|packet| pool.give(packet));
    count
}
