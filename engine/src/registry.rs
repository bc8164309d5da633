//! The processes of a run, apart from the sockets that they hold: who there is, what each was given beside its rings,
//! and who has to begin in time.

pub(crate) mod closer;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use towpath_shm::image::Outside;
use towpath_shm::token;
use towpath_tcp::Instant;

use crate::config::ResolverConfig;
use crate::ids::{ChannelId, Family};
use crate::registry::closer::Closer;
use crate::requests::{Asking, Lengthy};
use crate::sys;

/// A family may have at most 1/FAMILY_SHARE of all processes, so that its programs cannot use them up and keep
/// unrelated programs from forking.
const FAMILY_SHARE: u32 = 2;

pub(crate) type Gatekeeper = Box<dyn FnMut(Outsider<'_>) -> bool>;

/// A program that a process is about to execute, whose sockets will be the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outsider<'a> {
    /// The process, as it says.
    pub pid: u32,
    /// The program's file, as the process says: any bytes.
    pub path: &'a [u8],
    /// Why the program will not use the stack.
    pub why: Outside,
}

/// Which processes there are, and what they are given.
pub(crate) struct Registry {
    processes: Vec<Option<Box<Process>>>,
    /// Ids that nobody has.
    free: Vec<u32>,
    count: usize,
    max: u32,
    /// Processes of each family that has any.
    families: HashMap<Family, u32>,
    /// Families that there ever were: the next one's number.
    founded: u64,
    /// The blank token, of which the descriptors of all sockets of all programs are duplicates.
    pub blank: OwnedFd,
    /// See [`Engine::set_lifeline`](crate::engine::Engine::set_lifeline).
    pub lifeline: Option<OwnedFd>,
    /// The random number by which tokens of this run are known.
    pub run: token::Run,
    pub closer: Closer,
    pub resolver: Option<ResolverConfig>,
    /// Clones by the time until which their processes have to begin: after that they are no longer given the
    /// sockets that their parents open.
    pub to_disinherit: VecDeque<(Instant, ChannelId)>,
    /// Channels of programs that run and have not said HELLO, by the time until which they may: after that they
    /// hold what they inherit.
    pub to_restrict: VecDeque<(Instant, ChannelId)>,
    pub gatekeeper: Option<Gatekeeper>,
}

/// One process. It has the id of its channel.
#[derive(Debug)]
pub(crate) struct Process {
    /// Our end of the control socket.
    pub control: OwnedFd,
    /// The process id, as the process says in HELLO, or as a child of fork in SETTLED; 0 before. One that
    /// executes a program stays the same. The process may say any number: it is shown, and used for nothing else.
    pub pid: u32,
    /// What is known of the program that the channel is for, until that has said HELLO; None also for a child
    /// of fork, which never says it.
    pub expected: Option<Expected>,
    /// After this it is taken out of its parent's clones, whether it has begun or not.
    pub unborn_until: Option<Instant>,
    /// The process that cloned this channel, while the channel stands among its clones.
    pub parent: Option<ChannelId>,
    /// What the process descends from; None for one whose channel was attached and not cloned.
    pub family: Option<Family>,
    /// For whom [`Closer`] closes its descriptors: the family, or one made for this process alone.
    pub closes_as: Family,
    /// A request that waits for descriptors ([`crate::room`]).
    pub asking: Option<Asking>,
    /// A request that is being dealt with in portions ([`crate::lengthy`]).
    pub lengthy: Option<Box<Lengthy>>,
}

/// A program that has not said HELLO.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Until when it may; then it keeps what it inherits, and no more. None: the program is not known to
    /// run yet, or that time is over.
    pub until: Option<Instant>,
}

impl Process {
    /// Whether it has a request that is not answered yet, though its time has come.
    pub fn is_in_answer(&self) -> bool {
        self.asking.is_some() || self.lengthy.is_some()
    }

    /// What is to be closed when it is gone. Whoever waits at the other end learns of it now.
    pub fn into_control(self) -> OwnedFd {
        let _ = shutdown(&self.control, Shutdown::Both);
        self.control
    }
}

impl Registry {
    /// None yet, and never more than `max`.
    pub fn new(max: u32, resolver: Option<ResolverConfig>) -> io::Result<Self> {
        Ok(Self {
            processes: Vec::new(),
            free: Vec::new(),
            count: 0,
            max,
            families: HashMap::new(),
            founded: 0,
            blank: token::blank()?,
            lifeline: None,
            run: token::Run::random()?,
            closer: Closer::default(),
            resolver,
            to_disinherit: VecDeque::new(),
            to_restrict: VecDeque::new(),
            gatekeeper: None,
        })
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
        let process = Process {
            control: ours,
            pid: 0,
            expected: None,
            unborn_until: None,
            parent: None,
            family,
            closes_as: self.family_of_clones(family),
            asking: None,
            lengthy: None,
        };
        let index = self.free.pop().unwrap_or(self.processes.len() as u32);
        if index as usize == self.processes.len() {
            self.processes.push(None);
        }
        self.processes[index as usize] = Some(Box::new(process));
        self.count += 1;
        if let Some(family) = family {
            *self.families.entry(family).or_default() += 1;
        }
        Ok((ChannelId(index), theirs))
    }

    /// It is gone, and its id is used again.
    pub fn remove(&mut self, id: ChannelId) -> Option<Box<Process>> {
        let process = self.processes.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        self.count -= 1;
        if let Some(family) = process.family
            && let Some(count) = self.families.get_mut(&family)
        {
            *count -= 1;
            if *count == 0 {
                self.families.remove(&family);
            }
        }
        Some(process)
    }

    pub fn get(&self, id: ChannelId) -> Option<&Process> {
        self.processes.get(id.0 as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, id: ChannelId) -> Option<&mut Process> {
        self.processes.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Processes of the family of one, itself included.
    pub fn kin(&self, id: ChannelId) -> usize {
        let family = self.get(id).and_then(|process| process.family);
        family.and_then(|family| self.families.get(&family)).map_or(1, |kin| *kin as usize)
    }

    /// Closes descriptors that a process may have, too, where that holds up nobody else.
    pub fn close<D: IntoIterator<Item = OwnedFd>>(&mut self, id: ChannelId, descriptors: D) {
        let whose = self.get(id).map_or(Family(0), |process| process.closes_as);
        self.closer.close(whose, descriptors);
    }
}
