//! Handles requests that processes have sent on their control sockets, and that the registry has
//! forwarded.

use crate::errno::{EPROTO, Errno};
use crate::ids::ChannelId;
use crate::link::ChannelLink;
use crate::mail::{ShardReport, Want};
use crate::shard::net::Net;
use crate::shard::processes::Processes;
use crate::shard::processes::channels::{Attached, BatchWork};
use crate::shard::sockets::Sockets;

impl Processes {
    /// Handles a request of a process. Executes or refuses it, and reports the result to the
    /// registry.
    pub(crate) fn grant(
        &mut self,
        sockets: &mut Sockets,
        net: &mut Net,
        id: ChannelId,
        want: Want,
    ) {
        sockets.counters.work(1);
        let is_there = |it: &&Attached| it.link.is_some() && !it.has_ended;
        let has_link = self.channels.get(id).filter(is_there).is_some();
        let (errno, back) = match want {
            Want::Nothing => return self.notices.push(ShardReport::Done(id, 0)),
            Want::MayClone(purpose) if has_link => match self.may_clone(id, purpose) {
                Ok(()) => return self.notices.push(ShardReport::Done(id, 0)),
                Err(errno) => (errno, None),
            },
            Want::List(handles) => {
                self.list_all(sockets, net, id, &handles);
                return self.notices.push(ShardReport::Done(id, 0));
            }
            Want::Hello { pid, listed, link } => {
                return self.hello(sockets, net, id, pid, &listed, link);
            }
            Want::Tokens(handles) if has_link => {
                let held = self.which_are_held(sockets, id, &handles);
                return self.notices.push(ShardReport::Done(id, held));
            }
            Want::Clone { purpose, clone, link } if has_link => {
                match self.clone_channel(sockets, net, id, purpose, clone, link) {
                    Ok(()) => return,
                    Err((errno, want)) => (errno, Some(want)),
                }
            }
            Want::NoClone(errno) => (errno, None),
            want => (Errno(EPROTO), Some(Box::new(want))),
        };
        // Discard the list of sockets, because the clone for which the process has sent it was
        // refused.
        if let Some(attached) = self.channels.get_mut(id) {
            attached.listed = Default::default();
        }
        self.notices.push(ShardReport::Refused(id, errno, back));
    }

    fn list_all(
        &mut self,
        sockets: &mut Sockets,
        net: &mut Net,
        id: ChannelId,
        handles: &[(u32, u32)],
    ) {
        for &(slot, generation) in handles {
            sockets.counters.work(1);
            self.list(sockets, net, id, slot, generation);
        }
    }

    fn which_are_held(
        &mut self,
        sockets: &mut Sockets,
        id: ChannelId,
        handles: &[(u32, u32)],
    ) -> u64 {
        sockets.counters.work(handles.len());
        let mut is_its = |&(slot, generation): &(u32, u32)| {
            sockets.slots.find(slot, generation).is_some() && self.is_held(id, slot)
        };
        handles.iter().zip(0..).map(|(handle, n)| u64::from(is_its(handle)) << n).sum()
    }

    /// Handles HELLO, the first request of a new process image.
    fn hello(
        &mut self,
        sockets: &mut Sockets,
        net: &mut Net,
        id: ChannelId,
        pid: u32,
        listed: &[(u32, u32)],
        link: ChannelLink,
    ) {
        if let Some(attached) = self.channels.get_mut(id) {
            attached.pid = pid;
        }
        self.list_all(sockets, net, id, listed);
        self.end_cloning(id);
        // Connect the new rings, which discards commands that the old image left incomplete.
        self.link(net, id, link);
        self.begin_batch(sockets, id, BatchWork::Unlock, 0);
    }
}
