//! An engine and how it is made.

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
use towpath_stack::net::{Change, Conflict, IfaceId, InterfaceConfig, Logged, Refused};
use towpath_stack::{Stack, StackConfig};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::config::{EngineConfig, RouteConfig};
use crate::control::RegistryHost;
use crate::domain::Domain;
use crate::lookout::Lookout;
use crate::registry::{Registry, RegistryConfig, UninterceptedProgram};
use crate::remote::Remote;
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

/// A stack, its ports, and the programs on it.
///
/// Threads may turn it one after the other. Dropping it closes the programs' control sockets, which
/// they take for its end; [`Engine::run`] also lets peers know.
///
/// # Example
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
    /// The first, which is turned by the engine's thread.
    pub(crate) shard: Shard,
    /// The others, while no other threads have them.
    pub(crate) others: Vec<Shard>,
    pub(crate) busy: Busy,
    /// Threads that have the other shards, and give them back in the end.
    pub(crate) helpers: Vec<Helper>,
    /// [`EngineConfig::threads_by_need`]: when, in percent of a processor.
    pub(crate) threads_by_need: Option<u32>,
    pub(crate) control: RegistryHost,
    remote: Remote,
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
    /// Shards are a power of two, and no more than [`SHARDS_MAX`].
    #[error("{0} shards: there can be 1, 2, 4, 8 or 16")]
    Shards(usize),
    /// Programs cannot decide about connections to addresses that are not theirs. With the
    /// interface's name.
    #[error("interface {0} is any-address")]
    AnyAddress(String),
    /// No such interface, or a router of another family.
    #[error("route to {0:?} cannot be added")]
    Route(RouteConfig),
    /// The system gave no memory, or no descriptor: the region, the poller and the status page take
    /// some.
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
    /// An engine with its interfaces up and no program. `ports[i]` drives `config.interfaces[i]`.
    /// `seed` is random and secret: initial sequence numbers, ports and the keys of hash tables
    /// come from it.
    ///
    /// # Errors
    /// Interfaces and routes that do not fit, and what the system refuses. The ports are dropped.
    pub fn new(
        config: EngineConfig,
        ports: Vec<Box<dyn Port + Send>>,
        seed: [u8; 32],
    ) -> Result<Self, EngineError> {
        Self::with_clock(config, vec![ports], seed, Clock::System)
    }

    /// The same with several shards, which [`Engine::run`] divides among threads. There are as many
    /// shards as elements in `ports`, each of which has a queue of every device. A packet may come
    /// in at any of them. A packet that comes in at the shard that has its flow
    /// ([`towpath_stack::Owners`]) costs least.
    ///
    /// Memory and sockets that the configuration allows are divided among them.
    ///
    /// # Errors
    /// As for [`Engine::new`], and for a number of shards that is no power of two or too large.
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
        // Each has its part of the slots and of the memory.
        let slots_max = if has_programs { SLOTS_MAX } else { 0 };
        config.sockets_max = config.sockets_max.min(slots_max) / shards;
        config.memory_cap /= u64::from(shards);
        // Sockets of programs and connections whose program is gone come from one table.
        let sockets_max = config.stack.sockets_max.min(config.sockets_max as usize);
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

    /// Starts a service on the engine's thread.
    ///
    /// # Errors
    /// Errors of the service's first sockets. Several shards have no services, since connections to
    /// one come in at any shard.
    pub fn add_service(&mut self, service: Box<dyn Service>) -> Result<(), ServiceError> {
        if !self.others.is_empty() || !self.helpers.is_empty() {
            return Err(ServiceError::SeveralShards);
        }
        let Shard { net, sockets, .. } = &mut self.shard;
        let now = sockets.read_clocks(&net.clock);
        Ok(sockets.private.add(net, now, service)?)
    }

    /// A control socket for one process, which inherits it or is sent it. The process says
    /// [`HELLO`](towpath_shm::control::call::HELLO) on it. The engine counts the process from now
    /// on; it has gone when all copies of the descriptor are closed.
    ///
    /// # Errors
    /// EMFILE when the descriptors that are left are for the processes that are there; there are
    /// [`EngineConfig::channels_max`] processes; or what socketpair(2) says.
    pub fn attach(&mut self) -> io::Result<OwnedFd> {
        let attached = self.here().attach();
        self.exchange();
        attached.map(Fd::into_owned)
    }

    /// As [`Self::attach`], for the process that this engine lives in. The engine ends with that
    /// process, when its remaining data is sent, or no peer takes it any more
    /// ([`EngineConfig::leave_stalled`]). Other processes that are attached do not prolong that,
    /// and their data is not waited for.
    ///
    /// # Errors
    /// As there.
    pub fn attach_host(&mut self) -> io::Result<OwnedFd> {
        let attached = self.here().attach_host();
        self.exchange();
        attached.map(Fd::into_owned)
    }

    /// Exchanges messages between registry and shards. Returns true if a shard received an order.
    pub(crate) fn exchange(&mut self) -> bool {
        self.control.exchange(&mut self.shard, &mut self.others)
    }

    /// Counters of all layers.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.shard.view().counters();
        self.others.iter().for_each(|other| counters.add(other.view().counters()));
        if let Some(registry) = self.control.registry() {
            counters.add_registry(&registry.state().counters);
        }
        counters
    }

    /// Lets time pass, if the clock is by hand.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.shard.net.clock.pass(time);
        self.others.iter_mut().for_each(|other| other.net.clock.pass(time));
        self.here().clock.pass(time);
    }

    /// The registry, which is here before and after [`Engine::run`].
    fn here(&mut self) -> &mut Registry {
        self.control.registry_mut().expect("it has a thread in `run` alone, which has the engine")
    }

    /// From now on every dropped packet is given to `trace`, by several shards at once if there are
    /// several. Each is copied for it, so without a trace they cost less.
    pub fn trace_drops(&mut self, trace: impl Fn(DroppedPacket<'_>) + Send + Sync + 'static) {
        let trace: DropTrace = Arc::new(trace);
        for shard in std::iter::once(&mut self.shard).chain(&mut self.others) {
            shard.net.stack.net.set_trace_drops(true);
            shard.net.observers.drop_trace = Some(Arc::clone(&trace));
        }
    }

    /// From now on `tell` is told of each address of the stack that another host on the link has as
    /// well, once.
    pub fn on_conflict(&mut self, tell: impl Fn(&Conflict) + Send + Sync + 'static) {
        self.shard.net.observers.on_conflict = Some(Arc::new(tell));
    }

    /// Calls `tell` for each packet that a rule logs, by several shards at once if there are
    /// several.
    pub fn on_logged(&mut self, tell: impl Fn(&Logged) + Send + Sync + 'static) {
        let tell: OnLogged = Arc::new(tell);
        for shard in std::iter::once(&mut self.shard).chain(&mut self.others) {
            shard.net.observers.on_logged = Some(Arc::clone(&tell));
        }
    }

    /// Calls `tell` once in each shard when the device of an interface was removed. The interface
    /// stays up unless the owner sets it down.
    pub fn on_device_gone(&mut self, tell: impl Fn(IfaceId) + Send + Sync + 'static) {
        let tell: OnDeviceGone = Arc::new(tell);
        for shard in std::iter::once(&mut self.shard).chain(&mut self.others) {
            shard.net.observers.on_device_gone = Some(Arc::clone(&tell));
        }
    }

    /// Makes all of several changes before the engine runs. [`Remote::apply`] is for later.
    ///
    /// # Errors
    /// None of the changes was made: the first that cannot be, and why.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), Refused> {
        self.shard.net.stack.net.apply(self.shard.net.clock.now(), changes)
    }

    /// Judges packets by rules, or by none, before the engine runs. [`Remote::set_rules`] is for
    /// later.
    pub fn set_rules(&mut self, rules: Option<Rules>) {
        self.shard.net.stack.net.set_rules(rules);
    }

    /// From now on `gatekeeper` hears of every program that leaves the stack, and says whether it
    /// may be executed. The gatekeeper runs on the thread that deals with processes, all of which
    /// wait for it.
    pub fn on_unintercepted(
        &mut self,
        gatekeeper: impl FnMut(UninterceptedProgram<'_>) -> bool + Send + 'static,
    ) {
        self.here().gatekeeper = Some(Box::new(gatekeeper));
    }

    /// From now on every process that attaches gets the read end `pipe`. The kernel kills the
    /// process when no write end is open any more. Only the processes that can end the run (towpath
    /// and its guardian) keep a write end. Processes that said HELLO before have no read end.
    pub fn set_parent_death_pipe(&mut self, pipe: OwnedFd) {
        self.here().lifeline = Some(pipe.into());
    }

    /// The handle for other threads, which may be taken before [`Engine::run`] and outlives it.
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

/// Makes one of the shards of an engine.
fn shard(
    config: &EngineConfig,
    domain: &Domain,
    place: ShardPlace,
    mut net: Net,
) -> Result<Shard, EngineError> {
    if config.interfaces.len() != net.ports.len() {
        let (interfaces, ports) = (config.interfaces.len(), net.ports.len());
        return Err(EngineError::PortsDiffer { interfaces, ports });
    }
    // The stacks have one control part.
    if place.number == 0 {
        join(&mut net.stack, net.clock.now(), &config.interfaces, &config.routes)?;
    }
    let windows = Windows::of_shard(&domain.region, place.number, place.of, config.memory_cap);
    let slots = Slots::new(&domain.region, first_slot(place.number, place.of), config.sockets_max);
    let sockets = Sockets::new(place, windows, slots, config.buffers, &net.clock);
    let mut shard = Shard::new(net, sockets);
    (shard.requests.resolver, shard.processes.departure.stalled) =
        (config.resolver, config.leave_stalled);
    shard.requests.names = Arc::clone(&config.names);
    shard.processes.are_excluded = config.channels_max == 0;
    // A single processor is needed by the program that the engine waits for.
    let are_several = towpath_ring::processors() > 1;
    shard.sleep.lookout = Lookout::new(if are_several { config.busy_poll } else { Duration::ZERO });
    let next = place.number + 1;
    shard.requests.next_shard = (next < place.of).then(|| first_slot(next, place.of));
    Ok(shard)
}

/// Gives the stack its interfaces and routes.
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
        stack.net.add_interface(now, interface.clone());
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

/// Steps that tests make by hand, in place of programs.
#[cfg(test)]
impl Engine {
    /// A process without rings, and its end of the control socket.
    pub(crate) fn open_channel(&mut self) -> (ChannelId, Fd) {
        let (newcomer, theirs) = self.here().open(None).expect("descriptors");
        let id = newcomer.id;
        let Shard { net, sockets, processes, .. } = &mut self.shard;
        processes.open(sockets, net, newcomer);
        (id, theirs)
    }

    /// Gives it rings.
    pub(crate) fn link(&mut self, id: ChannelId) -> Given {
        let (links, given) = ChannelLink::new(false, 1).expect("descriptors");
        let Shard { net, processes, .. } = &mut self.shard;
        links.into_iter().for_each(|link| processes.link(net, id, link));
        given
    }

    /// Answers a request on a control socket, whose turn has come.
    pub(crate) fn grant(&mut self, id: ChannelId, request: &Request) {
        // The process gets the answer to its former request first.
        self.exchange();
        self.here().begin(id, request);
        for order in std::mem::take(&mut self.here().orders[0]) {
            match order {
                ShardCommand::For(id, want) => self.shard.grant(id, *want),
                order => self.shard.obey(order),
            }
        }
    }

    /// Turns, and then hears the programs: the next turn deals with it.
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
