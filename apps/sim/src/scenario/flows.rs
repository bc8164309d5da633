//! Flows of a scenario: resolves their endpoints, traffic patterns and times.

use toml::Spanned;

use super::error::ScenarioError;
use super::file::{DatagramLengths, File, FlowKeys, FlowKind, FlowTransport};
use super::network::Network;
use super::plan::{FlowPlan, HostPlan, Leave, PhasesPlan, Place, Stall, Traffic};
use crate::units::{HostNames, Time};

/// Maximum number of flows. Each flow has a listener on a port of its own.
pub(super) const FLOWS_MAX: usize = 20_000;

/// Returns all flows of the scenario, in the order of the file.
pub(super) fn flows(
    text: &str,
    file: &File,
    network: &Network,
) -> Result<Vec<FlowPlan>, ScenarioError> {
    let mut plans: Vec<FlowPlan> = Vec::new();
    for (number, keys) in file.flows.iter().enumerate() {
        let at = keys.kind.span().start;
        let error = |message: String| ScenarioError::at(text, at, message);
        let traffic = traffic(keys).map_err(error)?;
        let froms = hosts(text, network, &keys.from)?;
        let tos = hosts(text, network, &keys.to)?;
        let several = as_many_or_one(&froms, &tos).map_err(error)?;
        let stop = stop(keys, file.duration.get_ref().0).map_err(error)?;
        let name = match &keys.name {
            Some(name) => name.get_ref().clone(),
            None => format!("{}{}", traffic.name(), number + 1),
        };
        let total = several * keys.count.max(1);
        if plans.len() + total > FLOWS_MAX {
            return Err(error(format!("more than {FLOWS_MAX} flows, which is the limit")));
        }
        let (stalls, leaves) = (stalls(keys), leaves(keys));
        for nth in 0..total {
            let (from, to) = (froms[nth % froms.len()], tos[nth % tos.len()]);
            if from == to {
                let name = &network.hosts[from].name;
                return Err(error(format!("the flow goes from `{name}` to itself")));
            }
            check_real(keys, [&network.hosts[from], &network.hosts[to]]).map_err(error)?;
            let name = if total > 1 { format!("{name}.{}", nth + 1) } else { name.clone() };
            if plans.iter().any(|plan| plan.name == name) {
                return Err(error(format!("two flows have the name `{name}`; rename one of them")));
            }
            let stagger = keys.stagger.unwrap_or_default().0.saturating_mul(nth as u64);
            plans.push(FlowPlan {
                name,
                from,
                to,
                start_ns: keys.start.from.0.saturating_add(stagger),
                start_range_ns: keys.start.to.0 - keys.start.from.0,
                stop_ns: stop,
                port: keys.port,
                congestion: keys.congestion.map(|named| named.0).unwrap_or_default(),
                traffic,
                stalls: stalls.clone(),
                leaves: leaves.clone(),
            });
        }
    }
    if plans.is_empty() && network.hosts.iter().all(|host| host.device.is_none()) {
        return Err(ScenarioError::without_line("the scenario has no flow; add [[flow]]"));
    }
    Ok(plans)
}

/// Checks a flow with a real host: the simulation has the programs of one end only.
fn check_real(keys: &FlowKeys, [from, to]: [&HostPlan; 2]) -> Result<(), String> {
    if keys.port == Some(0) {
        return Err("`port` is 0; expected 1 to 65535".into());
    }
    match (&from.device, &to.device) {
        (None, None) if keys.port.is_some() => {
            Err("`port` is for a flow with a real host, which has a `device`; leave it out".into())
        }
        (Some(_), Some(_)) => Err(format!(
            "the flow goes from `{}` to `{}`, which are both real; one has to be simulated",
            from.name, to.name
        )),
        (None, Some(device)) if !device.has_address => {
            Err(format!("the flow goes to `{}`, which has no `address`", to.name))
        }
        _ => Ok(()),
    }
}

fn stalls(keys: &FlowKeys) -> Vec<Stall> {
    let stall = |keys: &super::file::StallKeys| Stall {
        end: keys.end,
        what: keys.what,
        from_ns: keys.at.0,
        until_ns: keys.at.0.saturating_add(keys.length.0),
    };
    keys.stall.iter().flatten().map(stall).collect()
}

fn leaves(keys: &FlowKeys) -> Vec<Leave> {
    let leave =
        |keys: &super::file::LeaveKeys| Leave { end: keys.end, how: keys.how, at_ns: keys.at.0 };
    keys.leave.iter().flatten().map(leave).collect()
}

/// Resolves names of hosts, and patterns of names, to the indices of hosts.
fn hosts(
    text: &str,
    network: &Network,
    names: &Spanned<HostNames>,
) -> Result<Vec<usize>, ScenarioError> {
    let at = names.span().start;
    let mut found = Vec::new();
    for name in &names.get_ref().0 {
        if let Some(prefix) = name.strip_suffix('*') {
            let is_one = |host: &usize| network.hosts[*host].name.starts_with(prefix);
            let all: Vec<usize> = (0..network.hosts.len()).filter(is_one).collect();
            if all.is_empty() {
                let message = format!("no host has a name that begins with `{prefix}`");
                return Err(ScenarioError::at(text, at, message));
            }
            found.extend(all);
            continue;
        }
        match network.place(text, at, name)? {
            Place::Host(host) => found.push(host),
            Place::Switch(_) => {
                let message = format!("`{name}` is a switch; flows go between hosts");
                return Err(ScenarioError::at(text, at, message));
            }
        }
    }
    Ok(found)
}

/// Returns the number of pairs formed from two lists of hosts. The lists must have equal lengths,
/// or one of them must have a single element.
fn as_many_or_one(froms: &[usize], tos: &[usize]) -> Result<usize, String> {
    let several = froms.len().max(tos.len());
    if [froms, tos].iter().all(|list| [1, several].contains(&list.len())) {
        return Ok(several);
    }
    Err(format!(
        "`from` names {} hosts and `to` names {}; expected as many, or one",
        froms.len(),
        tos.len()
    ))
}

/// Returns the stop time of a flow in ns. Defaults to the end of the run.
fn stop(keys: &FlowKeys, end: u64) -> Result<u64, String> {
    let stop = keys.stop.map_or(end, |stop| stop.0);
    let latest = keys.start.to;
    if latest.0 < stop {
        return Ok(stop);
    }
    Err(format!("the flow starts at {latest} and stops at {}; it has to start before", Time(stop)))
}

/// Returns an error if `keys` contains a key that the traffic pattern does not support.
fn refuse_strangers(keys: &FlowKeys, is_udp: bool) -> Result<(), String> {
    let kind = *keys.kind.get_ref();
    let has_datagrams = kind == FlowKind::Cbr || is_udp;
    let given = [
        ("bytes", keys.bytes.is_some(), matches!(kind, FlowKind::Bulk | FlowKind::Exchange)),
        ("back", keys.back.is_some(), kind == FlowKind::Exchange),
        ("read_rate", keys.read_rate.is_some(), kind == FlowKind::Exchange),
        ("stall", keys.stall.is_some(), kind == FlowKind::Exchange),
        ("leave", keys.leave.is_some(), kind == FlowKind::Exchange),
        ("on", keys.on.is_some(), kind == FlowKind::OnOff),
        ("off", keys.off.is_some(), kind == FlowKind::OnOff),
        ("lengths", keys.lengths.is_some(), kind == FlowKind::OnOff),
        ("transport", keys.transport.is_some(), kind == FlowKind::OnOff),
        ("request", keys.request.is_some(), kind == FlowKind::Request),
        ("response", keys.response.is_some(), kind == FlowKind::Request),
        ("think", keys.think.is_some(), kind == FlowKind::Request),
        ("rate", keys.rate.is_some(), matches!(kind, FlowKind::Cbr | FlowKind::OnOff)),
        ("size", keys.size.is_some(), has_datagrams),
        ("interval", keys.interval.is_some(), kind == FlowKind::Ping),
        ("congestion", keys.congestion.is_some(), !has_datagrams && kind != FlowKind::Ping),
    ];
    match given.into_iter().find(|(_, given, fits)| *given && !fits) {
        Some((key, ..)) => {
            Err(format!("`{key}` means nothing for this kind of flow; leave it out"))
        }
        None => Ok(()),
    }
}

fn above_0(name: &str, value: u64) -> Result<u64, String> {
    match value {
        0 => Err(format!("`{name}` is 0; expected more")),
        value => Ok(value),
    }
}

fn needed(name: &str, value: Option<u64>) -> Result<u64, String> {
    match value {
        Some(value) => above_0(name, value),
        None => Err(format!("the flow needs `{name}`")),
    }
}

/// Parses the traffic pattern of a flow. Returns an error for keys that the pattern does not
/// support.
fn traffic(keys: &FlowKeys) -> Result<Traffic, String> {
    let kind = *keys.kind.get_ref();
    let is_udp = kind == FlowKind::OnOff && keys.transport == Some(FlowTransport::Udp);
    refuse_strangers(keys, is_udp)?;
    Ok(match kind {
        FlowKind::Bulk => {
            let bytes = keys.bytes.map(|bytes| above_0("bytes", bytes.0)).transpose()?;
            Traffic::Bulk { bytes }
        }
        FlowKind::OnOff => {
            let rate = keys.rate.map(|rate| rate.0);
            let rate = if is_udp { Some(needed("rate", rate)?) } else { rate };
            let Some(off) = keys.off else { return Err("the flow needs `off`".into()) };
            Traffic::OnOff {
                phases: PhasesPlan {
                    on_ns: needed("on", keys.on.map(|on| on.0))?,
                    off_ns: off.0,
                    is_constant: keys.lengths == Some(DatagramLengths::Constant),
                },
                rate,
                datagram: if is_udp { Some(size(keys)?) } else { None },
            }
        }
        FlowKind::Request => Traffic::Request {
            request: above_0("request", keys.request.map_or(100, |size| size.0))?,
            response: needed("response", keys.response.map(|size| size.0))?,
            think_ns: keys.think.unwrap_or_default().0,
        },
        FlowKind::Exchange => Traffic::Exchange {
            bytes: needed("bytes", keys.bytes.map(|size| size.0))?,
            back: keys.back.map_or(0, |size| size.0),
            read_rate: keys.read_rate.map(|rate| rate.0),
        },
        FlowKind::Cbr => {
            Traffic::Cbr { rate: needed("rate", keys.rate.map(|rate| rate.0))?, size: size(keys)? }
        }
        FlowKind::Ping => {
            let interval = keys.interval.map_or(100_000_000, |interval| interval.0);
            Traffic::Ping { interval_ns: above_0("interval", interval)? }
        }
    })
}

/// Returns the payload length of each datagram in bytes.
fn size(keys: &FlowKeys) -> Result<u64, String> {
    let size = keys.size.map_or(1000, |size| size.0);
    if !(16..=1472).contains(&size) {
        return Err(format!("`size = {size}`: expected 16 to 1472 bytes of payload"));
    }
    Ok(size)
}
