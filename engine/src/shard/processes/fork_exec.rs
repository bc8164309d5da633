//! How processes come from processes: a fork's channel, and that of a program to be executed.
//!
//! A program that is executed says HELLO, and lists the sockets that it was given. A program that
//! cannot (a static binary, a set-user-id one) never does. Its channel must not keep alive sockets
//! that its parent closes, so it is reduced to the inheritable ones, with whose list it was made.
//!
//! ```text
//! fork           CLONE FORK    all that the parent holds
//!                SETTLED       what the child listed; it says which process it is, as HELLO does
//! exec           CLONE EXEC    what was listed; the old image's channel ends with the old image
//! posix_spawn    CLONE SPAWN   all that the parent holds: file actions may pass on any of it.
//!                SPAWNED       the program runs; without HELLO in time: what was listed
//! ```
//!
//! Between CLONE and the birth of the new process other threads of the parent go on opening and
//! closing sockets. So a clone keeps what the parent closes and is given what the parent opens,
//! until the new process has said what it really has.

use std::time::Duration;

use towpath_shm::control::purpose;
use towpath_shm::layout::SLOTS_MAX;
use towpath_tcp::Instant;

use crate::errno::{EAGAIN, EINVAL, EPROTO, Errno};
use crate::ids::ChannelId;
use crate::link::ChannelLink;
use crate::mail::{Newcomer, Want};
use crate::shard::net::Net;
use crate::shard::processes::Processes;
use crate::shard::processes::channels::{BatchWork, Expected};
use crate::shard::sockets::Sockets;

/// How long a program that was spawned has to say HELLO: the dynamic loader runs before that. Later
/// it still gets what its parent has not closed meanwhile.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// Clones of one process that have not begun, at most: what it opens each of them holds too, until
/// they say otherwise. A server that forks its 500 workers before the first of them runs has room.
const CLONES_MAX: usize = 512;
/// SlotSet of all processes together that a CLONE may bring about, at most: each costs four bytes
/// with its socket. Four processes with as many sockets as a run can have.
const HOLDS_MAX: usize = 4 * SLOTS_MAX as usize;

impl Processes {
    /// A process lists a socket, which it says that it has: for its next CLONE, for SETTLED or
    /// HELLO.
    pub(crate) fn list(
        &mut self,
        sockets: &mut Sockets,
        net: &mut Net,
        id: ChannelId,
        slot: u32,
        generation: u32,
    ) {
        let Some(entry) = sockets.slots.find(slot, generation) else {
            sockets.counters.commands_stale += 1;
            return;
        };
        let unclaimed = entry.unclaimed().is_some();
        let Some(attached) = self.channels.get(id) else { return };
        if let Some(parent) = attached.lineage.parent.filter(|_| unclaimed) {
            // Its parent took the connection off an accept queue, and will say so any moment. The
            // child must not be the only one to hold it meanwhile.
            self.claim(sockets, net, parent, slot);
        }
        // A held socket stays, so the list needs no generations.
        if !self.is_held(id, slot) {
            self.adopt(sockets, net, id, slot);
        }
        if let Some(attached) = self.channels.get_mut(id) {
            attached.listed.insert(slot);
        }
    }

    /// Refuses what one process could take from all others by cloning, and what makes no sense.
    pub(crate) fn may_clone(&self, id: ChannelId, wanted: u32) -> Result<(), Errno> {
        let attached = self.channels.get(id).ok_or(Errno(EPROTO))?;
        if !matches!(wanted, purpose::FORK | purpose::SPAWN | purpose::EXEC) {
            return Err(Errno(EINVAL));
        }
        let held = self.holds + self.promised + attached.held;
        // A process that has not begun cannot fork: it says HELLO or SETTLED first.
        let unborn = attached.lineage.parent.is_some() || attached.lineage.expected.is_some();
        if unborn || attached.lineage.clones.len() >= CLONES_MAX || held > HOLDS_MAX {
            return Err(Errno(EAGAIN));
        }
        Ok(())
    }

    /// Begins to give a channel its parent's sockets. A refusal gives link and newcomer back.
    pub(crate) fn clone_channel(
        &mut self,
        sockets: &mut Sockets,
        net: &mut Net,
        id: ChannelId,
        wanted: u32,
        clone: Newcomer,
        link: ChannelLink,
    ) -> Result<(), (Errno, Box<Want>)> {
        if let Err(errno) = self.may_clone(id, wanted) {
            return Err((errno, Box::new(Want::Clone { purpose: wanted, clone, link })));
        }
        let newcomer = clone.id;
        self.open(sockets, net, clone);
        self.link(net, newcomer, link);
        let Some(parent) = self.channels.get_mut(id) else { return Ok(()) };
        let listed = std::mem::take(&mut parent.listed);
        parent.lineage.clones.push(newcomer);
        // After exec(2) the same process goes on. A process of fork(2) or posix_spawn(3) says its
        // own id.
        let pid = if wanted == purpose::EXEC { parent.pid } else { 0 };
        let held = parent.held;
        if let Some(attached) = self.channels.get_mut(newcomer) {
            attached.pid = pid;
            attached.lineage.parent = Some(id);
            let is_program = wanted != purpose::FORK;
            attached.lineage.expected =
                is_program.then_some(Expected { inherits: listed, until: None });
        }
        self.promised += held;
        let only_listed = wanted == purpose::EXEC;
        self.begin_batch(sockets, id, BatchWork::Give { clone: newcomer, only_listed }, held);
        Ok(())
    }

    /// A child of fork has listed what it has, and says which process it is.
    pub(crate) fn settled(&mut self, sockets: &mut Sockets, id: ChannelId, pid: u32) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        attached.pid = pid;
        let listed = std::mem::take(&mut attached.listed);
        self.end_cloning(id);
        self.keep_only(sockets, id, &listed);
    }

    /// The programs that a process has spawned, or has become, run, or never will.
    pub(crate) fn spawned(&mut self, sockets: &mut Sockets, id: ChannelId) {
        let now = sockets.now;
        let Some(attached) = self.channels.get_mut(id) else { return };
        for clone in std::mem::take(&mut attached.lineage.clones) {
            let Some(attached) = self.channels.get_mut(clone) else { continue };
            if let Some(expected) = &mut attached.lineage.expected {
                let until = now + HELLO_WITHIN;
                expected.until = Some(until);
                attached.lineage.parent = None;
                self.to_restrict.push_back((until, clone));
            } else if let Some(parent) = self.channels.get_mut(id) {
                // A child of fork speaks for itself.
                parent.lineage.clones.push(clone);
            }
        }
    }

    /// Detaches a dead process from its clones: they inherit nothing further.
    pub(crate) fn orphan_clones(&mut self, id: ChannelId) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        for clone in std::mem::take(&mut attached.lineage.clones) {
            if let Some(clone) = self.channels.get_mut(clone) {
                clone.lineage.parent = None;
            }
        }
    }

    /// A channel is what it is from here on: it has said HELLO, or is gone.
    pub(crate) fn end_cloning(&mut self, id: ChannelId) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        attached.lineage.expected = None;
        attached.lineage.unborn_until = None;
        let parent = attached.lineage.parent.take();
        self.leave_parent(parent, id);
    }

    fn leave_parent(&mut self, parent: Option<ChannelId>, id: ChannelId) {
        if let Some(parent) = parent.and_then(|parent| self.channels.get_mut(parent)) {
            parent.lineage.clones.retain(|clone| *clone != id);
        }
    }

    /// Processes that did not begin in time are given nothing more of what their parents come by.
    pub(crate) fn disinherit_unborn(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.to_disinherit.front() {
            if until > now {
                return;
            }
            self.to_disinherit.pop_front();
            let Some(attached) = self.channels.get_mut(id) else { continue };
            // Ids are used again.
            if attached.lineage.unborn_until.take_if(|it| *it == until).is_none() {
                continue;
            }
            let parent = attached.lineage.parent.take();
            if let Some(expected) = &mut attached.lineage.expected
                && expected.until.is_none()
            {
                let until = now + HELLO_WITHIN;
                expected.until = Some(until);
                self.to_restrict.push_back((until, id));
            }
            self.leave_parent(parent, id);
        }
    }

    /// Programs that did not say HELLO in time hold what they inherit, and no more.
    pub(crate) fn restrict_strangers(&mut self, sockets: &mut Sockets) {
        let now = sockets.now;
        while let Some(&(until, id)) = self.to_restrict.front() {
            if until > now {
                return;
            }
            self.to_restrict.pop_front();
            let Some(attached) = self.channels.get_mut(id) else { continue };
            // Ids are used again.
            let expected = attached.lineage.expected.take_if(|it| it.until == Some(until));
            let Some(expected) = expected else { continue };
            // Each shard notices; the first one counts.
            sockets.counters.strangers += u64::from(sockets.slots.first() == 0);
            self.keep_only(sockets, id, &expected.inherits);
        }
    }
}
