//! Requests to the engine, and what has to be dealt with before they are answered.
//!
//! What the process itself said before it asked comes first, always: its commands are read before its request.
//!
//! It may know what other processes did before, too: one of them has ended and was waited for, or it closed a socket
//! and said so. Where the answer has to reflect that, as on Linux, where it is done when the call returns, requests
//! are taken in rounds: when a round begins, the end of each command ring is marked, and
//! the sockets that are ending are counted; the round is answered when all rings have been read up to their
//! marks and all of those ends are done. Both go on in portions, so that a request waits for what others said
//! before, and no connection waits for it. Commands that arrive later belong to the next round, so that a
//! request waits for a bounded amount of work.
//!
//! Most answers need no round ([`Engine::depends_on_others`]). What others have said and was not read can only give
//! something up that a request wants, a port for one: the request is tried, and waits for a round when it fails.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use towpath_shm::control::{Request, call};
use towpath_tcp::Instant;

use crate::channels::ChannelId;
use crate::engine::Engine;
use crate::errno::{EADDRINUSE, EADDRNOTAVAIL, EAGAIN, ENOBUFS, Errno};
use crate::report::{LOOK, REQUEST};
use crate::wire::{self, Received};

/// Steps of work for answers in one turn: some 100 µs, or one request that takes longer.
const WORK_A_TURN: u64 = 1024;

/// The source of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A process.
    Process(ChannelId),
    /// Another thread of this process: `towpath ss`, for one.
    Remote,
}

/// Sources of requests that have not been answered, each of them once.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Processes that may have asked, and whose commands have been read. Some may be in it twice.
    heard: VecDeque<ChannelId>,
    /// Those of this round.
    now: VecDeque<Asker>,
    /// Those that came after this round began.
    next: VecDeque<Asker>,
    /// What [`Ends::begun`](crate::ends::Ends::begun) was when this round began: the number of ends that have to be
    /// done before it is answered.
    ends: u64,
    /// [`Asker::Remote`] is in `now` or `next`.
    remote: bool,
}

impl Rounds {
    pub fn is_empty(&self) -> bool {
        self.heard.is_empty() && self.now.is_empty() && self.next.is_empty()
    }
}

impl Engine {
    /// Somebody asks.
    pub(crate) fn note_asker(&mut self, asker: Asker) {
        let asks = match asker {
            Asker::Remote => &mut self.rounds.remote,
            Asker::Process(id) => match self.host.channels.get_mut(id) {
                Some(attached) => &mut attached.asks,
                None => return,
            },
        };
        if !std::mem::replace(asks, true) {
            self.rounds.next.push_back(asker);
        }
    }

    /// A process may have asked. `is_read`: its command ring was found empty since.
    pub(crate) fn note_request(&mut self, id: ChannelId, is_read: bool) {
        if is_read {
            self.rounds.heard.push_back(id);
        } else {
            self.note_asker(Asker::Process(id));
        }
    }

    /// Answers those whose time has come.
    pub(crate) fn answer_askers(&mut self, now: Instant) {
        if self.rounds.is_empty() {
            return;
        }
        let before = self.host.counters.work;
        while self.host.counters.work - before < WORK_A_TURN
            && let Some(id) = self.rounds.heard.pop_front()
        {
            self.hear(now, id);
        }
        if self.rounds.now.is_empty() {
            if self.rounds.next.is_empty() {
                return;
            }
            std::mem::swap(&mut self.rounds.now, &mut self.rounds.next);
            self.host.channels.mark();
            self.rounds.ends = self.ends.begun();
            self.drain_marked(now);
        }
        if self.ends.done() < self.rounds.ends || self.host.channels.are_behind_marks() {
            return;
        }
        let before = self.host.counters.work;
        while self.host.counters.work - before < WORK_A_TURN
            && let Some(asker) = self.rounds.now.pop_front()
        {
            self.answer_asker(now, asker);
        }
    }

    fn answer_asker(&mut self, now: Instant, asker: Asker) {
        match asker {
            // A turn of the stack first, so that a listing of sockets shows bytes that programs wrote before it.
            Asker::Remote => {
                self.rounds.remote = false;
                self.turn(now);
                self.grant_wishes();
            }
            Asker::Process(id) => {
                let Some(attached) = self.host.channels.get_mut(id) else { return };
                attached.asks = false;
                if attached.has_ended {
                    return;
                }
                let request = attached.request.take();
                if let Some(request) = request.or_else(|| self.receive(now, id)) {
                    self.asked(now, id, request);
                }
            }
        }
    }

    /// Reads a request and answers it, unless it has to wait for a round. One request: the next may have been made
    /// since we looked at what else had happened before it.
    fn hear(&mut self, now: Instant, id: ChannelId) {
        let Some(attached) = self.host.channels.get(id) else { return };
        if attached.has_ended || attached.asks {
            return;
        }
        let Some(request) = self.receive(now, id) else { return };
        if self.depends_on_others(id, &request) || self.is_in_answer(id) {
            self.wait_for_others(id, request);
            return;
        }
        let Some(answer) = self.handle(now, id, &request) else { return };
        if takes(&request) && answer.as_ref().is_err_and(is_want) {
            self.wait_for_others(id, request);
        } else if !self.send_answer(id, answer) {
            self.to_cut_off.push(id);
        }
    }

    /// Whether the answer to a request may be another one when all is dealt with that others have said before.
    fn depends_on_others(&self, id: ChannelId, request: &Request) -> bool {
        let entry = self.host.slots.get(request.slot);
        let entry = entry.filter(|entry| entry.generation == request.generation);
        let is_shared =
            || entry.is_none_or(|entry| !matches!(entry.holders[..], [only] if only == id));
        match request.call {
            call::SOCKET | call::INTERFACES | call::ROUTES | call::RESOLVER | call::OUTSIDE => {
                false
            }
            call::BIND | call::LISTEN | call::GET_OPTION | call::SET_OPTION => is_shared(),
            call::ERROR_QUEUE | call::CHECK_LENGTH => is_shared(),
            // A listener that somebody has closed takes no more connections.
            call::CONNECT => {
                let addr = request.addr.to_socket_addr();
                let is_near = || addr.is_some_and(|addr| self.stack.net.is_local(addr.ip()));
                is_shared() || entry.is_some_and(|entry| !entry.is_datagram()) && is_near()
            }
            _ => true,
        }
    }

    fn wait_for_others(&mut self, id: ChannelId, request: Box<Request>) {
        if let Some(attached) = self.host.channels.get_mut(id) {
            attached.request = Some(request);
            self.note_asker(Asker::Process(id));
        }
    }

    /// The next request of a process, if there is one.
    fn receive(&mut self, now: Instant, id: ChannelId) -> Option<Box<Request>> {
        let attached = self.host.channels.get_mut(id)?;
        let received = wire::receive(attached.control.as_fd());
        if let Some(link) = &mut attached.link {
            link.ring.note_look(!matches!(received, Received::Nothing));
        }
        match received {
            Received::Nothing => {
                self.host.counters.work(LOOK);
                None
            }
            Received::End => {
                self.detach(now, id);
                None
            }
            Received::Descriptors(descriptors) => {
                self.closer.close(attached.closes_as, descriptors);
                self.to_cut_off.push(id);
                None
            }
            Received::Request(request) => {
                self.host.counters.requests += 1;
                self.host.counters.work(REQUEST);
                Some(request)
            }
        }
    }
}

/// Whether a request was refused for want of something.
fn is_want(Errno(errno): &Errno) -> bool {
    matches!(*errno, EADDRINUSE | EADDRNOTAVAIL | EAGAIN | ENOBUFS)
}

/// Whether a request wants what others may have, and may have given up since.
fn takes(request: &Request) -> bool {
    matches!(request.call, call::SOCKET | call::BIND | call::LISTEN | call::CONNECT)
}
