//! Formats a report as a self-contained HTML page.

use std::fmt::Write as _;

use towpath_chart::escaped;

use super::charts;
use super::tables::{lag, same};
use crate::result::{Report, RunResult};
use crate::units::{bits_per_second, seconds};

/// Formats a report as an HTML page.
pub fn html(report: &Report) -> String {
    let title = escaped(&report.title);
    let mut out = String::new();
    // Ignore the result: writing to a String cannot fail.
    let _ = write!(
        out,
        "<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>\
         <meta name=viewport content=\"width=device-width\"><style>{STYLE}</style>\n\
         <h1>{title}</h1>\n"
    );
    for paragraph in report.description.split("\n\n").filter(|text| !text.trim().is_empty()) {
        let _ = writeln!(out, "<p class=text>{}</p>", escaped(paragraph.trim()));
    }
    let drawn = drawn(report);
    let _ = writeln!(
        out,
        "<p class=text>{} of {} time, {}.</p>",
        seconds(report.duration_s),
        if drawn.iter().any(|run| run.realtime.is_some()) { "real" } else { "virtual" },
        match report.runs.len() / drawn.len().max(1) {
            1 => format!("seed {}", drawn.first().map_or(0, |run| run.seed)),
            n => format!("{n} seeds; the charts show the first one"),
        }
    );
    overview(&mut out, report, &drawn);
    if drawn.len() > 1 {
        let all = charts::compared(&drawn);
        figures(&mut out, "Side by side", all.iter().map(|chart| chart.svg()));
    }
    for run in &drawn {
        let name = if run.variant.is_empty() { "Charts" } else { &run.variant };
        figures(&mut out, name, charts::of_run(run).iter().map(|chart| chart.svg()));
        tables(&mut out, run);
        if let Some(realtime) = &run.realtime {
            let _ = writeln!(out, "<pre class=text>{}</pre>", escaped(&lag(realtime)));
        }
    }
    out.push_str("<p class=text><small>Made by <code>towpath sim</code> ");
    out.push_str(report.version);
    out.push_str(".</small></p></html>\n");
    out
}

/// Returns the runs for which charts are drawn: the first seed of each variant.
pub(super) fn drawn(report: &Report) -> Vec<&RunResult> {
    let mut drawn: Vec<&RunResult> = Vec::new();
    for run in &report.runs {
        if drawn.last().is_none_or(|last| last.variant != run.variant) {
            drawn.push(run);
        }
    }
    drawn
}

fn figures(out: &mut String, title: &str, figures: impl Iterator<Item = String>) {
    let _ = writeln!(out, "<h2>{}</h2><div class=charts>", escaped(title));
    figures.for_each(|figure| out.push_str(&figure));
    out.push_str("</div>\n");
}

/// Writes a table. Omits columns that are empty in all rows.
fn table(out: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let rows: Vec<Vec<String>> = rows.collect();
    let is_used = |column: &usize| rows.iter().any(|row| !row[*column].is_empty());
    let columns: Vec<usize> = (0..head.len()).filter(is_used).collect();
    out.push_str("<div class=wide><table><tr>");
    columns.iter().for_each(|column| {
        let _ = write!(out, "<th>{}", head[*column]);
    });
    for row in &rows {
        out.push_str("<tr>");
        columns.iter().for_each(|column| {
            let _ = write!(out, "<td>{}", escaped(&row[*column]));
        });
    }
    out.push_str("</table></div>\n");
}

/// Writes the figures that compare the variants. If there are several seeds, writes confidence
/// intervals.
fn overview(out: &mut String, report: &Report, drawn: &[&RunResult]) {
    if !report.summaries.is_empty() {
        let rows = report.summaries.iter().flat_map(|summary| {
            summary.figures.iter().map(|figure| {
                let show = |value: f64| match figure.figure {
                    name if name.ends_with("_bps") => bits_per_second(value),
                    name if name.ends_with("_s") => seconds(value),
                    _ => crate::units::short(value),
                };
                vec![
                    summary.variant.clone(),
                    figure.of.clone(),
                    figure.figure.to_owned(),
                    show(figure.mean),
                    format!("± {}", show(figure.ci95)),
                ]
            })
        });
        table(out, &["variant", "of", "figure", "mean", "95 %"], rows.take(MEANS_MAX));
        let count = report.summaries.iter().map(|summary| summary.figures.len()).sum();
        more(out, count, MEANS_MAX, "means");
        if let Some(note) = same(report) {
            let _ = writeln!(out, "<p class=text>{}</p>", escaped(&note));
        }
        return;
    }
    if drawn.len() < 2 {
        return;
    }
    let head = [
        "variant",
        "goodput of all",
        "wait in the queue p95",
        "dropped",
        "latency p95",
        "fairness",
    ];
    let rows = drawn.iter().map(|run| {
        let link = charts::bottlenecks(run).first().copied();
        let latency = run.flows.iter().find_map(|flow| flow.latency.as_ref());
        vec![
            run.variant.clone(),
            bits_per_second(run.goodput_bps),
            link.map_or(String::new(), |link| seconds(link.sojourn.p95_s)),
            link.map_or(String::new(), |link| (link.queue_dropped + link.lost).to_string()),
            latency.map_or(String::new(), |times| seconds(times.p95_s)),
            run.fairness.map_or(String::new(), |fairness| format!("{fairness:.3}")),
        ]
    });
    table(out, &head, rows);
}

/// Maximum number of rows in a table of flows or links. A further line contains the number of
/// omitted rows.
const ROWS_MAX: usize = 60;
/// Maximum number of rows in the table of means, which limits the size of the page to some
/// megabytes.
const MEANS_MAX: usize = 20_000;

/// Writes a line with the number of omitted rows, and with the place where they can be found.
fn more(out: &mut String, count: usize, shown: usize, what: &str) {
    if count > shown {
        let _ = writeln!(
            out,
            "<p class=text>And {} more {what}, which <code>-o json=FILE</code> and <code>-o \
             csv=FILE</code> have.</p>",
            count - shown
        );
    }
}

fn tables(out: &mut String, run: &RunResult) {
    let head = ["flow", "kind", "from", "to", "goodput", "done in", "latency p50", "p95", "resent"];
    let rows = run.flows.iter().take(ROWS_MAX).map(|flow| {
        let time = |share: fn(&crate::result::TimeDistribution) -> f64| {
            flow.latency.as_ref().map_or(String::new(), |times| seconds(share(times)))
        };
        vec![
            flow.name.clone(),
            format!("{} {}", flow.kind, flow.congestion.unwrap_or_default()),
            flow.from.clone(),
            flow.to.clone(),
            flow.failure.clone().unwrap_or_else(|| bits_per_second(flow.goodput_bps)),
            flow.completion_s.map_or(String::new(), seconds),
            time(|times| times.p50_s),
            time(|times| times.p95_s),
            flow.retransmitted_bytes.map_or(String::new(), |n| format!("{} kB", n.div_ceil(1000))),
        ]
    });
    table(out, &head, rows);
    more(out, run.flows.len(), ROWS_MAX, "flows");
    let head = ["link", "from", "to", "qdisc", "used", "wait p50", "p95", "max", "dropped", "lost"];
    let used = || run.links.iter().filter(|link| link.rate_bps.is_some() && link.entered > 0);
    let rows = used().take(ROWS_MAX).map(|link| {
        vec![
            link.name.clone(),
            link.from.clone(),
            link.to.clone(),
            link.qdisc.clone(),
            link.utilization.map_or(String::new(), |share| format!("{:.0} %", share * 100.)),
            seconds(link.sojourn.p50_s),
            seconds(link.sojourn.p95_s),
            seconds(link.sojourn.max_s),
            link.queue_dropped.to_string(),
            link.lost.to_string(),
        ]
    });
    table(out, &head, rows);
    more(out, used().count(), ROWS_MAX, "directions of links");
}

const STYLE: &str = "
:root{color-scheme:light dark;font:16px/1.45 system-ui,sans-serif}
body{max-width:86rem;margin:2rem auto;padding:0 1rem}
h1{margin-bottom:.2em}h2{margin:1.6em 0 .4em}
.text{max-width:46rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(28rem,1fr));gap:1rem}
figure{margin:0}figcaption{font-size:.9rem}
svg{width:100%;height:auto}
.grid path{stroke:currentColor;stroke-opacity:.16}
.grid text{font-size:12px;fill:currentColor}
.line{fill:none;stroke-width:1.6}.dots{fill:none;stroke-width:2.6;stroke-linecap:round}
.bars{fill:none;stroke-width:1.8}
.legend{margin:.1em 0 0;font-size:.85rem}
.legend span{margin-right:1em;white-space:nowrap}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0;font-size:.9rem}
th,td{text-align:left;padding:.15em .9em .15em 0;white-space:nowrap}
th{border-bottom:1px solid currentColor}";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchOptions, read, run_all};

    #[test]
    fn the_page_stands_alone_and_has_the_charts() {
        let plans = read(
            r#"
            title = "<b>"
            duration = "4s"
            topology = { kind = "pair", rate = "5mbit", delay = "10ms", qdisc = "pfifo limit 20" }
            [[flow]]
            kind = "bulk"
            from = "a"
            to = "b"
            [[flow]]
            kind = "ping"
            from = "a"
            to = "b"
            [[variant]]
            name = "long"
            set = { "topology.qdisc" = "pfifo limit 100" }
            [[variant]]
            name = "short"
            "#,
        )
        .expect("a scenario");
        let options =
            BatchOptions { seed: None, runs: 1, captures: None, traces: true, threads: 1 };
        let report = run_all(&plans, options, &|_| {}).expect("a run");
        let page = html(&report);
        let wanted = [
            "&lt;b&gt;",
            "Side by side",
            "Wait in the queue",
            "Congestion window",
            "Round trip",
            "around the first retransmission",
            "sent again",
            "Latency of ping2",
        ];
        for words in wanted {
            assert!(page.contains(words), "{words}");
        }
        assert!(page.contains("<th>dropped<th>latency p95<tr>"), "one bulk flow has no fairness");
        assert!(page.contains(env!("CARGO_PKG_VERSION")));
        for foreign in ["http:", "https:", "<script", "NaN", "inf"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }
}
