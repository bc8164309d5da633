//! [`MappedProcess`]: a [`Process`] in a separate memory mapping.

use std::ops::Deref;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::{Error, Process};

/// A [`Process`] in a separate memory mapping, which is unmapped on drop.
///
/// The tables consist of megabytes of zeros, most of which are never touched. A mapping is used,
/// because an allocator would write these zeros to reused memory, so that all pages would take
/// memory.
///
/// [`Client`](crate::Client) takes `&'static Process`. Before dropping this value, drop all values
/// that were created with the reference, and call [`Process::close`].
///
/// ```
/// let process = towpath_client::MappedProcess::new()?;
/// assert_eq!(process.forks(), 0);
/// process.close();
/// # Ok::<(), towpath_client::Error>(())
/// ```
#[derive(Debug)]
pub struct MappedProcess(NonNull<Process>);

/// Length of the mapping in bytes. The kernel rounds it up to a page.
const LEN: usize = size_of::<Process>();

const _: () = assert!(align_of::<Process>() <= 4096, "a page is not aligned enough");

// SAFETY: the mapping belongs to this value alone, and `Process` is Send.
unsafe impl Send for MappedProcess {}
// SAFETY: shared references give access to the `Process` only, which is Sync.
unsafe impl Sync for MappedProcess {}

impl MappedProcess {
    /// Creates a [`Process`] that is not attached to an engine.
    ///
    /// # Errors
    /// `Refused` with ENOMEM if the process has too little address space (RLIMIT_AS).
    pub fn new() -> Result<Self, Error> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address of the new mapping.
        let base =
            unsafe { mmap_anonymous(null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let base = base.map_err(|errno| Error::Refused(errno.raw_os_error()))?;
        // A new mapping is zeroed, and so is the result of `Process::new`: atomics are 0 or false,
        // and the lock is free. `None` in place of a Box is a null pointer.
        let process = NonNull::new(base.cast::<Process>());
        process.map(Self).ok_or(Error::Refused(rustix::io::Errno::NOMEM.raw_os_error()))
    }
}

impl Deref for MappedProcess {
    type Target = Process;

    fn deref(&self) -> &Process {
        // SAFETY: the mapping is initialized, valid until `drop`, and aligned as a page.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for MappedProcess {
    fn drop(&mut self) {
        // SAFETY: the `Process` is initialized, and is not used afterwards.
        unsafe { self.0.drop_in_place() };
        // SAFETY: `new` has created the mapping with this length, and no references remain.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), LEN) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::HighFd;
    use crate::descriptors::{DESCRIPTORS_MAX, DescriptorKind};
    use crate::hub::ListWakeup;

    #[test]
    fn a_mapped_process_is_what_new_makes() {
        let process = MappedProcess::new().expect("address space");
        for fd in [0, 3, 1023, DESCRIPTORS_MAX as i32 - 1] {
            assert_eq!(process.descriptors.lookup(fd), DescriptorKind::Kernel);
        }
        assert_eq!((process.forks(), process.channel()), (0, 0));
        assert!(!process.is_without_waitv() && !process.reactor.is_mine());
        assert!(process.reactor.heads.iter().all(|head| head.load(Relaxed) == 0));
        assert!(
            process.reactor.lock().is_ok_and(|hub| hub.as_ref().is_some_and(|hub| hub.made == 0))
        );
    }

    #[test]
    fn a_closed_reactor_has_no_descriptors() {
        let process = MappedProcess::new().expect("address space");
        // SAFETY: `close` drops the descriptor in the reactor before the memory is unmapped.
        let descriptors = unsafe { &*std::ptr::from_ref(&process.descriptors) };
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("one");
        let fd = HighFd::new(eventfd.into(), descriptors);
        let number = fd.get();
        let mut hub = process.reactor.lock().expect("free");
        hub.as_mut().expect("made").lists.push(ListWakeup::new(fd));
        drop(hub);
        assert_eq!(descriptors.lookup(number), DescriptorKind::Internal);
        process.close();
        assert_eq!(descriptors.lookup(number), DescriptorKind::Kernel);
    }
}
