//! Compares sides with the kernel, case by case: the table and the report.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cases::{Case, Reading};
use super::peers::{self, Peer};
use super::sides::Side;
use super::{Built, Options, Outcome, Taken, idle, idlers, is_of, rounds, versions};
use crate::figures::{Interval, Spread};
use crate::report::data::{self, Entry, FORMAT, Flame, Measured, Measurement, Ratio, Report};
use crate::report::table;

/// Sides of a comparison.
struct Field<'a> {
    options: &'a Options,
    built: &'a Built,
    /// Sides in the order of the columns, including those with which others are compared.
    sides: Vec<Side>,
    peers: BTreeMap<Peer, PathBuf>,
    /// Sides that cannot take part, with the reason.
    missing: BTreeMap<Side, String>,
}

/// Measures all cases, prints the tables, and writes the report if requested.
pub fn run(root: &Path, target: &Path, built: &Built, options: &Options) -> Result<()> {
    let field = Field::new(root, target, built, options)?;
    let mut report = field.report(root)?;
    let columns: Vec<(String, bool)> =
        field.sides.iter().map(|side| (side.to_string(), side.baseline().is_some())).collect();
    println!("{}", table::head(&columns));
    let mut failed = 0;
    for case in options.cases() {
        let (measurements, flames, failures) = field.measure(case)?;
        measurements.iter().for_each(|it| println!("{}", table::row(it, &columns)));
        report.measurements.extend(measurements);
        report.flames.extend(flames);
        failed += failures;
        // Write the report after each case, so that an interruption loses no measurement.
        write(&report, options)?;
    }
    println!("\n{}", table::processors(&report));
    table::missing(&report).iter().for_each(|line| println!("missing: {line}"));
    let are_missing: Vec<_> = field.missing.keys().copied().collect();
    for hosting in idlers(options) {
        if !are_missing.iter().any(|side| is_of(side, &[hosting])) {
            idle(&built.towpath, hosting)?;
        }
    }
    ensure!(
        failed == 0,
        "{failed} measurements of the kernel or of towpath failed; see what is missing"
    );
    Ok(())
}

fn write(report: &Report, options: &Options) -> Result<()> {
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(report)?;
        std::fs::write(file, text + "\n").with_context(|| file.display().to_string())?;
    }
    if let Some(file) = &options.html {
        crate::report::write_page(report, file)?;
    }
    Ok(())
}

impl<'a> Field<'a> {
    fn new(root: &Path, target: &Path, built: &'a Built, options: &'a Options) -> Result<Self> {
        let mut missing = BTreeMap::new();
        for side in options.sides() {
            let Side::Ours(hosting, _) = side else { continue };
            if !hosting.is_offered(&built.towpath)? {
                let flags = hosting.flags().join(" ");
                missing.insert(side, format!("this towpath has no `run {flags}`"));
            }
        }
        let mut programs = BTreeMap::new();
        let peers = peers::named(&options.peers)?;
        for &peer in &peers {
            match peer.build(root, target) {
                Ok(program) => drop(programs.insert(peer, program)),
                Err(error) => drop(missing.insert(Side::Peer(peer), format!("{error:#}"))),
            }
        }
        let others = || options.sides().chain(peers.iter().copied().map(Side::Peer));
        let baselines = [Side::Kernel, Side::KernelLoopback];
        let used = |it: &Side| others().any(|side| side.baseline() == Some(*it));
        let sides = baselines.into_iter().filter(used).chain(others()).collect();
        Ok(Self { options, built, sides, peers: programs, missing })
    }

    /// Creates the report without measurements.
    fn report(&self, root: &Path) -> Result<Report> {
        let mut versions = versions::programs(&self.built.towpath);
        versions.extend(self.peers.keys().flat_map(|peer| peer.versions(root)));
        let missing = self.missing.iter().map(|(side, why)| (side.to_string(), why.clone()));
        Ok(Report {
            format: FORMAT,
            date: versions::today()?,
            machine: versions::machine()?,
            versions,
            seconds: self.seconds(),
            repeat: self.options.repeat.max(1),
            missing: missing.collect(),
            measurements: Vec::new(),
            flames: Vec::new(),
        })
    }

    /// Measures a case. Returns its rows, its flame graphs, and the number of failed sides other
    /// than peers.
    fn measure(&self, case: &Case) -> Result<(Vec<Measurement>, Vec<Flame>, usize)> {
        let mut outcomes: BTreeMap<Side, Outcome> = self
            .sides
            .iter()
            .filter_map(|&side| Some((side, Err(self.absence(side, case)?))))
            .collect();
        let there: Vec<(Side, &Path)> = self
            .sides
            .iter()
            .filter(|side| !outcomes.contains_key(side))
            .map(|&side| (side, self.program(side)))
            .collect();
        let measured = rounds(case, &there, self.built, self.options)?;
        let has_failed = |(&(side, _), outcome): (&(Side, &Path), &Outcome)| {
            outcome.is_err() && !matches!(side, Side::Peer(_))
        };
        let failed = there.iter().zip(&measured).filter(|&it| has_failed(it)).count();
        outcomes.extend(there.iter().map(|&(side, _)| side).zip(measured));
        let rows = (0..case.readings.len()).map(|n| self.row(case, n, &outcomes)).collect();
        let mut flames = Vec::new();
        if self.options.flame {
            let works = |&(side, _): &(Side, &Path)| outcomes[&side].is_ok();
            let there: Vec<_> = there.iter().copied().filter(works).collect();
            flames = super::flames(case, &there, self.built, self.options)?;
        }
        Ok((rows, flames, failed))
    }

    /// Returns the duration in seconds of most clients' runs.
    fn seconds(&self) -> u32 {
        let seconds = self.options.cases().map(|case| self.options.seconds(case));
        seconds.min().unwrap_or_default()
    }

    /// Returns the reason why a side cannot take part in a case.
    fn absence(&self, side: Side, case: &Case) -> Option<String> {
        self.missing.get(&side).cloned().or(side.lacks(case).map(str::to_owned))
    }

    fn program(&self, side: Side) -> &Path {
        match side {
            Side::Peer(peer) => &self.peers[&peer],
            _ => &self.built.towpath,
        }
    }

    fn row(&self, case: &Case, n: usize, outcomes: &BTreeMap<Side, Outcome>) -> Measurement {
        let reading = &case.readings[n];
        let entry = |&side: &Side| {
            let outcome = match &outcomes[&side] {
                Err(why) => data::Outcome::Missing(why.clone()),
                Ok(taken) => {
                    let samples = |taken: &Taken| taken.samples[n].clone();
                    let baseline = side.baseline().filter(|it| outcomes[it].is_ok());
                    let ratio = baseline.map(|to| Ratio {
                        to: to.to_string(),
                        interval: Interval::of_ratios(
                            &samples(taken),
                            &samples(outcomes[&to].as_ref().expect("it was filtered")),
                        ),
                    });
                    // Assign the spread to the first row that has times.
                    let times = case.readings.iter().position(Reading::is_less_better);
                    let spread = Spread::of(&taken.spreads).filter(|_| times == Some(n));
                    let measured = Measured::of(samples(taken), ratio);
                    data::Outcome::Measured(Measured { spread, ..measured })
                }
            };
            Entry { side: side.to_string(), outcome }
        };
        Measurement {
            group: case.group.to_string(),
            case: case.name.to_owned(),
            which: reading.which.to_owned(),
            unit: reading.unit.to_owned(),
            is_less_better: reading.is_less_better(),
            seconds: Some(self.options.seconds(case)).filter(|&it| it != self.seconds()),
            sides: self.sides.iter().map(entry).collect(),
        }
    }
}
