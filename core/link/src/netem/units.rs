//! Numbers with units, as tc(8) reads them ("UNITS" of its manual page).

use crate::Probability;

/// Longest time: an hour.
const TIME_MAX_NS: f64 = 3600e9;
/// Fastest rate: 10 Tbit/s, at which a byte takes a nanosecond no more.
const RATE_MAX: f64 = 1e13;

/// Nanoseconds of a time; a bare number is microseconds.
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

/// Bits per second; a bare number is that, "bps" is bytes per second.
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

/// A percentage, with its sign or without.
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

/// A decimal number and the unit behind it.
fn split(word: &str) -> Option<(f64, &str)> {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    Some((word[..end].parse().ok()?, &word[end..]))
}
