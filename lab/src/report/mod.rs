//! Results of `cargo lab bench` as data, tables and a page.
//!
//! Reading order: `data` defines the JSON, `table` and `page` format it, `chart` and `flame` draw.

pub mod chart;
pub mod data;
pub mod flame;
pub mod page;
pub mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use data::{FORMAT, Report};

#[derive(clap::Args)]
pub struct Options {
    /// File written by `cargo lab bench --json FILE`.
    file: PathBuf,
    /// File for the page.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Creates the page of a report.
pub fn run(options: &Options) -> Result<()> {
    let report = read(&options.file).with_context(|| options.file.display().to_string())?;
    write_page(&report, &options.output)
}

pub fn write_page(report: &Report, file: &Path) -> Result<()> {
    std::fs::write(file, page::of(report)).with_context(|| file.display().to_string())
}

fn read(file: &Path) -> Result<Report> {
    parse(&std::fs::read_to_string(file)?)
}

fn parse(text: &str) -> Result<Report> {
    let any: serde_json::Value = serde_json::from_str(text)?;
    let format = any["format"].as_u64().context("it is not a report of the bench")?;
    ensure!(format == u64::from(FORMAT), "format {format}; this program reads {FORMAT}");
    Ok(serde_json::from_value(any)?)
}

#[cfg(test)]
mod tests {
    use super::data::{Entry, Flame, Machine, Measured, Measurement, Outcome, Ratio};
    use super::*;
    use crate::figures::{Interval, Parts, Sample, Spread};

    /// Returns a case with three rows and three sides, one of which is missing.
    pub fn example() -> Report {
        let row = |which: &str, unit: &str, values: [f64; 2]| Measurement {
            group: "rr".into(),
            case: "1 KiB and back".into(),
            which: which.into(),
            unit: unit.into(),
            is_less_better: unit == "µs",
            seconds: None,
            sides: vec![
                measured("kernel", values, None),
                measured("both & <all>", [12.5, 13.5], Some("kernel")),
                Entry { side: "netpoll".into(), outcome: Outcome::Missing("it has no UDP".into()) },
            ],
        };
        Report {
            format: FORMAT,
            date: "2026-11-23".into(),
            machine: Machine {
                cpu: "A & B".into(),
                cores: 2,
                kernel: "6.18".into(),
                memory_bytes: 1 << 32,
            },
            versions: [("wrk".to_owned(), "4.1.0".to_owned())].into(),
            seconds: 1,
            repeat: 2,
            missing: [("netpoll".to_owned(), "it has no UDP".to_owned())].into(),
            measurements: vec![
                row("", "requests/s", [1000., 1100.]),
                row(", p50", "µs", [10., 11.]),
                row(", p99", "µs", [90., 110.]),
            ],
            flames: vec![Flame {
                case: "1 KiB and back".into(),
                side: "kernel".into(),
                hz: 499,
                stacks: [("client;main;send<T>_[k]".to_owned(), 7)].into(),
            }],
        }
    }

    fn measured(side: &str, values: [f64; 2], to: Option<&str>) -> Entry {
        let parts = Some(Parts { client: 0.5, program: 0.25, engine: 0.25 });
        let samples = values.map(|value| Sample { value, cores: 1.5, parts }).to_vec();
        let interval = Interval { median: 1., low: 0.5, high: 2. };
        let ratio = to.map(|to| Ratio { to: to.to_owned(), interval });
        let spread = Some(Spread(vec![(0., 8.), (0.5, values[0]), (0.99, 90.), (1., 2000.)]));
        let measured = Measured { spread, ..Measured::of(samples, ratio) };
        Entry { side: side.to_owned(), outcome: Outcome::Measured(measured) }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let report = example();
        let text = serde_json::to_string_pretty(&report).unwrap();
        assert_eq!(parse(&text).unwrap(), report);
    }

    #[test]
    fn a_row_with_seconds_of_its_own_has_them_and_one_without_does_not() {
        let mut report = example();
        report.measurements.truncate(1);
        let text = |report: &Report| serde_json::to_string(report).unwrap();
        assert_eq!(text(&report).matches("seconds").count(), 1);
        report.measurements[0].seconds = Some(8);
        assert_eq!(parse(&text(&report)).unwrap(), report);
        assert!(page::of(&report).contains("1 KiB and back (8 s each)"));
    }

    #[test]
    fn another_format_or_file_is_refused() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert!(error("{\"format\": 99}").contains("99"));
        assert!(error("{}").contains("report"));
        assert!(parse("").is_err() && parse("{\"format\": 1}").is_err());
    }

    #[test]
    fn tables_say_what_is_missing_and_whose_the_processors_were() {
        let report = example();
        let columns =
            [("kernel".to_owned(), false), ("both".to_owned(), true), ("netpoll".to_owned(), true)];
        let head = table::head(&columns);
        let row = table::row(&report.measurements[0], &columns);
        let columns_of = |line: &str| line.matches('|').count();
        assert_eq!(columns_of(&row), columns_of(head.lines().next().unwrap()), "{head}\n{row}");
        assert!(row.contains("| missing | missing |") && row.contains("1.00 (0.50 to 2.00)"));
        let processors = table::processors(&report);
        assert!(processors.contains("| kernel | 0.50 | 0.25 | 0.25 | 1.50 |"), "{processors}");
        // Two lines of heading, and one per measured side.
        assert_eq!(processors.lines().count(), 4);
        assert_eq!(table::missing(&report), ["netpoll: it has no UDP"]);
    }
}
