//! Non-blocking file locks that mark a run or a library as in use. Only the owner and root can open
//! the lock file, so no other user can hold the lock.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, fstat, openat};
use rustix::io::Errno;

use super::private::{FOR_OWNER, Folder, OPEN, is_file_of};

/// A file lock. The lock is released when this value is dropped, or when the process ends.
#[derive(Debug)]
pub struct Lock {
    _held: OwnedFd,
}

/// Maximum number of attempts to lock a file. Between opening and locking it, another run that
/// removes unused files may remove the lock file. Each run does so at most once, when it starts.
const TRIES_MAX: u32 = 8;

impl Folder {
    /// Takes a shared lock on the file `name`. Returns `None` if another process holds an exclusive
    /// lock.
    pub fn lock_shared(&self, name: &str) -> io::Result<Option<Lock>> {
        self.lock(name, FlockOperation::NonBlockingLockShared)
    }

    /// Takes an exclusive lock on the file `name`. Returns `None` if another process holds a lock.
    pub fn lock_exclusive(&self, name: &str) -> io::Result<Option<Lock>> {
        self.lock(name, FlockOperation::NonBlockingLockExclusive)
    }

    fn lock(&self, name: &str, how: FlockOperation) -> io::Result<Option<Lock>> {
        for _ in 0..TRIES_MAX {
            let fd = openat(self, name, OFlags::RDWR | OFlags::CREATE | OPEN, FOR_OWNER)?;
            let stat = fstat(&fd)?;
            if !is_file_of(&stat, self.owner()) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            if stat.st_mode & 0o7777 != FOR_OWNER.bits() {
                fchmod(&fd, Mode::from_bits_truncate(FOR_OWNER.bits()))?;
            }
            match flock(&fd, how) {
                Err(Errno::WOULDBLOCK) => return Ok(None),
                result => result?,
            }
            if fstat(&fd)?.st_nlink > 0 {
                return Ok(Some(Lock { _held: fd }));
            }
        }
        Err(io::Error::other("the file of the lock is removed again and again"))
    }
}
