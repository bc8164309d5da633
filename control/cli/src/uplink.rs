//! Creates the plan of a stack's uplink from the command-line options.

use anyhow::Result;
use towpath_pcap::CaptureFile;
use towpath_stack::net::Conflict;
use towpath_tcp::TcpDefaults;
use towpath_uplink::{NetemSpec, Plan, PlanError, Remark, Tell, random};

use crate::activation::{self, Activation};
use crate::args::{RunArgs, Shards};
use crate::error::{ExitCode, Failure};
use crate::messages::Messages;
use crate::through;

/// Checks the options against each other, and creates the plan.
///
/// # Errors
/// Returns an error message if options contradict each other.
pub fn plan(
    args: &RunArgs,
    capture: Option<CaptureFile>,
    activation: &mut Option<Activation>,
    messages: &Messages,
) -> Result<Plan> {
    let mut plan = Plan::new(args.device.device().cloned(), listener(messages.clone()));
    activation::publish(&args.publish, activation, &mut plan)?;
    if let Some(netem) = netem(args)? {
        plan.set_netem(netem);
    }
    plan.mtu = args.mtu.or(args.through.as_ref().map(|_| through::MTU));
    plan.addresses.clone_from(&args.address);
    plan.dhcp.clone_from(&args.dhcp);
    plan.ports.clone_from(&args.ports);
    plan.host_loopback = !args.no_host_loopback;
    plan.dns = args.dns;
    plan.names = args.names.names();
    plan.tcp = tcp_defaults(args);
    plan.busy_poll_us = args.busy_poll;
    if let Some(ports) = local_ports() {
        plan.local_ports = ports;
    }
    plan.capture = capture;
    plan.strict = args.strict;
    plan.shards = args.shards()?;
    plan.auto = args.shards == Shards::Auto;
    plan.check().map_err(in_options)?;
    Ok(plan)
}

/// Returns the range of ephemeral ports of the host, which the stack uses as well. Programs may
/// read the host's range from /proc, so the two should be equal. Returns `None` if the range cannot
/// be read.
fn local_ports() -> Option<(u16, u16)> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ports = text.split_whitespace().map(str::parse);
    match (ports.next()?, ports.next()?) {
        (Ok(first), Ok(last)) if first <= last => Some((first, last)),
        _ => None,
    }
}

/// Returns the TCP settings of `--tcp` and `--congestion`.
fn tcp_defaults(args: &RunArgs) -> TcpDefaults {
    let mut all = TcpDefaults::default();
    for list in &args.tcp {
        all.set_all(list).expect("validated by the parser");
    }
    all.congestion = args.congestion.unwrap_or(all.congestion);
    all
}

/// Returns the emulated links of the `--netem` options, one for each direction.
///
/// # Errors
/// Fails if a direction has two links.
fn netem(args: &RunArgs) -> Result<Option<NetemSpec>> {
    let mut ways = [None, None];
    for option in &args.netem {
        for (way, name) in ways.iter_mut().zip(["out", "in"]) {
            if option.is_for(name) && way.replace(option.words.clone()).is_some() {
                let message = format!(
                    "--netem {:?}: there is one for the way {name:?} already; \
                     begin the two with out and in",
                    option.words
                );
                return Err(Failure::error(ExitCode::Failed, message));
            }
        }
    }
    if args.netem.is_empty() {
        return Ok(None);
    }
    let [egress, ingress] = ways;
    let [a, b, c, d, e, f, g, h, ..] = random()?;
    let seed = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    Ok(Some(NetemSpec { egress, ingress, seed }))
}

/// Returns a callback that prints remarks about the link for the user.
fn listener(messages: Messages) -> Tell {
    Tell::new(move |remark| match remark {
        Remark::Warning(text) => messages.say(&text),
        Remark::Changed(text) => messages.post(&text),
        Remark::DeviceGone(device) => messages.post(&device_gone(&device)),
        _ => {}
    })
}

/// Formats the message that a device was deleted. `device` is a noun, such as "the TAP device tw0".
pub fn device_gone(device: &str) -> String {
    format!("{device} was deleted: the program has no network any more")
}

/// Formats the message that another host uses an address of the stack.
pub fn conflict(conflict: &Conflict) -> String {
    let addr = conflict.addr;
    let mac = conflict.mac.map(|mac| format!(" ({mac})")).unwrap_or_default();
    if conflict.is_given_up {
        format!(
            "{addr}: another host on the link{mac} has this address; it is not used here: choose \
             another --address"
        )
    } else {
        format!(
            "{addr}: another host on the link{mac} has this address as well; connections of both \
             may fail: choose another --address"
        )
    }
}

/// Converts an error of a plan to a message that names the options which caused it.
pub fn in_options(error: PlanError) -> anyhow::Error {
    let message = match &error {
        PlanError::Mtu { mtu, most, link } => format!("--mtu {mtu}: {link} takes at most {most}"),
        PlanError::NoAddress(_) => error.to_string().replace("give one", "give an --address"),
        PlanError::OneShard { .. } => error.to_string().replace("the number of shards", "--shards"),
        PlanError::Device(error) => format!("--{}: {error}", error.device),
        PlanError::PortsWithoutInterface => {
            "--ports needs an interface: give --xdp or --packet".to_owned()
        }
        PlanError::NoKernelAddress { .. } => format!("--ports: {error}"),
        PlanError::NotInline { device, why } => {
            format!("--{device} with --inline: {why}; leave one of the two out")
        }
        PlanError::GivenTwice(one, other) => format!(
            "-p {one} and -p {other} are the same port of this host; choose another HOSTPORT for \
             one"
        ),
        PlanError::PortTaken { .. } => format!("-p {error}"),
        PlanError::AddressTaken { .. }
        | PlanError::AddressOfHost { .. }
        | PlanError::AddressMissing { .. }
        | PlanError::AddressClaimed { .. } => format!("--address {error}"),
        PlanError::PortsClaimed { .. } => format!("--ports {error}"),
        PlanError::DhcpClaimed { .. } => format!("--dhcp: {error}"),
        PlanError::NoNetwork => error.to_string().replace("an address", "an --address"),
        _ => return error.into(),
    };
    Failure::error(ExitCode::Failed, message)
}
