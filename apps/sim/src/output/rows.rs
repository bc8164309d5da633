//! Formats a report as CSV with a row per run, and a column per figure of each flow and link.

use std::collections::BTreeMap;

use super::quoted;
use crate::result::{FlowResult, LinkResult, Report, RunResult, TimeDistribution};

/// Formats all figures of all runs as CSV. The header contains the columns of all variants, in the
/// order of their first appearance. A column that a run does not have is empty in its row.
pub fn csv(report: &Report) -> String {
    let rows: Vec<Row> = report.runs.iter().map(row).collect();
    let (mut columns, mut places) = (Vec::new(), BTreeMap::new());
    for (name, _) in rows.iter().flatten() {
        places.entry(name.as_str()).or_insert_with(|| {
            columns.push(name.as_str());
            columns.len() - 1
        });
    }
    let names: Vec<String> = columns.iter().map(|name| quoted(name)).collect();
    let mut out = names.join(",");
    out.push('\n');
    for row in &rows {
        let mut cells = vec![String::new(); columns.len()];
        for (name, value) in row {
            cells[places[name.as_str()]] = quoted(value);
        }
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}

/// Names and values of the columns in the row of a run.
type Row = Vec<(String, String)>;

fn row(run: &RunResult) -> Row {
    let mut row = vec![("variant".to_owned(), run.variant.clone())];
    row.extend(run.set.iter().map(|(path, value)| (path.clone(), value.clone())));
    row.push(("seed".to_owned(), run.seed.to_string()));
    let mut add = |of: &str, figure: &str, value: Option<String>| {
        let name = if of.is_empty() { figure.to_owned() } else { format!("{of} {figure}") };
        row.extend(value.map(|value| (name, value)));
    };
    add("", "events", text(run.events));
    add("", "goodput_bps", text(run.goodput_bps));
    add("", "fairness", run.fairness.and_then(text));
    run.flows.iter().for_each(|flow| of_flow(flow, &mut add));
    run.links.iter().for_each(|link| of_link(link, &mut add));
    row
}

fn text(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn of_flow(flow: &FlowResult, add: &mut impl FnMut(&str, &str, Option<String>)) {
    let mut add = |figure: &str, value: Option<String>| add(&flow.name, figure, value);
    add("start_s", text(flow.start_s));
    add("bytes", text(flow.bytes));
    add("goodput_bps", text(flow.goodput_bps));
    add("completion_s", flow.completion_s.and_then(text));
    add("sent", text(flow.sent));
    add("received", text(flow.received));
    if let Some(times) = &flow.latency {
        of_times("latency", times, &mut add);
    }
    add("retransmitted_bytes", flow.retransmitted_bytes.and_then(text));
    add("failure", flow.failure.clone());
}

fn of_link(link: &LinkResult, add: &mut impl FnMut(&str, &str, Option<String>)) {
    let name = format!("{} {}>{}", link.name, link.from, link.to);
    let mut add = |figure: &str, value: Option<String>| add(&name, figure, value);
    add("rate_bps", link.rate_bps.and_then(text));
    add("qdisc", text(&link.qdisc));
    add("entered", text(link.entered));
    add("delivered", text(link.delivered));
    add("delivered_bytes", text(link.delivered_bytes));
    add("queue_dropped", text(link.queue_dropped));
    add("lost", text(link.lost));
    add("marked", text(link.marked));
    add("utilization", link.utilization.and_then(text));
    of_times("sojourn", &link.sojourn, &mut add);
    if let Some(device) = &link.device {
        add("device_sent", text(device.sent));
        add("device_stops", text(device.stops));
        add("device_wakes", text(device.wakes));
        add("device_limit_stops", text(device.limit_stops));
        add("device_interrupts", text(device.interrupts));
        add("device_inflight_mean_bytes", text(device.inflight_mean()));
    }
}

fn of_times(what: &str, times: &TimeDistribution, add: &mut impl FnMut(&str, Option<String>)) {
    let TimeDistribution { count, mean_s, p50_s, p95_s, p99_s, max_s, distribution: _ } = times;
    add(&format!("{what}_count"), text(count));
    let all = [("mean", mean_s), ("p50", p50_s), ("p95", p95_s), ("p99", p99_s), ("max", max_s)];
    for (share, value) in all {
        add(&format!("{what}_{share}_s"), text(value));
    }
}
