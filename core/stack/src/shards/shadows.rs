//! Shadows: table entries that represent sockets of other shards. A lookup finds a shadow like a
//! socket, but packets for it are passed to the socket's shard.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::ShardId;
use super::common::{PeerChange, Shadow, ShadowKind};
use crate::host::{Host, SocketId};
use crate::ports::bind_addr::PortProtocol;
use crate::socket::{SocketRole, StackSocket};
use crate::stack::Stack;
use crate::tcp::listener::{AmongShards, ListeningSocket};
use crate::udp::socket::DatagramSocket;

impl<H: Host> Stack<H> {
    /// Applies the changes of other shards and of the host's configuration, before a call of a
    /// program.
    #[inline]
    pub(crate) fn catch_up(&mut self) {
        self.net.catch_up();
        self.catch_up_with_sockets();
    }

    /// Applies the changes of other shards and of the host's configuration, before a batch of
    /// packets. Does not wait for a thread that is changing the configuration.
    #[inline]
    pub(crate) fn catch_up_for_batch(&mut self) {
        self.net.catch_up_if_free();
        self.catch_up_with_sockets();
    }

    #[inline]
    fn catch_up_with_sockets(&mut self) {
        let Some(member) = &mut self.shards.member else { return };
        let Some(changes) = member.common.changes(member.id, member.seen) else { return };
        member.seen += changes.len() as u64;
        for change in changes {
            match change {
                PeerChange::Shadow { table, seat, shadow: Some(shadow) } => {
                    self.set_shadow(table, seat, *shadow);
                }
                PeerChange::Shadow { table, seat, shadow: None } => self.remove_shadow(table, seat),
                PeerChange::Excepted { flow, shard } => self.shards.set_excepted(flow, shard),
            }
        }
    }

    /// Calls `change` to modify the receiving sockets of a protocol, and makes the modifications of
    /// all shards in the same order. `change` returns whether the socket at `index` receives
    /// packets afterwards. `port` is the port on which it may have received packets before.
    pub(crate) fn in_order(
        &mut self,
        table: PortProtocol,
        index: u32,
        port: u16,
        change: impl FnOnce(&mut Self) -> bool,
    ) {
        let Some(announced) = self.ports.of(table).announced() else {
            let takes = change(self);
            return self.tell_watch(table, index, port, takes);
        };
        let mut announced = announced.lock().unwrap_or_else(PoisonError::into_inner);
        let (seat, shard) = self.ports.of(table).seat(index);
        announced.open(port, shard);
        self.catch_up();
        let takes = change(self);
        // The watch, which observes receiving sockets, may admit clients. Call it only while the
        // other shards know the socket. Otherwise a shard could refuse a packet of an admitted
        // client.
        if !takes {
            self.tell_watch(table, index, port, takes);
        }
        match self.shadow_of(index, shard).filter(|_| takes) {
            Some((port, shadow)) => announced.set(port, seat, Box::new(shadow)),
            None => announced.remove(port, seat, shard),
        }
        if takes {
            self.tell_watch(table, index, port, takes);
        }
    }

    /// Returns the properties of a receiving socket that this shard announces to other shards, and
    /// the port of the socket.
    fn shadow_of(&self, index: u32, shard: ShardId) -> Option<(u16, Shadow)> {
        let socket = self.sockets.get(index)?;
        let bound = socket.bound.as_deref().copied().filter(|bound| bound.has_port())?;
        let kind = match &socket.kind {
            SocketRole::Listener(listener) => match listener.among.as_deref()? {
                AmongShards::Original { room, note, .. } => {
                    let (settings, room) = (Box::new(listener.settings), room.clone());
                    ShadowKind::Listener { settings, room, note: *note }
                }
                AmongShards::Shadow { .. } => return None,
            },
            SocketRole::Datagram(datagram) => {
                ShadowKind::Datagram { echo: datagram.echo, peer: datagram.peer }
            }
            _ => return None,
        };
        let id = SocketId(self.sockets.id(index));
        let (user, family, device) = (socket.user, socket.family, socket.device());
        Some((bound.port, Shadow { shard, id, user, family, bound, device, kind }))
    }

    fn set_shadow(&mut self, table: PortProtocol, seat: u32, shadow: Shadow) {
        let known =
            self.shards.member.as_ref().and_then(|member| member.shadows.get(&(table, seat)));
        let Some(&index) = known else {
            let index = self.insert_shadow(shadow);
            self.take_as_shadow(index);
            if let Some(member) = &mut self.shards.member {
                member.shadows.insert((table, seat), index);
            }
            return;
        };
        // Keep the position of a socket among sockets that receive the same packets, unless its
        // address changes.
        let Some(before) = self.sockets.get(index) else { return };
        let moves = match (&before.kind, &shadow.kind) {
            (SocketRole::Datagram(before), ShadowKind::Datagram { peer, .. }) => {
                before.peer != *peer
            }
            _ => false,
        };
        let place = before.bound.as_deref().map(|bound| (bound.addr, bound.port));
        let moves = moves
            || before.device() != shadow.device
            || place != Some((shadow.bound.addr, shadow.bound.port));
        if moves {
            self.leave_as_shadow(index);
        }
        let Some(socket) = self.sockets.get_mut(index) else { return };
        let Shadow { bound, device, kind, .. } = shadow;
        socket.bound = Some(Box::new(bound));
        match (&mut socket.kind, kind) {
            (SocketRole::Listener(listener), ShadowKind::Listener { settings, note: said, .. }) => {
                listener.settings = *settings;
                if let Some(AmongShards::Shadow { note, .. }) = listener.among.as_deref_mut() {
                    *note = said;
                }
            }
            (SocketRole::Datagram(datagram), ShadowKind::Datagram { peer, .. }) => {
                (datagram.peer, datagram.device) = (peer, device);
            }
            _ => {}
        }
        match moves {
            true => self.take_as_shadow(index),
            false => {
                let reuse_port = bound.options.reuse_port;
                let receivers = &mut self.ports.of_mut(table).receivers;
                receivers.set_reuse_port(bound.addr, bound.port, index, reuse_port);
                receivers.set_processor(bound.addr, bound.port, index, bound.options.processor);
            }
        }
    }

    fn insert_shadow(&mut self, shadow: Shadow) -> u32 {
        let Shadow { shard, id, user, family, bound, device, kind } = shadow;
        let kind = match kind {
            ShadowKind::Listener { settings, room, note } => {
                let mut listener = ListeningSocket::new(*settings, 0);
                let unqueued = VecDeque::new();
                let among = AmongShards::Shadow { shard, id, room, note, unqueued };
                listener.among = Some(Box::new(among));
                SocketRole::Listener(Box::new(listener))
            }
            ShadowKind::Datagram { echo, peer } => {
                let datagram = DatagramSocket::new(echo, family);
                let shadow_of = Some(shard);
                SocketRole::Datagram(Box::new(DatagramSocket {
                    peer,
                    device,
                    shadow_of,
                    ..datagram
                }))
            }
        };
        let bound = Some(Box::new(bound));
        self.sockets.insert(StackSocket { bound, ..StackSocket::new(user, family, kind) })
    }

    /// Adds the entry that represents a socket of another shard to the tables, so that lookups for
    /// packets to this socket find it.
    fn take_as_shadow(&mut self, index: u32) {
        let Some(socket) = self.sockets.get(index) else { return };
        let Some(bound) = socket.bound.as_deref().copied() else { return };
        if matches!(&socket.kind, SocketRole::Datagram(datagram) if datagram.peer.is_some()) {
            return self.datagrams.peers.enter(self.keys.table, &mut self.sockets, index);
        }
        let (table, device) = (socket.kind.table(), socket.device());
        let receivers = &mut self.ports.of_mut(table).receivers;
        receivers.insert(bound.addr, bound.port, index, device, bound.options.sharing());
        receivers.set_processor(bound.addr, bound.port, index, bound.options.processor);
    }

    fn leave_as_shadow(&mut self, index: u32) {
        if self.datagrams.peers.leave(self.keys.table, &mut self.sockets, index) {
            return;
        }
        let Some(socket) = self.sockets.get(index) else { return };
        let Some(bound) = socket.bound.as_deref().copied() else { return };
        let table = socket.kind.table();
        self.ports.of_mut(table).receivers.remove(bound.addr, bound.port, index);
    }

    fn remove_shadow(&mut self, table: PortProtocol, seat: u32) {
        let Some(member) = &mut self.shards.member else { return };
        let Some(index) = member.shadows.remove(&(table, seat)) else { return };
        self.leave_as_shadow(index);
        self.close_half_open(index);
        let Some(StackSocket { user, kind, .. }) = self.sockets.remove(index) else { return };
        if let SocketRole::Listener(listener) = kind
            && let Some(elsewhere) = listener.elsewhere(user)
            && let Some(AmongShards::Shadow { unqueued, .. }) = listener.among.map(|among| *among)
            && let Some(member) = &mut self.shards.member
        {
            // Reset the connections that wait for the listener, because it was closed and no
            // program can accept them.
            member.forsaken.extend(unqueued);
            member.gone.push_back(elsewhere);
        }
    }
}
