//! What processes ask on their control sockets: what descriptors go with, and how processes make others.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use towpath_shm::control::{Reply, Request, TOKENS_MAX, call, purpose};
use towpath_shm::image::Outside;
use towpath_shm::layout::VERSION;
use towpath_shm::token;
use towpath_tcp::Instant;

use crate::errno::{EACCES, EAGAIN, EINVAL, ENOBUFS, EPROTO, Errno};
use crate::ids::ChannelId;
use crate::link::{Given, Link};
use crate::mail::{Notice, Order, Want};
use crate::registry::answer::{Answer, Passed};
use crate::registry::pending::Pending;
use crate::registry::wire::{self, Received, Sent};
use crate::registry::{Outsider, Registry, sys};

impl Registry {
    /// Reads a request, if there is one.
    pub(crate) fn hear(&mut self, now: Instant, id: ChannelId) {
        let Some(process) = self.get(id).filter(|process| !process.has_hung_up) else { return };
        match wire::receive(process.control.as_fd()) {
            Received::Nothing => {}
            Received::End => {
                self.hang_up(id);
                self.orders.push(Order::Gone(id));
            }
            Received::Descriptors(descriptors) => {
                self.close(id, descriptors);
                self.cut_off(id);
            }
            // It does not wait for its answer.
            Received::Request(_) if process.pending.is_some() => self.cut_off(id),
            Received::Request(request) => {
                self.counters.requests += 1;
                self.asked(now, id, request);
            }
        }
    }

    /// Answers a request, or begins to deal with it.
    pub(crate) fn begin(&mut self, id: ChannelId, request: &Request) {
        match request.call {
            call::REGION => {
                let answer = self.region();
                self.answer(id, answer);
            }
            call::HELLO if request.b != 0 => {
                self.want(id, Pending::List, Want::List(handles(request)));
            }
            call::HELLO => match Link::new(false) {
                Ok((link, given)) => {
                    let (pid, listed) = (request.a, handles(request));
                    self.want(id, Pending::Hello(given), Want::Hello { pid, listed, link });
                }
                Err(_) => self.answer(id, Err(Errno(ENOBUFS))),
            },
            call::CLONE => self.begin_clone(id, request.a),
            call::TOKENS => {
                let mut handles = handles(request);
                handles.truncate(TOKENS_MAX);
                self.want(id, Pending::Tokens(handles.clone()), Want::Tokens(handles));
            }
            // It goes through the cell.
            _ => self.answer(id, Err(Errno(EPROTO))),
        }
    }

    fn want(&mut self, id: ChannelId, pending: Pending, want: Want) {
        let Some(process) = self.get_mut(id) else { return };
        process.pending = Some(pending);
        self.orders.push(Order::For(id, Box::new(want)));
    }

    fn begin_clone(&mut self, id: ChannelId, purpose: u32) {
        match self.clone_process(id, purpose) {
            Ok((pending, want)) => self.want(id, pending, want),
            Err(errno) => {
                self.counters.channels_refused += 1;
                self.want(id, Pending::NoClone, Want::NoClone(errno));
            }
        }
    }

    fn clone_process(&mut self, id: ChannelId, wanted: u32) -> Result<(Pending, Want), Errno> {
        // fork(2) says it of too many processes.
        let full = Errno(EAGAIN);
        let process = self.get(id).ok_or(Errno(EPROTO))?;
        let family = process.family;
        if self.closer.is_clogged(process.closes_as) || !self.has_room_for_a_channel() {
            return Err(full);
        }
        // exec(2): the same process goes on, with another program.
        let family = match wanted {
            purpose::EXEC => family,
            _ => Some(self.family_of_clones(family)),
        };
        let (newcomer, control) = self.open(family).map_err(|_| full)?;
        let clone = newcomer.id;
        // The child inherits epoll sets whose events went to its parent: it looks at everything.
        let Ok((link, given)) = Link::new(true) else {
            self.close(clone, [control]);
            drop(newcomer);
            self.remove(clone);
            return Err(full);
        };
        let want = Want::Clone { purpose: wanted, clone: newcomer, link };
        Ok((Pending::Clone { control, given, clone }, want))
    }

    /// What the shard says.
    pub(crate) fn heed(&mut self, notice: Notice) {
        match notice {
            Notice::Done(id, held) => {
                let answer = self.done(id, held);
                self.end_pending(id, answer);
            }
            Notice::Refused(id, errno, want) => {
                self.take_back(id, want);
                self.end_pending(id, Err(errno));
            }
            Notice::Asks(id, pid, request) => {
                let reply = self.outside(pid, &request).unwrap_or_else(Errno::refusal);
                self.orders.push(Order::Answer(id, Box::new(reply)));
            }
            Notice::Unlinked(id, bells) => {
                self.close(id, bells.into_iter().filter_map(Arc::into_inner));
            }
            Notice::Ended(id, life) => {
                drop(life);
                self.hang_up(id);
                match self.get_mut(id) {
                    // The shard has said nothing of that yet.
                    Some(process) if process.pending.is_some() => process.has_ended = true,
                    _ => self.remove(id),
                }
            }
            Notice::Told(number, told) => self.told(number, told),
            Notice::Left if self.len() == 0 => self.stop(),
            // There are processes again: the shard will be told when they have gone.
            Notice::Left | Notice::Finished => {}
        }
    }

    /// The answer to what a process wanted, which is done.
    fn done(&mut self, id: ChannelId, held: u64) -> Answer {
        let pending = self.get_mut(id).and_then(|process| process.pending.take());
        match pending.ok_or(Errno(EPROTO))? {
            Pending::Room(_) | Pending::NoClone => Err(Errno(EPROTO)),
            Pending::List => Ok((Reply::default(), Vec::new())),
            Pending::Hello(given) => Ok(self.welcome(id, given)),
            Pending::Clone { control, given, clone } => {
                let reply = Reply { b: clone.number(), ..Reply::default() };
                let passed = vec![
                    Passed::Own(control),
                    Passed::Memory(given.channel),
                    Passed::Shared(given.engine_bell),
                    Passed::Own(given.doorbell),
                ];
                Ok((reply, passed))
            }
            Pending::Tokens(handles) => self.tokens(&handles, held),
        }
    }

    fn welcome(&self, id: ChannelId, given: Given) -> (Reply, Vec<Passed>) {
        let reply = Reply { a: VERSION, b: id.number(), ..Reply::default() };
        let mut passed = vec![
            Passed::Region,
            Passed::Status,
            Passed::Memory(given.channel),
            Passed::Shared(given.engine_bell),
            Passed::Own(given.doorbell),
            Passed::Blank,
        ];
        passed.extend(self.lifeline.is_some().then_some(Passed::Lifeline));
        (reply, passed)
    }

    /// What a process wanted is refused, or nobody waits for it: what was made for that goes.
    fn take_back(&mut self, id: ChannelId, want: Option<Box<Want>>) {
        match want.map(|want| *want) {
            Some(Want::Hello { link, .. }) => {
                self.close(id, link.into_bells().into_iter().filter_map(Arc::into_inner));
            }
            Some(Want::Clone { clone, link, .. }) => {
                let clone_id = clone.id;
                drop(clone);
                self.close(clone_id, link.into_bells().into_iter().filter_map(Arc::into_inner));
                self.remove(clone_id);
            }
            _ => {}
        }
        match self.get_mut(id).and_then(|process| process.pending.take()) {
            Some(Pending::Hello(given)) => self.close_given(id, given),
            Some(Pending::Clone { control, given, .. }) => {
                self.close(id, [control]);
                self.close_given(id, given);
            }
            _ => {}
        }
    }

    fn close_given(&mut self, id: ChannelId, given: Given) {
        self.close(id, Arc::into_inner(given.engine_bell).into_iter().chain([given.doorbell]));
    }

    /// The shard has done its part: the process has no request now.
    fn end_pending(&mut self, id: ChannelId, answer: Answer) {
        self.answer(id, answer);
        if self.get(id).is_some_and(|process| process.has_ended) {
            self.remove(id);
        }
    }

    /// Descriptors with the names of those sockets that the process holds.
    fn tokens(&mut self, handles: &[(u32, u32)], held: u64) -> Answer {
        let (mut reply, mut tokens) = (Reply::default(), Vec::new());
        for (n, &(slot, generation)) in (0..).zip(handles) {
            if held & 1 << n != 0 {
                let run = self.domain.run;
                match token::named(token::Name { run, slot, generation }) {
                    Ok(token) => tokens.push(Passed::Own(token)),
                    Err(_) if n == 0 => return Err(Errno(ENOBUFS)),
                    // There are no descriptors left for more at once.
                    Err(_) => break,
                }
                reply.b |= 1 << n;
            }
            reply.a = n + 1;
        }
        if reply.a == 0 { Err(Errno(EINVAL)) } else { Ok((reply, tokens)) }
    }

    /// A process says that it executes a program whose sockets will be the kernel's.
    fn outside(&mut self, pid: u32, request: &Request) -> Result<Reply, Errno> {
        let why = Outside::from_number(request.a).ok_or(Errno(EINVAL))?;
        self.counters.outsiders += 1;
        let outsider = Outsider { pid, path: request.payload(), why };
        let allowed = self.gatekeeper.as_mut().is_none_or(|may_pass| may_pass(outsider));
        if allowed { Ok(Reply::default()) } else { Err(Errno(EACCES)) }
    }

    fn region(&self) -> Answer {
        let run = self.domain.run.to_bytes();
        let mut reply = Reply { a: VERSION, len: run.len() as u32, ..Reply::default() };
        reply.data[..run.len()].copy_from_slice(&run);
        Ok((reply, vec![Passed::Region]))
    }

    /// Sends an answer. Who does not take it is cut off.
    fn answer(&mut self, id: ChannelId, answer: Answer) {
        let (reply, passed) = answer.unwrap_or_else(|errno| (errno.refusal(), Vec::new()));
        let Some(process) = self.get(id) else { return };
        let (hears, control) = (!process.has_hung_up, process.control.as_fd());
        let is_sent = !hears || self.send(control, &reply, &passed);
        // The program may have received, used and closed them by now: then this is the last close.
        let own = passed.into_iter().filter_map(|passed| match passed {
            Passed::Own(fd) => Some(fd),
            Passed::Shared(fd) => Arc::into_inner(fd),
            _ => None,
        });
        self.close(id, own);
        if !is_sent {
            self.cut_off(id);
        }
    }

    /// False: the process does not take it.
    fn send(&self, control: BorrowedFd<'_>, answer: &Reply, passed: &[Passed]) -> bool {
        // How many descriptors may be on their way is limited for all processes of the engine's user
        // together. A program that asks for them takes them before it asks again.
        if !passed.is_empty() && sys::has_unreceived(control) {
            return false;
        }
        let fds: Option<Vec<_>> = passed.iter().map(|passed| self.descriptor(passed)).collect();
        let sent = match fds {
            None => wire::reply(control, &Errno(EPROTO).refusal(), &[]),
            Some(fds) => match wire::reply(control, answer, &fds) {
                Sent::TooMany => wire::reply(control, &Errno(EAGAIN).refusal(), &[]),
                sent => sent,
            },
        };
        sent == Sent::Yes
    }

    /// None: there is no such thing.
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

/// The (slot, generation) pairs in a request's data.
fn handles(request: &Request) -> Vec<(u32, u32)> {
    let word = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    request.payload().chunks_exact(8).map(|pair| (word(pair), word(&pair[4..]))).collect()
}
