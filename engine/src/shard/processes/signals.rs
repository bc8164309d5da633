//! Sends SIGURG to the owners of sockets with urgent data.

use std::sync::atomic::Ordering::Relaxed;

use rustix::process::{Pid, getpgid};

use crate::shard::processes::Processes;
use crate::shard::sockets::Sockets;

impl Processes {
    /// Sends SIGURG to the owners of all sockets that have received urgent data.
    pub(crate) fn signal_owners(&mut self, sockets: &mut Sockets) {
        while let Some(slot) = sockets.to_signal.pop() {
            self.signal_owner(sockets, slot);
        }
    }

    /// Sends SIGURG to the owner of a socket as set by F_SETOWN, like Linux's `sk_send_sigurg`. The
    /// owner is a process, or all processes of a process group that are part of the run (the engine
    /// and its programs).
    ///
    /// Programs can set any owner, and send any process ID. Therefore,
    /// [`Owners`](crate::shard::processes::owners::Owners) checks with the kernel that the process
    /// is part of the run. SIGURG never ends a process, because it is ignored by default.
    fn signal_owner(&mut self, sockets: &mut Sockets, slot: u32) {
        let owner = sockets.slots.shared(slot).owner.load(Relaxed);
        let Some(pid) = Pid::from_raw(owner.checked_abs().unwrap_or(0)) else { return };
        let is_meant = |member: &Pid| match owner {
            1.. => *member == pid,
            _ => getpgid(Some(*member)) == Ok(pid),
        };
        // Remove duplicates: if two processes have sent the same process ID, the process must still
        // get only one signal.
        let mut meant: Vec<Pid> = self.channels.pids().filter(is_meant).collect();
        meant.sort_unstable_by_key(|member| member.as_raw_pid());
        meant.dedup();
        for pid in meant {
            sockets.counters.signals += u64::from(self.owners.signal(pid));
        }
    }
}
