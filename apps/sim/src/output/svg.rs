//! Draws charts as SVG without scripts, for self-contained pages.

use std::fmt::Write as _;

use towpath_chart::{Area, Axis, COARSE, FINE, Scale, escaped};

use crate::units::{bits_per_second, seconds, short};

/// Width and height of a chart in pixels, and the margins for its axes.
pub(super) const WIDTH: f64 = 640.;
pub(super) const HEIGHT: f64 = 300.;
const LEFT: f64 = 76.;
const RIGHT: f64 = 24.;
const TOP: f64 = 10.;
const BOTTOM: f64 = 42.;
const AREA: Area = Area { left: LEFT, right: WIDTH - RIGHT, top: TOP, bottom: HEIGHT - BOTTOM };

/// Colours of the series, which colour-blind people can distinguish (Okabe and Ito, 2008).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f7a00", "#777777"];

/// Maximum number of series in a chart that have their own colour and an entry in the legend.
pub(super) const SERIES_MAX: usize = COLOURS.len();

/// Unit of the values on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Seconds, formatted with a suitable prefix.
    Seconds,
    /// Bits per second.
    Bits,
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
    /// Fraction.
    Share,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Seconds => seconds(value),
            Self::Bits => bits_per_second(value),
            Self::Bytes if value >= 1e9 => format!("{} GB", short(value / 1e9)),
            Self::Bytes if value >= 1e6 => format!("{} MB", short(value / 1e6)),
            Self::Bytes if value >= 1e3 => format!("{} kB", short(value / 1e3)),
            Self::Bytes => format!("{} B", short(value)),
            Self::Packets => short(value),
            Self::Share => format!("{:.0} %", value * 100.),
        }
    }
}

/// How the points of a series are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeriesMark {
    /// Points joined by a line.
    Line,
    /// Points joined by steps. A value holds until the next point.
    Steps,
    /// A dot for each point.
    Dots,
    /// Vertical bars. Each pair of points is the lower and the upper end of a bar.
    Bars,
}

/// Series of points with a name.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub name: String,
    pub mark: SeriesMark,
    /// Index of the series' colour. `None` selects the index of the series.
    pub colour: Option<usize>,
    pub points: Vec<(f64, f64)>,
}

/// Chart that contains several series.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub title: String,
    /// Text below the title of the chart.
    pub caption: String,
    pub x: Unit,
    pub y: Unit,
    /// Whether the x axis is logarithmic, with a label per decade.
    pub is_log: bool,
    /// Visible range of the x axis. `None` selects the range of all points.
    pub window: Option<(f64, f64)>,
    /// Whether the y axis starts at 0.
    pub from_0: bool,
    /// Maximum of the y axis. Larger values are clipped there. `None` selects the largest value.
    pub top: Option<f64>,
    pub series: Vec<Series>,
}

impl Chart {
    /// Formats the chart as an HTML figure with a caption. Returns an empty string if no point of
    /// any series is visible.
    pub fn svg(&self) -> String {
        if !self.has_points() {
            return String::new();
        }
        let mut out = String::new();
        // Ignore the result: writing to a String cannot fail.
        let _ = write!(
            out,
            "<figure><figcaption><b>{}</b> {}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             role=\"img\" aria-label=\"{}\">",
            escaped(&self.title),
            escaped(&self.caption),
            escaped(&self.title)
        );
        self.draw(&mut out);
        out.push_str("</svg>");
        self.legend(&mut out);
        out.push_str("</figure>\n");
        out
    }

    /// Returns whether at least one point of any series is visible.
    pub fn has_points(&self) -> bool {
        self.axes().is_some()
    }

    /// Draws the grid and all series, in the coordinates of the chart.
    pub fn draw(&self, out: &mut String) {
        let Some([x, y]) = self.axes() else { return };
        grid(out, &x, &y);
        for (at, series) in self.series.iter().enumerate() {
            draw(out, series, self.colour(at), &x, &y);
        }
    }

    fn colour(&self, at: usize) -> &'static str {
        COLOURS[self.series[at].colour.unwrap_or(at) % COLOURS.len()]
    }

    /// Returns the colour and the name of each entry in the legend. A chart with a single series
    /// has no legend.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, String)> {
        let (count, few) = (self.series.len(), self.series.len().min(SERIES_MAX));
        let shown = if count < 2 { 0 } else { few };
        let named = (0..shown).map(|at| (self.colour(at), self.series[at].name.clone()));
        let more = (count > SERIES_MAX).then(|| ("none", format!("and {} more", count - few)));
        named.chain(more)
    }

    fn legend(&self, out: &mut String) {
        if self.named().next().is_none() {
            return;
        }
        out.push_str("<p class=legend>");
        for (colour, name) in self.named() {
            let name = escaped(&name);
            let _ = match colour {
                "none" => write!(out, "<span>{name}</span>"),
                _ => write!(out, "<span><i style=\"background:{colour}\"></i>{name}</span>"),
            };
        }
        out.push_str("</p>");
    }

    fn axes(&self) -> Option<[Axis; 2]> {
        let window = self.window.unwrap_or((f64::MIN, f64::MAX));
        let inside = |(x, _): &(f64, f64)| (window.0..=window.1).contains(x);
        let points = || self.series.iter().flat_map(|series| &series.points).filter(|p| inside(p));
        points().next()?;
        let fold = |of: fn(&(f64, f64)) -> f64| {
            points().map(of).fold((f64::MAX, f64::MIN), |(lo, hi), v| (lo.min(v), hi.max(v)))
        };
        let (mut x, mut y) = (self.window.unwrap_or(fold(|p| p.0)), fold(|p| p.1));
        if self.is_log {
            let least = points().map(|p| p.0).filter(|x| *x > 0.).fold(f64::MAX, f64::min);
            x.0 = if least == f64::MAX { 1e-6 } else { least };
            x.1 = x.1.max(x.0 * 4.);
        }
        if self.from_0 {
            y.0 = 0.;
        }
        y.1 = y.1.min(self.top.unwrap_or(f64::MAX));
        if y.1 <= y.0 {
            y.1 = y.0 + 1.;
        } else {
            y.1 += (y.1 - y.0) * 0.04;
        }
        if x.1 <= x.0 {
            x.1 = x.0 + 1.;
        }
        let show_x = |value| self.x.show(value);
        let x = if self.is_log {
            let decades = x.1.log10().ceil() - x.0.log10().floor();
            Axis::log(x.0, x.1, if decades < 3. { FINE } else { COARSE }, show_x)
        } else {
            Axis::linear(x.0, x.1, show_x)
        };
        Some([x, Axis::linear(y.0, y.1, |value| self.y.show(value))])
    }
}

fn grid(out: &mut String, x: &Axis, y: &Axis) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    out.push_str("<g class=\"grid\">");
    for (value, text) in &x.ticks {
        let at = AREA.x(x, *value);
        let _ = write!(
            out,
            "<path d=\"M{at:.1} {TOP}V{bottom}\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{text}</text>",
            bottom + 18.
        );
    }
    for (value, text) in &y.ticks {
        let at = AREA.y(y, *value);
        let _ = write!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{right}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{text}</text>",
            LEFT - 6.,
            at + 4.
        );
    }
    out.push_str("</g>");
}

fn draw(out: &mut String, series: &Series, colour: &str, x: &Axis, y: &Axis) {
    let is_log = x.scale == Scale::Log;
    let is_shown = |at: f64| (x.from - 1e-12..=x.to + 1e-12).contains(&at) || is_log;
    let place = |&(at, value): &(f64, f64)| (AREA.x(x, at), AREA.y(y, value.min(y.to)));
    let mut path = String::new();
    match series.mark {
        SeriesMark::Line | SeriesMark::Steps => {
            let mut last = None;
            for point in series.points.iter().filter(|point| is_shown(point.0)) {
                let at = place(point);
                let _ = match last {
                    None => write!(path, "M{:.1} {:.1}", at.0, at.1),
                    Some(_) if series.mark == SeriesMark::Steps => {
                        write!(path, "H{:.1}V{:.1}", at.0, at.1)
                    }
                    Some(_) => write!(path, "L{:.1} {:.1}", at.0, at.1),
                };
                last = Some(at);
            }
            let _ = write!(out, "<path class=\"line\" stroke=\"{colour}\" d=\"{path}\"/>");
        }
        SeriesMark::Dots => {
            let mut before = (i64::MIN, i64::MIN);
            for point in series.points.iter().filter(|point| is_shown(point.0)) {
                let at = place(point);
                // Draw only one dot if several have the same pixel.
                let pixel = (at.0 as i64, at.1 as i64);
                if pixel != before {
                    let _ = write!(path, "M{:.1} {:.1}h0", at.0, at.1);
                }
                before = pixel;
            }
            let _ = write!(out, "<path class=\"dots\" stroke=\"{colour}\" d=\"{path}\"/>");
        }
        SeriesMark::Bars => {
            for ends in series.points.chunks_exact(2).filter(|ends| is_shown(ends[0].0)) {
                let (low, high) = (place(&ends[0]), place(&ends[1]));
                // Draw at least a minimum height, because a segment of a long stream is less than a
                // pixel high.
                let top = high.1.min(low.1 - 1.5);
                let _ = write!(path, "M{:.1} {:.1}V{top:.1}", low.0, low.1);
            }
            let _ = write!(out, "<path class=\"bars\" stroke=\"{colour}\" d=\"{path}\"/>");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let series = Series { name: "a<b".into(), mark: SeriesMark::Line, colour: None, points };
        Chart {
            title: "t & t".into(),
            caption: String::new(),
            x: Unit::Seconds,
            y: Unit::Packets,
            is_log: false,
            window: None,
            from_0: true,
            top: None,
            series: vec![series.clone(), series],
        }
    }

    #[test]
    fn points_are_inside_of_the_axes_and_texts_are_escaped() {
        let svg = chart(vec![(0., 5.), (10., 50.)]).svg();
        // The axis ends at 50 plus a margin of 4 %. The expected height is therefore TOP plus 4 /
        // 104 of the height.
        assert!(svg.contains("M76.0 234.2L616.0 19.5"), "{svg}");
        assert!(svg.contains("t &amp; t") && svg.contains("a&lt;b"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_peak_above_the_top_is_cut_off() {
        let chart = Chart { top: Some(50.), ..chart(vec![(0., 5.), (5., 9000.), (10., 50.)]) };
        let svg = chart.svg();
        assert!(svg.contains("M76.0 234.2L346.0 10.0L616.0 19.5"), "{svg}");
    }

    #[test]
    fn charts_without_a_range_are_drawn_all_the_same() {
        assert_eq!(chart(Vec::new()).svg(), "");
        for points in [vec![(1., 0.)], vec![(0., 0.), (0., 0.)], vec![(3., 7.); 4]] {
            for is_log in [false, true] {
                let svg = Chart { is_log, ..chart(points.clone()) }.svg();
                assert!(svg.contains("<path") && !svg.contains("NaN"), "{svg}");
                assert!(!svg.contains("inf"), "{svg}");
            }
        }
    }
}
