//! How processes come from processes: a fork's channel, and that of a program to be executed.
//!
//! A program that is executed says HELLO, and lists what it was given. One that cannot (a static
//! binary, a set-user-id one) never does, and must not keep alive what its parent closes: its channel
//! was made with the list of what is inheritable, and comes down to that.
//!
//! ```text
//! fork           CLONE FORK    all that the parent holds
//!                SETTLED       what the child listed
//! exec           CLONE EXEC    what was listed; the old image's channel ends with the old image
//! posix_spawn    CLONE SPAWN   all that the parent holds: file actions may pass on any of it.
//!                SPAWNED       the program runs; without HELLO in time: what was listed
//! ```
//!
//! Between CLONE and the birth of the new process other threads of the parent go on opening and closing
//! sockets. So a clone keeps what the parent closes and is given what the parent comes by, until the new
//! process has said what it really has.

use std::time::Duration;

use towpath_shm::control::{Reply, purpose};
use towpath_shm::layout::SLOTS_MAX;
use towpath_tcp::Instant;

use crate::channels::ChannelId;
use crate::control::Answer;
use crate::engine::Engine;
use crate::errno::{EAGAIN, EINVAL, EPROTO, Errno};

/// How long a program that was spawned has to say HELLO: the dynamic loader runs before that. Later
/// it still gets what its parent has not closed meanwhile.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// A channel that was made for a program that has not said HELLO.
#[derive(Debug)]
pub(crate) struct Expected {
    /// What it has without file actions.
    pub inherits: Vec<(u32, u32)>,
    /// When it comes down to that. None: it is not known to run yet, or has come down.
    pub until: Option<Instant>,
}

impl Engine {
    /// A process lists a socket for its next CLONE.
    pub(crate) fn list(&mut self, id: ChannelId, slot: u32, generation: u32) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        if attached.listed.len() < SLOTS_MAX as usize {
            attached.listed.push((slot, generation));
        } else {
            self.hostile.push(id);
        }
    }

    pub(crate) fn clone_channel(&mut self, id: ChannelId, wanted: u32) -> Answer {
        let parent = self.host.channels.get_mut(id).ok_or(Errno(EPROTO))?;
        let listed = std::mem::take(&mut parent.listed);
        let pid = parent.pid;
        let mut held: Vec<u32> = parent.holds.iter().collect();
        let inherits: Vec<(u32, u32)> =
            listed.into_iter().filter(|(slot, _)| parent.holds.contains(*slot)).collect();
        let expected = match wanted {
            purpose::FORK => None,
            purpose::SPAWN => Some(Expected { inherits, until: None }),
            purpose::EXEC => {
                held = inherits.iter().map(|(slot, _)| *slot).collect();
                Some(Expected { inherits, until: None })
            }
            _ => return Err(Errno(EINVAL)),
        };
        held.sort_unstable();
        // As fork says it of too many processes.
        let (clone, control) = self.open_channel().map_err(|_| Errno(EAGAIN))?;
        // The child inherits epoll sets whose events went to its parent: it looks at everything.
        let Ok([_, _, channel, engine_bell, bell]) = self.link(clone, true) else {
            self.closer.close([control]);
            self.host.counters.channels_refused += 1;
            self.detach(self.host.now, clone);
            return Err(Errno(EAGAIN));
        };
        if let Some(attached) = self.host.channels.get_mut(clone) {
            attached.pid = pid;
            attached.expected = expected;
            attached.parent = Some(id);
        }
        for slot in held {
            self.hold(clone, slot);
        }
        if let Some(parent) = self.host.channels.get_mut(id) {
            parent.clones.push(clone);
        }
        let reply = Reply { b: clone.number(), ..Reply::default() };
        Ok((reply, vec![control, channel, engine_bell, bell]))
    }

    /// A child of fork has listed what it has.
    pub(crate) fn settled(&mut self, now: Instant, id: ChannelId) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        let listed = std::mem::take(&mut attached.listed);
        if let Some(parent) = attached.parent {
            // Its parent took the connection off an accept queue, and will say so any moment. The child
            // must not be the only one to hold it meanwhile.
            for &(slot, generation) in &listed {
                if self.host.slots.find(slot, generation).is_some_and(|it| it.unclaimed.is_some()) {
                    self.claim(parent, slot);
                }
            }
        }
        self.no_more_a_clone(id);
        self.keep_only(now, id, &listed);
    }

    /// The programs that a process has spawned, or has become, run, or never will.
    pub(crate) fn spawned(&mut self, now: Instant, id: ChannelId) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        for clone in std::mem::take(&mut attached.clones) {
            let Some(attached) = self.host.channels.get_mut(clone) else { continue };
            if let Some(expected) = &mut attached.expected {
                let until = now + HELLO_WITHIN;
                expected.until = Some(until);
                attached.parent = None;
                self.expected.push_back((until, clone));
            } else if let Some(parent) = self.host.channels.get_mut(id) {
                // A child of fork speaks for itself.
                parent.clones.push(clone);
            }
        }
    }

    /// A process is gone: it comes by nothing more that its clones might have.
    pub(crate) fn orphan_clones(&mut self, id: ChannelId) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        for clone in std::mem::take(&mut attached.clones) {
            if let Some(clone) = self.host.channels.get_mut(clone) {
                clone.parent = None;
            }
        }
    }

    /// A channel is what it is from here on: it has said HELLO, or is gone.
    pub(crate) fn no_more_a_clone(&mut self, id: ChannelId) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        attached.expected = None;
        if let Some(parent) = attached.parent.take()
            && let Some(parent) = self.host.channels.get_mut(parent)
        {
            parent.clones.retain(|clone| *clone != id);
        }
    }

    /// Programs that did not say HELLO in time hold what they inherit, and no more.
    pub(crate) fn end_expectations(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.expected.front() {
            if until > now {
                return;
            }
            self.expected.pop_front();
            let Some(attached) = self.host.channels.get_mut(id) else { continue };
            // Ids are used again.
            let Some(expected) = attached.expected.take_if(|it| it.until == Some(until)) else {
                continue;
            };
            self.host.counters.strangers += 1;
            self.keep_only(now, id, &expected.inherits);
        }
    }

    /// The threads that a process had are gone: what they were at is free.
    pub(crate) fn release_locks(&mut self, id: ChannelId) {
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        let closed = std::mem::take(&mut attached.closed);
        for slot in attached.holds.iter().chain(closed.iter()) {
            towpath_ring::release_dead(self.host.slots.shared(slot), id.number());
        }
    }

    /// A process holds what is listed and nothing else.
    pub(crate) fn keep_only(&mut self, now: Instant, id: ChannelId, listed: &[(u32, u32)]) {
        let Some(attached) = self.host.channels.get(id) else { return };
        let before: Vec<u32> = attached.holds.iter().collect();
        let mut kept = std::collections::HashSet::new();
        for &(slot, generation) in listed {
            if self.host.slots.find(slot, generation).is_some() {
                self.adopt(id, slot);
                kept.insert(slot);
            }
        }
        for slot in before.into_iter().filter(|slot| !kept.contains(slot)) {
            self.let_go(now, id, slot);
        }
    }
}
