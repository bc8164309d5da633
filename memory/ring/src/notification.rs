//! Notification channels between the engine and a program. Neither side can make the other block by
//! notifying or clearing. O_NONBLOCK alone does not guarantee that, because the flag belongs to the
//! open file: any process with a descriptor of it can clear the flag.
//!
//! - The engine is notified through eventfds ([`create`]), one per program. The engine neither
//!   reads nor writes them: its epoll set is edge-triggered, so each write counts. The eventfds
//!   have no O_ASYNC.
//! - A program is notified through a pair of sockets ([`pair`]): each side has its own open file,
//!   and [`toll`] requests non-blocking mode per call. A pipe is not suitable: a reader whose page
//!   faults slowly (userfaultfd, FUSE) holds the pipe's mutex. The writer waits for the mutex
//!   regardless of its flags.
//!
//! ```
//! use std::os::fd::AsFd;
//! use towpath_ring::notification;
//!
//! let (ours, theirs) = notification::pair()?;
//! notification::toll(ours.as_fd());
//! assert!(notification::clear(theirs.as_fd()), "it was rung");
//! assert!(!notification::clear(theirs.as_fd()), "once");
//! # Ok::<(), std::io::Error>(())
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use towpath_shm::{Fd, opened};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
};

/// Maximum bytes read by one [`clear`]; each [`toll`] writes one byte.
const RINGS: usize = 64;

/// Creates an eventfd for [`ring`]; close-on-exec and non-blocking.
///
/// # Errors
/// Errors of eventfd(2): EMFILE and ENFILE without free descriptors, ENOMEM.
pub fn create() -> io::Result<Fd> {
    Ok(opened(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?.into())
}

/// Notifies through an eventfd. Can only fail with EAGAIN if its counter is at the maximum; then it
/// is readable anyway.
pub fn ring(doorbell: BorrowedFd<'_>) {
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

/// Creates the engine's end, for [`toll`], and the program's end, which is non-blocking. Both are
/// close-on-exec.
///
/// # Errors
/// Errors of socketpair(2): EMFILE and ENFILE without free descriptors, ENOMEM.
pub fn pair() -> io::Result<(Fd, Fd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) =
        opened(|| socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None))?;
    let (ours, theirs) = (Fd::from(ours), Fd::from(theirs));
    // Prevent programs from sending to the engine's end, where nothing reads. In particular, no
    // descriptors can accumulate there.
    shutdown(&ours, Shutdown::Read)?;
    Ok((ours, theirs))
}

/// Notifies a program. EAGAIN means that the program has not cleared its notifications for too
/// long, at its own risk. EPIPE means that it has closed its end. The engine ignores both, and
/// suppresses SIGPIPE.
pub fn toll(ours: BorrowedFd<'_>) {
    let _ = send(ours, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Clears notifications of either kind. Returns whether there was one.
pub fn clear(doorbell: BorrowedFd<'_>) -> bool {
    rustix::io::read(doorbell, &mut [0u8; RINGS]).is_ok_and(|n| n > 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_program_does_what_it_likes_with_its_end() {
        let (ours, theirs) = pair().unwrap();
        // Make it full and blocking, as far as a program can.
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        (0..10_000).for_each(|_| toll(ours.as_fd()));
        assert!(clear(theirs.as_fd()));
        let sent = send(&theirs, &[1], SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(rustix::io::Errno::PIPE));
        drop(theirs);
        toll(ours.as_fd());
    }

    /// Programs clear only after several notifications, so each one must be an edge even if earlier
    /// ones are unread. The smallest socket buffer of Linux has space for a few.
    #[test]
    fn each_ring_of_a_program_is_an_edge() {
        use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
        const FEW: usize = 5;
        let (ours, theirs) = pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 0).unwrap();
        let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
        epoll::add(&set, &theirs, EventData::new_u64(7), EventFlags::IN | EventFlags::ET).unwrap();
        for _ in 0..3 {
            for _ in 0..FEW {
                toll(ours.as_fd());
                assert_eq!((edges(&set), edges(&set)), (1, 0));
            }
            assert!(clear(theirs.as_fd()));
            assert!(!clear(theirs.as_fd()), "all at once");
        }
    }

    fn edges(set: &std::os::fd::OwnedFd) -> usize {
        let mut events = Vec::with_capacity(4);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut events);
        rustix::event::epoll::wait(set, room, Some(&now)).unwrap();
        events.len()
    }

    /// In an edge-triggered set each write to an eventfd counts, regardless of its counter and of
    /// readers. A write that does not fit has no effect. The engine relies on both.
    #[test]
    fn each_write_to_an_eventfd_is_an_edge() {
        use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
        let bell = create().unwrap();
        let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
        epoll::add(&set, &bell, EventData::new_u64(7), EventFlags::IN | EventFlags::ET).unwrap();
        assert_eq!(edges(&set), 0);
        for _ in 0..3 {
            ring(bell.as_fd());
            ring(bell.as_fd());
            assert_eq!((edges(&set), edges(&set)), (1, 0));
        }
        clear(bell.as_fd());
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert_eq!(edges(&set), 1);
        ring(bell.as_fd());
        assert_eq!(edges(&set), 0);
    }
}
