//! Formats reports as text, JSON, CSV, HTML or SVG.

mod charts;
mod html;
mod picture;
mod rows;
mod svg;
mod tables;

use std::fmt::Write as _;

pub use html::html;
pub use picture::svg;
pub use rows::csv;
pub use tables::table;
pub(crate) use tables::{columns, lag};

use crate::result::Report;

/// Formats a report as JSON.
pub fn json(report: &Report) -> String {
    // Serialization cannot fail, because the report contains only numbers and strings. Infinite
    // numbers become null.
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}

/// Formats all series of a report as CSV. Each line contains one value with its variant, seed,
/// time, kind, object and name.
pub fn series(report: &Report) -> String {
    let mut out = String::from("variant,seed,time_s,kind,object,figure,value\n");
    for run in &report.runs {
        let mut rows = |kind: &str, object: &str, figure: &str, at: usize, value: String| {
            let (variant, object) = (quoted(&run.variant), quoted(object));
            // Ignore the result: writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{variant},{},{},{kind},{object},{figure},{value}",
                run.seed, run.sample_s[at]
            );
        };
        for flow in &run.flows {
            for at in 0..run.sample_s.len() {
                let series = &flow.series;
                rows("flow", &flow.name, "goodput_bps", at, series.goodput_bps[at].to_string());
                let figures = [
                    ("cwnd_bytes", series.cwnd_bytes[at].map(f64::from)),
                    ("flight_bytes", series.flight_bytes[at].map(f64::from)),
                    ("srtt_s", series.srtt_s[at]),
                ];
                for (figure, value) in figures {
                    if let Some(value) = value {
                        rows("flow", &flow.name, figure, at, value.to_string());
                    }
                }
            }
        }
        for link in &run.links {
            let name = format!("{} {}>{}", link.name, link.from, link.to);
            for at in 0..run.sample_s.len() {
                let series = &link.series;
                let figures = [
                    ("backlog_packets", series.backlog_packets[at] as f64),
                    ("backlog_bytes", series.backlog_bytes[at] as f64),
                    ("sojourn_max_s", series.sojourn_max_s[at]),
                    ("delivered_bps", series.delivered_bps[at]),
                    ("dropped", series.dropped[at] as f64),
                ];
                for (figure, value) in figures {
                    rows("link", &name, figure, at, value.to_string());
                }
                let Some(device) = &link.device else { continue };
                let series = &device.series;
                let figures = [
                    ("sent", Some(series.sent[at])),
                    ("inflight_packets", Some(series.inflight_packets[at])),
                    ("inflight_bytes", Some(series.inflight_bytes[at])),
                    ("limit_bytes", series.limit_bytes[at]),
                    ("slack_bytes", series.slack_bytes[at]),
                ];
                for (figure, value) in figures {
                    if let Some(value) = value {
                        rows("device", &name, figure, at, value.to_string());
                    }
                }
            }
        }
    }
    out
}

/// Quotes a field of a CSV file if necessary (RFC 4180 section 2).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
