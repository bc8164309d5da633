//! Flows that are not in the shard that owns them. The reason is that a program chose the local
//! port of a connection, and the socket is in another shard than the flow's hash selects. Only the
//! owning shard knows whether the flow is free, because one of its connections, possibly in
//! TIME-WAIT, may use the flow. The SYN is therefore sent after the owner has answered. After that
//! all shards know which shard has the flow.
//!
//! ```text
//!  Stack::connect ─ Claim ──► owner: is the flow free?
//!  SYN            ◄─ Claimed ─ yes: the flow becomes an exception, known to all shards
//!  Error          ◄─ InUse ──── no: another connection uses the flow
//! ```
//! A flow that is already an exception is claimed from the shard that has it. Like an owner, this
//! shard ends a connection in TIME-WAIT.

use towpath_tcp::{Instant, SeqNum};

use super::ShardId;
use super::common::PeerChange;
use super::member::PeerShards;
use super::post::ShardMessage;
use crate::host::{Host, SocketError, SocketEvent, SocketId};
use crate::socket::SocketRole;
use crate::stack::Stack;
use crate::tables::flow::{Flow, FlowRef};

impl PeerShards {
    /// Returns whether a flow belongs to this shard (stack), or would belong to it if a connection
    /// were opened.
    #[inline]
    pub fn is_home(&self, flow: &Flow) -> bool {
        self.member.as_ref().is_none_or(|member| member.home(flow) == member.id)
    }

    /// Claims the flow of a connection that is to be opened, if the flow belongs to another shard.
    /// The connection sends nothing before the answer.
    pub fn claim(&mut self, index: u32, socket: SocketId, flow: Flow) {
        if self.is_home(&flow) {
            return;
        }
        let Some(member) = &mut self.member else { return };
        member.claims.insert(index);
        let (home, by) = (member.home(&flow), member.id);
        self.tell(home, ShardMessage::Claim { flow, socket, by });
    }

    /// Returns whether a connection still waits until another shard permits the use of the flow.
    #[inline]
    pub fn is_claiming(&self, index: u32) -> bool {
        self.member.as_ref().is_some_and(|member| member.claims.contains(&index))
    }

    /// Returns the flow of a connection that has ended to the shard that owns it.
    pub fn give_back(&mut self, flow: &Flow) {
        let Some(member) = &mut self.member else { return };
        if member.excepted.get(flow) == Some(&member.id) {
            member.excepted.remove(flow);
            member.common.post(member.id, &PeerChange::Excepted { flow: *flow, shard: None });
        }
    }

    /// Sets the shard that has a flow instead of its owner. `None` means that the flow was returned
    /// to its owner.
    pub fn set_excepted(&mut self, flow: Flow, shard: Option<ShardId>) {
        let Some(member) = &mut self.member else { return };
        match shard {
            Some(shard) => drop(member.excepted.insert(flow, shard)),
            None => drop(member.excepted.remove(&flow)),
        }
    }
}

impl<H: Host> Stack<H> {
    pub(crate) fn on_claim(&mut self, now: Instant, flow: Flow, socket: SocketId, by: ShardId) {
        let Some(member) = &self.shards.member else { return };
        let (own, home, owner) = (member.id, member.home(&flow), member.common.owners.of(&flow));
        let found = self.find_flow(self.keys.table.ends(&flow), &flow);
        let iss_min = match found {
            // Another shard has the flow, or has just returned it to its owner. Pass the claim on
            // to that shard.
            None if home != own => {
                return self.shards.tell(home, ShardMessage::Claim { flow, socket, by });
            }
            None => None,
            Some(FlowRef::TimeWait(at)) if self.time_waits.is_reusable(now, at) => {
                let iss_min = self.time_waits.get(at).map(|entry| entry.state.iss_min());
                // Remove the exception before `remove_time_wait`, which would otherwise return the
                // flow to its owner.
                self.shards.set_excepted(flow, None);
                self.counters.tcp_time_wait_reused += 1;
                self.remove_time_wait(at);
                iss_min
            }
            Some(_) => return self.shards.tell(by, ShardMessage::InUse { socket }),
        };
        let shard = (by != owner).then_some(by);
        self.shards.set_excepted(flow, shard);
        if let Some(member) = &self.shards.member {
            member.common.post(own, &PeerChange::Excepted { flow, shard });
        }
        self.shards.tell(by, ShardMessage::Claimed { flow, socket, iss_min });
    }

    pub(crate) fn on_claimed(&mut self, flow: Flow, id: SocketId, iss_min: Option<SeqNum>) {
        let Some(index) = self.index(id) else { return self.shards.give_back(&flow) };
        if let Some(member) = &mut self.shards.member {
            member.claims.remove(&index);
        }
        let Some(stream) = self.sockets.stream_mut(index) else {
            return self.shards.give_back(&flow);
        };
        if let (Some(connection), Some(iss_min)) = (&mut stream.connection, iss_min) {
            connection.begin_after(iss_min);
        }
        self.mark_dirty(index);
    }

    pub(crate) fn on_flow_in_use(&mut self, id: SocketId) {
        let Some(index) = self.index(id) else { return };
        if let Some(member) = &mut self.shards.member {
            member.claims.remove(&index);
        }
        let Some(socket) = self.sockets.get_mut(index) else { return };
        let SocketRole::Stream(stream) = &mut socket.kind else { return };
        if let Some(connection) = &mut stream.connection {
            connection.abort();
        }
        if !socket.orphan {
            let error = SocketEvent::Error(SocketError::AddrNotAvailable);
            self.events.push(socket.user, error);
        }
        self.mark_dirty(index);
    }
}
