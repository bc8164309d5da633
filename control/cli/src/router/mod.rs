//! Implements `towpath router`, which forwards packets between ports, by the routes and rules of
//! the command line.
//!
//! `args` defines the options, `config` reads them from a file, and `layers` validates VLANs and
//! bridges. `open` opens the devices, `apps/router` creates the engine, and `running` runs it.
//! `services` adds DHCP to ports, and `kernel` adds twins for routing daemons. `carrier` and `mtu`
//! react to changes of kernel interfaces, `report` formats counters and logs, `served` answers
//! commands such as `towpath ip`. The kernel closes sockets and devices when the process ends.

mod args;
mod carrier;
mod config;
mod kernel;
mod kernel_args;
mod layers;
mod mtu;
mod open;
mod port_arg;
mod ports;
mod report;
mod running;
mod served;
mod server_args;
mod service_args;
mod services;

use std::time::Duration;

use anyhow::{Context, Result};
use towpath_conntrack::{NatRule, TrackerLimits};
use towpath_engine::EngineConfig;
use towpath_filter::RuleList;
use towpath_pcap::CaptureFile;
use towpath_router::{Plan, PlanPart, PlannedPort, RouterError, Settings, TrackerSettings};
use towpath_stack::net::Keys;
use towpath_uplink::random;

pub use args::{ABOUT, AFTER, RouterArgs};
use open::{Opened, PortQueues};
pub use port_arg::parse_port;
use ports::{PORTS_MAX, PortChanger, RouterPorts};
use running::{Ended, RunningRouter};

use crate::args::Shards;
use crate::conntrack::nat_id;
use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::served::conntrack_layer;
use crate::signals::Signals;
use crate::supervise::asked_to_end;
use crate::{output, recording, stats};

/// Runs the router, until a signal ends it.
///
/// # Errors
/// Returns an error message.
pub fn router(args: &RouterArgs) -> Result<()> {
    let of_file = args.config.as_deref().map(|path| config::read(path, args)).transpose()?;
    let (args, places) = match of_file {
        Some((args, places)) => (args, Some(places)),
        None => (args.clone(), None),
    };
    let wrong = |part: Option<PlanPart<'_>>, why: String| {
        let why = match (part, &places) {
            (Some(part), Some(places)) => places.tell(part, &why),
            _ => why,
        };
        Failure::error(ExitCode::Usage, why)
    };
    let args = &services::assigned(args).map_err(|why| wrong(None, why))?;
    kernel::check(args).map_err(|why| wrong(None, why))?;
    let plan = plan(args, wrong)?;
    plan.check().map_err(|error| wrong(error.part(), error.to_string()))?;
    check_shards(args, &plan)?;
    if args.check {
        let missing = open::missing_interfaces(&args.port);
        return output::write_text(&format!("in order: {}{missing}\n", report::summary(&plan)));
    }
    let recording = args.capture.pcap.as_deref().map(recording::open).transpose()?;
    let signals = Signals::block()?;
    let messages = Messages::start(args.quiet).context("a thread for messages")?;
    let start = |out| recording::start(args.capture.limits(), out, messages.clone());
    let capture = recording.map(start).transpose()?;
    let result = forward(args, &plan, capture.as_ref(), &messages, &signals);
    let is_recorded = capture.is_none_or(|capture| {
        let go_on = || !asked_to_end(&signals).unwrap_or(true);
        recording::finish(&capture, &messages, go_on)
    });
    messages.finish(|| !asked_to_end(&signals).unwrap_or(true));
    if result.is_err() {
        // Unblock signals, so that Ctrl-C ends towpath while the caller prints the error, which may
        // block.
        signals.unblock();
    }
    result.and_then(|()| recording::check(is_recorded))
}

/// Creates the plan from the options and the file of rules. If a part is invalid, `wrong` formats
/// the error.
fn plan(
    args: &RouterArgs,
    wrong: impl Fn(Option<PlanPart<'_>>, String) -> anyhow::Error,
) -> Result<Plan> {
    if let Some(port) = args.port.get(PORTS_MAX) {
        let message = format!("{} ports: at most {PORTS_MAX} are possible", args.port.len());
        return Err(wrong(Some(PlanPart::Port(&port.name)), message));
    }
    let rules = args.acl.as_deref().map(|path| {
        let name = path.display();
        let usage = |why: String| Failure::error(ExitCode::Usage, why);
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| usage(format!("--acl {name}: {error}")))?;
        RuleList::parse(&text).map_err(|error| usage(format!("{name}: {error}")))
    });
    layers::check(&args.port)
        .map_err(|found| wrong(Some(PlanPart::Port(found.port)), found.why))?;
    let ports = args
        .port
        .iter()
        .filter(|port| port.is_interface())
        .map(|port| PlannedPort { name: port.name.clone(), addresses: port.addresses.clone() });
    let mut nat: Vec<NatRule> = Vec::new();
    for rule in args.nat.iter().chain(&args.forward) {
        let mut rule = rule.clone();
        rule.conditions.id = nat_id(&nat, &rule);
        if nat.iter().any(|known| known.conditions.id == rule.conditions.id) {
            let why = format!("--nat: there are two rules with id {}", rule.conditions.id);
            return Err(wrong(None, why));
        }
        nat.push(rule);
    }
    let (ports, routes, rules) = (ports.collect(), args.route.clone(), rules.transpose()?);
    Ok(Plan { ports, routes, rules, nat })
}

fn forward(
    args: &RouterArgs,
    plan: &Plan,
    capture: Option<&CaptureFile>,
    messages: &Messages,
    signals: &Signals,
) -> Result<()> {
    open::refuse_own_addresses(&args.port)?;
    let listening = served::open(args.name.clone(), messages)?;
    let seed = random()?;
    let shards = match args.shards {
        // Use one shard if connections are tracked. The tracker needs all packets of a flow, and
        // the two directions may arrive on different shards.
        Shards::Auto if plan.needs_tracker() => 1,
        wanted => open::shard_count(&args.port, wanted),
    };
    let is_auto = args.shards == Shards::Auto && shards > 1;
    let open = |count| {
        open::refuse_queues(&args.port, count)?;
        open::ports(&args.port, PortQueues { count, is_auto, seed: &seed }, capture)
    };
    let opened = open(shards).or_else(|error| if is_auto { open(1) } else { Err(error) });
    let Opened { mut ports, counters, followed } = opened?;
    let services = services::attach(args, &mut ports, &counters)?;
    let twins = kernel::attach(args, &mut ports, &counters)?;
    let settings = settings(args, &seed);
    let can_track = ports.iter().all(|port| port.queues.len() == 1);
    let tracker = can_track.then_some(settings.tracker);
    let engine = towpath_router::router(plan, settings, ports, seed);
    let engine = engine.map_err(|error| {
        let code = match error {
            RouterError::Plan(_) | RouterError::SeveralShards => ExitCode::Usage,
            _ => ExitCode::Failed,
        };
        Failure::error(code, error.to_string())
    })?;
    let (ports, remote) = (RouterPorts::new(&args.port, &counters), engine.remote());
    let changer = PortChanger::new(&ports, remote.clone(), seed, capture, messages);
    // Requests that arrive before the engine runs wait until it does.
    let instance = served::serve(listening, remote.clone(), changer, tracker)?;
    let mut running = RunningRouter::start(engine, &ports, twins.clone(), capture, messages)?;
    messages.say(&format!("router with {}; Ctrl-C ends", report::summary(plan)));
    let follower = mtu::follow(&ports, followed, remote.clone(), messages);
    let services = services.run(&remote, messages)?;
    let synced = kernel::follow(args, &twins, &remote, messages)?;
    let ended = running.wait(signals, || {
        let (Ok(counters), Ok(rules)) = (remote.counters(), remote.rules()) else { return };
        // Ignore errors: counters can always be written as JSON.
        let mut layers = report::layers(&counters, rules.as_deref());
        layers.extend(conntrack_layer(&remote).ok().flatten());
        let _ = put_stats(args, messages, layers);
    });
    drop((instance, follower, synced));
    let rules = remote.rules().ok().flatten();
    let tracked = conntrack_layer(&remote).ok().flatten();
    // The counters of ports are final after the engine has closed the ports.
    let report = running.stop()?;
    services.end();
    let mut layers = report::all_layers(&report.counters, rules.as_deref(), &ports.served());
    layers.extend(tracked);
    put_stats(args, messages, layers)?;
    match ended? {
        Ended::Stopped => Ok(()),
        Ended::NoPorts => {
            let message = "the devices of all ports were removed; start towpath router again when \
                           they are back";
            Err(Failure::error(ExitCode::Failed, message))
        }
    }
}

/// Converts the options to settings of the router.
fn settings(args: &RouterArgs, seed: &[u8; 32]) -> Settings {
    let (flows_max, per_source_max) = (args.flows as usize, args.flows / 4);
    Settings {
        source_check: args.source_check.into(),
        neighbors_max: args.neighbors as usize,
        tracker: TrackerSettings {
            limits: TrackerLimits { flows_max, per_source_max, ..TrackerLimits::default() },
            key: Keys::derive(seed).tracker,
        },
        engine: EngineConfig {
            busy_poll: Duration::from_micros(args.busy_poll.into()),
            threads_by_need: args.shards == Shards::Auto,
            ..EngineConfig::default()
        },
    }
}

/// Returns an error if several shards were requested, but packets need a connection tracker.
fn check_shards(args: &RouterArgs, plan: &Plan) -> Result<()> {
    if args.shards != Shards::Auto && args.shards.count() > 1 && plan.needs_tracker() {
        return Err(Failure::error(ExitCode::Usage, RouterError::SeveralShards.to_string()));
    }
    Ok(())
}

fn put_stats(
    args: &RouterArgs,
    messages: &Messages,
    layers: Vec<towpath_uplink::Layer>,
) -> Result<()> {
    let Some(format) = args.stats else { return Ok(()) };
    messages.put(stats::render(format, &layers)?);
    Ok(())
}
