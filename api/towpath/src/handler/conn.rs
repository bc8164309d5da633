//! [`Conn`], the access to a connection during one call of its handler.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use towpath_direct::{PrivateSockets, SocketHandle, StreamStatus};

use super::byte_reader::ByteReader;
use super::byte_writer::ByteWriter;
use super::conn_table::Searched;
use super::handler_shard::HandlerShard;
use super::service_core::ServiceCore;

/// Identifies a connection of a handler on one thread of the stack. On this thread, an id is never
/// reused for another connection. Threads assign ids independently, so store the thread's
/// [number](HandlerShard::number) or [`HandlerRemote`](super::HandlerRemote) together with the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(super) SocketHandle);

/// A connection, borrowed by a handler for one call.
pub struct Conn<'a> {
    core: &'a mut ServiceCore,
    sockets: &'a mut dyn PrivateSockets,
    handle: SocketHandle,
    was_read: bool,
    was_written: bool,
    /// Whether this stack initiated the connection.
    is_outgoing: bool,
    /// Placeholder for the search history of [`ByteReader::find`], used if the connection ended
    /// during the call.
    no_searches: Searched,
}

impl<'a> Conn<'a> {
    pub(super) fn new(
        core: &'a mut ServiceCore,
        sockets: &'a mut dyn PrivateSockets,
        handle: SocketHandle,
        is_outgoing: bool,
    ) -> Self {
        let no_searches = Searched::default();
        let (was_read, was_written) = (false, false);
        Self { core, sockets, handle, was_read, was_written, is_outgoing, no_searches }
    }

    /// Notifies the stack of bytes that were read or written, so that it sends data or a window
    /// update.
    pub(super) fn settle(self) {
        if self.was_read || self.was_written {
            self.sockets.buffers_used(self.handle, self.was_read, self.was_written);
        }
    }

    /// Returns the id of the connection, to name it in calls of [`HandlerShard`] or from another
    /// thread.
    pub fn id(&self) -> ConnId {
        ConnId(self.handle)
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.sockets.ends(self.handle).1.unwrap_or(UNSPECIFIED)
    }

    /// Returns the local address of the connection.
    pub fn local_addr(&self) -> SocketAddr {
        self.sockets.ends(self.handle).0.unwrap_or(UNSPECIFIED)
    }

    /// Returns whether [`HandlerShard::connect`] initiated the connection. Valid only during
    /// [`Handler::accepted`](super::Handler::accepted); later calls return false.
    pub fn is_outgoing(&self) -> bool {
        self.is_outgoing
    }

    /// Returns a reader of the received bytes.
    pub fn reader(&mut self) -> ByteReader<'_> {
        self.split().0
    }

    /// Returns a writer to the send buffer.
    pub fn writer(&mut self) -> ByteWriter<'_> {
        self.split().1
    }

    /// Returns a reader of the received bytes, and a writer to the send buffer.
    pub fn split(&mut self) -> (ByteReader<'_>, ByteWriter<'_>) {
        let status = self.status();
        let buffers = self.sockets.buffers(self.handle);
        let (recv, send) = buffers.unzip();
        let ServiceCore { table, read_scratch, write_scratch, .. } = &mut *self.core;
        let entry = table.get_mut(self.handle);
        let reader = ByteReader {
            recv,
            scratch: read_scratch,
            searched: entry.map_or(&mut self.no_searches, |entry| &mut entry.searched),
            was_read: &mut self.was_read,
            is_ended: status.ended,
        };
        let writer = ByteWriter {
            send: send.filter(|_| !status.shut && status.failure.is_none()),
            scratch: write_scratch,
            was_written: &mut self.was_written,
        };
        (reader, writer)
    }

    /// Sends a FIN after the bytes written so far. Reading remains possible.
    pub fn end_bytes(&mut self) {
        if std::mem::take(&mut self.was_written) {
            self.sockets.buffers_used(self.handle, false, true);
        }
        self.sockets.shutdown(self.handle);
    }

    /// Sets the timer of the connection, and replaces an earlier setting. After this time,
    /// [`Handler::timer`](super::Handler::timer) is called once.
    pub fn set_timer(&mut self, after: Duration) {
        let deadline = self.sockets.now() + after;
        self.core.table.set_timer(self.handle, Some(deadline));
    }

    /// Clears the timer of the connection.
    pub fn clear_timer(&mut self) {
        self.core.table.set_timer(self.handle, None);
    }

    /// Returns access to the other connections and sockets of the handler on this thread.
    pub fn shard(&mut self) -> HandlerShard<'_> {
        HandlerShard { core: self.core, sockets: self.sockets }
    }

    fn status(&self) -> StreamStatus {
        let ended = StreamStatus { ended: true, shut: true, failure: None };
        self.sockets.status(self.handle).unwrap_or(ended)
    }
}

/// Address returned for a connection that the stack has already removed.
const UNSPECIFIED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl fmt::Debug for Conn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn").field("id", &self.id()).finish_non_exhaustive()
    }
}
