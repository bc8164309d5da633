//! What the kernel has behind a program's socket descriptor: an O_PATH descriptor of an anonymous Unix
//! socket that nobody has open.
//!
//! A program needs something of the kernel's under the number: so that numbers do not collide, and so that
//! dup, close-on-exec, fork and SCM_RIGHTS act on it. What is there must not *do* anything: of an O_PATH
//! descriptor read(2), write(2), ioctl(2), poll(2) and all calls about sockets are EBADF (open(2)), fstat(2)
//! says that it is a socket, and to open it again by /proc is ENXIO, as with any socket.
//!
//! There are two kinds, which only fstat(2) tells apart:
//! - the *blank* token, of which a process has one; the descriptors of its sockets are duplicates of it,
//!   which is all that a new connection costs;
//! - *named* tokens, each an object of its own, made when a descriptor goes to another program. The times
//!   of the object, of which the kernel keeps all 64 bits and which nobody else sets, say which socket it
//!   stands for. To read them takes one system call and no /proc.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags, Timespec, Timestamps};
use rustix::net::{AddressFamily, SocketType};

use crate::layout::SLOTS_MAX;

/// The time of access of a named token: "towpath" in ASCII, 10^9 years from now. No clock says that.
const MARK: i64 = i64::from_be_bytes(*b"\0towpath");

/// A token that stands for no socket.
pub fn blank() -> io::Result<OwnedFd> {
    path_only(&socket()?)
}

/// A token of this slot and generation.
pub fn named(slot: u32, generation: u32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    let at = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
    let which = i64::from(slot) << 32 | i64::from(generation);
    let times = Timestamps { last_access: at(MARK), last_modification: at(which) };
    rustix::fs::futimens(&socket, &times)?;
    path_only(&socket)
}

/// The slot and generation that a descriptor is a named token of.
pub fn read(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let stat = rustix::fs::fstat(fd).ok()?;
    if !FileType::from_raw_mode(stat.st_mode).is_socket() || stat.st_atime as i64 != MARK {
        return None;
    }
    let which = stat.st_mtime as i64;
    let (slot, generation) = ((which >> 32) as u32, which as u32);
    (slot < SLOTS_MAX).then_some((slot, generation))
}

fn socket() -> io::Result<OwnedFd> {
    use rustix::net::{SocketFlags, socket_with};
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// open_tree(2) needs no /proc; where it is not allowed (containers' filters) or not there (before Linux
/// 5.2), /proc is.
fn path_only(socket: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(by_tree(socket.as_fd()).or_else(|_| by_proc(socket.as_fd()))?)
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

    #[test]
    fn tokens_say_who_they_are_and_nothing_else() {
        let (slot, generation) = (SLOTS_MAX - 1, u32::MAX);
        let token = named(slot, generation).unwrap();
        assert_eq!(read(token.as_fd()), Some((slot, generation)));
        assert_eq!(read(named(0, 1).unwrap().as_fd()), Some((0, 1)));
        let blank = blank().unwrap();
        let plain = socket().unwrap();
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
