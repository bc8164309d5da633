//! Executes the load test runs of a command one after the other.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use towpath_load::results::compare::{ComparedFigure, Comparison};
use towpath_load::results::figures;
use towpath_load::results::outcome::{Outcome, has_answers};
use towpath_load::results::search::{self, Missed, Search, Step};
use towpath_load::results::values::{Limit, Place};
use towpath_load::{Error, HttpUrl, Plan, Report, Target, run};

use super::args::{LoadArgs, usage};
use super::interrupt::Interrupt;
use super::live::{Heading, Live};
use crate::error::{ExitCode, Failure};

/// Options of the command, and the display of its progress.
pub struct Session<'a> {
    args: &'a LoadArgs,
    interrupt: &'a Interrupt,
    live: Live,
}

/// Plans for the servers that a command measures.
pub enum Targets {
    /// The server of `--host`.
    One(Box<Plan>),
    /// The two servers of `--compare`.
    Two(Box<[Plan; 2]>),
}

/// Resolves the server names to addresses, and validates the options.
///
/// # Errors
/// Fails if a name has no address, or if options are inconsistent.
pub fn targets(args: &LoadArgs, on: &Place) -> Result<Targets> {
    let plan = |name: &str| {
        let url = HttpUrl::parse(name).map_err(|error| usage(error.to_string()))?;
        let server = url.as_ref().map_or(name, |it| &it.server);
        let mut target = target(server, on)?;
        name.clone_into(&mut target.name);
        args.plan(target, url)
    };
    match &args.compare[..] {
        [a, b] => Ok(Targets::Two(Box::new([plan(a)?, plan(b)?]))),
        _ => {
            let mut plan = plan(args.url()?)?;
            if args.search.is_some() {
                plan.arrivals = args.open(args.rate.unwrap_or(search::START));
                plan.check().map_err(|error| usage(format!("--search: {error}")))?;
            }
            Ok(Targets::One(Box::new(plan)))
        }
    }
}

/// Resolves a server name to addresses that can be reached from the stack on which the tester runs.
fn target(name: &str, on: &Place) -> Result<Target> {
    let mut target = Target::resolve(name).map_err(|error| usage(error.to_string()))?;
    if target.addresses.iter().any(|address| address.port() == 0) {
        return Err(usage(format!("\"{name}\" has port 0: expected one from 1 to 65535")));
    }
    match on {
        Place::Kernel => {}
        Place::Rootless => target.addresses.iter_mut().for_each(through_gateway),
        Place::Tap(_) => {
            if let Some(address) = target.addresses.iter().find(|it| it.ip().is_loopback()) {
                return Err(usage(format!(
                    "{address} is the loopback of the tester's own stack with --on tap: let the \
                     server listen on 0.0.0.0, and give this machine's address on the device, \
                     10.77.0.1:{} unless that network is taken",
                    address.port()
                )));
            }
        }
    }
    Ok(target)
}

/// Replaces a loopback address by the gateway's address, through which the stack reaches services
/// on this machine.
fn through_gateway(address: &mut SocketAddr) {
    if address.ip().is_loopback() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => IpAddr::from([10, 0, 2, 2]),
            IpAddr::V6(_) => IpAddr::from([0xfd00, 2, 0, 0, 0, 0, 0, 2]),
        });
    }
}

impl<'a> Session<'a> {
    /// Creates a session.
    pub fn new(args: &'a LoadArgs, interrupt: &'a Interrupt, live: Live) -> Self {
        Self { args, interrupt, live }
    }

    /// Executes all runs of the command.
    ///
    /// # Errors
    /// Fails if a run could not begin.
    pub fn outcome(&mut self, targets: Targets) -> Result<Outcome> {
        match (targets, &self.args.search) {
            (Targets::Two(plans), _) => {
                Ok(Outcome::Comparison { comparison: self.compare(*plans)? })
            }
            (Targets::One(plan), Some(limit)) => {
                Ok(Outcome::Search { search: self.search(*plan, limit)? })
            }
            (Targets::One(plan), None) => {
                Ok(Outcome::Run { run: Box::new(self.run(&plan, String::new())?) })
            }
        }
    }

    fn run(&mut self, plan: &Plan, step: String) -> Result<Report> {
        let Self { interrupt, live, .. } = self;
        live.begin(Heading::of(plan, step), plan);
        let report = run(plan, interrupt.stop(), &mut |now| live.show(now));
        report.map_err(|error| match error {
            Error::Plan(_) | Error::Resolve { .. } => usage(error.to_string()),
            error => Failure::error(ExitCode::Failed, error.to_string()),
        })
    }

    /// Measures the servers A and B alternately. If the user interrupts a run, its result is
    /// discarded.
    fn compare(&mut self, mut plans: [Plan; 2]) -> Result<Comparison> {
        let rounds = self.args.rounds;
        let mut runs = [Vec::new(), Vec::new()];
        'rounds: for round in 1..=rounds {
            for (side, name) in ["A", "B"].into_iter().enumerate() {
                let plan = &mut plans[side];
                // Use the same seed for both servers of a round, and a different one for each
                // round.
                plan.seed = self.args.seed.wrapping_add(round.into());
                let report =
                    self.run(&plans[side], format!("{name}, round {round} of {rounds}"))?;
                if self.interrupt.is_stopped() {
                    break 'rounds;
                }
                self.live.tell(&format!("{name}, round {round}: {}", line(&report)));
                runs[side].push(report);
            }
        }
        // Discard an incomplete round. Otherwise A would have one run more than B.
        let both = runs[1].len();
        runs[0].truncate(both);
        let names = plans.map(|plan| plan.target.name);
        Ok(Comparison::new(names, runs))
    }

    fn search(&mut self, mut plan: Plan, limit: &Limit) -> Result<Search> {
        let mut search = Search::new(limit);
        let start = self.args.rate.unwrap_or(search::START);
        while let Some(rate) = search.next(start) {
            plan.arrivals = self.args.open(rate);
            let words = format!("step {}: {}", search.steps.len() + 1, figures::rate(rate));
            let mut step = Step::new(rate, limit, self.run(&plan, words.clone())?);
            self.live.tell(&step.line());
            if step.missed == Some(Missed::TesterBehind) {
                // Repeat a failed step once, because another program may have delayed the tester.
                step = Step::new(rate, limit, self.run(&plan, format!("{words}, again"))?);
                self.live.tell(&step.line());
            }
            let is_dead = !has_answers(&step.report);
            search.push(step);
            if self.interrupt.is_stopped() || is_dead {
                break;
            }
        }
        Ok(search)
    }
}

/// Formats the main results of one of several runs as a line.
fn line(report: &Report) -> String {
    let kinds = if report.plan.shape.is_stream() {
        &[ComparedFigure::Bits][..]
    } else {
        &[ComparedFigure::Rate, ComparedFigure::P50, ComparedFigure::P99]
    };
    let one = |kind: &ComparedFigure| {
        let name = if kind.is_more_better() { "" } else { kind.name() };
        format!("{name} {}", kind.text(kind.of(report))).trim_start().to_owned()
    };
    let mut text = kinds.iter().map(one).collect::<Vec<_>>().join(", ");
    if !report.failures.is_empty() {
        text.push_str(&format!(", {} failed", report.failures.total()));
    }
    text
}

#[cfg(test)]
mod tests {
    use towpath_load::results::samples;

    use super::*;

    #[test]
    fn loopback_is_behind_the_gateway_where_the_tester_is_rootless() {
        let addresses = |name, on: Place| {
            let target = target(name, &on).expect("it has an address");
            target.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(addresses("127.0.0.1:7", Place::Kernel), ["127.0.0.1:7"]);
        assert_eq!(addresses("127.0.0.1:7", Place::Rootless), ["10.0.2.2:7"]);
        assert_eq!(addresses("[::1]:7", Place::Rootless), ["[fd00:2::2]:7"]);
        assert_eq!(addresses("192.0.2.1:7", Place::Rootless), ["192.0.2.1:7"]);
        assert_eq!(addresses("10.77.0.1:7", Place::Tap(None)), ["10.77.0.1:7"]);
        let error = target("127.0.0.1:7", &Place::Tap(None)).expect_err("the stack's own");
        assert!(error.to_string().contains("10.77.0.1:7"), "{error}");
    }

    #[test]
    fn servers_without_a_port_are_refused() {
        for name in ["localhost", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", "", ":7x"] {
            let error = target(name, &Place::Kernel).expect_err(name);
            assert_eq!(crate::error::exit_code(&error), 2, "{name}");
            assert!(error.to_string().contains(&format!("\"{name}\"")), "{error}");
        }
    }

    #[test]
    fn a_run_among_several_is_told_in_a_line() {
        let report = samples::report();
        assert_eq!(line(&report), "1000/s, p50 541µs, p99 982µs, 3 failed");
    }
}
