//! Fuzzes the network device of a virtual machine, whose driver writes anything to the virtqueues.
//!
//! Invariants after each step:
//!
//! - Received frames are not longer than a packet buffer.
//! - The device returns at most as many chains as its virtqueue has.
//! - The device writes only to the used rings, and to memory that a descriptor names as writable.

use std::sync::atomic::Ordering::{Acquire, Release};

use towpath_pool::{Batch, Checksum, Pool, Protocol, Segmentation};
use towpath_shm::Mapping;
use towpath_vhost::{
    GuestMemory, NetDevice, OFFERED, RX, RegionSpec, RingAddresses, RingSetup, TX, VhostCounters,
};

use crate::input::Input;

/// Entries of each virtqueue.
const SIZE: u16 = 8;
/// Length of the guest's memory, and its first guest-physical address.
const LEN: usize = 1 << 16;
const GUEST: u64 = 0x10_0000;
/// Places of the parts of the first virtqueue, and the distance to those of the second one.
const TABLE: usize = 0;
const AVAILABLE: usize = 0x100;
const USED: usize = 0x200;
const DISTANCE: usize = 0x400;
/// Length of a used ring in bytes.
const USED_LEN: usize = 4 + SIZE as usize * 8 + 2;
/// Place of the area for indirect tables and buffers.
const BUFFERS: usize = 0x800;
/// Length of a table in bytes.
const TABLE_LEN: usize = SIZE as usize * 16;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A device, and the memory of its guest as the driver sees it.
struct FuzzedMachine {
    device: NetDevice,
    memory: Mapping,
    /// Distance of the two memory regions for the guest.
    gap: u64,
    counters: VhostCounters,
    pool: Pool,
}

/// Runs a case.
///
/// # Panics
/// If the device violates an invariant.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut machine = FuzzedMachine::new(&mut input);
    while !input.is_empty() {
        match input.u8() % 8 {
            0 => machine.scribble(&mut input),
            1..=3 => machine.describe(&mut input),
            4 => machine.make_available(&mut input),
            5 => machine.receive(&mut input),
            6 => machine.send(&mut input),
            _ => machine.restart(&mut input),
        }
    }
}

impl FuzzedMachine {
    fn new(input: &mut Input<'_>) -> Self {
        let memory = Mapping::shared("towpath-fuzz", LEN).expect("memory");
        let mut guest = GuestMemory::default();
        // Two regions, which adjoin or have a gap.
        let (half, gap) = (LEN as u64 / 2, u64::from(input.bool()) * 4096);
        for (guest_address, offset) in [(GUEST, 0), (GUEST + half + gap, half)] {
            let file = rustix::io::fcntl_dupfd_cloexec(memory.file().expect("a file"), 0);
            let spec = RegionSpec { guest: guest_address, len: half, user: GUEST + offset, offset };
            guest.add(spec, file.expect("a descriptor")).expect("a valid region");
        }
        let features = u64::from(input.u32()) | u64::from(input.u8()) << 32;
        let device = NetDevice::new(features & OFFERED, guest);
        let (counters, pool) = (VhostCounters::default(), Pool::default());
        let mut machine = Self { device, memory, gap, counters, pool };
        machine.start(RX, 0);
        machine.start(TX, 0);
        machine
    }

    fn start(&mut self, queue: usize, base: u16) {
        let place = |part: usize| GUEST + (queue * DISTANCE + part) as u64;
        let (descriptors, used, available) = (place(TABLE), place(USED), place(AVAILABLE));
        let addresses = RingAddresses { descriptors, used, available };
        let setup = RingSetup { size: SIZE, base, addresses, ..RingSetup::default() };
        self.device.start(queue, setup).expect("valid places");
    }

    fn restart(&mut self, input: &mut Input<'_>) {
        let queue = input.pick(&[RX, TX]);
        self.device.take_fault(queue);
        let next = self.device.stop(queue).unwrap_or_default();
        let base = if input.one_in(4) { input.u16() } else { next };
        self.start(queue, base);
    }

    fn scribble(&self, input: &mut Input<'_>) {
        let at = usize::from(input.u16()) % (BUFFERS / 2) * 2;
        self.memory.u16(at).store(input.u16(), Release);
    }

    /// Writes a descriptor, in the table of a virtqueue or in an indirect one.
    fn describe(&self, input: &mut Input<'_>) {
        let table = input.pick(&[TABLE, DISTANCE + TABLE, BUFFERS]);
        let at = table + usize::from(input.u8() % SIZE as u8) * 16;
        let flags = u16::from(input.u8() % 8);
        let address = match input.u8() % 8 {
            0 => u64::from(input.u32()) << 32,
            1 => u64::from(input.u32()),
            _ if flags & INDIRECT != 0 => GUEST + BUFFERS as u64,
            _ => GUEST + (BUFFERS + TABLE_LEN) as u64 + u64::from(input.u16()),
        };
        let len = match input.u8() % 8 {
            0 => input.u32(),
            _ if flags & INDIRECT != 0 => u32::from(input.u8() % 9) * 16,
            _ => u32::from(input.u16()) % 4096,
        };
        self.memory.write(at, &address.to_le_bytes());
        self.memory.write(at + 8, &len.to_le_bytes());
        self.memory.write(at + 12, &flags.to_le_bytes());
        self.memory.write(at + 14, &u16::from(input.u8() % 10).to_le_bytes());
    }

    fn make_available(&self, input: &mut Input<'_>) {
        let start = input.pick(&[RX, TX]) * DISTANCE + AVAILABLE;
        let index = self.memory.u16(start + 2);
        let next = index.load(Acquire);
        let slot = usize::from(next % SIZE);
        self.memory.u16(start + 4 + slot * 2).store(u16::from(input.u8() % 9), Release);
        index.store(next.wrapping_add(1), Release);
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        let (mut out, max) = (Batch::new(), usize::from(input.u8() % 16));
        let before = self.content();
        let Self { device, counters, pool, .. } = self;
        let count = device.receive(counters, pool, &mut out, max);
        assert_eq!(count, out.len());
        assert!(count <= max.min(SIZE.into()), "{count} frames");
        for packet in out.drain(..) {
            assert!((1..=Pool::LARGE).contains(&packet.len()), "{} bytes", packet.len());
            pool.give(packet);
        }
        self.publish(TX);
        self.judge(&before);
    }

    fn send(&mut self, input: &mut Input<'_>) {
        let mut batch = Batch::new();
        for _ in 0..input.u8() % 4 {
            let len = 54 + usize::from(input.u16()) % 12_000;
            let mut packet = self.pool.take(len);
            packet.push_back(len).expect("taken with room").fill(input.u8());
            if input.bool() {
                packet.meta.checksum = Checksum::Partial { start: 34, offset: 16 };
                let (protocol, size) = (Protocol::Tcp4, input.u16());
                let cut = Segmentation { protocol, size, header_len: 54 };
                packet.meta.segmentation = input.bool().then_some(cut);
            }
            batch.push_back(packet);
        }
        let (before, offered) = (self.content(), batch.len());
        let Self { device, counters, pool, .. } = self;
        let (taken, _) = device.send(counters, pool, &mut batch);
        assert_eq!(taken + batch.len(), offered);
        batch.drain(..).for_each(|packet| pool.give(packet));
        self.publish(RX);
        self.judge(&before);
    }

    fn publish(&mut self, queue: usize) {
        self.device.publish(queue);
        let index = || self.memory.u16(queue * DISTANCE + USED + 2).load(Acquire);
        let published = index();
        assert!(!self.device.publish(queue), "there is nothing to notify of");
        assert_eq!(index(), published);
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        self.memory.read(0, &mut bytes);
        bytes
    }

    /// Checks that only memory has changed that the device may write.
    fn judge(&self, before: &[u8]) {
        let mut may_write = vec![false; LEN];
        for queue in [RX, TX] {
            let used = queue * DISTANCE + USED;
            may_write[used..used + USED_LEN].fill(true);
        }
        for table in [TABLE, DISTANCE + TABLE, BUFFERS] {
            for n in 0..usize::from(SIZE) {
                let (address, len, flags) = parse(&before[table + n * 16..]);
                let is_elsewhere = address != GUEST + BUFFERS as u64 || len as usize > TABLE_LEN;
                if flags & INDIRECT != 0 && is_elsewhere {
                    // The table may be where frames are, so that its content is not known.
                    return;
                }
                if flags & (WRITE | INDIRECT) == WRITE {
                    self.allow(address, len.into(), &mut may_write);
                }
            }
        }
        for table in [TABLE, DISTANCE + TABLE, BUFFERS] {
            if may_write[table..table + TABLE_LEN].contains(&true) {
                // The device may have written descriptors, and followed them.
                return;
            }
        }
        let after = self.content();
        let at = (0..LEN).find(|&at| before[at] != after[at] && !may_write[at]);
        assert_eq!(at, None, "offset of a byte that was overwritten");
    }

    /// Marks a range of guest-physical addresses.
    fn allow(&self, address: u64, len: u64, may_write: &mut [bool]) {
        let half = LEN as u64 / 2;
        for (guest, offset) in [(GUEST, 0), (GUEST + half + self.gap, half)] {
            let from = address.clamp(guest, guest + half) - guest;
            let to = address.saturating_add(len).clamp(guest, guest + half) - guest;
            may_write[(offset + from) as usize..(offset + to) as usize].fill(true);
        }
    }
}

/// Returns the address, the length and the flags of a descriptor.
fn parse(bytes: &[u8]) -> (u64, u32, u16) {
    let part = |range: std::ops::Range<usize>| &bytes[range];
    let address = u64::from_le_bytes(part(0..8).try_into().expect("8 bytes"));
    let len = u32::from_le_bytes(part(8..12).try_into().expect("4 bytes"));
    (address, len, u16::from_le_bytes(part(12..14).try_into().expect("2 bytes")))
}
