//! The thread that returns pages of the region to the kernel.
//!
//! Pages of a shared file are freed by punching a hole, for which the kernel takes the inode's
//! lock. `fallocate(FALLOC_FL_PUNCH_HOLE)` and `madvise(MADV_REMOVE)` are equivalent here. Programs
//! have the file, too. If a program calls write(2) with a source page that faults slowly
//! (userfaultfd, FUSE), it holds the lock for as long as it likes. The engine's thread therefore
//! never punches holes. Page faults do not take that lock.
//!
//! Programs cannot get the memory without a file that they can write(2) to:
//! - A shared mapping is writable only if the descriptor is.
//! - F_SEAL_FUTURE_WRITE would refuse the mappings of programs that start later.
//! - Opening `/proc/PID/map_files` takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
//! - Memory of shmat(2) is visible in only one IPC namespace.
//!
//! While a program holds the lock, only the extent being returned is unavailable, at most
//! [`WINDOW_MAX`](crate::WINDOW_MAX) bytes. All other free extents keep their pages until they are
//! reused.

use std::io;
use std::sync::Weak;
use std::thread::Thread;

use crate::windows::{Shared, Windows};

/// Starts the thread, which ends when the [`Windows`] are dropped, or as soon as its system call
/// returns.
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
        // Drop the reference before sleeping; otherwise the memory would live as long as this
        // thread sleeps.
        drop(windows);
        std::thread::park();
    }
}
