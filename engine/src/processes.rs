//! How processes come from processes: a fork's channel, and that of a program to be executed.
//!
//! A program that is executed says HELLO, and lists what it was given. One that cannot (a static
//! binary, a set-user-id one) never does, and must not keep alive what its parent closes: its channel
//! was made with the list of what is inheritable, and comes down to that.
//!
//! ```text
//! fork           CLONE FORK    all that the parent holds
//!                SETTLED       what the child listed; it says which process it is, as HELLO does
//! exec           CLONE EXEC    what was listed; the old image's channel ends with the old image
//! posix_spawn    CLONE SPAWN   all that the parent holds: file actions may pass on any of it.
//!                SPAWNED       the program runs; without HELLO in time: what was listed
//! ```
//!
//! Between CLONE and the birth of the new process other threads of the parent go on opening and closing
//! sockets. So a clone keeps what the parent closes and is given what the parent opens, until the new
//! process has said what it really has.

use std::time::Duration;

use towpath_shm::control::purpose;
use towpath_shm::layout::SLOTS_MAX;
use towpath_tcp::Instant;

use crate::engine::Engine;
use crate::errno::{EAGAIN, EINVAL, EPROTO, Errno};
use crate::ids::{ChannelId, Family};
use crate::registry::Expected;
use crate::requests::Cloning;

/// How long a program that was spawned has to say HELLO: the dynamic loader runs before that. Later
/// it still gets what its parent has not closed meanwhile.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// How long a process has to begin, and to say what it has, after its channel was cloned. fork and
/// posix_spawn take milliseconds, on a machine that swaps some seconds. After that it no longer receives
/// sockets that its parent opens; it lists its own.
const BORN_WITHIN: Duration = Duration::from_secs(30);
/// Clones of one process that have not begun, at most: what it opens each of them holds too, until they
/// say otherwise. A server that forks its 500 workers before the first of them runs has room.
const CLONES_MAX: usize = 512;
/// Holds of all processes together that a CLONE may bring about, at most: each costs four bytes with its
/// socket. Four processes with as many sockets as a run can have.
const HOLDS_MAX: usize = 4 * SLOTS_MAX as usize;

impl Engine {
    /// A process lists a socket, which it says that it has: for its next CLONE, for SETTLED or HELLO.
    pub(crate) fn list(&mut self, id: ChannelId, slot: u32, generation: u32) {
        let Some(entry) = self.shard.host.slots.find(slot, generation) else {
            self.shard.host.counters.commands_stale += 1;
            return;
        };
        let unclaimed = entry.unclaimed.is_some();
        let Some(process) = self.registry.get(id) else { return };
        if let Some(parent) = process.parent.filter(|_| unclaimed) {
            // Its parent took the connection off an accept queue, and will say so any moment. The child
            // must not be the only one to hold it meanwhile.
            self.shard.claim(parent, slot);
        }
        // What is held does not go, so that the list needs no generations.
        if !self.shard.is_held(id, slot) {
            self.shard.adopt(id, slot);
        }
        if let Some(attached) = self.shard.host.channels.get_mut(id) {
            attached.listed.insert(slot);
        }
    }

    /// Refuses what one process could take from all others by cloning. Gives the new one's family.
    fn may_clone(&mut self, id: ChannelId, wanted: u32) -> Result<Option<Family>, Errno> {
        let held = self.shard.host.holds + self.lengthy.holds();
        let attached = self.shard.host.channels.get(id).ok_or(Errno(EPROTO))?;
        // A process that has not begun cannot fork: it says HELLO or SETTLED first.
        let process = self.registry.get(id).ok_or(Errno(EPROTO))?;
        let unborn = process.parent.is_some() || process.expected.is_some();
        let is_full = attached.clones.len() >= CLONES_MAX || held + attached.held > HOLDS_MAX;
        if unborn || is_full || self.registry.closer.is_clogged(process.closes_as) {
            self.shard.host.counters.channels_refused += 1;
            return Err(Errno(EAGAIN));
        }
        Ok(match (wanted, process.family) {
            // exec(2): the same process goes on, with another program.
            (purpose::EXEC, family) => family,
            (_, family) => Some(self.registry.family_of_clones(family)),
        })
    }

    /// Makes a channel of which the process is told when it holds what its purpose says.
    pub(crate) fn clone_channel(
        &mut self,
        now: Instant,
        id: ChannelId,
        wanted: u32,
    ) -> Result<(), Errno> {
        let family = self.may_clone(id, wanted)?;
        let parent = self.shard.host.channels.get_mut(id).ok_or(Errno(EPROTO))?;
        let listed = std::mem::take(&mut parent.listed);
        let holds = parent.held;
        let inherits = match wanted {
            purpose::FORK => None,
            purpose::SPAWN | purpose::EXEC => Some(listed),
            _ => return Err(Errno(EINVAL)),
        };
        // fork(2) says it of too many processes.
        let (clone, control) = self.open_channel(family).map_err(|_| Errno(EAGAIN))?;
        // The child inherits epoll sets whose events went to its parent: it looks at everything.
        let Ok(bell) = self.link(clone, true) else {
            self.registry.close(clone, [control]);
            self.shard.host.counters.channels_refused += 1;
            self.detach(now, clone);
            return Err(Errno(EAGAIN));
        };
        // exec(2): the same process goes on. Which one fork(2) or posix_spawn(3) makes it says itself.
        let goes_on = self.registry.get(id).filter(|_| wanted == purpose::EXEC);
        let pid = goes_on.map_or(0, |process| process.pid);
        if let Some(process) = self.registry.get_mut(clone) {
            process.pid = pid;
            process.expected = inherits.is_some().then_some(Expected { until: None });
            process.parent = Some(id);
        }
        if let Some(attached) = self.shard.host.channels.get_mut(clone) {
            attached.inherits = inherits;
        }
        if let Some(parent) = self.shard.host.channels.get_mut(id) {
            parent.clones.push(clone);
        }
        let cloning = Cloning { clone, control, bell, holds };
        self.begin_cloning(now, id, cloning, wanted == purpose::EXEC);
        Ok(())
    }

    /// A clone is about to be told of: its process begins soon, or never.
    pub(crate) fn expect_birth(&mut self, clone: ChannelId) {
        let until = self.shard.host.now + BORN_WITHIN;
        if let Some(process) = self.registry.get_mut(clone) {
            process.unborn_until = Some(until);
            self.registry.to_disinherit.push_back((until, clone));
        }
    }

    /// A child of fork has listed what it has, and says which process it is.
    pub(crate) fn settled(&mut self, now: Instant, id: ChannelId, pid: u32) {
        let Some(process) = self.registry.get_mut(id) else { return };
        process.pid = pid;
        let Some(attached) = self.shard.host.channels.get_mut(id) else { return };
        let listed = std::mem::take(&mut attached.listed);
        self.no_more_a_clone(id);
        self.keep_only(now, id, &listed);
    }

    /// The programs that a process has spawned, or has become, run, or never will.
    pub(crate) fn spawned(&mut self, now: Instant, id: ChannelId) {
        let Some(attached) = self.shard.host.channels.get_mut(id) else { return };
        for clone in std::mem::take(&mut attached.clones) {
            let Some(process) = self.registry.get_mut(clone) else { continue };
            if let Some(expected) = &mut process.expected {
                let until = now + HELLO_WITHIN;
                expected.until = Some(until);
                process.parent = None;
                self.registry.to_restrict.push_back((until, clone));
            } else if let Some(parent) = self.shard.host.channels.get_mut(id) {
                // A child of fork speaks for itself.
                parent.clones.push(clone);
            }
        }
    }

    /// A process is gone: it comes by nothing more that its clones might have.
    pub(crate) fn orphan_clones(&mut self, id: ChannelId) {
        let Some(attached) = self.shard.host.channels.get_mut(id) else { return };
        for clone in std::mem::take(&mut attached.clones) {
            if let Some(clone) = self.registry.get_mut(clone) {
                clone.parent = None;
            }
        }
    }

    /// A channel is what it is from here on: it has said HELLO, or is gone.
    pub(crate) fn no_more_a_clone(&mut self, id: ChannelId) {
        if let Some(attached) = self.shard.host.channels.get_mut(id) {
            attached.inherits = None;
        }
        let Some(process) = self.registry.get_mut(id) else { return };
        process.expected = None;
        process.unborn_until = None;
        if let Some(parent) = process.parent.take()
            && let Some(parent) = self.shard.host.channels.get_mut(parent)
        {
            parent.clones.retain(|clone| *clone != id);
        }
    }

    /// Processes that did not begin in time are given nothing more of what their parents come by.
    pub(crate) fn disinherit_unborn(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.registry.to_disinherit.front() {
            if until > now {
                return;
            }
            self.registry.to_disinherit.pop_front();
            let Some(process) = self.registry.get_mut(id) else { continue };
            // Ids are used again.
            if process.unborn_until.take_if(|it| *it == until).is_none() {
                continue;
            }
            let parent = process.parent.take();
            if let Some(expected) = &mut process.expected
                && expected.until.is_none()
            {
                let until = now + HELLO_WITHIN;
                expected.until = Some(until);
                self.registry.to_restrict.push_back((until, id));
            }
            if let Some(parent) = parent.and_then(|parent| self.shard.host.channels.get_mut(parent))
            {
                parent.clones.retain(|clone| *clone != id);
            }
        }
    }

    /// Programs that did not say HELLO in time hold what they inherit, and no more.
    pub(crate) fn restrict_strangers(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.registry.to_restrict.front() {
            if until > now {
                return;
            }
            self.registry.to_restrict.pop_front();
            let Some(process) = self.registry.get_mut(id) else { continue };
            // Ids are used again.
            if process.expected.take_if(|it| it.until == Some(until)).is_none() {
                continue;
            }
            self.shard.host.counters.strangers += 1;
            let attached = self.shard.host.channels.get_mut(id);
            let inherits = attached.and_then(|it| it.inherits.take()).unwrap_or_default();
            self.keep_only(now, id, &inherits);
        }
    }
}
