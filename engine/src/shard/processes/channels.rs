//! Channels of processes: their rings, and the sockets that the processes have open.

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

/// The channel of a process in one shard: its rings, its requests, and the sockets that the process
/// has open.
#[derive(Debug)]
pub(crate) struct Attached {
    /// Serial number of the channel. Unlike the channel's ID, it is never reused.
    pub serial: u64,
    /// Control socket of the process, on which poll(2) reports a hang-up when the process has
    /// ended.
    pub life: Arc<Fd>,
    /// Whether the poller watches the descriptor `life`.
    pub is_watched: bool,
    /// Family of the process: a process with its descendants. `None` if it was not created by
    /// another process that uses the engine.
    pub family: Option<Family>,
    /// Process ID as sent by the process when it began; 0 before. Processes may send any number.
    /// Therefore SIGURG is sent only to processes that the kernel reports as descendants of the
    /// engine's process ([`crate::shard::processes::owners`]).
    pub pid: u32,
    /// Rings and notification descriptors of the current process image. `None` before it has sent
    /// HELLO.
    pub link: Option<ChannelLink>,
    /// Slots of the sockets for which the process has a descriptor.
    pub holds: SlotSet,
    /// Number of slots in `holds` and `former` together, which equals the number of `holders` lists
    /// that contain the process.
    pub held: usize,
    /// Slots that the process has released, but whose lock one of its threads may hold. The thread
    /// was in a call when the slot was closed, or the lock contains this channel's number. The
    /// locks are released when the process ends.
    pub closed: SlotSet,
    /// Number of slots that cannot be reused until a thread of this process has released their lock
    /// ([`crate::shard::sockets::queues`]).
    pub inside: u32,
    /// Slots in `holds` that the process has listed for a CLONE, or in the first parts of a HELLO
    /// that is split.
    pub listed: SlotSet,
    pub lineage: Lineage,
    pub asks: Asks,
    /// Unfinished batch of work on all sockets of the process, if any.
    pub batch: Option<Batch>,
    /// Whether events were written to the process's ring since it was last notified.
    pub touched: bool,
    /// Slots that the process has released, but whose `holders` list still contains the process.
    /// [`crate::shard::sockets::ends`] removes it in batches.
    pub former: SlotSet,
    /// Whether the process is in the queue [`crate::shard::sockets::ends::Ends`], which releases
    /// its sockets.
    pub is_ending: bool,
    /// Whether the process has ended, or was removed for a protocol violation. Its channel is kept
    /// until all its sockets are released.
    pub has_ended: bool,
}

/// The parent of a process, and its clones (channels for child processes).
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// State of an executed program that has not sent HELLO (first request of a program). `None`
    /// after HELLO or its deadline, and for a child of fork(2), which does not send HELLO.
    pub expected: Option<Expected>,
    /// Deadline for the first message of the new process. After it, the process is removed from its
    /// parent's `clones`. `None` if the process has begun.
    pub unborn_until: Option<Instant>,
    /// Channel of the parent. Set as long as the parent's `clones` list contains this channel.
    pub parent: Option<ChannelId>,
    /// Channels of new processes that may not have begun. The new processes may still inherit
    /// sockets that this process opens.
    pub clones: Vec<ChannelId>,
}

/// Unanswered requests of one process.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// Whether the process is queued, so that its next request will be read.
    pub is_heard: bool,
    /// Request in shared memory that waits for earlier messages of other processes or shards. The
    /// next request is read only after it is answered.
    pub request: Option<Box<Request>>,
    /// Number of requests that were read from shared memory.
    pub asked: u64,
    /// Request from the control socket, forwarded by the registry (process manager), that waits for
    /// earlier messages.
    pub want: Option<Box<Want>>,
}

/// State of an executed program from which a HELLO (first request of a program) is expected.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Sockets that the program inherits, unless spawn file actions change its descriptors.
    pub inherits: SlotSet,
    /// Deadline for HELLO (first request of a program), after which the program keeps only the
    /// inherited sockets. `None` while it is unknown whether the program runs, and after the
    /// deadline.
    pub until: Option<Instant>,
}

/// Progress of work on all sockets of a process, which is done in batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batch {
    /// First slot that is not processed yet.
    pub next: u32,
    pub what: BatchWork,
    /// Maximum number of socket references that the remaining work may add.
    pub holds: usize,
}

/// Kind of work on all sockets of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchWork {
    /// Gives the sockets to the channel `clone`. If `only_listed` is true, gives only the sockets
    /// that its parent has listed.
    Give { clone: ChannelId, only_listed: bool },
    /// Releases the locks that threads of the old process image held at exec.
    Unlock,
}

/// All channels, by ID. The IDs of removed channels are reused.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    slab: Vec<Option<Box<Attached>>>,
    count: usize,
    /// Number of channels opened so far, from which serial numbers are assigned.
    opened: u64,
    /// Number of processes in each family (processes with a common ancestor in the run).
    families: HashMap<Family, usize>,
    touched: Vec<ChannelId>,
    /// Processes that have violated the protocol of their channel and must be cut off. A process
    /// may be listed twice.
    pub to_cut_off: Vec<ChannelId>,
}

impl Attached {
    /// Returns whether the process has a request that can be read now. An ended process has none.
    /// While a request is unanswered, the next one is not read.
    pub fn has_request(&self) -> bool {
        let is_idle = !self.has_ended && self.asks.request.is_none();
        is_idle && self.link.as_ref().is_some_and(|link| link.ring.is_asked())
    }
}

impl Channels {
    /// Adds the channel of a new process.
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

    /// Returns the number of processes in the same family as a process, including itself.
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

    /// Returns the IDs of all channels, also unused ones. Checking a channel for commands reads one
    /// cache line. A bitmap of active channels would be faster for thousands of processes, but a
    /// run has dozens.
    pub fn ids(&self) -> impl Iterator<Item = ChannelId> + use<> {
        (0..self.slab.len() as u32).map(ChannelId)
    }

    /// Returns the process IDs that the processes have sent.
    pub fn pids(&self) -> impl Iterator<Item = Pid> {
        self.slab
            .iter()
            .flatten()
            .filter_map(|attached| Pid::from_raw(i32::try_from(attached.pid).ok()?))
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether any process has written a command or a request.
    pub fn have_something(&self) -> bool {
        self.slab.iter().flatten().any(|attached| {
            let has_commands = |link: &ChannelLink| link.ring.has_commands();
            attached.link.as_ref().is_some_and(has_commands) || attached.has_request()
        })
    }

    /// Records the current end of each process's command ring. Skips ended processes, whose rings
    /// are read completely.
    pub fn mark(&mut self) {
        for attached in self.slab.iter_mut().flatten().filter(|attached| !attached.has_ended) {
            if let Some(link) = &mut attached.link {
                link.ring.mark();
            }
        }
    }

    /// Returns whether any commands written before the last [`Self::mark`] are still unread.
    pub fn are_behind_marks(&self) -> bool {
        let alive = self.slab.iter().flatten().filter(|attached| !attached.has_ended);
        alive.filter_map(|it| it.link.as_ref()).any(|link| link.ring.is_behind_mark())
    }

    /// Writes an event to the ring of a process that has the socket. Returns false if the process
    /// has violated the ring's protocol.
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

    /// Notifies the sleeping processes to whose rings events were written since the last call.
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

    /// Returns the number of events that were lost because the ring of a process was full.
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
    /// Writes a reply to the request slot of a process, in shared memory.
    pub(crate) fn answer(&mut self, id: ChannelId, answer: Answer) {
        let reply = answer.unwrap_or_else(Errno::refusal);
        if let Some(link) = self.get_mut(id).and_then(|it| it.link.as_mut()) {
            link.ring.answer(&reply);
        }
    }
}
