//! Fuzzes devices whose other side is hostile: the rings of an XDP socket, and virtio-net headers.
//!
//! Invariants after each step:
//!
//! - Chunks handed out to the kernel exist. Their number is that of the returned ones, plus those
//!   that the kernel has.
//! - Packets have the length in their ring entries, at most that of a frame.
//! - Accepted offsets of a virtio-net header are within the frame.

use std::sync::atomic::Ordering::{Acquire, Release};

use towpath_pool::{Batch, Checksum, Pool};
use towpath_shm::Mapping;
use towpath_virtio::HEADER_LEN;
use towpath_xdp::{CHUNK, Chunks, Counters, Queue, Ring, RingLayout};

use crate::input::Input;

/// Entries of each ring. Below, the chunks for receiving and for sending.
const SIZE: u32 = 8;
const RECEIVE: usize = 8;
const SEND: usize = 6;
const LAYOUT: RingLayout = RingLayout { producer: 0, consumer: 64, flags: 128, entries: 192 };
const RING_LEN: usize = 4096;
/// Maximum frame length: an IP packet, an Ethernet header and a tag.
const FRAME_MAX: usize = 65_535 + 18;

/// The kernel's side of the four rings: received frames, frames to send, chunks to receive into,
/// and chunks of sent frames.
struct Kernel {
    rings: [Mapping; 4],
    /// Entries that the kernel has read: frames to send, and chunks to receive into.
    seen: [u32; 2],
    /// Number of times that each chunk was handed out to the kernel.
    handed_out: [u64; RECEIVE + SEND],
}

/// Runs a case.
///
/// # Panics
/// If the device accepts invalid ring entries or headers.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    virtio(&mut input);
    let (queue_rings, rings): (Vec<_>, Vec<_>) = (0..4).map(|_| shared()).unzip();
    let memory = Mapping::private(Chunks::len(RECEIVE, SEND)).expect("memory");
    let sides: Vec<_> =
        queue_rings.into_iter().map(|memory| Ring::new(memory, &LAYOUT, SIZE)).collect();
    let sides = sides.try_into().expect("four rings");
    let mut queue = Queue::new(memory, Chunks::new(RECEIVE, SEND), sides, input.bool());
    let rings = rings.try_into().expect("four rings");
    let mut kernel = Kernel { rings, seen: [0; 2], handed_out: [0; RECEIVE + SEND] };
    let (mut pool, mut out) = (Pool::default(), Batch::new());
    kernel.look(&queue);
    while !input.is_empty() {
        match input.u8() % 8 {
            0 => kernel.scribble(&mut input),
            1..=3 => kernel.put(&mut input),
            4 | 5 => {
                let before = out.len();
                let count = queue.receive(0, &mut pool, &mut out, usize::from(input.u8()));
                assert_eq!(out.len() - before, count, "packets that were put out");
                for packet in out.drain(..) {
                    assert!(packet.len() <= FRAME_MAX, "{} bytes", packet.len());
                    pool.give(packet);
                }
            }
            _ => {
                let mut batch = Batch::new();
                for _ in 0..input.u8() % 4 {
                    let len = usize::from(input.u16());
                    let mut packet = pool.take(len);
                    packet.push_back(len).expect("taken with room").fill(input.u8());
                    batch.push_back(packet);
                }
                queue.send(&mut pool, &mut batch);
            }
        }
        kernel.look(&queue);
    }
}

/// Memory that both sides map.
fn shared() -> (Mapping, Mapping) {
    let one = Mapping::shared("towpath-fuzz", RING_LEN).expect("memory");
    let file = rustix::io::fcntl_dupfd_cloexec(one.file().expect("a file"), 0);
    let other = Mapping::from_file(file.expect("a descriptor"), RING_LEN).expect("memory");
    (one, other)
}

impl Kernel {
    /// Overwrites a word of the two rings that the kernel fills, or the consumer position of
    /// another ring.
    fn scribble(&self, input: &mut Input<'_>) {
        let (n, value) = (input.pick(&[0, 1, 2, 3]), input.u32());
        let at = match n {
            0 | 3 => usize::from(input.u16()) % (RING_LEN / 4) * 4,
            _ => LAYOUT.consumer as usize,
        };
        self.rings[n].u32(at).store(value, Release);
    }

    /// Puts a valid or invalid entry into a ring, and publishes it.
    fn put(&self, input: &mut Input<'_>) {
        let n = input.pick(&[0, 3]);
        let ring = &self.rings[n];
        let produced = ring.u32(LAYOUT.producer as usize).load(Acquire);
        let chunk = u64::from(input.u8()) % (RECEIVE + SEND + 1) as u64;
        let place = if input.bool() { 256 } else { u64::from(input.u16()) % CHUNK as u64 };
        let address = chunk * CHUNK as u64 + place;
        let entry_len = if n == 0 { 16 } else { 8 };
        let at = LAYOUT.entries as usize + (produced % SIZE) as usize * entry_len;
        ring.u64(at).store(address, Release);
        if n == 0 {
            let len = if input.one_in(8) { input.u32() } else { u32::from(input.u16()) % 4096 };
            ring.u32(at + 8).store(len, Release);
            ring.u32(at + 12).store(input.u8().into(), Release);
        }
        ring.u32(LAYOUT.producer as usize).store(produced.wrapping_add(1), Release);
    }

    /// Counts the chunks that the queue has handed out since the last call.
    fn look(&mut self, queue: &Queue) {
        for (seen, (n, entry_len)) in self.seen.iter_mut().zip([(1, 16), (2, 8)]) {
            let ring = &self.rings[n];
            let produced = ring.u32(LAYOUT.producer as usize).load(Acquire);
            let fresh = produced.wrapping_sub(*seen);
            assert!(fresh <= SIZE, "{fresh} entries in a ring of {SIZE}");
            for number in (0..fresh).map(|n| seen.wrapping_add(n)) {
                let at = LAYOUT.entries as usize + (number % SIZE) as usize * entry_len;
                let address = ring.u64(at).load(Acquire);
                let chunks = if n == 1 { RECEIVE..RECEIVE + SEND } else { 0..RECEIVE };
                assert!(address.is_multiple_of(CHUNK as u64), "{address} begins no chunk");
                let chunk = (address / CHUNK as u64) as usize;
                assert!(chunks.contains(&chunk), "chunk {chunk} of ring {n}");
                self.handed_out[chunk] += 1;
            }
            *seen = produced;
        }
        // The difference is the number of chunks that the kernel has.
        let held: usize = queue.held_by_kernel();
        let out: u64 = self.handed_out.iter().sum();
        let back = queue.taken_back();
        assert_eq!(out - back, held as u64, "{out} handed out, {back} taken back");
        assert!(held <= RECEIVE + SEND, "{held} chunks");
        let Counters { tx_bytes, tx_completed_bytes, .. } = queue.counters();
        assert!(tx_completed_bytes <= tx_bytes, "{tx_completed_bytes} of {tx_bytes} bytes");
    }
}

/// Parses a frame with a virtio-net header of a hostile peer.
fn virtio(input: &mut Input<'_>) {
    let mut header = [0; HEADER_LEN];
    header.fill_with(|| input.u8());
    let frame: Vec<u8> = (0..input.u8()).map(|_| input.u8()).collect();
    let Ok(meta) = towpath_virtio::parse(&header, &frame) else { return };
    if let Checksum::Partial { start, offset } = meta.checksum {
        assert!(usize::from(start) + usize::from(offset) + 2 <= frame.len(), "{meta:?}");
    }
    if let Some(cut) = meta.segmentation {
        assert!(cut.size > 0 && usize::from(cut.header_len) <= frame.len(), "{meta:?}");
        towpath_virtio::emit(&meta, &frame).expect("a header that was believed");
    }
}
