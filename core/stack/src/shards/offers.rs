//! Offers of connections to listeners of other shards, and the number of free places in the accept
//! queue, which other shards see. The module `children` handles the offers.

use std::net::SocketAddr;

use towpath_tcp::Instant;

use super::ShardId;
use super::post::{Offer, OfferedChild, ShardMessage};
use crate::host::{Host, ListenerName, SocketId};
use crate::net::IfaceId;
use crate::stack::Stack;
use crate::tcp::active::{loopback_if_unspecified, with_scope};
use crate::tcp::stream::StreamSocket;

impl<H: Host> Stack<H> {
    /// Offers an established connection (`child`) to its listener, which is in another shard. The
    /// owner chooses `tag`. [`Host::enqueue`] is then called in the other shard, or
    /// [`Host::refused`] in this shard.
    ///
    /// Returns false if the connection was removed; neither function is called then. Offers of
    /// several shards enter the queue in the order of `now`, the time of the event loop's turn.
    pub fn offer_to(
        &mut self,
        now: Instant,
        listener: ListenerName,
        child: SocketId,
        tag: u32,
    ) -> bool {
        let socket = self.index(child).and_then(|index| self.sockets.get(index));
        let Some(user) = socket.map(|socket| socket.user) else { return false };
        self.offer(now, listener, OfferedChild { id: child, user, tag }, None)
    }

    /// Offers a connection to the listener `to`, which is in another shard. `more` is `None` for a
    /// new connection. If the connection waited for a free place, `more` states whether further
    /// connections wait.
    pub(super) fn offer(
        &mut self,
        at: Instant,
        to: ListenerName,
        child: OfferedChild,
        more: Option<bool>,
    ) -> bool {
        let stream = self.index(child.id).and_then(|index| self.sockets.stream(index));
        let Some(stream) = stream else { return false };
        let StreamSocket { flow, iface, .. } = *stream;
        // The interface is needed only for link-local addresses, and connections with such
        // addresses store it.
        let iface = self.net.link_of(iface.unwrap_or(IfaceId::LOOPBACK), flow.local);
        let (local, remote) = (with_scope(flow.local(), iface), with_scope(flow.remote(), iface));
        let Some(from) = self.shards.own() else { return false };
        let (again, more) = (more.is_some(), more == Some(true));
        let listener = to.id;
        let offer = Offer { listener, from, child, local, remote, at, again, more };
        self.shards.tell(to.shard, ShardMessage::Offer(offer));
        true
    }

    /// Sends a message to the owner of another shard. The message arrives in one of the next turns
    /// of that shard's event loop ([`Host::told`]). Messages are never lost. Has no effect in a
    /// single stack.
    pub fn tell_owner(&mut self, shard: ShardId, words: [u64; 3]) {
        let Some(from) = self.shards.own() else { return };
        self.shards.tell(shard, ShardMessage::Owner { from, words });
    }

    /// Returns the set of shards whose listeners may receive a connection of this host to itself,
    /// as bits. If many listeners share the port, the result may contain all shards.
    pub fn listening_shards(&self, to: SocketAddr) -> u16 {
        /// Maximum number of listeners that are examined. If there are more, all shards are
        /// returned.
        const LOOKED_AT: usize = 64;
        let (ip, port) = (loopback_if_unspecified(to.ip().to_canonical()), to.port());
        let iface = self.net.link_of(IfaceId::LOOPBACK, ip);
        let own = self.shards.number();
        let mut shards = 0;
        for (n, index) in self.ports.tcp.receivers.all(ip, port, iface).enumerate() {
            if n == LOOKED_AT {
                return self.shards.member.as_ref().map_or(1, |member| member.everybody());
            }
            let Some(listener) = self.sockets.listener(index) else { continue };
            let shard = listener.elsewhere(0).map_or(own, |listener| listener.name.shard.0);
            shards |= 1 << shard;
        }
        shards
    }

    /// Notifies the stack that the owner has space for a connection again, after [`Host::enqueue`]
    /// returned false.
    pub fn offer_again(&mut self, listener: SocketId) {
        if let Some(index) = self.index(listener) {
            self.tell_of_room(index);
        }
    }

    /// Notifies one shard that the listener's accept queue may have a free place, if an offer of
    /// this shard was rejected. The next offer of that shard states whether further connections
    /// wait in it.
    pub(crate) fn tell_of_room(&mut self, index: u32) {
        let listener = SocketId(self.sockets.id(index));
        let Some(state) = self.sockets.listener_mut(index) else { return };
        state.publish();
        if let (Some(shard), Some(from)) = (state.next_turned_away(), self.shards.own()) {
            self.shards.tell(shard, ShardMessage::Room { listener, from });
        }
    }
}
