//! Room for descriptors: what the answers to requests need, and which requests wait for some.
//!
//! A process in the engine can become another program at any time, which is not to be left without
//! sockets. So no process is let in that would take the last descriptors. Descriptors that were
//! given up are closed by another thread (see [`crate::registry::closer`]), and count as room. A
//! request that needs them is answered when they are closed.

use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use towpath_shm::control::{Request, call};
use towpath_shm::{Fd, opened};
use towpath_tcp::Instant;

use crate::ids::ChannelId;
use crate::mail::Want;
use crate::registry::Registry;
use crate::registry::pending::{Asking, Pending};

/// Descriptors of a process image: its memory, both ends of the bell that we ring, those that it
/// rings, one for each shard.
fn image(shards: usize) -> usize {
    3 + shards
}

/// Descriptors of a new channel: both ends of its control socket, and two images. The process may
/// become another image at any time, and its old one goes only after the new one is there.
fn channel(shards: usize) -> usize {
    2 + 2 * image(shards)
}

/// How long a request waits for descriptors that are being closed. A close takes microseconds,
/// unless a program makes it sleep: then the request is refused, as if they were in use.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
/// When it is looked whether they are.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Registry {
    /// Whether this process can open `descriptors` more. Found by opening them: the limit alone
    /// does not tell how many are open already, by the devices for instance.
    fn has_room(&self, descriptors: usize) -> bool {
        let take = |_| opened(|| fcntl_dupfd_cloexec(&self.blank, 0)).map(Fd::from);
        (0..descriptors).map(take).collect::<Result<Vec<_>, _>>().is_ok()
    }

    /// Whether another channel leaves room for what those that are there may need.
    pub(crate) fn has_room_for_a_channel(&self) -> bool {
        self.has_room(channel(self.shards()))
    }

    /// Takes a process's request. Ended processes still have descriptors, which the shards' earlier
    /// work frees. So a request that finds no room waits for that work. A CLONE always does, so
    /// that a refused one takes no place.
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

    /// All is done that was before.
    pub(crate) fn settled(&mut self, now: Instant, id: ChannelId, request: Box<Request>) {
        if self.get(id).is_none_or(|process| process.has_hung_up) {
            // The process is gone, so no answer is due.
            self.remove_ended(id);
        } else if !self.closer.is_busy() || self.has_room(self.needed(&request)) {
            self.begin(id, &request);
        } else if let Some(process) = self.get_mut(id) {
            let until = now + CLOSED_WITHIN;
            process.pending = Some(Pending::Room(Asking { request, until }));
            self.waiting.channels.push((until, id));
            self.waiting.look_at = Some(now + LOOK_AGAIN);
            self.counters.requests_waited += 1;
        }
    }

    /// Goes on with those who waited for descriptors, when there are some, or will be none.
    pub(crate) fn answer_waiting(&mut self, now: Instant) {
        if self.waiting.look_at.is_none_or(|at| now < at) {
            return;
        }
        self.waiting.look_at = None;
        for (until, id) in std::mem::take(&mut self.waiting.channels) {
            let Some(process) = self.get_mut(id) else { continue };
            let is_its = |it: &mut Pending| matches!(it, Pending::Room(it) if it.until == until);
            let Some(Pending::Room(asking)) = process.pending.take_if(is_its) else { continue };
            let done = !self.closer.is_busy() || now >= until;
            if done || self.has_room(self.needed(&asking.request)) {
                self.begin(id, &asking.request);
            } else if let Some(process) = self.get_mut(id) {
                process.pending = Some(Pending::Room(asking));
                self.waiting.channels.push((until, id));
                self.waiting.look_at = Some(now + LOOK_AGAIN);
            }
        }
    }

    /// Descriptors that an answer takes, beyond those that are there.
    fn needed(&self, request: &Request) -> usize {
        match request.call {
            // A HELLO in several parts gets its descriptors with the last.
            call::HELLO if request.b != 0 => 0,
            call::HELLO => image(self.shards()),
            call::CLONE => channel(self.shards()),
            // The duplicates are closed when they are sent. At least one is needed: the process
            // asks again for the others.
            call::TOKENS => 1,
            _ => 0,
        }
    }
}
