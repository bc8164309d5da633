//! References of packets to bytes of a transmit FIFO, which determine when these bytes may be
//! overwritten.
//!
//! ```text
//!  free                      front                                   tail
//!    |== acknowledged, pinned ==|== sent, or to be sent ================|-- room --|
//!  the program's tx_head     SND.UNA                                  tx_tail
//! ```
//! Acknowledged bytes are released, but the program must not overwrite them while a packet that
//! refers to them waits for its device. Examples are retransmissions, and the last packets of a
//! connection that was reset. Packets do not return in the order of their bytes, so a position per
//! packet would not suffice.
//!
//! Instead, all packets created during one period share a [`Pin`], which counts them. If bytes are
//! released while packets of the current period exist, a new period begins. Packets of the new
//! period have another pin, and cannot refer to bytes released before. When the last packet of the
//! former period is dropped, the bytes become free, and its pin can be used for the next period.
//! Two pins per extent (memory range of a FIFO) suffice, so packets need no allocation.
//!
//! If no packets exist when bytes are released, for example because the device takes packets at
//! once, the first period continues. Otherwise bytes are free after at most twice the time that
//! packets spend in queues.
//!
//! The pins also keep the extent itself. If a FIFO ends or moves to a larger extent, the last
//! packet releases the old one. A small packet can thus keep a large extent. If there are too many
//! such extents ([`Windows::take_forsaken`]), the packets should be copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use towpath_shm::{Backing, Mapping};

use crate::area::Window;
use crate::windows::Windows;

/// The buffer of a transmit FIFO, in 16 bytes per connection. Counting packets that refer to the
/// buffer takes more memory, which the first such packet allocates. Most FIFOs never need it,
/// because short payloads are copied.
#[derive(Debug)]
pub(crate) enum Memory {
    /// The FIFO has no buffer. The allocator can provide one.
    None(Windows),
    /// An extent to which no packet has ever referred.
    Plain(Windows, Window),
    /// An extent to which packets refer or have referred.
    Pinned(Box<Pinned>),
}

const _: () = assert!(size_of::<Memory>() == 16);

impl Memory {
    /// Returns the allocator of the FIFO's memory.
    #[inline]
    pub fn windows(&self) -> &Windows {
        match self {
            Self::None(windows) | Self::Plain(windows, _) => windows,
            Self::Pinned(pinned) => &pinned.pin.kept.windows,
        }
    }

    /// Returns the extent; `None` if the FIFO has no memory.
    #[inline]
    pub fn window(&self) -> Option<&Window> {
        match self {
            Self::None(_) => None,
            Self::Plain(_, window) => Some(window),
            Self::Pinned(pinned) => Some(pinned.window()),
        }
    }

    /// Returns the pin (reference count) for a new packet. `slot` is the FIFO's slot number, and
    /// `front` the position of its first unacknowledged byte. Returns `None` if the FIFO has no
    /// buffer.
    pub fn pin(&mut self, slot: u32, front: u32) -> Option<&Arc<Pin>> {
        if let Self::Plain(windows, _) = self {
            let none = Self::None(windows.clone());
            if let Self::Plain(windows, window) = std::mem::replace(self, none) {
                *self = Self::Pinned(Box::new(Pinned::new(windows, slot, window, front)));
            }
        }
        match self {
            Self::Pinned(pinned) => Some(&pinned.pin),
            _ => None,
        }
    }

    /// Records that all bytes before `front` are acknowledged, so that no new packet can refer to
    /// them.
    pub fn release(&mut self, front: u32) {
        if let Self::Pinned(pinned) = self {
            pinned.front = front;
            pinned.settle();
        }
    }

    /// Checks which packets have been dropped, and frees the released bytes to which no packet
    /// refers.
    pub fn settle(&mut self) {
        if let Self::Pinned(pinned) = self {
            pinned.settle();
        }
    }

    /// Returns the position up to which the program may write. `front` is the position of the first
    /// byte that is not released.
    #[inline]
    pub fn free(&self, front: u32) -> u32 {
        match self {
            Self::Pinned(pinned) => pinned.free,
            _ => front,
        }
    }

    /// Attaches an extent to the FIFO.
    pub fn attach(&mut self, window: Window) {
        *self = Self::Plain(self.windows().clone(), window);
    }

    /// Detaches the buffer from the FIFO; packets that refer to the buffer keep it. `is_out` is
    /// true if the caller holds the FIFO's lock, so that no thread of the program uses the buffer.
    pub fn detach(&mut self, slot: u32, is_out: bool) {
        let none = Self::None(self.windows().clone());
        match std::mem::replace(self, none) {
            Self::None(_) => {}
            Self::Plain(windows, window) if is_out => windows.give(window),
            Self::Plain(windows, window) => windows.give_when_out(slot, window),
            Self::Pinned(pinned) => pinned.forsake(is_out),
        }
    }
}

/// The buffer of a FIFO, with counts of the packets that refer to it.
#[derive(Debug)]
pub(crate) struct Pinned {
    /// The pin (reference count) of packets created in the current period.
    pin: Arc<Pin>,
    /// The pin (reference count) of packets created in the previous period; allocated when it is
    /// first needed.
    other: Option<Arc<Pin>>,
    /// Whether packets of the previous period (those counted by `other`) still exist.
    is_waiting: bool,
    /// Position before which bytes are free, so that the program may overwrite them.
    free: u32,
    /// Value that `free` gets when the last packet of the previous period is dropped, so that its
    /// bytes become free.
    free_next: u32,
    /// Position of the first byte of the FIFO that is not released.
    front: u32,
}

/// Reference count of the packets created in one period. Keeps the bytes to which they refer, and
/// the memory mapping.
#[derive(Debug)]
pub(crate) struct Pin {
    mapping: Arc<Mapping>,
    kept: Arc<KeptExtent>,
    /// Number of packets that hold this pin.
    out: AtomicU32,
    /// Whether the FIFO must be notified when the last packet is dropped.
    is_awaited: AtomicBool,
}

/// An extent (memory range of a FIFO) that returns to the allocator when nothing refers to it any
/// more.
#[derive(Debug)]
struct KeptExtent {
    windows: Windows,
    slot: u32,
    /// The memory range; `None` only while this value is being dropped.
    window: Option<Window>,
    /// Whether no thread of the program uses the memory, because it was detached under the FIFO's
    /// lock.
    is_out: AtomicBool,
    /// Whether only packets keep the memory, because the FIFO no longer uses it.
    is_forsaken: AtomicBool,
}

impl Pinned {
    fn new(windows: Windows, slot: u32, window: Window, front: u32) -> Self {
        let [is_out, is_forsaken] = [false; 2].map(AtomicBool::new);
        let kept =
            Arc::new(KeptExtent { windows, slot, window: Some(window), is_out, is_forsaken });
        let (pin, other, is_waiting) = (Pin::of(kept), None, false);
        Self { pin, other, is_waiting, free: front, free_next: front, front }
    }

    fn window(&self) -> &Window {
        self.pin.kept.window()
    }

    /// Leaves the buffer to the packets that refer to it. `is_out` is true if no thread of the
    /// program uses the buffer.
    fn forsake(self, is_out: bool) {
        let kept = &self.pin.kept;
        kept.is_out.store(is_out, Ordering::Relaxed);
        let mut pins = std::iter::once(&self.pin).chain(&self.other);
        if pins.any(|pin| pin.is_out()) {
            kept.is_forsaken.store(true, Ordering::Relaxed);
            kept.windows.add_forsaken(kept.window().touched());
        }
    }

    /// Updates `free`, the position up to which bytes may be overwritten, after packets were
    /// dropped. If bytes are still in use, [`Windows::pop_unpinned`] returns the slot when more
    /// packets are dropped.
    fn settle(&mut self) {
        if let Some(former) = self.other.as_ref().filter(|_| self.is_waiting) {
            if former.is_out() {
                return;
            }
            former.is_awaited.store(false, Ordering::Relaxed);
            self.free = self.free_next;
            self.is_waiting = false;
        }
        if !self.pin.is_out() {
            self.free = self.front;
        }
        let pinned = self.front.wrapping_sub(self.free);
        debug_assert!(pinned <= self.window().cap(), "{pinned} bytes are pinned of a window");
        if pinned == 0 {
            return;
        }
        let next = self.other.take().unwrap_or_else(|| Pin::of(Arc::clone(&self.pin.kept)));
        let former = std::mem::replace(&mut self.pin, next);
        self.free_next = self.front;
        self.is_waiting = former.await_return();
        if !self.is_waiting {
            self.free = self.front;
        }
        self.other = Some(former);
    }
}

impl Pin {
    fn of(kept: Arc<KeptExtent>) -> Arc<Self> {
        let mapping = Arc::clone(kept.windows.region().mapping());
        let (out, is_awaited) = (AtomicU32::new(0), AtomicBool::new(false));
        Arc::new(Self { mapping, kept, out, is_awaited })
    }

    /// Returns whether packets hold this reference count. Acquire: their reads happen before the
    /// program is allowed to overwrite the bytes.
    fn is_out(&self) -> bool {
        self.out.load(Ordering::Acquire) > 0
    }

    /// Requests a notification when the last packet is dropped. Returns false if it has already
    /// been dropped.
    ///
    /// Because both words are accessed with SeqCst, either the last packet sees `is_awaited`, or
    /// this function sees that `out` is 0.
    fn await_return(&self) -> bool {
        self.is_awaited.store(true, Ordering::SeqCst);
        let is_out = self.out.load(Ordering::SeqCst) > 0;
        if !is_out {
            self.is_awaited.store(false, Ordering::Relaxed);
        }
        is_out
    }
}

impl Backing for Pin {
    #[inline]
    fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    #[inline]
    fn hold(&self) {
        self.out.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn leave(&self) {
        // SeqCst includes Release: reads through the packet happen before the count is decremented.
        let was_last = self.out.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.is_awaited.load(Ordering::SeqCst) {
            self.kept.windows.note_unpinned(self.kept.slot);
        }
    }

    fn is_forsaken(&self) -> bool {
        self.kept.is_forsaken.load(Ordering::Relaxed)
    }
}

impl KeptExtent {
    fn window(&self) -> &Window {
        self.window.as_ref().expect("it is taken in drop alone")
    }
}

impl Drop for KeptExtent {
    fn drop(&mut self) {
        let Some(window) = self.window.take() else { return };
        if self.is_forsaken.load(Ordering::Relaxed) {
            self.windows.end_forsaken(window.touched());
        }
        match self.is_out.load(Ordering::Relaxed) {
            true => self.windows.give(window),
            false => self.windows.give_when_out(self.slot, window),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ptr;
    use std::sync::{Arc, Weak};

    use towpath_dice::Dice;
    use towpath_shm::atomic::Ordering::Relaxed;
    use towpath_shm::layout::Slot;
    use towpath_shm::{Fragments, Stretch};

    use super::{Memory, Pin};
    use crate::area::{WINDOW_MAX, WINDOW_MIN};
    use crate::lock::lock_tx;
    use crate::program_fifo as program;
    use crate::region::Region;
    use crate::{Attach, EngineSend, SendBuffer, Windows, take_tx_wanted};

    fn bytes(fragments: &Fragments) -> Vec<u8> {
        let mut out = vec![0; fragments.len() as usize];
        fragments.copy_to(0, &mut out);
        out
    }

    fn write(region: &Region, slot: &Slot, data: &[u8]) -> u32 {
        let _guard = lock_tx(slot, 0, || true);
        let n = program::write(region, slot, 0, data) as u32;
        let _ = program::publish(slot, n);
        n
    }

    fn unpinned(windows: &Windows) -> Vec<u32> {
        std::iter::from_fn(|| windows.pop_unpinned()).collect()
    }

    fn fifo(windows: &Windows, slot: u32) -> EngineSend {
        let mut send = EngineSend::new(windows, slot, WINDOW_MIN, WINDOW_MAX);
        assert_eq!(send.attach(), Attach::Done);
        send
    }

    #[test]
    fn released_bytes_are_the_programs_when_no_packet_points_to_them() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let (mut send, slot) = (fifo(&windows, 1), region.slot(1).unwrap());
        assert_eq!(write(&region, slot, &vec![1; WINDOW_MIN as usize]), WINDOW_MIN);
        send.pull();
        let first = send.peek(0, 1000);
        send.release(1000);
        program::want_room(slot);
        assert_eq!((program::room(slot), send.len()), (0, WINDOW_MIN - 1000));
        assert_eq!(slot.tx_unacked.load(Relaxed), 1000, "to the program it is there and was sent");
        // Packets created later do not prevent earlier released bytes from becoming free.
        let second = send.peek(0, 2000);
        send.release(40_000);
        assert!(unpinned(&windows).is_empty());
        drop(first);
        assert_eq!(unpinned(&windows), [1]);
        send.unpin();
        assert_eq!(program::room(slot), 1000);
        assert!(!take_tx_wanted(slot), "it is not worth it");
        drop(second);
        assert_eq!(unpinned(&windows), [1]);
        send.unpin();
        assert_eq!((program::room(slot), slot.tx_unacked.load(Relaxed)), (41_000, 0));
        assert!(take_tx_wanted(slot));
        // No packet exists when the bytes are released, so they are free at once, without a
        // notification.
        drop(send.peek(0, 10));
        send.release(10);
        assert_eq!(program::room(slot), 41_010);
        assert!(unpinned(&windows).is_empty());
    }

    /// Tests a device that always keeps one packet. The same two pins (reference counts) are
    /// reused, so nothing is allocated.
    #[test]
    fn nothing_is_allocated_for_packets_that_are_late() {
        const LEN: u32 = 1000;
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut memory = Memory::None(windows.clone());
        memory.attach(windows.take_first(WINDOW_MIN, WINDOW_MIN, WINDOW_MIN).unwrap());
        // Weak references keep the address of a dropped pin from being reused for a new one.
        let mut pins: Vec<Weak<Pin>> = Vec::new();
        let mut late = Fragments::empty();
        for front in (0..1000).map(|n| n * LEN) {
            let pin = memory.pin(1, front).unwrap();
            if pins.iter().all(|other| !ptr::eq(other.as_ptr(), Arc::as_ptr(pin))) {
                pins.push(Arc::downgrade(pin));
            }
            let packet = Fragments::new(Stretch::new(pin, 0, LEN), None);
            memory.release(front + LEN);
            late = packet;
            while windows.pop_unpinned().is_some() {
                memory.settle();
            }
            assert_eq!(memory.free(front + LEN), front);
        }
        drop(late);
        assert_eq!(pins.len(), 2);
    }

    #[test]
    fn packets_keep_the_window_of_a_fifo_that_is_gone() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let slot = region.slot(1).unwrap();
        for how in 0..2 {
            let mut send = fifo(&windows, 1);
            write(&region, slot, b"on its way");
            send.pull();
            let packet = send.peek(0, 10);
            send.release(10);
            // The extent stays with the FIFO: a program that waits for space must be notified when
            // packets are dropped.
            assert!(!send.release_if_empty());
            match how {
                0 => drop(send),
                _ => send.retire(),
            }
            assert_eq!(windows.usage().assigned, 1, "{how}");
            // The next FIFO of the slot gets a different extent.
            let mut next = fifo(&windows, 1);
            write(&region, slot, &[0x55; 4096]);
            next.pull();
            assert_eq!(bytes(&packet), b"on its way", "{how}");
            drop((packet, next));
            assert_eq!(windows.usage().assigned, 0, "{how}");
        }
    }

    /// Tests many FIFOs that end while packets still refer to them. Each packet keeps a whole
    /// buffer for a few bytes.
    #[test]
    fn windows_that_packets_alone_keep_are_counted() {
        const MOST: u64 = 1 << 30;
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, MOST);
        let (mut packets, mut kept) = (Vec::new(), 0);
        for slot in 0..20 {
            let mut send = EngineSend::new(&windows, slot, WINDOW_MAX, WINDOW_MAX);
            assert_eq!(send.attach(), Attach::Done);
            write(&region, region.slot(slot).unwrap(), b"on its way");
            send.pull();
            packets.push(send.peek(0, 10));
            assert!(!packets[0].is_forsaken() || slot > 0);
            drop(send);
            kept += u64::from(WINDOW_MAX);
            assert_eq!(windows.take_forsaken(), kept > MOST / 16, "{slot}");
            assert!(!windows.take_forsaken(), "it was told");
        }
        assert!(packets.iter().all(Fragments::is_forsaken));
        packets.clear();
        // FIFOs whose packets have all been dropped do not count.
        for slot in 0..20 {
            let mut send = EngineSend::new(&windows, slot, WINDOW_MAX, WINDOW_MAX);
            assert_eq!(send.attach(), Attach::Done);
            write(&region, region.slot(slot).unwrap(), b"on its way");
            send.pull();
            drop(send.peek(0, 10));
            drop(send);
            assert!(!windows.take_forsaken());
        }
        assert_eq!(windows.usage().assigned, 0);
    }

    /// Tests a thread that is copying when its socket ends, and that continues after the last
    /// packet is dropped.
    #[test]
    fn a_window_waits_for_packets_and_for_threads() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut send = fifo(&windows, 1);
        let slot = region.slot(1).unwrap();
        write(&region, slot, b"on its way");
        send.pull();
        let packet = send.peek(0, 10);
        let guard = lock_tx(slot, 0, || true);
        drop(send);
        drop(packet);
        assert_eq!((windows.usage().assigned, windows.take_awaited()), (1, vec![1]));
        drop(guard);
        assert_eq!(windows.collect(1), Ok(()));
        assert_eq!(windows.usage().assigned, 0);
    }

    /// Tests a program that overwrites bytes to which packets refer. The program harms only its own
    /// data, but [`Windows::take_hostile`] reports it like any program with an invalid position.
    #[test]
    fn a_program_that_writes_over_pinned_bytes_is_hostile() {
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let (mut send, slot) = (fifo(&windows, 1), region.slot(1).unwrap());
        assert_eq!(write(&region, slot, &vec![1; WINDOW_MIN as usize]), WINDOW_MIN);
        assert!(send.pull());
        let mut packets = Vec::new();
        let mut believed = 0;
        for round in 2..5 {
            packets.push(send.peek(0, 1000));
            send.release(send.len());
            assert_eq!(program::room(slot), 0);
            slot.tx_tail.store(round * WINDOW_MIN, Relaxed);
            believed += u32::from(send.pull());
        }
        for packet in packets {
            drop(packet);
            send.unpin();
        }
        assert_eq!((believed, windows.take_hostile()), (0, vec![1]));
    }

    /// Tests two sockets whose program fills all space. Packets are dropped in random order, while
    /// FIFOs grow, lose their buffers and end. No packet's content may change, and in the end all
    /// memory must be free.
    #[test]
    fn no_byte_is_written_again_while_a_packet_points_to_it() {
        for seed in 1..=40 {
            let mut dice = Dice::new(seed, 0);
            let region = Region::create().unwrap();
            let windows = Windows::new(&region, 1 << 30);
            let mut fifos = [fifo(&windows, 0), fifo(&windows, 1)];
            let mut packets: Vec<(Fragments, Vec<u8>)> = Vec::new();
            let mut next = 0u32;
            for _ in 0..2000 {
                let at = dice.index(2);
                let (send, slot) = (&mut fifos[at], region.slot(at as u32).unwrap());
                match dice.index(16) {
                    0..4 => {
                        let n = dice.index(program::room(slot) as usize + 1).min(20_000);
                        let data: Vec<u8> = (0..n as u32)
                            .map(|i| {
                                (next.wrapping_add(i)).wrapping_mul(0x9e37_79b9).to_le_bytes()[3]
                            })
                            .collect();
                        next = next.wrapping_add(n as u32);
                        assert_eq!(write(&region, slot, &data), n as u32);
                        assert!(send.pull());
                    }
                    4..9 if !send.is_empty() => {
                        let offset = dice.index(send.len() as usize) as u32;
                        let packet = send.peek(offset, 1 + dice.index(5000) as u32);
                        let before = bytes(&packet);
                        packets.push((packet, before));
                    }
                    9..12 => send.release(dice.index(send.len() as usize + 1) as u32),
                    12 => send.want_capacity(dice.index(1 << 20) as u32),
                    13 => drop(send.release_if_empty()),
                    14 if dice.index(8) == 0 => {
                        *send = EngineSend::new(&windows, at as u32, WINDOW_MIN, WINDOW_MAX);
                    }
                    _ if !packets.is_empty() => {
                        for _ in 0..dice.index(8).min(packets.len()) {
                            packets.swap_remove(dice.index(packets.len()));
                        }
                    }
                    _ => {}
                }
                assert_eq!(fifos[at].attach(), Attach::Done);
                for slot in unpinned(&windows) {
                    fifos[slot as usize].unpin();
                }
                assert!(packets.iter().all(|(packet, before)| bytes(packet) == *before), "{seed}");
            }
            packets.clear();
            for slot in unpinned(&windows) {
                fifos[slot as usize].unpin();
            }
            for (send, slot) in fifos.iter().zip(0..) {
                assert_eq!(program::queued(region.slot(slot).unwrap()), send.len(), "{seed}");
            }
            drop(fifos);
            assert_eq!(windows.usage().assigned, 0, "{seed}");
        }
    }
}
