//! Attaches processes, removes those that violate the protocol, and frees their IDs after all
//! shards have removed them.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use towpath_shm::{Fd, opened};

use crate::ids::{ChannelId, Family};
use crate::mail::{Leavers, Newcomer, ShardCommand};
use crate::registry::pending::{Pending, WantOutcome};
use crate::registry::sources::RegistrySource;
use crate::registry::table::RegisteredProcess;
use crate::registry::{Leaving, Registry, sys};

impl Registry {
    /// Attaches a process, see [`Engine::attach`](crate::Engine::attach).
    pub fn attach(&mut self) -> io::Result<Fd> {
        self.let_in().map(|(_, theirs)| theirs)
    }

    /// Attaches the process that contains the engine, see
    /// [`Engine::attach_host`](crate::Engine::attach_host).
    pub fn attach_host(&mut self) -> io::Result<Fd> {
        let (id, theirs) = self.let_in()?;
        self.host = Some(id);
        Ok(theirs)
    }

    fn let_in(&mut self) -> io::Result<(ChannelId, Fd)> {
        let opened = if self.has_room_for_a_channel() {
            self.open(None)
        } else {
            Err(rustix::io::Errno::MFILE.into())
        };
        let (newcomer, theirs) = opened?;
        self.counters.attached += 1;
        let id = newcomer.id;
        self.tell_all(|| ShardCommand::Open(newcomer.clone()));
        Ok((id, theirs))
    }

    /// Queues a command for every shard. `order` creates it.
    pub(super) fn tell_all(&mut self, mut order: impl FnMut() -> ShardCommand) {
        self.orders.iter_mut().for_each(|orders| orders.push(order()));
    }

    pub(super) fn shards(&self) -> usize {
        self.orders.len()
    }

    /// Creates the entry of a process and its control socket. Returns the process for the shards,
    /// and the program's end of the socket.
    pub fn open(&mut self, family: Option<Family>) -> io::Result<(Newcomer, Fd)> {
        let id = self.processes.next_id(family)?;
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = opened(pair)?;
        let (ours, theirs) = (Fd::from(ours), Fd::from(theirs));
        // Ignore an error: the option does not exist before Linux 6.16. Descriptors that processes
        // send are then received and closed by the closer.
        let _ = sys::refuse_descriptors(ours.as_fd());
        self.poller.add(ours.as_fd(), RegistrySource::Control(id))?;
        let control = Arc::new(ours);
        let life = Arc::clone(&control);
        let closes_as = self.processes.family_of_clones(family);
        let process = RegisteredProcess {
            control,
            family,
            closes_as,
            pending: None,
            verdict: WantOutcome::default(),
            has_hung_up: false,
            parts: self.shards(),
        };
        self.processes.insert(id, process);
        if self.leaving.take_if(|leaving| leaving.whose == Leavers::All).is_some() {
            self.tell_all(|| ShardCommand::Stay);
        }
        Ok((Newcomer { id, family, life }, theirs))
    }

    /// Records that a shard (event loop) has removed a process. Replies of the shard to earlier
    /// requests may still arrive.
    pub(super) fn end_part(&mut self, id: ChannelId) {
        self.hang_up(id);
        if let Some(process) = self.processes.get_mut(id) {
            process.parts -= 1;
            self.remove_ended(id);
        }
    }

    /// Frees the ID of a process, if all shards have removed it and no reply is pending.
    pub(super) fn remove_ended(&mut self, id: ChannelId) {
        let ended = |process: &RegisteredProcess| process.parts == 0 && process.pending.is_none();
        if !self.processes.get(id).is_some_and(ended) {
            return;
        }
        let Some(process) = self.processes.remove(id) else { return };
        // Shut down the control socket, to wake threads of the process that wait for a reply.
        let _ = shutdown(&process.control, Shutdown::Both);
        self.closer.close(process.closes_as, Arc::into_inner(process.control));
        let whose = if self.host.take_if(|host| *host == id).is_some() {
            if self.processes.len() == 0 { Leavers::All } else { Leavers::Gone }
        } else if self.processes.len() == 0 && self.exit_when_unused && self.leaving.is_none() {
            Leavers::All
        } else {
            return;
        };
        self.left += 1;
        let number = self.left;
        self.leaving = Some(Leaving { number, whose, due: self.shards() });
        self.tell_all(|| ShardCommand::Leave(number, whose));
    }

    /// Stops reading requests from a process's control socket.
    fn hang_up(&mut self, id: ChannelId) {
        let Some(process) = self.processes.get_mut(id) else { return };
        if !std::mem::replace(&mut process.has_hung_up, true) {
            self.poller.remove(process.control.as_fd());
            process.pending.take_if(|pending| matches!(pending, Pending::Room(_)));
        }
    }

    /// Disconnects a process that has violated the protocol.
    pub(super) fn cut_off(&mut self, id: ChannelId) {
        self.hang_up(id);
        // Only the first shard (event loop) gets the command, so that the violation is counted
        // once.
        self.orders[0].push(ShardCommand::CutOff(id));
    }

    /// Makes all shards remove a process that has ended, or that a shard (event loop) has removed
    /// for a protocol violation.
    pub(super) fn end_elsewhere(&mut self, id: ChannelId) {
        self.hang_up(id);
        self.tell_all(|| ShardCommand::Gone(id));
    }

    /// Queues descriptors to be closed on another thread, for the family of a process.
    pub(super) fn close<D: IntoIterator<Item = Fd>>(&self, id: ChannelId, descriptors: D) {
        let whose = self.processes.get(id).map_or(Family(0), |process| process.closes_as);
        self.closer.close(whose, descriptors);
    }

    /// Returns the number of processes in the run.
    pub fn len(&self) -> usize {
        self.processes.len()
    }
}
