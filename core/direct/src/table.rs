//! Table of a node's sockets by handle.

use std::collections::VecDeque;

use towpath_stack::{DatagramMeta, ReceivedFields, SocketError, SocketId};

use crate::event::PendingEvents;
use crate::handle::SocketHandle;

/// Buffer sizes of a connection in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferSizes {
    /// Initial capacity of the receive buffer, which determines the first window.
    pub recv: u32,
    /// Maximum capacity under receive autotuning.
    pub recv_max: u32,
    /// Initial capacity of the send buffer.
    pub send: u32,
    /// Maximum capacity of the send buffer as the congestion window grows.
    pub send_max: u32,
}

impl Default for BufferSizes {
    /// Returns the defaults of Linux's `tcp_rmem` and `tcp_wmem`, except that the send buffer
    /// starts at 64 KiB.
    fn default() -> Self {
        Self { recv: 128 << 10, recv_max: 6 << 20, send: 64 << 10, send_max: 4 << 20 }
    }
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamStatus {
    /// Whether the peer has closed its direction: the stream ends after the unread bytes.
    pub ended: bool,
    /// Whether the owner has closed the sending direction.
    pub shut: bool,
    /// Error that ended the connection.
    pub failure: Option<SocketError>,
}

/// Received datagram; for an echo socket, an ICMP message including its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// Addresses and header fields.
    pub meta: DatagramMeta,
    /// Payload.
    pub bytes: Vec<u8>,
}

impl ReceivedDatagram {
    /// Returns the bytes counted against `datagram_bytes_max`; empty datagrams use memory, too.
    pub(crate) fn size(payload: usize) -> usize {
        payload + 64
    }
}

/// A socket of a [`Node`](crate::Node), with the events that its owner has not polled yet.
#[derive(Debug)]
pub(crate) struct DirectEntry {
    pub handle: SocketHandle,
    /// Id in the stack.
    pub id: SocketId,
    pub kind: DirectKind,
    /// Events not polled yet.
    pub pending: PendingEvents,
    /// Whether the socket is in the queue of sockets with events.
    pub queued: bool,
    pub life: SocketLife,
    /// IP fields of the last segment of a connection.
    pub received: Option<ReceivedFields>,
    /// Error that ended the connection, or the latest error of a datagram socket.
    pub failure: Option<SocketError>,
    /// Whether the peer's FIN was received.
    pub ended: bool,
    /// Whether the sending direction was shut down.
    pub shut: bool,
}

/// Ownership state of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketLife {
    /// Child in an accept queue whose handle was not given out.
    Unaccepted,
    /// In use by its owner.
    Open,
    /// Closed by its owner: [`crate::NodeEvent::Closed`] follows.
    Closing,
    /// Removed without an event, because the owner never had the handle.
    Silent,
}

#[derive(Debug)]
pub(crate) enum DirectKind {
    Stream,
    Listener {
        /// Children to be accepted, oldest first.
        children: VecDeque<SocketHandle>,
        buffers: BufferSizes,
    },
    Datagram {
        received: VecDeque<ReceivedDatagram>,
        /// Bytes counted for `received`, including 64 per datagram.
        bytes: usize,
    },
}

/// All sockets of a node.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<TablePlace>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct TablePlace {
    /// Generation of the current socket, or of the next one.
    generation: u32,
    entry: Option<DirectEntry>,
}

impl Table {
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Adds a socket; `make` receives its handle.
    pub fn insert(&mut self, make: impl FnOnce(SocketHandle) -> DirectEntry) -> SocketHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(TablePlace { generation: 0, entry: None });
            // The stack's SOCKETS_MAX fits 22 bits.
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        let handle = SocketHandle { index, generation: place.generation };
        place.entry = Some(make(handle));
        handle
    }

    pub fn get(&self, handle: SocketHandle) -> Option<&DirectEntry> {
        self.at(handle.index).filter(|entry| entry.handle == handle)
    }

    pub fn get_mut(&mut self, handle: SocketHandle) -> Option<&mut DirectEntry> {
        self.at_mut(handle.index).filter(|entry| entry.handle == handle)
    }

    /// Returns the socket at an index, which is the stack's `user` number, regardless of the
    /// generation.
    pub fn at(&self, index: u32) -> Option<&DirectEntry> {
        self.places.get(index as usize)?.entry.as_ref()
    }

    pub fn at_mut(&mut self, index: u32) -> Option<&mut DirectEntry> {
        self.places.get_mut(index as usize)?.entry.as_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &DirectEntry> {
        self.places.iter().filter_map(|place| place.entry.as_ref())
    }

    pub fn remove(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize)
            && place.entry.take().is_some()
        {
            place.generation = place.generation.wrapping_add(1);
            self.free.push(index);
        }
    }
}
