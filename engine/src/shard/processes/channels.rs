//! The channels of the processes that are attached: their rings, and what they hold.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::process::Pid;
use towpath_shm::Fd;
use towpath_shm::control::Request;
use towpath_tcp::Instant;

use crate::errno::Errno;
use crate::ids::{ChannelId, Family};
use crate::link::ChannelLink;
use crate::mail::{Newcomer, Want};
use crate::shard::requests::rounds::Answer;
use crate::shard::sockets::slot_set::SlotSet;
use crate::shard::sockets::slots::Holder;

/// The channel of a process: what it holds here, and what it says and is told.
#[derive(Debug)]
pub(crate) struct Attached {
    /// Number of the channel among all that there ever were.
    pub serial: u64,
    /// Hangs up when the process is gone.
    pub life: Arc<Fd>,
    /// The process's `life` is in the poller.
    pub is_watched: bool,
    /// Family of the process; None for one that was not cloned.
    pub family: Option<Family>,
    /// The process id, as the process says when it begins; 0 before. A process that executes a
    /// program keeps its id. The process may say any number, which is shown. SIGURG goes
    /// there only if the kernel knows it as one of the run's ([`crate::shard::processes::owners`]).
    pub pid: u32,
    /// None before HELLO.
    pub link: Option<ChannelLink>,
    /// Slots of sockets that the process has a descriptor for.
    pub holds: SlotSet,
    /// The number of slots in `holds` and `former`: in so many sockets' `holders` it stands.
    pub held: usize,
    /// Slots whose locks a thread of the process may have though the process holds them no more.
    /// Either the process closed them while the thread was in a call, or they wait for a lock with
    /// this channel's number in it. The locks are freed when the process ends.
    pub closed: SlotSet,
    /// Number of slots that wait for a thread of this process before they are reused
    /// ([`crate::shard::sockets::queues`]).
    pub inside: u32,
    /// Slots in `holds` that were listed in a HELLO that is not complete, or for a CLONE.
    pub listed: SlotSet,
    pub lineage: Lineage,
    pub asks: Asks,
    /// Work that is done in portions with all sockets of the process.
    pub batch: Option<Batch>,
    /// Events were put into its ring since its bell was rung last.
    pub touched: bool,
    /// Slots of sockets that it holds no more but stands in the `holders` of:
    /// [`crate::shard::sockets::ends`] takes it out of them in portions.
    pub former: SlotSet,
    /// The process stands in the queue of [`crate::shard::sockets::ends::Ends`].
    pub is_ending: bool,
    /// Its process is gone, or was cut off. The channel stays until all that it held is let go of.
    pub has_ended: bool,
}

/// How a process came from another one, and which ones come from it.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// Knowledge of the program that the channel is for. None: it has said HELLO, or its time for
    /// HELLO is over, or it is a child of fork, which never says it.
    pub expected: Option<Expected>,
    /// Time after which the channel is taken out of its parent's clones, whether its process has
    /// begun or not.
    pub unborn_until: Option<Instant>,
    /// The channel that this one was cloned from, while it stands among that one's clones.
    pub parent: Option<ChannelId>,
    /// Channels that were cloned from this one, and whose processes may not have begun: what this
    /// one comes by meanwhile they may inherit.
    pub clones: Vec<ChannelId>,
}

/// Requests of a process that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// The process stands among those whose requests are read next.
    pub is_heard: bool,
    /// A request that was read and has to wait for what others said; no other is read before it is
    /// answered.
    pub request: Option<Box<Request>>,
    /// Requests that were read so far: the number of the last one.
    pub asked: u64,
    /// A want of the process that came by the registry, and waits for news of others.
    pub want: Option<Box<Want>>,
}

/// A program that has not said HELLO.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Sockets that the program has without file actions.
    pub inherits: SlotSet,
    /// Time until which the program may say HELLO; then it keeps the sockets that it inherits, and
    /// no more. None: it is not known to run yet, or that time is over.
    pub until: Option<Instant>,
}

/// How far that is which is done with each socket of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The first slot that has not been looked at.
    pub next: u32,
    pub what: BatchWork,
    /// SlotSet that it may bring about.
    pub holds: usize,
}

/// Work to be done with all sockets of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchWork {
    /// The clone holds it, too; with `only_listed` if the clone inherits it.
    Give { clone: ChannelId, only_listed: bool },
    /// The locks are freed that threads of the image before had.
    Unlock,
}

/// All of them, by the ids of their processes, which are used again.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    slab: Vec<Option<Box<Attached>>>,
    count: usize,
    /// Channels that there ever were.
    opened: u64,
    /// Processes of each family that has any.
    families: HashMap<Family, usize>,
    touched: Vec<ChannelId>,
    /// Processes that broke the rules of the channel. A process may be in it twice.
    pub to_cut_off: Vec<ChannelId>,
}

impl Attached {
    /// Whether it asks something that may be taken now. (A process that has ended asks nothing, and
    /// of one with a request here that is not answered the next is not taken.)
    pub fn has_request(&self) -> bool {
        let is_idle = !self.has_ended && self.asks.request.is_none();
        is_idle && self.link.as_ref().is_some_and(|link| link.ring.is_asked())
    }
}

impl Channels {
    /// The channel of a new process.
    pub fn open(&mut self, Newcomer { id, family, life }: Newcomer) {
        self.opened += 1;
        let attached = Attached {
            serial: self.opened,
            life,
            is_watched: false,
            family,
            pid: 0,
            link: None,
            holds: SlotSet::default(),
            held: 0,
            closed: SlotSet::default(),
            inside: 0,
            listed: SlotSet::default(),
            lineage: Lineage::default(),
            asks: Asks::default(),
            batch: None,
            touched: false,
            former: SlotSet::default(),
            is_ending: false,
            has_ended: false,
        };
        let index = id.0 as usize;
        if index >= self.slab.len() {
            self.slab.resize_with(index + 1, || None);
        }
        self.slab[index] = Some(Box::new(attached));
        self.count += 1;
        if let Some(family) = family {
            *self.families.entry(family).or_default() += 1;
        }
    }

    pub fn remove(&mut self, id: ChannelId) -> Option<Box<Attached>> {
        let attached = self.slab.get_mut(id.0 as usize)?.take()?;
        self.count -= 1;
        if let Some(family) = attached.family
            && let Some(count) = self.families.get_mut(&family)
        {
            *count -= 1;
            if *count == 0 {
                self.families.remove(&family);
            }
        }
        Some(attached)
    }

    /// Processes of the family of one, itself included.
    pub fn kin(&self, id: ChannelId) -> usize {
        let family = self.get(id).and_then(|attached| attached.family);
        family.and_then(|family| self.families.get(&family)).map_or(1, |kin| *kin)
    }

    pub fn get(&self, id: ChannelId) -> Option<&Attached> {
        self.slab.get(id.0 as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, id: ChannelId) -> Option<&mut Attached> {
        self.slab.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// All ids; a scan of one cache line each is what looking for commands costs. With thousands of
    /// processes a bitmap of busy channels in the region would pay; one run has dozens at most.
    pub fn ids(&self) -> impl Iterator<Item = ChannelId> + use<> {
        (0..self.slab.len() as u32).map(ChannelId)
    }

    /// Ids of the processes, as these say.
    pub fn pids(&self) -> impl Iterator<Item = Pid> {
        self.slab
            .iter()
            .flatten()
            .filter_map(|attached| Pid::from_raw(i32::try_from(attached.pid).ok()?))
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether any has commands, or asks something.
    pub fn have_something(&self) -> bool {
        self.slab.iter().flatten().any(|attached| {
            let has_commands = |link: &ChannelLink| link.ring.has_commands();
            attached.link.as_ref().is_some_and(has_commands) || attached.has_request()
        })
    }

    /// Notes how far every process has written its ring. The rings of processes that are gone are
    /// read by their end.
    pub fn mark(&mut self) {
        for attached in self.slab.iter_mut().flatten().filter(|attached| !attached.has_ended) {
            if let Some(link) = &mut attached.link {
                link.ring.mark();
            }
        }
    }

    /// Whether something is left of what was said before [`Self::mark`].
    pub fn are_behind_marks(&self) -> bool {
        let alive = self.slab.iter().flatten().filter(|attached| !attached.has_ended);
        alive.filter_map(|it| it.link.as_ref()).any(|link| link.ring.is_behind_mark())
    }

    /// Puts an event into the ring of a process that holds the socket. False: it broke the rules.
    pub fn push_event(&mut self, holder: &mut Holder, slot: u32, bits: u8) -> bool {
        let Holder { id, last } = holder;
        let Some(attached) = self.slab.get_mut(id.0 as usize).and_then(Option::as_deref_mut) else {
            return true;
        };
        let Some(link) = &mut attached.link else {
            return true;
        };
        if link.ring.push_event(slot, bits, last).is_err() {
            return false;
        }
        if !std::mem::replace(&mut attached.touched, true) {
            self.touched.push(*id);
        }
        true
    }

    /// Wakes every process that was given events since the last call and sleeps.
    pub fn ring(&mut self) {
        for id in self.touched.drain(..) {
            let Some(attached) = self.slab.get_mut(id.0 as usize).and_then(Option::as_deref_mut)
            else {
                continue;
            };
            attached.touched = false;
            if let Some(link) = &attached.link {
                link.ring.ring(link.doorbell.as_fd());
            }
        }
    }

    /// Events that found a ring full.
    pub fn events_lost(&self) -> u64 {
        self.slab
            .iter()
            .flatten()
            .filter_map(|attached| attached.link.as_ref())
            .map(|link| link.ring.events_lost())
            .sum()
    }
}

impl Channels {
    /// Writes an answer into the request slot of a process.
    pub(crate) fn answer(&mut self, id: ChannelId, answer: Answer) {
        let reply = answer.unwrap_or_else(Errno::refusal);
        if let Some(link) = self.get_mut(id).and_then(|it| it.link.as_mut()) {
            link.ring.answer(&reply);
        }
    }
}
