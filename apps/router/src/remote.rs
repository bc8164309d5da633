//! How other threads ask a router that runs, and change it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::router::Router;

/// Work for the router's thread.
type Job = Box<dyn FnOnce(&mut Router) + Send>;

/// A handle on a [`RouterRunner`](crate::RouterRunner), for other threads than its own; clones are
/// of the same one.
#[derive(Clone)]
pub struct RouterRemote {
    jobs: Sender<Job>,
    bell: Arc<OwnedFd>,
}

/// The router does not run any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the router does not run any more")]
pub struct RouterGone;

impl RouterRemote {
    /// Has the router's thread do `job` between two turns, and waits for the result. On that
    /// thread itself such a call would wait for ever.
    ///
    /// # Errors
    /// The router does not run any more.
    pub fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Router) -> T + Send + 'static,
    ) -> Result<T, RouterGone> {
        let (answer, answered) = channel();
        // The thread that asked waits for the answer.
        let job = Box::new(move |router: &mut Router| drop(answer.send(job(router))));
        self.jobs.send(job).map_err(|_| RouterGone)?;
        // The counter takes 2^64 rings.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        answered.recv().map_err(|_| RouterGone)
    }
}

/// The router's end: jobs that wait.
pub(crate) struct JobQueue {
    jobs: Receiver<Job>,
    bell: Arc<OwnedFd>,
}

impl JobQueue {
    /// A desk, and the handle of those who ask.
    pub fn open() -> io::Result<(Self, RouterRemote)> {
        let (sender, jobs) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok((Self { jobs, bell: Arc::clone(&bell) }, RouterRemote { jobs: sender, bell }))
    }

    /// Readable when there are jobs.
    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Does the jobs for which the bell rang. Later ones are for the next turn, so that whoever
    /// asks twice has a turn between the two.
    pub fn work(&self, router: &mut Router) {
        let mut rings = [0; 8];
        // An error says that the bell did not ring.
        let _ = rustix::io::read(&self.bell, &mut rings);
        let count = usize::try_from(u64::from_ne_bytes(rings)).unwrap_or(usize::MAX);
        self.jobs.try_iter().take(count).for_each(|job| job(router));
    }
}
