//! Options of a router that works with the kernel and its routing daemons.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use clap::Args;
use towpath_bridge::TwinRules;
use towpath_config::check_port_name;
use towpath_netlink::{NetNamespace, TABLE_MAIN};
use towpath_uplink::TwinSpec;

/// Options for the kernel.
#[derive(Debug, Clone, Default, Args)]
pub struct KernelArgs {
    /// Take over routes from the kernel: NAMESPACE[:TABLE], or `host`
    ///
    /// NAMESPACE is the network namespace of routing daemons, by its name or path. The router uses
    /// the routes, addresses and permanent neighbours of this namespace as long as they exist
    /// there. An interface of the namespace stands for the port whose twin it is (--bypass), or for
    /// the port with the same name. `host` is the namespace of the router itself, where an
    /// interface stands for the port that uses it, and keeps its addresses. TABLE is main by
    /// default. docs/kernel.md has an example.
    #[arg(long, value_name = "NAMESPACE", value_parser = parse_sync)]
    pub sync: Option<SyncArg>,

    /// Pass packets of a port to the kernel: PORT=TAP@NAMESPACE[,RULE...]
    ///
    /// Creates the TAP device TAP in the namespace, as the twin of the port. The twin has the
    /// addresses of the port, and is removed when the router ends. Daemons in the namespace receive
    /// packets of routing protocols that arrive at the port. Packets that the daemons send leave by
    /// the port. RULE is ospf, vrrp, bgp, bfd, rip, babel, pim, ldp, tcp/PORT, udp/PORT,
    /// ip/PROTOCOL or to/ADDRESS. The default is the first six. May be given once for each port.
    #[arg(long, value_name = "PORT", value_parser = parse_bypass)]
    pub bypass: Vec<BypassArg>,
}

/// `--sync`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncArg {
    /// Namespace of the routes.
    pub namespace: NetNamespace,
    /// Routing table.
    pub table: u32,
}

/// `--bypass`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BypassArg {
    /// Name of the port.
    pub port: String,
    pub twin: TwinSpec,
}

/// Word for the namespace of the router itself.
const HOST: &str = "host";

pub fn parse_sync(text: &str) -> Result<SyncArg, String> {
    let (namespace, table) = match text.rsplit_once(':') {
        Some((namespace, "main")) => (namespace, TABLE_MAIN),
        Some((namespace, table)) => {
            let number = table.parse().ok().filter(|number| *number > 0);
            let wrong = || format!("{table:?} is not a routing table: expected main or a number");
            (namespace, number.ok_or_else(wrong)?)
        }
        None => (text, TABLE_MAIN),
    };
    let namespace = match namespace {
        HOST => NetNamespace::Own,
        _ => parse_namespace(namespace)?,
    };
    Ok(SyncArg { namespace, table })
}

pub fn parse_bypass(text: &str) -> Result<BypassArg, String> {
    let form = "expected PORT=TAP@NAMESPACE, for example wan=wan@control";
    let (port, rest) = text.split_once('=').ok_or(form)?;
    check_port_name(port)?;
    let (device, rules) = match rest.split_once(',') {
        Some((device, rules)) => (device, rules.split(',').collect()),
        None => (rest, Vec::new()),
    };
    let (tap, namespace) = device.split_once('@').ok_or(form)?;
    towpath_tap::check_name(tap).map_err(|error| error.to_string())?;
    let namespace = parse_namespace(namespace)?;
    let parse = |word: &str| word.parse::<TwinRules>().map_err(|error| error.to_string());
    let rules = rules.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let rules = rules.into_iter().flat_map(|TwinRules(rules)| rules).collect();
    let twin = TwinSpec { tap: tap.to_owned(), namespace, rules };
    Ok(BypassArg { port: port.to_owned(), twin })
}

fn parse_namespace(text: &str) -> Result<NetNamespace, String> {
    if text.is_empty() || text == HOST {
        return Err(format!(
            "{text:?} is not a network namespace: expected a name of `ip netns`, or a path"
        ));
    }
    // A path of `ip netns` means the name at its end, so that path and name denote the same
    // namespace.
    let named = ["/run/netns/", "/var/run/netns/"].iter().find_map(|at| text.strip_prefix(at));
    let named = named.filter(|name| !name.is_empty() && !name.contains('/'));
    Ok(NetNamespace::Named(named.unwrap_or(text).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> NetNamespace {
        NetNamespace::Named(name.to_owned())
    }

    #[test]
    fn namespaces_have_a_table() {
        let sync = |namespace, table| SyncArg { namespace, table };
        assert_eq!(parse_sync("control"), Ok(sync(named("control"), 254)));
        assert_eq!(parse_sync("control:main"), Ok(sync(named("control"), 254)));
        assert_eq!(parse_sync("host:100"), Ok(sync(NetNamespace::Own, 100)));
        assert_eq!(parse_sync("/proc/7/ns/net"), Ok(sync(named("/proc/7/ns/net"), 254)));
        assert_eq!(parse_sync("/run/netns/control"), Ok(sync(named("control"), 254)));
        assert_eq!(parse_sync("/var/run/netns/control:7"), Ok(sync(named("control"), 7)));
        for wrong in ["", ":100", "control:0", "control:", "control:x"] {
            assert!(parse_sync(wrong).expect_err(wrong).contains("expected"), "{wrong}");
        }
    }

    #[test]
    fn twins_have_a_namespace_and_rules() {
        let twin = parse_bypass("wan=w0@control").expect("valid");
        assert_eq!((twin.port.as_str(), twin.twin.tap.as_str()), ("wan", "w0"));
        assert_eq!((twin.twin.namespace, twin.twin.rules), (named("control"), Vec::new()));
        let twin = parse_bypass("wan=w0@control,bgp,bfd,tcp/22,to/224.0.0.5").expect("valid").twin;
        assert_eq!(twin.rules.len(), 1 + 3 + 1 + 1);
        let wrong = [
            ("wan", "expected PORT=TAP@NAMESPACE"),
            ("wan=w0", "expected PORT=TAP@NAMESPACE"),
            ("wan=w0@", "is not a network namespace"),
            ("wan=w0@host", "is not a network namespace"),
            ("wan=w/0@control", "is no interface name"),
            ("w n=w0@control", "is not a name of a port"),
            ("wan=w0@control,bpg", "\"bpg\" is not a rule"),
            ("wan=w0@control,", "\"\" is not a rule"),
        ];
        for (text, wanted) in wrong {
            let error = parse_bypass(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
