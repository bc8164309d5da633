//! The thread that returns pages of the shared memory to the kernel.
//!
//! Pages of a shared file are freed by punching a hole, for which the kernel takes the inode's
//! lock. `fallocate(FALLOC_FL_PUNCH_HOLE)` and `madvise(MADV_REMOVE)` are equivalent here. Programs
//! have the file open, too. A program can hold the lock for any time by write(2) with a source page
//! that faults slowly (userfaultfd, FUSE). Therefore the engine's main thread never punches holes.
//! Page faults do not take the inode's lock.
//!
//! No way to share the memory prevents programs from calling write(2):
//! - A shared mapping is writable only if the descriptor is.
//! - F_SEAL_FUTURE_WRITE would also prevent later programs from mapping the file writable.
//! - Opening `/proc/PID/map_files` takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
//! - Memory of shmat(2) is visible in only one IPC namespace.
//!
//! While a program holds the lock, only the extent (memory range for a FIFO) whose pages are being
//! returned is unavailable. The extent has at most [`WINDOW_MAX`](crate::WINDOW_MAX) bytes. The
//! other free extents keep their pages until they are reused.

use std::io;
use std::sync::Weak;
use std::thread::Thread;

use crate::windows::{Shared, Windows};

/// Starts the thread that returns pages to the kernel. The thread ends after the [`Windows`] (the
/// allocator of the memory) are dropped.
pub(crate) fn start(windows: Weak<Shared>) -> io::Result<Thread> {
    let builder = std::thread::Builder::new().name("towpath-give".into());
    Ok(builder.spawn(move || work(&windows))?.thread().clone())
}

fn work(windows: &Weak<Shared>) {
    while let Some(windows) = windows.upgrade().map(Windows) {
        if let Some(window) = windows.begin_return() {
            let len = usize::try_from(window.touched()).expect("a window is small");
            let discarded = windows.region().mapping().discard(window.base() as usize, len);
            windows.end_return(window, discarded.is_ok());
            if discarded.is_ok() {
                continue;
            }
        }
        // Drop the strong reference before sleeping. Otherwise the allocator would not be freed
        // while this thread sleeps.
        drop(windows);
        std::thread::park();
    }
}
