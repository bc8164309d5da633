//! Implements `towpath router`, which forwards packets between ports. Routes and rules are given on
//! the command line or in a file.
//!
//! `args` defines the options, and `source` reads them or a file (`control/config`). `open` opens
//! the devices, `apps/router` creates the engine, and `running` runs it. `config_changer` changes a
//! running router to another configuration, and `config_keeper` undoes the change if it is not
//! confirmed. `services` adds DHCP to ports, `dns` a DNS forwarder, and `kernel` TAP devices for
//! routing daemons (twins). `carrier` and `mtu` react to changes of kernel interfaces, `report`
//! formats counters and logs, `served` answers commands such as `towpath ip`. The kernel closes
//! sockets and devices when the process ends.

mod args;
mod carrier;
mod config_changer;
mod config_keeper;
mod dns;
mod file_options;
mod kernel;
mod kernel_args;
mod mtu;
mod open;
mod port_help;
mod ports;
mod report;
mod running;
mod served;
mod service_args;
mod services;
mod source;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use towpath_conntrack::TrackerLimits;
use towpath_engine::EngineConfig;
use towpath_pcap::CaptureFile;
use towpath_router::{Plan, RouterError, Settings, TrackerSettings};
use towpath_stack::net::Keys;
use towpath_uplink::random;

pub use args::{ABOUT, AFTER, RouterArgs};
use config_changer::ConfigChanger;
use config_keeper::ConfigKeeper;
use dns::RouterDns;
pub use file_options::{file_options, is_list};
use open::{Opened, PortQueues};
use ports::{PortChanger, RouterPorts};
use running::{Ended, RunningRouter};
use source::ConfigSource;

use crate::args::Shards;
use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::served::service_layers;
use crate::signals::Signals;
use crate::supervise::asked_to_end;
use crate::{output, recording, stats};

/// Runs the router, until a signal ends it.
///
/// # Errors
/// Returns an error message.
pub fn router(args: &RouterArgs) -> Result<()> {
    let source = ConfigSource::read(args)?;
    let plan = source.check()?;
    let args = &source.args;
    kernel::check(args).map_err(|why| Failure::error(ExitCode::Usage, why))?;
    check_shards(args, &plan, source.config.dns.is_some())?;
    if args.check {
        let missing = open::missing_interfaces(&source.config.ports);
        return output::write_text(&format!("in order: {}{missing}\n", report::summary(&plan)));
    }
    let recording = args.capture.pcap.as_deref().map(recording::open).transpose()?;
    let signals = Signals::block()?;
    let messages = Messages::start(args.quiet).context("a thread for messages")?;
    let start = |out| recording::start(args.capture.limits(), out, messages.clone());
    let capture = recording.map(start).transpose()?;
    let result = forward(&source, &plan, capture.as_ref(), &messages, &signals);
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

/// Opens the devices, and forwards packets until a signal ends the router.
fn forward(
    source: &ConfigSource,
    plan: &Plan,
    capture: Option<&CaptureFile>,
    messages: &Messages,
    signals: &Signals,
) -> Result<()> {
    let ConfigSource { args, config, .. } = source;
    kernel::enter_namespaces(args)?;
    open::refuse_own_addresses(&config.ports)?;
    let listening = served::open(args.name.clone(), messages)?;
    let seed = random()?;
    let opened = open_ports(source, plan, capture, &seed)?;
    let Opened { mut ports, counters, followed } = opened;
    let services = services::attach(config, &mut ports, &counters)?;
    let twins = kernel::attach(args, &mut ports, &counters)?;
    let settings = settings(args, &seed);
    let can_track = ports.iter().all(|port| port.queues.len() == 1);
    let tracker = can_track.then_some(settings.tracker);
    let known = RouterPorts::new(&config.ports, &counters, ports.iter().map(|port| port.mtu));
    let engine = towpath_router::router(plan, settings, ports, seed);
    let mut engine = engine.map_err(|error| start_failure(&error))?;
    let dns = RouterDns::add(config, &mut engine, &known)?;
    let (ports, remote) = (known, engine.remote());
    let control = dns.as_ref().map(|dns| dns.control.clone());
    let changer =
        PortChanger::new(&ports, remote.clone(), seed, capture, messages, control.clone());
    let changer = Arc::new(changer);
    let servers = services.running_servers();
    let stack = served::stack(remote.clone(), Arc::clone(&changer), tracker, control.clone());
    let changer = ConfigChanger::new(source, Arc::new(stack), ports.clone(), changer, servers);
    // Requests that arrive before the engine runs are answered when it runs.
    let instance = served::serve(listening, ConfigKeeper::new(changer, messages))?;
    let mut running = RunningRouter::start(engine, &ports, twins.clone(), capture, messages)?;
    messages.say(&format!("router with {}; Ctrl-C ends", report::summary(plan)));
    let follower = mtu::follow(&ports, followed, remote.clone(), messages);
    let services = services.run(&remote, &ports, dns.as_ref(), messages)?;
    let synced = kernel::follow(args, &twins, &remote, messages)?;
    let ended = running.wait(signals, || {
        let (Ok(counters), Ok(rules)) = (remote.counters(), remote.rules()) else { return };
        // Ignore errors: counters can always be written as JSON.
        let mut layers = report::layers(&counters, rules.as_deref());
        layers.extend(service_layers(&remote, control.as_ref()).unwrap_or_default());
        let _ = put_stats(args, messages, layers);
    });
    drop((instance, follower, synced));
    let rules = remote.rules().ok().flatten();
    let of_services = service_layers(&remote, control.as_ref()).unwrap_or_default();
    // The counters of ports are final after the engine has closed the ports.
    let report = running.stop()?;
    services.end();
    let mut layers = report::all_layers(&report.counters, rules.as_deref(), &ports.served());
    layers.extend(of_services);
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

/// Opens the devices of all ports.
fn open_ports(
    source: &ConfigSource,
    plan: &Plan,
    capture: Option<&CaptureFile>,
    seed: &[u8; 32],
) -> Result<Opened> {
    let ConfigSource { args, config, .. } = source;
    let shards = match args.shards {
        // Use one shard if connections are tracked. The tracker needs all packets of a flow, and
        // the two directions may arrive on different shards. Services run on one shard, too.
        Shards::Auto if plan.needs_tracker() || config.dns.is_some() => 1,
        wanted => open::shard_count(&config.ports, wanted),
    };
    let is_auto = args.shards == Shards::Auto && shards > 1;
    let open = |count| {
        open::refuse_queues(&config.ports, count)?;
        open::ports(&config.ports, PortQueues { count, is_auto, seed }, capture)
    };
    open(shards).or_else(|error| if is_auto { open(1) } else { Err(error) })
}

/// Returns the error of a router that cannot start, with its exit status.
fn start_failure(error: &RouterError) -> anyhow::Error {
    let code = match error {
        RouterError::Plan(_) | RouterError::SeveralShards => ExitCode::Usage,
        _ => ExitCode::Failed,
    };
    Failure::error(code, error.to_string())
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

/// Returns an error if several shards were requested, but packets need a connection tracker, or
/// there is a DNS forwarder.
fn check_shards(args: &RouterArgs, plan: &Plan, has_dns: bool) -> Result<()> {
    let why = match (plan.needs_tracker(), has_dns) {
        _ if args.shards == Shards::Auto || args.shards.count() == 1 => return Ok(()),
        (true, _) => RouterError::SeveralShards.to_string(),
        (_, true) => "the DNS forwarder needs one thread: use --shards 1".to_owned(),
        (false, false) => return Ok(()),
    };
    Err(Failure::error(ExitCode::Usage, why))
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
