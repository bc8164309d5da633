//! SIGURG for the owners of sockets with urgent data.

use std::sync::atomic::Ordering::Relaxed;

use rustix::process::{Pid, getpgid};

use crate::shard::processes::Processes;
use crate::shard::sockets::Sockets;

impl Processes {
    /// Signals the owners of sockets to which urgent data came.
    pub(crate) fn signal_owners(&mut self, sockets: &mut Sockets) {
        while let Some(slot) = sockets.to_signal.pop() {
            self.signal_owner(sockets, slot);
        }
    }

    /// SIGURG to whom F_SETOWN named, as `sk_send_sigurg`: a process, or those of a group that are
    /// in the run.
    ///
    /// Any program of the run can write the word, and say any id of itself. Therefore
    /// [`Owners`](crate::shard::processes::owners::Owners) asks the kernel whose the process is.
    /// SIGURG ends no process: without a handler it is ignored.
    fn signal_owner(&mut self, sockets: &mut Sockets, slot: u32) {
        let owner = sockets.slots.shared(slot).owner.load(Relaxed);
        let Some(pid) = Pid::from_raw(owner.checked_abs().unwrap_or(0)) else { return };
        let is_meant = |member: &Pid| match owner {
            1.. => *member == pid,
            _ => getpgid(Some(*member)) == Ok(pid),
        };
        // A process may say that it is another one, too, which gets one signal all the same.
        let mut meant: Vec<Pid> = self.channels.pids().filter(is_meant).collect();
        meant.sort_unstable_by_key(|member| member.as_raw_pid());
        meant.dedup();
        for pid in meant {
            sockets.counters.signals += u64::from(self.owners.signal(pid));
        }
    }
}
