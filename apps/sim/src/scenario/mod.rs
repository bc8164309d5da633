//! Scenarios: from the text of a file to plans of runs.
//!
//! Reading is strict: unknown keys, names and values are errors with their line. The message has
//! the name that was meant, where one is near.

mod error;
mod file;
mod flows;
mod network;
mod plan;
mod printable;
#[cfg(test)]
mod tests;
mod variant;

pub use error::ScenarioError;
pub(crate) use error::unknown_name;
pub use file::{FlowEnd, LeaveKind, StallKind};
pub use plan::{
    DevicePlan, FlowPlan, HostPlan, Leave, NET, Outage, PhasesPlan, Place, Plan, Stall, Traffic,
    WayPlan,
};

use file::File;
use network::Network;
use variant::Variant;

/// Longest run: a day of virtual time.
const DURATION_MAX_NS: u64 = 86_400_000_000_000;
/// Most samples of a series: more would say nothing on a page.
const SAMPLES_MAX: u64 = 20_000;
/// Samples of a series for which nothing else is said, in a scenario that is not large.
const SAMPLES: u64 = 400;
/// Values of all series together for which nothing else is said: some 20 MB of JSON.
const VALUES_MAX: u64 = 1_000_000;
/// Samples of a series in the largest scenario for which nothing else is said.
const SAMPLES_MIN: u64 = 10;
/// Series of a flow, of a direction of a link, and of a device.
const FLOW_SERIES: u64 = 4;
const WAY_SERIES: u64 = 5;
const DEVICE_SERIES: u64 = 5;

/// The plans of a scenario: one, or one for each variant in the order of the file. A sweep makes
/// variants, in the order of its paths, and the last one changes first.
///
/// # Errors
/// The first mistake in the text.
pub fn read(text: &str) -> Result<Vec<Plan>, ScenarioError> {
    let file: File = toml::from_str(text).map_err(|e| ScenarioError::of_toml(text, &e))?;
    printable::check(text)?;
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
        plans.push(plan(&changed, &file, &name).map_err(of_variant)?);
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
        title: file.title.clone(),
        description: file.description.clone(),
        variant: variant.to_owned(),
        seed: file.seed,
        duration_ns,
        sample_ns,
        events_max: file.limits.events,
        memory_max: file.limits.memory.0,
        hosts: network.hosts,
        switches: network.switches,
        links: network.links,
        flows,
    })
}

/// Samples for which nothing is said: fewer in a scenario with thousands of series, so that the
/// result does not grow with their number.
fn samples(network: &Network, flows: &[FlowPlan]) -> u64 {
    let ways = || network.links.iter().flat_map(|link| &link.ways);
    let devices = ways().filter(|way| way.device.is_some()).count() as u64;
    let series = flows.len() as u64 * FLOW_SERIES
        + ways().count() as u64 * WAY_SERIES
        + devices * DEVICE_SERIES;
    (VALUES_MAX / series.max(1)).clamp(SAMPLES_MIN, SAMPLES)
}
