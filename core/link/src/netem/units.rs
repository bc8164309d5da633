//! Numbers with units, in the syntax of tc(8) (section UNITS of its manual page).

use crate::Probability;

/// Maximum time in nanoseconds: one hour.
const TIME_MAX_NS: f64 = 3600e9;
/// Maximum rate in bits per second: 10 Tbit/s, at which a byte takes 0.8 ps.
const RATE_MAX: f64 = 1e13;

/// Parses a time and returns it in nanoseconds. A number without a unit is in microseconds.
pub(super) fn time_ns(word: &str) -> Option<u64> {
    let (number, unit) = split(word)?;
    let ns = match unit {
        "s" | "sec" | "secs" => 1e9,
        "ms" | "msec" | "msecs" => 1e6,
        "us" | "usec" | "usecs" | "" => 1e3,
        "ns" | "nsec" | "nsecs" => 1.,
        _ => return None,
    };
    let time_ns = number * ns;
    (time_ns <= TIME_MAX_NS).then_some(time_ns.round() as u64)
}

/// Parses a rate and returns it in bits per second. As in tc, the unit "bps" means bytes per
/// second.
pub(super) fn rate(word: &str) -> Option<u64> {
    let (number, unit) = split(word)?;
    let unit = unit.to_ascii_lowercase();
    let (prefix, bits) = if let Some(prefix) = unit.strip_suffix("bps") {
        (prefix, 8.)
    } else if let Some(prefix) = unit.strip_suffix("bit") {
        (prefix, 1.)
    } else {
        (unit.as_str(), 1.)
    };
    let factor: f64 = match prefix {
        "" => 1.,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        "ki" => f64::from(1 << 10),
        "mi" => f64::from(1 << 20),
        "gi" => f64::from(1 << 30),
        "ti" => (1u64 << 40) as f64,
        _ => return None,
    };
    let rate = (number * factor * bits).round();
    (1. ..=RATE_MAX).contains(&rate).then_some(rate as u64)
}

/// Parses a percentage. The percent sign may be omitted.
pub(super) fn percent(word: &str) -> Option<Probability> {
    let (number, unit) = split(word)?;
    matches!(unit, "%" | "").then(|| Probability::new(number / 100.)).flatten()
}

pub(super) fn number(word: &str) -> Option<u64> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}

pub(super) fn count(word: &str) -> Option<u32> {
    u32::try_from(number(word)?).ok()
}

/// Splits a decimal number from its unit.
fn split(word: &str) -> Option<(f64, &str)> {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    Some((word[..end].parse().ok()?, &word[end..]))
}
