//! Draws plots as inline SVG, which the style sheet of the page colours.

use std::fmt::Write as _;
use std::time::Duration;

use towpath_chart::{Area, Axis, COARSE, FINE};

use crate::Histogram;

use super::distribution::{Bin, bins};
use super::figures;

/// Size of a plot and widths of its margins, in units of the drawing.
const WIDTH: f64 = 760.;
const HEIGHT: f64 = 250.;
const LEFT: f64 = 66.;
const RIGHT: f64 = 18.;
const TOP: f64 = 10.;
const BOTTOM: f64 = 26.;
const AREA: Area = Area { left: LEFT, right: WIDTH - RIGHT, top: TOP, bottom: HEIGHT - BOTTOM };
/// Height of a row of dots, in units of the drawing.
const ROW: f64 = 30.;
/// Number of points of a percentile curve: one point per few units of the drawing.
const POINTS: usize = 160;
/// Number of bars in the plot of a distribution.
const BARS: usize = 56;
/// Maximum number of points of a curve for which every point has a tooltip.
const HOVERS_MAX: usize = 400;
/// Ratio of the largest to the smallest value at which an axis becomes logarithmic.
const WIDE: f64 = 8.;

/// Curve with a name.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Name of the curve in the legend.
    pub name: String,
    /// CSS class that determines the colour: c1, c2, …
    pub class: &'static str,
    /// Points of the curve from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Function that formats a value of an axis.
type Words = fn(f64) -> String;

/// Creates an axis of times, which is logarithmic if the values are far apart, and otherwise linear
/// from zero.
fn times_axis(values: impl Iterator<Item = f64> + Clone) -> Axis {
    let most = values.clone().fold(0., f64::max);
    let least = values.filter(|&value| value > 0.).fold(f64::INFINITY, f64::min);
    if !least.is_finite() || most / least < WIDE {
        return Axis::linear(0., most.max(1e-9) * 1.05, seconds);
    }
    log_axis(least, most, seconds)
}

/// Creates a logarithmic axis with margins at both ends.
fn log_axis(least: f64, most: f64, words: Words) -> Axis {
    Axis::log(least / 1.15, most * 1.15, decade(least, most), words)
}

/// Returns the values within a decade at which a logarithmic axis from `least` to `most` has ticks.
fn decade(least: f64, most: f64) -> &'static [f64] {
    if (most / least).log10() > 3. { COARSE } else { FINE }
}

/// Formats a time given in seconds.
pub fn seconds(value: f64) -> String {
    if value == 0. {
        return "0s".to_owned();
    }
    figures::time(Duration::from_secs_f64(value.max(0.)))
}

/// Formats a number for the label of an axis.
pub fn number(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        _ if value >= 1e4 => format!("{}k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes a text for use in HTML and SVG.
pub fn escaped(text: &str) -> String {
    towpath_chart::escaped(&super::text::printable(text))
}

/// Draws the percentile curve of each histogram: the time that a fraction of the requests does not
/// exceed, over this fraction.
pub fn percentiles(title: &str, all: &[(&str, &'static str, &Histogram)]) -> String {
    let curve = |&(name, class, times): &(&str, &'static str, &Histogram)| {
        let most = (times.count().max(10) as f64).log10();
        let share = |n: usize| 1. - 10_f64.powf(-most * n as f64 / POINTS as f64);
        let time = |share| super::text::quantile(times, share).as_secs_f64();
        let mut points: Vec<_> = (0..POINTS).map(|n| (share(n), time(share(n)))).collect();
        points.push((share(POINTS), times.max().as_secs_f64()));
        Curve { name: name.to_owned(), class, points }
    };
    let curves: Vec<_> = all.iter().filter(|it| !it.2.is_empty()).map(curve).collect();
    let count = all.iter().map(|it| it.2.count()).max().unwrap_or(0);
    let y = times_axis(values(&curves));
    draw(title, &Axis::nines(count), &y, &curves, |x, y| format!("{}: {}", share(x), seconds(y)))
}

fn share(share: f64) -> String {
    format!("{:.4} %", share * 100.)
}

/// Draws rates over the time since the start of the run.
pub fn rates(title: &str, curves: &[Curve], words: Words) -> String {
    let most = values(curves).fold(0., f64::max);
    let y = Axis::linear(0., most.max(1e-9) * 1.05, words);
    draw(title, &run_time(curves), &y, curves, |x, y| format!("{}: {}", seconds(x), words(y)))
}

/// Draws the times of answers over the time since the start of the run.
pub fn times(title: &str, curves: &[Curve]) -> String {
    let y = times_axis(values(curves));
    draw(title, &run_time(curves), &y, curves, |x, y| format!("{}: {}", seconds(x), seconds(y)))
}

fn run_time(curves: &[Curve]) -> Axis {
    let end = curves.iter().flat_map(|it| &it.points).map(|point| point.0).fold(0., f64::max);
    Axis::linear(0., end, seconds)
}

fn values(curves: &[Curve]) -> impl Iterator<Item = f64> + Clone {
    curves.iter().flat_map(|it| &it.points).map(|point| point.1)
}

/// Draws curves with their axes and a legend.
fn draw(
    title: &str,
    x: &Axis,
    y: &Axis,
    curves: &[Curve],
    words: impl Fn(f64, f64) -> String,
) -> String {
    let mut text = open(title, HEIGHT);
    axes(&mut text, x, y);
    for curve in curves {
        let mut path = String::new();
        let mut command = 'M';
        for &(at, value) in &curve.points {
            // Leave a gap for a period without an answer.
            if !value.is_finite() {
                command = 'M';
                continue;
            }
            let _ = write!(path, "{command}{:.1} {:.1}", left(x, at), top(y, value));
            command = 'L';
        }
        let (name, class) = (escaped(&curve.name), curve.class);
        let _ = write!(text, "<path class=\"curve {class}\" d=\"{path}\"/>");
        if curve.points.len() <= HOVERS_MAX {
            for &(at, value) in curve.points.iter().filter(|point| point.1.is_finite()) {
                let (cx, cy) = (left(x, at), top(y, value));
                let words = escaped(&words(at, value));
                let _ = write!(
                    text,
                    "<circle class=\"hover {class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"5\">\
                     <title>{name} at {words}</title></circle>"
                );
            }
        }
    }
    text.push_str("</svg>");
    text + &key(curves.iter().map(|it| (it.class, &*it.name)))
}

/// Draws the number of times in each bin. The bins have equal widths on a logarithmic scale.
pub fn distribution(title: &str, class: &str, times: &Histogram) -> String {
    let bins = bins(times, BARS);
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else { return String::new() };
    let from = first.to.as_secs_f64().powi(2) / bins[1].to.as_secs_f64();
    let end = bins[BARS - 2].to.as_secs_f64().powi(2) / bins[BARS - 3].to.as_secs_f64();
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(1) as f64;
    let x = Axis::log(from, end, decade(from, end), seconds);
    let y = Axis::linear(0., most * 1.05, number);
    let mut text = open(title, HEIGHT);
    axes(&mut text, &x, &y);
    let (ground, width) = (HEIGHT - BOTTOM, (WIDTH - LEFT - RIGHT) / BARS as f64);
    for (n, Bin { from, to, count }) in bins.iter().enumerate() {
        let (at, high) = (LEFT + width * n as f64, top(&y, *count as f64));
        let (from, to) = (figures::time(*from), figures::time(*to));
        let _ = write!(
            text,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{high:.1}\" width=\"{:.1}\" \
             height=\"{:.1}\"><title>{from} to {to}: {count}</title></rect>",
            at + 0.5,
            width - 1.,
            ground - high,
        );
    }
    let (shortest, longest) = (figures::time(times.min()), figures::time(times.max()));
    let _ = last;
    text + "</svg><p class=\"key\">"
        + &format!("{} times, from {shortest} to {longest}; ", times.count())
        + "the bars at the ends hold the shortest and the longest thousandth as well</p>"
}

/// Draws a row of dots for each name, with one dot per finite value, and a line at the median.
pub fn dots(title: &str, rows: &[(&str, &'static str, Vec<f64>)], words: Words) -> String {
    let all = || rows.iter().flat_map(|row| row.2.iter().copied()).filter(|it| it.is_finite());
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0., f64::max));
    if !least.is_finite() {
        return String::new();
    }
    let pad = ((most - least) * 0.08).max(most.abs() * 0.005).max(1e-9);
    let x = Axis::linear((least - pad).max(0.), most + pad, words);
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let mut text = open(title, height);
    for (at, words) in &x.ticks {
        let at = left(&x, *at);
        grid(&mut text, &format!("M{at:.1} {TOP}V{:.1}", height - BOTTOM));
        word(&mut text, "middle", at, height - 8., words);
    }
    for (n, (name, class, values)) in rows.iter().enumerate() {
        let y = TOP + ROW * (n as f64 + 0.5);
        word(&mut text, "end", LEFT - 10., y + 4., name);
        let finite: Vec<f64> = values.iter().copied().filter(|it| it.is_finite()).collect();
        if finite.is_empty() {
            continue;
        }
        let median = left(&x, super::statistics::median(&finite));
        let (high, low) = (y - 11., y + 11.);
        let _ =
            write!(text, "<path class=\"curve {class}\" d=\"M{median:.1} {high:.1}V{low:.1}\"/>");
        for (round, &value) in values.iter().enumerate().filter(|it| it.1.is_finite()) {
            let (cx, words) = (left(&x, value), escaped(&words(value)));
            let _ = write!(
                text,
                "<circle class=\"dot {class}\" cx=\"{cx:.1}\" cy=\"{y:.1}\" r=\"5\">\
                 <title>{name}, round {}: {words}</title></circle>",
                round + 1
            );
        }
    }
    text + "</svg>"
}

/// Steps of a search that have the same outcome.
pub struct Steps<'a> {
    /// CSS class that determines the colour of the dots.
    pub class: &'static str,
    /// CSS class that determines the colour in the legend.
    pub key: &'static str,
    /// Name of the outcome in the legend.
    pub name: &'a str,
    /// Points of the steps: the rate per second, and the time in seconds.
    pub points: Vec<(f64, f64)>,
}

/// Draws the steps of a search as times over rates, together with the bound.
pub fn steps(title: &str, groups: &[Steps<'_>], bound: f64) -> String {
    let all = || groups.iter().flat_map(|group| &group.points);
    let (least, most) =
        all().fold((f64::INFINITY, 0_f64), |(low, high), it| (low.min(it.0), high.max(it.0)));
    if !least.is_finite() {
        return String::new();
    }
    let x = log_axis(least, most.max(least * 1.5), number);
    let y = times_axis(all().map(|it| it.1).chain([bound]));
    let mut text = open(title, HEIGHT);
    axes(&mut text, &x, &y);
    let level = top(&y, bound);
    let _ = write!(text, "<path class=\"bound\" d=\"M{LEFT} {level:.1}H{:.1}\"/>", WIDTH - RIGHT);
    for Steps { points, class, name, .. } in groups {
        for &(rate, time) in points {
            let (cx, cy) = (left(&x, rate), top(&y, time));
            let (rate, time) = (figures::rate(rate), seconds(time));
            let _ = write!(
                text,
                "<circle class=\"{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"6\">\
                 <title>{rate}: {time}, {name}</title></circle>"
            );
        }
    }
    text.push_str("</svg>");
    let there = groups.iter().filter(|group| !group.points.is_empty());
    text + &key(there.map(|group| (group.key, group.name)).chain([("bound", "bound")]))
}

fn open(title: &str, height: f64) -> String {
    let title = escaped(title);
    format!(
        "<h3>{title}</h3><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">"
    )
}

fn axes(text: &mut String, x: &Axis, y: &Axis) {
    let ground = HEIGHT - BOTTOM;
    for (at, words) in &y.ticks {
        let level = top(y, *at);
        grid(text, &format!("M{LEFT} {level:.1}H{:.1}", WIDTH - RIGHT));
        word(text, "end", LEFT - 8., level + 4., words);
    }
    let mut room = f64::NEG_INFINITY;
    for (at, words) in &x.ticks {
        let at = left(x, *at);
        grid(text, &format!("M{at:.1} {TOP}V{ground:.1}"));
        // Skip a label that would overlap the previous one.
        let half = words.chars().count() as f64 * 3.6;
        if at - half > room {
            word(text, "middle", at, HEIGHT - 8., words);
            room = at + half + 4.;
        }
    }
    let _ =
        write!(text, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{ground}H{:.1}\"/>", WIDTH - RIGHT);
}

fn left(axis: &Axis, value: f64) -> f64 {
    AREA.x(axis, value).clamp(AREA.left, AREA.right)
}

fn top(axis: &Axis, value: f64) -> f64 {
    AREA.y(axis, value).clamp(AREA.top, AREA.bottom)
}

fn grid(text: &mut String, path: &str) {
    let _ = write!(text, "<path class=\"grid\" d=\"{path}\"/>");
}

fn word(text: &mut String, anchor: &str, x: f64, y: f64, word: &str) {
    let word = escaped(word);
    let _ = write!(text, "<text class=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{word}</text>");
}

fn key<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::from("<p class=\"key\">");
    for (class, name) in entries {
        let _ = write!(text, "<span class=\"{class}\"></span>{} ", escaped(name));
    }
    text + "</p>"
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn ticks(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| &*tick.1).collect()
    }

    #[test]
    fn axes_have_round_ticks() {
        let axis = log_axis(1e-4, 2e-3, seconds);
        assert_eq!(ticks(&axis), ["100µs", "200µs", "500µs", "1ms", "2ms"]);
    }

    #[test]
    fn plots_are_finite_whatever_they_show() {
        let group = |points| Steps { class: "dot c1", key: "c1", name: "kept", points };
        let mut one = Histogram::new();
        one.record(Duration::from_micros(7));
        for times in [Histogram::new(), one, samples::times(1), samples::times(5000)] {
            let plots = [
                percentiles("p", &[("a", "c1", &times)]),
                distribution("d", "c1", &times),
                dots("x", &[("A", "c1", vec![1.; 5]), ("B", "c2", vec![])], seconds),
                dots("x", &[("A", "c1", vec![0.; 5])], number),
                dots("x", &[("A", "c1", vec![f64::NAN, 1.]), ("B", "c2", vec![f64::NAN])], number),
                steps("s", &[group(vec![(1000., 1e-3)]), group(vec![(1000., 1e-3)])], 2e-3),
                steps("s", &[group(vec![])], 2e-3),
                rates("t", &[], number),
                super::times("t", &[]),
            ];
            for plot in plots {
                assert!(!plot.contains("NaN") && !plot.contains("inf"), "{plot}");
            }
        }
    }

    #[test]
    fn gaps_break_a_curve() {
        let points = vec![(0., 1.), (1., f64::NAN), (2., 3.), (3., 4.)];
        let curve = Curve { name: "a".into(), class: "c1", points };
        let plot = rates("t", &[curve], number);
        let path = plot.split("class=\"curve c1\" d=\"").nth(1).expect("a curve");
        let path = path.split('"').next().expect("its path");
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 1), "{path}");
    }

    #[test]
    fn words_of_others_are_no_markup() {
        assert_eq!(escaped("<a b=\"c\">&\u{1b}"), "&lt;a b=&quot;c&quot;&gt;&amp;\u{fffd}");
    }
}
