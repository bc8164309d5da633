//! Charts of a report.

use super::svg::{Chart, Series, SeriesMark, Unit};
use crate::result::{FlowResult, LinkResult, RunResult};
use crate::trace::Trace;
use crate::units::bits_per_second;

/// Caption of goodput charts. The caption explains peaks above the link's rate, which otherwise
/// look like errors.
const GOODPUT: &str = "payload in order, by flow. Bytes behind a hole count when it is filled.";
const GOODPUT_OF_ALL: &str = "payload in order. Bytes behind a hole count when it is filled.";

/// Maximum number of flows in a chart. JSON and CSV contain all flows.
const FLOWS_MAX: usize = 12;
/// Maximum number of links for whose queues charts are drawn.
const LINKS_MAX: usize = 3;
/// Maximum number of connections per run for which time-sequence charts are drawn.
const TRACES_MAX: usize = 2;

fn line(name: &str, times: &[f64], values: impl Iterator<Item = Option<f64>>) -> Series {
    let points = times.iter().zip(values).filter_map(|(at, value)| Some((*at, value?))).collect();
    Series { name: name.to_owned(), mark: SeriesMark::Line, colour: None, points }
}

fn over_time(title: &str, caption: &str, y: Unit, series: Vec<Series>) -> Chart {
    Chart {
        title: title.to_owned(),
        caption: caption.to_owned(),
        x: Unit::Seconds,
        y,
        is_log: false,
        window: None,
        from_0: true,
        top: None,
        series,
    }
}

/// Creates a goodput chart. Peaks are clipped: all bytes after a filled hole count in one sample,
/// and such a peak would compress all lines.
fn goodput(title: &str, caption: &str, runs: &[&RunResult], series: Vec<Series>) -> Chart {
    let links = runs.iter().flat_map(|run| &run.links);
    let carried = links.flat_map(|link| &link.series.delivered_bps).copied().fold(0., f64::max);
    let mut values: Vec<f64> = series.iter().flat_map(|s| &s.points).map(|point| point.1).collect();
    values.sort_by(f64::total_cmp);
    // Use at least the 98th percentile, because several links together may carry more than each of
    // them.
    let usual = values.get(values.len() * 98 / 100).copied().unwrap_or(0.);
    let (top, peak) = (CARRIED * carried.max(usual), values.last().copied().unwrap_or(0.));
    if peak <= top {
        return over_time(title, caption, Unit::Bits, series);
    }
    let caption = format!("{caption} The highest peak, of {}, is cut off.", bits_per_second(peak));
    Chart { top: Some(top), ..over_time(title, &caption, Unit::Bits, series) }
}

/// Maximum of the y axis in a goodput chart, as a multiple of the rate that the links carried.
const CARRIED: f64 = 1.1;

/// Returns the name of a link's direction for the legend of a chart.
pub(super) fn way(link: &LinkResult) -> String {
    format!("{} {}>{}", link.name, link.from, link.to)
}

/// Returns the directions of links with the longest waiting times.
pub(super) fn bottlenecks(run: &RunResult) -> Vec<&LinkResult> {
    let mut links: Vec<&LinkResult> =
        run.links.iter().filter(|link| is_limited(link) && link.entered > 0).collect();
    links.sort_by(|a, b| b.sojourn.p95_s.total_cmp(&a.sojourn.p95_s));
    links.truncate(LINKS_MAX);
    // Skip links whose waiting times would be drawn as a line at 0.
    let longest = links.first().map_or(0., |link| link.sojourn.max_s);
    links.retain(|link| {
        let has_drops = link.lost + link.queue_dropped > 0;
        link.sojourn.max_s > longest / 100. || has_drops || link.device.is_some()
    });
    links
}

/// Returns whether a link can have a queue: it has a rate, or a real device at its end.
fn is_limited(link: &LinkResult) -> bool {
    link.rate_bps.is_some() || link.device.is_some()
}

/// Returns the series for a link's device. The first series is the content of the device's ring.
fn device_lines(link: &LinkResult, times: &[f64]) -> Vec<Series> {
    let Some(device) = &link.device else { return Vec::new() };
    let series = &device.series;
    let known = |values: &[u64]| values.iter().map(|v| Some(*v as f64)).collect::<Vec<_>>();
    let some = |values: &[Option<u64>]| values.iter().map(|v| v.map(|v| v as f64)).collect();
    let all: [(&str, Vec<Option<f64>>); 3] = [
        ("in flight", known(&series.inflight_bytes)),
        ("limit", some(&series.limit_bytes)),
        ("slack", some(&series.slack_bytes)),
    ];
    let lines = all.into_iter().map(|(name, values)| line(name, times, values.into_iter()));
    lines.filter(|series| !series.points.is_empty()).collect()
}

/// Creates the charts that compare several runs.
pub(super) fn compared(runs: &[&RunResult]) -> Vec<Chart> {
    let bottleneck = |run: &RunResult| bottlenecks(run).first().map(|link| way(link));
    let Some(name) = runs.first().and_then(|run| bottleneck(run)) else { return Vec::new() };
    let link = |run: &'_ RunResult| run.links.iter().position(|link| way(link) == name);
    let mut waits = Vec::new();
    let mut latencies = Vec::new();
    let mut goodputs = Vec::new();
    let mut devices = Vec::new();
    for run in runs {
        if let Some(at) = link(run) {
            let inflight = device_lines(&run.links[at], &run.sample_s).into_iter().next();
            devices.extend(inflight.map(|line| Series { name: run.variant.clone(), ..line }));
            let series = run.links[at].series.sojourn_max_s.iter().map(|v| Some(*v));
            waits.push(line(&run.variant, &run.sample_s, series));
        }
        let all = (0..run.sample_s.len())
            .map(|at| Some(run.flows.iter().map(|flow| flow.series.goodput_bps[at]).sum::<f64>()));
        goodputs.push(line(&run.variant, &run.sample_s, all));
        let measured = run.flows.iter().find(|flow| flow.latency.is_some());
        if let Some(times) = measured.and_then(|flow| flow.latency.as_ref()) {
            latencies.push(Series {
                name: run.variant.clone(),
                mark: SeriesMark::Steps,
                colour: None,
                points: times.distribution.clone(),
            });
        }
    }
    let measured = runs.iter().flat_map(|run| &run.flows).find(|flow| flow.latency.is_some());
    let of = measured.map_or("", |flow| &flow.name);
    vec![
        over_time(
            "Wait in the queue",
            &format!("of {name}: the longest of each sample."),
            Unit::Seconds,
            unless_0(waits),
        ),
        distribution(
            &format!("Latency of {of}"),
            "share of all that took no longer; times on a logarithmic axis.",
            latencies,
        ),
        goodput("Goodput of all flows", GOODPUT_OF_ALL, runs, goodputs),
        over_time("Bytes in the device", &format!("of {name}: in its ring."), Unit::Bytes, devices),
    ]
}

fn distribution(title: &str, caption: &str, series: Vec<Series>) -> Chart {
    Chart {
        x: Unit::Seconds,
        y: Unit::Share,
        is_log: true,
        ..over_time(title, caption, Unit::Share, series)
    }
}

/// Returns the series, or no series if all values are 0, because such a chart would contain no
/// information.
fn unless_0(series: Vec<Series>) -> Vec<Series> {
    let has_value = series.iter().flat_map(|series| &series.points).any(|point| point.1 > 0.);
    if has_value { series } else { Vec::new() }
}

/// Titles of the charts of a run that are most informative.
pub(super) const MAIN: &[&str] =
    &["Goodput", "Wait in the queue", "Round trip", "Congestion window"];

/// Creates all charts of one run.
pub(super) fn of_run(run: &RunResult) -> Vec<Chart> {
    let links = bottlenecks(run);
    let goodputs =
        shown(run).map(|flow| of_flow(run, flow, |flow, at| Some(flow.series.goodput_bps[at])));
    let caption = format!("{GOODPUT}{}", first_of(run));
    let mut charts = vec![goodput("Goodput", &caption, &[run], goodputs.collect())];
    charts.extend(of_links(run, &links));
    charts.extend(of_flows(run));
    for link in links.iter().filter(|link| link.device.is_some()) {
        let caption = format!("of {}: in its ring, and their limit.", way(link));
        let lines = device_lines(link, &run.sample_s);
        charts.push(over_time("Bytes in the device", &caption, Unit::Bytes, lines));
    }
    for trace in run.traces.iter().filter(|trace| !trace.sent.is_empty()).take(TRACES_MAX) {
        charts.extend(sequence(run, trace));
    }
    charts
}

/// Returns the flows that are shown in the charts of a run.
fn shown(run: &RunResult) -> impl Iterator<Item = &FlowResult> + Clone {
    run.flows.iter().take(FLOWS_MAX)
}

/// Returns the series of one value of a flow, with a point per sample.
fn of_flow(
    run: &RunResult,
    flow: &FlowResult,
    value: fn(&FlowResult, usize) -> Option<f64>,
) -> Series {
    let times = &run.sample_s;
    line(&flow.name, times, (0..times.len()).map(|at| value(flow, at)))
}

/// Creates the charts about links and their queues.
fn of_links(run: &RunResult, links: &[&LinkResult]) -> [Chart; 4] {
    let times = &run.sample_s;
    let of_link = |value: fn(&LinkResult, usize) -> f64| {
        let lines = links
            .iter()
            .map(|link| line(&way(link), times, (0..times.len()).map(|at| Some(value(link, at)))));
        lines.collect::<Vec<_>>()
    };
    [
        over_time(
            "Throughput",
            "bytes on the wire, of the links in which packets waited longest.",
            Unit::Bits,
            of_link(|link, at| link.series.delivered_bps[at]),
        ),
        over_time(
            "Queue",
            "packets that wait in front of a link.",
            Unit::Packets,
            unless_0(of_link(|link, at| link.series.backlog_packets[at] as f64)),
        ),
        over_time(
            "Wait in the queue",
            "the longest of each sample.",
            Unit::Seconds,
            unless_0(of_link(|link, at| link.series.sojourn_max_s[at])),
        ),
        over_time(
            "Drops",
            "packets that the queue dropped or the wire lost, in each sample.",
            Unit::Packets,
            unless_0(of_link(|link, at| link.series.dropped[at] as f64)),
        ),
    ]
}

/// Creates the charts about the state of TCP, and about latency.
fn of_flows(run: &RunResult) -> [Chart; 4] {
    let lines = |value| -> Vec<Series> {
        let tcp = shown(run).filter(|flow| flow.congestion.is_some());
        tcp.map(|flow| of_flow(run, flow, value)).collect()
    };
    let cwnd = lines(|flow, at| flow.series.cwnd_bytes[at].map(f64::from));
    let flight = lines(|flow, at| flow.series.flight_bytes[at].map(f64::from));
    let mut rtt = lines(|flow, at| flow.series.srtt_s[at]);
    let measured = shown(run).filter(|flow| !flow.points.is_empty());
    rtt.extend(measured.clone().map(|flow| Series {
        name: format!("{} (each)", flow.name),
        mark: SeriesMark::Dots,
        colour: None,
        points: flow.points.clone(),
    }));
    let cdf = measured.filter_map(|flow| {
        let points = flow.latency.as_ref()?.distribution.clone();
        Some(Series { name: flow.name.clone(), mark: SeriesMark::Steps, colour: None, points })
    });
    [
        over_time("Round trip", "TCP's smoothed estimate; dots are measured.", Unit::Seconds, rtt),
        over_time("Congestion window", "what TCP lets be in flight.", Unit::Bytes, cwnd),
        over_time("Bytes in flight", "sent and not acknowledged.", Unit::Bytes, flight),
        distribution(
            "Latency",
            "share of all that took no longer; times on a logarithmic axis.",
            cdf.collect(),
        ),
    ]
}

/// Returns a note for charts that do not show all flows. Empty if they show all flows.
fn first_of(run: &RunResult) -> String {
    match run.flows.len() {
        0..=FLOWS_MAX => String::new(),
        all => format!(" The first {FLOWS_MAX} of {all} flows."),
    }
}

/// Creates two time-sequence charts of a connection: one of the whole connection, and one of the
/// time around its first retransmission.
fn sequence(run: &RunResult, trace: &Trace) -> Vec<Chart> {
    let flow = &run.flows[trace.flow];
    let secs = |ns: u64| ns as f64 / 1e9;
    let bar = |at: u64, from: u64, to: u64| [(secs(at), from as f64), (secs(at), to as f64)];
    let segments = |again: bool| {
        let some = trace.sent.iter().filter(move |segment| segment.is_again == again);
        some.flat_map(|s| bar(s.at_ns, s.from, s.from + u64::from(s.len))).collect::<Vec<_>>()
    };
    let series = |name: &str, mark, colour, points| Series {
        name: name.to_owned(),
        mark,
        colour: Some(colour),
        points,
    };
    let acked = trace.acks.iter().map(|ack| (secs(ack.at_ns), ack.to as f64)).collect();
    let sacked = trace.sacks.iter().flat_map(|sack| bar(sack.at_ns, sack.range.0, sack.range.1));
    let all = vec![
        series("acknowledged", SeriesMark::Steps, 7, acked),
        series("SACK", SeriesMark::Bars, 2, sacked.collect()),
        series("sent", SeriesMark::Bars, 0, segments(false)),
        series("sent again", SeriesMark::Bars, 1, segments(true)),
    ];
    let dots = |series: &Series| {
        let is_bars = series.mark == SeriesMark::Bars;
        let step = if is_bars { 2 } else { 1 };
        let points = series.points.iter().copied().step_by(step).collect();
        let mark = if is_bars { SeriesMark::Dots } else { series.mark };
        Series { points, mark, ..series.clone() }
    };
    let title = format!("Time and sequence of {}", flow.name);
    let overview = all.iter().map(dots).collect();
    let mut charts =
        vec![over_time(&title, "the stream as its sender sees it.", Unit::Bytes, overview)];
    if let Some(first) = trace.sent.iter().find(|segment| segment.is_again) {
        let at = secs(first.at_ns);
        let near = run.sample_s.partition_point(|time| *time < at).min(run.sample_s.len() - 1);
        let rtt = flow.series.srtt_s.get(near).copied().flatten().unwrap_or(0.05).max(1e-4);
        // Clip the time range to the duration of the connection.
        let begin = trace.sent.first().map_or(at, |segment| secs(segment.at_ns));
        let end = trace.acks.last().map_or(at + rtt, |ack| secs(ack.at_ns)).max(at);
        let window = Some(((at - 3. * rtt).max(begin), (at + 5. * rtt).min(end)));
        let caption = "around the first retransmission.";
        let zoom = over_time(&title, caption, Unit::Bytes, all);
        charts.push(Chart { window, from_0: false, ..zoom });
    }
    charts
}
