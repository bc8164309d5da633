//! Channels of attached processes: their rings, and the sockets that they hold.

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

/// The channel of a process in this shard: its rings, its requests, and the sockets that it holds.
#[derive(Debug)]
pub(crate) struct Attached {
    /// Serial number of the channel. Never reused, unlike ids.
    pub serial: u64,
    /// Descriptor on which poll(2) reports a hangup when the process ends.
    pub life: Arc<Fd>,
    /// Whether `life` is registered with the poller.
    pub is_watched: bool,
    /// Family of the process; `None` if it was not cloned.
    pub family: Option<Family>,
    /// Process id that the process sent when it began; 0 before that. The id is kept across exec.
    /// Processes may send any number. Therefore, SIGURG is sent only to processes that the kernel
    /// reports as part of the run ([`crate::shard::processes::owners`]).
    pub pid: u32,
    /// Rings and notifications of the current process image; `None` before HELLO.
    pub link: Option<ChannelLink>,
    /// Slots of sockets of which the process has a descriptor.
    pub holds: SlotSet,
    /// Number of slots in `holds` and `former`, which equals the number of `holders` lists that
    /// contain the process.
    pub held: usize,
    /// Released slots whose lock a thread of the process may still hold. The thread was in a call
    /// when the slot was closed, or the lock contains this channel's number. The locks are released
    /// when the process ends.
    pub closed: SlotSet,
    /// Number of slots that cannot be reused before a thread of this process leaves them
    /// ([`crate::shard::sockets::queues`]).
    pub inside: u32,
    /// Slots in `holds` that the process has listed for an incomplete HELLO, or for a CLONE.
    pub listed: SlotSet,
    pub lineage: Lineage,
    pub asks: Asks,
    /// Unfinished work on all sockets of the process; `None` if no such work is pending.
    pub batch: Option<Batch>,
    /// Whether events were pushed to the ring since the last notification.
    pub touched: bool,
    /// Slots that the process has released, but whose `holders` still contain it.
    /// [`crate::shard::sockets::ends`] removes it in batches.
    pub former: SlotSet,
    /// Whether the process is in the queue of [`crate::shard::sockets::ends::Ends`].
    pub is_ending: bool,
    /// Whether the process has ended or was cut off. The channel stays until all its sockets are
    /// released.
    pub has_ended: bool,
}

/// Parent and clones of a process.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// State of a program that has not sent HELLO. `None` after HELLO or its deadline, and for a
    /// child of fork, which sends no HELLO.
    pub expected: Option<Expected>,
    /// Deadline for the process to begin. After the deadline it is removed from its parent's
    /// `clones`.
    pub unborn_until: Option<Instant>,
    /// Channel from which this one was cloned, as long as that channel's `clones` list contains
    /// this one.
    pub parent: Option<ChannelId>,
    /// Clones whose processes may not have begun, and so may still inherit sockets that this
    /// process opens.
    pub clones: Vec<ChannelId>,
}

/// Requests of a process that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// Whether the process is queued so that its next request is read.
    pub is_heard: bool,
    /// Request that waits for earlier messages of processes or shards. The next request is read
    /// after this one is answered.
    pub request: Option<Box<Request>>,
    /// Number of requests read so far.
    pub asked: u64,
    /// Request from the control socket, forwarded by the registry, that waits for earlier messages.
    pub want: Option<Box<Want>>,
}

/// A program that has not sent HELLO.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Sockets that the program inherits without file actions.
    pub inherits: SlotSet,
    /// Deadline for HELLO, after which the program keeps only the inherited sockets. `None` while
    /// the engine does not know whether the program runs, and after the deadline.
    pub until: Option<Instant>,
}

/// Progress of a [`BatchWork`] on the sockets of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batch {
    /// First slot that is not handled yet.
    pub next: u32,
    pub what: BatchWork,
    /// Number of holds that the batch may add.
    pub holds: usize,
}

/// Work to be done with all sockets of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchWork {
    /// Gives the sockets to the clone; with `only_listed`, only the sockets in its parent's
    /// `listed`.
    Give { clone: ChannelId, only_listed: bool },
    /// Releases the locks that threads of the old process image held.
    Unlock,
}

/// All channels, by id. Ids are reused.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    slab: Vec<Option<Box<Attached>>>,
    count: usize,
    /// Number of channels opened so far.
    opened: u64,
    /// Number of processes in each family.
    families: HashMap<Family, usize>,
    touched: Vec<ChannelId>,
    /// Processes that violated the protocol of the channel. A process may be listed twice.
    pub to_cut_off: Vec<ChannelId>,
}

impl Attached {
    /// Returns whether the process has a request to be read now. Ended processes have none, and an
    /// unanswered request blocks the next one.
    pub fn has_request(&self) -> bool {
        let is_idle = !self.has_ended && self.asks.request.is_none();
        is_idle && self.link.as_ref().is_some_and(|link| link.ring.is_asked())
    }
}

impl Channels {
    /// Opens the channel of a new process.
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

    /// Returns the number of processes in a process's family, including itself.
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

    /// Returns all ids. Checking a channel for commands reads one cache line. A bitmap of active
    /// channels would be faster for thousands of processes, but a run has dozens.
    pub fn ids(&self) -> impl Iterator<Item = ChannelId> + use<> {
        (0..self.slab.len() as u32).map(ChannelId)
    }

    /// Returns the process ids, as sent by the processes.
    pub fn pids(&self) -> impl Iterator<Item = Pid> {
        self.slab
            .iter()
            .flatten()
            .filter_map(|attached| Pid::from_raw(i32::try_from(attached.pid).ok()?))
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether any process has commands or a request.
    pub fn have_something(&self) -> bool {
        self.slab.iter().flatten().any(|attached| {
            let has_commands = |link: &ChannelLink| link.ring.has_commands();
            attached.link.as_ref().is_some_and(has_commands) || attached.has_request()
        })
    }

    /// Records the current write position of each process's ring. Rings of ended processes are read
    /// up to their end.
    pub fn mark(&mut self) {
        for attached in self.slab.iter_mut().flatten().filter(|attached| !attached.has_ended) {
            if let Some(link) = &mut attached.link {
                link.ring.mark();
            }
        }
    }

    /// Returns whether commands that were written before [`Self::mark`] are still unread.
    pub fn are_behind_marks(&self) -> bool {
        let alive = self.slab.iter().flatten().filter(|attached| !attached.has_ended);
        alive.filter_map(|it| it.link.as_ref()).any(|link| link.ring.is_behind_mark())
    }

    /// Pushes an event to the ring of a holder. Returns false if the process violated the ring's
    /// protocol.
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

    /// Notifies sleeping processes to which events were pushed since the last call.
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

    /// Returns the number of events that were lost because a ring was full.
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
    /// Writes a reply to the request slot of a process.
    pub(crate) fn answer(&mut self, id: ChannelId, answer: Answer) {
        let reply = answer.unwrap_or_else(Errno::refusal);
        if let Some(link) = self.get_mut(id).and_then(|it| it.link.as_mut()) {
            link.ring.answer(&reply);
        }
    }
}
