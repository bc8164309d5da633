//! Datagrams that are assembled from several calls (MSG_MORE, UDP_CORK).
//!
//! The parts are kept in the process's private memory, because the send FIFO in shared memory can
//! contain only complete datagrams. Therefore, after fork(2), parent and child have separate copies
//! of an incomplete datagram.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use towpath_client::syscall::SignalsBlocked;
use towpath_client::{Buffer, LockGuard, ProcessLock, Socket};
use towpath_shm::layout::DatagramHeader;

use crate::Result;
use crate::errno::fail;

/// A datagram of which the program has not yet sent all parts (MSG_MORE). As on Linux, the header
/// of the first part applies to the whole datagram.
#[derive(Debug)]
pub struct Corked {
    generation: u32,
    /// Header of the datagram. The field `len` is set when the datagram is sent.
    pub header: DatagramHeader,
    /// Bytes of all parts of the datagram so far.
    pub bytes: Vec<u8>,
}

pub(crate) type Map = BTreeMap<u32, Corked>;

/// Incomplete datagrams (MSG_MORE, UDP_CORK) of this process.
#[derive(Debug)]
pub(crate) struct Cork {
    corked: ProcessLock<Map>,
    /// Whether there may be incomplete datagrams. If not, calls need not take the lock.
    any: AtomicBool,
}

impl Cork {
    /// Creates an empty list of incomplete datagrams.
    pub const fn new() -> Self {
        Self { corked: ProcessLock::new(BTreeMap::new()), any: AtomicBool::new(false) }
    }

    /// Returns whether this socket has an incomplete datagram.
    pub fn is_begun(&self, socket: Socket) -> bool {
        let is_its = |corked: &Corked| corked.generation == socket.generation;
        if !self.any.load(Relaxed) {
            return false;
        }
        let _signals = SignalsBlocked::new();
        self.corked.lock().get(&socket.slot).is_some_and(is_its)
    }

    /// Appends a part to the socket's datagram. For the first part, `begin` creates the header.
    /// Returns the complete datagram, or `None` if `more` is set, because further parts will
    /// follow. `most` returns the maximum length for a header; a longer datagram is dropped with
    /// EMSGSIZE, as on Linux.
    ///
    /// # Safety
    /// The buffers must be valid for reads.
    pub unsafe fn append(
        &self,
        socket: Socket,
        begin: impl FnOnce() -> Result<DatagramHeader>,
        buffers: &[Buffer],
        more: bool,
        most: impl FnOnce(&DatagramHeader) -> usize,
    ) -> Result<Option<Corked>> {
        let _signals = SignalsBlocked::new();
        let mut map = self.corked.lock();
        if map.get(&socket.slot).is_none_or(|corked| corked.generation != socket.generation) {
            let corked =
                Corked { generation: socket.generation, header: begin()?, bytes: Vec::new() };
            map.insert(socket.slot, corked);
            self.any.store(true, Relaxed);
        }
        let Some(corked) = map.get_mut(&socket.slot) else { return Ok(None) };
        if corked.bytes.len() + Buffer::total(buffers) > most(&corked.header) {
            map.remove(&socket.slot);
            return fail(libc::EMSGSIZE);
        }
        for buffer in buffers {
            // SAFETY: the caller passes buffers that are valid for reads.
            corked.bytes.extend_from_slice(unsafe { buffer.bytes(0) });
        }
        if more {
            return Ok(None);
        }
        let whole = map.remove(&socket.slot);
        self.any.store(!map.is_empty(), Relaxed);
        Ok(whole)
    }

    /// Drops the incomplete datagram of a socket that is being closed.
    pub fn forget(&self, socket: Socket) {
        if self.any.load(Relaxed) {
            let _signals = SignalsBlocked::new();
            self.corked.lock().remove(&socket.slot);
        }
    }

    /// Locks the incomplete datagrams during fork(2), so that the child gets a consistent copy.
    /// Every holder of this lock must block signals.
    pub fn lock(&self) -> LockGuard<'_, Map> {
        self.corked.lock()
    }
}
