//! Results of the checks, one table row each.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::checks::{Check, Judged};
use crate::gate::pool::Report;
use crate::table::Table;

/// Duration above which a test is listed as slow, so that it can be made faster. Slow tests do not
/// fail.
const SLOW: Duration = Duration::from_secs(10);

/// A run of a check.
pub struct Attempt {
    tests: Vec<One>,
}

/// Result of a test in one run, or of a check that is a single command.
struct One {
    name: String,
    time: Duration,
    failure: Option<String>,
}

impl Attempt {
    pub fn of_tests(report: &Report) -> Self {
        let one = |ran: &crate::gate::pool::Ran| One {
            name: ran.name.clone(),
            time: ran.time,
            failure: ran.failure.as_ref().map(|(end, _)| end.clone()),
        };
        Self { tests: report.ran.iter().map(one).collect() }
    }

    pub fn of_command(name: String, time: Duration, failure: Option<String>) -> Self {
        Self { tests: vec![One { name, time, failure }] }
    }

    pub fn named(mut self, name: &str) -> Self {
        self.tests.iter_mut().for_each(|test| name.clone_into(&mut test.name));
        self
    }
}

/// Results of all runs of a check.
pub struct Row {
    name: &'static str,
    judged: Judged,
    runs: usize,
    time: Duration,
    /// Number of runs, number of failures, and longest duration, by test.
    tests: BTreeMap<String, (usize, usize, Duration)>,
    /// Reason why the check could not run.
    error: Option<String>,
    /// Whether the chore was interrupted before the check had ended.
    is_interrupted: bool,
}

impl Row {
    pub fn of(check: &Check, attempts: Result<Vec<Attempt>>, time: Duration) -> Self {
        let (name, judged) = (check.name, check.judged);
        let mut row = Self {
            name,
            judged,
            runs: 0,
            time,
            tests: BTreeMap::new(),
            error: None,
            is_interrupted: false,
        };
        match attempts {
            Ok(attempts) => row.add(attempts),
            Err(error) => row.error = Some(format!("{error:#}")),
        }
        row
    }

    /// Marks the check as interrupted, so that its results do not count as a failure.
    pub fn interrupted(self) -> Self {
        Self { is_interrupted: true, ..self }
    }

    fn add(&mut self, attempts: Vec<Attempt>) {
        self.runs = attempts.len();
        for test in attempts.into_iter().flat_map(|attempt| attempt.tests) {
            let (runs, failures, longest) = self.tests.entry(test.name).or_default();
            *runs += 1;
            *failures += usize::from(test.failure.is_some());
            *longest = test.time.max(*longest);
        }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns tests that failed at least once, with the numbers of failures and of runs.
    fn failures(&self) -> impl Iterator<Item = (&str, usize, usize)> {
        let failed = self.tests.iter().filter(|(_, (_, failures, _))| *failures > 0);
        failed.map(|(name, (runs, failures, _))| (&**name, *failures, *runs))
    }

    /// Returns whether the check has failed. A check that ran no test counts as failed, because it
    /// has shown nothing.
    pub fn has_failed(&self) -> bool {
        let fails = |failures: usize, runs: usize| match self.judged {
            Judged::ByEach => true,
            Judged::ByMost => 2 * failures > runs,
        };
        self.error.is_some()
            || self.tests.is_empty()
            || self.failures().any(|(_, failures, runs)| fails(failures, runs))
    }

    pub fn verdict(&self) -> &'static str {
        match (self.has_failed(), self.failures().next()) {
            _ if self.is_interrupted => "interrupted",
            (true, _) => "failed",
            (false, Some(_)) => "unsteady",
            (false, None) => "passed",
        }
    }

    /// Returns all tests with their longest times, slowest first.
    fn by_time(&self) -> Vec<(&str, Duration)> {
        let mut all: Vec<_> =
            self.tests.iter().map(|(name, (_, _, longest))| (&**name, *longest)).collect();
        all.sort_by_key(|(_, longest)| std::cmp::Reverse(*longest));
        all
    }

    pub fn json(&self) -> Value {
        let failures: Vec<Value> = self
            .failures()
            .map(|(test, failed, runs)| json!({ "test": test, "failures": failed, "runs": runs }))
            .collect();
        let slowest: Vec<Value> = self
            .by_time()
            .iter()
            .take(5)
            .map(|(test, time)| json!({ "test": test, "seconds": time.as_secs_f64() }))
            .collect();
        json!({
            "check": self.name, "verdict": self.verdict(), "runs": self.runs,
            "tests": self.tests.len(), "seconds": self.time.as_secs_f64(),
            "failures": failures, "slowest": slowest,
            "error": self.error,
        })
    }
}

/// Prints the table, followed by the names of failed and slow tests.
pub fn print(rows: &[Row]) {
    let heads = ["check", "verdict", "runs", "tests", "failed at least once", "seconds", "slowest"];
    let table = Table::new(true, &heads);
    for row in rows {
        let slowest = row
            .by_time()
            .first()
            .map_or(String::new(), |(name, time)| format!("{name} ({:.1} s)", time.as_secs_f32()));
        let seconds = format!("{:.0}", row.time.as_secs_f32());
        let (tests, failed) = (row.tests.len(), row.failures().count());
        table.row(&[&row.name, &row.verdict(), &row.runs, &tests, &failed, &seconds, &slowest]);
    }
    for row in rows {
        if let Some(error) = &row.error {
            println!("\n{}: {error}", row.name);
        }
        for (test, failures, runs) in row.failures() {
            println!("\n{}: {test} failed in {failures} of {runs} runs", row.name);
        }
    }
    let is_slow = |(_, time): &(&str, Duration)| *time >= SLOW;
    let slow: Vec<_> =
        rows.iter().flat_map(|row| row.by_time().into_iter().filter(is_slow)).collect();
    if !slow.is_empty() {
        println!("\nSlow, which is no failure:");
        slow.iter().for_each(|(name, time)| println!("  {:6.1} s  {name}", time.as_secs_f32()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(judged: Judged, failures: [bool; 3]) -> Row {
        let attempt = |failed: bool| Attempt {
            tests: vec![One {
                name: "a".into(),
                time: Duration::from_secs(2),
                failure: failed.then(|| "exit status: 101".into()),
            }],
        };
        let check = Check { name: "c", about: "", judged, work: |_, _| Ok(Vec::new()) };
        Row::of(&check, Ok(failures.map(attempt).into()), Duration::from_secs(6))
    }

    #[test]
    fn timing_tests_fail_by_most_runs_and_others_by_one() {
        assert_eq!(row(Judged::ByMost, [false; 3]).verdict(), "passed");
        assert_eq!(row(Judged::ByMost, [true, false, false]).verdict(), "unsteady");
        assert_eq!(row(Judged::ByMost, [true, false, true]).verdict(), "failed");
        assert_eq!(row(Judged::ByEach, [true, false, false]).verdict(), "failed");
        let stopped = row(Judged::ByEach, [true, false, false]).interrupted();
        assert_eq!(stopped.verdict(), "interrupted");
    }

    #[test]
    fn a_check_that_could_not_run_or_ran_nothing_has_failed() {
        let check =
            Check { name: "c", about: "", judged: Judged::ByMost, work: |_, _| Ok(Vec::new()) };
        assert!(Row::of(&check, Ok(Vec::new()), Duration::ZERO).has_failed());
        let row = Row::of(&check, Err(anyhow::anyhow!("no root")), Duration::ZERO);
        assert!(row.has_failed());
        assert_eq!(row.json()["error"], "no root");
    }

    #[test]
    fn json_tells_failures_and_the_slowest() {
        let json = row(Judged::ByMost, [true, false, false]).json();
        assert_eq!(json["failures"][0], json!({ "test": "a", "failures": 1, "runs": 3 }));
        assert_eq!(json["slowest"][0]["seconds"], 2.0);
        assert_eq!(json["verdict"], "unsteady");
    }
}
