//! The thread that gives pages of the region back to the kernel.
//!
//! A page of a shared file is freed by a hole in the file, for which the kernel takes the inode's
//! lock. `fallocate(FALLOC_FL_PUNCH_HOLE)` and `madvise(MADV_REMOVE)` do the same there. A program
//! has the file, too. Its write(2) from a page that faults slowly (userfaultfd, FUSE) holds the
//! lock for as long as the program likes. So the engine's thread never does it. Page faults do not
//! take that lock.
//!
//! Programs cannot be given the memory without a file that they can write(2) to:
//! - A shared mapping is writable only if the descriptor is.
//! - F_SEAL_FUTURE_WRITE would refuse the mappings of programs that start later.
//! - Opening `/proc/PID/map_files` takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
//! - Memory of shmat(2) is found in one IPC namespace only.
//!
//! While a program keeps the lock, the window that the thread works on is out of use, at most
//! [`WINDOW_MAX`](crate::WINDOW_MAX). All others keep their pages and are handed out with them.

use std::io;
use std::sync::Weak;
use std::thread::Thread;

use crate::windows::{Shared, Windows};

/// Starts the thread, which ends when the windows are gone, or as soon after as the kernel lets go
/// of it.
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
