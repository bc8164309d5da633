//! Bytes of a transmit FIFO that packets point to, and when they may be written again.
//!
//! ```text
//!  free                      front                                   tail
//!    |== acknowledged, pinned ==|== sent, or to be sent ================|-- room --|
//!  the program's tx_head     SND.UNA                                  tx_tail
//! ```
//! Acknowledged bytes are released, but the program may not write there while a packet that points
//! there waits for its device. A retransmission is such a packet, and so are the last ones of a
//! connection that was reset. Packets do not come back in the order of their bytes, so bytes are
//! not counted one by one. All packets that are made between two moments hold one [`Pin`], which
//! counts them. When bytes are released while such packets are out, a period begins. Packets that
//! are made from then on have another pin, and cannot point to bytes released before. When the last
//! packet of the former period has come back, its bytes are free, and the pin serves the next
//! period. A window has two pins, and nothing is allocated for a packet.
//!
//! While no packet is out when bytes are released, the first period lasts for ever. A pin then
//! costs as much as keeping the memory mapped. A device that takes all packets in the turn that
//! sends them is such a case. Otherwise bytes are free again after at most the time that packets
//! spend in queues, twice.
//!
//! The pins keep the window itself. A FIFO that ends, or moves to a larger window, leaves it to the
//! packets, and the last of them gives it back. A small packet may keep a large window so. When
//! such windows are many ([`Windows::take_forsaken`]), whoever has the packets copies them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use towpath_shm::{Backing, Mapping};

use crate::area::Window;
use crate::windows::Windows;

/// The memory of a FIFO. The first packet that points to the window makes the record of pins, which
/// stays until the window goes. Most windows carry few bytes, which are copied. All of it is in 16
/// bytes, of which each connection has them.
#[derive(Debug)]
pub(crate) enum Memory {
    /// None: where to get some.
    None(Windows),
    /// A window to which no packet has pointed.
    Plain(Windows, Window),
    /// A window to which packets point, or did.
    Pinned(Box<Pinned>),
}

const _: () = assert!(size_of::<Memory>() == 16);

impl Memory {
    /// Where memory is had.
    #[inline]
    pub fn windows(&self) -> &Windows {
        match self {
            Self::None(windows) | Self::Plain(windows, _) => windows,
            Self::Pinned(pinned) => &pinned.pin.kept.windows,
        }
    }

    /// Where the bytes are.
    #[inline]
    pub fn window(&self) -> Option<&Window> {
        match self {
            Self::None(_) => None,
            Self::Plain(_, window) => Some(window),
            Self::Pinned(pinned) => Some(pinned.window()),
        }
    }

    /// For a packet that is made now. `slot` is the FIFO's, and `front` where the bytes begin that
    /// are not released. None without memory.
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

    /// All bytes before `front` are released: no packet that is made from now on points to them.
    pub fn release(&mut self, front: u32) {
        if let Self::Pinned(pinned) = self {
            pinned.front = front;
            pinned.settle();
        }
    }

    /// Looks what packets have come back.
    pub fn settle(&mut self) {
        if let Self::Pinned(pinned) = self {
            pinned.settle();
        }
    }

    /// Where the program may write again, when the bytes begin at `front` that are not released.
    #[inline]
    pub fn free(&self, front: u32) -> u32 {
        match self {
            Self::Pinned(pinned) => pinned.free,
            _ => front,
        }
    }

    /// The FIFO of `slot` has a window now.
    pub fn attach(&mut self, window: Window) {
        *self = Self::Plain(self.windows().clone(), window);
    }

    /// Leaves the window to the packets, or gives it back. `is_out`: under the FIFO's lock, so that
    /// no thread of a program is inside, now or later.
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

/// The window of a FIFO, and what packets point to in it.
#[derive(Debug)]
pub(crate) struct Pinned {
    /// The pin that newly made packets hold.
    pin: Arc<Pin>,
    /// The other one, once there was need of it.
    other: Option<Arc<Pin>>,
    /// Packets of the former period, which hold the other pin, are out.
    is_waiting: bool,
    /// Where the program may write again: all before it is free.
    free: u32,
    /// Where it may when the former period is over.
    free_next: u32,
    /// Where the bytes begin that are not released.
    front: u32,
}

/// The token that packets of one period hold: it keeps their bytes and the mapping.
#[derive(Debug)]
pub(crate) struct Pin {
    mapping: Arc<Mapping>,
    kept: Arc<KeptExtent>,
    /// Packets that hold it.
    out: AtomicU32,
    /// The FIFO wants to know when the last of them comes back.
    is_awaited: AtomicBool,
}

/// A window, which is given back when nothing points to it any more.
#[derive(Debug)]
struct KeptExtent {
    windows: Windows,
    slot: u32,
    /// None in the end.
    window: Option<Window>,
    /// No thread of a program is inside: it was given up under the lock.
    is_out: AtomicBool,
    /// The FIFO has no use for it any more, and packets have.
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

    /// Leaves the window to the packets that are out. `is_out`: as for [`Memory::detach`].
    fn forsake(self, is_out: bool) {
        let kept = &self.pin.kept;
        kept.is_out.store(is_out, Ordering::Relaxed);
        let mut pins = std::iter::once(&self.pin).chain(&self.other);
        if pins.any(|pin| pin.is_out()) {
            kept.is_forsaken.store(true, Ordering::Relaxed);
            kept.windows.add_forsaken(kept.window().touched());
        }
    }

    /// Looks what has come back. If that is not all that was released, [`Windows::pop_unpinned`]
    /// names the slot when there is more.
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

    /// Whether packets hold it. If none does, what they read was read before the program hears that
    /// it may write there.
    fn is_out(&self) -> bool {
        self.out.load(Ordering::Acquire) > 0
    }

    /// Asks to be told when the last packet has come back. False: it has.
    ///
    /// Either the packet that comes back last sees `is_awaited`, or `out` is seen to be 0 here.
    /// Both words are read and written in one order by all threads (SeqCst).
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
        // Release is in it: what was read through the packet was read before.
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

    use towpath_qdisc::Dice;
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
        // Packets that are made later do not hold back bytes that were released before.
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
        // Nothing is out, and nobody has to be told.
        drop(send.peek(0, 10));
        send.release(10);
        assert_eq!(program::room(slot), 41_010);
        assert!(unpinned(&windows).is_empty());
    }

    /// A device that is always one packet behind: two pins take turns, however many packets there
    /// are.
    #[test]
    fn nothing_is_allocated_for_packets_that_are_late() {
        const LEN: u32 = 1000;
        let region = Region::create().unwrap();
        let windows = Windows::new(&region, 1 << 30);
        let mut memory = Memory::None(windows.clone());
        memory.attach(windows.take_first(WINDOW_MIN, WINDOW_MIN, WINDOW_MIN).unwrap());
        // Kept, so that no other has the place of one that has gone.
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
            // Where the FIFO lives on it keeps the window, too: who waits for room hears when
            // packets have come back.
            assert!(!send.release_if_empty());
            match how {
                0 => drop(send),
                _ => send.retire(),
            }
            assert_eq!(windows.usage().assigned, 1, "{how}");
            // The next one of the slot has another window.
            let mut next = fifo(&windows, 1);
            write(&region, slot, &[0x55; 4096]);
            next.pull();
            assert_eq!(bytes(&packet), b"on its way", "{how}");
            drop((packet, next));
            assert_eq!(windows.usage().assigned, 0, "{how}");
        }
    }

    /// Many FIFOs end with packets out, each of which keeps far more memory than it has bytes.
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
        // FIFOs whose packets have come back before do not count.
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

    /// A thread that was in the midst of a copy when its socket ended may go on for longer than the
    /// packet.
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

    /// A program that writes on though nothing is free, because packets point to all of it: it
    /// overwrites what these carry, which is its own. [`Windows::take_hostile`] names it like a
    /// program that writes any other impossible position.
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

    /// Two sockets and a program that fills all room. Packets come back in any order, while FIFOs
    /// grow, lose their memory and end. No packet changes, and in the end all memory is there.
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
