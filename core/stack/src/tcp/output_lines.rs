//! Connections that wait for space in a device queue, with a list for each interface.

use std::collections::VecDeque;

use crate::host::SocketId;
use crate::limits::{TX_OUTPUT_BYTES, TX_OUTPUT_LOW, TX_OUTPUT_PACKETS};
use crate::net::{IfaceId, Net};

/// Lists of waiting connections, by the index of the interface.
#[derive(Debug, Default)]
pub(crate) struct OutputLines {
    lines: Vec<VecDeque<SocketId>>,
    /// Generation number of the routes when the lists were last checked.
    pub generation: u64,
}

impl OutputLines {
    /// Returns the interfaces for which connections may wait.
    pub fn ifaces(&self) -> impl Iterator<Item = IfaceId> + use<> {
        (0..self.lines.len()).map(|iface| IfaceId(iface as u16))
    }

    /// Returns whether connections wait for the device of the interface `iface`.
    #[inline]
    pub fn has_waiting(&self, iface: IfaceId) -> bool {
        self.lines.get(iface.index()).is_some_and(|line| !line.is_empty())
    }

    /// Returns whether no connection waits for a device.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(VecDeque::is_empty)
    }

    /// Returns whether waiting connections can continue, because the queue of their device has
    /// space.
    pub fn is_due(&self, net: &Net) -> bool {
        let mut lines = self.lines.iter().zip(0..);
        lines.any(|(line, iface)| !line.is_empty() && is_low(net, IfaceId(iface)))
    }

    /// Removes and returns the connection that has waited the longest time for the interface
    /// `iface`.
    pub fn pop(&mut self, iface: IfaceId) -> Option<SocketId> {
        self.lines.get_mut(iface.index())?.pop_front()
    }

    /// Appends a connection to the list of an interface. Connections that have ended remain in the
    /// list. If the list has more than `max` entries, the ended ones are removed. Otherwise they
    /// would accumulate while the device sends nothing.
    pub fn push(
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

/// Returns whether the device queue has so many packets of connections that connections must wait
/// before they send more. More packets would be late or dropped, which connections would mistake
/// for congestion of the path. Packets of other senders are counted separately, because those
/// senders never wait and could fill the queue.
pub(super) fn is_busy(net: &Net, iface: IfaceId) -> bool {
    let load = net.output_connections(iface);
    load.bytes >= TX_OUTPUT_BYTES || load.packets >= TX_OUTPUT_PACKETS
}

/// Returns whether the device queue contains so few packets of connections that connections that
/// wait for it may continue.
pub(super) fn is_low(net: &Net, iface: IfaceId) -> bool {
    let load = net.output_connections(iface);
    load.bytes <= TX_OUTPUT_BYTES / TX_OUTPUT_LOW
        && load.packets <= TX_OUTPUT_PACKETS / TX_OUTPUT_LOW
}
