//! Makes reports for subscribers of a running stack: changes of the network configuration, and
//! samples.

use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_engine::{Counters, Gone, InterfaceState, NetState, Portion, Query, QueryTarget};
use towpath_model::{
    Call, CallResponder, NetView, Reply, ReportSource, ReportTopic, RequestFault, RunReport,
    ShardSample, Subscription,
};
use towpath_stack::net::Traffic;
use towpath_tcp::Instant as EngineInstant;

use super::convert::shown;
use super::counters;
use super::net_watch::{NetWatch, REST_FACTOR, WatchRegistration};
use super::ranking::SocketRanking;
use super::stack::{ServedStack, gone};
use crate::port;

/// Topics that report changes.
const CHANGES: [ReportTopic; 4] =
    [ReportTopic::Links, ReportTopic::Addresses, ReportTopic::Routes, ReportTopic::Neighbors];

/// Answers requests about a running stack by a function, and sends reports to subscribers.
pub struct StackResponder<F> {
    answer: F,
    stack: Arc<ServedStack>,
    watch: Arc<NetWatch>,
    /// Time to which the times of reports are relative.
    started: Instant,
}

impl<F: Fn(Call, &mut Reply) + Send + 'static> StackResponder<F> {
    /// Creates the responder of a stack. `answer` answers all requests except subscriptions.
    pub fn new(stack: Arc<ServedStack>, answer: F) -> Self {
        let watch = Arc::new(NetWatch::new(Arc::clone(&stack)));
        Self { answer, stack, watch, started: Instant::now() }
    }
}

impl<F: Fn(Call, &mut Reply) + Send + 'static> CallResponder for StackResponder<F> {
    fn answer(&self, call: Call, reply: &mut Reply) {
        (self.answer)(call, reply);
    }

    fn subscribe(&self, wanted: &Subscription) -> Result<Box<dyn ReportSource>, RequestFault> {
        let now = Instant::now();
        let changes = CHANGES.iter().any(|topic| wanted.has(*topic));
        let changes = changes.then(|| ChangeReports::new(&self.watch, wanted, now)).transpose();
        let samples = wanted.topics.iter().any(|topic| !CHANGES.contains(topic));
        Ok(Box::new(StackReports {
            stack: Arc::clone(&self.stack),
            started: self.started,
            changes: changes.map_err(gone)?,
            next_sample: samples.then_some(now),
            ranking: SocketRanking::default(),
            wanted: wanted.clone(),
        }))
    }
}

/// Reports for one subscriber.
struct StackReports {
    stack: Arc<ServedStack>,
    started: Instant,
    wanted: Subscription,
    /// Changes since the subscriber's latest reports; `None` if it does not want changes.
    changes: Option<ChangeReports>,
    /// Time of the next sample; `None` if the subscriber does not want samples.
    next_sample: Option<Instant>,
    ranking: SocketRanking,
}

/// Reports about changes for one subscriber.
struct ChangeReports {
    watched: WatchRegistration,
    /// Configuration according to all reports so far.
    known: NetView,
    next_look: Instant,
}

impl ChangeReports {
    fn new(watch: &Arc<NetWatch>, wanted: &Subscription, now: Instant) -> Result<Self, Gone> {
        let watched = watch.register(wanted);
        let (known, next_look) = (watched.look(now)?, now + watched.pause());
        Ok(Self { watched, known, next_look })
    }

    fn collect(&mut self, now: Instant, wanted: &Subscription) -> Result<Vec<RunReport>, Gone> {
        let current = self.watched.look(now)?;
        // Compared on the thread that answers all requests.
        let began = Instant::now();
        let reports = self.known.changes(&current, wanted);
        let rest = began.elapsed() * REST_FACTOR;
        self.known = current;
        self.next_look = now + self.watched.pause().max(rest);
        Ok(reports)
    }
}

impl ReportSource for StackReports {
    fn due(&self) -> Instant {
        let changes = self.changes.as_ref().map(|changes| changes.next_look);
        let due = changes.into_iter().chain(self.next_sample).min();
        // A subscription has at least one topic.
        due.unwrap_or_else(Instant::now)
    }

    fn hurry(&mut self) {
        if let Some(changes) = self.changes.as_mut().filter(|changes| changes.watched.hurry()) {
            changes.next_look = Instant::now();
        }
    }

    fn collect(&mut self, now: Instant) -> Option<Vec<RunReport>> {
        let mut reports = self.due_reports(now).ok()?;
        let time_us = now.saturating_duration_since(self.started).as_micros() as u64;
        reports.iter_mut().for_each(|report| report.time_us = time_us);
        Some(reports)
    }
}

impl StackReports {
    fn due_reports(&mut self, now: Instant) -> Result<Vec<RunReport>, RequestFault> {
        let mut reports = Vec::new();
        if let Some(changes) = self.changes.as_mut().filter(|changes| changes.next_look <= now) {
            reports = changes.collect(now, &self.wanted).map_err(gone)?;
        }
        if let Some(due) = self.next_sample.filter(|due| *due <= now) {
            let began = Instant::now();
            self.sample(now, &mut reports)?;
            let period = Duration::from_millis(self.wanted.period_ms.into());
            // Skip samples if they are late, or if they take much of the engine's time.
            let rest = began.elapsed() * REST_FACTOR;
            self.next_sample = Some((due + period).max(now + rest));
        }
        Ok(reports)
    }

    fn sample(&mut self, now: Instant, to: &mut Vec<RunReport>) -> Result<(), RequestFault> {
        let (traffic, shards) =
            (self.wanted.has(ReportTopic::Traffic), self.wanted.has(ReportTopic::Shards));
        if traffic || shards {
            let parts = self.stack.remote.query(SampleQuery).map_err(gone)?;
            let traffic = traffic.then(|| traffic_of(&parts, &self.stack));
            let shards = shards.then(|| parts.iter().map(ShardPart::sample).collect());
            let traffic = traffic.map(|it| RunReport { traffic: Some(it), ..RunReport::default() });
            let shards = shards.map(|it| RunReport { shards: Some(it), ..RunReport::default() });
            to.extend(traffic.into_iter().chain(shards));
        }
        if self.wanted.has(ReportTopic::Counters) {
            let counters = Some(counters(&self.stack)?);
            to.push(RunReport { counters, ..RunReport::default() });
        }
        if self.wanted.has(ReportTopic::Sockets) {
            let entries = self.stack.remote.sockets().map_err(gone)?;
            let sockets = Some(self.ranking.sample(entries, now, &self.wanted));
            to.push(RunReport { sockets, ..RunReport::default() });
        }
        Ok(())
    }
}

/// Query for the counters of each shard, and for the interfaces.
#[derive(Debug, Clone, Copy)]
struct SampleQuery;

/// Answer of one shard to a [`SampleQuery`].
struct ShardPart {
    number: u32,
    now: EngineInstant,
    counters: Counters,
    traffic: Vec<Traffic>,
    /// Interfaces with the traffic of this shard; empty unless this is the first shard.
    interfaces: Vec<InterfaceState>,
}

impl Query for SampleQuery {
    type Part = ShardPart;
    /// Answers of the shards, by number.
    type Answer = Vec<ShardPart>;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        let (number, now, counters) = (shard.number(), shard.now(), shard.counters());
        let net = shard.net();
        let interfaces = if number == 0 { NetState::interfaces_of(net) } else { Vec::new() };
        let traffic = net.traffic().to_vec();
        Portion::Last(ShardPart { number, now, counters, traffic, interfaces })
    }

    fn join(mut parts: Vec<Self::Part>) -> Self::Answer {
        parts.sort_by_key(|part| part.number);
        parts
    }
}

impl ShardPart {
    fn sample(&self) -> ShardSample {
        let counter = |name: &str| {
            let found = self.counters.engine.iter().find(|(known, _)| *known == name);
            found.map_or(0, |(_, value)| *value)
        };
        // Packets of loopback, the first interface, do not pass a device.
        let devices = self.traffic.get(1..).unwrap_or_default();
        ShardSample {
            number: self.number,
            turns: counter("turns"),
            sleeps: counter("sleeps"),
            work: counter("work"),
            rx_packets: devices.iter().map(|traffic| traffic.rx_packets).sum(),
            tx_packets: devices.iter().map(|traffic| traffic.tx_packets).sum(),
            drops: self.counters.drops.iter().map(|(_, count)| count).sum(),
        }
    }
}

/// Returns the interfaces with their traffic in all shards.
fn traffic_of(parts: &[ShardPart], stack: &ServedStack) -> Vec<towpath_model::Interface> {
    let Some((first, others)) = parts.split_first() else { return Vec::new() };
    let mut interfaces = first.interfaces.clone();
    for interface in &mut interfaces {
        for other in others {
            let traffic = other.traffic.get(interface.id.index()).copied();
            interface.traffic += traffic.unwrap_or_default();
        }
    }
    let (routes, neighbors) = (Vec::new(), Vec::new());
    let mut net = shown(&NetState { now: first.now, interfaces, routes, neighbors });
    port::put_carriers(&stack.links(), &mut net.interfaces);
    net.interfaces
}
