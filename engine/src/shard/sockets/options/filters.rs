//! Socket options for filters: SO_ATTACH_FILTER, SO_DETACH_FILTER and SO_LOCK_FILTER.

use std::sync::Arc;

use towpath_cbpf::{Instruction, Program};
use towpath_shm::control::{ControlReply, FILTER_PART_HEADER, Request};
use towpath_stack::SocketId;

use crate::errno::{EINVAL, ENOENT, ENOMEM, ENOPROTOOPT, EPERM, Errno};
use crate::shard::sockets::options::SocketOptions;

impl SocketOptions<'_> {
    /// Adds a part to a filter program. The last part attaches the filter to the socket.
    pub(crate) fn attach_filter(&mut self, id: SocketId, request: &Request) -> Result<(), Errno> {
        let entry = self.sockets.slots.get_mut(self.slot).ok_or(Errno(EINVAL))?;
        if entry.rare().filter_locked {
            return Err(Errno(EPERM));
        }
        if !entry.is_datagram() {
            return Err(Errno(ENOPROTOOPT));
        }
        let (header, code) =
            request.payload().split_first_chunk::<FILTER_PART_HEADER>().ok_or(Errno(EINVAL))?;
        let [a, b, c, d] = *header;
        let (all, first) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        let (all, first) = (usize::from(all), usize::from(first));
        let (part, rest) = code.as_chunks::<{ Instruction::LEN }>();
        if !rest.is_empty() {
            return Err(Errno(EINVAL));
        }
        let Some(program) = self.sockets.filters.complete(self.slot, all, first, part)? else {
            return Ok(());
        };
        let filter = Arc::new(Program::check(&program).map_err(|_| Errno(EINVAL))?);
        if !self.sockets.filters.take_room(&filter) {
            self.sockets.counters.filters_refused += 1;
            return Err(Errno(ENOMEM));
        }
        self.net.stack.set_filter(id, Some(filter))?;
        Ok(())
    }

    pub(crate) fn detach_filter(&mut self, id: SocketId) -> Result<(), Errno> {
        if self.is_filter_locked() {
            return Err(Errno(EPERM));
        }
        if self.net.stack.filter(id).is_none() {
            return Err(Errno(ENOENT));
        }
        Ok(self.net.stack.set_filter(id, None)?)
    }

    /// Sets SO_LOCK_FILTER, which prevents changes of the filter and cannot be cleared.
    pub(crate) fn lock_filter(&mut self, lock: bool) -> Result<(), Errno> {
        let entry = self.sockets.slots.get_mut(self.slot).ok_or(Errno(EINVAL))?;
        if entry.rare().filter_locked && !lock {
            return Err(Errno(EPERM));
        }
        entry.set_rare(|rare| rare.filter_locked = lock);
        Ok(())
    }

    pub(crate) fn is_filter_locked(&self) -> bool {
        self.sockets.slots.get(self.slot).is_some_and(|entry| entry.rare().filter_locked)
    }

    /// Returns a reply with the length of the filter, and its instructions from index `first` on.
    pub(crate) fn told_filter(&self, id: Option<SocketId>, first: u32) -> ControlReply {
        let mut reply = ControlReply::default();
        let filter = id.and_then(|id| self.net.stack.filter(id));
        let code = filter.as_ref().map_or(&[][..], |filter| filter.instructions());
        reply.a = code.len() as u32;
        let part = code.get(first as usize..).unwrap_or_default();
        for (bytes, instruction) in reply.data.chunks_exact_mut(Instruction::LEN).zip(part) {
            bytes.copy_from_slice(&instruction.to_bytes());
            reply.len += Instruction::LEN as u32;
        }
        reply
    }
}
