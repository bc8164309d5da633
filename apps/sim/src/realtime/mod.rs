//! Runs in real time, with real devices at the ends of links.
//!
//! A single thread calls the events of the world when they are due, and passes frames between the
//! world and the devices. Virtual time follows the monotonic clock: an event keeps its scheduled
//! time, even if it is called late. [`RealtimeResult`](crate::RealtimeResult) has the lags.
//!
//! Between events the thread sleeps until a device has frames, or shortly before the next event.
//! The thread spins for the remaining time, because a kernel timer may expire late.

mod ip_link;
mod shared_mac;
mod through;
mod wait;

use std::collections::{BTreeMap, BTreeSet};

use towpath_pool::{LinkType, Port};
use towpath_wire::MacAddr;

use crate::batch::{BatchOptions, report};
use crate::clock::monotonic_ns;
use crate::histogram::NumberHistogram;
use crate::packet::mac_of;
use crate::result::{RealtimeResult, Report};
use crate::run::{WorldPace, run};
use crate::scenario::{HostPlan, Place, Plan};
use crate::units::Time;
use crate::world::World;
use ip_link::{IpLink, IpLinkAddresses};
use shared_mac::SharedMac;
use wait::DeviceWaiter;

pub use through::{PROGRAM, Through, UPLINK};

/// Default limit of the lag: a tenth of the shortest round trip between continents, which real time
/// is mostly used to emulate.
pub const MAX_LAG: Time = Time(10_000_000);

/// Time in ns for which the thread spins before an event, instead of sleeping.
const SPIN_NS: u64 = 50_000;
/// Interval in ns at which a device with unsent frames is asked for completions. At 1 Gbit/s, four
/// frames of 1514 bytes take this long.
const COMPLETION_NS: u64 = 50_000;
/// Maximum number of consecutive events before devices are polled.
const EVENTS_MAX: usize = 64;
/// Maximum number of packets received from a device before events are called.
const PACKETS_MAX: usize = 64;

/// Options of runs in real time.
#[derive(Debug, Clone, Copy)]
pub struct RealtimeOptions<'a> {
    /// Options that also apply to runs in simulated time. Runs in real time use only one thread.
    pub batch: BatchOptions<'a>,
    /// Maximum time by which a run may lag behind real time. A run with a greater lag is invalid.
    pub max_lag: Time,
    /// First bytes of the MAC addresses of simulated hosts. No other host of the real networks may
    /// have such an address.
    pub macs: [u8; 4],
}

/// An open device.
pub struct RealPort {
    /// Port of the device.
    pub port: Box<dyn Port + Send>,
    /// The only Ethernet address to which the device receives frames, shared by all simulated
    /// hosts. `None` if the device receives frames to all addresses.
    pub shared_mac: Option<[u8; 6]>,
}

/// Open devices, by the words of the scenario.
pub type RealPorts = BTreeMap<String, RealPort>;

/// Returns the real devices of plans, in the notation of scenarios.
pub fn device_words(plans: &[Plan]) -> BTreeSet<&str> {
    plans.iter().flat_map(|plan| plan.devices().map(|(_, device)| &*device.words)).collect()
}

/// Runs all plans in real time, one after the other. `progress` is called with the completed
/// fraction.
///
/// # Errors
/// Returns the first failure: a limit was reached, a file could not be written, or a device was
/// removed.
pub fn run_in_real_time(
    plans: &[Plan],
    options: RealtimeOptions<'_>,
    ports: &mut RealPorts,
    progress: &dyn Fn(f64),
) -> Result<Report, String> {
    let mut results = Vec::new();
    let count = plans.len() * options.batch.runs;
    for plan in plans {
        let plan = Plan { macs: options.macs, ..plan.clone() };
        let first = options.batch.seed.unwrap_or(plan.seed);
        for nth in 0..options.batch.runs as u64 {
            let done = results.len() as f64;
            let mut pace = RealTime::new(ports, options.max_lag.0)?;
            let mut tell = |share: f64| progress((done + share) / count as f64);
            let seed = first.wrapping_add(nth);
            let result = run(&plan, seed, options.batch, &mut pace, &mut tell);
            results.push(result.map_err(|error| match &*plan.variant {
                "" => error,
                variant => format!("variant `{variant}`: {error}"),
            })?);
        }
    }
    Ok(report(plans, results.first().map_or(0, |run| run.seed), results))
}

/// A real device in a world.
struct DeviceEnd {
    /// Description of the device as written in the scenario.
    words: String,
    /// Index of the link direction (wire) that ends at the device.
    wire: usize,
    /// Whether the waiter reports when the device accepts frames again.
    is_awaited: bool,
    /// Time of the next check for completions.
    completion_ns: Option<u64>,
}

/// Real time: an event is called when the clock reaches its time.
struct RealTime<'a> {
    ports: &'a mut RealPorts,
    devices: Vec<DeviceEnd>,
    /// Index of a device that was removed.
    gone: Option<usize>,
    waiter: DeviceWaiter,
    /// Monotonic time of the start in ns.
    start_ns: u64,
    lags: NumberHistogram,
    max_lag_ns: u64,
    late: u64,
}

impl<'a> RealTime<'a> {
    fn new(ports: &'a mut RealPorts, max_lag_ns: u64) -> Result<Self, String> {
        Ok(Self {
            ports,
            devices: Vec::new(),
            gone: None,
            waiter: DeviceWaiter::new().map_err(|error| format!("epoll and a timer: {error}"))?,
            start_ns: 0,
            lags: NumberHistogram::default(),
            max_lag_ns,
            late: 0,
        })
    }

    fn now(&self) -> u64 {
        monotonic_ns() - self.start_ns
    }

    /// Calls events up to `goal`. Returns whether all of them have been called.
    fn call_due(&mut self, world: &mut World, goal: u64) -> bool {
        for _ in 0..EVENTS_MAX {
            let Some(at) = world.next_event().filter(|at| *at <= goal) else { return true };
            let lag = self.now().saturating_sub(at);
            self.lags.record(lag);
            self.late += u64::from(lag > self.max_lag_ns);
            world.step();
        }
        false
    }

    /// Passes frames between the world, which runs until `end`, and its devices. Fails if a device
    /// was removed.
    fn exchange(&mut self, world: &mut World, end: u64) -> Result<(), String> {
        for at in 0..self.devices.len() {
            let is_ready = self.waiter.is_ready(at);
            let now = self.now();
            let device = &mut self.devices[at];
            let Some(exit) = world.exit(device.wire) else { continue };
            let has_refused = exit.has_refused();
            let Some(port) = exit.port() else { continue };
            if port.is_gone() {
                self.gone = Some(at);
                return Err(format!("the device `{}` was removed", device.words));
            }
            port.looked(is_ready);
            let due = port.next_timeout_ns().is_some_and(|due| due <= now + self.start_ns);
            let is_completed = device.completion_ns.is_some_and(|due| due <= now);
            // A port that is never blocked, such as a channel, is ready when it has room again.
            let has_room = (is_ready && device.is_awaited) || (has_refused && (is_ready || due));
            if is_completed || has_room {
                world.run_exit(device.wire);
            }
            if is_ready || due {
                // Let the packets arrive now, not at the earlier time of the last event. Otherwise
                // their delay would be shorter than that of the link.
                let now = end.min(monotonic_ns() - self.start_ns);
                if world.next_event().is_none_or(|at| at > now) {
                    world.advance(now);
                }
                world.receive(device.wire, PACKETS_MAX);
            }
            self.await_device(world, at, now)?;
        }
        Ok(())
    }

    /// Updates the events to wait for after a device was used.
    fn await_device(&mut self, world: &mut World, at: usize, now: u64) -> Result<(), String> {
        let device = &mut self.devices[at];
        let Some(exit) = world.exit(device.wire) else { return Ok(()) };
        let is_busy = exit.is_busy();
        let passed = device.completion_ns.is_none_or(|due| due <= now);
        if !is_busy || passed {
            device.completion_ns = is_busy.then_some(now + COMPLETION_NS);
        }
        let Some(port) = exit.port() else { return Ok(()) };
        let is_blocked = port.blocked();
        if is_blocked != device.is_awaited
            && let Some(fd) = port.wake_fd()
        {
            device.is_awaited = is_blocked;
            let changed = self.waiter.change(fd, at, is_blocked);
            changed.map_err(|error| format!("epoll for `{}`: {error}", device.words))?;
        }
        Ok(())
    }

    /// Sleeps until a device has frames, or the next event is near; at most until `end`.
    fn sleep(&mut self, world: &mut World, end: u64) -> Result<(), String> {
        let event = world.next_event().map_or(end, |at| at.min(end));
        let mut until = event.saturating_sub(SPIN_NS);
        for device in &self.devices {
            let port = world.exit(device.wire).and_then(|exit| exit.port());
            let timeout = port.and_then(|port| port.next_timeout_ns());
            let timeout = timeout.map(|at| at.saturating_sub(self.start_ns));
            until = [timeout, device.completion_ns].into_iter().flatten().fold(until, u64::min);
        }
        let until = (until > self.now()).then(|| until.saturating_add(self.start_ns));
        self.waiter.wait(until).map_err(|error| format!("epoll: {error}"))
    }
}

/// Adapts a port to the Ethernet of the simulated network.
fn linked(
    RealPort { port, shared_mac }: RealPort,
    plan: &Plan,
    host: usize,
) -> Box<dyn Port + Send> {
    match (port.link_type(), shared_mac) {
        (LinkType::Ip, _) => Box::new(IpLink::new(port, addresses_of(plan, host))),
        (LinkType::Ethernet, None) => port,
        (LinkType::Ethernet, Some(mac)) => {
            Box::new(SharedMac::new(port, MacAddr(mac), addresses_of(plan, host).neighbors))
        }
    }
}

/// Returns the addresses of a real host whose port transfers IP packets without Ethernet header.
/// Packets to destinations outside of the plan go to the first other real host.
fn addresses_of(plan: &Plan, host: usize) -> IpLinkAddresses {
    let mac = |number| mac_of(plan.macs, number);
    // Exclude real hosts whose address is not in the scenario. Their default address may also
    // belong to another real host.
    let is_known = |host: &HostPlan| host.device.as_ref().is_none_or(|it| it.has_address);
    let known = plan.hosts.iter().enumerate().filter(|(_, other)| is_known(other));
    let neighbors = known.map(|(number, other)| (other.address, mac(number))).collect();
    let router = plan.devices().map(|(number, _)| number).find(|number| *number != host);
    let ip = plan.hosts[host].address;
    IpLinkAddresses { own: mac(host), ip, neighbors, router: mac(router.unwrap_or(host)) }
}

impl WorldPace for RealTime<'_> {
    fn begin(&mut self, plan: &Plan, world: &mut World) -> Result<(), String> {
        for (host, device) in plan.devices() {
            let wire = world.wires.iter().position(|wire| wire.to == Place::Host(host));
            let (Some(wire), Some(port)) = (wire, self.ports.remove(&device.words)) else {
                return Err(format!(
                    "line {}: the device `{}` is not open, or two hosts have it",
                    device.line, device.words
                ));
            };
            let port = linked(port, plan, host);
            let watched = port.wake_fd().map(|fd| self.waiter.add(fd, self.devices.len()));
            watched
                .transpose()
                .map_err(|error| format!("epoll for `{}`: {error}", device.words))?;
            world.connect(wire, Some(port));
            self.devices.push(DeviceEnd {
                words: device.words.clone(),
                wire,
                is_awaited: false,
                completion_ns: None,
            });
        }
        self.start_ns = monotonic_ns();
        Ok(())
    }

    fn run_until(&mut self, world: &mut World, end: u64, events_max: u64) -> Result<bool, String> {
        loop {
            let now = self.now();
            let goal = now.min(end);
            if self.call_due(world, goal) {
                world.advance(goal);
                if now >= end {
                    return Ok(world.run_until(end, u64::MAX));
                }
            }
            if world.events >= events_max {
                return Ok(false);
            }
            self.exchange(world, end)?;
            self.sleep(world, end)?;
        }
    }

    fn end(&mut self, world: &mut World) -> Option<RealtimeResult> {
        for DeviceEnd { words, wire, .. } in self.devices.drain(..) {
            if let Some(port) = world.connect(wire, None) {
                // The port has been adapted to the simulated hosts already.
                self.ports.insert(words, RealPort { port, shared_mac: None });
            }
        }
        Some(RealtimeResult::new(&self.lags, self.max_lag_ns, self.late))
    }
}
