//! Plots as inline SVG, coloured by the page: bars with intervals, pairs of times, and stacked
//! bars.

use std::fmt::{Display, Write};

use towpath_chart::{Area, Axis, COARSE, escaped};

use crate::figures::{Figure, Interval, Spread};

/// Kind of a side, which determines its colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Kernel,
    Towpath,
    Peer,
}

/// A side in a plot; `None` if its value is missing.
pub struct Line<'a, T> {
    pub side: &'a str,
    pub kind: Kind,
    pub value: Option<T>,
}

/// Sizes in units of the drawing.
const WIDTH: f64 = 720.;
const LABELS: f64 = 160.;
const FIGURES: f64 = 110.;
const PLOT: f64 = WIDTH - LABELS - FIGURES;
const ROW: f64 = 26.;
const BAR: f64 = 14.;

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Towpath => "towpath",
            Self::Peer => "peer",
        }
    }
}

/// Draws a bar per side from zero to the median, and a line for its interval.
pub fn bars(title: &str, lines: &[Line<'_, Interval>]) -> String {
    let most = most(lines, |value| value.high);
    draw(title, lines, |text, line, value, y| {
        let (end, middle) = (LABELS + PLOT * value.median / most, y + ROW / 2.);
        let (low, high) = (LABELS + PLOT * value.low / most, LABELS + PLOT * value.high / most);
        bar(text, line.kind.class(), LABELS, end, y);
        segment(text, low, high, middle);
        for x in [low, high] {
            let (top, bottom) = (middle - 4., middle + 4.);
            let _ = write!(text, "<path class=\"line\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>");
        }
        format!("{} ({} to {})", Figure(value.median), Figure(value.low), Figure(value.high))
    })
}

/// Draws two times per side on a logarithmic scale, as a full and an empty circle.
pub fn times(title: &str, lines: &[Line<'_, (f64, f64)>]) -> String {
    let most = most(lines, |value| value.0.max(value.1)).log10().ceil();
    let least = lines
        .iter()
        .filter_map(|line| line.value)
        .map(|(first, second)| first.min(second))
        .fold(f64::INFINITY, f64::min)
        .max(1e-3)
        .log10()
        .floor()
        .min(most - 1.);
    let place = |value: f64| LABELS + PLOT * (value.max(1e-3).log10() - least) / (most - least);
    let mut svg = draw(title, lines, |text, line, &(first, second), y| {
        let middle = y + ROW / 2.;
        segment(text, place(first), place(second), middle);
        for (value, class) in [(first, "full"), (second, "empty")] {
            let (x, kind) = (place(value), line.kind.class());
            let _ = write!(
                text,
                "<circle class=\"{kind} {class}\" cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"5\"/>"
            );
        }
        format!("{} and {}", Figure(first), Figure(second))
    });
    svg.push_str("<p class=\"scale\">from ");
    let _ = write!(svg, "{} to {} µs, ", 10_f64.powf(least), 10_f64.powf(most));
    svg.push_str("on a scale on which ten times as much is always as far</p>");
    svg
}

/// Draws the distribution of times per side: the fraction of requests that took at most this time,
/// on a logarithmic scale. The y axis magnifies the tail: 90 %, 99 %, 99.9 %.
pub fn spreads(title: &str, lines: &[Line<'_, Spread>]) -> String {
    const HEIGHT: f64 = 220.;
    const FOOT: f64 = 18.;
    /// Number of answers that determines the largest fraction on the y axis.
    const COUNT: u64 = 10_000;
    let there = || lines.iter().filter_map(|line| Some((line, line.value.as_ref()?)));
    let all = || there().flat_map(|(_, spread)| &spread.0).map(|point| point.1.max(1e-3).log10());
    let (least, most) =
        (all().fold(f64::INFINITY, f64::min).floor(), all().fold(-3., f64::max).ceil());
    if there().next().is_none() || most <= least {
        return String::new();
    }
    let area =
        Area { left: LABELS / 2., right: WIDTH - LABELS / 2., top: 8., bottom: HEIGHT - FOOT };
    let times = Axis::log(10_f64.powf(least), 10_f64.powf(most), COARSE, |at| format!("{at} µs"));
    let parts = Axis::nines(COUNT);
    let x = |time: f64| area.x(&times, time);
    let y = |part: f64| area.y(&parts, part).max(area.top);
    let mut text = format!(
        "<h4>{title}</h4><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{title}\">",
        title = escaped(title)
    );
    for (part, name) in &parts.ticks {
        grid(&mut text, format!("M{:.1} {:.1}H{:.1}", area.left, y(*part), area.right));
        word(&mut text, "none", 0., y(*part) + 4., name);
    }
    for (time, name) in &times.ticks {
        grid(&mut text, format!("M{:.1} {:.1}V{:.1}", x(*time), y(0.), area.top));
        word(&mut text, "none", x(*time) - 12., HEIGHT - 4., name);
    }
    let mut key = Vec::new();
    for (n, (line, spread)) in there().enumerate() {
        let points: Vec<String> =
            spread.0.iter().map(|&(part, time)| format!("{:.1} {:.1}", x(time), y(part))).collect();
        let (class, side, path) = (line.kind.class(), escaped(line.side), points.join("L"));
        let _ = write!(
            text,
            "<path class=\"spread {class}\" d=\"M{path}\"><title>{side}</title></path>"
        );
        // Place each label at another height, to avoid overlaps of close lines.
        let height = [0.9999, 0.9, 0.99, 0.5, 0.999, 0.95][n % 6];
        if let Some(&(part, time)) = spread.0.iter().rfind(|point| point.0 <= height) {
            word(&mut text, "side", x(time) + 3., y(part) + 10., n + 1);
        }
        key.push(format!("{} {side}", n + 1));
    }
    text + "</svg><p class=\"scale\">" + &key.join(", ") + "</p>"
}

fn grid(text: &mut String, path: String) {
    let _ = write!(text, "<path class=\"grid\" d=\"{path}\"/>");
}

/// CSS classes of a bar's parts, in order.
pub const PARTS: [&str; 4] = ["client", "program", "engine", "rest"];

/// Draws a stacked bar per side.
pub fn stacks(title: &str, lines: &[Line<'_, [f64; PARTS.len()]>]) -> String {
    let most = most(lines, |parts| parts.iter().sum());
    draw(title, lines, |text, _, parts, y| {
        let mut x = LABELS;
        for (part, class) in parts.iter().zip(PARTS) {
            let end = x + PLOT * part / most;
            bar(text, class, x, end, y);
            x = end;
        }
        let sum: f64 = parts.iter().sum();
        if sum < 10. { format!("{sum:.2}") } else { Figure(sum).to_string() }
    })
}

/// Returns the largest value, which determines the scale of the plot.
fn most<T>(lines: &[Line<'_, T>], of: impl Fn(&T) -> f64) -> f64 {
    let values = lines.iter().filter_map(|line| line.value.as_ref()).map(of);
    values.fold(0., f64::max).max(1e-9)
}

/// Draws a row per side. `one` draws its value, and returns its text.
fn draw<T>(
    title: &str,
    lines: &[Line<'_, T>],
    one: impl Fn(&mut String, &Line<'_, T>, &T, f64) -> String,
) -> String {
    let height = ROW * lines.len() as f64;
    let mut text = format!(
        "<h4>{title}</h4><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{title}\">",
        title = escaped(title)
    );
    for (n, line) in lines.iter().enumerate() {
        let y = ROW * n as f64;
        let base = y + ROW / 2. + 4.;
        word(&mut text, "side", 0., base, line.side);
        match &line.value {
            Some(value) => {
                let said = one(&mut text, line, value, y);
                let (short, _) = said.split_once(" (").unwrap_or((&said, ""));
                word(&mut text, "figure", LABELS + PLOT + 8., base, short);
                let _ = write!(text, "<rect class=\"hover\" x=\"0\" y=\"{y}\" width=\"{WIDTH}\" ");
                let (side, said) = (escaped(line.side), escaped(&said));
                let _ = write!(text, "height=\"{ROW}\"><title>{side}: {said}</title></rect>");
            }
            None => word(&mut text, "none", LABELS, base, "missing"),
        }
    }
    text + "</svg>"
}

fn bar(text: &mut String, class: &str, from: f64, to: f64, y: f64) {
    let (top, width) = (y + (ROW - BAR) / 2., (to - from).max(0.));
    let _ = write!(
        text,
        "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
         height=\"{BAR}\"/>"
    );
}

fn segment(text: &mut String, from: f64, to: f64, y: f64) {
    let _ = write!(text, "<path class=\"line\" d=\"M{from:.1} {y:.1}H{to:.1}\"/>");
}

fn word(text: &mut String, class: &str, x: f64, y: f64, word: impl Display) {
    let word = escaped(&word.to_string());
    let _ = write!(text, "<text class=\"{class}\" x=\"{x}\" y=\"{y:.1}\">{word}</text>");
}
