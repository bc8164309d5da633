//! `towpath router`: ports, routes and rules of the command line, on one thread until a signal
//! comes.
//!
//! `args` has the words, `config` reads them from a file, and `layers` checks which ports stand on
//! others. `open` opens the devices, `carrier` and `mtu` follow their interfaces, `report` prints
//! counters and logs, `served` answers `towpath ip` and the like. The router itself is
//! `apps/router`. The kernel undoes all: sockets and devices end with the process.

mod args;
mod carrier;
mod config;
mod layers;
mod mtu;
mod open;
mod report;
mod served;

use std::ops::ControlFlow;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use towpath_filter::RuleList;
use towpath_pcap::{CaptureFile, Direction};
use towpath_router::{
    Ended, Plan, PlanPart, PlannedPort, Router, RouterRunner, RunnerWoken, Settings,
};
use towpath_uplink::{now_ns, random};

pub use args::{ABOUT, AFTER, RouterArgs};
use carrier::CarrierWatch;
use open::Opened;

use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::signals::{self, Signals};
use crate::supervise::asked_to_end;
use crate::{output, recording, stats};

/// Place of the watch on carriers among the descriptors that wake a router.
const CARRIERS: usize = 1;

/// Most ports of a router: each is polled in every turn.
const PORTS_MAX: usize = 64;

/// Forwards packets until a signal ends it.
///
/// # Errors
/// With the sentence for the user.
pub fn router(args: &RouterArgs) -> Result<()> {
    let of_file = args.config.as_deref().map(|path| config::read(path, args)).transpose()?;
    let (args, places) = match &of_file {
        Some((args, places)) => (args, Some(places)),
        None => (args, None),
    };
    let wrong = |part: Option<PlanPart<'_>>, why: String| {
        let why = match (part, places) {
            (Some(part), Some(places)) => places.tell(part, &why),
            _ => why,
        };
        Failure::error(ExitCode::Usage, why)
    };
    let plan = plan(args, wrong)?;
    plan.check().map_err(|error| wrong(error.part(), error.to_string()))?;
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
        // The caller's write to standard error may wait for a reader: Ctrl-C must end that.
        signals.unblock();
    }
    result.and_then(|()| recording::check(is_recorded))
}

/// The options as a plan, with the rules of their file. `wrong` tells which part is not in order.
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
        .filter(|port| !port.addresses.is_empty())
        .map(|port| PlannedPort { name: port.name.clone(), addresses: port.addresses.clone() });
    Ok(Plan { ports: ports.collect(), routes: args.route.clone(), rules: rules.transpose()? })
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
    let Opened { ports, counters, followed } = open::ports(&args.port, capture)?;
    let settings = Settings {
        source_check: args.source_check.into(),
        neighbors_max: args.neighbors as usize,
        trace_drops: capture.is_some(),
    };
    let router = Router::new(plan, &settings, ports, random()?, now_ns())
        .map_err(|error| Failure::error(ExitCode::Usage, error.to_string()))?;
    let mut runner = RouterRunner::new(router).context("epoll")?;
    let mut carriers = CarrierWatch::open(&args.port).context("a netlink socket")?;
    follow_carriers(&mut carriers, runner.router());
    let instance = served::serve(listening, runner.remote(), &args.port, &counters)?;
    messages.say(&format!("router with {}; Ctrl-C ends", report::summary(plan)));
    let follower = mtu::follow(&args.port, followed, runner.remote(), messages);
    // The runner wants descriptors that nothing else borrows.
    let changed = carriers.fd().try_clone_to_owned().context("a descriptor")?;
    let ended = runner.run(&[signals.fd().as_fd(), changed.as_fd()], |woken, router| {
        if let Some(capture) = capture {
            record_drops(router, capture);
        }
        while let Some(logged) = router.take_logged() {
            messages.put_error(&report::logged(&logged, router));
        }
        while let Some(conflict) = router.take_conflict() {
            messages.put_error(&crate::uplink::conflict(&conflict));
        }
        match woken {
            RunnerWoken::By(CARRIERS) => {
                follow_carriers(&mut carriers, router);
                ControlFlow::Continue(())
            }
            RunnerWoken::By(_) => hear(args, signals, messages, router),
            RunnerWoken::Turned => ControlFlow::Continue(()),
            RunnerWoken::PortGone(port) => {
                messages.put_error(&report::port_gone(router.name(port)));
                ControlFlow::Continue(())
            }
        }
    });

    drop((instance, follower));
    let layers = report::layers(runner.router());
    // Ports leave their counters behind when they go.
    drop(runner);
    put_stats(args, messages, report::with_ports(layers, &args.port, &counters))?;
    match ended.context("epoll")? {
        Ended::Stopped => Ok(()),
        Ended::NoPorts => {
            let message = "the devices of all ports were removed; start towpath router again when \
                           they are back";
            Err(Failure::error(ExitCode::Failed, message))
        }
    }
}

/// Records packets that the router dropped, each with the reason. Interfaces of both have the same
/// numbers.
fn record_drops(router: &mut Router, capture: &CaptureFile) {
    while let Some(dropped) = router.take_dropped() {
        let outbound = dropped.reason.is_outbound();
        let direction = if outbound { Direction::Outbound } else { Direction::Inbound };
        let time_ns = if dropped.arrival_ns > 0 { dropped.arrival_ns } else { now_ns() };
        let reason = dropped.reason.as_str();
        capture.dropped(time_ns, dropped.iface.0.into(), direction, reason, &dropped.bytes);
    }
}

/// Tells the router which ports have lost their link, or have it again.
fn follow_carriers(carriers: &mut CarrierWatch, router: &mut Router) {
    for (port, carrier) in carriers.changes() {
        router.set_carrier(now_ns(), port, carrier);
    }
}

/// Reads signals: most of them end it.
fn hear(
    args: &RouterArgs,
    signals: &Signals,
    messages: &Messages,
    router: &Router,
) -> ControlFlow<()> {
    while let Ok(Some(arrived)) = signals.next() {
        match arrived.signal {
            Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT | Signal::SIGHUP
                if !signals.is_ignored(arrived.signal) =>
            {
                return ControlFlow::Break(());
            }
            Signal::SIGTSTP => {
                // Fails for a bad signal number only.
                let _ = signals::act(Signal::SIGTSTP);
            }
            Signal::SIGUSR1 => {
                // Counters that cannot be written as JSON do not exist.
                let _ = put_stats(args, messages, report::layers(router));
            }
            _ => {}
        }
    }
    ControlFlow::Continue(())
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
