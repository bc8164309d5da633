//! Implements `towpath proxy`, which carries the traffic of a TUN device, or of a program in a
//! namespace (`run`, `worker`), over connections of this host.
//!
//! `setup` creates the device and its routes. A thread runs the gateway until a signal arrives. No
//! cleanup is needed: when its last descriptor is closed, the kernel removes the device with its
//! addresses and routes.

pub mod args;
mod flows;
mod port_layers;
mod port_watch;
mod run;
mod run_args;
mod setup;
mod worker;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use towpath_gateway::{Ended, Gateway, GatewayConfig, Joint, Nameserver, Outer, Runner};
use towpath_pcap::CaptureFile;
use towpath_uplink::{Counting, Layer, Tally, now_ns, random};
use towpath_wire::MacAddr;

use args::{Command, Proxy, ProxyArgs};
use flows::FlowQueries;
use port_layers::{captured, layers_of, with_ports};

use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::run::raise_descriptor_limit;
use crate::signals::{self, Signals};
use crate::supervise::asked_to_end;

use crate::{output, recording, stats};

/// Runs `towpath proxy`, for a device or for a program.
///
/// # Errors
/// Returns any error with a message for the user.
pub fn proxy(args: &Proxy) -> Result<u8> {
    match (&args.command, &args.device) {
        (Some(Command::Run(args)), _) => run::run(args),
        (None, Some(args)) => of_device(args).map(|()| 0),
        // Unreachable, because clap requires --tun without a subcommand.
        (None, None) => Err(Failure::error(ExitCode::Usage, "give --tun NAME, or run PROGRAM")),
    }
}

/// Carries the traffic of a device until a signal arrives.
fn of_device(args: &ProxyArgs) -> Result<()> {
    setup::check(args)?;
    if args.dry_run {
        return output::write(setup::commands(args)?.as_bytes());
    }
    let recording = args.capture.pcap.as_deref().map(recording::open).transpose()?;
    let signals = Signals::block()?;
    let messages = Messages::start(args.quiet).context("a thread for messages")?;
    let start = |out| recording::start(args.capture.limits(), out, messages.clone());
    let capture = recording.map(start).transpose()?;
    let result = carry(args, capture.as_ref(), &messages, &signals);
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

fn carry(
    args: &ProxyArgs,
    capture: Option<&CaptureFile>,
    messages: &Messages,
    signals: &Signals,
) -> Result<()> {
    let egress = setup::egress(args)?;
    let tun = setup::device(args, messages)?;
    let name = tun.name().to_owned();
    let _limit = raise_descriptor_limit();
    let outer = Outer::device(&tun, MacAddr::default());
    let mut gateway =
        Gateway::on(outer, &config(args, egress)?, now_ns()).context("the gateway")?;
    let of_notices = messages.clone();
    gateway.on_notice(move |notice| of_notices.post(&notice.to_string()));

    let port_counters = Arc::default();
    let counting = Counting::new(tun, &port_counters);
    let device = captured(capture, "tun", counting).context("--pcap")?;
    let mut runner = Runner::new(Joint::new(gateway, device)).context("the device")?;
    messages.say(&format!("{}; Ctrl-C ends", setup::facts(args, &name)));
    let desk = FlowQueries::open(words(args), messages).context("eventfd")?;
    let ended =
        runner.run(&[signals.fd().as_fd(), desk.notifier()], |woken, gateway| match woken {
            0 => hear(args, signals, messages, gateway),
            _ => {
                desk.answer(gateway);
                ControlFlow::Continue(())
            }
        });

    runner.reset_clients();
    let layers = layers_of(runner.gateway());
    // Drop the runner to remove the device. Its counters remain in `port_counters`.
    drop(runner);
    put_stats(args, messages, layers, &port_counters)?;
    match ended.context("epoll")? {
        Ended::Stopped => Ok(()),
        Ended::DeviceGone => {
            let message = format!(
                "the device {name} was deleted by somebody else; start towpath proxy again"
            );
            Err(Failure::error(ExitCode::Failed, message))
        }
    }
}

/// Returns the words that `towpath ss` shows as the program of this proxy.
fn words(args: &ProxyArgs) -> Vec<String> {
    ["proxy", "--tun", &args.tun].map(str::to_owned).into()
}

fn config(args: &ProxyArgs, egress: towpath_gateway::Egress) -> Result<GatewayConfig> {
    let nameserver = args.dns.map(|ip| SocketAddr::new(ip, 53));
    Ok(GatewayConfig {
        // Clients use their own addresses. So the gateway needs no address for a program or for
        // itself.
        program_v4: None,
        program_v6: None,
        gateway_v4: None,
        gateway_v6: None,
        host_loopback: false,
        dns_v4: None,
        dns_v6: None,
        nameserver: Nameserver::At(nameserver.into_iter().collect()),
        dns_everywhere: nameserver.is_some(),
        egress,
        mtu: args.mtu,
        descriptors: None,
        seed: random()?,
    })
}

/// Handles a received signal. Most signals stop the proxy.
fn hear(
    args: &ProxyArgs,
    signals: &Signals,
    messages: &Messages,
    gateway: &Gateway,
) -> ControlFlow<()> {
    while let Ok(Some(arrived)) = signals.next() {
        match arrived.signal {
            Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT | Signal::SIGHUP
                if !signals.is_ignored(arrived.signal) =>
            {
                return ControlFlow::Break(());
            }
            Signal::SIGTSTP => {
                // Ignore errors: this fails only for an invalid signal number.
                let _ = signals::act(Signal::SIGTSTP);
            }
            Signal::SIGUSR1 => {
                // Ignore errors: counters can always be serialized.
                let _ = put_stats(args, messages, layers_of(gateway), &Arc::default());
            }
            _ => {}
        }
    }
    ControlFlow::Continue(())
}

fn put_stats(
    args: &ProxyArgs,
    messages: &Messages,
    layers: Vec<Layer>,
    ports: &Tally,
) -> Result<()> {
    let Some(format) = args.stats else { return Ok(()) };
    messages.put(stats::render(format, &with_ports(layers, &ports.counted()))?);
    Ok(())
}
