//! Closing descriptors where it may take as long as it likes.
//!
//! The last close of an open file sleeps when a program wants it to: for SO_LINGER, if it is a kernel
//! socket that the program sent; for the mutex of an epoll set that the file is in, which the program
//! holds while its epoll_wait(2) writes to memory that is slow to be there (userfaultfd, FUSE). Whether a
//! close is the last depends on programs. So the engine closes itself only what no program can have,
//! and can have put nothing into.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads that close, at most. One as a rule, for closes that do not sleep; with so many asleep,
/// descriptors wait, and when there are none left new processes are refused.
const THREADS_MAX: usize = 8;

/// Where descriptors are brought that others may have.
#[derive(Debug, Default)]
pub(crate) struct Closer {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// Of them, those that sleep until there is more.
    idle: usize,
    ended: bool,
}

impl Closer {
    /// Closes them some time.
    pub fn close(&self, descriptors: impl IntoIterator<Item = OwnedFd>) {
        let mut queue = self.shared.lock();
        queue.waiting.extend(descriptors);
        if queue.waiting.len() > queue.idle && queue.threads < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("towpath-close".into());
            // Without another thread they wait for those that are there, or for the next try.
            if builder.spawn(move || shared.work()).is_ok() {
                queue.threads += 1;
            }
        }
        drop(queue);
        self.shared.more.notify_all();
    }

    /// Whether there are any that are not closed yet.
    pub fn is_busy(&self) -> bool {
        let queue = self.shared.lock();
        !queue.waiting.is_empty() || queue.threads > queue.idle
    }

    /// Descriptors that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.shared.lock().waiting.len()
    }
}

impl Drop for Closer {
    /// The threads end when everything is closed. Nobody waits for them.
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.more.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(descriptor) = queue.waiting.pop_front() {
                drop(queue);
                drop(descriptor);
                queue = self.lock();
            } else if queue.ended {
                return;
            } else {
                queue.idle += 1;
                queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// A kernel socket whose last close sleeps for an hour, or until its peer has gone.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("accepted");
        let (peer, _) = listener.accept().expect("connected");
        stream.set_nonblocking(true).expect("open");
        while (&stream).write(&[0; 65536]).is_ok() {}
        stream.set_nonblocking(false).expect("open");
        let hour = Duration::from_secs(3600);
        rustix::net::sockopt::set_socket_linger(&stream, Some(hour)).expect("open");
        (stream, peer)
    }

    #[test]
    fn a_close_that_sleeps_holds_up_nobody() {
        let closer = Closer::default();
        let (stream, peer) = lingering();
        closer.close([stream.into()]);
        for _ in 0..3 {
            let (mut end, other) = std::io::pipe().expect("a pipe");
            closer.close([other.into()]);
            // The end of the pipe, once the other end is closed.
            assert_eq!(end.read(&mut [0]).expect("open"), 0);
        }
        drop((closer, peer));
    }
}
