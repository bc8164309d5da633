//! Requests to the engine, and what has to be dealt with before they are answered.
//!
//! A process that asks may know what other processes did before: one of them has ended and was waited for, or it
//! closed a socket and said so. The answer has to reflect that, as on Linux, where it is done when the call
//! returns. So requests are taken in rounds: when a round begins, the end of each command ring is marked, and
//! the sockets that are ending are counted; the round is answered when all rings have been read up to their
//! marks and all of those ends are done. Both go on in portions, so that a request waits for what others said
//! before, and no connection waits for it. Commands that arrive later belong to the next round, so that a
//! request waits for a bounded amount of work.

use std::collections::VecDeque;

use towpath_tcp::Instant;

use crate::channels::ChannelId;
use crate::engine::Engine;

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
        self.now.is_empty() && self.next.is_empty()
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

    /// Answers those whose time has come.
    pub(crate) fn answer_askers(&mut self, now: Instant) {
        if self.rounds.is_empty() {
            return;
        }
        if self.rounds.now.is_empty() {
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
                if !attached.has_ended {
                    self.serve_control(now, id);
                }
            }
        }
    }
}
