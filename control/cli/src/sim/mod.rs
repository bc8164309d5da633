//! `towpath sim`: scenarios in virtual or real time, and examples.

mod args;
mod card;
mod common;
mod devices;
mod examples;
mod files;
mod progress;

use std::num::NonZero;
use std::path::Path;

use anyhow::Result;
use towpath_sim::{
    BatchOptions, MAX_LAG, Plan, RealtimeOptions, Report, device_words, run_in_real_time,
};
use towpath_wire::Prefix;

use crate::error::{ExitCode, Failure};
use crate::output;

pub use args::SimArgs;
use args::SimCommand;
use common::CommonArgs;
use devices::OpenDevices;
use examples::ExampleCommand;
use files::Files;
use progress::Progress;

/// Runs the command.
pub fn sim(args: &SimArgs) -> Result<()> {
    match (&args.command, &args.scenario) {
        (Some(SimCommand::Example(example)), _) => run_example(example),
        (Some(SimCommand::Lend(lend)), _) => devices::lend(lend),
        (None, Some(scenario)) => run_scenario(args, scenario),
        (None, None) => {
            Err(Failure::error(ExitCode::Usage, "sim needs a scenario or an example".to_owned()))
        }
    }
}

fn run_scenario(args: &SimArgs, scenario: &Path) -> Result<()> {
    let name = scenario.display();
    let text = std::fs::read_to_string(scenario)
        .map_err(|error| Failure::error(ExitCode::Usage, format!("{name}: {error}")))?;
    let plans = towpath_sim::read(&text)
        .map_err(|error| Failure::error(ExitCode::Usage, format!("{name}: {error}")))?;
    let batch = BatchOptions {
        seed: args.common.seed,
        runs: args.runs,
        captures: args.pcap.as_deref(),
        traces: false,
        threads: threads(),
    };
    let files = Files::open(&args.common.output)?;
    let batch = BatchOptions { traces: files.has_page(), ..batch };
    let report = if args.realtime {
        let mut devices = OpenDevices::open(&device_words(&plans), &addresses(&plans))?;
        let options = realtime(&args.common, batch, &devices);
        in_progress(&args.common, |progress| {
            run_in_real_time(&plans, options, &mut devices.ports, progress)
        })
    } else {
        refuse_max_lag(&args.common, "--realtime")?;
        let progress = Progress::start(args.common.quiet);
        let report = towpath_sim::run_all(&plans, batch, &|share| progress.at(share));
        progress.end();
        report.inspect(|report| progress.tell_speed(report))
    };
    let report = report.map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    files.write(&report)?;
    verdict(&report)
}

fn run_example(command: &ExampleCommand) -> Result<()> {
    let (card, example) = (command.card(), command.example()?);
    if card.scenario {
        let none = "send --mode write has no network, and so no scenario".to_owned();
        let text = example.scenario.ok_or_else(|| Failure::error(ExitCode::Usage, none))?;
        return output::write(text.as_bytes());
    }
    let files = Files::open(&card.common.output)?;
    let failed = |error| anyhow::anyhow!("sim {}: {error}", example.name);
    let words = example.devices();
    let report = if words.is_empty() {
        refuse_max_lag(&card.common, "--device")?;
        let progress = Progress::start(card.common.quiet);
        let report = example.run(card.common.seed, threads(), &|share| progress.at(share));
        progress.end();
        report.inspect(|report| progress.tell_speed(&report.report))
    } else {
        let addresses: Vec<Prefix> = card.address.into_iter().collect();
        let mut devices = OpenDevices::open(&words, &addresses)?;
        let seed = card.common.seed;
        let batch = BatchOptions { seed, runs: 1, captures: None, traces: true, threads: 1 };
        let options = realtime(&card.common, batch, &devices);
        in_progress(&card.common, |progress| {
            example.run_in_real_time(options, &mut devices.ports, progress)
        })
    };
    let report = report.map_err(failed)?;
    files.write(&report)?;
    verdict(&report.report)
}

/// Shows the progress of a run in real time.
fn in_progress<R>(common: &CommonArgs, run: impl FnOnce(&dyn Fn(f64)) -> R) -> R {
    let progress = Progress::start(common.quiet);
    let result = run(&|share| progress.at(share));
    progress.end();
    result
}

fn realtime<'a>(
    common: &CommonArgs,
    batch: BatchOptions<'a>,
    devices: &OpenDevices,
) -> RealtimeOptions<'a> {
    RealtimeOptions { batch, max_lag: common.max_lag.unwrap_or(MAX_LAG), macs: devices.macs }
}

/// Returns the addresses of all simulated hosts.
fn addresses(plans: &[Plan]) -> Vec<Prefix> {
    let hosts = plans.iter().flat_map(|plan| &plan.hosts);
    let simulated = hosts.filter(|host| host.device.is_none());
    let all = simulated.filter_map(|host| Prefix::new(host.address.into(), host.prefix_len));
    let mut all: Vec<Prefix> = all.collect();
    all.sort();
    all.dedup();
    all
}

/// Refuses `--max-lag` in virtual time, in which nothing is late.
fn refuse_max_lag(common: &CommonArgs, needed: &str) -> Result<()> {
    match common.max_lag {
        None => Ok(()),
        Some(_) => Err(Failure::error(ExitCode::Usage, format!("--max-lag needs {needed}"))),
    }
}

/// Fails if a run in real time was too late.
fn verdict(report: &Report) -> Result<()> {
    let runs = report.runs.iter().filter_map(|run| run.realtime.as_ref());
    let late: u64 = runs.map(|realtime| realtime.late).sum();
    if late == 0 {
        return Ok(());
    }
    let message = format!(
        "the run is invalid: {late} events were later than --max-lag; simulate less, or use a \
         faster or idle machine"
    );
    Err(Failure::error(ExitCode::TesterBehind, message))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
