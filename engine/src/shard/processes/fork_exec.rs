//! Creates channels (connections to the engine) for new processes and programs: fork, exec and
//! posix_spawn.
//!
//! An executed program sends HELLO and lists the sockets that it inherited. Programs that cannot
//! load the library (static or set-user-id binaries) never send HELLO. Their channel must not keep
//! sockets open that the parent closes, so it keeps only the inheritable sockets listed at CLONE.
//!
//! ```text
//! fork           CLONE FORK    all sockets of the parent
//!                SETTLED       sockets that the child listed; includes its process id
//! exec           CLONE EXEC    listed sockets; the channel of the old image ends with it
//! posix_spawn    CLONE SPAWN   all sockets of the parent, because file actions may pass on any
//!                SPAWNED       the program runs; without HELLO in time: listed sockets
//! ```
//!
//! Other threads of the parent continue to open and close sockets between CLONE and the start of
//! the new process. Therefore a clone (the channel of the new process) keeps sockets that the
//! parent closes. Until the new process lists its own sockets, the clone receives those that the
//! parent opens.

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

/// Maximum time until a spawned program sends HELLO (first request of a program), which it does
/// when the dynamic loader has loaded it. If HELLO arrives later, the program gets only those
/// sockets that its parent has not closed before.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of channels for new processes that have not begun, per parent. Their number is
/// limited, because each gets every socket that the parent opens. The limit is large enough for a
/// server that forks 500 workers at once.
const CLONES_MAX: usize = 512;
/// Maximum total number of references from processes to sockets after a CLONE. A reference takes
/// four bytes. The limit suffices for four processes that use all slots.
const HOLDS_MAX: usize = 4 * SLOTS_MAX as usize;

impl Processes {
    /// Adds a socket to the list of sockets for the process's next CLONE, SETTLED or HELLO (first
    /// request of a program).
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
            // The parent has accepted the connection, but its ACCEPTED command has not arrived yet.
            // Record that the parent has the connection, so that the child is not the only process
            // with it.
            self.claim(sockets, net, parent, slot);
        }
        // The list needs no generations, because the slot of a socket that a process has open is
        // not reused.
        if !self.is_held(id, slot) {
            self.adopt(sockets, net, id, slot);
        }
        if let Some(attached) = self.channels.get_mut(id) {
            attached.listed.insert(slot);
        }
    }

    /// Checks a request for a clone. Fails if it is invalid or would exceed a limit.
    pub(crate) fn may_clone(&self, id: ChannelId, wanted: u32) -> Result<(), Errno> {
        let attached = self.channels.get(id).ok_or(Errno(EPROTO))?;
        if !matches!(wanted, purpose::FORK | purpose::SPAWN | purpose::EXEC) {
            return Err(Errno(EINVAL));
        }
        let held = self.holds + self.promised + attached.held;
        // Reject a process that has not begun. A correct process sends HELLO (first request of a
        // program) or SETTLED before it forks.
        let unborn = attached.lineage.parent.is_some() || attached.lineage.expected.is_some();
        if unborn || attached.lineage.clones.len() >= CLONES_MAX || held > HOLDS_MAX {
            return Err(Errno(EAGAIN));
        }
        Ok(())
    }

    /// Starts to give a new channel the sockets of its parent. If this is rejected, returns `link`
    /// and `newcomer`.
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
        // exec(2) does not change the process ID. A process created by fork(2) or posix_spawn(3)
        // will send its own.
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

    /// Handles the command SETTLED of a forked child, which has listed its sockets and sends its
    /// process ID.
    pub(crate) fn settled(&mut self, sockets: &mut Sockets, id: ChannelId, pid: u32) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        attached.pid = pid;
        let listed = std::mem::take(&mut attached.listed);
        self.end_cloning(id);
        self.keep_only(sockets, id, &listed);
    }

    /// Handles the command SPAWNED: sets the HELLO deadline of programs that a process has spawned
    /// or executed, or has failed to.
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
                // A forked child lists its own sockets, so it needs no deadline for HELLO (first
                // request of a program). Record it as a clone (new process) of its parent.
                parent.lineage.clones.push(clone);
            }
        }
    }

    /// Detaches an ended process from the new processes that it has created. The new processes get
    /// no more sockets from it.
    pub(crate) fn orphan_clones(&mut self, id: ChannelId) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        for clone in std::mem::take(&mut attached.lineage.clones) {
            if let Some(clone) = self.channels.get_mut(clone) {
                clone.lineage.parent = None;
            }
        }
    }

    /// Detaches a channel from its parent, so that it gets no more sockets that the parent opens.
    /// Called when its process has sent HELLO (first request of a program) or SETTLED, or has
    /// ended.
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

    /// Detaches new processes that have not begun before the deadline from their parents. The new
    /// processes get no more sockets that the parents open.
    pub(crate) fn disinherit_unborn(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.to_disinherit.front() {
            if until > now {
                return;
            }
            self.to_disinherit.pop_front();
            let Some(attached) = self.channels.get_mut(id) else { continue };
            // Skip this entry if the channel ID belongs to another process now.
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

    /// Handles programs that have not sent HELLO (first request of a program) before the deadline:
    /// releases all their sockets except inherited ones.
    pub(crate) fn restrict_strangers(&mut self, sockets: &mut Sockets) {
        let now = sockets.now;
        while let Some(&(until, id)) = self.to_restrict.front() {
            if until > now {
                return;
            }
            self.to_restrict.pop_front();
            let Some(attached) = self.channels.get_mut(id) else { continue };
            // Skip this entry if the channel ID belongs to another process now.
            let expected = attached.lineage.expected.take_if(|it| it.until == Some(until));
            let Some(expected) = expected else { continue };
            // Count the program in the first shard only, because every shard notices it.
            sockets.counters.strangers += u64::from(sockets.slots.first() == 0);
            self.keep_only(sockets, id, &expected.inherits);
        }
    }
}
