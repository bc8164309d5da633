//! The thread that gives pages of the region back to the kernel.
//!
//! Pages of a shared file leave memory by a hole in the file, for which the kernel takes the
//! inode's lock, in `fallocate(FALLOC_FL_PUNCH_HOLE)` and in `madvise(MADV_REMOVE)`, which is the
//! same. A program has the file, too, and can hold the lock for as long as it likes by a write(2)
//! whose source page it makes fault slowly (userfaultfd, FUSE). So the engine's thread never does
//! it. Page faults do not take that lock.
//!
//! Programs cannot be given the memory without a file that they can write(2) to: a shared mapping
//! is writable only if the descriptor is, F_SEAL_FUTURE_WRITE would refuse the mappings of programs
//! that start later, opening `/proc/PID/map_files` takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE,
//! and memory of shmat(2) is found in one IPC namespace only.
//!
//! While a program keeps the lock, the window that the thread is at is out of use, at most
//! [`WINDOW_MAX`](crate::WINDOW_MAX); the others keep their pages and are handed out with them.

use std::io;
use std::sync::Weak;
use std::thread::Thread;

use crate::windows::{Shared, Windows};

/// Starts it. It ends when the windows are gone, or as soon after as the kernel lets go of it.
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
        // Otherwise the memory would stay for as long as this thread sleeps.
        drop(windows);
        std::thread::park();
    }
}
