//! Places of half-open connections in the SYN cache, and the selection of entries to be evicted.

use towpath_tcp::Instant;

use crate::host::Host;
use crate::limits;
use crate::socket::SocketRole;
use crate::stack::{Stack, TimerOwner};
use crate::tables::flow::FlowRef;
use crate::tcp::handshake::{HalfOpenFlow, HandshakeParent};

impl<H: Host> Stack<H> {
    /// Evicts a half-open connection of the listener, if the SYN cache has no free place for a new
    /// one.
    pub(super) fn make_place(&mut self, now: Instant, index: u32) {
        let Some(listener) = self.sockets.listener(index) else {
            return;
        };
        if self.handshakes.has_share(listener, self.config.syn_cache_max) {
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc4987#section-3.4
        //# some implementations allow incoming SYNs to overwrite the oldest half-open TCB entry.
        let Some(at) = self.handshakes.displaceable(now, listener) else { return };
        self.counters.tcp_half_open_displaced += 1;
        self.remove_half_open(at);
        if let Some(listener) = self.sockets.listener_mut(index) {
            listener.lenient_until = listener.lenient_until.max(now + limits::DISPLACED_TIME);
        }
    }

    /// Adds a half-open connection to the SYN cache, and to the flow table under the hash `hash`.
    pub(super) fn store_half_open(&mut self, entry: HalfOpenFlow, hash: u64) -> u32 {
        let deadline = entry.half_open.next_timeout();
        let line = match entry.parent {
            HandshakeParent::Listener(index) => {
                match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
                    Some(SocketRole::Listener(listener)) => {
                        if entry.has_place {
                            listener.promised += 1;
                            listener.publish();
                        }
                        &mut listener.half_open
                    }
                    _ => unreachable!("the caller found the listener"),
                }
            }
            HandshakeParent::EarlyAccept(_) => &mut self.handshakes.early,
        };
        let at = self.handshakes.half_open.push(line, entry);
        self.flows.insert(hash, FlowRef::HalfOpen(at));
        if let Some(entry) = self.handshakes.half_open.get_mut(at) {
            self.wheel.set(&mut entry.timer, Some(deadline), TimerOwner::HalfOpen(at));
        }
        at
    }

    /// Assigns the flow of a half-open connection to a socket, and removes the half-open
    /// connection.
    pub(super) fn take_over_flow(
        &mut self,
        at: u32,
        hash: u64,
        index: u32,
    ) -> Option<HalfOpenFlow> {
        let entry = self.forget_half_open(at);
        let replaced = self.flows.replace(hash, FlowRef::HalfOpen(at), FlowRef::Socket(index));
        debug_assert!(replaced, "the flow of a half-open connection is in the table");
        entry
    }

    /// Removes an entry from the SYN cache. Its flow remains in the flow table.
    fn forget_half_open(&mut self, at: u32) -> Option<HalfOpenFlow> {
        let HalfOpenFlow { parent, has_place, .. } = *self.handshakes.half_open.get(at)?;
        let line = match parent {
            HandshakeParent::Listener(index) => {
                match self.sockets.get_mut(index).map(|socket| &mut socket.kind) {
                    Some(SocketRole::Listener(listener)) => {
                        if has_place {
                            listener.promised -= 1;
                            listener.publish();
                        }
                        &mut listener.half_open
                    }
                    _ => unreachable!("a listener takes its half-open connections with it"),
                }
            }
            HandshakeParent::EarlyAccept(_) => &mut self.handshakes.early,
        };
        let mut entry = self.handshakes.half_open.remove(line, at)?;
        self.wheel.cancel(&mut entry.timer);
        Some(entry)
    }

    /// Removes a half-open connection from the SYN cache and the flow table. No segment is sent.
    pub(crate) fn remove_half_open(&mut self, at: u32) {
        if let Some(entry) = self.forget_half_open(at) {
            self.flows.remove(self.keys.table.ends(&entry.flow), FlowRef::HalfOpen(at));
            if let (HandshakeParent::Listener(index), true) = (entry.parent, entry.has_place) {
                self.tell_of_room(index);
            }
        }
    }

    /// Removes the half-open connections of a socket: of a listener, or of a connection whose SYN
    /// the owner had accepted. No segment is sent. The next segment of each peer is answered by a
    /// RST.
    pub(crate) fn close_half_open(&mut self, index: u32) {
        while let Some(socket) = self.sockets.get(index) {
            let at = match &socket.kind {
                SocketRole::Listener(listener) => listener.half_open.front(),
                SocketRole::EarlyAccept(early) => {
                    self.handshakes.half_open.get(early.half_open).map(|_| early.half_open)
                }
                _ => None,
            };
            let Some(at) = at else { return };
            self.remove_half_open(at);
        }
    }
}
