//! Checks of the invariants of the stack's tables, for simulators and tests.

use crate::host::{Host, SocketId};
use crate::socket::{SocketRole, Waits};
use crate::stack::Stack;

impl<H: Host> Stack<H> {
    /// Returns the first violated invariant and the affected socket, or `None` if all hold.
    /// Connections that wait to be processed in the next turn are skipped, because their state is
    /// not final.
    ///
    /// The check takes time in proportion to the number of sockets, and is not used in production.
    pub fn audit(&self) -> Option<(Option<SocketId>, &'static str)> {
        let (mut streams, mut orphans) = (0, 0);
        for (index, socket) in self.sockets.iter() {
            let id = || Some(SocketId(self.sockets.id(index)));
            orphans += usize::from(socket.orphan);
            let SocketRole::Stream(stream) = &socket.kind else { continue };
            let Some(connection) = &stream.connection else { continue };
            streams += 1;
            if socket.dirty || socket.waits != Waits::ForNothing {
                continue;
            }
            if let Some(rule) = connection.audit(stream.buffers()) {
                return Some((id(), rule));
            }
        }
        if orphans != self.ended.orphans {
            return Some((None, "each closed socket is counted as an orphan"));
        }
        let usage = self.usage();
        let flows = usage.half_open + usage.time_wait + usage.pending;
        if usage.flows < flows || usage.flows > flows + streams + usage.sockets {
            return Some((None, "each 4-tuple has an owner"));
        }
        None
    }
}
