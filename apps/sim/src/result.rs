//! Results of runs: totals and time series. The JSON output has the same fields.

use std::collections::BTreeMap;

use serde::Serialize;
use towpath_qdisc::TransmitQueue;

use crate::histogram::NumberHistogram;
use crate::trace::Trace;

/// Results of all runs of a scenario, in the order of variants and seeds.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of the simulator that created the report.
    pub version: &'static str,
    /// First seed with which each variant ran.
    pub seed: u64,
    /// Title of the scenario.
    pub title: String,
    /// Description of the scenario.
    pub description: String,
    /// Duration of each run in seconds of virtual time.
    pub duration_s: f64,
    /// Results of all runs.
    pub runs: Vec<RunResult>,
    /// Means over the seeds of each variant. Empty if there is only one seed.
    pub summaries: Vec<Summary>,
}

/// Result of one run.
#[derive(Debug, Serialize)]
pub struct RunResult {
    /// Name of the variant. Empty if the scenario has no variants.
    pub variant: String,
    /// Values that the variant replaces, by their paths in `set` and the sweep.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Seed of the run.
    pub seed: u64,
    /// Number of events of all hosts and links.
    pub events: u64,
    /// Results of all flows, in the order of the file.
    pub flows: Vec<FlowResult>,
    /// Results of all links, one per direction.
    pub links: Vec<LinkResult>,
    /// Goodput of all flows together over the whole run, in bits per second.
    pub goodput_bps: f64,
    /// Jain's fairness index of the bulk flows' goodputs while all of them are active. The index is
    /// 1 if all goodputs are equal, and 1/n if one flow takes everything. `None` if the flows are
    /// never active together. Flows that share fewer than ten samples are compared by their total
    /// goodputs.
    pub fairness: Option<f64>,
    /// How exactly a run in real time followed the clock. None in virtual time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime: Option<RealtimeResult>,
    /// Times of the samples in seconds.
    pub sample_s: Vec<f64>,
    /// Traces of the first connections, for time-sequence charts.
    #[serde(skip)]
    pub traces: Vec<Trace>,
}

/// Delay of a simulation behind real time.
#[derive(Debug, Clone, Serialize)]
pub struct RealtimeResult {
    /// Lags of all events: the real time of their calls minus their scheduled time.
    pub lag: TimeDistribution,
    /// Numbers of events by lag.
    pub histogram: Vec<LagBucket>,
    /// Limit of the lag in seconds.
    pub max_lag_s: f64,
    /// Number of events beyond the limit.
    pub late: u64,
    /// Whether no event was beyond the limit.
    pub is_valid: bool,
}

/// Events with similar lags.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LagBucket {
    /// Maximum lag of the events in this bucket, in seconds; `None` if there is no maximum.
    pub up_to_s: Option<f64>,
    /// Number of events with at most this lag, and more than that of the previous bucket.
    pub events: u64,
}

/// Upper bounds of [`LagBucket`]s in ns.
const LAG_BOUNDS_NS: [u64; 10] =
    [1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000, 100_000_000];

impl RealtimeResult {
    /// Creates the result from the lags in ns, of which `late` are above the limit.
    pub(crate) fn new(lags: &NumberHistogram, max_lag_ns: u64, late: u64) -> Self {
        let mut below = 0;
        let mut bucket = |up_to_ns: Option<u64>| {
            let all = up_to_ns.map_or(lags.count(), |bound| lags.count_to(bound));
            let events = all - below;
            below = all;
            LagBucket { up_to_s: up_to_ns.map(|ns| ns as f64 / 1e9), events }
        };
        let bounds = LAG_BOUNDS_NS.into_iter().map(Some).chain([None]);
        let histogram = bounds.map(&mut bucket).collect();
        let (max_lag_s, is_valid) = (max_lag_ns as f64 / 1e9, late == 0);
        Self { lag: lags.into(), histogram, max_lag_s, late, is_valid }
    }
}

/// Distribution of times. All times are in seconds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TimeDistribution {
    /// Number of times.
    pub count: u64,
    /// Mean of the times.
    pub mean_s: f64,
    /// Median of the times.
    pub p50_s: f64,
    /// 95th percentile of the times.
    pub p95_s: f64,
    /// 99th percentile of the times.
    pub p99_s: f64,
    /// Maximum of the times.
    pub max_s: f64,
    /// Points of the distribution function: a time, and the fraction of times up to it.
    #[serde(skip)]
    pub distribution: Vec<(f64, f64)>,
}

impl From<&NumberHistogram> for TimeDistribution {
    fn from(histogram: &NumberHistogram) -> Self {
        let secs = |ns: u64| ns as f64 / 1e9;
        Self {
            count: histogram.count(),
            mean_s: histogram.mean() / 1e9,
            p50_s: secs(histogram.quantile(0.5)),
            p95_s: secs(histogram.quantile(0.95)),
            p99_s: secs(histogram.quantile(0.99)),
            max_s: secs(histogram.max()),
            distribution: histogram
                .distribution()
                .into_iter()
                .map(|(ns, share)| (secs(ns), share))
                .collect(),
        }
    }
}

/// Result of one flow.
#[derive(Debug, Serialize)]
pub struct FlowResult {
    /// Name of the flow.
    pub name: String,
    /// Kind of the flow in the scenario file.
    pub kind: &'static str,
    /// Name of the host that started the flow.
    pub from: String,
    /// Name of the destination host.
    pub to: String,
    /// Whether the destination is a real host. `bytes` are then those that the host acknowledged,
    /// or those of the datagrams sent. `received` counts no datagrams.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_to_real: bool,
    /// Congestion control algorithm of the TCP connection. `None` if the flow does not use TCP.
    pub congestion: Option<&'static str>,
    /// Start time of the flow in seconds since the start of the run.
    pub start_s: f64,
    /// Number of payload bytes that the destination received. For requests, the number that the
    /// client received.
    pub bytes: u64,
    /// Goodput in bits per second, from the start of the flow to its completion or stop.
    pub goodput_bps: f64,
    /// Time in seconds from the start of the flow until its last byte arrived. Only for bulk flows
    /// with `bytes`.
    pub completion_s: Option<f64>,
    /// Number of requests, datagrams or echo requests sent.
    pub sent: u64,
    /// Number of responses, datagrams or echo replies received.
    pub received: u64,
    /// Round-trip times of requests and echoes, or one-way delays of datagrams. `None` for other
    /// flows.
    pub latency: Option<TimeDistribution>,
    /// Number of bytes that TCP retransmitted. `None` if the flow does not use TCP.
    pub retransmitted_bytes: Option<u64>,
    /// Reason why the flow failed. `None` if it did not fail.
    pub failure: Option<String>,
    /// Time series of the flow, with one value per sample time.
    pub series: FlowSeries,
    /// Latencies as points of a chart: the time of arrival and the latency, both in seconds.
    #[serde(skip)]
    pub points: Vec<(f64, f64)>,
}

/// Time series of a flow. TCP values are those of the endpoint that sends most, and `None` before
/// this endpoint is connected.
#[derive(Debug, Default, Serialize)]
pub struct FlowSeries {
    /// Mean goodput since the previous sample, in bits per second.
    pub goodput_bps: Vec<f64>,
    /// Congestion window in bytes.
    pub cwnd_bytes: Vec<Option<u32>>,
    /// Number of bytes in flight: sent and not acknowledged yet.
    pub flight_bytes: Vec<Option<u32>>,
    /// Smoothed round-trip time in seconds.
    pub srtt_s: Vec<Option<f64>>,
}

/// Result of one direction of a link.
#[derive(Debug, Serialize)]
pub struct LinkResult {
    /// Name of the link.
    pub name: String,
    /// Name of the host or switch at the start of the direction.
    pub from: String,
    /// Name of the host or switch at the end of the direction.
    pub to: String,
    /// Capacity in bits per second. `None` if it is unlimited.
    pub rate_bps: Option<u64>,
    /// Queueing discipline of the direction.
    pub qdisc: String,
    /// Number of packets that entered the direction.
    pub entered: u64,
    /// Number of packets delivered.
    pub delivered: u64,
    /// Number of bytes delivered.
    pub delivered_bytes: u64,
    /// Number of packets that the queue dropped.
    pub queue_dropped: u64,
    /// Number of packets lost on the wire.
    pub lost: u64,
    /// Number of packets that the queue marked (ECN).
    pub marked: u64,
    /// Fraction of the capacity that was used. `None` if the capacity is unlimited.
    pub utilization: Option<f64>,
    /// Distribution of the waiting times of packets in the queue.
    pub sojourn: TimeDistribution,
    /// Time series of the direction, with one value per sample time.
    pub series: LinkSeries,
    /// Device between the queue and the link. `None` if the plan has no device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceResult>,
}

/// Result of a network device.
#[derive(Debug, Default, Serialize)]
pub struct DeviceResult {
    /// Number of descriptors in the ring of the device.
    pub ring: usize,
    /// Whether byte queue limits (BQL) are enabled.
    pub bql: bool,
    /// Number of packets that the device has sent and completed.
    pub sent: u64,
    /// Number of times that the device stopped its queue because no descriptor was free.
    pub stops: u64,
    /// Number of times that the device restarted its stopped queue.
    pub wakes: u64,
    /// Number of times that the device stopped its queue because the bytes in the ring reached the
    /// limit.
    pub limit_stops: u64,
    /// Number of interrupts that the card raised.
    pub interrupts: u64,
    /// Time series of the device, with one value per sample time.
    pub series: DeviceSeries,
}

/// Time series of a network device.
#[derive(Debug, Default, Serialize)]
pub struct DeviceSeries {
    /// Number of packets completed since the previous sample.
    pub sent: Vec<u64>,
    /// Number of packets in the ring.
    pub inflight_packets: Vec<u64>,
    /// Number of bytes in the ring.
    pub inflight_bytes: Vec<u64>,
    /// Limit of the number of bytes in the ring. `None` without BQL.
    pub limit_bytes: Vec<Option<u64>>,
    /// Number of bytes by which the limit may shrink at the end of the hold time. `None` without
    /// BQL.
    pub slack_bytes: Vec<Option<u64>>,
}

impl DeviceResult {
    /// Returns the mean number of bytes in the ring over all samples.
    pub fn inflight_mean(&self) -> f64 {
        let samples = &self.series.inflight_bytes;
        samples.iter().sum::<u64>() as f64 / samples.len().max(1) as f64
    }

    /// Adds a sample of the device. `ring` is the number of descriptors in its ring.
    pub(crate) fn sample(&mut self, queue: &TransmitQueue, ring: usize, interrupts: u64) {
        let stats = queue.stats();
        let limits = queue.limits();
        self.series.sent.push(stats.completed_packets - self.sent);
        self.series.inflight_packets.push(stats.queued_packets - stats.completed_packets);
        self.series.inflight_bytes.push(queue.inflight());
        self.series.limit_bytes.push(limits.map(|state| state.limit));
        self.series.slack_bytes.push(limits.map(|state| state.slack));
        (self.ring, self.bql) = (ring, limits.is_some());
        (self.sent, self.interrupts) = (stats.completed_packets, interrupts);
        (self.stops, self.wakes) = (stats.stops, stats.wakes);
        self.limit_stops = stats.limit_stops;
    }
}

/// Time series of one direction of a link.
#[derive(Debug, Default, Serialize)]
pub struct LinkSeries {
    /// Number of packets in the queue.
    pub backlog_packets: Vec<u64>,
    /// Number of bytes in the queue.
    pub backlog_bytes: Vec<u64>,
    /// Maximum waiting time of the packets that left since the previous sample, in seconds.
    pub sojourn_max_s: Vec<f64>,
    /// Mean delivery rate since the previous sample, in bits per second.
    pub delivered_bps: Vec<f64>,
    /// Number of packets dropped or lost since the previous sample.
    pub dropped: Vec<u64>,
}

/// Means of a variant's figures over its seeds.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Name of the variant.
    pub variant: String,
    /// Number of runs of the variant.
    pub runs: usize,
    /// Whether all runs have the same figures. The seed then has no influence.
    pub is_same: bool,
    /// Mean figures of all flows and links.
    pub figures: Vec<Figure>,
}

/// Mean of a figure over several runs.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// Name of the flow or link that the figure belongs to.
    pub of: String,
    /// Name of the figure, which is a field of [`FlowResult`] or [`LinkResult`].
    pub figure: &'static str,
    /// Mean of the figure over all runs.
    pub mean: f64,
    /// Half width of the mean's 95 % confidence interval (Student's t distribution).
    pub ci95: f64,
}

/// Returns Jain's fairness index of the values. `None` if it is undefined.
pub fn fairness(values: &[f64]) -> Option<f64> {
    let (sum, squares) =
        values.iter().fold((0., 0.), |(sum, squares), v| (sum + v, squares + v * v));
    (values.len() > 1 && squares > 0.).then(|| sum * sum / (values.len() as f64 * squares))
}

/// 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
const T95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Minimum number of common samples that is required to compare the goodputs of flows over these
/// samples.
const TOGETHER_MIN: usize = 10;

/// Returns Jain's index of `flows` over the samples in which all of them were active. Each flow is
/// given with its end in seconds. If there are too few common samples, returns the index of the
/// total goodputs.
pub fn fairness_together(flows: &[(&FlowResult, f64)], sample_s: &[f64]) -> Option<f64> {
    let from = flows.iter().map(|(flow, _)| flow.start_s).fold(0., f64::max);
    let to = flows.iter().map(|(_, end)| *end).fold(f64::MAX, f64::min);
    if from >= to {
        return None;
    }
    let begin = |at: usize| at.checked_sub(1).map_or(0., |before| sample_s[before]);
    let is_inside = |at: &usize| begin(*at) >= from && sample_s[*at] <= to;
    let inside: Vec<usize> = (0..sample_s.len()).filter(is_inside).collect();
    if inside.len() < TOGETHER_MIN {
        return fairness(&flows.iter().map(|(flow, _)| flow.goodput_bps).collect::<Vec<f64>>());
    }
    let bits = |flow: &FlowResult| {
        let of_sample = |at: &usize| flow.series.goodput_bps[*at] * (sample_s[*at] - begin(*at));
        inside.iter().map(of_sample).sum()
    };
    fairness(&flows.iter().map(|(flow, _)| bits(flow)).collect::<Vec<f64>>())
}

/// Computes the summary of each variant that has several runs.
pub fn summarize(runs: &[RunResult]) -> Vec<Summary> {
    let mut summaries = Vec::new();
    for of_variant in runs.chunk_by(|a, b| a.variant == b.variant) {
        let [first, _, ..] = of_variant else { continue };
        let (mut figures, mut is_same) = (Vec::new(), true);
        let mut add = |of: &str, figure, value: &dyn Fn(&RunResult) -> Option<f64>| {
            let values: Vec<f64> = of_variant.iter().filter_map(value).collect();
            is_same &= values.windows(2).all(|pair| pair[0] == pair[1]);
            if values.len() == of_variant.len() {
                figures.push(figure_of(of, figure, &values));
            }
        };
        for (at, flow) in first.flows.iter().enumerate() {
            add(&flow.name, "goodput_bps", &|run| Some(run.flows[at].goodput_bps));
            add(&flow.name, "completion_s", &|run| run.flows[at].completion_s);
            let latency = |run: &RunResult| run.flows[at].latency.as_ref().map(|times| times.p95_s);
            add(&flow.name, "latency_p95_s", &latency);
        }
        for (at, link) in first.links.iter().enumerate().filter(|(_, link)| link.rate_bps.is_some())
        {
            let is_quiet = |run: &RunResult| {
                let link = &run.links[at];
                link.queue_dropped + link.lost == 0 && link.sojourn.max_s < 1e-3
            };
            if of_variant.iter().all(is_quiet) {
                continue;
            }
            let name = format!("{} {}>{}", link.name, link.from, link.to);
            add(&name, "sojourn_p95_s", &|run| Some(run.links[at].sojourn.p95_s));
            add(&name, "queue_dropped", &|run| Some(run.links[at].queue_dropped as f64));
        }
        if first.flows.len() > 1 {
            add("all flows", "goodput_bps", &|run| Some(run.goodput_bps));
        }
        add("all bulk flows", "fairness", &|run| run.fairness);
        let (variant, runs) = (first.variant.clone(), of_variant.len());
        summaries.push(Summary { variant, runs, is_same, figures });
    }
    summaries
}

fn figure_of(of: &str, figure: &'static str, values: &[f64]) -> Figure {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.);
    // Use the normal distribution, which is a good approximation beyond 30 degrees of freedom.
    let t = T95.get(values.len() - 2).copied().unwrap_or(1.96);
    Figure { of: of.to_owned(), figure, mean, ci95: t * (variance / n).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_for_equals_and_a_share_for_one_that_has_all() {
        assert_eq!(fairness(&[5., 5., 5.]), Some(1.));
        assert_eq!(fairness(&[9., 0., 0.]), Some(1. / 3.));
        assert_eq!((fairness(&[1.]), fairness(&[0., 0.])), (None, None));
    }

    #[test]
    fn a_confidence_interval_is_students() {
        let figure = figure_of("x", "y", &[1., 2., 3.]);
        assert_eq!(figure.mean, 2.);
        // The standard deviation is 1, and t for 2 degrees of freedom is 4.303: the result is 4.303
        // / sqrt(3).
        assert!((figure.ci95 - 2.4843).abs() < 1e-3, "{}", figure.ci95);
    }
}
