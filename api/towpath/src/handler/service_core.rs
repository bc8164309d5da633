//! The part of a handler's service that does not depend on the type of the handler.

use std::sync::Arc;

use towpath_direct::{SocketHandle, StreamOptions};
use towpath_stack::Instant;

use super::conn_action::ConnAction;
use super::conn_table::ConnTable;
use super::counters::SharedCounters;

/// Connections of a handler, and what its calls have requested.
#[derive(Debug)]
pub(super) struct ServiceCore {
    pub table: ConnTable,
    /// Number of the shard.
    pub shard: usize,
    /// UDP sockets of the handler.
    pub udp: Vec<SocketHandle>,
    /// Contiguous copies of bytes that wrap in a receive buffer, kept to reuse the memory.
    pub read_scratch: Vec<u8>,
    /// As `read_scratch`, for bytes to be sent.
    pub write_scratch: Vec<u8>,
    /// Actions that calls have requested for connections, to be taken after the call.
    pub requested: Vec<(SocketHandle, ConnAction)>,
    pub counters: Arc<SharedCounters>,
    /// Options of outgoing connections.
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

    /// Publishes the current number of connections.
    pub fn count_connections(&self) {
        self.counters.connections.set(self.table.len() as u64);
    }
}
