//! Table of the descriptor numbers that belong to sockets, epoll sets and this library.
//!
//! Each socket's number is also a descriptor of the kernel ([`towpath_shm::token`]), so numbers
//! cannot collide, and the kernel handles close-on-exec. The table is an array in a static. Its
//! pages take no memory until used, and a lookup is one load. The API layer changes the table
//! together with the kernel's descriptors, under its own lock.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use towpath_shm::layout::SLOTS_MAX;

use crate::high_fd;
use crate::socket::Socket;
use crate::syscall::{self, nr, syscall};

/// Length of the table. Higher descriptor numbers always belong to the kernel.
pub const DESCRIPTORS_MAX: usize = 1 << 20;

/// Descriptor numbers that belong to sockets, epoll sets and this library, and the number of
/// descriptors of each slot.
#[derive(Debug)]
pub struct Descriptors {
    table: [AtomicU64; DESCRIPTORS_MAX],
    /// Number of descriptors of each slot, or [`MANY`] if the table has to be searched. A byte per
    /// slot is used, because each of up to a hundred processes may touch all pages of this array.
    holds: [AtomicU8; SLOTS_MAX as usize],
    /// Number of descriptors that are about to be entered for slots with [`MANY`].
    entering: AtomicU32,
    /// Number of descriptors that were entered for slots with [`MANY`].
    entered: AtomicU32,
    /// Highest number ever entered, plus one. Scans end there.
    end: AtomicU32,
    /// Lowest number that belongs to an engine in this process, or 0 without such an engine.
    engines_from: AtomicU32,
}

/// Value of `holds` of a slot whose descriptors are no longer counted, because there are too many
/// for the byte. Stays until the last descriptor is closed.
const MANY: u8 = u8::MAX;

const KIND_SHIFT: u32 = 60;
const SOCKET: u64 = 1;
const EPOLL: u64 = 2;
const INTERNAL: u64 = 3;

/// Meaning of a descriptor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorKind {
    /// A descriptor of the kernel.
    Kernel,
    /// A socket of the stack.
    Socket(Socket),
    /// An epoll set, by its number.
    Epoll(u32),
    /// A descriptor of this library, hidden from the program.
    Internal,
}

/// Descriptor that was taken out of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedDescriptor {
    /// Meaning that the number had in the table.
    pub entry: DescriptorKind,
    /// True if it was the last descriptor of this process for its socket.
    pub last: bool,
}

/// Returns whether the table has an entry for `fd`.
pub fn fits(fd: i32) -> bool {
    (fd as usize) < DESCRIPTORS_MAX
}

impl Descriptors {
    /// Creates an empty table: several megabytes of zeroed memory, for a static.
    pub(crate) const fn new() -> Self {
        Self {
            table: [const { AtomicU64::new(0) }; DESCRIPTORS_MAX],
            holds: [const { AtomicU8::new(0) }; SLOTS_MAX as usize],
            entering: AtomicU32::new(0),
            entered: AtomicU32::new(0),
            end: AtomicU32::new(0),
            engines_from: AtomicU32::new(0),
        }
    }

    /// Returns the meaning of `fd`.
    #[inline]
    pub fn lookup(&self, fd: i32) -> DescriptorKind {
        let entry = match self.table.get(fd as usize) {
            Some(word) => unpack(word.load(Ordering::Acquire)),
            None => DescriptorKind::Kernel,
        };
        if entry == DescriptorKind::Kernel && self.is_engines(fd) {
            DescriptorKind::Internal
        } else {
            entry
        }
    }

    /// Gives all numbers from `lowest` on to an engine in this process; the program's own limit of
    /// descriptors is lower. 0 means no engine, as in a child after fork.
    pub fn give_to_engine(&self, lowest: u32) {
        self.engines_from.store(lowest, Ordering::Relaxed);
    }

    /// Closes the descriptors of the parent's engine in a child after fork. Otherwise peers of the
    /// engine's connections would not see their end.
    pub(crate) fn leave_engine(&self) {
        let lowest = self.engines_from.swap(0, Ordering::Relaxed);
        if lowest == 0 {
            return;
        }
        let all = [lowest as usize, u32::MAX as usize, 0, 0, 0, 0];
        // SAFETY: the numbers belong to the parent's engine alone, which this process does not use.
        if unsafe { syscall(nr::CLOSE_RANGE, all) }.is_err() {
            // A kernel before 5.9.
            (lowest..DESCRIPTORS_MAX as u32).for_each(|fd| syscall::close(fd.cast_signed()));
        }
    }

    /// Returns the lowest descriptor number of an engine in this process, or 0 without an engine.
    pub fn engines_from(&self) -> u32 {
        self.engines_from.load(Ordering::Relaxed)
    }

    /// Returns whether a number belongs to an engine in this process. dup2 onto such a number does
    /// not move the engine's descriptor.
    #[inline]
    pub fn is_engines(&self, fd: i32) -> bool {
        let lowest = self.engines_from();
        lowest != 0 && fd >= lowest.cast_signed()
    }

    /// Returns the socket that `fd` refers to, if any.
    #[inline]
    pub fn socket(&self, fd: i32) -> Option<Socket> {
        Self::socket_of(self.table.get(fd as usize)?.load(Ordering::Acquire))
    }

    /// Returns the address of the table, a word of eight bytes for each number. The engine's
    /// process reads it.
    pub(crate) fn address(&self) -> usize {
        self.table.as_ptr() as usize
    }

    /// Returns the socket in an entry of the table, if the entry is a socket's.
    pub fn socket_of(word: u64) -> Option<Socket> {
        (word >> KIND_SHIFT == SOCKET).then(|| unpack_socket(word))
    }

    /// Enters an open descriptor for `socket`.
    pub fn set_socket(&self, fd: i32, socket: Socket) {
        self.replace(fd, DescriptorKind::Socket(socket));
    }

    /// Enters an open descriptor for the epoll set of number `index`.
    pub fn set_epoll(&self, fd: i32, index: u32) {
        self.replace(fd, DescriptorKind::Epoll(index));
    }

    /// Removes a socket or epoll descriptor that is about to be closed. If several threads close
    /// the same number, only one gets the entry.
    pub fn take(&self, fd: i32) -> ClosedDescriptor {
        let kernel = ClosedDescriptor { entry: DescriptorKind::Kernel, last: false };
        let Some(word) = self.table.get(fd as usize) else {
            return kernel;
        };
        match unpack(word.load(Ordering::Acquire)) {
            DescriptorKind::Kernel => return kernel,
            DescriptorKind::Internal => {
                return ClosedDescriptor { entry: DescriptorKind::Internal, last: false };
            }
            DescriptorKind::Socket(_) | DescriptorKind::Epoll(_) => {}
        }
        self.taken(word.swap(0, Ordering::AcqRel))
    }

    /// Replaces the entry of a number atomically. An internal number keeps its entry: see
    /// [`Self::evacuate`].
    pub fn replace(&self, fd: i32, entry: DescriptorKind) -> ClosedDescriptor {
        let before = match entry {
            DescriptorKind::Kernel | DescriptorKind::Internal => return self.take(fd),
            DescriptorKind::Socket(socket) => self.enter(fd, socket),
            DescriptorKind::Epoll(index) => self.set(fd, EPOLL << KIND_SHIFT | u64::from(index)),
        };
        self.taken(before)
    }

    fn enter(&self, fd: i32, socket: Socket) -> u64 {
        let word =
            SOCKET << KIND_SHIFT | u64::from(socket.slot) << 32 | u64::from(socket.generation);
        let holds = &self.holds[socket.slot as usize];
        let are_many = holds.load(Ordering::Acquire) >= MANY - 1;
        if are_many {
            self.entering.fetch_add(1, Ordering::AcqRel);
        }
        // Count the descriptor before it is entered, because another thread may then remove it.
        let more = |holds: u8| Some(holds.saturating_add(1));
        // `more` always returns a value, so the update does not fail.
        let _ = holds.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let before = self.set(fd, word);
        if are_many {
            self.entered.fetch_add(1, Ordering::AcqRel);
            self.entering.fetch_sub(1, Ordering::AcqRel);
        }
        before
    }

    fn taken(&self, word: u64) -> ClosedDescriptor {
        let entry = unpack(word);
        let last = match entry {
            DescriptorKind::Socket(socket) => self.end_hold(socket.slot),
            _ => false,
        };
        ClosedDescriptor { entry, last }
    }

    /// Uncounts a removed descriptor of a slot. Returns whether it was the last one.
    fn end_hold(&self, slot: u32) -> bool {
        let less = |holds: u8| if holds == MANY { None } else { holds.checked_sub(1) };
        match self.holds[slot as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, less) {
            Ok(before) => before == 1,
            Err(before) => before == MANY && self.is_end_of_many(slot),
        }
    }

    /// Returns whether a slot with [`MANY`] descriptors has none left.
    ///
    /// A signal handler may call this while the interrupted thread is about to enter a descriptor;
    /// this descriptor counts as entered. A handler may also interrupt the search, enter a
    /// descriptor, and remove one that the search has not reached.
    fn is_end_of_many(&self, slot: u32) -> bool {
        loop {
            let entered = self.entered.load(Ordering::Acquire);
            let is_of_slot =
                |entry| matches!(entry, DescriptorKind::Socket(socket) if socket.slot == slot);
            if self.entering.load(Ordering::Acquire) > 0
                || self.ours(0).any(|(_, entry)| is_of_slot(entry))
            {
                return false;
            }
            if self.entered.load(Ordering::Acquire) == entered {
                let holds = &self.holds[slot as usize];
                let ended = holds.compare_exchange(MANY, 0, Ordering::AcqRel, Ordering::Acquire);
                return ended.is_ok();
            }
        }
    }

    /// Returns whether this process has a descriptor for `socket`.
    pub fn is_held(&self, socket: Socket) -> bool {
        self.holds[socket.slot as usize].load(Ordering::Acquire) > 0
            && self.ours(0).any(|(_, entry)| entry == DescriptorKind::Socket(socket))
    }

    /// Returns the numbers from `from` on that are in the table, in ascending order.
    pub fn ours(&self, from: u32) -> impl Iterator<Item = (i32, DescriptorKind)> {
        let end = self.end.load(Ordering::Acquire);
        (from..end).filter_map(|fd| match self.lookup(fd as i32) {
            DescriptorKind::Kernel => None,
            entry => Some((fd as i32, entry)),
        })
    }

    /// If `fd` is a descriptor of this library, moves it to another number.
    pub fn evacuate(&self, fd: i32) {
        let Some(word) = self.table.get(fd as usize).map(|word| word.load(Ordering::Acquire))
        else {
            return;
        };
        if word >> KIND_SHIFT == INTERNAL {
            let at = (word & !(INTERNAL << KIND_SHIFT)) as usize as *const AtomicI32;
            // SAFETY: `set_internal` has entered the pointer. HighFd clears the entry before it
            // frees the word that the pointer refers to.
            high_fd::evacuate(self, fd, unsafe { &*at });
        }
    }

    pub(crate) fn set_internal(&self, fd: i32, word: &AtomicI32) {
        if fits(fd) {
            // User-space addresses have at most 56 bits, so they do not overlap the kind.
            self.set(fd, INTERNAL << KIND_SHIFT | std::ptr::from_ref(word) as u64);
        }
    }

    pub(crate) fn clear(&self, fd: i32) {
        if let Some(word) = self.table.get(fd as usize) {
            word.store(0, Ordering::Release);
        }
    }

    /// Sets the entry of `fd`, and returns the former entry.
    fn set(&self, fd: i32, word: u64) -> u64 {
        let Some(entry) = self.table.get(fd as usize) else { return 0 };
        self.end.fetch_max(fd as u32 + 1, Ordering::AcqRel);
        entry.swap(word, Ordering::AcqRel)
    }
}

#[inline]
fn unpack(word: u64) -> DescriptorKind {
    match word >> KIND_SHIFT {
        SOCKET => DescriptorKind::Socket(unpack_socket(word)),
        EPOLL => DescriptorKind::Epoll(word as u32),
        INTERNAL => DescriptorKind::Internal,
        _ => DescriptorKind::Kernel,
    }
}

#[inline]
fn unpack_socket(word: u64) -> Socket {
    Socket { slot: (word >> 32) as u32 & (SLOTS_MAX - 1), generation: word as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HighFd;

    static OF_TESTS: Descriptors = Descriptors::new();

    #[test]
    fn counts_descriptors_of_a_slot() {
        let socket = Socket { slot: SLOTS_MAX - 1, generation: 0xffff_fffd };
        OF_TESTS.set_socket(900_001, socket);
        OF_TESTS.set_socket(900_002, socket);
        assert_eq!(OF_TESTS.lookup(900_001), DescriptorKind::Socket(socket));
        assert_eq!(
            OF_TESTS.take(900_001),
            ClosedDescriptor { entry: DescriptorKind::Socket(socket), last: false }
        );
        assert_eq!(
            OF_TESTS.take(900_001),
            ClosedDescriptor { entry: DescriptorKind::Kernel, last: false }
        );
        assert_eq!(
            OF_TESTS.take(900_002),
            ClosedDescriptor { entry: DescriptorKind::Socket(socket), last: true }
        );
        OF_TESTS.set_socket(900_003, socket);
        let before = ClosedDescriptor { entry: DescriptorKind::Socket(socket), last: true };
        assert_eq!(OF_TESTS.replace(900_003, DescriptorKind::Epoll(7)), before);
        assert_eq!(
            OF_TESTS.ours(900_000).collect::<Vec<_>>(),
            [(900_003, DescriptorKind::Epoll(7))]
        );
        assert_eq!(OF_TESTS.take(900_003).entry, DescriptorKind::Epoll(7));
        assert_eq!(OF_TESTS.lookup(-1), DescriptorKind::Kernel);
        assert_eq!(OF_TESTS.lookup(i32::MAX), DescriptorKind::Kernel);
    }

    /// With a million sockets in fifty processes that take turns, each process touches almost every
    /// page of this table.
    #[test]
    fn a_slot_costs_a_process_a_byte() {
        assert_eq!(size_of_val(&OF_TESTS.holds), SLOTS_MAX as usize);
    }

    #[test]
    fn finds_the_last_of_more_descriptors_than_are_counted() {
        static DESCRIPTORS: Descriptors = Descriptors::new();
        let socket = Socket { slot: 7, generation: 3 };
        let last = |fd| {
            DESCRIPTORS.take(fd)
                == ClosedDescriptor { entry: DescriptorKind::Socket(socket), last: true }
        };
        for most in [253, 254, 255, 256, 257, 1000] {
            (0..most).for_each(|fd| DESCRIPTORS.set_socket(fd, socket));
            DESCRIPTORS.set_socket(most, Socket { slot: 8, generation: 3 });
            assert!((1..most).all(|fd| !last(fd)), "{most}");
            // Move the socket to another number, which is entered before the first is removed.
            DESCRIPTORS.set_socket(2000, socket);
            assert!(!last(0) && DESCRIPTORS.is_held(socket), "{most}");
            assert!(last(2000) && !DESCRIPTORS.is_held(socket), "{most}");
            // Descriptors are counted again after the last was closed.
            DESCRIPTORS.set_socket(0, socket);
            assert!(last(0), "{most}");
            assert!(DESCRIPTORS.take(most).last);
        }
        assert_eq!(DESCRIPTORS.entering.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn internal_descriptors_move_away() {
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let high = HighFd::new(fd.into(), &OF_TESTS);
        let before = high.get();
        assert_eq!(OF_TESTS.lookup(before), DescriptorKind::Internal);
        assert_eq!(OF_TESTS.take(before).entry, DescriptorKind::Internal);
        OF_TESTS.evacuate(before);
        assert_ne!(high.get(), before);
        assert_eq!(OF_TESTS.lookup(high.get()), DescriptorKind::Internal);
        assert_eq!(OF_TESTS.lookup(before), DescriptorKind::Kernel);
        crate::syscall::close(before);
    }
}
