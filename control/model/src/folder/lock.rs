//! Locks that say "in use", never waited for. Only its owner and root can open the file of a lock,
//! so that nobody else can hold one.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, fstat, openat};
use rustix::io::Errno;

use super::private::{FOR_OWNER, Folder, OPEN, is_file_of};

/// Held until it is dropped, and no longer than the process lives.
#[derive(Debug)]
pub struct Lock {
    _held: OwnedFd,
}

/// Tries to lock a file. A run that removes the thing that a lock stands for removes the lock's
/// file, too, perhaps after another run has opened it. Each run that starts does so at most once.
const TRIES_MAX: u32 = 8;

impl Folder {
    /// A lock that several may hold. None: somebody holds it for itself alone.
    pub fn lock_shared(&self, name: &str) -> io::Result<Option<Lock>> {
        self.lock(name, FlockOperation::NonBlockingLockShared)
    }

    /// A lock that nobody else holds. None: somebody does.
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
