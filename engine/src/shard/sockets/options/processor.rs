//! SO_INCOMING_CPU: the processor that runs a shard.

use std::sync::atomic::Ordering::Relaxed;

use towpath_shm::layout::flags;
use towpath_stack::{SocketInfo, SocketOption};

use crate::errno::{EINVAL, Errno};
use crate::shard::sockets::option_bits::bind_options;
use crate::shard::sockets::options::SocketOptions;

/// As Linux numbers processors; a machine has fewer than a million.
pub(crate) fn current() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

impl SocketOptions<'_> {
    /// A connection has the value that was set until a packet comes, and the processor afterwards.
    /// As on Linux listeners, and datagram sockets without a peer, keep the value.
    pub(crate) fn processor(&self, info: Option<&SocketInfo>) -> i32 {
        let set = self.sockets.slots.get(self.slot).and_then(|entry| entry.rare().processor);
        let (value, before) = set.unwrap_or((-1, 0));
        match self.arrived(info) {
            Some(arrived) if arrived != before => current() as i32,
            _ => value,
        }
    }

    /// SO_INCOMING_CPU takes any number, be it that of no processor.
    pub(crate) fn set_processor(&mut self, value: i32) -> Result<(), Errno> {
        let now = self.sockets.now;
        let id =
            self.sockets.slots.get(self.slot).and_then(|entry| entry.id).ok_or(Errno(EINVAL))?;
        let info = self.net.stack.info(now, id);
        let arrived = self.arrived(info.as_ref()).unwrap_or(0);
        let entry = self.sockets.slots.get_mut(self.slot).ok_or(Errno(EINVAL))?;
        entry.set_rare(|rare| rare.processor = Some((value, arrived)));
        let rare = entry.rare().clone();
        let options = bind_options(self.sockets.slots.shared(self.slot), &rare);
        // A connection shares nothing any more.
        let _ = self.net.stack.set_option(id, SocketOption::Binding(options));
        Ok(())
    }

    /// Something that is another number after each packet for a connection. None: there is none.
    fn arrived(&self, info: Option<&SocketInfo>) -> Option<u32> {
        if let Some(tcp) = info.and_then(|info| info.tcp.as_ref()) {
            return Some(tcp.segs_in);
        }
        let shared = self.sockets.slots.shared(self.slot);
        let has_peer = shared.flags.load(Relaxed) & flags::CONNECTED != 0;
        let entry =
            self.sockets.slots.get(self.slot).filter(|entry| has_peer && entry.is_datagram())?;
        Some(shared.rx_tail.load(Relaxed)).filter(|_| entry.owned.is_some())
    }
}
