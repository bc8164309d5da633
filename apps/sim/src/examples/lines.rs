//! Formats an example's report as text: lines in order of time, followed by the latencies.

use std::fmt::Write as _;

use super::load::{NO_QDISC, SAMPLES_OF_LINE};
use super::report::ExampleReport;
use super::summary::{EchoReply, Latency, RoundTrips, sentences};
use crate::output::{columns, lag};
use crate::result::{LinkResult, RunResult};
use crate::units::{bits_per_second, seconds, short};

/// Length of an echo reply as ping(8) reports it: 56 bytes of data plus the ICMP header.
const REPLY_LEN: usize = 64;

/// Formats the report as text.
pub fn text(report: &ExampleReport) -> String {
    let mut out = format!("{}: {}\n", report.example, report.about);
    for run in &report.report.runs {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{}", run.variant);
        let mut lines = statistics(report, run);
        let own = report.replies.iter().filter(|reply| reply.variant == run.variant);
        lines.extend(own.map(|reply| (reply.at_s, reply_line(reply, &report.remote))));
        lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (at_s, line) in lines {
            let _ = writeln!(out, "  {at_s:8.3} s  {line}");
        }
        if let Some(realtime) = &run.realtime {
            out.push_str(&lag(realtime));
        }
    }
    out.push('\n');
    table(&mut out, &report.latency);
    let sentences = sentences(&report.latency);
    if !sentences.is_empty() {
        let _ = writeln!(out, "\n{sentences}");
    }
    out
}

fn reply_line(reply: &EchoReply, remote: &str) -> String {
    let EchoReply { seq, time_s, .. } = reply;
    format!("{REPLY_LEN} bytes from {remote}: icmp_seq={seq} time={} ms", short(time_s * 1e3))
}

/// Formats the state of queue and device at regular samples and at the end of a run.
fn statistics(report: &ExampleReport, run: &RunResult) -> Vec<(f64, String)> {
    let link = &run.links[report.way];
    let count = run.sample_s.len();
    let step = SAMPLES_OF_LINE as usize;
    let mut ends: Vec<usize> = (step..=count).step_by(step).collect();
    if ends.last() != Some(&count) {
        ends.push(count);
    }
    let mut lines = Vec::new();
    let mut from = 0;
    for end in ends {
        lines.push((run.sample_s[end - 1], line(report, run, link, from..end)));
        from = end;
    }
    lines
}

fn line(
    report: &ExampleReport,
    run: &RunResult,
    link: &LinkResult,
    samples: std::ops::Range<usize>,
) -> String {
    let last = samples.end - 1;
    let start_s = samples.start.checked_sub(1).map_or(0., |before| run.sample_s[before]);
    let passed_s = run.sample_s[last] - start_s;
    let series = &link.series;
    let dropped: u64 = series.dropped[samples.clone()].iter().sum();
    let rates = &series.delivered_bps[samples.clone()];
    let rate = rates.iter().sum::<f64>() / rates.len() as f64;
    let mut parts = Vec::new();
    let device = link.device.as_ref().map(|device| &device.series);
    if let Some(device) = device {
        let sent: u64 = device.sent[samples].iter().sum();
        let ms = (passed_s * 1e3).round();
        let mut words = format!("{sent} packets sent in {ms} ms");
        if report.counts_failures {
            let _ = write!(words, ", {dropped} failed");
        }
        parts.push(format!("{words} ({})", bits_per_second(rate)));
    }
    if link.qdisc != NO_QDISC {
        let (packets, bytes) = (series.backlog_packets[last], series.backlog_bytes[last]);
        parts.push(format!("queue {packets} p {bytes} b, dropped {dropped} p"));
    }
    if let Some(device) = device {
        let (packets, bytes) = (device.inflight_packets[last], device.inflight_bytes[last]);
        let limit = device.limit_bytes[last].map_or(String::new(), |n| format!(", limit {n} b"));
        parts.push(format!("device {packets} p {bytes} b in flight{limit}"));
    }
    parts.join("; ")
}

fn table(out: &mut String, latencies: &[Latency]) {
    let head = [
        "under load:",
        "ping p50",
        "p95",
        "max",
        "p50 without load",
        "no reply",
        "queue",
        "device",
        "limit",
        "packets/s",
        "rate",
    ];
    let rows = latencies.iter().map(|one| {
        let loaded = |of: fn(&RoundTrips) -> f64| {
            one.under_load.as_ref().map_or(String::new(), |trips| seconds(of(trips)))
        };
        let has_pings = one.under_load.is_some() || one.without_load.is_some();
        vec![
            one.variant.clone(),
            loaded(|trips| trips.p50_s),
            loaded(|trips| trips.p95_s),
            loaded(|trips| trips.max_s),
            one.without_load.map_or(String::new(), |trips| seconds(trips.p50_s)),
            if has_pings { one.lost.to_string() } else { String::new() },
            one.queue_packets.map_or(String::new(), |n| format!("{} p", short(n))),
            format!("{} kB", short(one.device_bytes / 1e3)),
            one.limit_bytes.map_or(String::new(), |bytes| format!("{} kB", short(bytes / 1e3))),
            format!("{:.0}", one.sent_per_s),
            bits_per_second(one.delivered_bps),
        ]
    });
    columns(out, &head, rows.collect());
}
