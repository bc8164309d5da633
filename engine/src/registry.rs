//! The processes of a run, apart from the sockets that they hold: who there is, and which
//! descriptors each is given.
//!
//! ```text
//!   control socket ─► hear ─► room? ─► begin ─► order ─► shard ─► notice ─► heed ─► answer
//! ```
//!
//! A thread of its own turns the registry, and may be slow, or a shard's thread does between two
//! turns. In both cases its orders for the shards stand in [`Registry::orders`], and their notices
//! come by [`Registry::heed`].
//!
//! A process is known to all shards, which hold its sockets. Each of its wants is done, or refused,
//! by all of them, and an end in one shard is an end in all. Its number is used again when the last
//! shard has said that it has no trace of it.

mod answer;
pub(crate) mod closer;
mod pending;
mod presence;
mod queries;
mod requests;
mod room;
mod sources;
mod sys;
mod table;
mod wire;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use towpath_shm::Fd;
use towpath_shm::image::Outside;
use towpath_shm::token;
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::domain::Domain;
use crate::ids::ChannelId;
use crate::mail::{Leavers, ShardCommand};
use crate::poller::Poller;
use crate::registry::closer::Closer;
use crate::registry::pending::DescriptorWaits;
use crate::registry::sources::RegistrySource;
use crate::registry::table::ProcessTable;
use crate::remote::Remote;
use crate::report::EngineCounters;

pub(crate) type Gatekeeper = Box<dyn FnMut(UninterceptedProgram<'_>) -> bool + Send>;

/// A program that a process is about to execute, whose sockets will be the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UninterceptedProgram<'a> {
    /// The process, as it says.
    pub pid: u32,
    /// The program's file, as the process says: any bytes.
    pub path: &'a [u8],
    /// Why the program will not use the stack.
    pub why: Outside,
}

/// The processes of a run, and the descriptors that they are given.
pub(crate) struct Registry {
    processes: ProcessTable,
    domain: Domain,
    pub clock: Clock,
    /// The shards' status pages.
    status: Fd,
    /// The blank token, of which the descriptors of all sockets of all programs are duplicates.
    blank: Fd,
    /// See [`Engine::set_lifeline`](crate::Engine::set_lifeline).
    pub lifeline: Option<Fd>,
    pub closer: Closer,
    pub gatekeeper: Option<Gatekeeper>,
    pub remote: Remote,
    poller: Poller<RegistrySource>,
    woken: Vec<RegistrySource>,
    waiting: DescriptorWaits,
    /// Orders that each shard is told next.
    pub orders: Vec<Vec<ShardCommand>>,
    pub counters: EngineCounters,
    /// Its part is over when there is no process any more, and was one.
    exit_when_unused: bool,
    /// The registry's part is over when this process is gone. See
    /// [`Engine::attach_host`](crate::Engine::attach_host).
    host: Option<ChannelId>,
    /// There was no process any more, or the host has gone, and the shards were told.
    leaving: Option<Leaving>,
    /// How often they were.
    left: u64,
    /// The shards were told to stop: no process is let in.
    stopped: bool,
    /// Shards that have not sent all data of programs before the stop.
    to_settle: usize,
}

/// The shards send what the last process left behind.
#[derive(Debug)]
struct Leaving {
    number: u64,
    whose: Leavers,
    /// Shards that have not done so.
    due: usize,
}

/// Configuration of a registry.
#[derive(Debug)]
pub(crate) struct RegistryConfig {
    /// The status pages of the shards, which programs are given.
    pub status: Fd,
    /// Number of shards.
    pub shards: usize,
    /// Maximum number of processes.
    pub max: u32,
    /// Whether the run ends when its last process is gone.
    pub exit_when_unused: bool,
}

impl Registry {
    /// A registry without processes.
    ///
    /// # Errors
    /// If the kernel has no descriptors for it.
    pub fn new(domain: Domain, clock: Clock, config: RegistryConfig) -> io::Result<Self> {
        let RegistryConfig { status, shards, max, exit_when_unused } = config;
        let (remote, mut poller) = (Remote::new(shards)?, Poller::new()?);
        poller.add(remote.notifier(), RegistrySource::Remote)?;
        Ok(Self {
            processes: ProcessTable::new(max),
            domain,
            clock,
            status,
            blank: token::blank()?,
            lifeline: None,
            closer: Closer::default(),
            gatekeeper: None,
            remote,
            poller,
            woken: Vec::new(),
            waiting: DescriptorWaits::default(),
            orders: (0..shards).map(|_| Vec::new()).collect(),
            counters: EngineCounters::default(),
            exit_when_unused,
            host: None,
            leaving: None,
            left: 0,
            stopped: false,
            to_settle: 0,
        })
    }

    /// Looks at the descriptors, sleeping for at most `timeout` (None: for ever), and does what
    /// they ask for, and what its time has come for.
    pub fn look(&mut self, timeout: Option<Duration>) {
        // epoll can only fail for want of a valid descriptor: nothing would ever wake us again.
        self.poller.wait(timeout, &mut self.woken).expect("the registry's own epoll works");
        let now = self.clock.now();
        let woken = std::mem::take(&mut self.woken);
        for &source in &woken {
            match source {
                RegistrySource::Control(id) => self.hear(id),
                RegistrySource::Remote => self.handle_remote_requests(),
                // The thread looks at the shards' notices after each wake-up.
                RegistrySource::Shards => {}
            }
        }
        self.woken = woken;
        self.answer_waiting(now);
    }

    /// How long it may sleep; None: nothing has a deadline.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        self.waiting.next().map(|at| at.since(now))
    }

    /// A look is due as well when this is readable.
    pub fn watch_shards(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        self.poller.add(bell, RegistrySource::Shards)
    }

    /// Ends [`Self::watch_shards`].
    pub fn watch_shards_no_more(&mut self, bell: BorrowedFd<'_>) {
        self.poller.remove(bell);
    }
}

/// Readable when a [look](Registry::look) is due.
impl AsFd for Registry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// An engine that is gone tells no process, and threads that wait for an answer get none.
impl Drop for Registry {
    fn drop(&mut self) {
        self.remote.close();
        for process in self.processes.drain() {
            // A process that has ended needs no notice.
            let _ = shutdown(&process.control, Shutdown::Both);
            self.closer.close(process.closes_as, Arc::into_inner(process.control));
        }
    }
}
