//! Single steps of a shard's event loop for tests, each with its own time.

use std::net::SocketAddr;

use towpath_shm::control::ControlReply;
use towpath_shm::layout::Command;
use towpath_stack::SocketId;
use towpath_tcp::Instant;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::mail::Want;
use crate::shard::Shard;

/// Steps of processes, for tests.
impl Shard {
    pub(crate) fn is_held(&self, id: ChannelId, slot: u32) -> bool {
        self.processes.is_held(id, slot)
    }

    pub(crate) fn hold(&mut self, id: ChannelId, slot: u32) {
        self.processes.hold(&mut self.sockets, id, slot);
    }

    pub(crate) fn adopt(&mut self, id: ChannelId, slot: u32) {
        self.processes.adopt(&mut self.sockets, &mut self.net, id, slot);
    }

    pub(crate) fn let_go(&mut self, now: Instant, id: ChannelId, slot: u32) {
        self.sockets.now = now;
        self.processes.let_go(&mut self.sockets, &mut self.net, id, slot);
    }

    pub(crate) fn command(&mut self, now: Instant, id: ChannelId, command: &Command) {
        self.sockets.now = now;
        let (requests, mut cx) = self.requests();
        requests.command(&mut cx, id, command);
        self.begin_ends();
    }

    pub(crate) fn grant(&mut self, id: ChannelId, want: Want) {
        self.processes.grant(&mut self.sockets, &mut self.net, id, want);
        self.begin_ends();
    }

    pub(crate) fn detach(&mut self, now: Instant, id: ChannelId) {
        self.sockets.now = now;
        self.processes.detach(&mut self.sockets, &mut self.net, id);
        self.begin_ends();
    }

    pub(crate) fn continue_batches(&mut self) {
        self.processes.continue_batches(&mut self.sockets);
        self.begin_ends();
    }

    pub(crate) fn leave(&mut self, now: Instant) {
        self.sockets.now = now;
        self.processes.leave(&mut self.sockets, &self.net);
    }
}

/// Steps of sockets, for tests.
impl Shard {
    pub(crate) fn replace(
        &mut self,
        now: Instant,
        slot: u32,
        old: SocketId,
    ) -> Result<SocketId, Errno> {
        self.sockets.now = now;
        self.sockets.replace(&mut self.net, slot, old)
    }

    pub(crate) fn disconnect(&mut self, now: Instant, slot: u32) -> Result<ControlReply, Errno> {
        self.sockets.now = now;
        self.sockets.disconnect(&mut self.net, &self.peers, slot)
    }

    pub(crate) fn connect_stream(
        &mut self,
        now: Instant,
        slot: u32,
        remote: SocketAddr,
        fast_open: bool,
    ) -> Result<bool, Errno> {
        self.sockets.now = now;
        self.sockets.connect_stream(&mut self.net, slot, remote, fast_open)
    }

    pub(crate) fn flush_datagrams(&mut self, now: Instant, slot: u32) -> bool {
        self.sockets.now = now;
        self.sockets.flush_datagrams(&mut self.net, slot)
    }

    pub(crate) fn send_put_off(&mut self, now: Instant) {
        self.sockets.now = now;
        self.sockets.send_put_off(&mut self.net);
    }

    pub(crate) fn free_ended(&mut self) {
        self.sockets.free_ended(&mut self.net);
    }

    pub(crate) fn close_overdue_in_flight(&mut self, now: Instant) {
        self.sockets.now = now;
        self.sockets.close_overdue_in_flight(&mut self.net, self.processes.channels.is_empty());
    }

    pub(crate) fn reset_unclaimed(&mut self, now: Instant) {
        self.sockets.now = now;
        self.sockets.reset_unclaimed(&mut self.net);
    }

    pub(crate) fn end_unclaimed(&mut self, now: Instant, slot: u32, generation: u32) {
        self.sockets.now = now;
        self.sockets.end_unclaimed(&mut self.net, slot, generation);
    }

    pub(crate) fn tell_lingering(&mut self, now: Instant) {
        self.sockets.now = now;
        self.sockets.tell_lingering(&mut self.net);
    }

    pub(crate) fn tell(&mut self, now: Instant) {
        self.sockets.now = now;
        self.sockets.tell(&mut self.net, &mut self.processes.channels);
    }

    pub(crate) fn sweep(&mut self, now: Instant) {
        self.sockets.now = now;
        self.sockets.sweep(&mut self.net);
    }

    pub(crate) fn return_pinned(&mut self) {
        self.sockets.return_pinned(&mut self.net);
    }
}
