//! Twins of a router's ports in the kernel, and routes taken over from the kernel.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use towpath_bridge::OwnAddresses;
use towpath_config::{PortSettings, layers};
use towpath_engine::Remote;
use towpath_kernel::{KernelFollower, KernelSource, LinkBinding, SyncNotice};
use towpath_netlink::NetNamespace;
use towpath_router::OpenPort;
use towpath_stack::IfaceId;
use towpath_tap::TapCarrier;
use towpath_uplink::{Counting, TwinSite};

use super::args::RouterArgs;
use super::open::Left;
use crate::error::{ExitCode, Failure};
use crate::messages::Messages;

/// Twins of open ports.
#[derive(Debug, Clone, Default)]
pub struct Twins {
    own: OwnAddresses,
    carriers: Arc<[(IfaceId, TapCarrier)]>,
}

/// Checks that `--bypass` names ports of the router, each once, and a device for each.
///
/// # Errors
/// Returns a sentence for the user.
pub fn check(args: &RouterArgs) -> Result<(), String> {
    let (mut twinned, mut devices) = (Vec::new(), Vec::new());
    for bypass in &args.kernel.bypass {
        let name = bypass.port.as_str();
        if !args.port.iter().any(|port| port.name == name && port.is_interface()) {
            let names: Vec<_> = interfaces(args).map(|port| port.name.as_str()).collect();
            let names = names.join(", ");
            return Err(format!("--bypass names the port {name:?}; with an address are {names}"));
        }
        if args.port.iter().any(|port| port.name == name && port.by_dhcp) {
            return Err(format!("--bypass {name}: its twin would not have the address of --dhcp"));
        }
        if twinned.contains(&name) {
            return Err(format!("--bypass names the port {name} twice"));
        }
        twinned.push(name);
        let (tap, namespace) = (&bypass.twin.tap, &bypass.twin.namespace);
        if devices.contains(&(tap, namespace)) {
            return Err(format!("--bypass names the device {tap}@{namespace} twice"));
        }
        devices.push((tap, namespace));
    }
    Ok(())
}

/// Checks that the network namespaces of `--sync` and `--bypass` can be entered, before any device
/// is opened.
///
/// # Errors
/// Fails with the option, the namespace and the reason.
pub fn enter_namespaces(args: &RouterArgs) -> Result<()> {
    let synced = args.kernel.sync.iter().map(|sync| ("--sync", &sync.namespace));
    let bypassed = args.kernel.bypass.iter().map(|it| ("--bypass", &it.twin.namespace));
    for (option, namespace) in synced.chain(bypassed) {
        namespace.run(|| ()).map_err(|error| {
            let text = format!("{option}: network namespace {namespace}: {error}");
            Failure::error(ExitCode::Failed, text)
        })?;
    }
    Ok(())
}

/// Creates the twins (TAP devices for routing daemons, `--bypass`), and connects each with its
/// port. `ports` are the open ports, in the order of the options.
///
/// # Errors
/// Fails if a namespace cannot be entered, or if a device cannot be created.
pub fn attach(args: &RouterArgs, ports: &mut [OpenPort], counters: &[Left]) -> Result<Twins> {
    let (own, mut carriers) = (OwnAddresses::default(), Vec::new());
    own.set(&addresses(args));
    let with_counters = args.port.iter().zip(counters).filter(|(port, _)| port.is_interface());
    for (((port, left), open), number) in with_counters.zip(ports).zip(1..) {
        let Some(bypass) = args.kernel.bypass.iter().find(|it| it.port == port.name) else {
            continue;
        };
        let site = TwinSite {
            queues: std::mem::take(&mut open.queues),
            mac: open.mac,
            mtu: open.mtu,
            addresses: &port.addresses,
            own: &own,
        };
        let attached = bypass.twin.attach(site).map_err(|error| {
            let (name, error) = (&port.name, anyhow::Error::from(error));
            Failure::error(ExitCode::Failed, format!("--bypass {name}: {error:#}"))
        });
        let (queues, carrier) = attached?;
        let counted = queues.into_iter().map(|queue| Box::new(Counting::new(queue, left)) as _);
        open.queues = counted.collect();
        carriers.push((IfaceId(number), carrier));
    }
    Ok(Twins { own, carriers: carriers.into() })
}

fn interfaces(args: &RouterArgs) -> impl Iterator<Item = &PortSettings> {
    args.port.iter().filter(|port| port.is_interface())
}

fn addresses(args: &RouterArgs) -> Vec<IpAddr> {
    args.port.iter().flat_map(|port| &port.addresses).map(|address| address.addr()).collect()
}

/// Starts to take over routes from the kernel, if `--sync` is given.
///
/// # Errors
/// Fails if the namespace cannot be entered, or if no thread can be created.
pub fn follow(
    args: &RouterArgs,
    twins: &Twins,
    remote: &Remote,
    messages: &Messages,
) -> Result<Option<KernelFollower>> {
    let Some(sync) = &args.kernel.sync else { return Ok(None) };
    let source = KernelSource {
        namespace: sync.namespace.clone(),
        table: sync.table,
        bindings: bindings(args, &sync.namespace),
    };
    let (own, given, messages) = (twins.own.clone(), addresses(args), messages.clone());
    // Number of refused routes in the last message.
    let mut told = None;
    let tell = move |notice: SyncNotice| match notice {
        SyncNotice::Synchronized { networks, refused }
            if told.replace(refused) != Some(refused) =>
        {
            let refused = match refused {
                0 => String::new(),
                count => format!("; {count} routes cannot be used"),
            };
            messages.say(&format!("routes of the kernel to {networks} networks{refused}"));
        }
        SyncNotice::Addresses(adopted) => own.set(&[given.clone(), adopted].concat()),
        SyncNotice::AddressRefused { address, why } => {
            messages.put_error(&format!("--sync: the address {address} cannot be used: {why}"));
        }
        SyncNotice::Failed(why) => {
            messages.put_error(&format!("--sync: {why}; the router tries again"));
        }
        _ => {}
    };
    let started = KernelFollower::start(source, remote.clone(), tell);
    started.map(Some).with_context(|| format!("--sync: network namespace {}", sync.namespace))
}

/// Returns the interfaces of a namespace that stand for interfaces of the router.
fn bindings(args: &RouterArgs, namespace: &NetNamespace) -> Vec<LinkBinding> {
    let twins = || args.kernel.bypass.iter().filter(|it| it.twin.namespace == *namespace);
    let mut bindings = Vec::new();
    let mut bind = |link: &str, iface| bindings.push(LinkBinding { link: link.to_owned(), iface });
    if *namespace != NetNamespace::Own {
        // Daemons use addresses of the loopback interface as identifiers and ends of sessions.
        bind("lo", IfaceId::LOOPBACK);
    }
    for (port, number) in interfaces(args).zip(1..) {
        let iface = IfaceId(number);
        let twin = args.kernel.bypass.iter().find(|it| it.port == port.name);
        match (twin, namespace) {
            (_, NetNamespace::Own) => {
                let below = layers::kernel_interfaces(&args.port, port);
                // A bridge has no single interface of the kernel.
                below.iter().filter(|_| below.len() == 1).for_each(|link| bind(link, iface));
            }
            (Some(it), _) if it.twin.namespace == *namespace => bind(&it.twin.tap, iface),
            // The device with the name of this port is the twin of another port, so it does not
            // stand for this port.
            _ if twins().any(|it| it.twin.tap == port.name) => {}
            _ => bind(&port.name, iface),
        }
    }
    bindings
}

impl Twins {
    /// Sets the carrier of the twin of an interface.
    pub fn set_carrier(&self, iface: IfaceId, carrier: bool) {
        for (_, switch) in self.carriers.iter().filter(|(known, _)| *known == iface) {
            // Fails before Linux 5.0; daemons then notice a lost link by their own timeouts.
            let _ = switch.set(carrier);
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RouterArgs,
    }

    /// Returns the options of a router with the ports `a` and `b`, and these twins.
    fn router(twins: &[&str]) -> RouterArgs {
        let ports = ["towpath", "--port=a=packet:e0,10.1.0.1/24", "--port=b=packet:e1,10.2.0.1/24"];
        let twins = twins.iter().map(|twin| format!("--bypass={twin}"));
        Line::parse_from(ports.map(str::to_owned).into_iter().chain(twins)).args
    }

    #[test]
    fn each_twin_has_a_device_of_its_own() {
        assert_eq!(check(&router(&["a=t0@control", "b=t0@other"])), Ok(()));
        let error = check(&router(&["a=t0@control", "b=t0@control"])).expect_err("one device");
        assert_eq!(error, "--bypass names the device t0@control twice");
    }

    #[test]
    fn a_twin_stands_for_its_port_and_not_for_the_one_of_its_name() {
        let namespace = NetNamespace::Named("control".to_owned());
        let bound = |twins: &[&str]| {
            let bindings = bindings(&router(twins), &namespace);
            let text = |it: &LinkBinding| format!("{} {}", it.link, it.iface.0);
            bindings.iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(bound(&[]), ["lo 0", "a 1", "b 2"]);
        assert_eq!(bound(&["a=b@control"]), ["lo 0", "b 1"]);
    }
}
