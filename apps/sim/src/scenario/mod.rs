//! Parses a scenario file into plans of runs.
//!
//! Parsing is strict: an unknown key, name or value is an error with its line number. The error
//! message suggests the nearest known name.

mod error;
mod file;
mod flows;
mod network;
mod plan;
mod real;
#[cfg(test)]
mod tests;
mod variant;

pub use error::ScenarioError;
pub(crate) use error::unknown_name;
pub use file::{FlowEnd, LeaveKind, StallKind};
pub use plan::{
    DevicePlan, ExitPlan, FlowPlan, HostDevice, HostPlan, Leave, Outage, PhasesPlan, Place, Plan,
    Stall, Traffic, WayPlan,
};

use std::collections::BTreeMap;

use file::File;
use network::Network;
use variant::Variant;

use crate::packet::VIRTUAL_MACS;

/// Maximum duration of a run in ns: one day of virtual time.
const DURATION_MAX_NS: u64 = 86_400_000_000_000;
/// Maximum number of samples of a series. A page can show fewer.
const SAMPLES_MAX: u64 = 20_000;
/// Default number of samples of a series in scenarios that are not large.
const SAMPLES: u64 = 400;
/// Default maximum number of values in all series together. A million values need some 20 MB of
/// JSON.
const VALUES_MAX: u64 = 1_000_000;
/// Default minimum number of samples of a series in large scenarios.
const SAMPLES_MIN: u64 = 10;
/// Number of series of one flow.
const FLOW_SERIES: u64 = 4;
/// Number of series of one direction of a link.
const WAY_SERIES: u64 = 5;
/// Number of series of one device.
const DEVICE_SERIES: u64 = 5;

/// Parses a scenario into one plan, or into one plan per variant in the order of the file. The
/// variants of a sweep are in the order of its paths, and the last path varies fastest.
///
/// # Errors
/// Returns the first error in the text.
pub fn read(text: &str) -> Result<Vec<Plan>, ScenarioError> {
    let file: File = toml::from_str(text).map_err(|e| ScenarioError::of_toml(text, &e))?;
    let base = plan(text, &file, "")?;
    let variants = variant::variants(text, &file)?;
    if variants.is_empty() {
        return Ok(vec![base]);
    }
    let mut plans: Vec<Plan> = Vec::new();
    for Variant { name, set, at } in variants {
        let of_variant = |error: ScenarioError| {
            ScenarioError::at(text, at, format!("variant `{name}`: {}", error.message))
        };
        let changed = variant::apply(text, &set).map_err(of_variant)?;
        let file: File = toml::from_str(&changed)
            .map_err(|e| of_variant(ScenarioError::of_toml(&changed, &e)))?;
        let mut plan = plan(&changed, &file, &name).map_err(of_variant)?;
        plan.set = set.iter().map(|(path, value)| (path.clone(), variant::text(value))).collect();
        plans.push(plan);
    }
    Ok(plans)
}

fn plan(text: &str, file: &File, variant: &str) -> Result<Plan, ScenarioError> {
    let duration_ns = file.duration.get_ref().0;
    if !(1..=DURATION_MAX_NS).contains(&duration_ns) {
        let message =
            format!("`duration` is {}; expected above 0 and up to 24h", file.duration.get_ref());
        return Err(ScenarioError::at(text, file.duration.span().start, message));
    }
    refuse_control_characters(text, file)?;
    let network = Network::new(text, file)?;
    let flows = flows::flows(text, file, &network)?;
    let sample_ns = match &file.sample {
        None => (duration_ns / samples(&network, &flows)).max(1),
        Some(sample) => {
            let ns = sample.get_ref().0;
            if ns == 0 || duration_ns / ns > SAMPLES_MAX {
                let message = format!(
                    "`sample` is {}; expected at least {}, for no more than {SAMPLES_MAX} samples",
                    sample.get_ref(),
                    crate::units::Time(duration_ns / SAMPLES_MAX + 1),
                );
                return Err(ScenarioError::at(text, sample.span().start, message));
            }
            ns
        }
    };
    Ok(Plan {
        title: file.title.get_ref().clone(),
        description: description(file).to_owned(),
        variant: variant.to_owned(),
        set: BTreeMap::new(),
        seed: file.seed,
        duration_ns,
        sample_ns,
        events_max: file.limits.events,
        memory_max: file.limits.memory.0,
        macs: VIRTUAL_MACS,
        hosts: network.hosts,
        switches: network.switches,
        links: network.links,
        flows,
    })
}

fn description(file: &File) -> &str {
    file.description.as_ref().map_or("", |text| text.get_ref())
}

/// Returns an error if a text that a report shows contains control characters, because terminals
/// interpret them and XML forbids them.
fn refuse_control_characters(text: &str, file: &File) -> Result<(), ScenarioError> {
    let hosts = file.hosts.iter().map(|host| &host.name);
    let switches = file.switches.iter().map(|switch| &switch.name);
    let links = file.links.iter().filter_map(|link| link.name.as_ref());
    let flows = file.flows.iter().filter_map(|flow| flow.name.as_ref());
    let lines = [&file.title].into_iter().chain(hosts).chain(switches).chain(links).chain(flows);
    for line in lines {
        error::one_line(text, line.span().start, line.get_ref())?;
    }
    let description = file.description.as_ref().map_or(0, |description| description.span().start);
    for line in self::description(file).split(['\n', '\r', '\t']) {
        error::one_line(text, description, line)?;
    }
    Ok(())
}

/// Returns the default number of samples of a series. Scenarios with thousands of series get fewer
/// samples, so that the size of the result is bounded.
fn samples(network: &Network, flows: &[FlowPlan]) -> u64 {
    let ways = || network.links.iter().flat_map(|link| &link.ways);
    let devices = ways().filter(|way| way.device.is_some()).count() as u64;
    let series = flows.len() as u64 * FLOW_SERIES
        + ways().count() as u64 * WAY_SERIES
        + devices * DEVICE_SERIES;
    (VALUES_MAX / series.max(1)).clamp(SAMPLES_MIN, SAMPLES)
}
