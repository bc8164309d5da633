//! The attachment of this process to its engine.
//!
//! `control` makes requests by the control socket, `calls` makes requests in shared memory, and
//! `commands` sends commands, which have no answer. `opening` opens sockets. `life` reports whether
//! the engine has ended, and whether the attachment is that of the parent process.

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

/// Attachment of a process to its engine: the region of the run, a channel to each shard, the
/// control socket and notification descriptors. Shared by all threads.
#[derive(Debug)]
pub struct Client {
    process: &'static Process,
    /// Driver of an engine that waiting threads of this process turn. `None` if the engine runs in
    /// another process, or on threads of its own.
    driver: Option<&'static Driver>,
    /// Number of processors that the process may use.
    processors: u32,
    region: Region,
    run: Run,
    /// Connections to the engine's shards, by the number of the shard.
    links: Box<[ShardLink]>,
    /// Counter by which the shard of the next socket is chosen.
    next: AtomicU32,
    /// Number of calls of [`Self::spawned`].
    spawned: AtomicU32,
    /// Number of this process's channels, the same in each shard.
    number: u32,
    control: HighFd,
    notifier: HighFd,
    blank: HighFd,
    spare: HighFd,
    /// Pipe by which the guardian notices the end of the parent ([`parent_death`]). `None` if the
    /// run has no guardian, or no descriptor was free.
    death_pipe: Option<HighFd>,
    dead: AtomicBool,
    /// The attachment belongs to the parent: see [`Self::abandon`].
    abandoned: AtomicBool,
}

/// Connection to one shard of the engine: its channel, with locks and notifiers.
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

/// Channel of a process that is about to be forked, executed or spawned.
#[derive(Debug)]
pub struct Cloned {
    /// Control socket of the new process, with close-on-exec.
    pub control: HighFd,
    number: u32,
    /// Memory of the new process's channels.
    channels: Fd,
    engine_notifiers: Vec<Fd>,
    notifier: Fd,
}

impl Cloned {
    /// Returns the control socket, by which the new process image attaches ([`Client::attach`]).
    /// Closes the other descriptors.
    pub fn into_control(self) -> HighFd {
        self.control
    }
}

impl Client {
    /// Attaches this process to an engine by the control socket. `held` finds the sockets that the
    /// process image inherited; `None` if it cannot have any.
    ///
    /// # Errors
    /// - `Dead`: no answer arrives;
    /// - `Refused`: the engine refuses, is of another build (EPROTO), or the limit of the address
    ///   space is too low (ENOMEM).
    pub fn attach(
        process: &'static Process,
        control: Fd,
        held: Option<impl FnOnce(&Region, Run) -> Vec<Socket>>,
    ) -> Result<Self, Error> {
        let high = |fd| HighFd::new(fd, &process.descriptors);
        let control = high(control);
        process.prepare()?;
        // The engine drops sockets that HELLO does not list. The list needs the generations of the
        // sockets, which are in the region, so request the region first.
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

    /// Returns this attachment for an engine in this process, which waiting threads turn.
    pub fn hosted_by(self, driver: &'static Driver) -> Self {
        Self { driver: Some(driver), ..self }
    }

    /// Returns the driver of the engine, if waiting threads of this process turn the engine.
    #[inline]
    pub fn driver(&self) -> Option<&'static Driver> {
        // A signal handler may have forked: in the child the engine is the parent's.
        self.driver.filter(|_| !self.is_abandoned())
    }

    /// Returns whether a shard has queued events for this process. Also true after events were lost
    /// because the ring was full, until this is noticed.
    pub fn has_events(&self) -> bool {
        self.channels().any(towpath_ring::events_waiting)
    }

    /// Returns the attachment of a child after fork, on the channel that was cloned before the
    /// fork. The caller then [abandons](Self::abandon) the parent's attachment.
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
            // The driver lock stays with the parent.
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

    /// Returns the connection to the shard that has a slot.
    #[inline]
    fn end(&self, slot: u32) -> &ShardLink {
        let shards = self.links.len() as u32;
        // An invalid slot number goes to the first shard, which refuses it.
        self.links.get(shard_of(slot, shards) as usize).unwrap_or(&self.links[0])
    }

    /// Returns the descriptor that is duplicated for sockets without a token of their own.
    pub fn blank(&self) -> &HighFd {
        &self.blank
    }

    /// Returns the length in bytes up to which no IP packet is refused for its length, or 0 if
    /// that is not known yet.
    pub fn datagram_mtu(&self) -> u32 {
        self.links.iter().map(|end| end.status.datagram_mtu()).min().unwrap_or(0)
    }

    /// Returns the number of shards of the engine.
    #[inline]
    pub(crate) fn shards(&self) -> u32 {
        self.links.len() as u32
    }

    /// Returns the status page of a shard.
    #[inline]
    pub(crate) fn status(&self, shard: u32) -> &Status {
        &self.links[shard as usize].status
    }

    /// Wakes a shard that sleeps.
    pub(crate) fn ring_shard(&self, shard: u32) {
        self.ring(&self.links[shard as usize]);
    }

    /// Wakes a shard that sleeps, unless this process has already notified it in this sleep. Costs
    /// at most one system call for each sleep.
    fn ring(&self, end: &ShardLink) {
        if self.is_abandoned() {
            return;
        }
        let rang = towpath_ring::ring_engine(&end.status, &end.rung, end.engine_notifier.borrow());
        if let Some(driver) = self.driver().filter(|_| rang) {
            driver.was_rung();
        }
    }

    /// Returns the slot of a socket, or `None` if the slot belongs to a newer socket.
    #[inline]
    pub fn slot(&self, socket: Socket) -> Option<&Slot> {
        let slot = self.region.slot(socket.slot)?;
        (slot.generation.load(Ordering::Acquire) == socket.generation).then_some(slot)
    }

    /// Returns the state of this process.
    #[inline]
    pub fn process(&self) -> &'static Process {
        self.process
    }

    /// Number of processors that the process may use.
    pub(crate) fn processors(&self) -> u32 {
        self.processors
    }

    /// Returns the memory of the run: slots and FIFOs of the sockets of all its processes.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the identification of the run that its tokens contain.
    pub fn run(&self) -> Run {
        self.run
    }

    /// Returns the channels of this process, one for each shard.
    #[inline]
    pub fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.links.iter().map(|end| &end.channel)
    }

    /// Returns the control socket. Between calls it becomes readable only when the engine has
    /// ended.
    pub fn control(&self) -> &HighFd {
        &self.control
    }

    /// Returns the descriptor to which the engine writes when an event occurs while this process
    /// sleeps. The [reactor](crate::reactor) reads it before its buffer is full. A thread that
    /// polls the descriptor for readability must read from it.
    pub fn notifier(&self) -> &HighFd {
        &self.notifier
    }
}

/// Error of an attachment to an engine of another build, or of an invalid answer.
const PROTOCOL: Error = Error::Refused(Errno::PROTO.raw_os_error());

/// Creates the connections to all shards. `channels` is the memory of their channels.
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

/// Converts an error of mapping memory: ENOMEM, or EPROTO for memory of another build.
fn not_mapped(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::OutOfMemory => Error::Refused(Errno::NOMEM.raw_os_error()),
        _ => PROTOCOL,
    }
}
