//! The sockets of a node, by handle.

use std::collections::VecDeque;

use towpath_stack::{DatagramMeta, SocketError, SocketId};

use crate::event::PendingEvents;
use crate::handle::SocketHandle;

/// Sizes of a connection's buffers, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferSizes {
    /// Capacity of the receive buffer at first: what the first window offers.
    pub recv: u32,
    /// Capacity that receive autotuning may reach.
    pub recv_max: u32,
    /// Capacity of the send buffer at first.
    pub send: u32,
    /// Capacity that the send buffer may reach as the congestion window grows.
    pub send_max: u32,
}

impl Default for BufferSizes {
    /// Linux's `tcp_rmem` and `tcp_wmem`, but for a send buffer that starts at 64 KiB.
    fn default() -> Self {
        Self { recv: 128 << 10, recv_max: 6 << 20, send: 64 << 10, send_max: 4 << 20 }
    }
}

/// A datagram, or of an echo socket an ICMP message from its header on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// Addresses and what else the packet said.
    pub meta: DatagramMeta,
    /// Payload.
    pub bytes: Vec<u8>,
}

impl ReceivedDatagram {
    /// Share of `datagram_bytes_max`: an empty datagram takes memory, too.
    pub(crate) fn size(payload: usize) -> usize {
        payload + 64
    }
}

/// A socket as its node knows it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub handle: SocketHandle,
    /// Name that the stack has for it.
    pub id: SocketId,
    pub kind: Kind,
    /// Events that wait to be polled.
    pub pending: PendingEvents,
    /// Place in the line of sockets with events.
    pub queued: bool,
    pub life: SocketLife,
    /// Reason for which the connection ended.
    pub failure: Option<SocketError>,
    /// FIN of the peer was received.
    pub ended: bool,
    /// End of the stream was written behind the bytes to send.
    pub shut: bool,
}

/// How far the owner is with a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketLife {
    /// A child in an accept queue: its handle is not given out.
    Unaccepted,
    /// In use.
    Open,
    /// Closed by its owner: [`crate::NodeEvent::Closed`] is to come.
    Closing,
    /// Ends without an event, since its owner never had the handle.
    Silent,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Stream,
    Listener {
        /// Children that wait to be accepted, oldest first.
        children: VecDeque<SocketHandle>,
        buffers: BufferSizes,
    },
    Datagram {
        received: VecDeque<ReceivedDatagram>,
        /// Bytes in `received`, with a header's worth for each.
        bytes: usize,
    },
}

/// All sockets of a node.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    /// Generation of the socket here, or of the next one.
    generation: u32,
    entry: Option<Entry>,
}

impl Table {
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Adds a socket; `make` gets its handle.
    pub fn insert(&mut self, make: impl FnOnce(SocketHandle) -> Entry) -> SocketHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, entry: None });
            // SOCKETS_MAX of the stack has 22 bits.
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        let handle = SocketHandle { index, generation: place.generation };
        place.entry = Some(make(handle));
        handle
    }

    pub fn get(&self, handle: SocketHandle) -> Option<&Entry> {
        self.at(handle.index).filter(|entry| entry.handle == handle)
    }

    pub fn get_mut(&mut self, handle: SocketHandle) -> Option<&mut Entry> {
        self.at_mut(handle.index).filter(|entry| entry.handle == handle)
    }

    /// The socket at a place, whatever its generation: what the stack calls `user`.
    pub fn at(&self, index: u32) -> Option<&Entry> {
        self.places.get(index as usize)?.entry.as_ref()
    }

    pub fn at_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.places.get_mut(index as usize)?.entry.as_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
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
