//! Connections that wait for a device, in a line for each interface.

use std::collections::VecDeque;

use crate::host::{Host, SocketEvent, SocketId};
use crate::limits::{TX_OUTPUT_BYTES, TX_OUTPUT_LOW, TX_OUTPUT_PACKETS};
use crate::net::{IfaceId, Net, place};
use crate::socket::{Kind, Waits};
use crate::stack::Stack;

/// Lines of connections, by interface.
#[derive(Debug, Default)]
pub(crate) struct OutputLines {
    lines: Vec<VecDeque<SocketId>>,
    /// Generation of the routes at the last look.
    generation: u64,
}

impl OutputLines {
    /// Interfaces that may have a line.
    pub fn ifaces(&self) -> impl Iterator<Item = IfaceId> + use<> {
        (0..self.lines.len()).map(|iface| IfaceId(iface as u16))
    }

    /// Whether connections wait for the device.
    #[inline]
    pub fn has_waiting(&self, iface: IfaceId) -> bool {
        self.lines.get(iface.index()).is_some_and(|line| !line.is_empty())
    }

    /// Whether no connection waits.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(VecDeque::is_empty)
    }

    /// Whether connections that wait for a device can go on.
    pub fn is_due(&self, net: &Net) -> bool {
        let mut lines = self.lines.iter().zip(0..);
        lines.any(|(line, iface)| !line.is_empty() && is_low(net, IfaceId(iface)))
    }

    /// Takes the connection that has waited longest.
    pub fn pop(&mut self, iface: IfaceId) -> Option<SocketId> {
        self.lines.get_mut(iface.index())?.pop_front()
    }

    /// Puts a connection at the end of a line. Connections that end leave their ids behind; those
    /// that are not alive go when the line has more than `max` entries, because they may not pile
    /// up while the device takes nothing.
    fn push(
        &mut self,
        iface: IfaceId,
        id: SocketId,
        max: usize,
        is_alive: impl Fn(SocketId) -> bool,
    ) {
        if self.lines.len() <= iface.index() {
            self.lines.resize_with(iface.index() + 1, VecDeque::new);
        }
        let line = &mut self.lines[iface.index()];
        if line.len() > max {
            line.retain(|id| is_alive(*id));
        }
        line.push_back(id);
    }
}

/// Whether the device does not keep up with the connections' packets in its queue. More of them
/// would be late, or lost and taken for congestion of the path. Other senders' packets are counted
/// apart, because those senders never wait and could fill the queue.
pub(super) fn is_busy(net: &Net, iface: IfaceId) -> bool {
    let load = net.output_connections(iface);
    load.bytes >= TX_OUTPUT_BYTES || load.packets >= TX_OUTPUT_PACKETS
}

/// Whether the device has taken so much that waiting connections go on.
pub(super) fn is_low(net: &Net, iface: IfaceId) -> bool {
    let load = net.output_connections(iface);
    load.bytes <= TX_OUTPUT_BYTES / TX_OUTPUT_LOW
        && load.packets <= TX_OUTPUT_PACKETS / TX_OUTPUT_LOW
}

impl<H: Host> Stack<H> {
    /// Puts a connection at the end of the line for a device, once.
    pub(super) fn stand_in_line(&mut self, iface: IfaceId, index: u32) {
        let id = SocketId(self.sockets.id(index));
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if std::mem::replace(&mut socket.waits, Waits::InLine) == Waits::InLine {
            return;
        }
        let is_alive = |id: SocketId| self.sockets.find(id.0).is_some();
        self.output_lines.push(iface, id, 2 * self.sockets.len(), is_alive);
    }

    /// Ends a connection's wait for a device, or for its share of one; the next visit may begin
    /// another. Its place in a line may stay, and costs a superfluous visit. The owner of a
    /// datagram socket gets an event.
    pub(crate) fn end_wait(&mut self, index: u32) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if std::mem::replace(&mut socket.waits, Waits::ForNothing) == Waits::ForNothing {
            return;
        }
        match socket.kind {
            Kind::Datagram(_) => self.events.push(socket.user, SocketEvent::Writable),
            _ => self.mark_dirty(index),
        }
    }

    /// The devices took as much as they could. Connections whose share is mostly drained go on.
    /// When routes have changed all waiting ones do, because they may no longer use the device that
    /// they wait for.
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
