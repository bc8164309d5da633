//! Notifications between the engine and a program. Neither side can block the other by its use of
//! the descriptors. O_NONBLOCK alone does not guarantee this: the flag belongs to the open file,
//! and any process with a descriptor of it can clear the flag.
//!
//! - The engine is notified by eventfds ([`create`]), one per program. The engine neither reads nor
//!   writes them, because edge-triggered epoll reports each write. O_ASYNC is not set.
//! - A program is notified by a pair of sockets ([`pair`]). Each side has its own open file, and
//!   [`toll`] sends with MSG_DONTWAIT. A pipe is not suitable, because a reader whose page faults
//!   slowly (userfaultfd, FUSE) holds the pipe's mutex. The writer would wait for the mutex
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

/// Maximum number of bytes read by one [`clear`]. Each [`toll`] writes one byte.
const RINGS: usize = 64;

/// Creates an eventfd for notifications by [`ring`]. The eventfd is close-on-exec and non-blocking.
///
/// # Errors
/// Returns errors of eventfd(2): EMFILE and ENFILE without free descriptors, ENOMEM.
pub fn create() -> io::Result<Fd> {
    Ok(opened(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?.into())
}

/// Notifies the engine by an eventfd. Ignores EAGAIN, the only possible error: the counter is at
/// its maximum, so the eventfd is readable.
pub fn ring(doorbell: BorrowedFd<'_>) {
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

/// Creates a pair of sockets: the engine's end, for [`toll`], and the program's end, which is
/// non-blocking. Both are close-on-exec.
///
/// # Errors
/// Returns errors of socketpair(2): EMFILE and ENFILE without free descriptors, ENOMEM.
pub fn pair() -> io::Result<(Fd, Fd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) =
        opened(|| socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None))?;
    let (ours, theirs) = (Fd::from(ours), Fd::from(theirs));
    // Prevent programs from sending to the engine's end, which is never read. Otherwise descriptors
    // that they send would accumulate there.
    shutdown(&ours, Shutdown::Read)?;
    Ok((ours, theirs))
}

/// Notifies a program by its socket. Ignores EAGAIN, because a notification is then already
/// pending, and EPIPE, because the program has closed its end.
pub fn toll(ours: BorrowedFd<'_>) {
    let _ = send(ours, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Clears the notifications of an eventfd or a socket. Returns whether there were any.
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
        // The program makes its end blocking, and its buffer is full. The engine's send must not
        // block.
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        (0..10_000).for_each(|_| toll(ours.as_fd()));
        assert!(clear(theirs.as_fd()));
        let sent = send(&theirs, &[1], SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(rustix::io::Errno::PIPE));
        drop(theirs);
        toll(ours.as_fd());
    }

    /// Tests that epoll reports each notification as an edge, even if earlier ones are unread.
    /// Programs rely on this, because they clear several at once.
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

    /// Tests that edge-triggered epoll reports each write to an eventfd, even if its counter is not
    /// 0. The engine relies on this. A write that would exceed the maximum has no effect.
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
