//! Datagrams that are put together from several calls (MSG_MORE).
//!
//! The parts wait here and not in the FIFO, which only holds whole datagrams. So they belong to the
//! process: what a forked child appends goes into its own copy.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use towpath_client::syscall::SignalsBlocked;
use towpath_client::{Buffer, LockGuard, ProcessLock, Socket};
use towpath_shm::layout::DatagramHeader;

use crate::Result;
use crate::errno::fail;

/// A datagram in parts (MSG_MORE). The header of the first part holds for the whole, as on Linux.
#[derive(Debug)]
pub struct Corked {
    generation: u32,
    /// `len` is not yet that of the whole.
    pub header: DatagramHeader,
    /// The parts.
    pub bytes: Vec<u8>,
}

pub(crate) type Map = BTreeMap<u32, Corked>;

/// The datagrams of a process that are begun.
#[derive(Debug)]
pub(crate) struct Cork {
    corked: ProcessLock<Map>,
    /// Whether any datagram was ever corked: other programs take no lock.
    any: AtomicBool,
}

impl Cork {
    /// None is begun.
    pub const fn new() -> Self {
        Self { corked: ProcessLock::new(BTreeMap::new()), any: AtomicBool::new(false) }
    }

    /// Whether a datagram of this socket is begun.
    pub fn is_begun(&self, socket: Socket) -> bool {
        let is_its = |corked: &Corked| corked.generation == socket.generation;
        if !self.any.load(Relaxed) {
            return false;
        }
        let _signals = SignalsBlocked::new();
        self.corked.lock().get(&socket.slot).is_some_and(is_its)
    }

    /// Appends a part; `begin` makes the header if it is the first. With `more` there is nothing to
    /// send yet. A datagram that gets longer than `most` allows for its header is dropped, as on
    /// Linux.
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
            // SAFETY: the caller's promise.
            corked.bytes.extend_from_slice(unsafe { buffer.bytes(0) });
        }
        if more {
            return Ok(None);
        }
        let whole = map.remove(&socket.slot);
        self.any.store(!map.is_empty(), Relaxed);
        Ok(whole)
    }

    /// The socket is closed: what was begun is lost.
    pub fn forget(&self, socket: Socket) {
        if self.any.load(Relaxed) {
            let _signals = SignalsBlocked::new();
            self.corked.lock().remove(&socket.slot);
        }
    }

    /// For fork. Signals must be blocked, as they are whenever this lock is held.
    pub fn lock(&self) -> LockGuard<'_, Map> {
        self.corked.lock()
    }
}
