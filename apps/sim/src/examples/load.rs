//! When there is load, and when echo requests are sent.

use crate::units::Time;

/// Samples of the series between two lines of the text.
pub(super) const SAMPLES_OF_LINE: u64 = 10;
/// Name of the discipline where there is none.
pub(super) const NO_QDISC: &str = "none";
/// Most lines of statistics of a run.
const LINES_MAX: u64 = 2_000;

/// Times between which there is load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// First time.
    pub from: Time,
    /// Last time.
    pub to: Time,
    /// Lengths of its phases, on and off; it is always on without them.
    pub phases: Option<[Time; 2]>,
}

impl Load {
    /// Whether there is load at a time.
    pub(super) fn is_on(&self, at_ns: u64) -> bool {
        let Some(since) = at_ns.checked_sub(self.from.0).filter(|_| at_ns < self.to.0) else {
            return false;
        };
        self.phases.is_none_or(|[on, off]| since % (on.0 + off.0).max(1) < on.0)
    }
}

/// The echo requests of an example.
#[derive(Debug, Clone)]
pub(super) struct Pings {
    pub remote: String,
    pub start_ns: u64,
    pub interval_ns: u64,
}

/// Time between two samples, for lines that come `every_ns`.
pub(super) fn sample_of(every_ns: u64, duration_ns: u64) -> Result<u64, String> {
    let least = (duration_ns / LINES_MAX).max(SAMPLES_OF_LINE);
    if every_ns < least || every_ns > duration_ns {
        return Err(format!(
            "`every` is {}; expected {} to {}, the length of the run",
            Time(every_ns),
            Time(least),
            Time(duration_ns)
        ));
    }
    Ok(every_ns / SAMPLES_OF_LINE)
}
