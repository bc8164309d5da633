//! Buffers of sockets, which belong either to programs or to the engine itself.

use towpath_shm::Fragments;

use crate::buffer::{Payload, RecvBuffer, SendBuffer};
use crate::engine_recv::EngineRecv;
use crate::engine_send::EngineSend;
use crate::heap::{HeapRecv, HeapSend};

/// Receive buffer of a socket.
#[derive(Debug)]
pub enum SocketRecv {
    /// Receive FIFO in memory shared with programs, for a program's socket.
    Slot(EngineRecv),
    /// Receive FIFO in private memory. Boxed, so that the other variant stays small.
    Heap(Box<HeapRecv>),
}

/// Send buffer of a socket.
#[derive(Debug)]
pub enum SocketSend {
    /// Transmit FIFO in memory shared with programs, for the socket of a program.
    Slot(EngineSend),
    /// Transmit FIFO in private memory.
    Heap(Box<HeapSend>),
}

/// Limit the size: each idle connection has a `SocketRecv`, so the enum must not be larger than its
/// most frequent variant. `core/stack/src/socket.rs` has a table of sizes.
const _: () = assert!(size_of::<SocketRecv>() == size_of::<EngineRecv>());
const _: () = assert!(size_of::<SocketSend>() == size_of::<EngineSend>());

impl SocketRecv {
    /// Returns the receive FIFO of a program's socket; `None` if it is in private memory.
    #[inline]
    pub fn slot(&mut self) -> Option<&mut EngineRecv> {
        match self {
            Self::Slot(recv) => Some(recv),
            Self::Heap(_) => None,
        }
    }

    /// Returns the receive FIFO in private memory; `None` if the socket belongs to a program.
    #[inline]
    pub fn heap(&mut self) -> Option<&mut HeapRecv> {
        match self {
            Self::Slot(_) => None,
            Self::Heap(recv) => Some(recv),
        }
    }
}

impl SocketSend {
    /// Returns the transmit FIFO of a program's socket; `None` if it is in private memory.
    #[inline]
    pub fn slot(&mut self) -> Option<&mut EngineSend> {
        match self {
            Self::Slot(send) => Some(send),
            Self::Heap(_) => None,
        }
    }

    /// Returns the transmit FIFO in private memory; `None` if the socket belongs to a program.
    #[inline]
    pub fn heap(&mut self) -> Option<&mut HeapSend> {
        match self {
            Self::Slot(_) => None,
            Self::Heap(send) => Some(send),
        }
    }
}

impl RecvBuffer for SocketRecv {
    #[inline]
    fn capacity(&self) -> u32 {
        match self {
            Self::Slot(recv) => recv.capacity(),
            Self::Heap(recv) => recv.capacity(),
        }
    }

    #[inline]
    fn unread(&self) -> u32 {
        match self {
            Self::Slot(recv) => recv.unread(),
            Self::Heap(recv) => recv.unread(),
        }
    }

    #[inline]
    fn free(&self) -> u32 {
        match self {
            Self::Slot(recv) => recv.free(),
            Self::Heap(recv) => recv.free(),
        }
    }

    #[inline]
    fn reserve(&mut self, n: u32) -> bool {
        match self {
            Self::Slot(recv) => recv.reserve(n),
            Self::Heap(recv) => recv.reserve(n),
        }
    }

    #[inline]
    fn write_at(&mut self, offset: u32, data: &Payload<'_>) -> bool {
        match self {
            Self::Slot(recv) => recv.write_at(offset, data),
            Self::Heap(recv) => recv.write_at(offset, data),
        }
    }

    #[inline]
    fn commit(&mut self, n: u32) {
        match self {
            Self::Slot(recv) => recv.commit(n),
            Self::Heap(recv) => recv.commit(n),
        }
    }

    #[inline]
    fn mark_urgent(&mut self, offset: u32, byte: Option<u8>) {
        match self {
            Self::Slot(recv) => recv.mark_urgent(offset, byte),
            Self::Heap(recv) => recv.mark_urgent(offset, byte),
        }
    }

    #[inline]
    fn await_read(&mut self) {
        match self {
            Self::Slot(recv) => recv.await_read(),
            Self::Heap(recv) => recv.await_read(),
        }
    }

    #[inline]
    fn want_capacity(&mut self, bytes: u32) {
        match self {
            Self::Slot(recv) => recv.want_capacity(bytes),
            Self::Heap(recv) => recv.want_capacity(bytes),
        }
    }
}

impl SendBuffer for SocketSend {
    #[inline]
    fn len(&self) -> u32 {
        match self {
            Self::Slot(send) => send.len(),
            Self::Heap(send) => send.len(),
        }
    }

    #[inline]
    fn capacity(&self) -> u32 {
        match self {
            Self::Slot(send) => send.capacity(),
            Self::Heap(send) => send.capacity(),
        }
    }

    #[inline]
    fn peek(&mut self, offset: u32, n: u32) -> Fragments {
        match self {
            Self::Slot(send) => send.peek(offset, n),
            Self::Heap(send) => send.peek(offset, n),
        }
    }

    #[inline]
    fn read(&self, offset: u32, to: &mut [u8]) -> bool {
        match self {
            Self::Slot(send) => send.read(offset, to),
            Self::Heap(send) => send.read(offset, to),
        }
    }

    #[inline]
    fn release(&mut self, n: u32) {
        match self {
            Self::Slot(send) => send.release(n),
            Self::Heap(send) => send.release(n),
        }
    }

    #[inline]
    fn is_room_made_by_sending(&self) -> bool {
        match self {
            Self::Slot(send) => send.is_room_made_by_sending(),
            Self::Heap(send) => send.is_room_made_by_sending(),
        }
    }

    #[inline]
    fn want_capacity(&mut self, bytes: u32) {
        match self {
            Self::Slot(send) => send.want_capacity(bytes),
            Self::Heap(send) => send.want_capacity(bytes),
        }
    }
}
