//! Implements `towpath load`, the command line of the load tester.
//!
//! `args` converts options to plans. `session` runs the plans, with progress (`live`) and Ctrl-C
//! (`interrupt`). `place` runs the tester on a Towpath stack. `sinks` writes the results, which
//! [`towpath_load::results`] computes and formats.

mod args;
mod interrupt;
mod live;
mod place;
mod session;
mod sinks;

use anyhow::{Context, Result};
use towpath_load::results::figures;
use towpath_load::results::machine::MachineFacts;
use towpath_load::results::outcome::{Assertion, Document, Labelled, Outcome};
use towpath_model::printable;

use crate::error::ExitCode;
use crate::messages::{self, Messages};
use crate::screen::{Screen, ScreenStream};

pub use args::LoadArgs;
use interrupt::Interrupt;
use live::Live;
use session::Session;
use sinks::Sinks;

/// Runs the command `towpath load`, and returns its exit code.
pub fn load(args: &LoadArgs) -> Result<u8> {
    let on = args.inside.as_ref().unwrap_or(&args.on);
    let targets = session::targets(args, on)?;
    if place::is_elsewhere(args) {
        return place::restart(args);
    }
    let sinks = Sinks::open(args.outputs()?)?;
    let screen = Screen::new(ScreenStream::Stderr);
    let interrupt = Interrupt::start(&screen)?;
    let messages = Messages::start(false).context("a thread for messages")?;
    let live = Live::new(args.live(), &screen, &messages);
    let mut session = Session::new(args, &interrupt, live);
    let outcome = session.outcome(targets);
    screen.leave();
    let outcome = outcome?;
    let assertions = match &outcome {
        Outcome::Run { run } => args.assert.iter().map(|goal| Assertion::of(goal, run)).collect(),
        _ => Vec::new(),
    };
    let document = Document {
        version: env!("TOWPATH_VERSION"),
        argv: place::argv(),
        on: on.word(),
        machine: MachineFacts::here(),
        outcome,
        assertions,
    };
    messages.finish(|| true);
    sinks.write(&document)?;
    Ok(verdict(&document))
}

/// Returns the exit code for the results. If it is not 0, prints a line for each reason.
fn verdict(document: &Document) -> u8 {
    for run in document.outcome.runs() {
        if let Some(mark) = &run.report.fell_behind {
            let share = figures::percent(mark.late_share);
            let late = figures::time(mark.lateness_max);
            messages::error(&format!(
                "the tester fell behind its schedule: {share} of the requests left late, \
                 by up to {late}"
            ));
            break;
        }
    }
    if let Outcome::Run { run } = &document.outcome
        && figures::unsent_share(run) > figures::UNSENT_NOTED
    {
        messages::error(&format!(
            "{} of {} due requests never left",
            run.generator.unsent, run.scheduled
        ));
    }
    if !document.outcome.has_answers() {
        messages::error(&no_answer(document));
        return ExitCode::NoAnswer as u8;
    }
    if let Outcome::Comparison { comparison } = &document.outcome
        && let Some(Labelled { label, round, report }) = comparison.dead_round()
    {
        let name = &report.plan.target.name;
        messages::error(&format!("{label} ({name}) had no answer in round {round}"));
        return ExitCode::NoAnswer as u8;
    }
    if let Outcome::Search { search } = &document.outcome
        && search.is_tester_limit()
    {
        messages::error("the tester fell behind before the server did: the rate is the tester's");
        return ExitCode::TesterBehind as u8;
    }
    let mut code = 0;
    for it in document.assertions.iter().filter(|it| !it.holds) {
        messages::error(&format!("--assert {}: the figure is {}", it.bound, it.found));
        code = ExitCode::BoundMissed as u8;
    }
    code
}

/// Describes the first failure for the user, with advice.
fn no_answer(document: &Document) -> String {
    let runs = document.outcome.runs();
    let Some(run) = runs.first() else {
        return "the command was stopped before a run ended".to_owned();
    };
    let what = if run.report.connect.is_empty() && run.report.connected == 0 {
        "no user had a connection to"
    } else {
        "no request was answered by"
    };
    let name = &run.report.plan.target.name;
    match run.report.failures.iter().max_by_key(|it| it.count) {
        Some(most) => format!(
            "{what} {name}: {}: {}",
            printable(&most.example),
            figures::explanation(most.kind)
        ),
        None => format!("{what} {name}: the run ended before"),
    }
}
