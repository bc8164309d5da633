//! The processes of a run, apart from the sockets that they hold: who there is, and which
//! descriptors each is given.
//!
//! ```text
//!   control socket ─► hear ─► room? ─► begin ─► order ─► shard ─► notice ─► heed ─► the answer, with descriptors
//! ```
//!
//! A thread of its own turns the registry, and may be slow, or a shard's thread does between two
//! turns. In both cases its orders for the shards stand in [`Registry::orders`], and their notices
//! come by [`Registry::heed`].
//!
//! A process is known to all shards, which hold its sockets. Each of its wants is done, or refused,
//! by all of them, and an end in one shard is an end in all. Its number is used again when the last
//! shard has said that it has no trace of it.

mod answer;
pub(crate) mod closer;
mod pending;
mod queries;
mod requests;
mod room;
mod sources;
mod sys;
mod wire;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use towpath_shm::{Fd, opened};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use towpath_shm::image::Outside;
use towpath_shm::token;
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::domain::Domain;
use crate::ids::{ChannelId, Family};
use crate::mail::{Leavers, Newcomer, Order};
use crate::poller::Poller;
use crate::registry::closer::Closer;
use crate::registry::pending::{Pending, Queries, Verdict, Waiting};
use crate::registry::sources::Source;
use crate::remote::Remote;
use crate::report::EngineCounters;

/// A family may have at most 1/FAMILY_SHARE of all processes, so that its programs cannot use them
/// up and keep unrelated programs from forking.
const FAMILY_SHARE: u32 = 2;

pub(crate) type Gatekeeper = Box<dyn FnMut(Outsider<'_>) -> bool + Send>;

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

/// The processes of a run, and the descriptors that they are given.
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
    domain: Domain,
    pub clock: Clock,
    /// The shards' status pages.
    status: Fd,
    /// The blank token, of which the descriptors of all sockets of all programs are duplicates.
    blank: Fd,
    /// See [`Engine::set_lifeline`](crate::Engine::set_lifeline).
    pub lifeline: Option<Fd>,
    pub closer: Closer,
    pub gatekeeper: Option<Gatekeeper>,
    pub remote: Remote,
    poller: Poller<Source>,
    woken: Vec<Source>,
    waiting: Waiting,
    queries: Queries,
    /// Orders that each shard is told next.
    pub orders: Vec<Vec<Order>>,
    pub counters: EngineCounters,
    /// Its part is over when there is no process any more, and was one.
    exit_when_unused: bool,
    /// The registry's part is over when this process is gone. See
    /// [`Engine::attach_host`](crate::Engine::attach_host).
    host: Option<ChannelId>,
    /// There was no process any more, or the host has gone, and the shards were told.
    leaving: Option<Leaving>,
    /// How often they were.
    left: u64,
    /// The shards were told to stop: nobody is let in.
    stopped: bool,
}

/// The shards send what the last process left behind.
#[derive(Debug)]
struct Leaving {
    number: u64,
    whose: Leavers,
    /// Shards that have not done so.
    due: usize,
}

/// A process, with the id of its channel.
#[derive(Debug)]
pub(crate) struct Process {
    /// Our end of the control socket. In the poller until it has hung up.
    control: Arc<Fd>,
    /// Family of the process; None for one whose channel was attached and not cloned.
    family: Option<Family>,
    /// For whom [`Closer`] closes its descriptors: the family, or one made for this process alone.
    closes_as: Family,
    /// A request that is not answered yet.
    pending: Option<Pending>,
    /// Answers of the shards to the process's want.
    verdict: Verdict,
    /// Nothing that it says is heard any more: it is gone, or broke the rules.
    has_hung_up: bool,
    /// Shards that know of it, or are about to.
    parts: usize,
}

impl Registry {
    /// None yet, and never more than `max`. `status`: the pages that programs are given, one for
    /// each of `shards`.
    pub fn new(
        domain: Domain,
        (status, shards): (Fd, usize),
        clock: Clock,
        (max, exit_when_unused): (u32, bool),
    ) -> io::Result<Self> {
        let (remote, mut poller) = (Remote::new()?, Poller::new()?);
        poller.add(remote.bell(), Source::Remote)?;
        Ok(Self {
            processes: Vec::new(),
            free: Vec::new(),
            count: 0,
            max,
            families: HashMap::new(),
            founded: 0,
            domain,
            clock,
            status,
            blank: token::blank()?,
            lifeline: None,
            closer: Closer::default(),
            gatekeeper: None,
            remote,
            poller,
            woken: Vec::new(),
            waiting: Waiting::default(),
            queries: Queries::default(),
            orders: (0..shards).map(|_| Vec::new()).collect(),
            counters: EngineCounters::default(),
            exit_when_unused,
            host: None,
            leaving: None,
            left: 0,
            stopped: false,
        })
    }

    /// See [`Engine::attach`](crate::Engine::attach).
    pub fn attach(&mut self) -> io::Result<Fd> {
        self.let_in().map(|(_, theirs)| theirs)
    }

    /// See [`Engine::attach_host`](crate::Engine::attach_host).
    pub fn attach_host(&mut self) -> io::Result<Fd> {
        let (id, theirs) = self.let_in()?;
        self.host = Some(id);
        Ok(theirs)
    }

    fn let_in(&mut self) -> io::Result<(ChannelId, Fd)> {
        let opened = if self.has_room_for_a_channel() {
            self.open(None)
        } else {
            Err(rustix::io::Errno::MFILE.into())
        };
        let (newcomer, theirs) = opened?;
        self.counters.attached += 1;
        let id = newcomer.id;
        self.tell_all(|| Order::Open(newcomer.clone()));
        Ok((id, theirs))
    }

    /// Tells each shard.
    fn tell_all(&mut self, mut order: impl FnMut() -> Order) {
        self.orders.iter_mut().for_each(|orders| orders.push(order()));
    }

    fn shards(&self) -> usize {
        self.orders.len()
    }

    /// The family of those that a member of `family` makes; of one that is of none: a new one.
    fn family_of_clones(&mut self, family: Option<Family>) -> Family {
        family.unwrap_or_else(|| {
            self.founded += 1;
            Family(self.founded)
        })
    }

    /// A new process, of which all shards are to be told, and its end of the control socket.
    pub fn open(&mut self, family: Option<Family>) -> io::Result<(Newcomer, Fd)> {
        if self.count >= self.max as usize {
            return Err(io::Error::other("as many processes as there may be"));
        }
        let kin = family.and_then(|family| self.families.get(&family)).copied().unwrap_or(0);
        if kin >= self.max / FAMILY_SHARE {
            return Err(io::Error::other("as many processes of one family as there may be"));
        }
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = opened(pair)?;
        let (ours, theirs) = (Fd::from(ours), Fd::from(theirs));
        // Older kernels have no such option: there what comes is closed elsewhere.
        let _ = sys::refuse_descriptors(ours.as_fd());
        let index = self.free.last().copied().unwrap_or(self.processes.len() as u32);
        let id = ChannelId(index);
        self.poller.add(ours.as_fd(), Source::Control(id))?;
        let control = Arc::new(ours);
        let life = Arc::clone(&control);
        let closes_as = self.family_of_clones(family);
        let process = Process {
            control,
            family,
            closes_as,
            pending: None,
            verdict: Verdict::default(),
            has_hung_up: false,
            parts: self.shards(),
        };
        self.free.pop();
        if index as usize == self.processes.len() {
            self.processes.push(None);
        }
        self.processes[index as usize] = Some(Box::new(process));
        self.count += 1;
        if let Some(family) = family {
            *self.families.entry(family).or_default() += 1;
        }
        if self.leaving.take_if(|leaving| leaving.whose == Leavers::All).is_some() {
            self.tell_all(|| Order::Stay);
        }
        Ok((Newcomer { id, family, life }, theirs))
    }

    /// A shard knows the process no more, and says nothing more about it but answers that are due.
    fn end_part(&mut self, id: ChannelId) {
        self.hang_up(id);
        if let Some(process) = self.get_mut(id) {
            process.parts -= 1;
            self.remove_ended(id);
        }
    }

    /// If it is gone, also for the shards, and nothing more will be said about it, its id is used
    /// again.
    fn remove_ended(&mut self, id: ChannelId) {
        let ended = |process: &Process| process.parts == 0 && process.pending.is_none();
        if !self.get(id).is_some_and(ended) {
            return;
        }
        let Some(process) = self.processes.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
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
        // A thread that waits at the other end learns of the end now.
        let _ = shutdown(&process.control, Shutdown::Both);
        self.closer.close(process.closes_as, Arc::into_inner(process.control));
        let whose = if self.host.take_if(|host| *host == id).is_some() {
            if self.count == 0 { Leavers::All } else { Leavers::Gone }
        } else if self.count == 0 && self.exit_when_unused && self.leaving.is_none() {
            Leavers::All
        } else {
            return;
        };
        self.left += 1;
        let number = self.left;
        self.leaving = Some(Leaving { number, whose, due: self.shards() });
        self.tell_all(|| Order::Leave(number, whose));
    }

    /// Nothing that a process says is heard any more.
    fn hang_up(&mut self, id: ChannelId) {
        let Some(process) = self.processes.get_mut(id.0 as usize).and_then(Option::as_deref_mut)
        else {
            return;
        };
        if !std::mem::replace(&mut process.has_hung_up, true) {
            self.poller.remove(process.control.as_fd());
            process.pending.take_if(|pending| matches!(pending, Pending::Room(_)));
        }
    }

    /// Ends a process that broke the rules.
    fn cut_off(&mut self, id: ChannelId) {
        self.hang_up(id);
        // The first shard alone is told of the breach, so that it is counted once.
        self.orders[0].push(Order::CutOff(id));
    }

    /// Ends a process that is gone, or that one shard has cut off, in all shards.
    fn end_elsewhere(&mut self, id: ChannelId) {
        self.hang_up(id);
        self.tell_all(|| Order::Gone(id));
    }

    fn get(&self, id: ChannelId) -> Option<&Process> {
        self.processes.get(id.0 as usize)?.as_deref()
    }

    fn get_mut(&mut self, id: ChannelId) -> Option<&mut Process> {
        self.processes.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Closes descriptors that a process may have, too, where that holds up nobody else.
    fn close<D: IntoIterator<Item = Fd>>(&self, id: ChannelId, descriptors: D) {
        let whose = self.get(id).map_or(Family(0), |process| process.closes_as);
        self.closer.close(whose, descriptors);
    }

    /// Looks at the descriptors, sleeping for at most `timeout` (None: for ever), and does what
    /// they ask for, and what its time has come for.
    pub fn look(&mut self, timeout: Option<Duration>) {
        // epoll can only fail for want of a valid descriptor: nothing would ever wake us again.
        self.poller.wait(timeout, &mut self.woken).expect("the registry's own epoll works");
        let now = self.clock.now();
        let woken = std::mem::take(&mut self.woken);
        for &source in &woken {
            match source {
                Source::Control(id) => self.hear(id),
                Source::Remote => self.grant_wishes(),
                // The thread looks at the shards' notices after each wake-up.
                Source::Shards => {}
            }
        }
        self.woken = woken;
        self.answer_waiting(now);
    }

    /// How long it may sleep; None: nothing has a deadline.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        self.waiting.next().map(|at| at.since(now))
    }

    /// A look is due as well when this is readable.
    pub fn watch_shards(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        self.poller.add(bell, Source::Shards)
    }

    /// Ends [`Self::watch_shards`].
    pub fn watch_shards_no_more(&mut self, bell: BorrowedFd<'_>) {
        self.poller.remove(bell);
    }
}

/// Readable when a [look](Registry::look) is due.
impl AsFd for Registry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// An engine that is gone tells no process, and threads that wait for an answer get none.
impl Drop for Registry {
    fn drop(&mut self) {
        self.remote.close();
        for process in self.processes.drain(..).flatten() {
            // A process that has ended needs no notice.
            let _ = shutdown(&process.control, Shutdown::Both);
            self.closer.close(process.closes_as, Arc::into_inner(process.control));
        }
    }
}
