//! Releases many sockets in batches, so that other work can run in between. Used if a process ends,
//! executes a program that does not inherit its sockets, or closes a listener with a full queue.
//!
//! The channel of an ended process is kept until all its sockets are released:
//!
//! ```text
//!   commands → locks and references, socket by socket → locks of closed sockets → channel freed
//! ```
//!
//! A request is answered after the sockets of processes that ended before it are closed. On Linux,
//! they are closed when waitpid(2) returns. The queue counts the processes whose sockets were
//! released ([`crate::shard::sockets::ends`]).

use std::os::fd::AsFd;

use crate::errno::{EPROTO, Errno};
use crate::ids::ChannelId;
use crate::mail::ShardReport;
use crate::shard::net::Net;
use crate::shard::processes::Processes;
use crate::shard::processes::channels::{Batch, BatchWork};
use crate::shard::sockets::Sockets;

impl Processes {
    /// Removes a process that has ended or violated the protocol. Closes its sockets that no other
    /// process has open, as the kernel does for a killed process.
    pub(crate) fn detach(&mut self, sockets: &mut Sockets, net: &mut Net, id: ChannelId) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        if std::mem::replace(&mut attached.has_ended, true) {
            return;
        }
        let (portion, want) = (attached.batch.take(), attached.asks.want.take());
        // Process commands that were written before the process ended, unless its ring is corrupt.
        // Ignore commands written later, for example by its children.
        if let Some(link) = &mut attached.link {
            link.ring.mark();
            link.ring.end();
        }
        if std::mem::take(&mut attached.is_watched) {
            net.poller.remove(attached.life.as_fd());
        }
        net.status.wake(id.number());
        if let Some(portion) = portion {
            self.abandon_batch(sockets, net, id, portion);
        }
        if want.is_some() {
            self.notices.push(ShardReport::Refused(id, Errno(EPROTO), want));
        }
        self.end_cloning(id);
        self.begin_end_of_holds(sockets, id);
    }

    /// Removes one of the processes that have violated the protocol of their channel, and ignores
    /// all its commands. Returns false if there is none.
    pub(crate) fn cut_off_next(&mut self, sockets: &mut Sockets, net: &mut Net) -> bool {
        let Some(id) = self.channels.to_cut_off.pop() else { return false };
        let Some(attached) = self.channels.get_mut(id) else { return true };
        if !attached.has_ended {
            sockets.counters.hostile_channels += 1;
            self.notices.push(ShardReport::CutOff(id));
        }
        if let Some(link) = attached.link.take() {
            self.unlink(net, id, link);
        }
        sockets.close_in_flight_of(net, id);
        self.detach(sockets, net, id);
        true
    }

    /// Returns whether there are unread commands that an ended process wrote before its end.
    pub(crate) fn has_last_commands(&self, id: ChannelId) -> bool {
        let attached = self.channels.get(id).filter(|attached| attached.has_ended);
        let link = attached.and_then(|attached| attached.link.as_ref());
        link.is_some_and(|link| link.ring.is_behind_mark())
    }

    /// Releases one socket of an ended process, or one in `former` of a live process. Returns false
    /// if none is left. All commands of the process must have been handled before.
    pub(crate) fn let_go_of_next(
        &mut self,
        sockets: &mut Sockets,
        net: &mut Net,
        id: ChannelId,
    ) -> bool {
        let Some(attached) = self.channels.get_mut(id) else { return false };
        if !attached.has_ended {
            let next = attached.former.first();
            next.inspect(|&slot| self.let_go(sockets, net, id, slot));
            return next.is_some();
        }
        if let Some(slot) = attached.holds.first().or_else(|| attached.former.first()) {
            sockets.release_locks_of(&mut self.channels, id, slot);
            self.let_go(sockets, net, id, slot);
            return true;
        }
        sockets.free_closed(&mut self.channels, id)
    }

    /// Called when all sockets in the release queue of a process are released. Removes the channel
    /// if the process has ended.
    pub(crate) fn end_of_holds(&mut self, sockets: &mut Sockets, net: &mut Net, id: ChannelId) {
        let Some(attached) = self.channels.get_mut(id) else { return };
        attached.is_ending = false;
        if !attached.has_ended {
            return;
        }
        self.spawned(sockets, id);
        self.orphan_clones(id);
        self.forget(net, id);
        sockets.counters.work(sockets.released.to_close_in_flight.len() / 64);
        for by in sockets.released.to_close_in_flight.values_mut().filter(|by| **by == Some(id)) {
            *by = None;
        }
        self.channels.to_cut_off.retain(|hostile| *hostile != id);
    }

    /// Cancels the batch of an ended process. If the batch was creating a clone, detaches the
    /// clone.
    pub(crate) fn abandon_batch(
        &mut self,
        sockets: &mut Sockets,
        net: &mut Net,
        id: ChannelId,
        portion: Batch,
    ) {
        self.promised -= portion.holds;
        if let BatchWork::Give { clone, .. } = portion.what {
            self.detach(sockets, net, clone);
        }
        self.notices.push(ShardReport::Refused(id, Errno(EPROTO), None));
    }
}
