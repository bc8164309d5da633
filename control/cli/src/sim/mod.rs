//! Implements `towpath sim`, which runs scenarios and examples in virtual time.

mod args;
mod examples;
mod files;
mod progress;

use std::num::NonZero;
use std::path::Path;

use anyhow::Result;
use towpath_sim::BatchOptions;

use crate::error::{ExitCode, Failure};
use crate::output;

pub use args::SimArgs;
use examples::ExampleCommand;
use files::Files;
use progress::Progress;

/// Runs the command.
pub fn sim(args: &SimArgs) -> Result<()> {
    match (&args.example, &args.scenario) {
        (Some(example), _) => run_example(example),
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
    let files = Files::open(&args.common)?;
    let options = BatchOptions {
        seed: args.common.seed,
        runs: args.runs,
        captures: args.pcap.as_deref(),
        traces: files.has_page(),
        threads: threads(),
    };
    let progress = Progress::start(args.common.quiet);
    let report = towpath_sim::run_all(&plans, options, &|share| progress.at(share));
    progress.end();
    let report = report.map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    progress.tell_speed(&report);
    files.write(&report)
}

fn run_example(command: &ExampleCommand) -> Result<()> {
    let (card, example) = (command.card(), command.example()?);
    if card.scenario {
        let none = "send --mode write has no network, and so no scenario".to_owned();
        let text = example.scenario.ok_or_else(|| Failure::error(ExitCode::Usage, none))?;
        return output::write(text.as_bytes());
    }
    let files = Files::open(&card.common)?;
    let progress = Progress::start(card.common.quiet);
    let report = example.run(card.common.seed, threads(), &|share| progress.at(share));
    progress.end();
    let report = report.map_err(|error| anyhow::anyhow!("sim {}: {error}", example.name))?;
    progress.tell_speed(&report.report);
    files.write(&report)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
