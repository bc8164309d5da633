//! Manages the processes that use an engine (network stack), and the descriptors that they receive.
//!
//! ```text
//!   control socket ─► hear ─► room? ─► begin ─► command ─► shard ─► report ─► heed ─► reply
//! ```
//!
//! The registry runs on its own thread, or on a shard's thread between two iterations of its event
//! loop. The registry queues commands for the shards (event loops) in [`Registry::orders`], and
//! receives their reports by [`Registry::heed`].
//!
//! All shards know each process, because each shard may contain some of its sockets. A request is
//! executed, or rejected, by all shards. If one shard detects the end of a process, all shards
//! remove it. An id is reused after the last shard has reported that the process has ended.

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

/// A program that a process is about to execute. The program will use the kernel's sockets, because
/// it cannot load the stack's library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UninterceptedProgram<'a> {
    /// Process ID of the process, as sent by the process itself.
    pub pid: u32,
    /// Path of the program's file as the process sent it, which may be any bytes.
    pub path: &'a [u8],
    /// Reason for which the program will not use the stack.
    pub why: Outside,
}

/// Manages the processes that use the engine, and the descriptors that they receive.
pub(crate) struct Registry {
    processes: ProcessTable,
    domain: Domain,
    pub clock: Clock,
    /// Descriptor of the shared memory with the status pages of the shards.
    status: Fd,
    /// Kernel descriptor (token) that contains no name of a socket. The sockets' descriptors in all
    /// programs are duplicates of it.
    blank: Fd,
    /// Read end of the pipe whose end of file makes the kernel kill processes, see
    /// [`set_parent_death_pipe`](crate::Engine::set_parent_death_pipe).
    pub lifeline: Option<Fd>,
    pub closer: Closer,
    pub gatekeeper: Option<Gatekeeper>,
    pub remote: Remote,
    poller: Poller<RegistrySource>,
    woken: Vec<RegistrySource>,
    waiting: DescriptorWaits,
    /// Queued commands for the shards, one list per shard (event loop).
    pub orders: Vec<Vec<ShardCommand>>,
    pub counters: EngineCounters,
    /// Whether the engine ends when its last process has ended.
    exit_when_unused: bool,
    /// Process that contains the engine, so that the engine ends with it. See
    /// [`Engine::attach_host`](crate::Engine::attach_host).
    host: Option<ChannelId>,
    /// The wait until the shards have sent remaining data, after the last process or the host
    /// process has ended. `None`: the run continues.
    leaving: Option<Leaving>,
    /// Number of times that the shards were asked to send remaining data before the engine ends.
    left: u64,
    /// Whether the shards were asked to stop. No process can attach any more.
    stopped: bool,
    /// Number of shards that have not yet sent remaining data before the engine stops.
    to_settle: usize,
}

/// A wait until the shards have sent the data of ended processes.
#[derive(Debug)]
struct Leaving {
    number: u64,
    whose: Leavers,
    /// Number of shards that have not reported yet that their remaining data is sent.
    due: usize,
}

/// Configuration of a registry.
#[derive(Debug)]
pub(crate) struct RegistryConfig {
    /// Descriptor of the shared memory with the shards' status pages, which is passed to programs.
    pub status: Fd,
    /// Number of shards of the engine.
    pub shards: usize,
    /// Maximum number of processes that may be attached.
    pub max: u32,
    /// Whether the engine ends when its last process has ended.
    pub exit_when_unused: bool,
}

impl Registry {
    /// Creates a registry without processes.
    ///
    /// # Errors
    /// Fails if the kernel has no descriptors left.
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

    /// Polls the registry's descriptors, and sleeps for at most `timeout` (`None`: no limit).
    /// Handles events and expired timeouts.
    pub fn look(&mut self, timeout: Option<Duration>) {
        // Panic on an error: epoll_wait fails only for an invalid descriptor, and then no event
        // could ever wake this thread.
        self.poller.wait(timeout, &mut self.woken).expect("the registry's own epoll works");
        let now = self.clock.now();
        let woken = std::mem::take(&mut self.woken);
        for &source in &woken {
            match source {
                RegistrySource::Control(id) => self.hear(id),
                RegistrySource::Remote => self.handle_remote_requests(),
                // Do nothing, because the thread checks for reports of the shards after each
                // wake-up.
                RegistrySource::Shards => {}
            }
        }
        self.woken = woken;
        self.answer_waiting(now);
    }

    /// Returns the time until the registry's earliest deadline. `None` if it has no deadline.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        self.waiting.next().map(|at| at.since(now))
    }

    /// Adds the descriptor with which the shards notify the registry to the poller.
    pub fn watch_shards(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        self.poller.add(bell, RegistrySource::Shards)
    }

    /// Removes the descriptor with which the shards notify the registry from the poller.
    pub fn watch_shards_no_more(&mut self, bell: BorrowedFd<'_>) {
        self.poller.remove(bell);
    }
}

/// The poller's descriptor, which is readable when [`Registry::look`] has work.
impl AsFd for Registry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// Closes the control sockets of all processes, so that they detect the end of the engine. Calls of
/// waiting threads then fail.
impl Drop for Registry {
    fn drop(&mut self) {
        self.remote.close();
        for process in self.processes.drain() {
            // Ignore an error, because the process may have ended already.
            let _ = shutdown(&process.control, Shutdown::Both);
            self.closer.close(process.closes_as, Arc::into_inner(process.control));
        }
    }
}
