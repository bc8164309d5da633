//! The attachment of this process to its engine.

mod opening;

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send,
};
use towpath_ring::{Channel, Lock, Region, Rung, Status};
use towpath_shm::Fd;
use towpath_shm::control::{DATA_MAX, DESCRIPTORS_MAX, Reply, Request, TOKENS_MAX, call};
use towpath_shm::layout::{Command, Plain, SHARDS_MAX, Slot, VERSION, op, shard_of};
use towpath_shm::token::Run;

use crate::ahead::Ahead;
use crate::syscall::SignalsBlocked;
use crate::wheel::{Wheel, Who};
use crate::{Error, HighFd, Process, Socket, lifeline, wait};

/// Between two tries to put a command into a full ring.
const RING_FULL_PAUSE: Duration = Duration::from_micros(50);
/// Tries between two looks whether the engine still lives.
const RING_FULL_TRIES: u32 = 1000;

/// One process's attachment: the region of its run, its own channel, and the socket and doorbells
/// beside it. Shared by all threads.
#[derive(Debug)]
pub struct Client {
    process: &'static Process,
    /// None: the engine is another process's, or has threads of its own.
    wheel: Option<&'static Wheel>,
    /// How many processors the process may use.
    processors: u32,
    region: Region,
    run: Run,
    /// One for each shard of the engine.
    ends: Box<[End]>,
    /// The shard that is asked for the next socket.
    next: AtomicU32,
    /// Counts [`Self::spawned`].
    spawned: AtomicU32,
    /// The channels'.
    number: u32,
    control: HighFd,
    bell: HighFd,
    blank: HighFd,
    spare: HighFd,
    /// See [`lifeline`]. None where nobody guards the run, or where there was no descriptor for it.
    lifeline: Option<HighFd>,
    dead: AtomicBool,
    /// It is the parent's: see [`Self::abandon`].
    abandoned: AtomicBool,
}

/// What leads to one shard of the engine.
#[derive(Debug)]
struct End {
    status: Status,
    channel: Channel,
    engine_bell: HighFd,
    rung: Rung,
    commands: Lock<()>,
    calls: Lock<()>,
    ahead: Ahead,
}

/// What a process needs that is about to be forked, executed or spawned: a channel of its own.
#[derive(Debug)]
pub struct Cloned {
    /// The control socket, close-on-exec.
    pub control: HighFd,
    number: u32,
    /// The memory of its channels.
    channels: Fd,
    engine_bells: Vec<Fd>,
    bell: Fd,
}

/// What [`Client::tokens`] gives.
#[derive(Debug)]
pub struct Tokens {
    /// Those that there are, each with the place of its socket among those asked for.
    pub tokens: Vec<(usize, Fd)>,
    /// The number of sockets, from the first asked for, about which another request would give no
    /// more.
    pub dealt_with: usize,
}

impl Client {
    /// Says hello on a control socket. `held` finds the sockets that this process image was born
    /// with; None when there can be none.
    ///
    /// # Errors
    /// `Dead` when nobody answers, `Refused` when the engine does, or is of another build; with
    /// ENOMEM when this process may not have the address space.
    pub fn attach(
        process: &'static Process,
        control: Fd,
        held: Option<impl FnOnce(&Region, Run) -> Vec<Socket>>,
    ) -> Result<Self, Error> {
        let high = |fd| HighFd::new(fd, &process.descriptors);
        let control = high(control);
        process.prepare()?;
        // The hello drops what this image does not list, and a list takes full generations, which
        // are in the region.
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
        let (_again, status, channels, bell) = (next()?, next()?, next()?, next()?);
        let blank = high(next()?);
        let bells = (0..shards).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
        let statuses = Status::map_all(status.into_owned(), shards).map_err(not_mapped)?;
        let lifeline = fds.next().and_then(|pipe| lifeline::hold(&*pipe, process));
        process.set_channel(number);
        Ok(Self {
            process,
            wheel: None,
            processors: towpath_ring::processors(),
            region,
            run,
            ends: ends(process, statuses, channels, bells)?,
            next: AtomicU32::new(number),
            spawned: AtomicU32::new(0),
            number,
            control,
            bell: high(bell),
            spare: blank.duplicate().map_err(Error::Refused)?,
            blank,
            lifeline,
            dead: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        })
    }

    /// The same attachment, to an engine in this process: from now on threads that wait turn it.
    pub fn hosted_by(self, wheel: &'static Wheel) -> Self {
        Self { wheel: Some(wheel), ..self }
    }

    /// The wheel of its engine, if that is in this process.
    #[inline]
    pub fn wheel(&self) -> Option<&'static Wheel> {
        // In a child that a handler has forked on top of a call of its parent's, the engine is the
        // parent's.
        self.wheel.filter(|_| !self.is_abandoned())
    }

    /// Whether there are events that nobody has taken.
    pub fn has_events(&self) -> bool {
        self.channels().any(towpath_ring::events_waiting)
    }

    /// Tells the engine that this process holds a socket, whose descriptor came by SCM_RIGHTS.
    ///
    /// # Errors
    /// `Dead` when the engine is gone. A socket that ended on its way is no error: the calls on it
    /// will fail.
    pub fn adopt(&self, socket: Socket) -> Result<(), Error> {
        let (slot, generation) = (socket.slot, socket.generation);
        let request = Request { call: call::ADOPT, slot, generation, ..Request::default() };
        match self.call(&request) {
            Err(Error::Refused(_)) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A second channel, for a [`towpath_shm::control::purpose`]. It waits until the engine has
    /// noted what the new channel holds, which takes longer the more sockets this process has.
    ///
    /// # Errors
    /// As for [`Self::call`]; `Refused` with EAGAIN, as fork(2) has it, when there are too many
    /// processes or too many that are about to be.
    pub fn clone_channel(&self, purpose: u32) -> Result<Cloned, Error> {
        let request = Request { call: call::CLONE, a: purpose, ..Request::default() };
        let (reply, fds) = self.call_with_descriptors(&request)?;
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(PROTOCOL);
        let number = reply.b;
        let control = HighFd::new(next()?, &self.process.descriptors);
        let (channels, bell) = (next()?, next()?);
        let engine_bells = self.ends.iter().map(|_| next()).collect::<Result<Vec<_>, _>>()?;
        Ok(Cloned { control, number, channels, engine_bells, bell })
    }

    /// In the child after fork: the attachment on the channel that was cloned before. The caller
    /// then
    /// [abandons](Self::abandon) the parent's.
    ///
    /// # Errors
    /// `Refused` with ENOMEM when the channel's memory cannot be mapped, with EMFILE when there are
    /// no descriptors left, with EPROTO when what came is no channel.
    pub fn forked(&self, cloned: Cloned) -> Result<Self, Error> {
        let process = self.process;
        let high = |fd| HighFd::new(fd, &process.descriptors);
        let (blank, spare) = (self.blank.duplicate(), self.blank.duplicate());
        let statuses = self.ends.iter().map(|end| end.status.clone()).collect();
        process.set_channel(cloned.number);
        Ok(Self {
            process,
            // It stays with the parent.
            wheel: None,
            processors: self.processors,
            region: self.region.clone(),
            run: self.run,
            ends: ends(process, statuses, cloned.channels, cloned.engine_bells)?,
            next: AtomicU32::new(cloned.number),
            spawned: AtomicU32::new(0),
            number: cloned.number,
            control: cloned.control,
            bell: high(cloned.bell),
            blank: blank.map_err(Error::Refused)?,
            spare: spare.map_err(Error::Refused)?,
            lifeline: self
                .lifeline
                .as_ref()
                .and_then(|pipe| lifeline::hold(pipe.borrow(), process)),
            dead: AtomicBool::new(self.is_dead()),
            abandoned: AtomicBool::new(false),
        })
    }

    /// Makes a request that no descriptors are needed for, and waits for the answer.
    ///
    /// # Errors
    /// `Refused` with the engine's errno, `Dead` when it is gone.
    pub fn call(&self, request: &Request) -> Result<Reply, Error> {
        let end = self.end(match request.call {
            // Sockets are shared out among the shards.
            call::SOCKET => return self.open(request),
            call::SOCKETS | call::SOCKET_ROWS | call::SOCKET_FIGURES | call::TALLY => request.a,
            _ => request.slot,
        });
        self.call_at(end, request)
    }

    fn call_at(&self, end: &End, request: &Request) -> Result<Reply, Error> {
        self.exchange(end, || {
            let number = towpath_ring::ask(&end.channel, request);
            // Of an engine in this process, who waits sees to that.
            if self.wheel().is_none() {
                self.ring(end);
                let answered = || towpath_ring::answer_to(&end.channel, number);
                if let Some(reply) = wait::look_for_answer(self, answered) {
                    return Ok(reply);
                }
            }
            self.wait_for_answer(end, number)
        })
    }

    fn call_with_descriptors(&self, request: &Request) -> Result<(Reply, Vec<Fd>), Error> {
        let mut fds = Vec::new();
        let reply = self.exchange(&self.ends[0], || {
            send_request(&self.control, request)?;
            self.turn_until_answered();
            recv_reply(&self.control, &mut fds)
        })?;
        Ok((reply, fds))
    }

    /// Where nobody else turns the engine, it is this thread that has to, or it would wait for the
    /// stand-by thread.
    fn turn_until_answered(&self) {
        if let Some(helm) = self.wheel().and_then(|wheel| wheel.take(Who::Asks)) {
            let control = self.control.get();
            helm.drive_blocked(Some(control), || is_readable(self.control.borrow()));
        }
    }

    /// What leads to the shard that has a slot.
    #[inline]
    fn end(&self, slot: u32) -> &End {
        let shards = self.ends.len() as u32;
        // Any number may have come in place of a slot's: the first shard knows none like that,
        // either.
        self.ends.get(shard_of(slot, shards) as usize).unwrap_or(&self.ends[0])
    }

    /// Nothing interrupts a request, and there is one at a time.
    fn exchange(
        &self,
        end: &End,
        ask: impl FnOnce() -> Result<Reply, Error>,
    ) -> Result<Reply, Error> {
        if self.is_dead() {
            return Err(Error::Dead);
        }
        let _signals = SignalsBlocked::new();
        if self.is_abandoned() {
            return Err(Error::Forked);
        }
        let _calls = end.calls.lock();
        match ask() {
            Ok(reply) if reply.errno == 0 => Ok(reply),
            Ok(reply) => Err(Error::Refused(reply.errno)),
            Err(error) => {
                if error == Error::Dead {
                    self.set_dead();
                }
                Err(error)
            }
        }
    }

    fn wait_for_answer(&self, end: &End, number: u32) -> Result<Reply, Error> {
        loop {
            let turns = self.wheel().is_some_and(|wheel| wheel.is_free_for(Who::Asks));
            let word = if turns {
                towpath_ring::answer_word(&end.channel)
            } else {
                towpath_ring::await_answer(&end.channel)
            };
            if let Some(reply) = towpath_ring::answer_to(&end.channel, number) {
                // It may have been woken by the engine's end, of which no other thread is told
                // then.
                self.is_dead();
                return Ok(reply);
            }
            if self.is_dead() {
                return Err(Error::Dead);
            }
            if !turns && self.wheel().is_some() {
                // Who is at the wheel may sleep.
                self.ring(end);
            }
            if wait::sleep_on(self, word, !turns) && !self.check_alive() {
                return Err(Error::Dead);
            }
        }
    }

    /// [Tokens](towpath_shm::token) with the names of sockets, of as many as one request takes.
    ///
    /// # Errors
    /// As for [`Self::call`]; `Refused` with EMFILE when there is no number for any.
    pub fn tokens(&self, sockets: impl Iterator<Item = Socket>) -> Result<Tokens, Error> {
        let mut request = Request { call: call::TOKENS, ..Request::default() };
        list(&mut request, sockets.take(TOKENS_MAX));
        let (reply, fds) = self.call_with_descriptors(&request)?;
        let (dealt_with, count) = (reply.a as usize, reply.b.count_ones() as usize);
        let named = (0..TOKENS_MAX).filter(|n| reply.b >> n & 1 == 1);
        let are_all = fds.len() == count;
        let tokens: Vec<(usize, Fd)> = named.zip(fds).collect();
        // The kernel gives the first ones where there are numbers for some only.
        let dealt_with =
            if are_all { dealt_with } else { tokens.last().map_or(0, |last| last.0 + 1) };
        if dealt_with == 0 {
            return Err(Error::Refused(Errno::MFILE.raw_os_error()));
        }
        Ok(Tokens { tokens, dealt_with })
    }

    /// Frees the number that is kept for [`Self::tokens`] in a process that has no other left.
    pub fn use_spare(&self) {
        self.spare.close();
    }

    /// Keeps a number again, when the token is closed. One thread at a time.
    pub fn spare_again(&self) {
        self.spare.renew(&self.blank);
    }

    /// What the descriptor of a socket is a duplicate of, unless it has a name.
    pub fn blank(&self) -> &HighFd {
        &self.blank
    }

    /// Puts a command about a socket into the ring and rings the engine if it sleeps. No answer
    /// comes, and there is no error: when the engine is gone, the next call finds that out. When
    /// the ring is full it waits for the engine. In a signal handler that interrupts a command it
    /// is a request.
    pub fn command(&self, command: &Command) {
        self.command_at(self.end(command.slot), command);
    }

    /// The same for a command that is about the process: every shard is told.
    pub fn command_to_all(&self, command: &Command) {
        self.ends.iter().for_each(|end| self.command_at(end, command));
    }

    fn command_at(&self, end: &End, command: &Command) {
        let mut tries = 0;
        loop {
            let full = {
                let Some(_commands) = end.commands.lock_unless_mine() else {
                    return self.command_by_call(end, command);
                };
                // The ring is the parent's, who says it, too. No handler on top of the lock forks.
                if self.is_abandoned() {
                    return;
                }
                towpath_ring::push_command(&end.channel, command).is_err()
            };
            self.ring(end);
            if !full || self.is_dead() {
                return;
            }
            tries += 1;
            if tries % RING_FULL_TRIES == 0 && !self.check_alive() {
                return;
            }
            if let Some(mut helm) = self.wheel().and_then(|wheel| wheel.take(Who::Waits)) {
                helm.turn(None, || true);
                continue;
            }
            let pause =
                rustix::time::Timespec { tv_sec: 0, tv_nsec: RING_FULL_PAUSE.as_nanos() as i64 };
            let _ = rustix::thread::nanosleep(&pause);
        }
    }

    /// From a signal handler, on top of a call that is at the ring.
    #[cold]
    fn command_by_call(&self, end: &End, command: &Command) {
        let bytes = command.as_bytes();
        let mut request =
            Request { call: call::COMMAND, len: bytes.len() as u32, ..Request::default() };
        request.data[..bytes.len()].copy_from_slice(bytes);
        // Commands have no answer: if the engine is gone, the caller's next wait or request finds
        // that.
        let _ = self.call_at(end, &request);
    }

    /// [`Self::command`], which the engine has carried out when this returns.
    pub(crate) fn command_answered(&self, command: &Command) {
        self.command_by_call(self.end(command.slot), command);
    }

    /// [`Self::command`] about a socket: `op` of [`towpath_shm::layout::op`], which says what `a`
    /// and `b` are.
    pub fn socket_command(&self, socket: Socket, op: u32, a: u32, b: u64) {
        self.command(&Command { op, slot: socket.slot, generation: socket.generation, a, b, c: 0 });
    }

    /// Tells the engine of an option whose value has been checked: a
    /// [`towpath_shm::layout::setting`].
    pub fn setting(&self, socket: Socket, setting: u32, value: u64) {
        self.socket_command(socket, op::SETTING, setting, value);
    }

    /// Longest IP packet in bytes that no datagram socket is refused for its length; 0 until the
    /// engine knows.
    pub fn datagram_mtu(&self) -> u32 {
        self.ends.iter().map(|end| end.status.datagram_mtu()).min().unwrap_or(0)
    }

    /// How many shards the engine has.
    #[inline]
    pub(crate) fn shards(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The status page of one of them.
    #[inline]
    pub(crate) fn status(&self, shard: u32) -> &Status {
        &self.ends[shard as usize].status
    }

    /// Wakes one of them if it sleeps.
    pub(crate) fn ring_shard(&self, shard: u32) {
        self.ring(&self.ends[shard as usize]);
    }

    /// Wakes a shard if it sleeps and this process has not rung for that sleep yet: at most one
    /// system call a sleep.
    fn ring(&self, end: &End) {
        if self.is_abandoned() {
            return;
        }
        let rang = towpath_ring::ring_engine(&end.status, &end.rung, end.engine_bell.borrow());
        if let Some(wheel) = self.wheel().filter(|_| rang) {
            wheel.was_rung();
        }
    }

    /// The slot of a socket, or None when the engine gave it to another one meanwhile.
    #[inline]
    pub fn slot(&self, socket: Socket) -> Option<&Slot> {
        let slot = self.region.slot(socket.slot)?;
        (slot.generation.load(Ordering::Acquire) == socket.generation).then_some(slot)
    }

    /// The process whose attachment it is.
    #[inline]
    pub fn process(&self) -> &'static Process {
        self.process
    }

    /// How many processors the process may use.
    pub(crate) fn processors(&self) -> u32 {
        self.processors
    }

    /// The memory of the run: slots and FIFOs of all its processes' sockets.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// How the tokens of this run are known.
    pub fn run(&self) -> Run {
        self.run
    }

    /// The rings of this process: those of one shard each.
    #[inline]
    pub fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.ends.iter().map(|end| &end.channel)
    }

    /// The control socket: it becomes readable between calls only when the engine is gone.
    pub fn control(&self) -> &HighFd {
        &self.control
    }

    /// The socket to which the engine writes when this process sleeps and there is an event. The
    /// [reactor](crate::reactor) empties it now and then: full of rings that nobody took, it could
    /// not tell of a further one. Who waits for it to be readable, and not for a further ring, has
    /// to empty it.
    pub fn bell(&self) -> &HighFd {
        &self.bell
    }

    /// Whether the engine is gone, or hears this process no more. Without a system call: calls that
    /// do not wait may be all that a program makes.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) || self.has_ended() && self.set_dead()
    }

    #[inline]
    fn has_ended(&self) -> bool {
        // A process that one shard hears no more is heard by none, and shards end together.
        let end = &self.ends[0];
        end.status.has_ended(self.number) || towpath_ring::has_ended(&end.channel)
    }

    /// A futex word that changes, or is woken, when [`Self::is_dead`] becomes true, and what it is
    /// until then. None: a thread that sleeps on it would not be woken.
    pub(crate) fn life(&self) -> Option<(&AtomicU32, u32)> {
        self.ends[0].status.life(self.number)
    }

    /// The same by a system call, for where [`Self::is_dead`] says nothing of an engine that was
    /// killed: on kernels without robust lists.
    pub fn check_alive(&self) -> bool {
        if self.is_dead() || self.is_abandoned() {
            return false;
        }
        let mut byte = [MaybeUninit::uninit(); 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let gone = match recv(self.control.borrow(), &mut byte, flags) {
            Ok((_, received)) => received == 0,
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        };
        if gone {
            self.set_dead();
        }
        !gone
    }

    /// Whether this thread is in the midst of a command or a call: this is a signal handler, and
    /// the interrupted call would go on with both in a child, too, as if they were its own.
    pub fn is_in_midst(&self) -> bool {
        self.ends.iter().any(|end| end.commands.is_mine() || end.calls.is_mine())
    }

    /// In the child after fork: gives up the parent's control socket and doorbells. Otherwise the
    /// engine would not notice the parent's end. The memory stays mapped: references to it may live
    /// on the stack of the thread that forked. When that goes on with a call, on top of which a
    /// handler forked, it must not write into the parent's rings nor take its events, and requests
    /// fail with [`Error::Forked`].
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        let fds = [&self.control, &self.bell, &self.blank, &self.spare];
        let bells = self.ends.iter().map(|end| &end.engine_bell);
        for fd in fds.into_iter().chain(&self.lifeline).chain(bells) {
            fd.close();
        }
        if let Some(wheel) = self.wheel {
            wheel.forget();
        }
    }

    /// In a child that forks without the care of [`Self::clone_channel`]:
    /// [abandons](Self::abandon) the parent's attachment, and has every further call fail with
    /// [`Error::Dead`].
    pub fn disown(&self) {
        self.abandon();
        // The parent's threads sleep on the same words: they are not woken.
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Whether it was the parent's, and this is the child. See [`Self::abandon`].
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Notes that the engine is gone. Of the threads that sleep the kernel has woken one at most,
    /// so the first one that sees the engine's end wakes the others. True, always.
    #[cold]
    fn set_dead(&self) -> bool {
        if !self.dead.swap(true, Ordering::Relaxed) {
            self.ends[0].status.wake(self.number);
        }
        true
    }
}

/// Whether there is something to be received, or the other end is closed.
fn is_readable(control: BorrowedFd<'_>) -> bool {
    let mut byte = [MaybeUninit::uninit(); 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(recv(control, &mut byte, flags), Err(Errno::AGAIN | Errno::INTR))
}

/// The other end speaks another protocol: its answer lacks what ours has, or it is of another
/// build.
const PROTOCOL: Error = Error::Refused(Errno::PROTO.raw_os_error());

/// What leads to each shard. `channels` is the memory of all of them.
fn ends(
    process: &'static Process,
    statuses: Vec<Status>,
    channels: Fd,
    bells: Vec<Fd>,
) -> Result<Box<[End]>, Error> {
    let channels = Channel::map_all(channels.into_owned(), statuses.len() as u32);
    let channels = channels.map_err(not_mapped)?;
    for channel in &channels {
        let table = process.descriptors.address() as u64;
        channel.header().descriptors.store(table, Ordering::Relaxed);
    }
    let each = statuses.into_iter().zip(channels).zip(bells);
    let end = |((status, channel), engine_bell)| End {
        status,
        channel,
        engine_bell: HighFd::new(engine_bell, &process.descriptors),
        rung: Rung::default(),
        commands: Lock::new(()),
        calls: Lock::new(()),
        ahead: Ahead::default(),
    };
    Ok(each.map(end).collect())
}

/// Says hello, and what this process image was born with.
fn hello(control: &HighFd, held: &[Socket]) -> Result<(Reply, Vec<Fd>), Error> {
    const AT_ONCE: usize = DATA_MAX / 8;
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let mut left = held;
    loop {
        let (now, rest) = left.split_at(left.len().min(AT_ONCE));
        left = rest;
        let (a, b) = (pid, u32::from(!rest.is_empty()));
        let mut request = Request { call: call::HELLO, a, b, ..Request::default() };
        list(&mut request, now.iter().copied());
        let (reply, fds) = exchange(control, &request)?;
        if rest.is_empty() {
            return Ok((reply, fds));
        }
    }
}

/// Puts the (slot, generation) pairs of sockets into a request's data.
fn list(request: &mut Request, sockets: impl Iterator<Item = Socket>) {
    for (to, socket) in request.data.chunks_exact_mut(8).zip(sockets) {
        to[..4].copy_from_slice(&socket.slot.to_ne_bytes());
        to[4..].copy_from_slice(&socket.generation.to_ne_bytes());
        request.len += 8;
    }
}

/// One request before there is a client, and the descriptors of its reply.
fn exchange(control: &HighFd, request: &Request) -> Result<(Reply, Vec<Fd>), Error> {
    let mut fds = Vec::new();
    send_request(control, request)?;
    let reply = recv_reply(control, &mut fds)?;
    match reply.errno {
        0 if request.call == call::REGION && reply.a != VERSION => Err(PROTOCOL),
        0 => Ok((reply, fds)),
        errno => Err(Error::Refused(errno)),
    }
}

fn send_request(control: &HighFd, request: &Request) -> Result<(), Error> {
    loop {
        match send(control.borrow(), request.wire(), SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(_) => return Err(Error::Dead),
        }
    }
}

fn recv_reply(control: &HighFd, fds: &mut Vec<Fd>) -> Result<Reply, Error> {
    let mut bytes = [0; size_of::<Reply>()];
    // The answer with the most descriptors is that to TOKENS; the kernel closes those that there is
    // no room for.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let received = loop {
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg(control.borrow(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => {
                for part in ancillary.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = part {
                        fds.extend(rights.map(Fd::from));
                    }
                }
                break message.bytes;
            }
            Err(Errno::INTR) => {}
            Err(_) => return Err(Error::Dead),
        }
    };
    if received == 0 {
        return Err(Error::Dead);
    }
    Ok(Reply::from_bytes(&bytes[..received.min(size_of::<Reply>())]))
}

/// Memory of another build, or none to be had.
fn not_mapped(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::OutOfMemory => Error::Refused(Errno::NOMEM.raw_os_error()),
        _ => PROTOCOL,
    }
}

impl Cloned {
    /// For a new image: only the control socket is needed; it says hello on it.
    pub fn into_control(self) -> HighFd {
        self.control
    }
}

/// The control socket whose number stands in the environment.
///
/// # Safety
/// Nobody else owns that number.
pub unsafe fn control_from_number(number: i32) -> Option<Fd> {
    // SAFETY: borrowed for the time of a check only.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    let is_packet_socket =
        rustix::net::sockopt::socket_type(borrowed) == Ok(rustix::net::SocketType::SEQPACKET);
    // SAFETY: it is open, and the caller promises that it is nobody else's.
    is_packet_socket.then(|| unsafe { OwnedFd::from_raw_fd(borrowed.as_raw_fd()) }.into())
}
