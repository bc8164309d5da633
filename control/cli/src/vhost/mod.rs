//! Implements `towpath vhost`: the gateway as the network of a virtual machine.
//!
//! ```text
//!   guest ── virtqueues ── VhostPort ── DHCP server ── Gateway ── host sockets
//! ```

pub mod args;

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use towpath_gateway::{Ended, Gateway, Joint, Outer, Runner};
use towpath_pcap::CaptureFile;
use towpath_pool::Port;
use towpath_uplink::{
    Counting, LeaseServer, Namespaced, Plan, Remark, ServerConfig, Tally, Tell, now_ns, random,
};
use towpath_vhost::VhostPort;
use towpath_wire::{MacAddr, Prefix};

pub use args::VhostArgs;

use crate::activation::{self, Activation};
use crate::messages::Messages;
use crate::proxy::{Serving, captured, recorded};
use crate::run::raise_descriptor_limit;
use crate::signals::Signals;
use crate::uplink::in_options;

/// Duration in seconds of the guest's lease. A guest that restarts obtains the address at once.
const LEASE_S: u32 = 24 * 60 * 60;

/// Serves virtual machines until a signal arrives.
///
/// # Errors
/// Returns any error with a message for the user.
pub fn vhost(args: &VhostArgs) -> Result<()> {
    recorded(&args.capture, args.quiet, |capture, messages, signals| {
        serve(args, capture, messages, signals)
    })
}

fn serve(
    args: &VhostArgs,
    capture: Option<&CaptureFile>,
    messages: &Messages,
    signals: &Signals,
) -> Result<()> {
    let plan = plan(args, messages)?;
    let namespaced = plan.namespaced().map_err(in_options)?;
    let published = plan.bind(&namespaced).map_err(in_options)?;
    let facts = published.facts.clone();
    let of_notices = messages.clone();
    let tell = move |notice: towpath_gateway::Notice| of_notices.post(&notice.to_string());
    // The ports are opened at once, because no kernel here knows where the guest listens.
    plan.polled(&namespaced, &published, |_| false, tell.clone())?;
    let _limit = raise_descriptor_limit();

    let of_events = messages.clone();
    let port = VhostPort::open(&args.socket, move |event| of_events.post(&event.to_string()))?;
    let mac = mac()?;
    let outer = Outer::device(&port, mac);
    let mut gateway = Gateway::on(outer, &namespaced.config, now_ns()).context("the gateway")?;
    gateway.on_notice(tell);
    plan.serve(&mut gateway, published)?;
    let counting = Counting::new(port, &plan.port_counters);
    let device = captured(capture, "vhost", counting).context("--pcap")?;
    let device = with_dhcp(device, mac, &namespaced, &plan.port_counters)?;
    let runner = Runner::new(Joint::new(gateway, device)).context("the device")?;

    let guest: Vec<_> = namespaced.addresses.iter().map(|own| own.addr().to_string()).collect();
    let (guest, socket) = (guest.join(" and "), args.socket.display());
    let facts = if facts.is_empty() { facts } else { format!("{facts}; ") };
    messages.say(&format!("{facts}a guest at {socket} is {guest}; Ctrl-C ends"));
    let serving = Serving {
        words: vec!["vhost".into(), socket.to_string()],
        stats: args.stats,
        messages,
        signals,
        port_counters: &plan.port_counters,
    };
    match serving.run(runner)? {
        // The port listens again when a front end disconnects, and is never gone.
        Ended::Stopped | Ended::DeviceGone => Ok(()),
    }
}

fn plan(args: &VhostArgs, messages: &Messages) -> Result<Plan> {
    let of_remarks = messages.clone();
    let tell = Tell::new(move |remark| {
        if let Remark::Warning(text) = remark {
            of_remarks.say(&text);
        }
    });
    let mut plan = Plan::new(None, tell);
    activation::publish(&args.publish, &mut Activation::at_start(), &mut plan)?;
    plan.addresses.clone_from(&args.address);
    plan.mtu = Some(args.mtu);
    plan.host_loopback = !args.no_host_loopback;
    plan.dns = args.dns;
    plan.check().map_err(in_options)?;
    Ok(plan)
}

/// Returns a random Ethernet address for the gateway.
fn mac() -> Result<MacAddr> {
    let [a, b, c, d, e, ..] = random()?;
    // The first byte, 02, marks the address as locally administered and unicast.
    Ok(MacAddr([0x02, a, b, c, d, e]))
}

/// Adds a DHCP server to the device, from which the guest obtains its IPv4 address if it has one.
fn with_dhcp(
    device: Box<dyn Port + Send>,
    mac: MacAddr,
    namespaced: &Namespaced,
    counters: &Arc<Tally>,
) -> Result<Box<dyn Port + Send>> {
    let config = &namespaced.config;
    let (Some(guest), Some(gateway)) = (config.program_v4, config.gateway_v4) else {
        return Ok(device);
    };
    let own = namespaced.addresses.iter().find(|own| own.addr() == IpAddr::V4(guest));
    let network = own.and_then(|own| Prefix::new(gateway.into(), own.len()));
    let leases = ServerConfig {
        mac,
        address: network.context("the gateway's network")?,
        pool: (guest, guest),
        reservations: Vec::new(),
        lease_s: LEASE_S,
        nameservers: config.dns_v4.into_iter().collect(),
        awaits_nameservers: false,
        domain: None,
    };
    let served = LeaseServer::for_one_client(leases)?.serve(vec![device]).pop();
    let served = served.context("internal error: no port")?;
    Ok(Box::new(Counting::new(served, counters)))
}
