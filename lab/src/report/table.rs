//! The report as tables of Markdown.

use crate::figures::{Interval, Median};

use super::data::{Measured, Measurement, Outcome, Report};

/// Above the rows: `sides` are the columns, and whether each of them is compared with another.
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

/// A row below it.
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

/// Owners of the CPU time, for the first row of each case: all of them are of the same runs.
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

/// Why figures are missing, a line for each reason.
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
