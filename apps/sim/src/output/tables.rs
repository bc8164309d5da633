//! Formats a report as text tables for a terminal.

use std::fmt::Write as _;

use crate::result::{
    DeviceResult, FlowResult, LinkResult, RealtimeResult, Report, RunResult, TimeDistribution,
};
use crate::units::{bits_per_second, seconds, short};

/// Maximum number of flows or links in the list of a run. A further line contains the number of
/// omitted ones.
const ROWS_MAX: usize = 24;

/// Formats a report as text tables.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    // Ignore the result: writing to a String cannot fail.
    let _ = writeln!(out, "{}\n", report.title);
    for run in &report.runs {
        let seed = format!("seed {}", run.seed);
        let name = if run.variant.is_empty() { seed } else { format!("{}, {seed}", run.variant) };
        let time = if run.realtime.is_some() { "real" } else { "virtual" };
        let _ = writeln!(out, "{name}: {} in {time} time", seconds(report.duration_s));
        flows(&mut out, run);
        links(&mut out, run);
        done(&mut out, run);
        if let Some(fairness) = run.fairness {
            let _ = writeln!(out, "  fairness of the bulk flows (Jain): {fairness:.3}");
        }
        if let Some(realtime) = &run.realtime {
            out.push_str(&lag(realtime));
        }
        out.push('\n');
    }
    for summary in &report.summaries {
        let comma = if summary.variant.is_empty() { "" } else { ", " };
        let (name, runs) = (&summary.variant, summary.runs);
        let _ = writeln!(out, "{name}{comma}{runs} runs: mean, and half of its 95 % confidence");
        let rows = summary.figures.iter().map(|figure| {
            let value = value(figure.figure, figure.mean);
            let ci = value_of_interval(figure.figure, figure.ci95);
            vec![figure.of.clone(), figure.figure.to_owned(), value, format!("+-{ci}")]
        });
        columns(&mut out, &["of", "figure", "mean", "95 %"], rows.collect());
        out.push('\n');
    }
    if let Some(note) = same(report) {
        let _ = writeln!(out, "{note}\n");
    }
    out
}

/// Formats the lags of a run in real time: quantiles, a histogram, and the verdict.
pub(crate) fn lag(realtime: &RealtimeResult) -> String {
    let RealtimeResult { lag, histogram, max_lag_s, late, is_valid } = realtime;
    let mut out = format!(
        "  events behind the clock: p50 {}, p95 {}, p99 {}, at most {}, of {} events\n",
        seconds(lag.p50_s),
        seconds(lag.p95_s),
        seconds(lag.p99_s),
        seconds(lag.max_s),
        lag.count
    );
    let bars = histogram.iter().filter(|bucket| bucket.events > 0).map(|bucket| {
        let share = bucket.events as f64 * 100. / lag.count.max(1) as f64;
        let up_to = bucket.up_to_s.map_or("more".into(), |bound| format!("to {}", seconds(bound)));
        format!("{up_to} {share:.2} %")
    });
    let bars: Vec<String> = bars.collect();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "    {}", bars.join(", "));
    if !is_valid {
        let limit = seconds(*max_lag_s);
        let _ = writeln!(
            out,
            "  INVALID: {late} events were more than {limit} late, the limit of --max-lag"
        );
    }
    out
}

/// Returns a note if all seeds gave the same figures, to prevent a misinterpretation of an interval
/// of 0. `None` if figures differ.
pub(super) fn same(report: &Report) -> Option<String> {
    let same = report.summaries.iter().filter(|summary| summary.is_same).count();
    if same == 0 {
        return None;
    }
    let of = match report.summaries.len() {
        all if same == all => "All seeds gave".to_owned(),
        all => format!("All seeds of {same} of {all} variants gave"),
    };
    Some(format!(
        "{of} the same figures, because nothing in the scenario is random. The confidence \
         intervals mean nothing then. Draw start times from a range, as `start = [\"0s\", \
         \"1s\"]`, or give a link `jitter` or `loss`."
    ))
}

fn value(figure: &str, value: f64) -> String {
    match figure {
        name if name.ends_with("_bps") => bits_per_second(value),
        name if name.ends_with("_s") => seconds(value),
        _ => short(value),
    }
}

fn value_of_interval(figure: &str, width: f64) -> String {
    value(figure, width)
}

fn flows(out: &mut String, run: &RunResult) {
    let head =
        ["flow", "kind", "way", "goodput", "done in", "latency p50", "p95", "missing", "resent"];
    let rows = run.flows.iter().take(ROWS_MAX).map(flow_row).collect();
    columns(out, &head, rows);
    more(out, run.flows.len(), "flows");
}

fn flow_row(flow: &FlowResult) -> Vec<String> {
    let time = |of: fn(&TimeDistribution) -> f64| {
        flow.latency.as_ref().map_or(String::new(), |t| seconds(of(t)))
    };
    let kind = match flow.congestion {
        Some(congestion) => format!("{} {congestion}", flow.kind),
        None => flow.kind.to_owned(),
    };
    let lost = match flow.kind {
        "cbr" if flow.is_to_real => String::new(),
        "cbr" | "ping" => format!("{}/{}", flow.sent.saturating_sub(flow.received), flow.sent),
        _ => String::new(),
    };
    let goodput = match &flow.failure {
        Some(failure) => format!("failed: {failure}"),
        None if flow.kind == "ping" => String::new(),
        None => bits_per_second(flow.goodput_bps),
    };
    vec![
        flow.name.clone(),
        kind,
        format!("{}>{}", flow.from, flow.to),
        goodput,
        flow.completion_s.map_or(String::new(), seconds),
        time(|times| times.p50_s),
        time(|times| times.p95_s),
        lost,
        flow.retransmitted_bytes
            .map_or(String::new(), |bytes| format!("{} kB", bytes.div_ceil(1000))),
    ]
}

fn links(out: &mut String, run: &RunResult) {
    let all: Vec<&LinkResult> = run.links.iter().filter(|link| is_busy(link)).collect();
    let head = [
        "link",
        "way",
        "qdisc",
        "used",
        "sojourn p50",
        "p95",
        "max",
        "dropped",
        "lost",
        "in device",
    ];
    let rows = all.iter().take(ROWS_MAX).map(|link| {
        vec![
            link.name.clone(),
            format!("{}>{}", link.from, link.to),
            link.qdisc.clone(),
            link.utilization.map_or(String::new(), |share| format!("{:.0} %", share * 100.)),
            seconds(link.sojourn.p50_s),
            seconds(link.sojourn.p95_s),
            seconds(link.sojourn.max_s),
            link.queue_dropped.to_string(),
            link.lost.to_string(),
            link.device.as_ref().map_or(String::new(), in_device),
        ]
    });
    columns(out, &head, rows.collect());
    more(out, all.len(), "links");
}

/// Formats the mean number of bytes in the device's ring, and the kind of limit that applies.
fn in_device(device: &DeviceResult) -> String {
    let limits = if device.bql { "bql" } else { "ring" };
    format!("{} kB, {limits}", short(device.inflight_mean() / 1e3))
}

/// Returns whether a link's direction is listed: over 10 % utilization, drops, losses, a queue, or
/// packets that a real device has sent.
fn is_busy(link: &LinkResult) -> bool {
    let is_used = link.utilization.is_some_and(|share| share > 0.1);
    let is_exit = link.rate_bps.is_none() && link.device.as_ref().is_some_and(|it| it.sent > 0);
    is_used || is_exit || link.queue_dropped + link.lost > 0 || link.sojourn.max_s > 1e-3
}

/// Writes the number of finite flows that have completed, and the time at which the last one
/// completed.
fn done(out: &mut String, run: &RunResult) {
    let times: Vec<f64> = run.flows.iter().filter_map(|flow| flow.completion_s).collect();
    let last = times.iter().copied().fold(0., f64::max);
    if times.len() > 1 {
        let _ =
            writeln!(out, "  {} transfers are done, the last after {}", times.len(), seconds(last));
    }
}

fn more(out: &mut String, count: usize, what: &str) {
    if count > ROWS_MAX {
        let _ = writeln!(out, "  and {} more {what}, which --output has", count - ROWS_MAX);
    }
}

/// Writes rows in aligned columns. Omits columns without any entry.
pub(crate) fn columns(out: &mut String, head: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let shown: Vec<(usize, usize)> = (0..head.len())
        .filter(|at| width(*at) > 0)
        .map(|at| (at, width(at).max(head[at].len())))
        .collect();
    let mut line = |cells: &dyn Fn(usize) -> String| {
        let padded = shown.iter().map(|(at, width)| format!("{:width$}", cells(*at)));
        let text = padded.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "  {}", text.trim_end());
    };
    line(&|at| head[at].to_owned());
    rows.iter().for_each(|row| line(&|at| row[at].clone()));
}
