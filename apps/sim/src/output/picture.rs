//! Formats charts of a report as a single SVG image.

use std::fmt::Write as _;

use towpath_chart::escaped;

use super::charts;
use super::html::drawn;
use super::svg::{Chart, HEIGHT, WIDTH};
use crate::result::Report;

/// Maximum number of charts in an image, in two rows of two charts.
const CHARTS_MAX: usize = 4;
const COLUMNS: usize = 2;
/// Height in pixels of a chart's title with its caption, and height of a row in its legend.
const TITLE: f64 = 44.;
const ROW: f64 = 18.;
const GAP: f64 = 16.;
/// Average width in pixels of a character of 13 px, and width of the colour mark in a legend.
const CHARACTER: f64 = 6.9;
const MARK: f64 = 34.;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#222}\
    .title{font-weight:600;font-size:15px}\
    .grid path{stroke:#000;stroke-opacity:.16}.grid text{font-size:12px}\
    .line{fill:none;stroke-width:1.6}.dots{fill:none;stroke-width:2.6;stroke-linecap:round}\
    .bars{fill:none;stroke-width:1.8}";

/// Draws the charts that compare the variants. For a single run, draws its main charts.
pub fn svg(report: &Report) -> String {
    let runs = drawn(report);
    let charts = match &runs[..] {
        [run] => charts::of_run(run)
            .into_iter()
            .filter(|chart| charts::MAIN.contains(&&*chart.title))
            .collect(),
        _ => charts::compared(&runs),
    };
    let charts: Vec<Chart> = charts.into_iter().filter(Chart::has_points).collect();
    let charts = &charts[..charts.len().min(CHARTS_MAX)];
    let rows: Vec<_> = charts.chunks(COLUMNS).collect();
    let row_height = |row: &[Chart]| {
        let legend = row.iter().map(legend_rows).max().unwrap_or(0) as f64;
        TITLE + HEIGHT + legend * ROW + GAP
    };
    let height: f64 = rows.iter().map(|row| row_height(row)).sum();
    let width = COLUMNS.min(charts.len().max(1)) as f64 * WIDTH;
    let mut out = String::new();
    // Ignore the result: writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\
         <title>{}</title><style>{STYLE}</style>\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>",
        escaped(&report.title)
    );
    let mut top = 0.;
    for row in rows {
        for (column, chart) in row.iter().enumerate() {
            let _ = write!(
                out,
                "<g transform=\"translate({} {top})\"><text class=\"title\" x=\"12\" \
                 y=\"18\">{}</text><text x=\"12\" y=\"36\">{}</text>\
                 <g transform=\"translate(0 {TITLE})\">",
                column as f64 * WIDTH,
                escaped(&chart.title),
                escaped(&chart.caption)
            );
            chart.draw(&mut out);
            out.push_str("</g>");
            legend(&mut out, chart);
            out.push_str("</g>\n");
        }
        top += row_height(row);
    }
    out.push_str("</svg>\n");
    out
}

/// Returns the position of each entry in a chart's legend: its row, and its x coordinate in pixels.
fn places(chart: &Chart) -> Vec<(usize, f64)> {
    let (mut row, mut x) = (0, 12.);
    let names = chart.named();
    names
        .map(|(_, name)| {
            let width = MARK + name.chars().count() as f64 * CHARACTER;
            if x + width > WIDTH && x > 12. {
                (row, x) = (row + 1, 12.);
            }
            let place = (row, x);
            x += width;
            place
        })
        .collect()
}

fn legend_rows(chart: &Chart) -> usize {
    places(chart).last().map_or(0, |(row, _)| row + 1)
}

fn legend(out: &mut String, chart: &Chart) {
    for ((row, x), (colour, name)) in places(chart).into_iter().zip(chart.named()) {
        let y = TITLE + HEIGHT + row as f64 * ROW;
        let _ = write!(
            out,
            "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"10\" height=\"10\" rx=\"2\" \
             fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            x + 15.,
            y + 10.,
            escaped(&name)
        );
    }
}
