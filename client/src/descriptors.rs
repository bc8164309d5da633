//! Table of the descriptor numbers that belong to sockets of the stack, epoll sets and this
//! library.
//!
//! Each number is also a descriptor of the kernel ([`towpath_shm::token`]). Therefore the kernel
//! does not use it for another file, and handles close-on-exec. The table is an array in a static
//! variable. Its pages take no memory until they are used, and a lookup is one load. The POSIX
//! layer changes the table together with the kernel's descriptors, under its own lock.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use towpath_shm::layout::SLOTS_MAX;

use crate::high_fd;
use crate::socket::Socket;
use crate::syscall::{self, nr, syscall};

/// Length of the descriptor table. Higher descriptor numbers always belong to the kernel.
pub const DESCRIPTORS_MAX: usize = 1 << 20;

/// Table of the descriptor numbers that belong to sockets, epoll sets and this library, with a
/// count of the descriptors of each socket.
#[derive(Debug)]
pub struct Descriptors {
    table: [AtomicU64; DESCRIPTORS_MAX],
    /// Number of this process's descriptors for each socket slot. If it is [`MANY`], they are not
    /// counted, and the table must be searched. The count has one byte, because up to a hundred
    /// processes may each touch all pages of this array.
    holds: [AtomicU8; SLOTS_MAX as usize],
    /// Number of times that a thread began to add a descriptor to a slot with too many descriptors
    /// to count ([`MANY`]).
    entering: AtomicU32,
    /// Number of times that a thread finished adding a descriptor to a slot with too many
    /// descriptors to count ([`MANY`]).
    entered: AtomicU32,
    /// End of searches in the table: the highest descriptor number ever used, plus one.
    end: AtomicU32,
    /// Lowest descriptor number of an engine in this process; 0 if there is no engine.
    engines_from: AtomicU32,
}

/// Value in `holds` for a slot with more descriptors than one byte can count. The value stays until
/// the last descriptor is closed.
const MANY: u8 = u8::MAX;

const KIND_SHIFT: u32 = 60;
const SOCKET: u64 = 1;
const EPOLL: u64 = 2;
const INTERNAL: u64 = 3;

/// Object to which a descriptor number belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorKind {
    /// A descriptor of the kernel that is unrelated to the stack.
    Kernel,
    /// A socket of the stack.
    Socket(Socket),
    /// An epoll set. The value is its number in the reactor.
    Epoll(u32),
    /// An internal descriptor of this library, hidden from the program.
    Internal,
}

/// Former entry of a descriptor that was removed from the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedDescriptor {
    /// Object to which the descriptor number referred.
    pub entry: DescriptorKind,
    /// Whether it was this process's last descriptor for the socket.
    pub last: bool,
}

/// Returns whether `fd` is below the length of the table.
pub fn fits(fd: i32) -> bool {
    (fd as usize) < DESCRIPTORS_MAX
}

impl Descriptors {
    /// Creates an empty table for a static. The table consists of several megabytes of zeros.
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

    /// Returns what the descriptor number `fd` belongs to.
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

    /// Reserves all descriptor numbers from `lowest` on for an engine in this process. The
    /// program's limit of descriptors is `lowest`. 0 means that there is no engine, as in a forked
    /// child.
    pub fn give_to_engine(&self, lowest: u32) {
        self.engines_from.store(lowest, Ordering::Relaxed);
    }

    /// Closes the descriptors of the parent's engine in a forked child. Otherwise connections of
    /// the engine would stay open after the engine has closed them.
    pub(crate) fn leave_engine(&self) {
        let lowest = self.engines_from.swap(0, Ordering::Relaxed);
        if lowest == 0 {
            return;
        }
        let all = [lowest as usize, u32::MAX as usize, 0, 0, 0, 0];
        // SAFETY: the numbers belong to the parent's engine alone, which this process does not use.
        if unsafe { syscall(nr::CLOSE_RANGE, all) }.is_err() {
            // The kernel is older than Linux 5.9, and has no close_range(2).
            (lowest..DESCRIPTORS_MAX as u32).for_each(|fd| syscall::close(fd.cast_signed()));
        }
    }

    /// Returns the lowest descriptor number of an engine in this process; 0 if there is no engine.
    pub fn engines_from(&self) -> u32 {
        self.engines_from.load(Ordering::Relaxed)
    }

    /// Returns whether a descriptor number belongs to an engine in this process. The program must
    /// not replace it: dup2 fails with EBADF.
    #[inline]
    pub fn is_engines(&self, fd: i32) -> bool {
        let lowest = self.engines_from();
        lowest != 0 && fd >= lowest.cast_signed()
    }

    /// Returns the socket to which descriptor `fd` belongs. `None` if it is no socket of the stack.
    #[inline]
    pub fn socket(&self, fd: i32) -> Option<Socket> {
        Self::socket_of(self.table.get(fd as usize)?.load(Ordering::Acquire))
    }

    /// Returns the address of the table, which has eight bytes per descriptor number. Other
    /// processes that use the stack read the table.
    pub(crate) fn address(&self) -> usize {
        self.table.as_ptr() as usize
    }

    /// Returns the socket in a table entry. `None` if the entry is not that of a socket.
    pub fn socket_of(word: u64) -> Option<Socket> {
        (word >> KIND_SHIFT == SOCKET).then(|| unpack_socket(word))
    }

    /// Adds an entry for `fd`, an open descriptor of `socket`.
    pub fn set_socket(&self, fd: i32, socket: Socket) {
        self.replace(fd, DescriptorKind::Socket(socket));
    }

    /// Adds an entry for `fd`, an open descriptor of the epoll set with number `index`.
    pub fn set_epoll(&self, fd: i32, index: u32) {
        self.replace(fd, DescriptorKind::Epoll(index));
    }

    /// Removes the entry of a socket or epoll set whose descriptor is about to be closed. If
    /// several threads close the same number, only one of them gets the entry.
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

    /// Replaces the entry of a descriptor number atomically, and returns the former one. Keeps the
    /// entry of an internal descriptor: see [`Self::evacuate`].
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
        // Increment the count before adding the entry. In the other order, another thread could
        // remove the entry and decrement the count first.
        let more = |holds: u8| Some(holds.saturating_add(1));
        // Ignore the result: `more` always returns a value, so the update does not fail.
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

    /// Decrements the descriptor count of a slot. Returns whether this was its last descriptor.
    fn end_hold(&self, slot: u32) -> bool {
        let less = |holds: u8| if holds == MANY { None } else { holds.checked_sub(1) };
        match self.holds[slot as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, less) {
            Ok(before) => before == 1,
            Err(before) => before == MANY && self.is_end_of_many(slot),
        }
    }

    /// Returns whether no descriptor is left for a slot whose count is [`MANY`].
    ///
    /// If a thread is adding a descriptor, even one interrupted by this signal handler, the
    /// descriptor counts as added. A descriptor may also move during the search, to a number that
    /// the search has already passed. The search is then repeated.
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

    /// Returns the descriptor numbers from `from` on that have an entry in the table, in ascending
    /// order.
    pub fn ours(&self, from: u32) -> impl Iterator<Item = (i32, DescriptorKind)> {
        let end = self.end.load(Ordering::Acquire);
        (from..end).filter_map(|fd| match self.lookup(fd as i32) {
            DescriptorKind::Kernel => None,
            entry => Some((fd as i32, entry)),
        })
    }

    /// Moves an internal descriptor of this library away from number `fd`, because the program
    /// wants this number.
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
            // Store address and kind in one word. The two do not overlap, because user-space
            // addresses have at most 56 bits.
            self.set(fd, INTERNAL << KIND_SHIFT | std::ptr::from_ref(word) as u64);
        }
    }

    pub(crate) fn clear(&self, fd: i32) {
        if let Some(word) = self.table.get(fd as usize) {
            word.store(0, Ordering::Release);
        }
    }

    /// Sets the table entry of `fd`, and returns the former entry.
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

    /// Tests the size of this table. If fifty processes use a million sockets in turn, each process
    /// touches almost every page of it.
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
            // Move the socket to another number: add the new entry, then remove the old one.
            DESCRIPTORS.set_socket(2000, socket);
            assert!(!last(0) && DESCRIPTORS.is_held(socket), "{most}");
            assert!(last(2000) && !DESCRIPTORS.is_held(socket), "{most}");
            // After the last descriptor of the socket was closed, new descriptors are counted
            // again.
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
