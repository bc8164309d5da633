//! Table that maps socket handles to the sockets of a node.

use std::collections::VecDeque;

use towpath_stack::{DatagramMeta, ReceivedFields, SocketError, SocketId};

use crate::event::PendingEvents;
use crate::handle::SocketHandle;

/// Buffer sizes of a connection in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferSizes {
    /// Initial size of the receive buffer in bytes, which determines the first receive window.
    pub recv: u32,
    /// Maximum size of the receive buffer in bytes, to which receive autotuning may enlarge it.
    pub recv_max: u32,
    /// Initial size of the send buffer in bytes.
    pub send: u32,
    /// Maximum size of the send buffer in bytes. The buffer grows with the congestion window.
    pub send_max: u32,
}

impl Default for BufferSizes {
    /// Returns the defaults of Linux's `tcp_rmem` and `tcp_wmem`, except that the send buffer
    /// starts with 64 KiB.
    fn default() -> Self {
        Self { recv: 128 << 10, recv_max: 6 << 20, send: 64 << 10, send_max: 4 << 20 }
    }
}

/// State of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamStatus {
    /// Whether the peer has closed its sending direction; the stream ends after the unread bytes.
    pub ended: bool,
    /// Whether the program has closed its own sending direction.
    pub shut: bool,
    /// Error that ended the connection; `None` if the connection has not failed.
    pub failure: Option<SocketError>,
}

/// A received datagram. On an ICMP echo socket, this is an ICMP message with its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// Addresses and IP header fields of the datagram.
    pub meta: DatagramMeta,
    /// Payload of the datagram.
    pub bytes: Vec<u8>,
}

impl ReceivedDatagram {
    /// Returns the number of bytes by which a datagram counts toward `datagram_bytes_max`. Each
    /// datagram counts 64 bytes extra, because even an empty one uses memory.
    pub(crate) fn size(payload: usize) -> usize {
        payload + 64
    }
}

/// A socket of a [`Node`](crate::Node), and its events that were not polled yet.
#[derive(Debug)]
pub(crate) struct DirectEntry {
    pub handle: SocketHandle,
    /// Identifier of the socket in the stack.
    pub id: SocketId,
    pub kind: DirectKind,
    /// Events of the socket that were not polled yet.
    pub pending: PendingEvents,
    /// Whether the socket is in the queue of sockets with events.
    pub queued: bool,
    pub life: SocketLife,
    /// IP header fields of the last segment that the connection received.
    pub received: Option<ReceivedFields>,
    /// Error that ended the connection, or the latest error of a datagram socket.
    pub failure: Option<SocketError>,
    /// Whether a FIN from the peer was received.
    pub ended: bool,
    /// Whether the program has closed the sending direction.
    pub shut: bool,
}

/// Phase in the life of a socket: in the accept queue, open, or closed and not removed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketLife {
    /// The connection waits in a listener's accept queue, and the program does not have its handle
    /// yet.
    Unaccepted,
    /// The program uses the socket.
    Open,
    /// The program has closed the socket, and [`crate::NodeEvent::Closed`] follows.
    Closing,
    /// The socket is removed without an event, because the program never had its handle.
    Silent,
}

#[derive(Debug)]
pub(crate) enum DirectKind {
    Stream,
    Listener {
        /// Connections that the listener can accept, oldest first.
        children: VecDeque<SocketHandle>,
        buffers: BufferSizes,
    },
    Datagram {
        received: VecDeque<ReceivedDatagram>,
        /// Number of bytes in the queue `received`, plus 64 per datagram.
        bytes: usize,
    },
}

/// Table of all sockets of a node.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<TablePlace>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct TablePlace {
    /// Generation of the socket in this table slot. If the slot is empty, generation of the next
    /// socket in it.
    generation: u32,
    entry: Option<DirectEntry>,
}

impl Table {
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Adds the socket that `make` creates for a new handle, and returns the handle.
    pub fn insert(&mut self, make: impl FnOnce(SocketHandle) -> DirectEntry) -> SocketHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(TablePlace { generation: 0, entry: None });
            // The index fits in 32 bits, since the stack's limit SOCKETS_MAX fits in 22 bits.
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

    /// Returns the socket at an index of the table, regardless of its generation. The stack uses
    /// this index as the socket's `user` number.
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
