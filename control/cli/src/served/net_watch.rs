//! Looks for changes of the network configuration of a running stack, for all subscribers together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use towpath_engine::{Gone, NetState};
use towpath_model::{NetView, ReportTopic, Subscription};
use towpath_stack::net::{NeighborInfo, RouteEntry};

use super::convert::shown;
use super::stack::ServedStack;
use crate::port;

/// Time between two looks at the configuration. A user notices no shorter delay, and the first
/// shard copies its interfaces and neighbours at each look.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Factor between the time that a look or a sample took and the minimum time to the next one.
/// Routes of a large table, for example, are copied for a tenth of the time at most.
pub const REST_FACTOR: u32 = 10;

/// Maximum number of routes and neighbors that are copied at once after a change by a request. With
/// more of them, a script of changes would occupy the first shard by copies of the whole table.
const HURRY_ENTRIES_MAX: usize = 10_000;

/// The latest state of the network configuration that subscribers have seen.
pub struct NetWatch {
    stack: Arc<ServedStack>,
    state: Mutex<WatchState>,
}

/// State of a [`NetWatch`].
#[derive(Default)]
struct WatchState {
    view: NetView,
    /// Number of subscribers that want routes.
    want_routes: usize,
    /// Number of subscribers that want neighbours.
    want_neighbors: usize,
    /// Generation of `view.routes`; `None` if no subscriber wanted them.
    routes: Option<u64>,
    /// Time of the latest look; `None` if a new one is necessary.
    looked_at: Option<Instant>,
    /// Duration of the latest look.
    took: Duration,
}

/// State of the network layer, as the first shard returns it.
struct SeenNet {
    state: NetState,
    generation: u64,
    /// Routes, if a subscriber wants them and they may have changed.
    routes: Option<Vec<RouteEntry>>,
    neighbors: Option<Vec<NeighborInfo>>,
}

/// Registration of a subscriber's topics, which ends when this value is dropped.
pub struct WatchRegistration {
    watch: Arc<NetWatch>,
    routes: bool,
    neighbors: bool,
}

impl NetWatch {
    /// Creates a watch that has not looked at the configuration yet.
    pub fn new(stack: Arc<ServedStack>) -> Self {
        Self { stack, state: Mutex::default() }
    }

    /// Registers the topics of a subscriber.
    pub fn register(self: &Arc<Self>, wanted: &Subscription) -> WatchRegistration {
        let (routes, neighbors) =
            (wanted.has(ReportTopic::Routes), wanted.has(ReportTopic::Neighbors));
        let mut state = self.lock();
        state.want_routes += usize::from(routes);
        state.want_neighbors += usize::from(neighbors);
        state.looked_at = None;
        WatchRegistration { watch: Arc::clone(self), routes, neighbors }
    }

    /// Returns the current configuration. Uses the latest look if it is recent enough.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    fn look(&self, now: Instant) -> Result<NetView, Gone> {
        let mut state = self.lock();
        let is_recent = |at: Instant| now < at + state.pause();
        if !state.looked_at.is_some_and(is_recent) {
            state.update(&self.stack)?;
            state.looked_at = Some(now);
            state.took = now.elapsed();
        }
        Ok(state.view.clone())
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchState {
    fn pause(&self) -> Duration {
        LOOK_EVERY.max(self.took * REST_FACTOR)
    }

    fn update(&mut self, stack: &ServedStack) -> Result<(), Gone> {
        let (known, wants_routes) = (self.routes, self.want_routes > 0);
        let wants_neighbors = self.want_neighbors > 0;
        let seen = stack.remote.on_first_shard(move |shard| {
            let now = shard.now();
            let net = shard.net();
            net.catch_up();
            // Read the generation before the routes, so that a later change is found next time.
            let generation = net.route_generation();
            let is_new = wants_routes && known != Some(generation);
            let (interfaces, none) = (NetState::interfaces_of(net), Vec::new());
            let routes = is_new.then(|| net.routes().collect());
            let neighbors = wants_neighbors.then(|| net.neighbors().collect());
            let state = NetState { now, interfaces, routes: none, neighbors: Vec::new() };
            SeenNet { state, generation, routes, neighbors }
        })?;
        let SeenNet { mut state, generation, routes, neighbors } = seen;
        let has_routes = routes.is_some();
        (state.routes, state.neighbors) =
            (routes.unwrap_or_default(), neighbors.unwrap_or_default());
        state.neighbors.sort_by_key(|known| (known.iface, known.addr));
        let mut net = shown(&state);
        port::put_carriers(&stack.links(), &mut net.interfaces);
        self.view.interfaces = Arc::new(net.interfaces);
        self.view.neighbors = Arc::new(net.neighbors);
        if has_routes {
            (self.view.routes, self.routes) = (Arc::new(net.routes), Some(generation));
        }
        Ok(())
    }
}

impl WatchRegistration {
    /// Returns the current configuration, or one that is not older than [`Self::pause`].
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn look(&self, now: Instant) -> Result<NetView, Gone> {
        self.watch.look(now)
    }

    /// Returns the time between two looks.
    pub fn pause(&self) -> Duration {
        self.watch.lock().pause()
    }

    /// Requests that the next look reads the configuration anew. Returns false if the configuration
    /// is too large for this.
    pub fn hurry(&self) -> bool {
        let mut state = self.watch.lock();
        let may_hurry = state.view.routes.len() + state.view.neighbors.len() <= HURRY_ENTRIES_MAX;
        if may_hurry {
            state.looked_at = None;
        }
        may_hurry
    }
}

impl Drop for WatchRegistration {
    fn drop(&mut self) {
        let mut state = self.watch.lock();
        state.want_routes -= usize::from(self.routes);
        state.want_neighbors -= usize::from(self.neighbors);
        if state.want_routes == 0 {
            (state.view.routes, state.routes) = (Arc::default(), None);
        }
    }
}
