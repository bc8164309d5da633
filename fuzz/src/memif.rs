//! Fuzzes one end of a memif link, whose peer writes anything to the shared memory.
//!
//! Invariants after each step:
//!
//! - Received frames are not empty, and not longer than a packet buffer.
//! - The device returns at most as many frames as were asked for.
//! - The device writes only to its index and flags, to descriptors, and to buffers for sent frames.

use std::sync::atomic::Ordering::{Acquire, Release};

use towpath_memif::{
    ClientMemory, MemifCounters, MemifDevice, MemifRole, RingPair, RingSpec, SharedMemory,
};
use towpath_pool::{Batch, Pool};
use towpath_shm::Mapping;

use crate::input::Input;

/// Size of each ring, also as a power of two.
const LOG2_SIZE: u8 = 3;
const SIZE: u16 = 1 << LOG2_SIZE;
/// Length of a buffer in bytes.
const BUFFER: u16 = 256;
/// Layout of a ring: cookie, flags, head, tail, and descriptors.
const COOKIE: u32 = 0x3e3_1f20;
const FLAGS: usize = 4;
const HEAD: usize = 6;
const TAIL: usize = 64;
const TABLE: usize = 128;
const RING_LEN: usize = TABLE + SIZE as usize * 16;
/// Place of the ring to the client, and of the first buffer.
const TO_CLIENT: usize = RING_LEN;
const BUFFERS: usize = 2 * RING_LEN;
const LEN: usize = BUFFERS + 2 * (BUFFER as usize * SIZE as usize);

/// A device, and the memory of the client as its peer sees it.
struct FuzzedLink {
    device: MemifDevice,
    role: MemifRole,
    memory: Mapping,
    counters: MemifCounters,
    pool: Pool,
}

/// Runs a case.
///
/// # Panics
/// If the device violates an invariant.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut link = FuzzedLink::new(input.pick(&[MemifRole::Server, MemifRole::Client]));
    while !input.is_empty() {
        let is_running = match input.u8() % 8 {
            0 => link.scribble(&mut input),
            1..=3 => link.describe(&mut input),
            4 | 5 => link.advance(&mut input),
            6 => link.receive(&mut input),
            _ => link.send(&mut input),
        };
        if !is_running {
            // The port closes the connection, and the client creates new memory.
            link = FuzzedLink::new(link.role);
        }
    }
}

impl FuzzedLink {
    fn new(role: MemifRole) -> Self {
        let (device, memory) = match role {
            MemifRole::Server => server(),
            MemifRole::Client => client(),
        };
        let (counters, pool) = (MemifCounters::default(), Pool::default());
        Self { device, role, memory, counters, pool }
    }

    /// Writes a word anywhere in the rings.
    fn scribble(&self, input: &mut Input<'_>) -> bool {
        let at = usize::from(input.u16()) % (BUFFERS / 2) * 2;
        self.memory.u16(at).store(input.u16(), Release);
        true
    }

    fn describe(&self, input: &mut Input<'_>) -> bool {
        let ring = input.pick(&[0, TO_CLIENT]);
        let at = ring + TABLE + usize::from(input.u8() % SIZE as u8) * 16;
        let region = if input.one_in(8) { input.u16() } else { 0 };
        let offset = match input.u8() % 8 {
            0 => input.u32(),
            1 => u32::from(input.u16()),
            _ => BUFFERS as u32 + u32::from(input.u8() % 16) * u32::from(BUFFER),
        };
        let len = match input.u8() % 8 {
            0 => input.u32(),
            1 => u32::from(input.u16()),
            _ => u32::from(input.u16() % (BUFFER + 2)),
        };
        self.memory.write(at, &u16::from(input.u8() % 4).to_ne_bytes());
        self.memory.write(at + 2, &region.to_ne_bytes());
        self.memory.write(at + 4, &len.to_ne_bytes());
        self.memory.write(at + 8, &offset.to_ne_bytes());
        true
    }

    /// Advances the index of the peer, mostly by a possible number of slots.
    fn advance(&self, input: &mut Input<'_>) -> bool {
        let ring = input.pick(&[0, TO_CLIENT]);
        let index = match self.role {
            MemifRole::Server => HEAD,
            MemifRole::Client => TAIL,
        };
        let by = if input.one_in(16) { input.u16() } else { u16::from(input.u8() % 4) };
        let index = self.memory.u16(ring + index);
        index.store(index.load(Acquire).wrapping_add(by), Release);
        true
    }

    fn receive(&mut self, input: &mut Input<'_>) -> bool {
        let (mut out, max) = (Batch::new(), usize::from(input.u8() % 16));
        let before = self.content();
        let result = self.device.receive(&mut self.counters, &mut self.pool, &mut out, max);
        assert!(out.len() <= max, "{} frames", out.len());
        assert!(result.is_err() || result == Ok(out.len()));
        for packet in out.drain(..) {
            assert!((1..=Pool::LARGE).contains(&packet.len()), "{} bytes", packet.len());
            self.pool.give(packet);
        }
        self.judge(&before);
        result.is_ok()
    }

    fn send(&mut self, input: &mut Input<'_>) -> bool {
        let mut batch = Batch::new();
        for _ in 0..input.u8() % 4 {
            let len = 1 + usize::from(input.u16()) % 3000;
            let mut packet = self.pool.take(len);
            packet.push_back(len).expect("taken with room").fill(input.u8());
            batch.push_back(packet);
        }
        let (before, offered) = (self.content(), batch.len());
        let result = self.device.send(&mut self.counters, &mut self.pool, &mut batch);
        if let Ok((taken, _)) = result {
            assert_eq!(taken + batch.len(), offered);
        }
        batch.drain(..).for_each(|packet| self.pool.give(packet));
        self.device.publish();
        assert!(!self.device.publish(), "there is nothing to notify of");
        self.judge(&before);
        result.is_ok()
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        self.memory.read(0, &mut bytes);
        bytes
    }

    /// Checks that only memory has changed that the device may write.
    fn judge(&self, before: &[u8]) {
        let mut may_write = vec![false; LEN];
        let (index, received) = match self.role {
            MemifRole::Server => (TAIL, 0),
            MemifRole::Client => (HEAD, TO_CLIENT),
        };
        may_write[received + FLAGS..received + FLAGS + 2].fill(true);
        for ring in [0, TO_CLIENT] {
            may_write[ring + index..ring + index + 2].fill(true);
            may_write[ring + TABLE..ring + RING_LEN].fill(true);
        }
        match self.role {
            MemifRole::Client => may_write[BUFFERS..BUFFERS + (LEN - BUFFERS) / 2].fill(true),
            MemifRole::Server => {
                for table in before[TO_CLIENT + TABLE..TO_CLIENT + RING_LEN].chunks(16) {
                    let word = |at: usize| table[at..at + 4].try_into().expect("4 bytes");
                    let [len, offset] = [4, 8].map(|at| u32::from_ne_bytes(word(at)) as usize);
                    let end = offset.saturating_add(len).min(LEN);
                    if offset < BUFFERS {
                        // The device may have written descriptors, and followed them.
                        return;
                    }
                    may_write[offset.min(end)..end].fill(true);
                }
            }
        }
        let after = self.content();
        let at = (0..LEN).find(|&at| before[at] != after[at] && !may_write[at]);
        assert_eq!(at, None, "offset of a byte that was overwritten");
    }
}

fn server() -> (MemifDevice, Mapping) {
    let memory = Mapping::shared("towpath-fuzz", LEN).expect("memory");
    let mut regions = SharedMemory::default();
    let file = rustix::io::fcntl_dupfd_cloexec(memory.file().expect("a file"), 0);
    regions.add(LEN as u64, file.expect("a descriptor")).expect("a valid region");
    for ring in [0, TO_CLIENT] {
        memory.u32(ring).store(COOKIE, Release);
        for slot in 0..usize::from(SIZE) {
            let at = ring + TABLE + slot * 16;
            let buffer = BUFFERS + (ring / RING_LEN * usize::from(SIZE) + slot) * BUFFER as usize;
            memory.write(at + 4, &u32::from(BUFFER).to_ne_bytes());
            memory.write(at + 8, &(buffer as u32).to_ne_bytes());
        }
    }
    let ring = |offset| RingSpec { region: 0, offset, log2_size: LOG2_SIZE };
    let pair = RingPair { to_server: ring(0), to_client: ring(TO_CLIENT as u32) };
    (MemifDevice::server(regions, pair).expect("valid rings"), memory)
}

fn client() -> (MemifDevice, Mapping) {
    let own = ClientMemory::new(LOG2_SIZE, BUFFER).expect("memory");
    assert_eq!(own.region_len(), LEN as u64);
    let file = rustix::io::fcntl_dupfd_cloexec(own.file(), 0).expect("a descriptor");
    let memory = Mapping::from_file(file, LEN).expect("memory");
    (MemifDevice::client(&own).expect("valid rings"), memory)
}
