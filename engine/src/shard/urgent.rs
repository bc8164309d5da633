//! Urgent data: programs are told, and the owner of the open file is signalled.

use std::sync::atomic::Ordering::Relaxed;

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
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

    /// SIGURG to whom F_SETOWN named, as `sk_send_sigurg`: a process, or a group.
    ///
    /// The owner is a word that any program of the run can write. So only processes of this run are
    /// signalled, by the ids that they say they have. SIGURG ends no process: without a handler it
    /// is ignored.
    fn signal_owner(&mut self, slot: u32) {
        let owner = self.slots.shared(slot).owner.load(Relaxed);
        let Some(pid) = Pid::from_raw(owner.checked_abs().unwrap_or(0)) else { return };
        let pids = self.channels.pids();
        // A process that has ended since is not there to be signalled.
        let _ = if owner > 0 {
            if !pids.into_iter().any(|member| member == pid) {
                return;
            }
            kill_process(pid, Signal::URG)
        } else {
            if !pids.into_iter().any(|member| getpgid(Some(member)) == Ok(pid)) {
                return;
            }
            kill_process_group(pid, Signal::URG)
        };
        self.counters.signals += 1;
    }
}
