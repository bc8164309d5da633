//! Axes and text of charts in SVG.
//!
//! An [`Axis`] converts values to positions, and has ticks at round values. An [`Area`] converts
//! positions to coordinates. The caller draws the chart, and its HTML page contains the styles.
//!
//! ```
//! use towpath_chart::{Area, Axis, escaped};
//!
//! let area = Area { left: 60., right: 620., top: 10., bottom: 280. };
//! let x = Axis::linear(0., 10., |seconds| format!("{seconds} s"));
//! assert_eq!(x.ticks[1], (2., "2 s".to_owned()));
//! assert_eq!(area.x(&x, 5.), 340.);
//! assert_eq!(escaped("a < b"), "a &lt; b");
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// Maximum number of steps between the ticks of a linear axis.
const STEPS_MAX: f64 = 5.;
/// Positions of the ticks within a decade of a logarithmic axis.
pub const FINE: &[f64] = &[1., 2., 5.];
/// Positions of the ticks within a decade of an axis that covers many decades.
pub const COARSE: &[f64] = &[1.];

/// Returns `text` with the special characters of HTML and SVG escaped.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// How an axis maps values to positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences between values have equal lengths.
    Linear,
    /// Equal ratios of values have equal lengths.
    Log,
    /// Equal ratios of the distance to 1 have equal lengths, such as from 90 % to 99 % and to 99.9
    /// %.
    Nines,
}

/// Axis of a chart: its scale, its range, and its ticks with their labels.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Scale that maps values to positions.
    pub scale: Scale,
    /// Value at the start of the axis.
    pub from: f64,
    /// Value at the end of the axis.
    pub to: f64,
    /// Values at which the axis has a tick, and their labels, in ascending order.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Creates a linear axis. Its ticks are at one, two or five times a power of ten.
    pub fn linear(from: f64, to: f64, label: impl Fn(f64) -> String) -> Self {
        let to = from + (to - from).max(1e-12);
        let rough = (to - from) / STEPS_MAX;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1., 2., 5., 10.].map(|step| step * power).into_iter().find(|it| *it >= rough);
        let step = step.unwrap_or(rough);
        let first = (from / step).ceil() as i64;
        let last = (to / step + 1e-9).floor() as i64;
        let ticks = (first..=last).map(|nth| nth as f64 * step).map(|at| (at, label(at)));
        Self { scale: Scale::Linear, from, to, ticks: ticks.collect() }
    }

    /// Creates a logarithmic axis between two positive values. `steps` contains the positions of
    /// the ticks within a decade, for example [`FINE`].
    pub fn log(from: f64, to: f64, steps: &[f64], label: impl Fn(f64) -> String) -> Self {
        let decades = from.log10().floor() as i32..=to.log10().ceil() as i32;
        let all = decades.flat_map(|power| steps.iter().map(move |it| it * 10_f64.powi(power)));
        let inside = |at: &f64| (from..=to * 1.000_001).contains(at);
        let ticks = all.filter(inside).map(|at| (at, label(at)));
        Self { scale: Scale::Log, from, to, ticks: ticks.collect() }
    }

    /// Creates an axis of fractions, up to the largest fraction that `count` values can
    /// distinguish.
    pub fn nines(count: u64) -> Self {
        let most = (count.max(10) as f64).log10();
        let mut ticks = vec![(0., "0 %".to_owned()), (0.5, "50 %".to_owned())];
        for nines in 1..=most.floor() as i32 {
            let share = 1. - 10_f64.powi(-nines);
            let digits = (nines - 2).max(0) as usize;
            ticks.push((share, format!("{:.digits$} %", share * 100.)));
        }
        Self { scale: Scale::Nines, from: 0., to: 1. - 10_f64.powf(-most), ticks }
    }

    /// Returns the position of a value along the axis: 0 at its start, and 1 at its end. For a
    /// value outside of the axis, the position is less than 0 or more than 1.
    pub fn share(&self, value: f64) -> f64 {
        let (from, to) = (self.place(self.from), self.place(self.to));
        (self.place(value) - from) / (to - from).max(1e-12)
    }

    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(self.from).log10(),
            Scale::Nines => -(1. - value).max(1e-12).log10(),
        }
    }
}

/// Rectangle between the axes of a chart, given by its coordinates. `top` is less than `bottom`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Area {
    /// Coordinate at which the x axis starts.
    pub left: f64,
    /// Coordinate at which the x axis ends.
    pub right: f64,
    /// Coordinate at which the y axis ends.
    pub top: f64,
    /// Coordinate at which the y axis starts.
    pub bottom: f64,
}

impl Area {
    /// Returns the x coordinate of a value on `axis`.
    pub fn x(&self, axis: &Axis, value: f64) -> f64 {
        self.left + (self.right - self.left) * axis.share(value)
    }

    /// Returns the y coordinate of a value on `axis`.
    pub fn y(&self, axis: &Axis, value: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * axis.share(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| &*tick.1).collect()
    }

    #[test]
    fn axes_have_round_ticks() {
        let number = |value: f64| format!("{value}");
        assert_eq!(ticks(&Axis::linear(0., 9.3, number)), ["0", "2", "4", "6", "8"]);
        assert_eq!(ticks(&Axis::linear(0., 10., number)), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(ticks(&Axis::linear(0., 43., number)), ["0", "10", "20", "30", "40"]);
        assert_eq!(ticks(&Axis::log(0.02, 0.2, FINE, number)), ["0.02", "0.05", "0.1", "0.2"]);
        assert_eq!(ticks(&Axis::log(0.02, 20., COARSE, number)), ["0.1", "1", "10"]);
        let wanted = ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"];
        assert_eq!(ticks(&Axis::nines(100_000)), wanted);
    }

    #[test]
    fn nines_are_equally_far_apart() {
        let axis = Axis::nines(10_000);
        let places = [0., 0.9, 0.99, 0.999, 0.9999].map(|share| axis.share(share));
        for (n, place) in places.into_iter().enumerate() {
            assert!((place - n as f64 / 4.).abs() < 1e-6, "{place}");
        }
    }

    #[test]
    fn values_outside_of_an_axis_stay_finite() {
        let axis = Axis::log(1e-3, 1., FINE, |_| String::new());
        assert_eq!(axis.share(0.), 0.);
        assert!(axis.share(10.) > 1. && Axis::nines(0).share(1.).is_finite());
        assert!(Axis::linear(3., 3., |_| String::new()).share(3.).is_finite());
    }
}
