//! Orders of the registry: newcomers, and wants that came on control sockets.

use std::os::fd::AsFd;

use towpath_tcp::Instant;

use crate::errno::{EPROTO, Errno};
use crate::ids::ChannelId;
use crate::link::Link;
use crate::mail::{Newcomer, Notice, Order, Query, Told, Want};
use crate::net::NetState;
use crate::report::STACK_TURN;
use crate::shard::Shard;
use crate::shard::askers::Asker;
use crate::shard::channels::{Attached, Whole};
use crate::shard::show::Listing;
use crate::shard::sources::Source;

impl Shard {
    /// Does what the registry says, or begins to.
    pub(crate) fn obey(&mut self, order: Order) {
        self.told = true;
        if self.is_asleep {
            // Its thread is awake: what is told happens now.
            self.read_clocks();
        }
        match order {
            Order::Open(newcomer) => self.open(newcomer),
            Order::For(id, want) => self.note_want(id, want),
            Order::Answer(id, number, reply) => {
                // A new image asks for itself.
                let asked = self.host.channels.get(id).map(|attached| attached.asked);
                if asked == Some(number) {
                    self.answer(id, Ok(*reply));
                }
            }
            Order::Gone(id) => self.detach(self.host.now, id),
            // Its id may be another's next.
            Order::CutOff(id) if self.host.channels.get(id).is_some() => self.to_cut_off.push(id),
            Order::CutOff(_) => {}
            Order::Query(number, query) => {
                self.rounds.next.push_back(Asker::Query(number, query));
            }
            Order::Apply(number, changes) => {
                let result = self.stack.net.apply(self.host.now, &changes);
                self.notices.push(Notice::Told(number, Told::Applied(result)));
            }
            Order::Rules(number) => {
                let rules = self.stack.net.rules().cloned();
                self.notices.push(Notice::Told(number, Told::Rules(rules)));
            }
            Order::SetRules(number, rules) => {
                self.stack.net.set_rules(rules.map(|rules| *rules));
                self.notices.push(Notice::Told(number, Told::Applied(Ok(()))));
            }
            Order::Leave(number, whose) => self.begin_to_leave(number, whose),
            Order::Stay => (self.unused, self.leaving) = (None, None),
            Order::Stop => self.stopped = true,
        }
    }

    /// Lets in a process that holds nothing yet. Its commands are heard when it has a link; its end
    /// is noticed from now on.
    pub(crate) fn open(&mut self, newcomer: Newcomer) {
        let id = newcomer.id;
        self.host.channels.open(newcomer);
        let Some(attached) = self.host.channels.get_mut(id) else { return };
        attached.is_watched = self.poller.add(attached.life.as_fd(), Source::Gone(id)).is_ok();
        if !attached.is_watched {
            // Its end would never be noticed.
            self.to_cut_off.push(id);
        }
    }

    /// Notes a want until earlier commands are done: the process's own, and those of others, of
    /// which it may know. A clone's want has waited before ([`Want::MayClone`]), so it is granted
    /// at once.
    fn note_want(&mut self, id: ChannelId, want: Box<Want>) {
        if matches!(*want, Want::Clone { .. } | Want::NoClone(_)) {
            return self.grant(id, *want);
        }
        let attached = self.host.channels.get_mut(id);
        match attached.filter(|it| !it.has_ended && it.want.is_none() && it.portion.is_none()) {
            Some(attached) => {
                attached.want = Some(want);
                self.rounds.next.push_back(Asker::Want(id, attached.serial));
            }
            None => self.notices.push(Notice::Refused(id, Errno(EPROTO), Some(want))),
        }
    }

    /// The time has come for what a process wants.
    pub(crate) fn grant(&mut self, id: ChannelId, want: Want) {
        self.host.counters.work(1);
        let is_there = |it: &&Attached| it.link.is_some() && !it.has_ended;
        let has_link = self.host.channels.get(id).filter(is_there).is_some();
        let (errno, back) = match want {
            Want::Nothing => return self.notices.push(Notice::Done(id, 0)),
            Want::MayClone(purpose) if has_link => match self.may_clone(id, purpose) {
                Ok(()) => return self.notices.push(Notice::Done(id, 0)),
                Err(errno) => (errno, None),
            },
            Want::List(handles) => {
                self.list_all(id, &handles);
                return self.notices.push(Notice::Done(id, 0));
            }
            Want::Hello { pid, listed, link } => return self.hello(id, pid, &listed, link),
            Want::Tokens(handles) if has_link => {
                let held = self.which_are_held(id, &handles);
                return self.notices.push(Notice::Done(id, held));
            }
            Want::Clone { purpose, clone, link } if has_link => {
                match self.clone_channel(id, purpose, clone, link) {
                    Ok(()) => return,
                    Err((errno, want)) => (errno, Some(want)),
                }
            }
            Want::NoClone(errno) => (errno, None),
            want => (Errno(EPROTO), Some(Box::new(want))),
        };
        // Its list was for this clone.
        if let Some(attached) = self.host.channels.get_mut(id) {
            attached.listed = Default::default();
        }
        self.notices.push(Notice::Refused(id, errno, back));
    }

    fn list_all(&mut self, id: ChannelId, handles: &[(u32, u32)]) {
        for &(slot, generation) in handles {
            self.host.counters.work(1);
            self.list(id, slot, generation);
        }
    }

    fn which_are_held(&mut self, id: ChannelId, handles: &[(u32, u32)]) -> u64 {
        self.host.counters.work(handles.len());
        let mut is_its = |&(slot, generation): &(u32, u32)| {
            self.host.slots.find(slot, generation).is_some() && self.is_held(id, slot)
        };
        handles.iter().zip(0..).map(|(handle, n)| u64::from(is_its(handle)) << n).sum()
    }

    /// A process image begins.
    fn hello(&mut self, id: ChannelId, pid: u32, listed: &[(u32, u32)], link: Link) {
        if let Some(attached) = self.host.channels.get_mut(id) {
            attached.pid = pid;
        }
        self.list_all(id, listed);
        self.no_more_a_clone(id);
        // Fresh rings: whatever the old image left half done in its own is forgotten with them.
        self.link(id, link);
        self.begin_whole(id, Whole::Unlock, 0);
    }

    /// Rings and bells for a channel's new process image.
    pub(crate) fn link(&mut self, id: ChannelId, link: Link) {
        let Some(attached) = self.host.channels.get_mut(id) else {
            return self.notices.push(Notice::Unlinked(id, link.into_bells()));
        };
        if self.poller.add(link.engine_bell.as_fd(), Source::Doorbell).is_err() {
            // Without the bell in the poller the process would not be heard while the shard sleeps.
            self.to_cut_off.push(id);
            return self.notices.push(Notice::Unlinked(id, link.into_bells()));
        }
        if let Some(old) = attached.link.replace(link) {
            self.unlink(id, old);
        }
    }

    /// A process image is gone, or was cut off: its rings are not looked at any more, and its bells
    /// are closed.
    pub(crate) fn unlink(&mut self, id: ChannelId, link: Link) {
        self.poller.remove(link.engine_bell.as_fd());
        self.notices.push(Notice::Unlinked(id, link.into_bells()));
    }

    /// Nothing of a channel is left but its id, which is used again.
    pub(crate) fn forget(&mut self, id: ChannelId) {
        let Some(mut attached) = self.host.channels.remove(id) else { return };
        if let Some(link) = attached.link.take() {
            self.unlink(id, link);
        }
        self.notices.push(Notice::Ended(id, attached.life));
    }

    /// A turn of the stack first, so that a listing of sockets shows bytes that programs wrote
    /// before it.
    pub(crate) fn answer_query(&mut self, now: Instant, number: u64, query: Query) {
        self.host.counters.work(STACK_TURN);
        self.turn_stack(now);
        let told = match query {
            Query::Sockets => {
                return self.listings.push_back(Listing {
                    number,
                    slot: self.host.slots.first(),
                    without: 0,
                });
            }
            Query::Counters => Told::Counters(Box::new(self.counters())),
            Query::Nothing => {
                self.stack.net.catch_up();
                Told::Nothing
            }
            Query::Net if self.host.place.number == 0 => {
                Told::Net(Box::new(NetState::of(&self.stack.net, now)))
            }
            Query::Net => Told::Traffic(self.stack.net.traffic().to_vec()),
            Query::Unsent => Told::Unsent(self.unsent(now) + self.stack.net.waiting() as u64),
        };
        self.notices.push(Notice::Told(number, told));
    }
}
