//! What programs ask: which of it is about sockets, and so the [shard](crate::shard)'s to answer, what is about
//! processes; and how answers go back.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_shm::control::{DATA_MAX, Reply, Request, TOKENS_MAX, call, goes_by_socket};
use towpath_shm::image::Outside;
use towpath_shm::layout::{Command, Plain, RawAddr, VERSION};
use towpath_shm::token;
use towpath_tcp::Instant;

use crate::answer::{Answer, Passed};
use crate::engine::Engine;
use crate::errno::{EACCES, EAGAIN, EINVAL, ENOBUFS, EPROTO, Errno};
use crate::ids::ChannelId;
use crate::registry::Outsider;
use crate::report::TOKEN;
use crate::requests::By;
use crate::sys;
use crate::wire::{self, Sent};

/// Slots that one SOCKETS looks at: a look costs some ns.
const SLOTS_A_REQUEST: u32 = 4096;

/// The answer to a request that is refused.
fn refused(Errno(errno): Errno) -> Reply {
    Reply { errno, ..Reply::default() }
}

impl Engine {
    /// Answers a request on the control socket, or begins to deal with one that is answered later. False: the process
    /// does not take the answer.
    pub(crate) fn answer(&mut self, now: Instant, id: ChannelId, request: &Request) -> bool {
        let answer = self.handle(now, id, By::Socket, request);
        answer.is_none_or(|answer| self.send_answer(id, By::Socket, answer))
    }

    /// False: the process does not take it.
    pub(crate) fn send_answer(&mut self, id: ChannelId, by: By, answer: Answer) -> bool {
        let (reply, fds) = answer.unwrap_or_else(|errno| (refused(errno), Vec::new()));
        if by == By::Socket {
            return self.send(id, &reply, fds);
        }
        debug_assert!(fds.is_empty(), "they go by the socket");
        if let Some(link) = self.shard.host.channels.get_mut(id).and_then(|it| it.link.as_mut()) {
            link.ring.answer(&reply);
        }
        true
    }

    fn send(&mut self, id: ChannelId, answer: &Reply, fds: Vec<Passed>) -> bool {
        let Some(process) = self.registry.get(id) else { return true };
        let (control, whose) = (process.control.as_fd(), process.closes_as);
        // How many descriptors may be on their way is limited for all processes of the engine's user
        // together. A program that asks for them takes them before it asks again.
        let greedy = !fds.is_empty() && sys::has_unreceived(control);
        let borrowed: Option<Vec<_>> = fds.iter().map(|passed| self.descriptor(passed)).collect();
        let reply = |reply: &Reply, fds: &[BorrowedFd<'_>]| wire::reply(control, reply, fds);
        let sent = match borrowed {
            None => reply(&refused(Errno(EPROTO)), &[]),
            Some(_) if greedy => Sent::No,
            Some(borrowed) => match reply(answer, &borrowed) {
                Sent::TooMany => reply(&refused(Errno(EAGAIN)), &[]),
                sent => sent,
            },
        };
        // The program may have received, used and closed them by now: then this is the last close.
        for passed in fds {
            if let Passed::Own(fd) = passed {
                self.registry.closer.close(whose, [fd]);
            }
        }
        sent == Sent::Yes
    }

    /// None: there is no such thing (any more).
    fn descriptor<'a>(&'a self, passed: &'a Passed) -> Option<BorrowedFd<'a>> {
        let link = |id: ChannelId| self.shard.host.channels.get(id)?.link.as_ref();
        let descriptor = match passed {
            Passed::Region => self.shard.host.region.mapping().file()?,
            Passed::Status => self.shard.status.file()?,
            Passed::Blank => &self.registry.blank,
            Passed::Lifeline => self.registry.lifeline.as_ref()?,
            Passed::Memory(id) => link(*id)?.ring.channel().mapping().file()?,
            Passed::EngineBell(id) => &link(*id)?.engine_bell,
            Passed::Own(fd) => fd,
        };
        Some(descriptor.as_fd())
    }

    /// None: it is answered when its last portion is done.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        id: ChannelId,
        by: By,
        request: &Request,
    ) -> Option<Answer> {
        let has_link =
            self.shard.host.channels.get(id).is_some_and(|attached| attached.link.is_some());
        match request.call {
            number if by == By::Cell && goes_by_socket(number) => Some(Err(Errno(EPROTO))),
            call::HELLO => self.hello(now, id, request),
            call::REGION => Some(self.region()),
            _ if !has_link => Some(Err(Errno(EPROTO))),
            call::CLONE => self.clone_channel(now, id, request.a).err().map(Err),
            _ => Some(self.handle_at_once(now, id, request)),
        }
    }

    fn handle_at_once(&mut self, now: Instant, id: ChannelId, request: &Request) -> Answer {
        let plain = |reply| Ok((reply, Vec::new()));
        match request.call {
            call::RESOLVER => plain(self.resolver()),
            call::COMMAND => {
                self.command(now, id, &Command::from_bytes(request.payload()));
                plain(Reply::default())
            }
            call::SOCKETS => plain(self.list_sockets(request.a)),
            call::OUTSIDE => plain(self.outside(id, request)?),
            call::TOKENS => self.tokens(id, request),
            _ => plain(self.shard.handle(now, id, request)?),
        }
    }

    /// None: it is answered when the locks of the image before are free.
    fn hello(&mut self, now: Instant, id: ChannelId, request: &Request) -> Option<Answer> {
        self.registry.get_mut(id)?.pid = request.a;
        for (slot, generation) in handles(request) {
            self.list(id, slot, generation);
        }
        if request.b != 0 {
            return Some(Ok((Reply::default(), Vec::new())));
        }
        self.no_more_a_clone(id);
        // Fresh rings: whatever the old image left half done in its own is forgotten with them.
        let Ok(bell) = self.link(id, false) else { return Some(Err(Errno(ENOBUFS))) };
        self.begin_image(now, id, bell);
        None
    }

    /// Descriptors with the names of sockets.
    fn tokens(&mut self, id: ChannelId, request: &Request) -> Answer {
        let (mut reply, mut tokens) = (Reply::default(), Vec::new());
        for (n, (slot, generation)) in (0..).zip(handles(request).take(TOKENS_MAX)) {
            let is_its = self.shard.host.slots.find(slot, generation).is_some()
                && self.shard.is_held(id, slot);
            if is_its {
                self.shard.host.counters.work(TOKEN);
                let run = self.registry.run;
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
    fn outside(&mut self, id: ChannelId, request: &Request) -> Result<Reply, Errno> {
        let why = Outside::from_number(request.a).ok_or(Errno(EINVAL))?;
        let pid = self.registry.get(id).map_or(0, |process| process.pid);
        self.shard.host.counters.outsiders += 1;
        let outsider = Outsider { pid, path: request.payload(), why };
        let allowed = self.registry.gatekeeper.as_mut().is_none_or(|may_pass| may_pass(outsider));
        if allowed { Ok(Reply::default()) } else { Err(Errno(EACCES)) }
    }

    fn region(&self) -> Answer {
        let run = self.registry.run.to_bytes();
        let mut reply = Reply { a: VERSION, len: run.len() as u32, ..Reply::default() };
        reply.data[..run.len()].copy_from_slice(&run);
        Ok((reply, vec![Passed::Region]))
    }

    fn resolver(&self) -> Reply {
        self.registry.resolver.map_or_else(Reply::default, |resolver| Reply {
            a: resolver.only_loopback.into(),
            addr: RawAddr::new(SocketAddr::new(resolver.address, 0)),
            ..Reply::default()
        })
    }

    /// As many sockets as fit, from `first` on. Where there are few it may be none, with more beyond.
    fn list_sockets(&mut self, first: u32) -> Reply {
        let mut reply = Reply::default();
        let mut lines = Vec::new();
        let end = first.saturating_add(SLOTS_A_REQUEST).min(self.shard.host.slots.end());
        if end < self.shard.host.slots.end() {
            reply.a = end;
        }
        for slot in first..end {
            self.shard.host.counters.slots_listed += 1;
            self.shard.host.counters.work(1);
            let Some(entry) = self.shard.host.slots.get(slot) else { continue };
            let mut shown = self.show(slot, entry);
            // A message has room for a line with one.
            shown.pids.truncate(1);
            let line = serde_json::to_vec(&shown).unwrap_or_default();
            if lines.len() + line.len() + 1 > DATA_MAX {
                reply.a = slot;
                break;
            }
            lines.extend_from_slice(&line);
            lines.push(b'\n');
        }
        reply.len = lines.len() as u32;
        reply.data[..lines.len()].copy_from_slice(&lines);
        reply
    }
}

/// The (slot, generation) pairs in a request's data.
fn handles(request: &Request) -> impl Iterator<Item = (u32, u32)> {
    let word = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    request.payload().chunks_exact(8).map(move |pair| (word(pair), word(&pair[4..])))
}
