//! Memory allocator of this library.
//!
//! We cannot use malloc(3). A signal handler may interrupt malloc(3), and then call a socket
//! function that runs the engine. The program's own malloc may even use sockets. So memory comes
//! from mmap(2). There are several heaps, and a thread skips heaps that are locked, so it never
//! waits for a lock that it holds itself. If a signal handler interrupts an allocation and leaves
//! by siglongjmp, that heap stays locked.
//!
//! Small allocations are rounded up to size classes, with a free list for each class and heap. If a
//! thread uses a heap during fork(2), the heap is inconsistent in the child. Therefore the child
//! starts with empty heaps: the kernel zeroes their control page (MADV_WIPEONFORK). Blocks that
//! were free in the parent are leaked in the child.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
};

/// Number of heaps. A thread uses the first heap that no other thread has locked.
const HEAPS: usize = 8;
/// Binary logarithms of the smallest and largest block of a heap, in bytes. Block sizes are powers
/// of two, and the values halfway between them.
const SHIFT_MIN: u32 = 4;
const SHIFT_MAX: u32 = 16;
const SIZES: usize = 2 * (SHIFT_MAX - SHIFT_MIN) as usize + 1;
/// Number of bytes that a heap maps at a time, to divide them into small blocks.
const CHUNK: usize = 256 << 10;
const PAGE: usize = 4096;

/// The global allocator of this library, in place of malloc(3).
#[derive(Debug)]
pub struct Heap {
    /// Heaps of this process; null until the first allocation.
    heaps: AtomicPtr<Heaps>,
}

/// The heaps of this process. The kernel zeroes this structure in a forked child, so that the child
/// starts with empty heaps.
#[repr(C)]
struct Heaps([Pieces; HEAPS]);

/// A heap of small blocks. The thread that has set `is_taken`, its lock, may access all other
/// fields.
#[repr(C)]
struct Pieces {
    is_taken: AtomicBool,
    /// Free list of each size class: address of the first free block, or 0. The first word of a
    /// free block is the address of the next one.
    free: [AtomicUsize; SIZES],
    /// Address of the first byte of the current chunk that was not allocated yet.
    next: AtomicUsize,
    end: AtomicUsize,
}

/// Guard of a heap that this thread has locked. Unlocks the heap when dropped.
struct Taken<'a>(&'a Pieces);

impl Heap {
    /// Creates an allocator that has not mapped any memory yet.
    pub const fn new() -> Self {
        Self { heaps: AtomicPtr::new(null_mut()) }
    }

    /// Returns the heaps. Maps them on first use. Returns `None` if there is no memory.
    fn heaps(&self) -> Option<&Heaps> {
        let mut heaps = self.heaps.load(Ordering::Acquire);
        if heaps.is_null() {
            let fresh = map(size_of::<Heaps>())?;
            // Ignore an error of madvise(2), because kernels before 4.14 do not support
            // MADV_WIPEONFORK. SAFETY: `fresh` is a mapping of this length, created just now.
            let _ = unsafe { madvise(fresh.cast(), size_of::<Heaps>(), Advice::LinuxWipeOnFork) };
            let set = self.heaps.compare_exchange(
                null_mut(),
                fresh.cast(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            heaps = fresh.cast();
            if let Err(others) = set {
                // SAFETY: `fresh` was mapped just now, and is not in use.
                unsafe { unmap(fresh, size_of::<Heaps>()) };
                heaps = others;
            }
        }
        // SAFETY: heaps are never unmapped, and zeros are a valid initial state.
        unsafe { heaps.as_ref() }
    }

    fn take(&self) -> Option<Taken<'_>> {
        let heaps = self.heaps()?;
        loop {
            let free = heaps.0.iter().find(|pieces| {
                !pieces.is_taken.load(Ordering::Relaxed)
                    && !pieces.is_taken.swap(true, Ordering::Acquire)
            });
            if let Some(pieces) = free {
                return Some(Taken(pieces));
            }
            rustix::thread::sched_yield();
        }
    }
}

impl Taken<'_> {
    fn allocate(&self, size: Size) -> Option<*mut u8> {
        let free = &self.0.free[size.index()];
        let first = ptr::with_exposed_provenance_mut::<u8>(free.load(Ordering::Relaxed));
        if first.is_null() {
            return self.carve(size.len());
        }
        // SAFETY: `first` is a free block, whose first word is the address of the next free block.
        free.store(unsafe { first.cast::<usize>().read() }, Ordering::Relaxed);
        Some(first)
    }

    /// Allocates a block of `len` bytes at the end of the used part of the current chunk.
    fn carve(&self, len: usize) -> Option<*mut u8> {
        // Align the block to the largest power of two that divides its length.
        let align = 1 << len.trailing_zeros();
        let (next, end) = (&self.0.next, &self.0.end);
        let mut at = next.load(Ordering::Relaxed).next_multiple_of(align);
        if end.load(Ordering::Relaxed).checked_sub(at).is_none_or(|room| room < len) {
            // Map a new chunk. The unused rest of the previous one, which is too short, is leaked.
            let chunk = map(CHUNK)?.expose_provenance();
            end.store(chunk + CHUNK, Ordering::Relaxed);
            at = chunk.next_multiple_of(align);
        }
        next.store(at + len, Ordering::Relaxed);
        Some(ptr::with_exposed_provenance_mut(at))
    }

    /// # Safety
    /// `at` must be an unused block of this size class.
    unsafe fn free(&self, at: *mut u8, size: Size) {
        let free = &self.0.free[size.index()];
        // SAFETY: `at` is an unused block, by the contract of this function. Every block is large
        // enough for a word, and aligned to it.
        unsafe { at.cast::<usize>().write(free.load(Ordering::Relaxed)) };
        free.store(at.expose_provenance(), Ordering::Relaxed);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

/// Size class of a small block: 16, 24, 32, 48, 64 and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size(u8);

impl Size {
    /// Returns the smallest size class for a layout, or `None` if the allocation is so large that
    /// it is mapped separately.
    fn of(layout: Layout) -> Option<Self> {
        let (len, align) = (layout.size().max(layout.align()), layout.align());
        if len > 1 << SHIFT_MAX || align > PAGE {
            return None;
        }
        let whole = len.next_power_of_two().trailing_zeros().max(SHIFT_MIN);
        let half = (1 << whole) / 4 * 3;
        // The size classes are powers of two, and the values halfway between them, such as 24 or
        // 48. A block of a halfway size is aligned only to a third of its size.
        let fits = whole > SHIFT_MIN && len <= half && align <= half / 3;
        let index = 2 * (whole - SHIFT_MIN) - u32::from(fits);
        Some(Self(index as u8))
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }

    fn len(self) -> usize {
        let whole = 1 << (usize::from(self.0).div_ceil(2) + SHIFT_MIN as usize);
        if self.0 % 2 == 1 { whole / 4 * 3 } else { whole }
    }
}

// SAFETY: a block has one owner until it is freed. Only the thread that has locked a heap changes
// it, and mappings of the kernel do not overlap. A block has the length and alignment of its size
// class, which depends only on the layout and fits it.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(size) = Size::of(layout) else { return large(layout).unwrap_or(null_mut()) };
        self.take().and_then(|heap| heap.allocate(size)).unwrap_or(null_mut())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match Size::of(layout) {
            // SAFETY: the caller guarantees that `at` came from this allocator with this layout, so
            // it is a block of this size class.
            Some(size) => unsafe {
                if let Some(heap) = self.take() {
                    heap.free(at, size);
                }
            },
            // SAFETY: `at` is a mapping of this length, created by `large`.
            None => unsafe { unmap(at, layout.size()) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees that the layout is valid for `alloc`.
        let at = unsafe { self.alloc(layout) };
        // Skip large allocations, because the kernel has zeroed their new mappings.
        if !at.is_null() && Size::of(layout).is_some() {
            // SAFETY: the block is at least as long as the layout.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the size does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(len, layout.align()) };
        let sizes = (Size::of(layout), Size::of(new));
        match sizes {
            (Some(before), Some(after)) if before == after => return at,
            (None, None) if layout.align() <= PAGE => {
                let (old, new) = (pages(layout.size()), pages(len));
                // SAFETY: `at` is a mapping of `old` bytes, created by `large`.
                let moved = unsafe { mremap(at.cast(), old, new, MremapFlags::MAYMOVE) };
                return moved.map_or(null_mut(), <*mut _>::cast);
            }
            _ => {}
        }
        // SAFETY: the caller guarantees that `at` came from this allocator with `layout`. The
        // copied length fits both blocks, which do not overlap.
        unsafe {
            let to = self.alloc(new);
            if !to.is_null() {
                to.copy_from_nonoverlapping(at, len.min(layout.size()));
                self.dealloc(at, layout);
            }
            to
        }
    }
}

fn pages(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

/// Maps memory for a large allocation.
fn large(layout: Layout) -> Option<*mut u8> {
    let (len, align) = (pages(layout.size()), layout.align());
    if align <= PAGE {
        return map(len);
    }
    // Map too much, and unmap the pages before and after the aligned part.
    let whole = map(len.checked_add(align)?)?;
    let before = whole.align_offset(align);
    let at = whole.wrapping_add(before);
    // SAFETY: both ranges are parts of the new mapping that the result does not contain.
    unsafe {
        unmap(whole, before);
        unmap(at.wrapping_add(len), align - before);
    }
    Some(at)
}

fn map(len: usize) -> Option<*mut u8> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory at an address that the kernel chooses.
    let at = unsafe { mmap_anonymous(null_mut(), len.max(1), prot, MapFlags::PRIVATE) };
    at.ok().map(<*mut _>::cast).or_else(|| SPARE.map(len))
}

/// Pages that are mapped before the program's `main` runs. The allocator uses them if the kernel
/// refuses a mapping later.
///
/// After mlockall(2) with MCL_FUTURE, new mappings are locked and count against RLIMIT_MEMLOCK. An
/// earlier mapping is not locked, and mremap(2) can still enlarge and move it. Therefore each of
/// these pages can serve one later allocation.
pub struct Spare {
    first: AtomicPtr<u8>,
    used: AtomicUsize,
}

/// Number of spare pages, each used at most once.
const SPARE_MAX: usize = 16_384;

/// Spare pages of this process, used if the kernel refuses a new mapping.
pub static SPARE: Spare = Spare::new();

impl Spare {
    const fn new() -> Self {
        Self { first: AtomicPtr::new(null_mut()), used: AtomicUsize::new(0) }
    }

    /// Maps the spare pages, once. Unused pages take only address space.
    pub fn prepare(&self) {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new memory at an address that the kernel chooses.
        if let Ok(at) = unsafe { mmap_anonymous(null_mut(), SPARE_MAX * PAGE, prot, flags) } {
            self.first.store(at.cast(), Ordering::Release);
        }
    }

    fn map(&self, len: usize) -> Option<*mut u8> {
        let first = self.first.load(Ordering::Acquire);
        let place = self.used.fetch_add(1, Ordering::Relaxed);
        if first.is_null() || place >= SPARE_MAX {
            self.used.store(SPARE_MAX, Ordering::Relaxed);
            return None;
        }
        let page = first.wrapping_add(place * PAGE).cast();
        // SAFETY: `page` is an unused spare page, which no other call gets.
        let at = unsafe { mremap(page, PAGE, pages(len.max(1)), MremapFlags::MAYMOVE) };
        at.ok().map(<*mut _>::cast)
    }
}

/// # Safety
/// The range must be mapped by [`map`], and no longer in use.
unsafe fn unmap(at: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the range is mapped and not in use, by the contract of this function.
        let _ = unsafe { munmap(at.cast(), pages(len)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_room_and_are_aligned() {
        let heap = Heap::new();
        let lens = (1..200).chain([255, 256, 257, 3000, 49_152, 49_153, 65_536, 65_537, 1 << 20]);
        for layout in lens.flat_map(|len| {
            [1, 2, 8, 16, 64, 512, 4096, 16_384].map(|align| Layout::from_size_align(len, align))
        }) {
            let layout = layout.expect("a power of two");
            if let Some(size) = Size::of(layout) {
                assert!(size.len() >= layout.size() && size.index() < SIZES, "{layout:?}");
                assert!(size.len() <= 2 * layout.size().max(layout.align()).max(16));
            }
            // SAFETY: each block is used within its layout, and freed once.
            unsafe {
                let all = [(); 3].map(|()| heap.alloc_zeroed(layout));
                for at in all {
                    assert!(
                        !at.is_null() && at.addr().is_multiple_of(layout.align()),
                        "{layout:?}"
                    );
                    assert!((0..layout.size()).all(|n| at.add(n).read() == 0), "{layout:?}");
                    at.write_bytes(0xa5, layout.size());
                }
                all.into_iter().for_each(|at| heap.dealloc(at, layout));
            }
        }
    }

    /// Tests the allocator with several threads. The test program uses it as its global allocator.
    #[test]
    fn what_threads_have_is_theirs() {
        let work = |seed: u64| {
            let mut dice = towpath_dice::Dice::new(seed, 0);
            let mut held: Vec<Vec<u64>> = Vec::new();
            for n in 0..20_000 {
                let len = dice.index(1200) + 1;
                match held.get_mut(n % 61) {
                    Some(old) => {
                        assert!(old.iter().all(|word| *word == old[0]), "{seed}");
                        let word = old[0];
                        old.resize(len, word);
                        old.shrink_to_fit();
                    }
                    None => held.push(vec![dice.next_u64(); len]),
                }
                if n % 7 == 0 {
                    held.swap_remove(n % held.len());
                }
            }
            held.len()
        };
        let threads: Vec<_> = (1..7).map(|seed| std::thread::spawn(move || work(seed))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().expect("no panic") > 0));
    }

    /// Tests that the spare pages are used when RLIMIT_MEMLOCK refuses a new mapping. Runs in a
    /// child process, because MCL_FUTURE and the limit are permanent.
    #[test]
    fn memory_is_found_where_new_mappings_are_refused() {
        let heap = Heap::new();
        let layout = Layout::from_size_align(1 << 20, 8).expect("a layout");
        // SAFETY: the child makes system calls, uses its own memory, and exits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                SPARE.prepare();
                let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
                let is_limited = libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) == 0
                    && libc::setresuid(65_534, 65_534, 65_534) == 0
                    && libc::mlockall(libc::MCL_FUTURE) == 0;
                let null = null_mut();
                let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                let is_refused = libc::mmap(null, 1 << 20, prot, flags, -1, 0) == libc::MAP_FAILED;
                let all = [(); 3].map(|()| heap.alloc(layout));
                let is_found = all.iter().all(|at| !at.is_null());
                if is_found {
                    all.iter().for_each(|at| at.write_bytes(7, 1 << 20));
                }
                // setresuid(2) fails without root privileges. There is nothing to test then, so
                // exit with success.
                libc::_exit(i32::from(is_limited && !(is_refused && is_found)));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
        }
    }

    /// Tests fork(2) while a thread uses a heap. Without the wipe, the heap would stay locked in
    /// the child, where that thread does not exist.
    #[test]
    fn a_heap_that_is_in_use_is_passed_over_and_free_in_a_child() {
        let heap = Heap::new();
        let layout = Layout::from_size_align(100, 8).expect("a layout");
        let taken: Vec<_> = (0..HEAPS - 1).map(|_| heap.take().expect("memory")).collect();
        // SAFETY: no thread uses the heap; the child makes system calls and exits.
        unsafe {
            let at = heap.alloc(layout);
            assert!(!at.is_null());
            match libc::fork() {
                0 => {
                    let all: Vec<_> = (0..HEAPS).map_while(|_| heap.take()).collect();
                    libc::_exit(all.len() as i32);
                }
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    assert_eq!(libc::WEXITSTATUS(status), HEAPS as i32);
                }
            }
            heap.dealloc(at, layout);
        }
        drop(taken);
    }
}
