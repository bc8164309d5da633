//! Results of runs, in numbers and series. The JSON is this, field by field.

use std::collections::BTreeMap;

use serde::Serialize;
use towpath_qdisc::TransmitQueue;

use crate::histogram::NumberHistogram;
use crate::trace::Trace;

/// Runs of a scenario, in the order of variants and seeds.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of the simulator.
    pub version: &'static str,
    /// First seed of each variant.
    pub seed: u64,
    /// Title of the scenario.
    pub title: String,
    /// Sentences about it.
    pub description: String,
    /// Length of each run in seconds of virtual time.
    pub duration_s: f64,
    /// Runs.
    pub runs: Vec<RunResult>,
    /// Means over the seeds of each variant; empty for one seed.
    pub summaries: Vec<Summary>,
}

/// Result of a run.
#[derive(Debug, Serialize)]
pub struct RunResult {
    /// Name of the variant; empty without variants.
    pub variant: String,
    /// Values of the variant, by the paths that its `set` and the sweep name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Seed.
    pub seed: u64,
    /// Events of hosts and links.
    pub events: u64,
    /// Flows, in the order of the file.
    pub flows: Vec<FlowResult>,
    /// Directions of links, two for each.
    pub links: Vec<LinkResult>,
    /// Bits of payload per second of all flows together, over the whole run.
    pub goodput_bps: f64,
    /// Jain's index of the goodputs of the bulk flows while all of them are active: 1 when all are
    /// equal, 1/n when one has all. None if they are never active together. Flows that share fewer
    /// than ten samples are compared by their whole goodputs.
    pub fairness: Option<f64>,
    /// Times of the samples in seconds.
    pub sample_s: Vec<f64>,
    /// Segments of the first connections.
    #[serde(skip)]
    pub traces: Vec<Trace>,
}

/// A distribution of times, in seconds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TimeDistribution {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean_s: f64,
    /// Half of all values are no larger.
    pub p50_s: f64,
    /// 95 % of all values are no larger.
    pub p95_s: f64,
    /// 99 % of all values are no larger.
    pub p99_s: f64,
    /// Largest.
    pub max_s: f64,
    /// Points of the distribution function.
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

/// A flow.
#[derive(Debug, Serialize)]
pub struct FlowResult {
    /// Name.
    pub name: String,
    /// Kind in the file.
    pub kind: &'static str,
    /// Host that started it.
    pub from: String,
    /// Host at the other end.
    pub to: String,
    /// Congestion control, of TCP.
    pub congestion: Option<&'static str>,
    /// Seconds from the start of the run to that of the flow.
    pub start_s: f64,
    /// Bytes of payload that arrived at the far end; of requests, at the one that asked.
    pub bytes: u64,
    /// Bits of payload per second, from the flow's start to its completion or stop.
    pub goodput_bps: f64,
    /// Seconds from the start until the last byte arrived; of a bulk flow with `bytes`.
    pub completion_s: Option<f64>,
    /// Requests, datagrams or echo requests sent.
    pub sent: u64,
    /// Responses, datagrams or echo replies received.
    pub received: u64,
    /// Round trips of requests and echoes, one-way delays of datagrams.
    pub latency: Option<TimeDistribution>,
    /// Bytes that TCP sent again.
    pub retransmitted_bytes: Option<u64>,
    /// Reason for which the flow failed.
    pub failure: Option<String>,
    /// Samples, one for each time.
    pub series: FlowSeries,
    /// Latencies as points: when in seconds, and how long.
    #[serde(skip)]
    pub points: Vec<(f64, f64)>,
}

/// Samples of a flow. TCP's figures are those of the end that sends most; none before it connects.
#[derive(Debug, Default, Serialize)]
pub struct FlowSeries {
    /// Bits of payload per second since the sample before.
    pub goodput_bps: Vec<f64>,
    /// Congestion window in bytes.
    pub cwnd_bytes: Vec<Option<u32>>,
    /// Bytes sent and not acknowledged.
    pub flight_bytes: Vec<Option<u32>>,
    /// Smoothed round-trip time in seconds.
    pub srtt_s: Vec<Option<f64>>,
}

/// Result of a direction of a link.
#[derive(Debug, Serialize)]
pub struct LinkResult {
    /// Name of the link.
    pub name: String,
    /// Host or switch at its start.
    pub from: String,
    /// Host or switch at its end.
    pub to: String,
    /// Bits per second that it can carry.
    pub rate_bps: Option<u64>,
    /// Discipline of its queue.
    pub qdisc: String,
    /// Packets that went in.
    pub entered: u64,
    /// Packets that came out.
    pub delivered: u64,
    /// Bytes that came out.
    pub delivered_bytes: u64,
    /// Packets that the queue dropped.
    pub queue_dropped: u64,
    /// Packets that the wire lost.
    pub lost: u64,
    /// Packets that the queue marked (ECN).
    pub marked: u64,
    /// Share of the rate that was used.
    pub utilization: Option<f64>,
    /// Times that packets waited in the queue.
    pub sojourn: TimeDistribution,
    /// Samples, one for each time.
    pub series: LinkSeries,
    /// Device between the queue and the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceResult>,
}

/// Result of a device.
#[derive(Debug, Default, Serialize)]
pub struct DeviceResult {
    /// Descriptors of its ring.
    pub ring: usize,
    /// Whether its bytes are limited (byte queue limits).
    pub bql: bool,
    /// Packets that it has sent and reported.
    pub sent: u64,
    /// Times that it had no descriptor left, and stopped its queue.
    pub stops: u64,
    /// Times that it woke its queue.
    pub wakes: u64,
    /// Times that its bytes reached their limit, and stopped its queue.
    pub limit_stops: u64,
    /// Number of interrupts that the card raised.
    pub interrupts: u64,
    /// Samples, one for each time.
    pub series: DeviceSeries,
}

/// Samples of a device.
#[derive(Debug, Default, Serialize)]
pub struct DeviceSeries {
    /// Packets that it reported as sent since the sample before.
    pub sent: Vec<u64>,
    /// Packets in its ring.
    pub inflight_packets: Vec<u64>,
    /// Bytes in its ring.
    pub inflight_bytes: Vec<u64>,
    /// Limit of these bytes; none without byte queue limits.
    pub limit_bytes: Vec<Option<u64>>,
    /// Bytes by which the limit may shrink when the hold time is over.
    pub slack_bytes: Vec<Option<u64>>,
}

impl DeviceResult {
    /// Mean of the bytes in the ring, over all samples.
    pub fn inflight_mean(&self) -> f64 {
        let samples = &self.series.inflight_bytes;
        samples.iter().sum::<u64>() as f64 / samples.len().max(1) as f64
    }

    /// Adds a sample of a device with a ring of `ring` descriptors.
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

/// Samples of a direction of a link.
#[derive(Debug, Default, Serialize)]
pub struct LinkSeries {
    /// Packets that wait.
    pub backlog_packets: Vec<u64>,
    /// Bytes that wait.
    pub backlog_bytes: Vec<u64>,
    /// Longest time that a packet had waited that left since the sample before, in seconds.
    pub sojourn_max_s: Vec<f64>,
    /// Bits per second that came out since the sample before.
    pub delivered_bps: Vec<f64>,
    /// Packets that were dropped or lost since the sample before.
    pub dropped: Vec<u64>,
}

/// Means over the seeds of a variant.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Name of the variant.
    pub variant: String,
    /// Number of runs.
    pub runs: usize,
    /// Whether all runs gave the same figures: nothing in the scenario depends on the seed.
    pub is_same: bool,
    /// A figure of a flow or link, by its name.
    pub figures: Vec<Figure>,
}

/// A figure over several runs.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// Flow or link.
    pub of: String,
    /// Name of the figure, as in [`FlowResult`] and [`LinkResult`].
    pub figure: &'static str,
    /// Mean.
    pub mean: f64,
    /// Half of the width of the 95 % confidence interval (Student's t).
    pub ci95: f64,
}

/// Jain's index of fairness.
pub fn fairness(values: &[f64]) -> Option<f64> {
    let (sum, squares) =
        values.iter().fold((0., 0.), |(sum, squares), v| (sum + v, squares + v * v));
    (values.len() > 1 && squares > 0.).then(|| sum * sum / (values.len() as f64 * squares))
}

/// Quantiles of Student's t for 95 %, of 1 to 30 degrees of freedom.
const T95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Samples from which the goodputs of flows can be compared.
const TOGETHER_MIN: usize = 10;

/// Jain's index of `flows` over the samples in which all of them were active, each from its start
/// to its end in seconds. Where such samples are few, the index of their whole goodputs.
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

/// Summaries of the variants that have several runs.
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
    // Beyond 30 degrees of freedom the normal distribution is near enough.
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
        // A deviation of 1, and t of 2 degrees of freedom: 4.303 / sqrt(3).
        assert!((figure.ci95 - 2.4843).abs() < 1e-3, "{}", figure.ci95);
    }
}
