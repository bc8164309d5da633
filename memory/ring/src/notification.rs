//! Wake-up channels between the engine and a program. Neither side can make the other block when it
//! rings or clears a bell. O_NONBLOCK alone does not ensure that. The flag belongs to an open file,
//! so every process with a descriptor of the same open file can clear it.
//!
//! - The engine's bells are eventfds ([`create`]), one for each program. The engine neither reads
//!   nor writes them: its epoll set has them edge-triggered, where each write counts. The eventfds
//!   have no O_ASYNC.
//! - A program's bell is a pair of sockets ([`pair`]): each side has an end of its own, and
//!   [`toll`] asks for non-blocking with the call. A pipe would not do: a reader whose page faults
//!   slowly (userfaultfd, FUSE) holds the pipe's mutex, which the writer wants whatever its flags.
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

/// Bytes taken by one [`clear`], of which [`toll`] writes one each.
const RINGS: usize = 64;

/// An eventfd that nobody rang, for [`ring`]: close-on-exec and non-blocking.
///
/// # Errors
/// Errors of eventfd(2): EMFILE and ENFILE when there are no descriptors left, ENOMEM.
pub fn create() -> io::Result<Fd> {
    Ok(opened(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?.into())
}

/// Rings an eventfd. A failure can only be EAGAIN: then it has been rung 2^64 times and is readable
/// anyway.
pub fn ring(doorbell: BorrowedFd<'_>) {
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

/// The engine's end, for [`toll`], and the program's, which is non-blocking for all its threads.
/// Both are close-on-exec.
///
/// # Errors
/// Errors of socketpair(2): EMFILE and ENFILE when there are no descriptors left, ENOMEM.
pub fn pair() -> io::Result<(Fd, Fd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) =
        opened(|| socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None))?;
    let (ours, theirs) = (Fd::from(ours), Fd::from(theirs));
    // Nothing can be sent to the engine's end, where nobody would take it: least of all
    // descriptors.
    shutdown(&ours, Shutdown::Read)?;
    Ok((ours, theirs))
}

/// Rings a program. EAGAIN: it has not cleared its bell for too long, against its own interest.
/// EPIPE: it has closed its end, and sleeps on something else. Neither is the engine's concern, nor
/// a signal (SIGPIPE) to it.
pub fn toll(ours: BorrowedFd<'_>) {
    let _ = send(ours, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Clears a bell of either kind; returns whether it had been rung.
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
        // Full and blocking, as far as the program can have it.
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        (0..10_000).for_each(|_| toll(ours.as_fd()));
        assert!(clear(theirs.as_fd()));
        let sent = send(&theirs, &[1], SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(rustix::io::Errno::PIPE));
        drop(theirs);
        toll(ours.as_fd());
    }

    /// Programs clear their bell after several rings, so each ring must be an edge while former
    /// ones are unread. The shortest buffer that Linux gives a socket has room for a few.
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

    /// In an edge-triggered set each write to an eventfd counts, whatever its count is and though
    /// nobody reads it. A write that did not fit leaves nothing behind. The engine relies on both.
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
