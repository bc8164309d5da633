//! Implements `--config`: reads the options of a router from a TOML file, with the same names and
//! values.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use toml::Spanned;
use towpath_router::PlanPart;
use towpath_sim::ScenarioError;
use towpath_uplink::parse_cidr;
use towpath_wire::Prefix;

use super::args::{self, RouterArgs, SourceCheckWord};
use super::port_arg;
use super::server_args::DhcpServerArg;
use super::service_args;
use crate::args::parse_name;
use crate::error::{ExitCode, Failure};

/// Content of the configuration file. Unknown keys are errors.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    name: Option<Spanned<String>>,
    #[serde(default)]
    port: Vec<Spanned<PortTable>>,
    #[serde(default)]
    routes: Vec<Spanned<String>>,
    acl: Option<PathBuf>,
    source_check: Option<SourceCheckWord>,
    neighbors: Option<Spanned<u32>>,
    #[serde(default)]
    nat: Vec<Spanned<String>>,
    #[serde(default)]
    forwards: Vec<Spanned<String>>,
    flows: Option<Spanned<u32>>,
    #[serde(default)]
    dhcp: Vec<Spanned<String>>,
    #[serde(default)]
    dhcp_servers: Vec<Spanned<String>>,
}

/// Table of one port in the configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortTable {
    name: Spanned<String>,
    device: Spanned<String>,
    #[serde(default)]
    addresses: Vec<Spanned<String>>,
}

/// Positions of ports and routes in the file, for errors that are found after it was parsed.
#[derive(Debug)]
pub struct Places {
    file: String,
    text: String,
    ports: Vec<(String, usize)>,
    routes: Vec<(Prefix, usize)>,
}

impl Places {
    /// Formats an error about a port or a route, with its line number in the file.
    pub fn tell(&self, part: PlanPart<'_>, why: &str) -> String {
        // If two ports or routes have the same name, report the position of the later one.
        let start = match part {
            PlanPart::Port(name) => self.ports.iter().rfind(|port| port.0 == name).map(|it| it.1),
            PlanPart::Route(prefix) => {
                self.routes.iter().rfind(|route| route.0 == prefix).map(|it| it.1)
            }
        };
        match start {
            Some(start) => {
                format!("{}: {}", self.file, ScenarioError::at(&self.text, start, why))
            }
            None => format!("{}: {why}", self.file),
        }
    }
}

/// Reads the configuration file, and adds its options to those of the command line.
///
/// # Errors
/// Returns the first error, with its line number.
pub fn read(path: &Path, args: &RouterArgs) -> Result<(RouterArgs, Places)> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("--config {name}"))
        .map_err(|error| Failure::error(ExitCode::Usage, format!("{error:#}")))?;
    let (mut args, ports, routes) = parse(&text, args.clone())
        .map_err(|error| Failure::error(ExitCode::Usage, format!("{name}: {error}")))?;
    // A relative path in the file is relative to the directory of the file.
    args.acl = args.acl.map(|acl| path.parent().unwrap_or(Path::new("")).join(acl));
    Ok((args, Places { file: name.to_string(), text, ports, routes }))
}

/// Parsed options, and the positions in the file at which ports and routes begin.
type Parsed = (RouterArgs, Vec<(String, usize)>, Vec<(Prefix, usize)>);

fn parse(text: &str, mut args: RouterArgs) -> Result<Parsed, ScenarioError> {
    let (mut ports, mut routes) = (Vec::new(), Vec::new());
    let file: File = toml::from_str(text).map_err(|error| ScenarioError::of_toml(text, &error))?;
    let at = |start: usize| move |why: String| ScenarioError::at(text, start, why);
    for port in &file.port {
        let PortTable { name, device, addresses } = port.get_ref();
        port_arg::check_port_name(name.get_ref()).map_err(at(name.span().start))?;
        let words = format!("{}={}", name.get_ref(), device.get_ref());
        let mut parsed = port_arg::parse_port(&words).map_err(at(device.span().start))?;
        for address in addresses {
            let prefix = parse_cidr(address.get_ref()).map_err(at(address.span().start))?;
            parsed.addresses.push(prefix);
        }
        ports.push((parsed.name.clone(), port.span().start));
        args.port.push(parsed);
    }
    if args.port.is_empty() {
        let why = "a router needs a port: [[port]], with `name`, `device` and `addresses`";
        return Err(ScenarioError::at(text, text.len(), why));
    }
    for route in &file.routes {
        let parsed = args::parse_route(route.get_ref()).map_err(at(route.span().start))?;
        routes.push((parsed.prefix.trunc(), route.span().start));
        args.route.push(parsed);
    }
    if let Some(name) = &file.name {
        args.name = Some(parse_name(name.get_ref()).map_err(at(name.span().start))?);
    }
    for rule in &file.nat {
        args.nat.push(args::parse_nat(rule.get_ref()).map_err(at(rule.span().start))?);
    }
    for rule in &file.forwards {
        args.forward.push(args::parse_forward(rule.get_ref()).map_err(at(rule.span().start))?);
    }
    for words in &file.dhcp {
        let parsed = service_args::parse_dhcp(words.get_ref()).map_err(at(words.span().start))?;
        args.services.dhcp.push(parsed);
    }
    for words in &file.dhcp_servers {
        let parsed = DhcpServerArg::parse(words.get_ref()).map_err(at(words.span().start))?;
        args.services.dhcp_server.push(parsed);
    }
    if let Some(count) = &file.neighbors {
        args.neighbors = within(text, "neighbors", count, args::NEIGHBORS_RANGE)?;
    }
    if let Some(count) = &file.flows {
        args.flows = within(text, "flows", count, args::FLOWS_RANGE)?;
    }
    args.acl = file.acl;
    args.source_check = file.source_check.unwrap_or(args.source_check);
    Ok((args, ports, routes))
}

/// Returns an error unless the number of a key is in the valid range.
fn within(
    text: &str,
    key: &str,
    number: &Spanned<u32>,
    range: std::ops::RangeInclusive<u32>,
) -> Result<u32, ScenarioError> {
    let value = *number.get_ref();
    if range.contains(&value) {
        return Ok(value);
    }
    let why = format!("`{key}` is {value}; expected {} to {}", range.start(), range.end());
    Err(ScenarioError::at(text, number.span().start, why))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: RouterArgs,
    }

    const OFFICE: &str = "\
name = 'office'
routes = ['default@192.0.2.1,192.0.2.5', 'blackhole 10.0.0.0/8']
acl = 'office.acl'
source-check = 'strict'
neighbors = 4096
nat = ['masquerade out wan']
forwards = ['in wan proto tcp dport 8080 to 10.1.0.5:80']
flows = 1000
dhcp = ['wan,hostname=office']
dhcp-servers = ['lan,pool=10.1.0.100-10.1.0.199']

[[port]]
name = 'lan'
device = 'packet:eth1'
addresses = ['10.1.0.1/24', 'fd00:1::1/64']

[[port]]
name = 'wan'
device = 'packet:eth0'
addresses = ['192.0.2.2/24']
";

    fn line(words: &[&str]) -> RouterArgs {
        Line::parse_from([&["towpath"], words].concat()).args
    }

    fn read_text(text: &str) -> Result<RouterArgs, String> {
        let parsed = parse(text, line(&["--config", "x"])).map_err(|error| error.to_string());
        parsed.map(|(args, _, _)| args)
    }

    #[test]
    fn a_file_says_what_options_say() {
        let file = read_text(OFFICE).unwrap();
        let options = line(&[
            "--name=office",
            "--port=lan=packet:eth1,10.1.0.1/24,fd00:1::1/64",
            "--port=wan=packet:eth0,192.0.2.2/24",
            "--route=default@192.0.2.1,192.0.2.5",
            "--route=blackhole 10.0.0.0/8",
            "--acl=office.acl",
            "--source-check=strict",
            "--neighbors=4096",
            "--nat=masquerade out wan",
            "--forward=in wan proto tcp dport 8080 to 10.1.0.5:80",
            "--flows=1000",
            "--dhcp=wan,hostname=office",
            "--dhcp-server=lan,pool=10.1.0.100-10.1.0.199",
        ]);
        let file = RouterArgs { config: None, ..file };
        assert_eq!(format!("{file:?}"), format!("{options:?}"));
    }

    #[test]
    fn mistakes_have_their_line_and_the_nearest_name() {
        let cases = [
            ("source-check", "source-chek", "line 4: unknown key `source-chek`; did you mean"),
            ("'strict'", "'strikt'", "line 4: unknown value `strikt`; did you mean `strict`?"),
            ("addresses = ['192", "adresses = ['192", "line 20: unknown key `adresses`; did you"),
            ("4096", "'many'", "line 5: invalid type: string \"many\""),
            ("4096", "0", "line 5: `neighbors` is 0; expected 1 to 16000"),
            ("'office'", "'of fice'", "line 1: "),
            ("default@", "default%", "line 2: expected NETWORK@NEXTHOP"),
            ("device = 'packet:eth0'\n", "", "line 17: missing field `device`"),
            ("packet:eth0", "pakket:eth0", "line 19: \"pakket\" is not a kind of port"),
            ("'wan'", "'w an'", "line 18: \"w an\" is not a name of a port"),
            ("192.0.2.2/24", "192.0.2.2/33", "line 20: "),
            ("fd00:1::1/64", "fd00:1::/64x", "line 15: "),
            ("neighbors = 4096", "neighbors = ", "line 5: "),
            ("masquerade", "masq", "line 6: \"masq\" is no kind of rule"),
            ("dport 8080", "dprot 8080", "line 7: unknown word \"dprot\""),
            ("hostname=", "name=", "line 9: \"name\" is no option of --dhcp"),
            ("pool=", "pol=", "line 10: \"pol\" is no option of --dhcp-server"),
            ("1000", "1", "line 8: `flows` is 1; expected 64 to 16777216"),
        ];
        for (there, wrong, expected) in cases {
            assert!(OFFICE.contains(there), "{there}");
            let error = read_text(&OFFICE.replacen(there, wrong, 1)).expect_err(wrong);
            assert!(error.starts_with(expected), "{wrong}: {error}");
        }
        let none = read_text("name = 'x'\n").expect_err("no port");
        assert!(none.contains("[[port]]"), "{none}");
    }
}
