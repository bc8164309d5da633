//! The part of a handler's service that does not depend on the type of the handler.

use std::sync::Arc;

use towpath_direct::{SocketHandle, StreamOptions};
use towpath_stack::Instant;

use super::conn_action::ConnAction;
use super::conn_table::ConnTable;
use super::counters::SharedCounters;

/// Connections of a handler, and actions that its calls have requested for them.
#[derive(Debug)]
pub(super) struct ServiceCore {
    pub table: ConnTable,
    /// Number of the shard on which the handler runs.
    pub shard: usize,
    /// Open UDP sockets of the handler.
    pub udp: Vec<SocketHandle>,
    /// Memory for contiguous copies of bytes that wrap around the end of a receive buffer, kept for
    /// reuse.
    pub read_scratch: Vec<u8>,
    /// Memory for reserved space that wraps around the end of a send buffer, kept for reuse.
    pub write_scratch: Vec<u8>,
    /// Actions that calls of the handler have requested for connections, applied after the call.
    pub requested: Vec<(SocketHandle, ConnAction)>,
    pub counters: Arc<SharedCounters>,
    /// Socket options of outgoing connections.
    pub streams: StreamOptions,
}

impl ServiceCore {
    pub fn new(shard: usize, counters: Arc<SharedCounters>, streams: StreamOptions) -> Self {
        Self {
            table: ConnTable::new(Instant::ZERO),
            shard,
            udp: Vec::new(),
            read_scratch: Vec::new(),
            write_scratch: Vec::new(),
            requested: Vec::new(),
            counters,
            streams,
        }
    }

    /// Stores the current number of connections in the public counters.
    pub fn count_connections(&self) {
        self.counters.connections.set(self.table.len() as u64);
    }
}
