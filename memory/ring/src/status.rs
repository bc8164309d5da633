//! The status page of the engine, which only the engine writes and all programs read.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use towpath_shm::Mapping;
use towpath_shm::layout::{self, ENGINE_ENDED, LIVES, MAGIC, STATUS_LEN, VERSION};

use crate::life::{self, Life};
use crate::{notification, protocol, region};

/// A program's read-only view of the status page of a shard (thread of the engine).
#[derive(Debug, Clone)]
pub struct Status {
    mapping: Arc<Mapping>,
    /// Offset of the status page in the mapping, in bytes.
    at: usize,
}

impl Status {
    /// Maps the status page whose file was received from an engine with one shard.
    ///
    /// # Errors
    /// Returns the errors of [`Status::map_all`].
    pub fn map(file: OwnedFd) -> io::Result<Self> {
        Ok(Self::map_all(file, 1)?.swap_remove(0))
    }

    /// Maps the `count` status pages whose file was received from an engine, one per shard.
    ///
    /// # Errors
    /// Returns `InvalidData` if the file contains no status pages, or those of a different build.
    /// Returns `InvalidInput` if the file is too short.
    pub fn map_all(file: OwnedFd, count: u32) -> io::Result<Vec<Self>> {
        let mapping = Arc::new(Mapping::read_only(file, count as usize * STATUS_LEN)?);
        let view = |shard| Self { mapping: Arc::clone(&mapping), at: shard as usize * STATUS_LEN };
        let pages: Vec<Self> = (0..count).map(view).collect();
        for status in &pages {
            let page = status.page();
            region::check(
                page.magic.load(Ordering::Acquire),
                page.version.load(Ordering::Relaxed),
            )?;
        }
        Ok(pages)
    }

    /// Returns the maximum length in bytes of an IP packet that is valid for every datagram socket;
    /// 0 until the engine has determined it.
    pub fn datagram_mtu(&self) -> u32 {
        self.page().datagram_mtu.load(Ordering::Relaxed)
    }

    /// Returns whether the engine has ended, for the process with this channel number
    /// ([`crate::Life`]). Makes no system call.
    #[inline]
    pub fn has_ended(&self, channel: u32) -> bool {
        self.life_word(channel).load(Ordering::Acquire) & ENGINE_ENDED != 0
    }

    /// Returns a futex word that changes when the engine ends, and its value while the engine is
    /// alive. Threads of the process with this channel number wait for it in addition to another
    /// futex word. A thread that is woken by it must check [`Self::has_ended`], and then wake the
    /// remaining threads by [`Self::wake`]. Returns `None` if the engine has ended, or if the
    /// kernel does not support this.
    pub fn life(&self, channel: u32) -> Option<(&AtomicU32, u32)> {
        let word = self.life_word(channel);
        let seen = word.load(Ordering::Acquire);
        (seen != 0 && seen & ENGINE_ENDED == 0).then_some((word, seen))
    }

    /// Wakes all threads of the process with this channel number that wait for the end of the
    /// engine.
    pub fn wake(&self, channel: u32) {
        life::wake(self.life_word(channel));
    }

    /// Returns the number of the epoch at whose end the shard (thread of the engine) will have
    /// processed all commands sent before this call.
    pub fn due(&self) -> u64 {
        protocol::due(&self.page().beat)
    }

    /// Returns whether the epoch with the number returned by [`Self::due`] has not ended yet.
    pub fn is_due_still(&self, due: u64) -> bool {
        protocol::is_due_still(&self.page().beat, due)
    }

    #[inline]
    fn life_word(&self, channel: u32) -> &AtomicU32 {
        life_word(self.page(), channel)
    }

    #[inline]
    fn page(&self) -> &layout::StatusPage {
        // SAFETY: `StatusPage` consists of atomics, and this read-only view only loads them.
        unsafe { self.mapping.view(self.at) }
    }
}

/// Number of the engine's last sleep for which this process has sent a notification. Stored per
/// process, so that a process cannot suppress the notifications of other processes.
#[derive(Debug, Default)]
pub struct Rung(AtomicU64);

/// Wakes the engine if it sleeps and this process has not notified it yet. Programs call this after
/// they have sent commands. Returns true if a notification was sent.
pub fn ring_engine(status: &Status, rung: &Rung, doorbell: BorrowedFd<'_>) -> bool {
    let Some(sleep) = protocol::unrung(&status.page().sleep_epoch, &rung.0) else { return false };
    notification::ring(doorbell);
    rung.0.store(sleep, Ordering::Relaxed);
    true
}

/// The engine's writable status page.
///
/// ```
/// use std::os::fd::AsFd;
/// use towpath_ring::{EngineStatus, Rung, Status, notification, ring_engine};
///
/// let mut engine = EngineStatus::create()?;
/// let status = Status::map(engine.file().expect("shared").try_clone()?)?;
/// let (rung, bell) = (Rung::default(), notification::create()?);
///
/// // A sleeping engine is notified once per sleep.
/// assert!(engine.fall_asleep(|| true));
/// ring_engine(&status, &rung, bell.as_fd());
/// assert!(notification::clear(bell.as_fd()));
/// ring_engine(&status, &rung, bell.as_fd());
/// assert!(!notification::clear(bell.as_fd()));
/// engine.wake_up();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct EngineStatus {
    mapping: Arc<Mapping>,
    /// Offset of the status page in the mapping, in bytes.
    at: usize,
    /// Private copies of the numbers on the page, which are never read back from it.
    epoch: u64,
    beat: u64,
}

impl EngineStatus {
    /// Creates the status page of an engine that is awake.
    ///
    /// # Errors
    /// Returns the errors of [`Mapping::published`].
    pub fn create() -> io::Result<Self> {
        Ok(Self::create_all(1)?.swap_remove(0))
    }

    /// Creates status pages for `count` shards in one mapping.
    ///
    /// # Errors
    /// Returns the errors of [`Mapping::published`].
    pub fn create_all(count: u32) -> io::Result<Vec<Self>> {
        let len = count as usize * STATUS_LEN;
        let mapping = Arc::new(Mapping::published("towpath-status", len)?);
        let of_shard = |shard| {
            let at = shard as usize * STATUS_LEN;
            let status = Self { mapping: Arc::clone(&mapping), at, epoch: 0, beat: 0 };
            status.page().version.store(VERSION, Ordering::Relaxed);
            status.page().magic.store(MAGIC, Ordering::Release);
            status
        };
        Ok((0..count).map(of_shard).collect())
    }

    /// Returns a read-only view of the status page, as programs have, for another thread of the
    /// engine.
    pub fn view(&self) -> Status {
        Status { mapping: Arc::clone(&self.mapping), at: self.at }
    }

    /// Returns the memfd with all status pages, to be passed to programs.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.mapping.file()
    }

    /// Registers this thread as the engine's. Programs detect when the result is dropped or the
    /// thread ends.
    pub fn live(&self) -> Life {
        Life::begin(&self.mapping, self.at)
    }

    /// Wakes all threads of the process with this channel number that wait for a socket. The
    /// threads then notice that the engine does not serve their channel any more.
    pub fn wake(&self, channel: u32) {
        life::wake(life_word(self.page(), channel));
    }

    /// Publishes the maximum length in bytes of an IP packet that every datagram socket accepts.
    pub fn set_datagram_mtu(&self, bytes: u32) {
        self.page().datagram_mtu.store(bytes, Ordering::Relaxed);
    }

    /// Announces that the engine is about to sleep, then calls `idle` to check that there is no
    /// work. If there is work, revokes the announcement and returns false. Call
    /// [`EngineStatus::wake_up`] after the sleep.
    pub fn fall_asleep(&mut self, idle: impl FnOnce() -> bool) -> bool {
        let Self { mapping, at, epoch, .. } = self;
        protocol::fall_asleep(&page(mapping, *at).sleep_epoch, epoch, idle)
    }

    /// Ends the engine's sleep, so that programs send no further notification for it.
    pub fn wake_up(&mut self) {
        let Self { mapping, at, epoch, .. } = self;
        protocol::wake_up(&page(mapping, *at).sleep_epoch, epoch);
    }

    /// Begins an epoch (a pass over all rings), unless one is in progress. Call it before reading
    /// the rings.
    pub fn begin_epoch(&mut self) {
        let Self { mapping, at, beat, .. } = self;
        protocol::begin_epoch(&page(mapping, *at).beat, beat);
    }

    /// Ends the epoch: all commands that were in the rings at its beginning have been processed,
    /// and programs were notified of the results.
    pub fn end_epoch(&mut self) {
        let Self { mapping, at, beat, .. } = self;
        protocol::end_epoch(&page(mapping, *at).beat, beat);
    }

    fn page(&self) -> &layout::StatusPage {
        page(&self.mapping, self.at)
    }
}

#[inline]
fn life_word(page: &layout::StatusPage, channel: u32) -> &AtomicU32 {
    &page.lives[channel as usize % LIVES].word
}

fn page(mapping: &Mapping, at: usize) -> &layout::StatusPage {
    // SAFETY: `StatusPage` consists of atomics, and this mapping is writable.
    unsafe { mapping.view(at) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn view(engine: &EngineStatus) -> Status {
        Status::map(engine.file().unwrap().try_clone().unwrap()).unwrap()
    }

    #[test]
    fn each_program_rings_once_a_sleep() {
        let mut engine = EngineStatus::create().unwrap();
        let status = view(&engine);
        let programs = [Rung::default(), Rung::default()];
        let bell = notification::create().unwrap();
        let rings = |rung: &Rung| {
            ring_engine(&status, rung, bell.as_fd());
            notification::clear(bell.as_fd())
        };
        assert!(!rings(&programs[0]));
        for _ in 0..3 {
            assert!(!engine.fall_asleep(|| false) && !rings(&programs[0]));
            assert!(engine.fall_asleep(|| true));
            for rung in &programs {
                assert!(rings(rung) && !rings(rung));
            }
            engine.wake_up();
            assert!(!rings(&programs[1]));
        }
    }

    #[test]
    fn programs_cannot_write_to_the_page() {
        use rustix::fs::{FallocateFlags, fallocate, ftruncate};
        use rustix::io::Errno;
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect};
        use std::os::unix::fs::FileExt;
        let engine = EngineStatus::create().unwrap();
        let file = engine.file().unwrap();
        // Try to open the memory for writing, as any process with the descriptor can.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        let again = std::fs::File::options().read(true).write(true).open(path).unwrap();
        for file in [file.as_fd(), again.as_fd()] {
            assert_eq!(rustix::io::pwrite(file, &[1], 16), Err(Errno::PERM));
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert_eq!(fallocate(file, hole, 0, STATUS_LEN as u64), Err(Errno::PERM));
            assert_eq!(ftruncate(file, 0), Err(Errno::PERM));
            let (null, both) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
            // SAFETY: this attempts to create a new mapping, which the kernel must refuse.
            let mapped = unsafe { mmap(null, STATUS_LEN, both, MapFlags::SHARED, file, 0) };
            assert_eq!(mapped, Err(Errno::PERM));
        }
        let status = view(&engine);
        let at = std::ptr::from_ref(status.page());
        let both = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the mapping belongs to this test, and the kernel must refuse to change its
        // protection.
        let changed = unsafe { mprotect(at.cast_mut().cast(), STATUS_LEN, both) };
        assert_eq!(changed, Err(Errno::ACCESS));
        let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
        assert!(memory.write_at(&[1], at as u64 + 16).is_err());
        assert_eq!(status.page().sleep_epoch.load(Ordering::Relaxed), 0);
    }
}
