//! Tokens: the kernel objects to which a program's socket descriptors refer. A token is an O_PATH
//! descriptor of an anonymous Unix socket that no process has open.
//!
//! A descriptor of the stack's sockets needs an object in the kernel. Otherwise its number could be
//! used twice, and dup, close-on-exec, fork and SCM_RIGHTS would not work. The object must have no
//! effect of its own. On an O_PATH descriptor, read(2), write(2), ioctl(2), poll(2) and all socket
//! calls fail with EBADF (open(2)). fstat(2) reports a socket, and reopening it through /proc fails
//! with ENXIO, as for any socket.
//!
//! There are two kinds, distinguished only by the timestamps of the object:
//! - the *blank* token, of which a process has only one. The descriptors of its sockets are
//!   duplicates of it, so a new connection needs no new kernel object;
//! - *named* tokens: separate objects, created when a descriptor is passed to another program.
//!   Their timestamps identify the socket and the run (an engine with its programs). Reading them
//!   takes two system calls and no /proc. Any process can set such times on a descriptor of its
//!   own, but cannot guess the random number of the run. Outside of the run, only a process that
//!   received a token knows this number.
//!
//! The kernel reuses the memory of sockets without resetting their timestamps. The timestamps of
//! open sockets, such as a program's own, are therefore arbitrary, and those of a blank token are
//! cleared.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags, Timespec, Timestamps};
use rustix::net::{AddressFamily, SocketType};

use crate::layout::SLOTS_MAX;
use crate::{Fd, opened};

/// Nanoseconds of the access time of a named token: "twp" in ASCII. The seconds identify the run.
const MARK: i64 = 0x74_7770;
const _: () = assert!(SLOTS_MAX < 1_000_000_000, "a slot is told as nanoseconds");

/// Random number that identifies a run (an engine with its programs) in its tokens. The number
/// distinguishes them from forged tokens, and from tokens of other runs, whose slot numbers belong
/// to other sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run(i64);

impl Run {
    /// Creates the identity of a run from 62 random bits, which cannot be guessed.
    ///
    /// # Errors
    /// Returns ENOSYS of getrandom(2) before Linux 3.17, or if a filter forbids it.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 8];
        // getrandom(2) returns all requested bytes, up to 256, once its source is initialized.
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self::from_bytes(bytes))
    }

    /// Converts the bytes of [`Self::to_bytes`]. The result is a valid time for any bytes. The time
    /// is after 1969, and before the last second that the kernel can store, for which it does not
    /// store nanoseconds.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(i64::from_ne_bytes(bytes) & (i64::MAX >> 1))
    }

    /// Converts the identity to bytes for messages, in native byte order because they never leave
    /// the machine.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_ne_bytes()
    }
}

/// The socket that a named token identifies. The token's timestamps contain the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// The run to which the socket belongs.
    pub run: Run,
    /// Slot (number) of the socket.
    pub slot: u32,
    /// Generation of the slot, which changes when the slot is reused.
    pub generation: u32,
}

/// Creates a blank token: the kernel object to which all socket descriptors of a process refer. The
/// token does not identify a socket. The returned descriptor is close-on-exec.
///
/// # Errors
/// Returns errors of socket(2), and of open_tree(2) or, if that fails, of opening /proc/self/fd.
/// EMFILE and ENFILE without free descriptors, ENOENT without /proc.
pub fn blank() -> io::Result<Fd> {
    const NEVER: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    token(NEVER, NEVER)
}

/// Creates a token: a kernel object that identifies a socket of the stack. The returned descriptor
/// is close-on-exec. The object takes more than 1 KiB of kernel memory.
///
/// # Errors
/// Returns the errors of [`blank`].
pub fn named(name: Name) -> io::Result<Fd> {
    let Name { run: Run(run), slot, generation } = name;
    let socket = Timespec { tv_sec: generation.into(), tv_nsec: slot.into() };
    token(Timespec { tv_sec: run, tv_nsec: MARK }, socket)
}

fn token(last_access: Timespec, last_modification: Timespec) -> io::Result<Fd> {
    let socket = socket()?;
    rustix::fs::futimens(&socket, &Timestamps { last_access, last_modification })?;
    path_only(&socket)
}

/// Returns the socket that a named token identifies; `None` for any other descriptor. The caller
/// must compare the run's number. A process that knows the number can forge tokens of the run.
pub fn read(fd: BorrowedFd<'_>) -> Option<Name> {
    let stat = rustix::fs::fstat(fd).ok()?;
    if !FileType::from_raw_mode(stat.st_mode).is_socket()
        || stat.st_atime_nsec as i64 != MARK
        || !rustix::fs::fcntl_getfl(fd).ok()?.contains(OFlags::PATH)
    {
        return None;
    }
    let slot = u32::try_from(stat.st_mtime_nsec).ok().filter(|&slot| slot < SLOTS_MAX)?;
    Some(Name { run: Run(stat.st_atime), slot, generation: u32::try_from(stat.st_mtime).ok()? })
}

/// Returns whether two descriptors refer to the same kernel object, as the blank tokens of a run
/// do.
pub fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let object = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    object(one).is_some_and(|one| object(other) == Some(one))
}

fn socket() -> io::Result<Fd> {
    use rustix::net::{SocketFlags, socket_with};
    let open = || socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    Ok(opened(open)?.into())
}

/// Opens the socket as O_PATH, by open_tree(2), which needs no /proc. If that is forbidden (filters
/// of containers) or missing (before Linux 5.2), uses /proc.
fn path_only(socket: &Fd) -> io::Result<Fd> {
    Ok(opened(|| by_tree(socket.as_fd()).or_else(|_| by_proc(socket.as_fd())))?.into())
}

fn by_tree(socket: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    use rustix::mount::{OpenTreeFlags, open_tree};
    open_tree(socket, c"", OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

fn by_proc(socket: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn name(slot: u32, generation: u32) -> Name {
        Name { run: Run::from_bytes([0xff; 8]), slot, generation }
    }

    #[test]
    fn tokens_say_who_they_are_and_nothing_else() {
        let last = name(SLOTS_MAX - 1, u32::MAX);
        let token = named(last).unwrap();
        assert_eq!(read(token.as_fd()), Some(last));
        for run in [Run::from_bytes([0; 8]), Run::random().unwrap()] {
            let first = Name { run, ..name(0, 1) };
            assert_eq!(read(named(first).unwrap().as_fd()), Some(first));
            assert_eq!(Run::from_bytes(run.to_bytes()), run);
        }
        let blank = blank().unwrap();
        assert!(is_same(blank.as_fd(), blank.try_clone().unwrap().as_fd()));
        assert!(!is_same(blank.as_fd(), token.as_fd()));
        let plain = socket().unwrap();
        let mark = Timespec { tv_sec: 1, tv_nsec: MARK };
        let times = Timestamps { last_access: mark, last_modification: mark };
        rustix::fs::futimens(&plain, &times).unwrap();
        for none in [&blank, &plain] {
            assert_eq!(read(none.as_fd()), None);
        }
        for fd in [&token, &blank] {
            assert_eq!(rustix::io::read(fd, &mut [0; 8]), Err(Errno::BADF));
            assert_eq!(rustix::io::write(fd, &[0; 8]), Err(Errno::BADF));
            assert_eq!(rustix::process::fchdir(fd), Err(Errno::NOTDIR));
            let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
            assert_eq!(std::fs::File::open(again).unwrap_err().raw_os_error(), Some(6), "ENXIO");
        }
    }

    /// Tests that new sockets are not mistaken for tokens. The kernel reuses the memory of closed
    /// sockets, including their timestamps.
    #[test]
    fn sockets_after_tokens_are_none() {
        for _ in 0..20 {
            let named: Vec<_> = (0..50).map(|slot| named(name(slot, 1)).unwrap()).collect();
            drop(named);
            for _ in 0..50 {
                assert_eq!(read(socket().unwrap().as_fd()), None);
                assert_eq!(read(blank().unwrap().as_fd()), None);
            }
        }
    }

    #[test]
    fn tokens_are_made_either_way() {
        let socket = socket().unwrap();
        for token in [by_tree(socket.as_fd()), by_proc(socket.as_fd())] {
            let Ok(token) = token else { continue };
            assert!(rustix::fs::fcntl_getfl(&token).unwrap().contains(OFlags::PATH));
            assert_eq!(
                rustix::fs::fstat(&token).unwrap().st_ino,
                rustix::fs::fstat(&socket).unwrap().st_ino
            );
        }
        assert!(path_only(&socket).is_ok());
    }
}
