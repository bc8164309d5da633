//! The attachment of this process to its engine.
//!
//! `control` has the requests by the control socket, `calls` those in shared memory, and `commands`
//! messages without an answer. `opening` opens sockets by requests. `life` reports when the engine
//! has ended, and when the attachment belonged to the parent.

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

/// A process's attachment: the region of its run, its own channel, and the socket and notification
/// descriptors beside it. Shared by all threads.
#[derive(Debug)]
pub struct Client {
    process: &'static Process,
    /// `None` if the engine runs in another process, or on threads of its own.
    driver: Option<&'static Driver>,
    /// Number of processors that the process may use.
    processors: u32,
    region: Region,
    run: Run,
    /// Connections to the engine's shards, in order.
    links: Box<[ShardLink]>,
    /// Shard that opens the next socket.
    next: AtomicU32,
    /// Number of calls of [`Self::spawned`].
    spawned: AtomicU32,
    /// Number of the channels.
    number: u32,
    control: HighFd,
    notifier: HighFd,
    blank: HighFd,
    spare: HighFd,
    /// See [`parent_death`]. `None` if the run has no guardian, or no descriptor was free.
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
    /// Control socket, close-on-exec.
    pub control: HighFd,
    number: u32,
    /// Memory of the channels.
    channels: Fd,
    engine_notifiers: Vec<Fd>,
    notifier: Fd,
}

impl Cloned {
    /// Returns the control socket, on which a new image says hello. The image needs nothing else.
    pub fn into_control(self) -> HighFd {
        self.control
    }
}

impl Client {
    /// Says hello on a control socket. `held` finds the sockets that this process image was born
    /// with; None when there can be none.
    ///
    /// # Errors
    /// `Dead` if no answer arrives. `Refused` if the engine refuses, or is of another build; with
    /// ENOMEM if this process may not have the address space.
    pub fn attach(
        process: &'static Process,
        control: Fd,
        held: Option<impl FnOnce(&Region, Run) -> Vec<Socket>>,
    ) -> Result<Self, Error> {
        let high = |fd| HighFd::new(fd, &process.descriptors);
        let control = high(control);
        process.prepare()?;
        // The hello drops sockets that this image does not list. The list takes full generations,
        // which are in the region, so ask for that first.
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

    /// The same attachment, to an engine in this process: from now on threads that wait turn it.
    pub fn hosted_by(self, driver: &'static Driver) -> Self {
        Self { driver: Some(driver), ..self }
    }

    /// The driver lock of its engine, if that is in this process.
    #[inline]
    pub fn driver(&self) -> Option<&'static Driver> {
        // In a child that a handler has forked on top of a call of its parent's, the engine is the
        // parent's.
        self.driver.filter(|_| !self.is_abandoned())
    }

    /// Returns whether there are events to take.
    pub fn has_events(&self) -> bool {
        self.channels().any(towpath_ring::events_waiting)
    }

    /// In the child after fork: the attachment on the channel that was cloned before. The caller
    /// then
    /// [abandons](Self::abandon) the parent's.
    ///
    /// # Errors
    /// `Refused` with ENOMEM when the channel's memory cannot be mapped, with EMFILE without free
    /// descriptors, and with EPROTO for a reply that is no channel.
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
        // The number may be that of no slot, which the first shard refuses.
        self.links.get(shard_of(slot, shards) as usize).unwrap_or(&self.links[0])
    }

    /// Returns the descriptor of which those of unnamed sockets are duplicates.
    pub fn blank(&self) -> &HighFd {
        &self.blank
    }

    /// Returns the length in bytes up to which no IP packet is refused for its length, or 0 until
    /// the engine knows.
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

    /// Wakes a shard if it sleeps.
    pub(crate) fn ring_shard(&self, shard: u32) {
        self.ring(&self.links[shard as usize]);
    }

    /// Wakes a shard if it sleeps and this process has not rung for that sleep yet: at most one
    /// system call a sleep.
    fn ring(&self, end: &ShardLink) {
        if self.is_abandoned() {
            return;
        }
        let rang = towpath_ring::ring_engine(&end.status, &end.rung, end.engine_notifier.borrow());
        if let Some(driver) = self.driver().filter(|_| rang) {
            driver.was_rung();
        }
    }

    /// Returns the slot of a socket, or `None` if the slot is a new socket's.
    #[inline]
    pub fn slot(&self, socket: Socket) -> Option<&Slot> {
        let slot = self.region.slot(socket.slot)?;
        (slot.generation.load(Ordering::Acquire) == socket.generation).then_some(slot)
    }

    /// Returns the process of the attachment.
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

    /// Returns the name of the run in its tokens.
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

    /// Returns the socket to which the engine writes if there is an event while this process
    /// sleeps. The [reactor](crate::reactor) empties the socket before it is full. A thread that
    /// waits for readability, not for a further ring, has to empty it.
    pub fn notifier(&self) -> &HighFd {
        &self.notifier
    }
}

/// Error for an engine of another build, or an answer that lacks an expected part.
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

/// Memory of another build, or none to be had.
fn not_mapped(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::OutOfMemory => Error::Refused(Errno::NOMEM.raw_os_error()),
        _ => PROTOCOL,
    }
}
