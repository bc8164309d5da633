//! SO_INCOMING_CPU, the processor that handles a socket's packets.

use std::sync::atomic::Ordering::Relaxed;

use towpath_shm::layout::flags;
use towpath_stack::{SocketInfo, SocketOption};

use crate::errno::{EINVAL, Errno};
use crate::shard::sockets::option_bits::bind_options;
use crate::shard::sockets::options::SocketOptions;

/// Returns the number of the processor on which this thread runs.
pub(crate) fn current() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

impl SocketOptions<'_> {
    /// Returns the value of SO_INCOMING_CPU. Until a packet arrives, this is the value that the
    /// program has set, and afterwards the current processor. As on Linux, listeners and
    /// unconnected datagram sockets always return the value that was set.
    pub(crate) fn processor(&self, info: Option<&SocketInfo>) -> i32 {
        let set = self.sockets.slots.get(self.slot).and_then(|entry| entry.rare().processor);
        let (value, before) = set.unwrap_or((-1, 0));
        match self.arrived(info) {
            Some(arrived) if arrived != before => current() as i32,
            _ => value,
        }
    }

    /// Sets SO_INCOMING_CPU. Accepts any number, even if no such processor exists.
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
        // Ignore an error. The stack rejects this option only for a connection, where it has no
        // effect: it selects among the sockets that share a port.
        let _ = self.net.stack.set_option(id, SocketOption::Binding(options));
        Ok(())
    }

    /// Returns a number that changes with each packet that the connection receives. `None` if the
    /// socket is not connected.
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
