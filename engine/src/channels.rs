//! The processes that are attached.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use towpath_ring::{Channel, EngineChannel, doorbell};
use towpath_shm::control::Request;
use towpath_tcp::Instant;

use crate::holds::Holds;
use crate::ids::{ChannelId, Family};
use crate::requests::{Asking, By, Lengthy};
use crate::sys;

/// A family may have at most 1/FAMILY_SHARE of all channels, so that its programs cannot use them up and keep
/// unrelated programs from forking.
const FAMILY_SHARE: u32 = 2;

/// One process.
#[derive(Debug)]
pub(crate) struct Attached {
    /// Which of all channels that there ever were.
    pub serial: u64,
    /// Our end of the control socket.
    pub control: OwnedFd,
    /// None before HELLO.
    pub link: Option<Link>,
    /// Slots of sockets that the process has a descriptor for.
    pub holds: Holds,
    /// The number of slots in `holds` and `former`: in so many sockets' `holders` it stands.
    pub held: usize,
    /// Slots whose locks a thread of the process may have though the process holds them no more: those that it
    /// closed while the thread was in a call, and those that wait for a lock with this channel's number in it.
    /// The locks are freed when the process ends.
    pub closed: Holds,
    /// Slots in [`Engine::to_reuse`](crate::engine::Engine::to_reuse) that wait for a thread of this process.
    pub inside: u32,
    /// The process id, as the process says in HELLO, or as a child of fork in SETTLED; 0 before. One that
    /// executes a program stays the same. The process may say any number: it is shown, and used for nothing else.
    pub pid: u32,
    /// Of `holds`, those listed in a HELLO that is not complete, or for a CLONE.
    pub listed: Holds,
    /// What is known of the program that the channel is for, until that has said HELLO; None also for a child
    /// of fork, which never says it.
    pub expected: Option<Expected>,
    /// Channels that were cloned from this one, and whose processes may not have begun: what this one
    /// comes by meanwhile they may inherit.
    pub clones: Vec<ChannelId>,
    /// After this it is taken out of its parent's `clones`, whether its process has begun or not.
    pub unborn_until: Option<Instant>,
    /// The process that cloned this channel, while the channel stands in its `clones`.
    pub parent: Option<ChannelId>,
    /// What the process descends from; None for one whose channel was attached and not cloned.
    pub family: Option<Family>,
    /// For whom [`Closer`](crate::closer::Closer) closes its descriptors: the family, or one made for this
    /// process alone.
    pub closes_as: Family,
    /// A request that waits for descriptors ([`crate::room`]).
    pub asking: Option<Asking>,
    /// A request that is being dealt with in portions ([`crate::lengthy`]).
    pub lengthy: Option<Box<Lengthy>>,
    /// Events were put into its ring since its bell was rung last.
    pub touched: bool,
    /// It stands among those whose control sockets are read next.
    pub is_heard: bool,
    /// A request that was read and has to wait for what others said; no other is read before it is answered.
    pub request: Option<(By, Box<Request>)>,
    /// Slots of sockets that it holds no more but stands in the `holders` of: [`crate::ends`] takes it out of
    /// them in portions.
    pub former: Holds,
    /// It stands in the queue of [`crate::ends::Ends`].
    pub is_ending: bool,
    /// Its process is gone, or was cut off. The channel stays until all that it held is let go of.
    pub has_ended: bool,
}

/// A channel that was made for a program that has not said HELLO.
#[derive(Debug)]
pub(crate) struct Expected {
    /// What it has without file actions.
    pub inherits: Holds,
    /// Until when it may say HELLO; then it keeps no more than `inherits`. None: the program is not known to
    /// run yet, or that time is over.
    pub until: Option<Instant>,
}

/// What a process image and the engine tell each other by.
#[derive(Debug)]
pub(crate) struct Link {
    pub ring: EngineChannel,
    /// Our end of the bell that is rung when the process sleeps and has events.
    pub doorbell: OwnedFd,
    /// What the process rings, in the poller.
    pub engine_bell: OwnedFd,
}

/// All of them. Ids are used again.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    slab: Vec<Option<Box<Attached>>>,
    /// Places in the slab that nobody has.
    free: Vec<u32>,
    count: usize,
    max: u32,
    /// Channels of each family that has any.
    families: HashMap<Family, u32>,
    /// Families that there ever were: the next one's number.
    founded: u64,
    /// Channels that there ever were.
    opened: u64,
    touched: Vec<ChannelId>,
}

impl Link {
    /// Fresh memory with empty rings and fresh bells, for a new process image; and its end of the bell
    /// that we ring. `lost`: the program shall look at everything first.
    pub fn new(lost: bool) -> io::Result<(Self, OwnedFd)> {
        let channel = Channel::create()?;
        if lost {
            channel.header().events_lost.store(1, std::sync::atomic::Ordering::Relaxed);
        }
        let (doorbell, theirs) = doorbell::pair()?;
        let engine_bell = doorbell::create()?;
        Ok((Self { ring: EngineChannel::new(channel), doorbell, engine_bell }, theirs))
    }
}

impl Attached {
    /// Whether it asks something that may be taken now. (A process that has ended asks nothing, and of one whose
    /// request is not answered the next is not taken.)
    pub fn asks(&self) -> bool {
        let is_idle = !self.has_ended && self.request.is_none() && !self.is_in_answer();
        is_idle && self.link.as_ref().is_some_and(|link| link.ring.is_asked())
    }

    /// Whether it has a request that is not answered yet, though its time has come.
    pub fn is_in_answer(&self) -> bool {
        self.asking.is_some() || self.lengthy.is_some()
    }

    /// What is to be closed when it is gone. Whoever waits at the other end learns of it now.
    pub fn into_descriptors(self) -> impl Iterator<Item = OwnedFd> {
        let _ = shutdown(&self.control, Shutdown::Both);
        let bells = self.link.map(|link| [link.doorbell, link.engine_bell]);
        bells.into_iter().flatten().chain([self.control])
    }
}

impl Channels {
    /// None yet, and never more than `max`.
    pub fn new(max: u32) -> Self {
        Self { max, ..Self::default() }
    }

    /// The family of those that a member of `family` makes; of one that is of none: a new one.
    pub fn family_of_clones(&mut self, family: Option<Family>) -> Family {
        family.unwrap_or_else(|| {
            self.founded += 1;
            Family(self.founded)
        })
    }

    /// A new process: returns its end of the control socket.
    pub fn open(&mut self, family: Option<Family>) -> io::Result<(ChannelId, OwnedFd)> {
        if self.count >= self.max as usize {
            return Err(io::Error::other("as many processes as there may be"));
        }
        let kin = family.and_then(|family| self.families.get(&family)).copied().unwrap_or(0);
        if kin >= self.max / FAMILY_SHARE {
            return Err(io::Error::other("as many processes of one family as there may be"));
        }
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Older kernels have no such option: there what comes is closed elsewhere.
        let _ = sys::refuse_descriptors(ours.as_fd());
        self.opened += 1;
        let serial = self.opened;
        let attached = Attached {
            control: ours,
            link: None,
            holds: Holds::default(),
            held: 0,
            closed: Holds::default(),
            inside: 0,
            pid: 0,
            listed: Holds::default(),
            expected: None,
            clones: Vec::new(),
            unborn_until: None,
            parent: None,
            family,
            closes_as: self.family_of_clones(family),
            asking: None,
            lengthy: None,
            touched: false,
            serial,
            is_heard: false,
            request: None,
            former: Holds::default(),
            is_ending: false,
            has_ended: false,
        };
        let index = self.free.pop().unwrap_or(self.slab.len() as u32);
        if index as usize == self.slab.len() {
            self.slab.push(None);
        }
        self.slab[index as usize] = Some(Box::new(attached));
        self.count += 1;
        if let Some(family) = family {
            *self.families.entry(family).or_default() += 1;
        }
        Ok((ChannelId(index), theirs))
    }

    pub fn remove(&mut self, id: ChannelId) -> Option<Box<Attached>> {
        let attached = self.slab.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
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

    pub fn get(&self, id: ChannelId) -> Option<&Attached> {
        self.slab.get(id.0 as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, id: ChannelId) -> Option<&mut Attached> {
        self.slab.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// All of them are gone; gives what there was of descriptors.
    pub fn end(&mut self) -> impl Iterator<Item = (Family, impl Iterator<Item = OwnedFd>)> {
        self.count = 0;
        let all = self.slab.drain(..).flatten();
        all.map(|attached| (attached.closes_as, attached.into_descriptors()))
    }

    /// All ids; a scan of one cache line each is what looking for commands costs. With thousands of
    /// processes a bitmap of busy channels in the region would pay; one run has dozens at most.
    pub fn ids(&self) -> impl Iterator<Item = ChannelId> + use<> {
        (0..self.slab.len() as u32).map(ChannelId)
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether any has commands, or asks something.
    pub fn have_something(&self) -> bool {
        self.slab.iter().flatten().any(|attached| {
            let has_commands = |link: &Link| link.ring.has_commands();
            attached.link.as_ref().is_some_and(has_commands) || attached.asks()
        })
    }

    /// Notes how far every process has said something. What those said that are gone is part of their end.
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

    /// Processes of the family of one, itself included.
    pub fn kin(&self, id: ChannelId) -> usize {
        let family = self.get(id).and_then(|attached| attached.family);
        family.and_then(|family| self.families.get(&family)).map_or(1, |kin| *kin as usize)
    }

    /// Puts an event into a process's ring. False: it broke the rules.
    pub fn push_event(&mut self, id: ChannelId, slot: u32, bits: u8) -> bool {
        let Some(attached) = self.slab.get_mut(id.0 as usize).and_then(Option::as_deref_mut) else {
            return true;
        };
        let Some(link) = &mut attached.link else {
            return true;
        };
        if link.ring.push_event(slot, bits).is_err() {
            return false;
        }
        if !std::mem::replace(&mut attached.touched, true) {
            self.touched.push(id);
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
