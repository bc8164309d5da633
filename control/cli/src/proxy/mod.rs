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
mod serving;
mod setup;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use towpath_gateway::{Ended, Gateway, GatewayConfig, Joint, Nameserver, Outer, Runner};
use towpath_pcap::CaptureFile;
use towpath_uplink::{Counting, now_ns, random};
use towpath_wire::MacAddr;

use args::{Command, Proxy, ProxyArgs};
pub use port_layers::captured;
pub use serving::{Serving, recorded};

use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::output;
use crate::run::raise_descriptor_limit;
use crate::signals::Signals;

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
    recorded(&args.capture, args.quiet, |capture, messages, signals| {
        carry(args, capture, messages, signals)
    })
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
    let runner = Runner::new(Joint::new(gateway, device)).context("the device")?;
    messages.say(&format!("{}; Ctrl-C ends", setup::facts(args, &name)));
    let (words, port_counters) = (words(args), &*port_counters);
    let serving = Serving { words, stats: args.stats, messages, signals, port_counters };
    match serving.run(runner)? {
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
