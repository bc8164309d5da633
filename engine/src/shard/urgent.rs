//! Urgent data: programs are told, and the owner of the open file is signalled.

use std::sync::atomic::Ordering::Relaxed;

use rustix::process::{Pid, getpgid};
use towpath_shm::layout::{event, flags};

use crate::shard::host::Host;

impl Host {
    /// The receive FIFO has a mark, or the byte at the mark.
    pub(crate) fn on_urgent(&mut self, slot: u32, is_new: bool) {
        // As the receive FIFO has set it: the state that is published from now on has it, too.
        self.slots.set_flags(slot, flags::URGENT, 0);
        self.slots.post(slot, event::PRI);
        if is_new {
            self.signal_owner(slot);
        }
    }

    /// SIGURG to whom F_SETOWN named, as `sk_send_sigurg`: a process, or those of a group that are
    /// in the run.
    ///
    /// Any program of the run can write the word, and say any id of itself. Therefore
    /// [`Owners`](crate::shard::owners::Owners) asks the kernel whose the process is.
    /// SIGURG ends no process: without a handler it is ignored.
    fn signal_owner(&mut self, slot: u32) {
        let owner = self.slots.shared(slot).owner.load(Relaxed);
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
            self.counters.signals += u64::from(self.owners.signal(pid));
        }
    }
}
