//! Executes one run: handles the events of the world, samples it, and creates the result.

use crate::batch::BatchOptions;
use crate::capture::Captures;
use crate::result::{
    DeviceResult, FlowResult, FlowSeries, LinkResult, LinkSeries, RealtimeResult, RunResult,
    fairness_together,
};
use crate::scenario::{FlowPlan, HostDevice, Plan, Traffic};
use crate::trace::Traces;
use crate::traffic::Tally;
use crate::units::{Size, Time};
use crate::wire::CardState;
use crate::world::{World, memory_of_places};
use towpath_tcp::Info;

/// Memory in bytes that a sample of a flow or a link uses.
const SAMPLE_BYTES: u64 = 48;

/// Totals of a flow, combined from both endpoints.
#[derive(Debug, Default, Clone)]
struct FlowEnds {
    /// Number of payload bytes received by the endpoint to which the flow sends.
    bytes: u64,
    /// TCP state of the endpoint that sends most. `None` if it has no connection.
    tcp: Option<Info>,
}

/// Relation of a run's time to real time.
pub trait WorldPace {
    /// Prepares a world that is about to start.
    fn begin(&mut self, plan: &Plan, world: &mut World) -> Result<(), String>;

    /// Runs the world until the time `end`. Returns false if the total number of events has reached
    /// `events_max` before. Another call then continues.
    fn run_until(&mut self, world: &mut World, end: u64, events_max: u64) -> Result<bool, String>;

    /// Ends the run. Returns how exactly it followed real time.
    fn end(&mut self, world: &mut World) -> Option<RealtimeResult>;
}

/// Virtual time: an event is called as soon as the previous one has been.
pub struct VirtualTime;

impl WorldPace for VirtualTime {
    fn begin(&mut self, plan: &Plan, _: &mut World) -> Result<(), String> {
        match plan.devices().next() {
            None => Ok(()),
            Some((host, HostDevice { words, line, .. })) => Err(format!(
                "line {line}: `{}` is behind the device `{words}`, which has no virtual time: run \
                 the scenario with --realtime",
                plan.hosts[host].name
            )),
        }
    }

    fn run_until(&mut self, world: &mut World, end: u64, events_max: u64) -> Result<bool, String> {
        Ok(world.run_until(end, events_max))
    }

    fn end(&mut self, _: &mut World) -> Option<RealtimeResult> {
        None
    }
}

/// Runs a plan with a seed. Calls `progress` some hundred times with the completed fraction.
///
/// # Errors
/// Returns an error message if a limit was reached, or if a file could not be written.
pub fn run(
    plan: &Plan,
    seed: u64,
    options: BatchOptions<'_>,
    pace: &mut dyn WorldPace,
    progress: &mut dyn FnMut(f64),
) -> Result<RunResult, String> {
    let plan = &*plan.drawn(seed);
    // Check the memory before creating the hosts, because thousands of hosts may exceed the memory
    // of the machine.
    check_memory(plan, 0, memory_of_places(plan.hosts.len(), plan.links.len() * 2))?;
    let captures = options.captures.map(|folder| Captures::create(folder, plan, seed));
    let mut world = World::new(plan, seed, captures.transpose()?);
    if options.traces {
        world.traces = Traces::new(plan);
    }
    let mut recorder = SampleRecorder::new(plan);
    check_memory(plan, 0, world.memory())?;
    pace.begin(plan, &mut world)?;
    let samples = plan.duration_ns.div_ceil(plan.sample_ns);
    for number in 1..=samples {
        let end = (number * plan.sample_ns).min(plan.duration_ns);
        // Check the memory between samples as well, because large scenarios have few samples.
        loop {
            let events_max = plan.events_max.min(world.events + EVENTS_BETWEEN_LOOKS);
            if pace.run_until(&mut world, end, events_max)? {
                break;
            }
            if world.events >= plan.events_max {
                return Err(format!(
                    "given up at {} of {}: {} events, the limit; shorten `duration`, lower rates, \
                     or raise `limits.events`",
                    Time(world.now),
                    Time(plan.duration_ns),
                    plan.events_max
                ));
            }
            check_memory(plan, world.now, world.memory() + recorder.memory())?;
        }
        recorder.sample(plan, &mut world);
        check_memory(plan, world.now, world.memory() + recorder.memory())?;
        progress(number as f64 / samples as f64);
    }
    let realtime = pace.end(&mut world);
    Ok(RunResult { realtime, ..recorder.result(plan, seed, world)? })
}

/// Number of events between two checks of the memory. The packets of these events use less than
/// half a gigabyte.
const EVENTS_BETWEEN_LOOKS: u64 = 200_000;

fn check_memory(plan: &Plan, now_ns: u64, memory: u64) -> Result<(), String> {
    if memory <= plan.memory_max {
        return Ok(());
    }
    Err(format!(
        "given up at {} of {}: hosts, queues, packets, buffers and samples take {}, the limit is \
         {}; have fewer hosts or flows, shorter queues or smaller buffers, raise `sample`, or \
         raise `limits.memory`",
        Time(now_ns),
        Time(plan.duration_ns),
        Size(memory),
        Size(plan.memory_max)
    ))
}

/// Samples of all flows and links that were recorded so far.
struct SampleRecorder {
    sample_s: Vec<f64>,
    flows: Vec<FlowSeries>,
    flow_bytes: Vec<u64>,
    links: Vec<LinkSeries>,
    devices: Vec<Option<DeviceResult>>,
    /// Number of delivered bytes and of drops of each direction at the last sample.
    link_counts: Vec<(u64, u64)>,
}

impl SampleRecorder {
    fn new(plan: &Plan) -> Self {
        let wires = plan.links.len() * 2;
        Self {
            sample_s: Vec::new(),
            flows: plan.flows.iter().map(|_| FlowSeries::default()).collect(),
            flow_bytes: vec![0; plan.flows.len()],
            links: (0..wires).map(|_| LinkSeries::default()).collect(),
            devices: (0..wires).map(|_| None).collect(),
            link_counts: vec![(0, 0); wires],
        }
    }

    fn memory(&self) -> u64 {
        let objects = (self.flows.len() + self.links.len()) as u64;
        self.sample_s.len() as u64 * objects * SAMPLE_BYTES
    }

    fn sample(&mut self, plan: &Plan, world: &mut World) {
        let now_s = world.now as f64 / 1e9;
        let passed_s = now_s - self.sample_s.last().copied().unwrap_or(0.);
        self.sample_s.push(now_s);
        let ends = ends(plan, world);
        let flows = self.flows.iter_mut().zip(&mut self.flow_bytes).zip(&ends);
        for ((series, before), ends) in flows {
            series.goodput_bps.push(rounded((ends.bytes - *before) as f64 * 8. / passed_s));
            *before = ends.bytes;
            let tcp = ends.tcp.as_ref();
            series.cwnd_bytes.push(tcp.map(|tcp| tcp.cwnd_bytes));
            series.flight_bytes.push(tcp.map(|tcp| tcp.snd_nxt - tcp.snd_una));
            let srtt = tcp.filter(|tcp| !tcp.rtt.is_zero());
            series.srtt_s.push(srtt.map(|tcp| tcp.rtt.as_secs_f64()));
        }
        let links = self.links.iter_mut().zip(&mut self.link_counts).zip(&world.wires);
        for ((series, before), wire) in links {
            let queue = wire.queue().stats();
            series.backlog_packets.push(queue.backlog_packets);
            series.backlog_bytes.push(queue.backlog_bytes);
            let max_ns = wire.sojourns.with(|times| std::mem::take(&mut times.max_ns));
            series.sojourn_max_s.push(max_ns as f64 / 1e9);
            let (_, delivered) = wire.delivered();
            let bits = (delivered - before.0) as f64 * 8.;
            series.delivered_bps.push(rounded(bits / passed_s));
            series.dropped.push(wire.dropped() - before.1);
            *before = (delivered, wire.dropped());
        }
        for (result, wire) in self.devices.iter_mut().zip(&world.wires) {
            if let Some(CardState { queue, ring, interrupts }) = wire.card() {
                result.get_or_insert_default().sample(queue, ring, interrupts);
            }
        }
    }

    fn result(self, plan: &Plan, seed: u64, mut world: World) -> Result<RunResult, String> {
        let mut flows: Vec<FlowResult> = plan
            .flows
            .iter()
            .zip(self.flows)
            .map(|(flow, series)| flow_result(plan, flow, series))
            .collect();
        let ends = ends(plan, &mut world);
        world.each_tally(|flow, is_source, tally| {
            add(&mut flows[flow], &plan.flows[flow], is_source, tally);
        });
        for ((flow, plan), ends) in flows.iter_mut().zip(&plan.flows).zip(&ends) {
            flow.bytes = ends.bytes;
            flow.retransmitted_bytes = ends.tcp.as_ref().map(|tcp| tcp.bytes_retrans);
            // A flow with a random start time may start after its stop time, and then transfers
            // nothing.
            let whole_s = plan.stop_ns.saturating_sub(plan.start_ns) as f64 / 1e9;
            let active_s = flow.completion_s.unwrap_or(whole_s).max(f64::MIN_POSITIVE);
            flow.goodput_bps = rounded(ends.bytes as f64 * 8. / active_s);
        }
        let bulk: Vec<(&FlowResult, f64)> = flows
            .iter()
            .zip(&plan.flows)
            .filter(|(flow, _)| flow.kind == "bulk")
            .map(|(flow, plan)| {
                let done_s = flow.completion_s.map(|passed_s| flow.start_s + passed_s);
                (flow, done_s.unwrap_or(plan.stop_ns as f64 / 1e9))
            })
            .collect();
        let fairness = fairness_together(&bulk, &self.sample_s);
        let bytes: u64 = flows.iter().map(|flow| flow.bytes).sum();
        let whole_s = plan.duration_ns as f64 / 1e9;
        let links = self.links.into_iter().zip(self.devices).enumerate();
        let links =
            links.map(|(at, (series, device))| link_result(plan, &world, at, series, device));
        let links = links.collect();
        let traces = std::mem::take(&mut world.traces.traces);
        let events = world.events;
        world.finish()?;
        Ok(RunResult {
            variant: plan.variant.clone(),
            set: plan.set.clone(),
            seed,
            events,
            flows,
            links,
            goodput_bps: rounded(bytes as f64 * 8. / whole_s),
            fairness,
            realtime: None,
            sample_s: self.sample_s,
            traces,
        })
    }
}

/// Rounds a rate to integer bits per second.
fn rounded(bps: f64) -> f64 {
    bps.round()
}

/// Returns the totals of all flows at the current time.
fn ends(plan: &Plan, world: &mut World) -> Vec<FlowEnds> {
    let mut ends = vec![FlowEnds::default(); plan.flows.len()];
    world.each_tally(|flow, is_source, tally| {
        let asks = matches!(plan.flows[flow].traffic, Traffic::Request { .. });
        let is_ping = matches!(plan.flows[flow].traffic, Traffic::Ping { .. });
        // For requests and echoes, count the responses that the source received.
        if is_source == (asks || is_ping) {
            ends[flow].bytes = tally.bytes;
        } else if plan.is_to_real(flow) && is_source {
            // The simulation does not see what the real program receives.
            ends[flow].bytes = match plan.flows[flow].traffic.datagram_len() {
                Some(len) => tally.sent * len,
                None => tally.tcp.map_or(0, |tcp| tcp.bytes_acked),
            };
        }
        if is_source != asks {
            ends[flow].tcp = tally.tcp;
        }
    });
    ends
}

fn flow_result(plan: &Plan, flow: &FlowPlan, series: FlowSeries) -> FlowResult {
    let congestion = flow.congestion.name();
    FlowResult {
        name: flow.name.clone(),
        kind: flow.traffic.name(),
        from: plan.hosts[flow.from].name.clone(),
        to: plan.hosts[flow.to].name.clone(),
        is_to_real: plan.hosts[flow.to].device.is_some(),
        congestion: flow.traffic.is_tcp().then_some(congestion),
        start_s: flow.start_ns as f64 / 1e9,
        bytes: 0,
        goodput_bps: 0.,
        completion_s: None,
        sent: 0,
        received: 0,
        latency: None,
        retransmitted_bytes: None,
        failure: None,
        series,
        points: Vec::new(),
    }
}

/// Adds the totals of one endpoint to the result of its flow.
fn add(flow: &mut FlowResult, plan: &FlowPlan, is_source: bool, tally: &mut Tally) {
    let asks = matches!(plan.traffic, Traffic::Request { .. });
    if is_source {
        flow.sent = tally.sent;
    }
    let counts_received = match plan.traffic {
        Traffic::Request { .. } | Traffic::Ping { .. } => is_source,
        _ => !is_source,
    };
    if counts_received {
        flow.received = tally.received;
    }
    if tally.latencies.count() > 0 {
        flow.latency = Some((&tally.latencies).into());
        let point = |&(at, ns): &(u64, u64)| (at as f64 / 1e9, ns as f64 / 1e9);
        flow.points = tally.points.iter().map(point).collect();
    }
    if let Some(at) = tally.completed_ns.filter(|_| !is_source && !asks) {
        flow.completion_s = Some((at - plan.start_ns) as f64 / 1e9);
    }
    if let Some(failure) = tally.wrong_bytes.as_ref().or(tally.failure.as_ref()) {
        flow.failure = Some(failure.clone());
    }
}

fn link_result(
    plan: &Plan,
    world: &World,
    at: usize,
    series: LinkSeries,
    device: Option<DeviceResult>,
) -> LinkResult {
    let (link, wire) = (&plan.links[at / 2], &world.wires[at]);
    let ends = [link.ends[at % 2], link.ends[1 - at % 2]].map(|end| plan.name_of(end).to_owned());
    let [from, to] = ends;
    let (stats, (delivered, delivered_bytes)) = (wire.link().stats(), wire.delivered());
    let rate_bps = wire.rate();
    let whole_s = plan.duration_ns as f64 / 1e9;
    LinkResult {
        name: link.name.clone(),
        from,
        to,
        rate_bps,
        qdisc: wire.queue().kind().to_owned(),
        entered: wire.entered(),
        delivered,
        delivered_bytes,
        queue_dropped: wire.queue_dropped(),
        lost: stats.lost,
        marked: wire.queue().stats().ecn_mark + stats.marked,
        utilization: rate_bps.map(|rate| delivered_bytes as f64 * 8. / whole_s / rate as f64),
        sojourn: wire.sojourn_times(),
        series,
        device,
    }
}
