//! Connections that wait for a device, in a queue per interface.

use std::collections::VecDeque;

use crate::host::SocketId;
use crate::limits::{TX_OUTPUT_BYTES, TX_OUTPUT_LOW, TX_OUTPUT_PACKETS};
use crate::net::{IfaceId, Net};

/// Queues of connections, by interface.
#[derive(Debug, Default)]
pub(crate) struct OutputLines {
    lines: Vec<VecDeque<SocketId>>,
    /// Generation of the routes when last checked.
    pub generation: u64,
}

impl OutputLines {
    /// Returns the interfaces that may have a queue.
    pub fn ifaces(&self) -> impl Iterator<Item = IfaceId> + use<> {
        (0..self.lines.len()).map(|iface| IfaceId(iface as u16))
    }

    /// Returns whether connections wait for the device.
    #[inline]
    pub fn has_waiting(&self, iface: IfaceId) -> bool {
        self.lines.get(iface.index()).is_some_and(|line| !line.is_empty())
    }

    /// Returns whether no connection waits for a device.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(VecDeque::is_empty)
    }

    /// Returns whether connections that wait for a device can continue.
    pub fn is_due(&self, net: &Net) -> bool {
        let mut lines = self.lines.iter().zip(0..);
        lines.any(|(line, iface)| !line.is_empty() && is_low(net, IfaceId(iface)))
    }

    /// Removes the connection that has waited longest.
    pub fn pop(&mut self, iface: IfaceId) -> Option<SocketId> {
        self.lines.get_mut(iface.index())?.pop_front()
    }

    /// Appends a connection to a queue. Connections that end leave their ids in the queue. A queue
    /// of more than `max` entries removes these, because otherwise they would accumulate while the
    /// device is stopped.
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

/// Returns whether the device cannot keep up with the connections' packets in its queue. Further
/// packets would be late, or dropped, which would be mistaken for congestion of the path. Packets
/// of other senders are counted separately, because those senders never wait and could fill the
/// queue.
pub(super) fn is_busy(net: &Net, iface: IfaceId) -> bool {
    let load = net.output_connections(iface);
    load.bytes >= TX_OUTPUT_BYTES || load.packets >= TX_OUTPUT_PACKETS
}

/// Returns whether the queue has drained enough for waiting connections to continue.
pub(super) fn is_low(net: &Net, iface: IfaceId) -> bool {
    let load = net.output_connections(iface);
    load.bytes <= TX_OUTPUT_BYTES / TX_OUTPUT_LOW
        && load.packets <= TX_OUTPUT_PACKETS / TX_OUTPUT_LOW
}
