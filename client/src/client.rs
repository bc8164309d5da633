//! The connection of this process to its engine (the network stack), called attachment.
//!
//! `control` sends requests over the control socket, `calls` sends requests in shared memory, and
//! `commands` sends commands, which have no reply. `opening` opens sockets. `life` detects the end
//! of the engine, and detaches a forked child from the parent's connection.

mod calls;
mod commands;
mod control;
mod life;
mod opening;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::io::Errno;
use towpath_ring::{Channel, ProcessLock, Region, Rung, Status};
use towpath_shm::Fd;
use towpath_shm::control::{Request, call};
use towpath_shm::layout::{SHARDS_MAX, Slot, shard_of};
use towpath_shm::token::Run;

pub use self::control::{Tokens, control_from_number};
use self::control::{exchange, hello};
use crate::ahead::Ahead;
use crate::driver::Driver;
use crate::{Error, HighFd, Process, Socket, parent_death};

/// Attachment of a process to its engine: shared memory of the run, channels to the engine's
/// shards, control socket and notification descriptors. Shared by all threads.
#[derive(Debug)]
pub struct Client {
    process: &'static Process,
    /// Driver of an engine in this process, whose event loop runs in threads that wait in socket
    /// calls. `None` if the engine runs in another process, or on its own threads.
    driver: Option<&'static Driver>,
    /// Number of CPUs that this process may use.
    processors: u32,
    region: Region,
    run: Run,
    /// Connections to the shards (event loops) of the engine, indexed by shard number.
    links: Box<[ShardLink]>,
    /// Counter from which the shard of the next opened socket is computed.
    next: AtomicU32,
    /// Number of calls of [`Self::spawned`] so far, by which concurrent calls detect it.
    spawned: AtomicU32,
    /// Number of this process's channel to each shard (engine thread).
    number: u32,
    control: HighFd,
    notifier: HighFd,
    blank: HighFd,
    spare: HighFd,
    /// Pipe whose end of file tells the guardian process that this process's parent has ended
    /// ([`parent_death`]). `None` if there is no guardian, or no descriptor was free.
    death_pipe: Option<HighFd>,
    dead: AtomicBool,
    /// Whether the attachment belongs to the parent process, see [`Self::abandon`].
    abandoned: AtomicBool,
}

/// Connection of a process to one shard of the engine: its channel, with locks and notification
/// descriptors.
#[derive(Debug)]
struct ShardLink {
    status: Status,
    channel: Channel,
    engine_notifier: HighFd,
    rung: Rung,
    commands: ProcessLock<()>,
    calls: ProcessLock<()>,
    ahead: Ahead,
}

/// Channel to the engine for a process that is about to be created by fork, exec or posix_spawn.
#[derive(Debug)]
pub struct Cloned {
    /// Control socket of the new process. Close-on-exec is set.
    pub control: HighFd,
    number: u32,
    /// Shared memory that contains the channels of the new process.
    channels: Fd,
    engine_notifiers: Vec<Fd>,
    notifier: Fd,
}

impl Cloned {
    /// Returns the control socket, over which the new process image attaches ([`Client::attach`]).
    /// Closes all other descriptors.
    pub fn into_control(self) -> HighFd {
        self.control
    }
}

impl Client {
    /// Attaches this process to an engine (network stack) over the control socket. `held` returns
    /// the sockets that this program inherited at exec; it is `None` if there cannot be any.
    ///
    /// # Errors
    /// - `Dead`: the engine does not answer;
    /// - `Refused`: the engine rejects the process, is of another build (EPROTO), or RLIMIT_AS is
    ///   too low (ENOMEM).
    pub fn attach(
        process: &'static Process,
        control: Fd,
        held: Option<impl FnOnce(&Region, Run) -> Vec<Socket>>,
    ) -> Result<Self, Error> {
        let high = |fd| HighFd::new(fd, &process.descriptors);
        let control = high(control);
        process.prepare()?;
        // Request the shared memory first, because it contains the generations of sockets. The
        // generations are needed for the list of inherited sockets in HELLO: the engine closes
        // sockets that the list lacks.
        let request = Request { call: call::REGION, ..Request::default() };
        let (reply, asked) = exchange(&control, &request)?;
        let run = Run::from_bytes(*reply.data.first_chunk().ok_or(PROTOCOL)?);
        let region = asked.into_iter().next().ok_or(PROTOCOL)?;
        let region = Region::map(region.into_owned()).map_err(not_mapped)?;
        let held = held.map(|held| held(&region, run)).unwrap_or_default();
        let (reply, fds) = hello(&control, &held)?;
        let (number, shards) = (reply.b, reply.slot);
        if !shards.is_power_of_two() || shards > SHARDS_MAX {
            return Err(PROTOCOL);
        }
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(PROTOCOL);
        let (_again, status, channels, notifier) = (next()?, next()?, next()?, next()?);
        let blank = high(next()?);
        let notifiers = (0..shards).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
        let statuses = Status::map_all(status.into_owned(), shards).map_err(not_mapped)?;
        let death_pipe = fds.next().and_then(|pipe| parent_death::hold(&*pipe, process));
        process.set_channel(number);
        Ok(Self {
            process,
            driver: None,
            processors: towpath_ring::processors(),
            region,
            run,
            links: links(process, statuses, channels, notifiers)?,
            next: AtomicU32::new(number),
            spawned: AtomicU32::new(0),
            number,
            control,
            notifier: high(notifier),
            spare: blank.duplicate().map_err(Error::Refused)?,
            blank,
            death_pipe,
            dead: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        })
    }

    /// Sets the driver of an engine in this process. Threads that wait in socket calls then run the
    /// engine.
    pub fn hosted_by(self, driver: &'static Driver) -> Self {
        Self { driver: Some(driver), ..self }
    }

    /// Returns the driver of the engine. None: waiting threads of this process do not run the
    /// engine's event loop.
    #[inline]
    pub fn driver(&self) -> Option<&'static Driver> {
        // Return `None` after a signal handler has forked: in the child, the engine belongs to the
        // parent.
        self.driver.filter(|_| !self.is_abandoned())
    }

    /// Returns whether a shard has queued events for this process. Also true if events were lost
    /// because the ring was full, until the reactor has handled the loss.
    pub fn has_events(&self) -> bool {
        self.channels().any(towpath_ring::events_waiting)
    }

    /// Returns the attachment of a forked child, over the channel that was cloned before the fork.
    /// The caller must then [abandon](Self::abandon) the parent's attachment.
    ///
    /// # Errors
    /// `Refused`: ENOMEM if the channel's memory cannot be mapped, EMFILE if no descriptor is free,
    /// EPROTO if the cloned memory is not a valid channel.
    pub fn forked(&self, cloned: Cloned) -> Result<Self, Error> {
        let process = self.process;
        let high = |fd| HighFd::new(fd, &process.descriptors);
        let (blank, spare) = (self.blank.duplicate(), self.blank.duplicate());
        let statuses = self.links.iter().map(|end| end.status.clone()).collect();
        process.set_channel(cloned.number);
        Ok(Self {
            process,
            // The child has no driver, because the engine stays in the parent.
            driver: None,
            processors: self.processors,
            region: self.region.clone(),
            run: self.run,
            links: links(process, statuses, cloned.channels, cloned.engine_notifiers)?,
            next: AtomicU32::new(cloned.number),
            spawned: AtomicU32::new(0),
            number: cloned.number,
            control: cloned.control,
            notifier: high(cloned.notifier),
            blank: blank.map_err(Error::Refused)?,
            spare: spare.map_err(Error::Refused)?,
            death_pipe: self
                .death_pipe
                .as_ref()
                .and_then(|pipe| parent_death::hold(pipe.borrow(), process)),
            dead: AtomicBool::new(self.is_dead()),
            abandoned: AtomicBool::new(false),
        })
    }

    /// Returns the connection to the shard (engine thread) that owns the slot with this number.
    #[inline]
    fn end(&self, slot: u32) -> &ShardLink {
        let shards = self.links.len() as u32;
        // The slot number is invalid. Use the first shard (event loop), which rejects the request.
        self.links.get(shard_of(slot, shards) as usize).unwrap_or(&self.links[0])
    }

    /// Returns the kernel descriptor that stands for sockets, of which each socket's descriptor is
    /// a duplicate. The kernel descriptor contains no name of a socket.
    pub fn blank(&self) -> &HighFd {
        &self.blank
    }

    /// Returns the length in bytes up to which every IP packet fits the MTU. 0: not known yet.
    pub fn datagram_mtu(&self) -> u32 {
        self.links.iter().map(|end| end.status.datagram_mtu()).min().unwrap_or(0)
    }

    /// Returns the number of shards (event loops) of the engine.
    #[inline]
    pub(crate) fn shards(&self) -> u32 {
        self.links.len() as u32
    }

    /// Returns the page of shared memory that contains the status of a shard.
    #[inline]
    pub(crate) fn status(&self, shard: u32) -> &Status {
        &self.links[shard as usize].status
    }

    /// Wakes a shard of the engine if it sleeps.
    pub(crate) fn ring_shard(&self, shard: u32) {
        self.ring(&self.links[shard as usize]);
    }

    /// Wakes a shard (engine thread) if it sleeps. Makes at most one system call per sleep, because
    /// this process notifies the shard only once.
    fn ring(&self, end: &ShardLink) {
        if self.is_abandoned() {
            return;
        }
        let rang = towpath_ring::ring_engine(&end.status, &end.rung, end.engine_notifier.borrow());
        if let Some(driver) = self.driver().filter(|_| rang) {
            driver.was_rung();
        }
    }

    /// Returns the shared state of a socket; `None` if the socket was closed and its slot is
    /// reused.
    #[inline]
    pub fn slot(&self, socket: Socket) -> Option<&Slot> {
        let slot = self.region.slot(socket.slot)?;
        (slot.generation.load(Ordering::Acquire) == socket.generation).then_some(slot)
    }

    /// Returns the state of this process that is independent of the engine.
    #[inline]
    pub fn process(&self) -> &'static Process {
        self.process
    }

    /// Returns the number of processors that the process may use.
    pub(crate) fn processors(&self) -> u32 {
        self.processors
    }

    /// Returns the shared memory of the run, with the state (slots) and FIFOs of the sockets of all
    /// processes.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the identification of the run, which the kernel descriptors of its sockets contain.
    pub fn run(&self) -> Run {
        self.run
    }

    /// Returns the channels of this process, one for each shard (engine thread).
    #[inline]
    pub fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.links.iter().map(|end| &end.channel)
    }

    /// Returns the control socket. While no request is pending, it becomes readable only when the
    /// engine has ended.
    pub fn control(&self) -> &HighFd {
        &self.control
    }

    /// Returns the descriptor that becomes readable when an event occurs while this process sleeps.
    /// A thread that finds it readable must read from it, as the [reactor](crate::reactor) does, so
    /// that its buffer does not fill up.
    pub fn notifier(&self) -> &HighFd {
        &self.notifier
    }
}

/// Error for an engine of a different build, or for an invalid answer of the engine.
const PROTOCOL: Error = Error::Refused(Errno::PROTO.raw_os_error());

/// Creates the connections to all shards of the engine. `channels` is the shared memory of their
/// channels.
fn links(
    process: &'static Process,
    statuses: Vec<Status>,
    channels: Fd,
    notifiers: Vec<Fd>,
) -> Result<Box<[ShardLink]>, Error> {
    let channels = Channel::map_all(channels.into_owned(), statuses.len() as u32);
    let channels = channels.map_err(not_mapped)?;
    for channel in &channels {
        let table = process.descriptors.address() as u64;
        channel.header().descriptors.store(table, Ordering::Relaxed);
    }
    let each = statuses.into_iter().zip(channels).zip(notifiers);
    let end = |((status, channel), engine_bell)| ShardLink {
        status,
        channel,
        engine_notifier: HighFd::new(engine_bell, &process.descriptors),
        rung: Rung::default(),
        commands: ProcessLock::new(()),
        calls: ProcessLock::new(()),
        ahead: Ahead::default(),
    };
    Ok(each.map(end).collect())
}

/// Converts an error of mapping shared memory: to ENOMEM, or to EPROTO if the memory has the layout
/// of a different build.
fn not_mapped(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::OutOfMemory => Error::Refused(Errno::NOMEM.raw_os_error()),
        _ => PROTOCOL,
    }
}
