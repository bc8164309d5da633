//! Summary of an example: echo replies, and the latency with and without load.

use serde::Serialize;

use super::load::{Load, NO_QDISC, Pings};
use crate::result::{Report, RunResult};
use crate::units::{seconds, short};

/// An echo reply.
#[derive(Debug, Clone, Serialize)]
pub struct EchoReply {
    /// Variant of its run.
    pub variant: String,
    /// Sequence number, from 1.
    pub seq: u64,
    /// Time of arrival in seconds.
    pub at_s: f64,
    /// Round-trip time in seconds.
    pub time_s: f64,
    /// Time in ns at which the request was sent.
    #[serde(skip)]
    sent_ns: u64,
}

/// Round-trip times of echo replies, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RoundTrips {
    /// Number of replies.
    pub count: usize,
    /// Median.
    pub p50_s: f64,
    /// 95th percentile.
    pub p95_s: f64,
    /// Maximum.
    pub max_s: f64,
}

/// Latency of a variant, and the mean state of its queue and device.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// Name of the variant.
    pub variant: String,
    /// Round-trip times of requests sent without load.
    pub without_load: Option<RoundTrips>,
    /// Round-trip times of requests sent under load.
    pub under_load: Option<RoundTrips>,
    /// Echo requests without a reply.
    pub lost: u64,
    /// Mean number of packets in the queue under load.
    pub queue_packets: Option<f64>,
    /// Mean number of bytes in the device under load.
    pub device_bytes: f64,
    /// Mean BQL limit in bytes under load.
    pub limit_bytes: Option<f64>,
    /// Packets per second sent by the device under load.
    pub sent_per_s: f64,
    /// Bits per second delivered under load, including all headers.
    pub delivered_bps: f64,
}

/// Name of the flow that measures the latency.
const PING: &str = "ping";

/// Returns the echo replies of all runs.
pub(super) fn replies(report: &Report, pings: Option<&Pings>) -> Vec<EchoReply> {
    let Some(pings) = pings else { return Vec::new() };
    let mut replies = Vec::new();
    for run in &report.runs {
        let points =
            run.flows.iter().filter(|flow| flow.name == PING).flat_map(|flow| &flow.points);
        replies.extend(points.map(|&(at_s, time_s)| {
            let sent_ns = ((at_s - time_s) * 1e9).round() as u64;
            let after = sent_ns.saturating_sub(pings.start_ns);
            // Add half an interval to round to the nearest number, because times in seconds are
            // rounded.
            let nth = (after + pings.interval_ns / 2) / pings.interval_ns.max(1);
            EchoReply { variant: run.variant.clone(), seq: nth + 1, at_s, time_s, sent_ns }
        }));
    }
    replies
}

/// Returns the latency of each variant.
pub(super) fn latencies(
    report: &Report,
    replies: &[EchoReply],
    load: Option<Load>,
    way: usize,
) -> Vec<Latency> {
    report.runs.iter().map(|run| latency(run, replies, load, way)).collect()
}

fn latency(run: &RunResult, replies: &[EchoReply], load: Option<Load>, way: usize) -> Latency {
    let is_loaded = |at_ns: u64| load.is_some_and(|load| load.is_on(at_ns));
    let of = |wanted: bool| {
        let own = replies.iter().filter(|reply| reply.variant == run.variant);
        let own = own.filter(|reply| is_loaded(reply.sent_ns) == wanted);
        round_trips(own.map(|reply| reply.time_s).collect())
    };
    let link = &run.links[way];
    // A sample covers the time since the previous one.
    let samples: Vec<usize> = (0..run.sample_s.len())
        .filter(|at| is_loaded((run.sample_s[*at] * 1e9) as u64 - 1))
        .collect();
    let mean = |of: &dyn Fn(usize) -> f64| {
        samples.iter().map(|at| of(*at)).sum::<f64>() / samples.len().max(1) as f64
    };
    let passed = |at: usize| run.sample_s[at] - at.checked_sub(1).map_or(0., |n| run.sample_s[n]);
    let time: f64 = samples.iter().map(|at| passed(*at)).sum();
    let device = link.device.as_ref().map(|device| &device.series);
    let sent: u64 = device.map_or(0, |series| samples.iter().map(|at| series.sent[*at]).sum());
    let ping = run.flows.iter().find(|flow| flow.name == PING);
    Latency {
        variant: run.variant.clone(),
        without_load: of(false),
        under_load: of(true),
        lost: ping.map_or(0, |flow| flow.sent - flow.received),
        queue_packets: (link.qdisc != NO_QDISC)
            .then(|| mean(&|at| link.series.backlog_packets[at] as f64)),
        device_bytes: device.map_or(0., |series| mean(&|at| series.inflight_bytes[at] as f64)),
        limit_bytes: device
            .filter(|series| series.limit_bytes.iter().any(Option::is_some))
            .map(|series| mean(&|at| series.limit_bytes[at].unwrap_or_default() as f64)),
        sent_per_s: if time > 0. { (sent as f64 / time).round() } else { 0. },
        delivered_bps: mean(&|at| link.series.delivered_bps[at]).round(),
    }
}

fn round_trips(mut times: Vec<f64>) -> Option<RoundTrips> {
    times.sort_by(f64::total_cmp);
    let quantile = |share: f64| {
        let at = (times.len() as f64 * share).ceil() as usize;
        times.get(at.saturating_sub(1)).copied()
    };
    Some(RoundTrips {
        count: times.len(),
        p50_s: quantile(0.5)?,
        p95_s: quantile(0.95)?,
        max_s: quantile(1.)?,
    })
}

/// Describes the results of the variants in one or two sentences.
pub(super) fn sentences(all: &[Latency]) -> String {
    let joined = |of: &dyn Fn(&Latency) -> Option<String>| {
        let parts = all.iter().filter_map(|one| Some((of(one)?, one.variant == "bql on")));
        match &parts.collect::<Vec<_>>()[..] {
            [(off, false), (on, true)] => {
                Some(format!("{off} without byte queue limits and {on} with them"))
            }
            [(value, true)] => Some(format!("{value} with byte queue limits")),
            [(value, false)] => Some(format!("{value} without byte queue limits")),
            _ => None,
        }
    };
    let mut out = Vec::new();
    if let Some(under) = joined(&|one| Some(seconds(one.under_load?.p50_s))) {
        out.push(format!("Under load the median of the ping is {under}."));
    }
    if let Some(without) = all.iter().find_map(|one| one.without_load) {
        out.push(format!("Without load it is {}.", seconds(without.p50_s)));
    }
    let held = |one: &Latency| format!("{} kB", short(one.device_bytes / 1e3));
    if let Some(bytes) = joined(&|one| (one.sent_per_s > 0.).then(|| held(one))) {
        out.push(format!("The device holds {bytes}, in the mean under load."));
    }
    out.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let trips = round_trips((1..=100).rev().map(f64::from).collect()).expect("some");
        assert_eq!((trips.count, trips.p50_s, trips.p95_s, trips.max_s), (100, 50., 95., 100.));
        assert_eq!(round_trips(Vec::new()), None);
        assert_eq!(round_trips(vec![7.]).map(|trips| trips.p95_s), Some(7.));
    }
}
