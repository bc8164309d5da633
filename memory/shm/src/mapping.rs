//! Memory that another process may write at any time. Therefore this module never creates a `&[u8]`
//! to it.

use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::{Fd, opened};

/// A memory mapping: either a shared memfd, or private memory for a stack in the same process.
///
/// Bytes are accessed by copying, and words by atomic operations. Mapping memory that another
/// process writes is therefore sound.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use towpath_shm::Mapping;
///
/// let mine = Mapping::shared("example", 4096)?;
/// let theirs = Mapping::from_file(mine.file().expect("shared").try_clone()?, 4096)?;
/// mine.write(8, b"towpath");
/// mine.u32(0).store(7, Ordering::Release);
///
/// let mut bytes = vec![0; theirs.u32(0).load(Ordering::Acquire) as usize];
/// theirs.read(8, &mut bytes);
/// assert_eq!(bytes, b"towpath");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    file: Option<Fd>,
}

// SAFETY: the mapping is plain memory that is valid until drop. All access is by copying or by
// atomics.
unsafe impl Send for Mapping {}
// SAFETY: all access is by copying or by atomics, so several threads may use the mapping.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a shared mapping of `len` zero bytes, backed by a memfd. Pages take no memory until
    /// they are written. `name` is shown in /proc/PID/maps. The length is sealed, so that no
    /// process with the memfd can change it.
    ///
    /// # Errors
    /// Returns errors of memfd_create(2), ftruncate(2) and mmap(2): `OutOfMemory` if the limit of
    /// address space (RLIMIT_AS) is too low, EMFILE and ENFILE without free descriptors.
    pub fn shared(name: &str, len: usize) -> std::io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = Fd::from(opened(|| rustix::fs::memfd_create(name, flags))?);
        rustix::fs::ftruncate(&file, len as u64)?;
        // Seal the size. If another process with the memfd shrank the file, access to the mapping
        // would raise SIGBUS.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Creates a shared mapping that only the returned value can write. Other processes that
    /// receive the memfd can only read the memory; they map it by [`Mapping::read_only`].
    ///
    /// # Errors
    /// Returns `InvalidInput` before Linux 5.1, which has no F_SEAL_FUTURE_WRITE, and the errors of
    /// [`Mapping::shared`].
    pub fn published(name: &str, len: usize) -> std::io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = Fd::from(opened(|| rustix::fs::memfd_create(name, flags))?);
        rustix::fs::ftruncate(&file, len as u64)?;
        let mapping = Self::map(
            opened(|| fcntl_dupfd_cloexec(&file, 0))?.into(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
        )?;
        // From now on, the kernel rejects write(2) and hole punching. The kernel also rejects a
        // writable shared mapping, and mprotect(2) of a read-only one. /proc/PID/mem does not write
        // to sealed pages either. Existing mappings are not affected.
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(mapping)
    }

    /// Maps the first `len` bytes of a memfd received from another process, and closes the
    /// descriptor. The mapping stays valid without it, and the program would not expect this
    /// descriptor.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the file is shorter than `len`, because access beyond its end
    /// would raise SIGBUS. Also returns errors of fstat(2) and mmap(2), such as `OutOfMemory` at
    /// the limit of address space (RLIMIT_AS).
    pub fn from_file(file: impl Into<Fd>, len: usize) -> std::io::Result<Self> {
        Self::received(file.into(), len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps a memfd created by [`Mapping::published`] read-only. Otherwise like
    /// [`Mapping::from_file`]. Writing to the mapping raises SIGSEGV.
    ///
    /// # Errors
    /// Returns the errors of [`Mapping::from_file`].
    pub fn read_only(file: impl Into<Fd>, len: usize) -> std::io::Result<Self> {
        Self::received(file.into(), len, ProtFlags::READ)
    }

    fn received(file: Fd, len: usize, prot: ProtFlags) -> std::io::Result<Self> {
        let mut mapping = Self::map(file, len, prot)?;
        mapping.file = None;
        Ok(mapping)
    }

    fn map(file: Fd, len: usize, prot: ProtFlags) -> std::io::Result<Self> {
        if rustix::fs::fstat(&*file)?.st_size < len as i64 {
            return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: this is a new mapping at an address chosen by the kernel, so nothing else uses
        // that range.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, &*file, 0)? };
        // Exclude the memory from core dumps. Otherwise the core file of one program would contain
        // the data of all programs. The call fails only before Linux 3.4. SAFETY: the range is the
        // mapping that was just created, and the advice does not change its content.
        let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Ok(Self { base, len, file: Some(file) })
    }

    /// Maps `len` bytes of a device's memory from `offset` on, for example the rings of a socket.
    /// All processes with the descriptor map the same bytes.
    ///
    /// # Errors
    /// Returns errors of mmap(2): `InvalidInput` if the device has no such memory.
    pub fn of_device(device: impl AsFd, offset: u64, len: usize) -> std::io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: this is a new mapping at an address chosen by the kernel, so nothing else uses
        // that range.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, device, offset)? };
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Ok(Self { base, len, file: None })
    }

    /// Creates `len` zero bytes of private memory, for a stack whose sockets are used by one
    /// process. After fork(2), the child process has its own copy.
    ///
    /// # Errors
    /// Returns errors of mmap(2): `OutOfMemory` if the limit of address space (RLIMIT_AS) is too
    /// low, and `InvalidInput` if `len` is 0.
    pub fn private(len: usize) -> std::io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: this is a new anonymous mapping at an address chosen by the kernel.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags)? };
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Ok(Self { base, len, file: None })
    }

    /// Returns the length of the mapping in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length of the mapping is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the memfd of a shared mapping, so that another process can map it. Returns `None`
    /// for private memory, and for a mapping of a received memfd.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_deref()
    }

    /// Returns the address of `len` bytes at `offset`. Other threads and processes may access these
    /// bytes. Only the owner of private memory may create slices of them.
    ///
    /// # Panics
    /// Panics if the range exceeds the mapping.
    pub fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "offset {offset}+{len} beyond the mapping");
        // SAFETY: `offset <= self.len` was checked, so the result is inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies `to.len()` bytes from `offset` to `to`. If another process writes at the same time,
    /// the result may be a mixture of old and new bytes.
    ///
    /// # Panics
    /// Panics if the range exceeds the mapping. Callers validate offsets first.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        // SAFETY: `at` has checked the range, and `to` is borrowed exclusively. If the other side
        // writes at the same time, the copy is an unspecified mixture of bytes, which harms only
        // that side's data.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(offset, to.len()), to.as_mut_ptr(), to.len())
        }
    }

    /// Copies bytes to `offset` of the mapping. Other processes may see them in any order, until
    /// they read an atomic that publishes them.
    ///
    /// # Panics
    /// Panics if the range exceeds the mapping.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        // SAFETY: `at` has checked the range. `from` is a slice, so it never refers to a mapping.
        // If the other side writes at the same time, the mapping contains an unspecified mixture of
        // bytes, which harms only that side's data.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.at(offset, from.len()), from.len())
        }
    }

    /// Copies `len` bytes to `offset` of this mapping, from `from_offset` of the mapping `from`.
    /// Both may be the same mapping.
    ///
    /// # Panics
    /// Panics if either range exceeds its mapping.
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &Mapping, from_offset: usize, len: usize) {
        // SAFETY: `at` has checked both ranges, and `copy` allows that they overlap.
        unsafe { std::ptr::copy(from.at(from_offset, len), self.at(offset, len), len) }
    }

    /// Returns the 32-bit word at `offset` as an atomic.
    ///
    /// # Panics
    /// Panics if the offset is not a multiple of 4, or the word exceeds the mapping.
    #[inline]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: the word is in range and aligned (the base is page-aligned). All such words are
        // accessed only as atomics.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Returns the 16-bit word at `offset` as an atomic.
    ///
    /// # Panics
    /// Panics if the offset is not a multiple of 2, or the word exceeds the mapping.
    #[inline]
    pub fn u16(&self, offset: usize) -> &AtomicU16 {
        assert!(offset.is_multiple_of(2));
        // SAFETY: the word is in range and aligned (the base is page-aligned). Other threads of
        // this process access it only as an atomic. A guest may place a buffer over the words of
        // its virtqueue, but the thread of the virtqueue copies that buffer, too.
        unsafe { AtomicU16::from_ptr(self.at(offset, 2).cast()) }
    }

    /// Returns the 64-bit word at `offset` as an atomic.
    ///
    /// # Panics
    /// Panics if the offset is not a multiple of 8, or the word exceeds the mapping.
    #[inline]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: the word is in range and aligned (the base is page-aligned). All such words are
        // accessed only as atomics.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Returns the byte at `offset` as an atomic.
    ///
    /// # Panics
    /// Panics if the offset is beyond the mapping.
    #[inline]
    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: the byte is in range. All such bytes are accessed only as atomics.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    /// Returns a `repr(C)` struct of atomics at `offset`. Do not store to it in a mapping created
    /// by [`Mapping::read_only`], because that raises SIGSEGV.
    ///
    /// # Panics
    /// Panics if the offset is not aligned for `T`, or the struct exceeds the mapping.
    ///
    /// # Safety
    /// `T` must consist only of atomics and padding. Every bit pattern must be valid, because
    /// another process may write any field at any time.
    #[inline]
    pub unsafe fn view<T>(&self, offset: usize) -> &T {
        assert!(offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the struct is in range and aligned. The caller guarantees that `T` consists of
        // atomics.
        unsafe { &*self.at(offset, size_of::<T>()).cast::<T>() }
    }

    /// Frees the pages of a range, which read as zeros afterwards. The range is reduced to whole
    /// pages. Only the process that created the mapping may call this.
    ///
    /// Blocks while another process that has the memfd locks its inode, which can take any time.
    ///
    /// # Errors
    /// Returns errors of fallocate(2) and madvise(2): EINTR if a signal handler ran, EPERM if the
    /// memfd is sealed against writing. Some pages may have been freed nevertheless.
    pub fn discard(&self, offset: usize, len: usize) -> std::io::Result<()> {
        const PAGE: usize = 4096;
        let start = offset.next_multiple_of(PAGE);
        let end = (offset + len) / PAGE * PAGE;
        if end <= start {
            return Ok(());
        }
        match &self.file {
            Some(file) => {
                use rustix::fs::FallocateFlags;
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file.as_fd(), flags, start as u64, (end - start) as u64)?;
            }
            None => {
                let at = self.at(start, end - start).cast();
                // SAFETY: the range consists of whole pages inside this anonymous mapping.
                unsafe { rustix::mm::madvise(at, end - start, Advice::LinuxDontNeed)? };
            }
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: only `self` uses the range, and no reference to it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Owner of memory to which [`Fragments`] refer: a mapping, or an object that reserves a part of a
/// mapping while fragments refer to it.
pub trait Backing: Debug + Send + Sync {
    /// Returns the mapping to which the fragments' offsets refer. Must always return the same
    /// mapping.
    fn mapping(&self) -> &Mapping;

    /// Called when [`Fragments`] that refer to the memory are created.
    fn hold(&self) {}

    /// Called when [`Fragments`] are dropped and do not read the memory any more.
    fn leave(&self) {}

    /// Returns whether the memory is kept only by fragments, so that copying their bytes would free
    /// it.
    fn is_forsaken(&self) -> bool {
        false
    }
}

impl Backing for Mapping {
    #[inline]
    fn mapping(&self) -> &Mapping {
        self
    }
}

/// A range of bytes in a mapping, which stays mapped as long as this value exists. Another process
/// may change the bytes at any time.
#[derive(Debug, Clone)]
pub struct Stretch {
    backing: Arc<dyn Backing>,
    offset: usize,
    len: u32,
}

impl Stretch {
    /// Creates a range of `len` bytes at `offset`.
    ///
    /// # Panics
    /// Panics if the range exceeds the mapping.
    pub fn new<B: Backing + 'static>(backing: &Arc<B>, offset: usize, len: u32) -> Self {
        let end = offset.checked_add(len as usize);
        assert!(end.is_some_and(|end| end <= backing.mapping().len()));
        Self { backing: Arc::clone(backing) as Arc<dyn Backing>, offset, len }
    }

    /// Returns a borrowed view of the range, by which its bytes can be read.
    pub fn part(&self) -> Part<'_> {
        Part { mapping: self.backing.mapping(), offset: self.offset, len: self.len }
    }

    /// Returns the length of the range in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte, for an iovec; see [`Part::as_ptr`].
    pub fn as_ptr(&self) -> *const u8 {
        self.part().as_ptr()
    }
}

/// A range of bytes borrowed from a [`Stretch`] or [`Fragments`].
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    mapping: &'a Mapping,
    offset: usize,
    len: u32,
}

impl Part<'_> {
    /// Returns the length of the range in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the offset of the range in its mapping, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the address of the first byte, for an iovec. The address is valid while the owner of
    /// the memory exists, and must not be converted to a slice.
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.at(self.offset, self.len as usize)
    }

    /// Copies `to.len()` bytes of the range, from offset `skip` on, to `to`.
    ///
    /// # Panics
    /// Panics if the range has fewer bytes.
    pub fn copy_to(&self, skip: u32, to: &mut [u8]) {
        assert!(skip as usize + to.len() <= self.len as usize);
        self.mapping.read(self.offset + skip as usize, to);
    }

    /// Copies `len` bytes, starting at offset `skip` of this range, to `to_offset` of the mapping
    /// `to`.
    ///
    /// # Panics
    /// Panics if this range has fewer bytes, or if they do not fit in `to`.
    pub fn copy_to_mapping(&self, skip: u32, len: u32, to: &Mapping, to_offset: usize) {
        assert!(skip.checked_add(len).is_some_and(|end| end <= self.len));
        to.copy_from(to_offset, self.mapping, self.offset + skip as usize, len as usize);
    }
}

/// A range of a ring buffer, as one or two ranges of a mapping, which stays mapped. A transmit FIFO
/// does not reuse the space until the fragments are dropped. However, the program that owns the
/// bytes can still overwrite them.
#[derive(Debug, Default)]
pub struct Fragments {
    /// Owner of the memory; `None` if there are no bytes. [`Backing::hold`] tells the owner when
    /// fragments are created.
    backing: Option<Arc<dyn Backing>>,
    offsets: [usize; 2],
    lens: [u32; 2],
}

// Limit the size, because every packet contains this struct.
const _: () = assert!(size_of::<Fragments>() == 40);

impl Fragments {
    /// Creates fragments without bytes.
    pub const fn empty() -> Self {
        Self { backing: None, offsets: [0; 2], lens: [0; 2] }
    }

    /// Creates fragments from one or two ranges, in this order.
    ///
    /// # Panics
    /// Panics if the ranges are of different mappings.
    pub fn new(first: Stretch, second: Option<Stretch>) -> Self {
        let Stretch { backing, offset, len } = first;
        let (mut offsets, mut lens) = ([offset, 0], [len, 0]);
        if let Some(second) = second {
            assert!(ptr::addr_eq(Arc::as_ptr(&backing), Arc::as_ptr(&second.backing)));
            (offsets[1], lens[1]) = (second.offset, second.len);
        }
        Self::held(Some(backing), offsets, lens)
    }

    fn held(backing: Option<Arc<dyn Backing>>, offsets: [usize; 2], lens: [u32; 2]) -> Self {
        if let Some(backing) = &backing {
            backing.hold();
        }
        Self { backing, offsets, lens }
    }

    /// Returns the total length of the ranges in bytes.
    pub fn len(&self) -> u32 {
        self.lens[0] + self.lens[1]
    }

    /// Returns whether the ranges have no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the memory is kept only by fragments, so that copying their bytes would free
    /// it.
    pub fn is_forsaken(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.is_forsaken())
    }

    /// Iterates over the nonempty ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Part<'_>> {
        let mapping = self.backing.as_ref().map(|backing| backing.mapping());
        let part = move |n: usize| {
            let (offset, len) = (self.offsets[n], self.lens[n]);
            mapping.filter(|_| len > 0).map(|mapping| Part { mapping, offset, len })
        };
        // Two options are much faster to iterate over than a flattened array.
        part(0).into_iter().chain(part(1))
    }

    /// Returns the bytes `skip..skip + len` of the ranges as fragments, without copying.
    ///
    /// # Panics
    /// Panics if there are fewer bytes.
    #[inline]
    pub fn slice(&self, skip: u32, len: u32) -> Self {
        // Return early for small packets, which have no fragments.
        match len {
            0 => Self::empty(),
            len => self.slice_of_some(skip, len),
        }
    }

    fn slice_of_some(&self, skip: u32, len: u32) -> Self {
        let (mut offsets, mut lens) = ([0; 2], [0; 2]);
        let (mut skip, mut left, mut n) = (skip, len, 0);
        for part in self.iter() {
            let from = skip.min(part.len);
            let take = left.min(part.len - from);
            skip -= from;
            left -= take;
            if take > 0 {
                (offsets[n], lens[n]) = (part.offset + from as usize, take);
                n += 1;
            }
        }
        assert_eq!(left, 0, "slice beyond the fragments");
        let backing = if n > 0 { self.backing.clone() } else { None };
        Self::held(backing, offsets, lens)
    }

    /// Copies `to.len()` bytes of the ranges, from offset `skip` on, to `to`.
    ///
    /// # Panics
    /// Panics if there are fewer bytes.
    pub fn copy_to(&self, skip: u32, to: &mut [u8]) {
        let (mut skip, mut done) = (skip, 0);
        for part in self.iter() {
            let from = skip.min(part.len);
            let take = ((part.len - from) as usize).min(to.len() - done);
            skip -= from;
            part.copy_to(from, &mut to[done..done + take]);
            done += take;
        }
        assert_eq!(done, to.len(), "copy beyond the fragments");
    }
}

impl Clone for Fragments {
    fn clone(&self) -> Self {
        Self::held(self.backing.clone(), self.offsets, self.lens)
    }
}

impl Drop for Fragments {
    fn drop(&mut self) {
        if let Some(backing) = &self.backing {
            backing.leave();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns the line with the flags of the mapping in /proc/self/smaps (proc_pid_smaps(5)).
    fn flags(mapping: &Mapping) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("proc");
        let start = format!("{:x}-", mapping.base.addr());
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
        lines.find(|line| line.starts_with("VmFlags:")).expect("a line").to_owned()
    }

    #[test]
    fn shared_memory_is_left_out_of_core_files() {
        let shared = Mapping::shared("test", 1 << 20).expect("memory");
        assert!(flags(&shared).split(' ').any(|flag| flag == "dd"), "{}", flags(&shared));
        let private = Mapping::private(1 << 20).expect("memory");
        assert!(!flags(&private).split(' ').any(|flag| flag == "dd"));
    }
}
