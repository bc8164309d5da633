//! Implements mlockall(2) for the program's own memory only. The kernel's call would fault in all
//! memory of the process.
//!
//! The shared memory with the engine (the network stack) takes 65 GiB of address space, most of
//! which is never touched. The kernel would allocate all of it, or refuse the call because of
//! RLIMIT_MEMLOCK. Therefore this module locks the mappings of the program one by one. Mappings of
//! this library are neither locked nor counted. MCL_FUTURE is passed to the kernel. The flag
//! affects no memory of the library, which is mapped before the program starts. A forked child
//! inherits no locks.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::{MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT, c_int};
use rustix::fs::{Mode, OFlags, open};
use towpath_client::syscall::syscall;
use towpath_shm::Fd;

use crate::errno::fail;
use crate::{Errno, Posix, Result};

/// Prefix of the names that this library's shared mappings have in /proc/self/maps.
const SHARED: &[u8] = b"/memfd:towpath-";
/// Maximum number of address ranges in [`Posix::engine_memory`]. Further ranges of the engine are
/// locked like memory of the program.
const RANGES_MAX: usize = 32;
/// Bit that is set in the addresses of kernel mappings, such as `[vsyscall]`.
const KERNEL: usize = 1 << (usize::BITS - 1);

/// Ranges of private memory that an engine (network stack) in this process mapped before the
/// program started: thread stacks, buffers and tables.
#[derive(Debug)]
pub(crate) struct EngineMemory([[AtomicUsize; 2]; RANGES_MAX]);

impl EngineMemory {
    /// Creates the state of a process without an engine.
    pub const fn new() -> Self {
        Self([const { [const { AtomicUsize::new(0) }; 2] }; RANGES_MAX])
    }

    fn set(&self, ranges: &[Range<usize>]) {
        for (place, range) in self.0.iter().zip(ranges) {
            place[0].store(range.start, Relaxed);
            place[1].store(range.end, Relaxed);
        }
    }

    /// Returns whether this process contains an engine (network stack).
    pub fn is_any(&self) -> bool {
        self.0[0][1].load(Relaxed) != 0
    }

    fn contains(&self, at: usize) -> bool {
        self.0.iter().any(|[start, end]| (start.load(Relaxed)..end.load(Relaxed)).contains(&at))
    }

    /// Returns the first boundary inside `within` between memory of the program and memory of the
    /// engine or of this library (`image`). Returns the end of `within` if there is none.
    fn next_boundary(&self, image: &Range<usize>, within: &Range<usize>) -> usize {
        let all = self.0.iter().flatten().map(|at| at.load(Relaxed));
        all.chain([image.start, image.end])
            .filter(|at| (within.start + 1..within.end).contains(at))
            .min()
            .unwrap_or(within.end)
    }
}

/// Runs `start`, which creates an engine (network stack) in this process, and records the private
/// memory that it maps.
pub fn note_engine_memory<T>(posix: &'static Posix, start: impl FnOnce() -> T) -> T {
    let before = private_mappings();
    let started = start();
    let mut added = Vec::new();
    for range in private_mappings() {
        let mut from = range.start;
        for known in &before {
            if known.end <= from || known.start >= range.end {
                continue;
            }
            if known.start > from {
                added.push(from..known.start);
            }
            from = from.max(known.end);
        }
        if from < range.end {
            added.push(from..range.end);
        }
    }
    posix.engine_memory.set(&added);
    started
}

fn private_mappings() -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    // Ignore errors: without /proc the list stays empty. Then mlockall(2) also tries to lock the
    // engine's memory, so it may fail because of RLIMIT_MEMLOCK.
    let _ = for_each_mapping(|mapping| {
        // Skip named mappings such as libc's heap, because the program may later allocate memory
        // there.
        if mapping.name.is_empty() {
            match ranges.last_mut().filter(|last| last.end == mapping.range.start) {
                Some(last) => last.end = mapping.range.end,
                None => ranges.push(mapping.range),
            }
        }
    });
    ranges
}

/// Implements mlockall(2) for the program's own memory. `image` is the address range of this
/// library.
///
/// # Errors
/// Errors of mlockall(2). ENOMEM if the program's own address space exceeds RLIMIT_MEMLOCK, or if
/// its size is unknown because /proc is not mounted.
pub fn lock_all(posix: &'static Posix, flags: c_int, image: &Range<usize>) -> Result<()> {
    const ALL: c_int = MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT;
    if flags & MCL_CURRENT == 0 || flags & !ALL != 0 {
        return kernel_lock_all(flags);
    }
    // Add MCL_ONFAULT, so that the call locks only pages that are already in memory, and does not
    // allocate any.
    match kernel_lock_all(flags | MCL_ONFAULT) {
        Ok(()) => {}
        // ENOMEM: RLIMIT_MEMLOCK is below the size of the whole address space. Check it against the
        // program's own mappings.
        Err(Errno(libc::ENOMEM)) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            let mut own = 0;
            for_each_part(posix, image, |part| {
                own += if part.counts { part.range.len() } else { 0 }
            })?;
            if limit.is_some_and(|limit| own as u64 > limit) {
                return fail(libc::ENOMEM);
            }
            call(libc::SYS_munlockall, [0; 3])?;
        }
        Err(error) => return Err(error),
    }
    if flags & MCL_FUTURE != 0 {
        kernel_lock_all(flags & !MCL_CURRENT)?;
    }
    let on_fault = if flags & MCL_ONFAULT != 0 { libc::MLOCK_ONFAULT as usize } else { 0 };
    let locked = for_each_part(posix, image, |MemoryPart { range, is_own, .. }| {
        // Ignore errors of single mappings, such as memory without access rights, as mlockall(2)
        // does.
        let _ = if is_own {
            call(libc::SYS_mlock2, [range.start, range.len(), on_fault])
        } else {
            call(libc::SYS_munlock, [range.start, range.len(), 0])
        };
    });
    // If /proc is not mounted, the memory stays locked on fault (MCL_ONFAULT).
    locked.or(Ok(()))
}

fn kernel_lock_all(flags: c_int) -> Result<()> {
    call(libc::SYS_mlockall, [flags as usize, 0, 0])
}

fn call(number: libc::c_long, [a, b, c]: [usize; 3]) -> Result<()> {
    // SAFETY: the calls only lock or unlock memory, and do not change its content.
    unsafe { syscall(number as usize, [a, b, c, 0, 0, 0]) }.map(drop).map_err(Errno)
}

/// Part of a memory mapping. The part belongs entirely either to the program or to this library.
struct MemoryPart {
    range: Range<usize>,
    /// Whether the memory belongs to the program, and not to this library.
    is_own: bool,
    /// Whether the memory counts towards RLIMIT_MEMLOCK.
    counts: bool,
}

/// Calls `visit` for each part of the memory of this process.
fn for_each_part(
    posix: &'static Posix,
    image: &Range<usize>,
    mut visit: impl FnMut(MemoryPart),
) -> Result<()> {
    for_each_mapping(|Mapping { range, is_accessible, name }| {
        if range.start & KERNEL != 0 {
            return;
        }
        // libc reserves inaccessible memory for each thread of the engine, even after the program
        // has started. Do not count this memory: the total could exceed RLIMIT_MEMLOCK, so that
        // nothing would be locked.
        let is_reserve = posix.engine_memory.is_any() && !is_accessible && name.is_empty();
        // The kernel merges adjacent anonymous mappings of the program and this library, so split
        // the mapping at their boundaries.
        let mut rest = range;
        while !rest.is_empty() {
            let end = posix.engine_memory.next_boundary(image, &rest);
            let is_ours = name.starts_with(SHARED)
                || image.contains(&rest.start)
                || posix.engine_memory.contains(rest.start);
            let counts = !is_ours && !is_reserve;
            visit(MemoryPart { range: rest.start..end, is_own: !is_ours, counts });
            rest.start = end;
        }
    })
}

/// A memory mapping of the process: one line of /proc/self/maps.
struct Mapping<'a> {
    range: Range<usize>,
    is_accessible: bool,
    /// Path or name of the mapping. Empty for anonymous memory.
    name: &'a [u8],
}

/// Calls `visit` for each memory mapping of the process. Does not allocate memory, because that
/// would change the mappings.
fn for_each_mapping(mut visit: impl FnMut(Mapping<'_>)) -> Result<()> {
    let file = open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(Fd::from)
        .map_err(|error| Errno(error.raw_os_error()))?;
    // Longer than any line of /proc/self/maps: a path has at most 4095 bytes, and escapes make it
    // at most four times as long.
    let mut text = [0; 20 << 10];
    let mut len = 0;
    loop {
        let read = match rustix::io::read(&*file, &mut text[len..]) {
            Ok(read) => read,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return fail(error.raw_os_error()),
        };
        len += read;
        let mut done = 0;
        while let Some(end) = text[done..len].iter().position(|byte| *byte == b'\n') {
            if let Some(mapping) = parse(&text[done..done + end]) {
                visit(mapping);
            }
            done += end + 1;
        }
        if read == 0 {
            return Ok(());
        }
        text.copy_within(done..len, 0);
        len -= done;
    }
}

/// Parses a line such as `7f12a000-7f12c000 rw-p 00000000 00:00 0      [heap]`.
fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut range = std::str::from_utf8(fields.next()?).ok()?.split('-');
    let mut address = || usize::from_str_radix(range.next()?, 16).ok();
    let range = address()?..address()?;
    let is_accessible = fields.next()?.first() == Some(&b'r');
    Some(Mapping { range, is_accessible, name: fields.nth(3).unwrap_or_default().trim_ascii() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_mappings_with_and_without_names() {
        let line = b"7f12a000-7f12c000 rw-s 00000000 00:01 37      /memfd:towpath-region (deleted)";
        let mapping = parse(line).expect("a mapping");
        assert_eq!(mapping.range, 0x7f12_a000..0x7f12_c000);
        assert!(mapping.name.starts_with(SHARED));
        let anonymous = parse(b"7f12a000-7f12c000 rw-p 00000000 00:00 0 ").expect("a mapping");
        assert!(anonymous.name.is_empty());
        assert!(parse(b"").is_none() && parse(b"x-y r--p").is_none());
    }

    #[test]
    fn splits_joined_mappings_at_the_engine_memory() {
        static POSIX: Posix = Posix::new();
        let page = 4096;
        let map = || {
            let prot = rustix::mm::ProtFlags::READ;
            let flags = rustix::mm::MapFlags::PRIVATE;
            // SAFETY: the kernel chooses an address that is not in use.
            let at =
                unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), 3 * page, prot, flags) };
            at.expect("memory").addr()
        };
        let at = map();
        POSIX.engine_memory.set(std::slice::from_ref(&(at + page..at + 2 * page)));
        let mut parts = Vec::with_capacity(64);
        for_each_part(&POSIX, &(0..0), |MemoryPart { range, is_own, .. }| {
            if range.start < at + 3 * page && range.end > at {
                parts.push((range.start.max(at) - at..range.end.min(at + 3 * page) - at, is_own));
            }
        })
        .expect("/proc");
        let all = [(0..page, true), (page..2 * page, false), (2 * page..3 * page, true)];
        assert_eq!(parts, all);
    }
}
