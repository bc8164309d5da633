//! Times of load, and of echo requests.

use crate::units::Time;

/// Number of samples per line of the text.
pub(super) const SAMPLES_OF_LINE: u64 = 10;
/// Name used if there is no queueing discipline.
pub(super) const NO_QDISC: &str = "none";
/// Maximum number of lines of statistics per run.
const LINES_MAX: u64 = 2_000;

/// Period in which load is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Start of the period.
    pub from: Time,
    /// End of the period.
    pub to: Time,
    /// Lengths of alternating on and off phases. None means always on.
    pub phases: Option<[Time; 2]>,
}

impl Load {
    /// Returns whether load is generated at a time.
    pub(super) fn is_on(&self, at_ns: u64) -> bool {
        let Some(since) = at_ns.checked_sub(self.from.0).filter(|_| at_ns < self.to.0) else {
            return false;
        };
        self.phases.is_none_or(|[on, off]| since % (on.0 + off.0).max(1) < on.0)
    }
}

/// Echo requests of an example.
#[derive(Debug, Clone)]
pub(super) struct Pings {
    pub remote: String,
    pub start_ns: u64,
    pub interval_ns: u64,
}

/// Returns the sampling interval for lines that are printed every `every_ns`.
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
