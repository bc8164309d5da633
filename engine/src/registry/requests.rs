//! Handles requests on control sockets: those with descriptors, or about new processes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use towpath_shm::Fd;
use towpath_shm::control::{ControlReply, Request, TOKENS_MAX, call, purpose};
use towpath_shm::image::Outside;
use towpath_shm::layout::VERSION;
use towpath_shm::token;
use towpath_tcp::Instant;

use crate::errno::{EACCES, EAGAIN, EINVAL, ENOBUFS, EPROTO, Errno};
use crate::ids::ChannelId;
use crate::link::{ChannelLink, Given};
use crate::mail::{Newcomer, ShardCommand, ShardReport, Want};
use crate::registry::answer::{Answer, Passed};
use crate::registry::pending::{DescriptorRequest, Pending, WantOutcome};
use crate::registry::wire::{self, ControlMessage, Sent};
use crate::registry::{Registry, UninterceptedProgram, sys};

/// Maximum time for which a request waits until queued descriptors are closed, which normally takes
/// microseconds. If a program blocks the close, the request is refused, as if the descriptors were
/// in use.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
/// Time between two checks for free descriptors, while a request waits for them.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Registry {
    /// Reads a request from a process's control socket, if one was received.
    pub(crate) fn hear(&mut self, id: ChannelId) {
        let Some(process) = self.processes.get(id).filter(|process| !process.has_hung_up) else {
            return;
        };
        match wire::receive(process.control.as_fd()) {
            ControlMessage::Nothing => {}
            ControlMessage::End => self.end_elsewhere(id),
            ControlMessage::Descriptors(descriptors) => {
                self.close(id, descriptors);
                self.cut_off(id);
            }
            // The process has not waited for the reply to its previous request, which violates the
            // protocol.
            ControlMessage::Request(_) if process.pending.is_some() => self.cut_off(id),
            ControlMessage::Request(request) => {
                self.counters.requests += 1;
                self.asked(id, request);
            }
        }
    }

    /// Handles a new request. If too few descriptors are free, it waits until the shards have
    /// finished earlier work, which may free descriptors of ended processes. CLONE always waits, so
    /// that a rejected CLONE uses no ID.
    pub(crate) fn asked(&mut self, id: ChannelId, request: Box<Request>) {
        match request.call {
            call::CLONE => {
                let purpose = request.a;
                self.want(id, Pending::Settling(request), || Want::MayClone(purpose));
            }
            _ if self.has_room(self.needed(&request)) => self.begin(id, &request),
            _ => self.want(id, Pending::Settling(request), || Want::Nothing),
        }
    }

    /// Continues a request after the shards have finished all earlier work.
    pub(crate) fn settled(&mut self, now: Instant, id: ChannelId, request: Box<Request>) {
        if self.processes.get(id).is_none_or(|process| process.has_hung_up) {
            // The process has ended meanwhile, so send no reply.
            self.remove_ended(id);
        } else if !self.closer.is_busy() || self.has_room(self.needed(&request)) {
            self.begin(id, &request);
        } else if let Some(process) = self.processes.get_mut(id) {
            let until = now + CLOSED_WITHIN;
            process.pending = Some(Pending::Room(DescriptorRequest { request, until }));
            self.waiting.channels.push((until, id));
            self.waiting.look_at = Some(now + LOOK_AGAIN);
            self.counters.requests_waited += 1;
        }
    }

    /// Continues requests that wait for descriptors, if some are free now or the wait has timed
    /// out.
    pub(crate) fn answer_waiting(&mut self, now: Instant) {
        if self.waiting.look_at.is_none_or(|at| now < at) {
            return;
        }
        self.waiting.look_at = None;
        for (until, id) in std::mem::take(&mut self.waiting.channels) {
            let Some(process) = self.processes.get_mut(id) else { continue };
            let is_its = |it: &mut Pending| matches!(it, Pending::Room(it) if it.until == until);
            let Some(Pending::Room(asking)) = process.pending.take_if(is_its) else { continue };
            let done = !self.closer.is_busy() || now >= until;
            if done || self.has_room(self.needed(&asking.request)) {
                self.begin(id, &asking.request);
            } else if let Some(process) = self.processes.get_mut(id) {
                process.pending = Some(Pending::Room(asking));
                self.waiting.channels.push((until, id));
                self.waiting.look_at = Some(now + LOOK_AGAIN);
            }
        }
    }

    /// Answers a request at once, or sends it to the shards.
    pub(crate) fn begin(&mut self, id: ChannelId, request: &Request) {
        match request.call {
            call::REGION => {
                let answer = self.region();
                self.answer(id, answer);
            }
            call::HELLO if request.b != 0 => {
                let listed = handles(request);
                self.want(id, Pending::List, || Want::List(listed.clone()));
            }
            call::HELLO => match ChannelLink::new(false, self.shards() as u32) {
                Ok((links, given)) => {
                    let (pid, listed, mut links) = (request.a, handles(request), links.into_iter());
                    self.want(id, Pending::Hello(given), || {
                        let link = links.next().expect("one for each shard");
                        Want::Hello { pid, listed: listed.clone(), link }
                    });
                }
                Err(_) => self.answer(id, Err(Errno(ENOBUFS))),
            },
            call::CLONE => self.begin_clone(id, request.a),
            call::TOKENS => {
                let mut wanted = handles(request);
                wanted.truncate(TOKENS_MAX);
                let pending = Pending::Tokens(wanted.clone());
                self.want(id, pending, || Want::Tokens(wanted.clone()));
            }
            // Other requests must be written to the request slot in shared memory.
            _ => self.answer(id, Err(Errno(EPROTO))),
        }
    }

    /// Sends a process's request to all shards, and stores it in `pending` until all have answered.
    /// `want` is called once per shard, because the shards may get different links.
    pub(crate) fn want(&mut self, id: ChannelId, pending: Pending, mut want: impl FnMut() -> Want) {
        let due = self.shards();
        let Some(process) = self.processes.get_mut(id) else { return };
        process.pending = Some(pending);
        process.verdict = WantOutcome { due, ..WantOutcome::default() };
        self.tell_all(|| ShardCommand::For(id, Box::new(want())));
    }

    fn begin_clone(&mut self, id: ChannelId, wanted: u32) {
        match self.clone_process(id, wanted) {
            Ok((newcomer, control, links, given)) => {
                let (clone, mut links) = (newcomer.id, links.into_iter());
                self.want(id, Pending::Clone { control, given, clone }, || {
                    let link = links.next().expect("one for each shard");
                    Want::Clone { purpose: wanted, clone: newcomer.clone(), link }
                });
            }
            Err(errno) => {
                self.counters.channels_refused += 1;
                self.want(id, Pending::NoClone, || Want::NoClone(errno));
            }
        }
    }

    fn clone_process(
        &mut self,
        id: ChannelId,
        wanted: u32,
    ) -> Result<(Newcomer, Fd, Vec<ChannelLink>, Given), Errno> {
        // Too many processes use the engine. Fail with EAGAIN, like fork(2).
        let full = Errno(EAGAIN);
        let process = self.processes.get(id).ok_or(Errno(EPROTO))?;
        let family = process.family;
        if self.closer.is_clogged(process.closes_as) || !self.has_room_for_a_channel() {
            return Err(full);
        }
        // exec(2) does not change the family, because the process stays the same.
        let family = match wanted {
            purpose::EXEC => family,
            _ => Some(self.processes.family_of_clones(family)),
        };
        // The child must first check all its sockets: earlier events of inherited epoll sets were
        // sent to its parent only.
        let (links, given) = ChannelLink::new(true, self.shards() as u32).map_err(|_| full)?;
        match self.open(family) {
            Ok((newcomer, control)) => Ok((newcomer, control, links, given)),
            Err(_) => {
                links.into_iter().for_each(|link| self.close_shared(id, link.into_notifiers()));
                self.close_given(id, given);
                Err(full)
            }
        }
    }

    /// Handles a report of a shard.
    pub(crate) fn heed(&mut self, notice: ShardReport) {
        match notice {
            ShardReport::Done(id, held) => self.settle(id, held, None),
            ShardReport::Refused(id, errno, want) => {
                self.take_back(id, want);
                self.settle(id, 0, Some(errno));
            }
            ShardReport::Asks(id, number, pid, request) => {
                let reply = self.outside(pid, &request).unwrap_or_else(Errno::refusal);
                self.orders[0].push(ShardCommand::Answer(id, number, Box::new(reply)));
            }
            ShardReport::Unlinked(id, bells) => self.close_shared(id, bells),
            ShardReport::CutOff(id) => self.end_elsewhere(id),
            ShardReport::Ended(id, life) => {
                drop(life);
                self.end_part(id);
            }
            ShardReport::Answered(answer) => answer.deliver(),
            ShardReport::Settled => self.on_settled(),
            ShardReport::Left(number) => self.has_left(number),
            ShardReport::Failed => self.stop(),
            ShardReport::Finished => {}
        }
    }

    /// Records that a shard has sent all remaining data. Ignores a report with an old number: a
    /// process has attached since then.
    fn has_left(&mut self, number: u64) {
        let Some(leaving) = self.leaving.as_mut().filter(|it| it.number == number) else { return };
        leaving.due -= 1;
        if leaving.due == 0 {
            self.stop();
        }
    }

    /// Records a shard's result for a process's request. When the last shard has reported, sends
    /// the reply.
    fn settle(&mut self, id: ChannelId, held: u64, refused: Option<Errno>) {
        let Some(process) = self.processes.get_mut(id) else { return };
        let verdict = &mut process.verdict;
        verdict.held |= held;
        verdict.refused = verdict.refused.or(refused);
        verdict.due -= 1;
        if verdict.due > 0 {
            return;
        }
        let verdict = std::mem::take(verdict);
        let Some(pending) = process.pending.take() else { return };
        let answer = match (verdict.refused, pending) {
            (None, Pending::Settling(request)) => {
                return self.settled(self.clock.now(), id, request);
            }
            (None, pending) => self.done(id, pending, verdict.held),
            (Some(errno), pending) => {
                self.give_up(id, pending);
                Err(errno)
            }
        };
        self.answer(id, answer);
        self.remove_ended(id);
    }

    /// Returns the reply to a request that all shards have executed.
    fn done(&mut self, id: ChannelId, pending: Pending, held: u64) -> Answer {
        match pending {
            Pending::Settling(_) | Pending::Room(_) | Pending::NoClone => Err(Errno(EPROTO)),
            Pending::List => Ok((ControlReply::default(), Vec::new())),
            Pending::Hello(given) => Ok(self.welcome(id, given)),
            Pending::Clone { control, given, clone } => {
                self.counters.attached += 1;
                let reply = ControlReply { b: clone.number(), ..ControlReply::default() };
                let mut passed = vec![
                    Passed::Own(control),
                    Passed::Memory(given.channel),
                    Passed::Own(given.doorbell),
                ];
                passed.extend(given.engine_bells.into_iter().map(Passed::Shared));
                Ok((reply, passed))
            }
            Pending::Tokens(handles) => self.tokens(&handles, held),
        }
    }

    /// Cleans up after a rejected request. If some shards have created a channel (connection to the
    /// engine) for a new process, the channel ends when its control socket is closed.
    fn give_up(&mut self, id: ChannelId, pending: Pending) {
        match pending {
            Pending::Hello(given) => self.close_given(id, given),
            Pending::Clone { control, given, .. } => {
                self.close(id, [control]);
                self.close_given(id, given);
            }
            Pending::Settling(request) if request.call == call::CLONE => {
                self.counters.channels_refused += 1;
            }
            _ => {}
        }
    }

    fn welcome(&self, id: ChannelId, given: Given) -> (ControlReply, Vec<Passed>) {
        let (b, slot) = (id.number(), self.shards() as u32);
        let reply = ControlReply { a: VERSION, b, slot, ..ControlReply::default() };
        let mut passed = vec![
            Passed::Region,
            Passed::Status,
            Passed::Memory(given.channel),
            Passed::Own(given.doorbell),
            Passed::Blank,
        ];
        passed.extend(given.engine_bells.into_iter().map(Passed::Shared));
        passed.extend(self.lifeline.is_some().then_some(Passed::Lifeline));
        (reply, passed)
    }

    /// Closes the descriptors of a request that a shard has not used.
    fn take_back(&mut self, id: ChannelId, want: Option<Box<Want>>) {
        match want.map(|want| *want) {
            Some(Want::Hello { link, .. }) => self.close_shared(id, link.into_notifiers()),
            Some(Want::Clone { clone: Newcomer { id: clone, life, .. }, link, .. }) => {
                self.close_shared(clone, link.into_notifiers());
                drop(life);
                self.end_part(clone);
            }
            _ => {}
        }
    }

    /// Drops references to shared descriptors. Dropping the last reference closes the descriptor.
    fn close_shared(&self, id: ChannelId, descriptors: impl IntoIterator<Item = Arc<Fd>>) {
        self.close(id, descriptors.into_iter().filter_map(Arc::into_inner));
    }

    fn close_given(&self, id: ChannelId, given: Given) {
        self.close_shared(id, given.engine_bells);
        self.close(id, [given.doorbell]);
    }

    /// Creates tokens (kernel descriptors with names) for the sockets of `handles` whose bit is set
    /// in `held`.
    fn tokens(&mut self, handles: &[(u32, u32)], held: u64) -> Answer {
        let (mut reply, mut tokens) = (ControlReply::default(), Vec::new());
        for (n, &(slot, generation)) in (0..).zip(handles) {
            if held & 1 << n != 0 {
                let run = self.domain.run;
                match token::named(token::Name { run, slot, generation }) {
                    Ok(token) => tokens.push(Passed::Own(token)),
                    Err(_) if n == 0 => return Err(Errno(ENOBUFS)),
                    // If no descriptors are left, return fewer tokens.
                    Err(_) => break,
                }
                reply.b |= 1 << n;
            }
            reply.a = n + 1;
        }
        if reply.a == 0 { Err(Errno(EINVAL)) } else { Ok((reply, tokens)) }
    }

    /// Handles the announcement of a process that it will execute a program which uses the kernel's
    /// sockets.
    fn outside(&mut self, pid: u32, request: &Request) -> Result<ControlReply, Errno> {
        let why = Outside::from_number(request.a).ok_or(Errno(EINVAL))?;
        self.counters.outsiders += 1;
        let outsider = UninterceptedProgram { pid, path: request.payload(), why };
        let allowed = self.gatekeeper.as_mut().is_none_or(|may_pass| may_pass(outsider));
        if allowed { Ok(ControlReply::default()) } else { Err(Errno(EACCES)) }
    }

    fn region(&self) -> Answer {
        let run = self.domain.run.to_bytes();
        let mut reply =
            ControlReply { a: VERSION, len: run.len() as u32, ..ControlReply::default() };
        reply.data[..run.len()].copy_from_slice(&run);
        Ok((reply, vec![Passed::Region]))
    }

    /// Sends a reply on a process's control socket. If the socket is full, cuts the process off,
    /// because it does not read.
    fn answer(&mut self, id: ChannelId, answer: Answer) {
        let (reply, passed) = answer.unwrap_or_else(|errno| (errno.refusal(), Vec::new()));
        let Some(process) = self.processes.get(id) else { return };
        let (hears, control) = (!process.has_hung_up, process.control.as_fd());
        let sent = if hears { self.send(control, &reply, &passed) } else { Sent::Yes };
        // Close these descriptors on another thread: if the program has already closed its
        // duplicates, this close may block.
        let own = passed.into_iter().filter_map(|passed| match passed {
            Passed::Own(fd) => Some(fd),
            Passed::Shared(fd) => Arc::into_inner(fd),
            _ => None,
        });
        self.close(id, own);
        match sent {
            Sent::Yes | Sent::TooMany => {}
            Sent::NotTaken => self.cut_off(id),
            Sent::Gone => self.end_elsewhere(id),
        }
    }

    fn send(&self, control: BorrowedFd<'_>, answer: &ControlReply, passed: &[Passed]) -> Sent {
        // Send no further descriptors while the program has not received the previous reply. Linux
        // limits the descriptors in flight for all processes of the engine's user together. A
        // well-behaved program receives a reply before its next request.
        if !passed.is_empty() && sys::has_unreceived(control) {
            return Sent::NotTaken;
        }
        let fds: Option<Vec<_>> = passed.iter().map(|passed| self.descriptor(passed)).collect();
        match fds {
            None => wire::reply(control, &Errno(EPROTO).refusal(), &[]),
            Some(fds) => match wire::reply(control, answer, &fds) {
                Sent::TooMany => wire::reply(control, &Errno(EAGAIN).refusal(), &[]),
                sent => sent,
            },
        }
    }

    /// Returns the descriptor to send. `None` if it no longer exists.
    fn descriptor<'a>(&'a self, passed: &'a Passed) -> Option<BorrowedFd<'a>> {
        let descriptor = match passed {
            Passed::Region => self.domain.region.mapping().file()?,
            Passed::Status => &self.status,
            Passed::Blank => &self.blank,
            Passed::Lifeline => self.lifeline.as_ref()?,
            Passed::Memory(channel) => channel.mapping().file()?,
            Passed::Shared(fd) => fd.as_ref(),
            Passed::Own(fd) => fd,
        };
        Some(descriptor.as_fd())
    }
}

/// Parses the list of sockets in a request's data: pairs of slot and generation.
fn handles(request: &Request) -> Vec<(u32, u32)> {
    let word = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    request.payload().chunks_exact(8).map(|pair| (word(pair), word(&pair[4..]))).collect()
}
