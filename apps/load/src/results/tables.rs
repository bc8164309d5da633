//! Formats figures for programs, as JSON or CSV.

use std::fmt::Write as _;

use crate::{Arrivals, Histogram};
use serde::Serialize;

use super::figures::{self, QUANTILES};
use super::outcome::{Document, Labelled};
use super::text::quantile;

/// Version of the schema, incremented when a field is removed or changes its meaning.
const SCHEMA: u32 = 1;

/// Formats the whole document as JSON.
pub fn json(document: &Document) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Versioned<'a> {
        schema: u32,
        tool: &'static str,
        #[serde(flatten)]
        document: &'a Document,
    }
    let versioned = Versioned { schema: SCHEMA, tool: "towpath load", document };
    Ok(serde_json::to_string_pretty(&versioned)? + "\n")
}

/// Names of the first columns, which every row has.
const RUN: &str = "label,round,server,protocol,pattern,users,rate_asked";

/// Formats the document as CSV with one row per run.
pub fn csv(document: &Document) -> String {
    let mut text =
        format!("{RUN},duration_s,sent,received,failures,rate,bits_sent_per_s,bits_received_per_s");
    for kind in ["response", "service", "connect"] {
        let _ = write!(text, ",{kind}_mean_us");
        for (name, _) in QUANTILES {
            let _ = write!(text, ",{kind}_{}_us", plain(name));
        }
    }
    text.push_str(",cpu_s,fell_behind,scheduled,unsent,closed_idle\n");
    for run in document.outcome.runs() {
        let report = run.report;
        text.push_str(&front(&run));
        let _ = write!(
            text,
            ",{},{},{},{},{:.3},{:.0},{:.0}",
            report.duration.as_secs_f64(),
            report.sent,
            report.received,
            report.failures.total(),
            report.rate(),
            report.bits_sent(),
            report.bits_received(),
        );
        for times in [&report.response, &report.service, &report.connect] {
            text.push_str(&cells(times));
        }
        let behind = report.fell_behind.is_some();
        let _ = writeln!(
            text,
            ",{},{behind},{},{},{}",
            report.cpu.as_secs_f64(),
            report.scheduled,
            report.generator.unsent,
            report.closed_idle,
        );
    }
    text
}

/// Formats the document as CSV with one row per period of each run.
pub fn series(document: &Document) -> String {
    let mut text = format!(
        "{RUN},at_s,length_s,sent,received,failed,bytes_sent,bytes_received,connected,\
         p50_us,p90_us,p99_us,max_us\n"
    );
    for run in document.outcome.runs() {
        let front = front(&run);
        for it in &run.report.periods {
            let _ = write!(
                text,
                "{front},{},{},{},{},{},{},{},{}",
                it.at.as_secs_f64(),
                it.length.as_secs_f64(),
                it.sent,
                it.received,
                it.failed,
                it.bytes_sent,
                it.bytes_received,
                it.connected,
            );
            for time in [it.p50, it.p90, it.p99, it.max] {
                // Leave the cell empty in a period without an answer.
                let _ = match it.received {
                    0 => write!(text, ","),
                    _ => write!(text, ",{}", micros(time)),
                };
            }
            text.push('\n');
        }
    }
    text
}

fn front(run: &Labelled<'_>) -> String {
    let plan = &run.report.plan;
    let rate = match plan.arrivals {
        Arrivals::Open { per_second, .. } => per_second.to_string(),
        Arrivals::Closed => String::new(),
    };
    format!(
        "{},{},{},{},{},{},{rate}",
        run.label,
        run.round,
        cell(&plan.target.name),
        cell(&figures::protocol(plan)),
        cell(&figures::pattern(plan)),
        plan.users,
    )
}

/// Formats the mean and the percentiles of times. All cells are empty if there are no times.
fn cells(times: &Histogram) -> String {
    if times.is_empty() {
        return ",".repeat(1 + QUANTILES.len());
    }
    let mut text = format!(",{}", micros(times.mean()));
    for (_, share) in QUANTILES {
        let _ = write!(text, ",{}", micros(quantile(times, share)));
    }
    text
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Returns the name of a percentile's column, for example `p99_9`.
fn plain(name: &str) -> String {
    name.replace('.', "_")
}

/// Formats a cell of CSV, and quotes it if RFC 4180 requires this.
fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use crate::Report;

    use super::super::machine::MachineFacts;
    use super::super::outcome::Outcome;
    use super::super::samples::report;
    use super::*;

    fn document(report: Report) -> Document {
        Document {
            version: "1.2",
            argv: vec!["towpath".into(), "load".into()],
            on: "kernel",
            machine: MachineFacts::here(),
            outcome: Outcome::Run { run: Box::new(report) },
            assertions: Vec::new(),
        }
    }

    #[test]
    fn json_has_everything_in_one_document() {
        let text = json(&document(report())).expect("it is serialised");
        let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!((&value["schema"], &value["kind"]), (&1.into(), &"run".into()));
        assert_eq!(value["argv"][1], "load");
        let run = &value["run"];
        assert_eq!((&run["sent"], &run["plan"]["users"]), (&3003.into(), &10.into()));
        assert_eq!(run["failures"][0]["kind"], "reset");
        assert_eq!(run["periods"].as_array().map(Vec::len), Some(3));
        let buckets = run["service"]["buckets"].as_array().expect("buckets");
        let counted: u64 = buckets.iter().filter_map(|bucket| bucket[1].as_u64()).sum();
        assert_eq!(counted, 3000);
    }

    #[test]
    fn rows_have_as_many_cells_as_the_heading() {
        let mut quiet = report();
        quiet.connect = Histogram::new();
        quiet.periods[0].received = 0;
        for document in [document(report()), document(quiet)] {
            for (table, rows) in [(csv(&document), 1), (series(&document), 3)] {
                let mut lines = table.lines().map(|line| line.split(',').count());
                let columns = lines.next().expect("a heading");
                let found: Vec<_> = lines.collect();
                assert_eq!(found, vec![columns; rows], "{table}");
            }
        }
    }

    #[test]
    fn cells_with_commas_are_quoted() {
        assert_eq!(cell("plain"), "plain");
        assert_eq!(cell("GET \"a\",b"), "\"GET \"\"a\"\",b\"");
    }
}
