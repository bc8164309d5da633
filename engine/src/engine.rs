//! An engine and how it is made.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use towpath_pool::Port;
use towpath_ring::{Region, Spin, Windows};
use towpath_shm::layout::{CHANNELS_MAX, SLOTS_MAX};
use towpath_stack::Stack;
use towpath_stack::net::limits::RESOLUTION_TIME;
use towpath_stack::net::{IfaceId, InterfaceConfig};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::config::{EngineConfig, RouteConfig};
use crate::ids::{ChannelId, Family};
use crate::poller::{Poller, Source};
use crate::registry::{Outsider, Registry};
use crate::remote::Remote;
use crate::requests::{LengthyRequests, Rounds, Waiting};
use crate::shard::channels::{Channels, Link};
use crate::shard::host::Host;

use crate::shard::slots::Slots;
use crate::shard::{DroppedPacket, Shard};

/// A stack, its ports, and the programs on it.
///
/// It stays on the thread that makes it: ports need not be [`Send`]. Dropping it closes the programs' control sockets,
/// which they take for its end; [`Engine::run`] also lets peers know.
///
/// # Example
/// One without ports, whose programs have loopback. It needs no privileges.
/// ```
/// use std::thread;
///
/// use towpath_engine::{Engine, EngineConfig, EngineError};
///
/// # fn main() -> Result<(), EngineError> {
/// // The seed is random and secret where there are peers.
/// let engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32])?;
/// let remote = engine.remote();
/// let other = thread::spawn(move || {
///     let sockets = remote.sockets();
///     remote.stop();
///     sockets
/// });
/// let report = engine.run();
/// assert_eq!(other.join().expect("it does not panic"), Ok(Vec::new()));
/// assert!(report.counters.drops.iter().all(|(_, count)| *count == 0));
/// # Ok(())
/// # }
/// ```
pub struct Engine {
    pub(crate) shard: Shard,
    pub(crate) registry: Registry,
    pub(crate) poller: Poller,
    pub(crate) rounds: Rounds,
    pub(crate) lengthy: LengthyRequests,
    pub(crate) waiting: Waiting,
    pub(crate) remote: Remote,
    pub(crate) spin: Spin,
    /// There are processors beside those of a program and this engine.
    pub(crate) to_spare: bool,
    /// When the descriptors were looked at last, and what was found.
    pub(crate) looked: Instant,
    pub(crate) woken: Vec<Source>,
    /// What the counter `work` was at the end of the last turn.
    pub(crate) worked: u64,
    pub(crate) exit_when_unused: bool,
    pub(crate) stopped: bool,
    /// How far that is which the last program left to be sent; None while there are programs.
    pub(crate) leaving: Option<Leaving>,
    pub(crate) leave_stalled: Duration,
}

/// How far the sending is of what the last program left behind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving {
    /// The least that [`Engine::unsent`] has been since the last program went.
    pub unsent: u64,
    /// When it fell to that.
    pub moved: Instant,
    /// When it may be counted again.
    pub count_at: Instant,
    /// A turn came before `count_at`: the engine does not sleep beyond that time.
    pub is_due: bool,
}

impl Leaving {
    /// When the engine goes if no less is unsent by then; `stalled` is for streams. Behind them only
    /// packets wait for devices and neighbours, among them a program's last datagram, which knows by then
    /// whether its neighbour is there. Which of them are answers to strangers nobody can tell, and as long
    /// as strangers ask there are some: so it is not asked whether these become fewer.
    pub fn until(&self, stalled: Duration) -> Instant {
        self.moved + if self.unsent == 0 { RESOLUTION_TIME } else { stalled }
    }
}

/// Why an engine cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Each interface needs its port.
    #[error("{interfaces} interfaces and {ports} ports")]
    PortsDiffer {
        /// As many as [`EngineConfig::interfaces`] has.
        interfaces: usize,
        /// As many as [`Engine::new`] was given.
        ports: usize,
    },
    /// Programs cannot decide about connections to addresses that are not theirs. With the interface's name.
    #[error("interface {0} is any-address")]
    AnyAddress(String),
    /// No such interface, or a router of another family.
    #[error("route to {0:?} cannot be added")]
    Route(RouteConfig),
    /// The system gave no memory, or no descriptor: the region, the poller and the status page take some.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<EngineError> for io::Error {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::System(error) => error,
            other => Self::new(io::ErrorKind::InvalidInput, other),
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("sockets", &self.shard.host.slots.len())
            .field("processes", &self.registry.len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine with its interfaces up and no program. `ports[i]` drives `config.interfaces[i]`. `seed` is random and
    /// secret: initial sequence numbers, ports and the keys of hash tables come from it.
    ///
    /// # Errors
    /// Interfaces and routes that do not fit, and what the system refuses. The ports are dropped.
    pub fn new(
        config: EngineConfig,
        ports: Vec<Box<dyn Port>>,
        seed: [u8; 32],
    ) -> Result<Self, EngineError> {
        Self::with_clock(config, ports, seed, Clock::System)
    }

    pub(crate) fn with_clock(
        config: EngineConfig,
        ports: Vec<Box<dyn Port>>,
        seed: [u8; 32],
        clock: Clock,
    ) -> Result<Self, EngineError> {
        let now = clock.now();
        let sockets_max = config.sockets_max.min(SLOTS_MAX);
        let mut stack_config = config.stack;
        // Sockets of programs and connections whose program is gone come from one table.
        stack_config.sockets_max = stack_config.sockets_max.min(sockets_max as usize);
        let mut stack = Stack::new(stack_config, seed, now);
        join(&mut stack, now, config.interfaces, config.routes, ports.len())?;
        let region = Region::create()?;
        let windows = Windows::new(&region, config.memory_cap);
        let (remote, mut poller) = (Remote::new()?, Poller::new(&ports)?);
        poller.add(remote.bell(), Source::Remote)?;
        let channels_max = config.channels_max.min(CHANNELS_MAX);
        let memory = (region, windows);
        let slots = Slots::new(&memory.0, sockets_max);
        let host = Host::new(memory, slots, Channels::default(), config.buffers, &clock);
        Ok(Self {
            shard: Shard::new(stack, host, ports, clock)?,
            registry: Registry::new(channels_max, config.resolver)?,
            poller,
            rounds: Rounds::default(),
            lengthy: LengthyRequests::default(),
            waiting: Waiting::default(),
            remote,
            spin: Spin::new(),
            looked: Instant::ZERO,
            woken: Vec::new(),
            to_spare: towpath_ring::has_processors_to_spare(),
            worked: 0,
            exit_when_unused: config.exit_when_unused,
            stopped: false,
            leaving: None,
            leave_stalled: config.leave_stalled,
        })
    }

    /// A control socket for one process, which inherits it or is sent it. The process says
    /// [`HELLO`](towpath_shm::control::call::HELLO) on it. The engine counts the process from now on; it has gone when
    /// all copies of the descriptor are closed.
    ///
    /// # Errors
    /// EMFILE when the descriptors that are left are for the processes that are there; there are
    /// [`EngineConfig::channels_max`] processes; or what socketpair(2) says.
    pub fn attach(&mut self) -> io::Result<OwnedFd> {
        let (_, theirs) = self.open_channel(None)?;
        Ok(theirs)
    }

    /// From now on every dropped packet is given to `trace`. Each is copied for it, so without a trace
    /// they cost less.
    pub fn trace_drops(&mut self, trace: impl FnMut(DroppedPacket<'_>) + 'static) {
        self.shard.stack.net.set_trace_drops(true);
        self.shard.drop_trace = Some(Box::new(trace));
    }

    /// From now on `gatekeeper` hears of every program that leaves the stack, and says whether it may be
    /// executed. It runs on the engine's thread, and must not wait.
    pub fn on_outsider(&mut self, gatekeeper: impl FnMut(Outsider<'_>) -> bool + 'static) {
        self.registry.gatekeeper = Some(Box::new(gatekeeper));
    }

    /// From now on every process that attaches gets the read end `pipe`, and has the kernel kill it when no write
    /// end is open any more. Only the processes that can end the run (towpath and its guardian) keep a write end.
    /// Processes that said HELLO before have no read end.
    pub fn set_lifeline(&mut self, pipe: OwnedFd) {
        self.registry.lifeline = Some(pipe);
    }

    /// The handle for other threads, which may be taken before [`Engine::run`] and outlives it.
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }

    pub(crate) fn open_channel(
        &mut self,
        family: Option<Family>,
    ) -> io::Result<(ChannelId, OwnedFd)> {
        let opened = if self.has_room_for_a_channel() {
            self.registry.open(family)
        } else {
            Err(rustix::io::Errno::MFILE.into())
        };
        self.shard.host.counters.channels_refused += u64::from(opened.is_err());
        let (id, theirs) = opened?;
        self.shard.host.channels.open(id);
        if let Some(process) = self.registry.get(id)
            && let Err(error) = self.poller.add(process.control.as_fd(), Source::Control(id))
        {
            // Its end would never be noticed.
            self.forget_channel(id);
            return Err(error);
        }
        self.shard.host.counters.attached += 1;
        self.leaving = None;
        Ok((id, theirs))
    }

    /// Fresh rings and bells for a channel's new process image. Gives its end of the bell that we ring.
    pub(crate) fn link(&mut self, id: ChannelId, lost: bool) -> io::Result<OwnedFd> {
        let (link, bell) = Link::new(lost)?;
        let attached = self.shard.host.channels.get_mut(id).ok_or(io::ErrorKind::NotFound)?;
        self.poller.add(link.engine_bell.as_fd(), Source::Doorbell)?;
        let old = attached.link.replace(link);
        self.end_link(id, old);
        Ok(bell)
    }

    /// A process image is gone, or was cut off: its rings are not looked at any more, and its bells are closed.
    pub(crate) fn end_link(&mut self, id: ChannelId, link: Option<Link>) {
        let Some(link) = link else { return };
        self.poller.remove(link.engine_bell.as_fd());
        self.registry.close(id, [link.doorbell, link.engine_bell]);
    }

    /// Nothing of a channel is left but its id, which is used again.
    pub(crate) fn forget_channel(&mut self, id: ChannelId) {
        if let Some(mut attached) = self.shard.host.channels.remove(id) {
            self.end_link(id, attached.link.take());
        }
        let Some(process) = self.registry.remove(id) else { return };
        let whose = process.closes_as;
        self.registry.closer.close(whose, [process.into_control()]);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.remote.close();
        let ids: Vec<ChannelId> = self.shard.host.channels.ids().collect();
        ids.iter().for_each(|id| self.forget_channel(*id));
        // Those who sleep on one socket look whether this thread lives, and it may.
        ids.into_iter().for_each(|id| self.shard.status.wake(id.number()));
    }
}

/// Gives the stack its interfaces and routes, one interface a port.
fn join(
    stack: &mut Stack<Host>,
    now: Instant,
    interfaces: Vec<InterfaceConfig>,
    routes: Vec<RouteConfig>,
    ports: usize,
) -> Result<(), EngineError> {
    if interfaces.len() != ports {
        return Err(EngineError::PortsDiffer { interfaces: interfaces.len(), ports });
    }
    for interface in interfaces {
        if interface.any_address {
            return Err(EngineError::AnyAddress(interface.name));
        }
        stack.net.add_interface(now, interface);
    }
    for route in routes {
        let iface = u16::try_from(route.interface + 1).map(IfaceId);
        let added = iface.is_ok_and(|iface| {
            stack.net.add_route(route.prefix, route.next_hop, iface, route.metric)
        });
        if !added {
            return Err(EngineError::Route(route));
        }
    }
    Ok(())
}
