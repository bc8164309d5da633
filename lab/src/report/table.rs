//! The report as Markdown tables.

use crate::figures::{Interval, Median};

use super::data::{Measured, Measurement, Outcome, Report};

/// Formats the heading. Each of `sides` is a column, with whether it is compared with another side.
pub fn head(sides: &[(String, bool)]) -> String {
    let (mut names, mut line) = ("| measurement | unit |".to_owned(), "|---|---|".to_owned());
    for (side, is_compared) in sides {
        names += &format!(" {side} (cores) |");
        line += "---|";
        if *is_compared {
            names += " ratio |";
            line += "---|";
        }
    }
    format!("{names}\n{line}")
}

/// Formats a row of the table.
pub fn row(measurement: &Measurement, sides: &[(String, bool)]) -> String {
    let mut line = format!("| {} | {} |", measurement.name(), measurement.unit);
    for ((_, is_compared), entry) in sides.iter().zip(&measurement.sides) {
        let (value, ratio) = match &entry.outcome {
            Outcome::Missing(_) => ("missing".to_owned(), "missing".to_owned()),
            Outcome::Measured(measured) => (Median(measured.middle).to_string(), ratio(measured)),
        };
        line += &format!(" {value} |");
        if *is_compared {
            line += &format!(" {ratio} |");
        }
    }
    line
}

fn ratio(measured: &Measured) -> String {
    let interval: Option<&Interval> = measured.ratio.as_ref().map(|ratio| &ratio.interval);
    interval.map_or("missing".to_owned(), Interval::to_string)
}

/// Formats the CPU time by owner for the first row of each case, because all rows are from the same
/// runs.
pub fn processors(report: &Report) -> String {
    let mut text = "| measurement | side | client | program | engine | machine |\n\
                    |---|---|---|---|---|---|\n"
        .to_owned();
    let mut before = "";
    for measurement in &report.measurements {
        if std::mem::replace(&mut before, &measurement.case) == measurement.case {
            continue;
        }
        for entry in &measurement.sides {
            let Outcome::Measured(Measured { middle, .. }) = &entry.outcome else { continue };
            let Some(parts) = middle.parts else { continue };
            text += &format!(
                "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} |\n",
                measurement.case,
                entry.side,
                parts.client,
                parts.program,
                parts.engine,
                middle.cores,
            );
        }
    }
    text
}

/// Returns the reasons why figures are missing, one per line.
pub fn missing(report: &Report) -> Vec<String> {
    let mut all: Vec<String> =
        report.missing.iter().map(|(side, why)| format!("{side}: {why}")).collect();
    for measurement in &report.measurements {
        for entry in &measurement.sides {
            let Outcome::Missing(why) = &entry.outcome else { continue };
            let line = format!("{}, {}: {why}", measurement.case, entry.side);
            if !report.missing.contains_key(&entry.side) && !all.contains(&line) {
                all.push(line);
            }
        }
    }
    all
}
