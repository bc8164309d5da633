//! Memory that others may write to at any time: no `&[u8]` is ever made of it.

use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::{Fd, opened};

/// A mapped stretch of memory: a shared memfd, or private memory for a stack in the same process.
///
/// Bytes go in and out by copy; words are reached as atomics. For that reason it is sound to map
/// memory that another process writes to.
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

// SAFETY: the mapping is plain memory that lives until drop; all access is by copy or by atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent access is what the type is for.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new shared mapping of `len` bytes, all zero, backed by a memfd; pages cost nothing until
    /// touched. `name` is what /proc/PID/maps shows. Its length is sealed: nobody who gets the
    /// memfd can change it.
    ///
    /// # Errors
    /// Errors of memfd_create(2), ftruncate(2) and mmap(2). `OutOfMemory` when a limit of address
    /// space (RLIMIT_AS) leaves no room, EMFILE and ENFILE when there are no descriptors left.
    pub fn shared(name: &str, len: usize) -> std::io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = Fd::from(opened(|| rustix::fs::memfd_create(name, flags))?);
        rustix::fs::ftruncate(&file, len as u64)?;
        // A process that we hand it to must not shrink it: our next access would be SIGBUS.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same, but writable through this mapping alone: a process that is given the memfd can
    /// only read, and map it with [`Mapping::read_only`].
    ///
    /// # Errors
    /// `InvalidInput` before Linux 5.1, which has no F_SEAL_FUTURE_WRITE; others as for
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
        // The kernel refuses from here on write(2), hole punching, a writable shared mapping, and
        // mprotect(2) of a read-only one. /proc/PID/mem does not write to sealed pages either.
        // Mappings that are there stay as they are.
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(mapping)
    }

    /// Maps the first `len` bytes of a memfd received from the other side, and closes it. The
    /// mapping needs no descriptor, and the program does not know of this one.
    ///
    /// # Errors
    /// `InvalidInput` when the file is shorter than `len` (touching the rest would be SIGBUS).
    /// Further errors are those of fstat(2) and mmap(2), such as `OutOfMemory` at a limit of
    /// address space (RLIMIT_AS).
    pub fn from_file(file: impl Into<Fd>, len: usize) -> std::io::Result<Self> {
        Self::received(file.into(), len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same for what the other side published. Nothing may be written to it: that would be
    /// SIGSEGV.
    ///
    /// # Errors
    /// As for [`Mapping::from_file`].
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
        // SAFETY: a fresh mapping chosen by the kernel; nothing else can own that address range.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, &*file, 0)? };
        // Otherwise the core file of one program would have the bytes of all that share the memory.
        // Kernels that do not know the advice are older than 3.4. SAFETY: the mapping that was just
        // made; the advice changes nothing in it.
        let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Ok(Self { base, len, file: Some(file) })
    }

    /// Maps `len` bytes of a device's memory from `offset` on, as the rings of a socket. Processes
    /// that have the descriptor map the same bytes.
    ///
    /// # Errors
    /// The errors of mmap(2): `InvalidInput` where the device has no such memory.
    pub fn of_device(device: impl AsFd, offset: u64, len: usize) -> std::io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping chosen by the kernel; nothing else can own that address range.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, device, offset)? };
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Ok(Self { base, len, file: None })
    }

    /// Private memory of this process, `len` bytes of zeros, for a stack whose sockets are not
    /// shared. After fork the child has a copy of its own.
    ///
    /// # Errors
    /// Errors of mmap(2): `OutOfMemory` when a limit of address space (RLIMIT_AS) leaves no room,
    /// and `InvalidInput` where `len` is 0.
    pub fn private(len: usize) -> std::io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping chosen by the kernel.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags)? };
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Ok(Self { base, len, file: None })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memfd behind a shared mapping, to hand to the other side. None for private memory, and
    /// for a mapping that was received.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_deref()
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "offset {offset}+{len} beyond the mapping");
        // SAFETY: offset <= self.len, checked above, so the result stays inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies bytes out. A write of the other side meanwhile may be among them in part.
    ///
    /// # Panics
    /// When the range leaves the mapping: callers validate offsets first.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        // SAFETY: `at` checked the range; `to` is ours alone. The other side may write meanwhile:
        // then the copy holds some mixture of bytes, which is its own damage.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(offset, to.len()), to.as_mut_ptr(), to.len())
        }
    }

    /// Copies bytes in. The other side sees them in any order, until an atomic that it reads says
    /// that they are there.
    ///
    /// # Panics
    /// As for [`Mapping::read`].
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        // SAFETY: as in `read`, in the other direction.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.at(offset, from.len()), from.len())
        }
    }

    /// Copies `len` bytes from `from_offset` of another mapping, or of this one, to `offset`.
    ///
    /// # Panics
    /// As for [`Mapping::read`], for either range.
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &Mapping, from_offset: usize, len: usize) {
        // SAFETY: both ranges checked; `copy` allows overlap.
        unsafe { std::ptr::copy(from.at(from_offset, len), self.at(offset, len), len) }
    }

    /// A 32-bit word at `offset`.
    ///
    /// # Panics
    /// When the offset is no multiple of 4, or the word would leave the mapping.
    #[inline]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: in range and aligned (the base is page-aligned); only atomics touch such words.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// A 64-bit word at `offset`.
    ///
    /// # Panics
    /// When the offset is no multiple of 8, or the word would leave the mapping.
    #[inline]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: as for `u32`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// A byte at `offset`.
    ///
    /// # Panics
    /// When it lies beyond the mapping.
    #[inline]
    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: as for `u32`.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    /// A `repr(C)` struct of atomics at `offset`. To one that was mapped by [`Mapping::read_only`]
    /// nothing may be stored: that would be SIGSEGV.
    ///
    /// # Panics
    /// When the offset does not suit its alignment, or it would leave the mapping.
    ///
    /// # Safety
    /// `T` must consist of atomics (or padding) only: every bit pattern valid, every field
    /// writable by the other side at any time.
    #[inline]
    pub unsafe fn view<T>(&self, offset: usize) -> &T {
        assert!(offset.is_multiple_of(align_of::<T>()));
        // SAFETY: in range and aligned; the caller promises that T is all atomics.
        unsafe { &*self.at(offset, size_of::<T>()).cast::<T>() }
    }

    /// Gives the pages of a range back to the system; they read as zero afterwards.
    /// The range is shrunk to whole pages. For the process that made the mapping.
    ///
    /// Another process that has the memfd of a shared mapping can keep its inode locked for as long
    /// as it likes. The call sleeps meanwhile.
    ///
    /// # Errors
    /// Errors of fallocate(2) and madvise(2): EINTR when a signal handler ran, EPERM when the memfd
    /// is sealed against writing. Some of the pages may be gone then.
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
                // SAFETY: whole pages inside our own anonymous mapping.
                unsafe { rustix::mm::madvise(at, end - start, Advice::LinuxDontNeed)? };
            }
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the range, and no reference outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Memory that stretches point to: a mapping, or what keeps a part of one for as long as there are
/// [`Fragments`] of it.
pub trait Backing: Debug + Send + Sync {
    /// The mapping that offsets are in; always the same.
    fn mapping(&self) -> &Mapping;

    /// There are [`Fragments`] more that point to it.
    fn hold(&self) {}

    /// There are [`Fragments`] less. The fragments have been read for the last time.
    fn leave(&self) {}

    /// Whether nobody but those that hold it has any use for the memory any more.
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

/// Some bytes of a mapping, which keep it, or what stands for it, alive. The other side may change
/// them at any time.
#[derive(Debug, Clone)]
pub struct Stretch {
    backing: Arc<dyn Backing>,
    offset: usize,
    len: u32,
}

impl Stretch {
    /// `len` bytes at `offset`.
    ///
    /// # Panics
    /// When they leave the mapping.
    pub fn new<B: Backing + 'static>(backing: &Arc<B>, offset: usize, len: u32) -> Self {
        let end = offset.checked_add(len as usize);
        assert!(end.is_some_and(|end| end <= backing.mapping().len()));
        Self { backing: Arc::clone(backing) as Arc<dyn Backing>, offset, len }
    }

    /// Where the bytes are, to read them.
    pub fn part(&self) -> Part<'_> {
        Part { mapping: self.backing.mapping(), offset: self.offset, len: self.len }
    }

    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// See [`Part::as_ptr`].
    pub fn as_ptr(&self) -> *const u8 {
        self.part().as_ptr()
    }
}

/// A stretch as it is read, which whoever has the [`Stretch`] or the [`Fragments`] keeps.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    mapping: &'a Mapping,
    offset: usize,
    len: u32,
}

impl Part<'_> {
    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes are in their mapping.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Where the bytes are, for an iovec. Valid while the stretch lives; never to be made a slice.
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.at(self.offset, self.len as usize)
    }

    /// Copies `to.len()` bytes from `skip` on.
    ///
    /// # Panics
    /// When it has fewer bytes than that.
    pub fn copy_to(&self, skip: u32, to: &mut [u8]) {
        assert!(skip as usize + to.len() <= self.len as usize);
        self.mapping.read(self.offset + skip as usize, to);
    }

    /// Copies `len` bytes from `skip` on into another mapping, to `to_offset`.
    ///
    /// # Panics
    /// When it has fewer bytes than that, or they do not fit into the other mapping.
    pub fn copy_to_mapping(&self, skip: u32, len: u32, to: &Mapping, to_offset: usize) {
        assert!(skip.checked_add(len).is_some_and(|end| end <= self.len));
        to.copy_from(to_offset, self.mapping, self.offset + skip as usize, len as usize);
    }
}

/// At most two stretches of one mapping: what a range of a ring buffer is. The fragments keep the
/// memory mapped. The buffer that gave them keeps the content: a transmit FIFO lets nobody write
/// there until they are dropped. The program to which the bytes belong can write to them
/// nevertheless.
#[derive(Debug, Default)]
pub struct Fragments {
    /// None: no bytes. [`Backing::hold`] told the backing of these fragments.
    backing: Option<Arc<dyn Backing>>,
    offsets: [usize; 2],
    lens: [u32; 2],
}

// Every packet has them.
const _: () = assert!(size_of::<Fragments>() == 40);

impl Fragments {
    /// No bytes.
    pub const fn empty() -> Self {
        Self { backing: None, offsets: [0; 2], lens: [0; 2] }
    }

    /// Fragments of one or two stretches, in order.
    ///
    /// # Panics
    /// When they are of two mappings.
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

    /// Total length in bytes.
    pub fn len(&self) -> u32 {
        self.lens[0] + self.lens[1]
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether they keep memory that nobody else has a use for: it is free when all such bytes are
    /// copied.
    pub fn is_forsaken(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.is_forsaken())
    }

    /// The stretches that have bytes, in order.
    pub fn iter(&self) -> impl Iterator<Item = Part<'_>> {
        let mapping = self.backing.as_ref().map(|backing| backing.mapping());
        let places = self.offsets.into_iter().zip(self.lens).filter(|(_, len)| *len > 0);
        mapping.into_iter().flat_map(move |mapping| {
            places.clone().map(move |(offset, len)| Part { mapping, offset, len })
        })
    }

    /// Bytes `skip..skip + len` of it, which are not copied.
    ///
    /// # Panics
    /// When it has fewer bytes than that.
    #[inline]
    pub fn slice(&self, skip: u32, len: u32) -> Self {
        // Small packets have no bytes here.
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

    /// Copies `to.len()` bytes from `skip` on, across both stretches.
    ///
    /// # Panics
    /// When it has fewer bytes than that.
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

    /// The line of the mapping in /proc/self/smaps that has its flags (proc_pid_smaps(5)).
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
