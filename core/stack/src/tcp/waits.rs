//! Waiting of sockets for space in a device queue: its beginning and its end.

use crate::host::{Host, SocketEvent, SocketId};
use crate::net::{IfaceId, place};
use crate::socket::{SocketRole, Waits};
use crate::stack::Stack;

impl<H: Host> Stack<H> {
    /// Appends a connection to the list of connections that wait for a device, unless it is already
    /// in the list.
    pub(super) fn stand_in_line(&mut self, iface: IfaceId, index: u32) {
        let id = SocketId(self.sockets.id(index));
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if std::mem::replace(&mut socket.waits, Waits::InLine) == Waits::InLine {
            return;
        }
        let is_alive = |id: SocketId| self.sockets.find(id.0).is_some();
        self.output_lines.push(iface, id, 2 * self.sockets.len(), is_alive);
    }

    /// Ends the wait of a connection for its device, or for its own limit. The connection may have
    /// to wait again when it sends. The connection may remain in the list of waiting ones, which
    /// only causes unnecessary work. If the socket is a datagram socket, its owner gets an event.
    pub(crate) fn end_wait(&mut self, index: u32) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if std::mem::replace(&mut socket.waits, Waits::ForNothing) == Waits::ForNothing {
            return;
        }
        match socket.kind {
            SocketRole::Datagram(_) => self.events.push(socket.user, SocketEvent::Writable),
            _ => self.mark_dirty(index),
        }
    }

    /// Ends the waiting of sockets after devices have accepted packets. A connection that had
    /// reached its own limit continues when most of its bytes were sent. If routes have changed,
    /// all waiting connections continue, because their new route may not use the device for which
    /// they wait.
    pub(crate) fn end_waits(&mut self) {
        while let Some(sender) = self.net.pop_drained() {
            let index = place(sender);
            if self.sockets.get(index).is_some_and(|socket| socket.waits == Waits::ForShare) {
                self.end_wait(index);
            }
        }
        let generation = self.net.route_generation();
        if std::mem::replace(&mut self.output_lines.generation, generation) == generation {
            return;
        }
        for sender in self.net.senders() {
            self.end_wait(place(sender));
        }
        for iface in self.output_lines.ifaces() {
            while let Some(id) = self.output_lines.pop(iface) {
                let Some(index) = self.index(id) else { continue };
                if let Some(socket) = self.sockets.get_mut(index) {
                    socket.waits = Waits::ForNothing;
                }
                self.mark_dirty(index);
            }
        }
    }
}
