//! Creates an engine with its ports, stack and programs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use towpath_filter::Rules;
use towpath_pool::Port;
use towpath_ring::{EngineStatus, Windows};
use towpath_shm::Fd;
use towpath_shm::layout::{CHANNELS_MAX, SHARDS_MAX, SLOTS_MAX, first_slot};
use towpath_stack::net::{
    Change, Conflict, Fault, IfaceId, InterfaceConfig, Logged, Refused, Tracker,
};
use towpath_stack::{Stack, StackConfig};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::config::{EngineConfig, RouteConfig};
use crate::control::RegistryHost;
use crate::domain::Domain;
use crate::lookout::Lookout;
use crate::registry::{Registry, RegistryConfig, UninterceptedProgram};
use crate::remote::{Remote, removed};
use crate::report::Counters;
use crate::service::{Service, ServiceError};
use crate::shard::net::Net;
use crate::shard::net::observers::{DropTrace, DroppedPacket, OnDeviceGone, OnLogged};
use crate::shard::peers::place::ShardPlace;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::slots::Slots;
use crate::shard::{Shard, turn};
use crate::team::{self, Busy, Helper, Team};
#[cfg(test)]
use crate::{ids::ChannelId, link::ChannelLink, link::Given, mail::ShardCommand};
#[cfg(test)]
use towpath_shm::control::Request;

/// A network stack, its ports, and the programs that use it.
///
/// Any thread may run the engine's event loop, but only one at a time. Dropping the engine closes
/// the programs' control sockets, so that they detect its end. [`Engine::run`] also resets
/// connections, so that peers detect it.
///
/// # Example
///
/// An engine without ports needs no privileges; its programs have loopback.
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
    /// The first shard (event loop), which always runs on the engine's thread.
    pub(crate) shard: Shard,
    /// Further shards (event loops) that run on the engine's thread.
    pub(crate) others: Vec<Shard>,
    pub(crate) busy: Busy,
    /// Threads that run further shards (event loops). Joining a thread returns its shards.
    pub(crate) helpers: Vec<Helper>,
    /// Processor usage of a thread, in percent, from which half of its shards get a new thread. See
    /// [`EngineConfig::threads_by_need`].
    pub(crate) threads_by_need: Option<u32>,
    pub(crate) control: RegistryHost,
    remote: Remote,
}

/// Reason why an engine cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The number of ports differs from the number of interfaces.
    #[error("{interfaces} interfaces and {ports} ports")]
    PortsDiffer {
        /// Number of interfaces in [`EngineConfig::interfaces`].
        interfaces: usize,
        /// Number of ports passed to [`Engine::new`].
        ports: usize,
    },
    /// The number of shards is not a power of two, or exceeds [`SHARDS_MAX`]. Contains that number.
    #[error("{0} shards: there can be 1, 2, 4, 8 or 16")]
    Shards(usize),
    /// The interface is configured to accept any destination address, which is not supported,
    /// because programs cannot handle connections to addresses that are not theirs.
    #[error("interface {0} is any-address")]
    AnyAddress(String),
    /// The interface cannot be added, for example because two have the same name.
    #[error("interface {name}: {why}")]
    Interface {
        /// Name of the interface.
        name: String,
        /// Reason why the stack rejects the interface.
        why: Fault,
    },
    /// The route cannot be added: its interface does not exist, or its router has a different
    /// address family.
    #[error("route to {0:?} cannot be added")]
    Route(RouteConfig),
    /// The system has no memory or descriptors left for the shared memory, the poller or the status
    /// page.
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
            .field("sockets", &self.shard.sockets.slots.len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Creates an engine without programs, whose interfaces are up. `ports[i]` drives
    /// `config.interfaces[i]`. `seed` must be random and secret, because initial sequence numbers,
    /// ports and the keys of hash tables are derived from it.
    ///
    /// # Errors
    /// Fails for invalid interfaces or routes, and for errors of the system. The ports are dropped.
    pub fn new(
        config: EngineConfig,
        ports: Vec<Box<dyn Port + Send>>,
        seed: [u8; 32],
    ) -> Result<Self, EngineError> {
        Self::with_clock(config, vec![ports], seed, Clock::System)
    }

    /// Creates an engine with several shards (event loops), which [`Engine::run`] distributes over
    /// threads. Each element of `ports` is for one shard, and contains one queue of each device.
    /// Packets may arrive at any shard, but cost least at the shard that owns their flow
    /// ([`towpath_stack::Owners`]).
    ///
    /// The configured maximum memory and number of sockets are divided among the shards.
    ///
    /// # Errors
    /// As for [`Engine::new`]. Also fails if the number of shards is too large or not a power of
    /// two.
    pub fn with_shards(
        config: EngineConfig,
        ports: Vec<Vec<Box<dyn Port + Send>>>,
        seed: [u8; 32],
    ) -> Result<Self, EngineError> {
        Self::with_clock(config, ports, seed, Clock::System)
    }

    pub(crate) fn with_clock(
        mut config: EngineConfig,
        ports: Vec<Vec<Box<dyn Port + Send>>>,
        seed: [u8; 32],
        clock: Clock,
    ) -> Result<Self, EngineError> {
        let shards = u32::try_from(ports.len()).unwrap_or(u32::MAX);
        if !shards.is_power_of_two() || shards > SHARDS_MAX {
            return Err(EngineError::Shards(ports.len()));
        }
        let has_programs = config.channels_max > 0;
        let domain = Domain::create(has_programs)?;
        let pages = EngineStatus::create_all(shards)?;
        let status = pages[0].file().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let status = Fd::from(fcntl_dupfd_cloexec(status, 0).map_err(io::Error::from)?);
        let max = config.channels_max.min(CHANNELS_MAX);
        let exit_when_unused = config.exit_when_unused;
        // Each shard gets an equal part of the slots and of the memory.
        let slots_max = if has_programs { SLOTS_MAX } else { 0 };
        config.sockets_max = config.sockets_max.min(slots_max) / shards;
        config.memory_cap /= u64::from(shards);
        // The table contains the sockets of programs, and connections whose program has ended.
        // Without programs, only services have sockets, which need no slots in shared memory.
        let sockets_max = match has_programs {
            true => config.stack.sockets_max.min(config.sockets_max as usize),
            false => config.stack.sockets_max,
        };
        let stack_config = StackConfig { sockets_max, ..config.stack.clone() };
        let stacks = Stack::shards(stack_config, seed, clock.now(), shards as usize);
        let each = ports.into_iter().zip(pages).zip(stacks).zip(0..);
        let made = each.map(|(((ports, page), stack), number)| {
            let place = ShardPlace { number, of: shards };
            shard(&config, &domain, place, Net::new(stack, ports, page, clock, config.budget)?)
        });
        let mut made = made.collect::<Result<Vec<_>, _>>()?;
        if shards > 1 {
            turn::introduce(&mut made)?;
        }
        let mut made = made.into_iter();
        let mut first = made.next().expect("there is one");
        let others: Vec<Shard> = made.collect();
        Team::gather(&mut first, &others)?;
        let shards = shards as usize;
        let parts = RegistryConfig { status, shards, max, exit_when_unused };
        let registry = Box::new(Registry::new(domain, clock, parts)?);
        let remote = registry.remote.clone();
        let control = RegistryHost::new(registry, &mut first)?;
        let (busy, helpers, threads_by_need) =
            (Busy::default(), Vec::new(), config.threads_by_need.then_some(team::BUSY));
        Ok(Self { shard: first, others, busy, helpers, threads_by_need, control, remote })
    }

    /// Adds a service: code that uses sockets of the stack on the engine's thread.
    ///
    /// # Errors
    /// Returns errors of the service's first sockets. Also fails in an engine with several shards,
    /// because connections to the service may arrive at any shard.
    pub fn add_service(&mut self, service: Box<dyn Service>) -> Result<(), ServiceError> {
        if !self.others.is_empty() || !self.helpers.is_empty() {
            return Err(ServiceError::SeveralShards);
        }
        self.add_services(vec![service])
    }

    /// Adds a service that runs on all shards (event loops), as one [`Service`] per shard. Only the
    /// service of the first shard may listen. Each shard passes connections that it receives for a
    /// listener to its own service, as
    /// [`NodeEvent::Connected`](towpath_direct::NodeEvent::Connected).
    ///
    /// # Errors
    /// Returns errors of the services' first sockets. Returns [`ServiceError::Shards`] if the
    /// number of services is not that of shards, or while the shards run on several threads.
    pub fn add_services(&mut self, services: Vec<Box<dyn Service>>) -> Result<(), ServiceError> {
        if services.len() != 1 + self.others.len() {
            return Err(ServiceError::Shards(1 + self.others.len()));
        }
        let shards = std::iter::once(&mut self.shard).chain(&mut self.others);
        shards.zip(services).try_for_each(|(shard, service)| {
            let Shard { net, sockets, .. } = shard;
            let now = sockets.read_clocks(&net.clock);
            sockets.private.add(net, now, service)
        })
    }

    /// Creates a control socket for a process, which may inherit it or receive it by SCM_RIGHTS.
    /// The process sends [`HELLO`](towpath_shm::control::call::HELLO) on it. Until all copies of
    /// the descriptor are closed, the socket counts as a process.
    ///
    /// # Errors
    /// Returns EMFILE if all free descriptor numbers are reserved for existing processes. Also
    /// fails if there are [`EngineConfig::channels_max`] processes, or with the error of
    /// socketpair(2).
    pub fn attach(&mut self) -> io::Result<OwnedFd> {
        let attached = self.here().attach();
        self.exchange();
        attached.map(Fd::into_owned)
    }

    /// Creates a control socket for the process that contains this engine. The engine ends after
    /// that process has ended, when the remaining data was sent or made no progress for
    /// [`EngineConfig::leave_stalled`]. The engine does not wait for other attached processes, or
    /// for their data.
    ///
    /// # Errors
    /// As for [`Self::attach`].
    pub fn attach_host(&mut self) -> io::Result<OwnedFd> {
        let attached = self.here().attach_host();
        self.exchange();
        attached.map(Fd::into_owned)
    }

    /// Exchanges messages between the registry and the shards. Returns true if a shard received a
    /// command.
    pub(crate) fn exchange(&mut self) -> bool {
        self.control.exchange(&mut self.shard, &mut self.others)
    }

    /// Returns the counters of all layers, as sums over all shards.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.shard.view().counters();
        self.others.iter().for_each(|other| counters.add(other.view().counters()));
        if let Some(registry) = self.control.registry() {
            counters.add_registry(&registry.state().counters);
        }
        counters
    }

    /// Advances the engine's clock by `time`, if it is a manual clock.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.shard.net.clock.pass(time);
        self.others.iter_mut().for_each(|other| other.net.clock.pass(time));
        self.here().clock.pass(time);
    }

    /// Returns the registry, which is on this thread except during [`Engine::run`].
    fn here(&mut self) -> &mut Registry {
        self.control.registry_mut().expect("it has a thread in `run` alone, which has the engine")
    }

    /// Sets the function `trace` that is called for every dropped packet. With several shards
    /// (event loops), several threads call it. The function gets a copy of the packet, so dropping
    /// a packet costs less without it.
    pub fn trace_drops(&mut self, trace: impl Fn(DroppedPacket<'_>) + Send + Sync + 'static) {
        let trace: DropTrace = Arc::new(trace);
        for shard in std::iter::once(&mut self.shard).chain(&mut self.others) {
            shard.net.stack.net.set_trace_drops(true);
            shard.net.observers.drop_trace = Some(Arc::clone(&trace));
        }
    }

    /// Sets the function `tell` that is called once for each address of the stack that another host
    /// on the link uses as well.
    pub fn on_conflict(&mut self, tell: impl Fn(&Conflict) + Send + Sync + 'static) {
        self.shard.net.observers.on_conflict = Some(Arc::new(tell));
    }

    /// Sets the function `tell` that is called for each packet logged by a filter rule. With
    /// several shards (event loops), several threads call it.
    pub fn on_logged(&mut self, tell: impl Fn(&Logged) + Send + Sync + 'static) {
        let tell: OnLogged = Arc::new(tell);
        for shard in std::iter::once(&mut self.shard).chain(&mut self.others) {
            shard.net.observers.on_logged = Some(Arc::clone(&tell));
        }
    }

    /// Sets the function `tell` that is called, once in each shard (event loop), when the device of
    /// an interface was removed. The interface stays up unless its owner sets it down.
    pub fn on_device_gone(&mut self, tell: impl Fn(IfaceId) + Send + Sync + 'static) {
        let tell: OnDeviceGone = Arc::new(tell);
        for shard in std::iter::once(&mut self.shard).chain(&mut self.others) {
            shard.net.observers.on_device_gone = Some(Arc::clone(&tell));
        }
    }

    /// Applies several changes before the engine runs. If one is invalid, none is applied. Use
    /// [`Remote::apply`] while the engine runs.
    ///
    /// # Errors
    /// Returns the first invalid change, and the reason. Then no change was made.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), Refused> {
        let now = self.shard.net.clock.now();
        self.apply_at(now, changes)
    }

    /// Applies changes with the current time `now`, and drops the ports of removed interfaces.
    pub(crate) fn apply_at(&mut self, now: Instant, changes: &[Change]) -> Result<(), Refused> {
        self.shard.net.stack.net.apply(now, changes)?;
        for iface in removed(changes) {
            for shard in std::iter::once(&mut self.shard).chain(&mut self.others) {
                drop(shard.net.detach(now, iface));
            }
        }
        Ok(())
    }

    /// Sets or removes the packet filter rules before the engine runs. Use [`Remote::set_rules`]
    /// while the engine runs.
    pub fn set_rules(&mut self, rules: Option<Rules>) {
        self.shard.net.stack.net.set_rules(rules);
    }

    /// Sets the connection tracker of the first shard before the engine runs. An engine with a
    /// tracker must have one shard, because a tracker sees only the packets of its shard.
    pub fn set_tracker(&mut self, tracker: Box<dyn Tracker>) {
        self.shard.net.stack.net.set_tracker(Some(tracker));
    }

    /// Sets the function `gatekeeper` that is called before a process executes a program that
    /// cannot use the stack. The program is executed only if it returns true. The function runs on
    /// the thread that manages processes, and delays all of them.
    pub fn on_unintercepted(
        &mut self,
        gatekeeper: impl FnMut(UninterceptedProgram<'_>) -> bool + Send + 'static,
    ) {
        self.here().gatekeeper = Some(Box::new(gatekeeper));
    }

    /// Passes the read end of a pipe to every process that attaches from now on. The kernel kills
    /// these processes when all write ends are closed. The write ends belong to the processes that
    /// can end the engine: towpath and its guardian process.
    pub fn set_parent_death_pipe(&mut self, pipe: OwnedFd) {
        self.here().lifeline = Some(pipe.into());
    }

    /// Returns a handle with which other threads control the engine. The handle is valid before
    /// [`Engine::run`] and after the engine has ended.
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.remote.close();
        self.end_threads();
        let shards = std::iter::once(&mut self.shard).chain(&mut self.others);
        shards.for_each(Shard::forget_all);
        self.exchange();
    }
}

/// Creates one shard (event loop) of an engine.
fn shard(
    config: &EngineConfig,
    domain: &Domain,
    place: ShardPlace,
    mut net: Net,
) -> Result<Shard, EngineError> {
    if config.interfaces.len() != net.ports.list.len() {
        let (interfaces, ports) = (config.interfaces.len(), net.ports.list.len());
        return Err(EngineError::PortsDiffer { interfaces, ports });
    }
    // Configure only the first shard's stack, because the stacks of all shards share their
    // configuration.
    if place.number == 0 {
        join(&mut net.stack, net.clock.now(), &config.interfaces, &config.routes)?;
    }
    let windows = Windows::of_shard(&domain.region, place.number, place.of, config.memory_cap);
    let slots = Slots::new(&domain.region, first_slot(place.number, place.of), config.sockets_max);
    let sockets = Sockets::new(place, windows, slots, config.buffers, &net.clock);
    let mut shard = Shard::new(net, sockets);
    (shard.processes.resolver, shard.processes.departure.stalled) =
        (config.resolver, config.leave_stalled);
    shard.requests.names = Arc::clone(&config.names);
    shard.processes.are_excluded = config.channels_max == 0;
    // Do not poll on a single processor, because that would delay the program for which the engine
    // waits.
    let are_several = towpath_ring::processors() > 1;
    shard.sleep.lookout = Lookout::new(if are_several { config.busy_poll } else { Duration::ZERO });
    let next = place.number + 1;
    shard.requests.next_shard = (next < place.of).then(|| first_slot(next, place.of));
    Ok(shard)
}

/// Adds the configured interfaces and routes to the stack.
fn join(
    stack: &mut Stack<Sockets>,
    now: Instant,
    interfaces: &[InterfaceConfig],
    routes: &[RouteConfig],
) -> Result<(), EngineError> {
    for interface in interfaces {
        if interface.any_address {
            return Err(EngineError::AnyAddress(interface.name.clone()));
        }
        let name = || interface.name.clone();
        let added = stack.net.try_add_interface(now, interface);
        added.map_err(|why| EngineError::Interface { name: name(), why })?;
    }
    for route in routes {
        let iface = u16::try_from(route.interface + 1).map(IfaceId);
        let added = iface.is_ok_and(|iface| {
            stack.net.add_route(route.prefix, route.next_hop, iface, route.metric)
        });
        if !added {
            return Err(EngineError::Route(*route));
        }
    }
    Ok(())
}

/// Test functions that act in place of programs, step by step.
#[cfg(test)]
impl Engine {
    /// Opens a channel for a process, without rings. Returns the program's end of its control
    /// socket.
    pub(crate) fn open_channel(&mut self) -> (ChannelId, Fd) {
        let (newcomer, theirs) = self.here().open(None).expect("descriptors");
        let id = newcomer.id;
        let Shard { net, sockets, processes, .. } = &mut self.shard;
        processes.open(sockets, net, newcomer);
        (id, theirs)
    }

    /// Creates the rings of a process for its channel.
    pub(crate) fn link(&mut self, id: ChannelId) -> Given {
        let (links, given) = ChannelLink::new(false, 1).expect("descriptors");
        let Shard { net, processes, .. } = &mut self.shard;
        links.into_iter().for_each(|link| processes.link(net, id, link));
        given
    }

    /// Handles a request as if it had arrived on a control socket, at once.
    pub(crate) fn grant(&mut self, id: ChannelId, request: &Request) {
        // First deliver the reply to an earlier request of the process.
        self.exchange();
        self.here().begin(id, request);
        for order in std::mem::take(&mut self.here().orders[0]) {
            match order {
                ShardCommand::For(id, want) => self.shard.grant(id, *want),
                order => self.shard.obey(order),
            }
        }
    }

    /// Runs an iteration of the event loop, then polls the descriptors. The next iteration handles
    /// their events.
    pub(crate) fn turn_and_look(&mut self) {
        self.shard.do_turn();
        self.shard.look();
        self.exchange();
    }
}

const _: () = {
    const fn can_be_sent<T: Send>() {}
    can_be_sent::<Shard>();
    can_be_sent::<Engine>();
};
