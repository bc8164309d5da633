//! Services of a router: DHCP clients of its ports.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use clap::Args;
use towpath_engine::Remote;
use towpath_router::OpenPort;
use towpath_stack::IfaceId;
use towpath_uplink::{
    Counting, DhcpNotice, DhcpSettings, Lease, LeaseClient, LeaseLoss, RunningDhcp, parse_hostname,
    random,
};

use super::args::{PortArg, RouterArgs};
use super::open::Left;
use crate::messages::Messages;

/// Options of services.
#[derive(Debug, Clone, Default, Args)]
pub struct ServiceArgs {
    /// Obtain the address of a port by DHCP: PORT[,lease=FILE][,hostname=NAME]
    ///
    /// The port needs no CIDR. Address, routes and nameservers are those of the server. lease=FILE
    /// keeps the lease for the next start; otherwise it is released at the end. May be given once
    /// for each port.
    #[arg(long, value_name = "PORT", value_parser = parse_dhcp)]
    pub dhcp: Vec<DhcpArg>,
}

/// `--dhcp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpArg {
    /// Name of the port.
    pub port: String,
    pub settings: DhcpSettings,
}

pub fn parse_dhcp(text: &str) -> Result<DhcpArg, String> {
    let (port, settings) = match text.split_once(',') {
        Some((port, options)) => (port, parse_settings("--dhcp", options)?),
        None => (text, DhcpSettings::default()),
    };
    super::args::check_port_name(port)?;
    Ok(DhcpArg { port: port.to_owned(), settings })
}

/// Parses `lease=FILE,hostname=NAME`. `whose` is the option in messages.
pub fn parse_settings(whose: &str, options: &str) -> Result<DhcpSettings, String> {
    let mut settings = DhcpSettings::default();
    for option in options.split(',') {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        if !matches!(key, "lease" | "hostname") {
            return Err(format!("{key:?} is no option of {whose}: lease=FILE or hostname=NAME"));
        }
        if value.is_empty() {
            return Err(format!("{key} needs a value: lease=FILE or hostname=NAME"));
        }
        let is_first = match key {
            "lease" => settings.lease_file.replace(value.into()).is_none(),
            _ => settings.host_name.replace(parse_hostname(value)?).is_none(),
        };
        if !is_first {
            return Err(format!("{key} is given twice"));
        }
    }
    Ok(settings)
}

/// Marks the ports that `--dhcp` names.
///
/// # Errors
/// Returns a sentence for the user if a port does not exist, or is named twice.
pub fn assigned(mut args: RouterArgs) -> Result<RouterArgs, String> {
    for DhcpArg { port: name, .. } in &args.services.dhcp {
        let names = args.port.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        let Some(port) = args.port.iter_mut().find(|port| port.name == *name) else {
            return Err(format!("--dhcp names the port {name:?}; there are {names}"));
        };
        if std::mem::replace(&mut port.by_dhcp, true) {
            return Err(format!("--dhcp names the port {name} twice"));
        }
    }
    Ok(args)
}

/// DHCP clients of open ports.
pub struct Clients(Vec<(String, IfaceId, LeaseClient)>);

/// Adds a client to each port of `--dhcp`. `ports` are the open ones, in order.
///
/// # Errors
/// Fails if there are no random bytes.
pub fn clients(args: &RouterArgs, ports: &mut [OpenPort], counters: &[Left]) -> Result<Clients> {
    let with_counters = args.port.iter().zip(counters);
    let interfaces = with_counters.filter(|(port, _)| port.is_interface());
    let mut clients = Vec::new();
    for (((PortArg { name, .. }, left), open), number) in interfaces.zip(ports).zip(1..) {
        let Some(arg) = args.services.dhcp.iter().find(|arg| arg.port == *name) else { continue };
        let [a, b, c, d, e, f, g, h, ..] = random()?;
        let seed = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let client = LeaseClient::new(arg.settings.clone(), open.mac, seed);
        let queues = client.serve(std::mem::take(&mut open.queues)).into_iter();
        open.queues = queues.map(|queue| Box::new(Counting::new(queue, left)) as _).collect();
        clients.push((name.clone(), IfaceId(number), client));
    }
    Ok(Clients(clients))
}

impl Clients {
    /// Applies the leases of all clients to a running engine.
    ///
    /// # Errors
    /// Fails if no thread can be created.
    pub fn run(self, remote: &Remote, messages: &Messages) -> Result<RunningServices> {
        let run = |(name, iface, client): (String, IfaceId, LeaseClient)| {
            let messages = messages.clone();
            let tell = move |notice| messages.say(&format!("{name}: {}", describe(&notice)));
            client.follow(remote.clone(), iface, tell).context("a thread for DHCP")
        };
        Ok(RunningServices(self.0.into_iter().map(run).collect::<Result<_>>()?))
    }
}

/// Services of a running router.
pub struct RunningServices(Vec<RunningDhcp>);

impl RunningServices {
    /// Ends all services. Called before the engine ends.
    pub fn end(self) {
        self.0.into_iter().for_each(RunningDhcp::end);
    }
}

/// Formats news about a lease.
pub fn describe(notice: &DhcpNotice) -> String {
    match notice {
        DhcpNotice::Bound(lease) => bound(lease),
        DhcpNotice::Lost(LeaseLoss::Expired) => {
            "the DHCP lease has ended, because no server has extended it".to_owned()
        }
        DhcpNotice::Lost(LeaseLoss::InUse(address)) => {
            format!("the DHCP server has offered {address}, which another host uses")
        }
        DhcpNotice::Lost(LeaseLoss::Released) => "the DHCP lease is released".to_owned(),
        DhcpNotice::Lost(_) => "the DHCP server has refused to extend the lease".to_owned(),
        DhcpNotice::Refused(why) => format!("the DHCP lease cannot be used: {why}"),
        DhcpNotice::NotKept(why) => format!("the DHCP lease is not kept: {why}"),
    }
}

fn bound(lease: &Lease) -> String {
    let list =
        |ips: &[Ipv4Addr]| ips.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(", ");
    let nameservers = match &lease.nameservers[..] {
        [] => String::new(),
        all => format!(", nameservers {}", list(all)),
    };
    let via = lease.routes.iter().filter(|route| route.prefix.len() == 0).find_map(|it| it.via);
    let gateway = via.map(|via| format!(", gateway {via}")).unwrap_or_default();
    format!("address {} by DHCP from {}{gateway}{nameservers}", lease.address, lease.server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_client() {
        let parsed = parse_dhcp("wan,lease=/var/lib/wan.lease,hostname=gate").expect("valid");
        let settings = DhcpSettings {
            lease_file: Some("/var/lib/wan.lease".into()),
            host_name: Some("gate".to_owned()),
        };
        assert_eq!(parsed, DhcpArg { port: "wan".to_owned(), settings });
        assert_eq!(parse_dhcp("wan").expect("valid").settings, DhcpSettings::default());
        let wrong = [
            ("", "is not a name of a port"),
            ("w an", "is not a name of a port"),
            ("wan,", "\"\" is no option of --dhcp"),
            ("wan,lease", "lease needs a value"),
            ("wan,hostname=-x", ""),
            ("wan,lease=a,lease=b", "lease is given twice"),
            ("wan,mtu=1", "\"mtu\" is no option of --dhcp"),
        ];
        for (text, wanted) in wrong {
            let error = parse_dhcp(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
