//! Parses and formats times, rates, sizes and fractions, such as "20ms", "10mbit", "64KiB" and
//! "1%".
//!
//! Units are those of tc(8): `mbit` is 10^6 bits per second. `mbps`, which means bytes in tc, is
//! refused because many readers take it for bits.

use std::fmt;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use towpath_link::Probability;

/// Duration in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

/// Rate in bits per second. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(pub u64);

/// Size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Fraction, given as a percentage such as "1%" or as a number such as 0.01.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Share(pub Probability);

const TIMES: &[(&str, f64)] =
    &[("ns", 1.), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9), ("h", 3600e9)];
const RATES: &[(&str, f64)] =
    &[("bit", 1.), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("tbit", 1e12)];
const SIZES: &[(&str, f64)] = &[
    ("b", 1.),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("kib", 1024.),
    ("mib", 1048576.),
    ("gib", 1073741824.),
];

/// Maximum value in ns, bits or bytes. A double represents every integer up to this value.
const MOST: f64 = 9e15;

/// Parses a number followed by one of `units`. If `bare` is set, a number without a unit is in the
/// first unit.
fn parse(text: &str, units: &[(&str, f64)], bare: bool) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_')));
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let number: f64 = number.replace('_', "").parse().ok()?;
    let factor = match unit.trim() {
        "" => (bare || number == 0.).then_some(1.)?,
        unit => units.iter().find(|(name, _)| *name == unit)?.1,
    };
    let value = (number * factor).round();
    (0. ..=MOST).contains(&value).then_some(value as u64)
}

/// Formats a value in the largest of `units` in which it is an integer, for example "30s".
fn exact(value: u64, units: &[(&str, f64)]) -> String {
    let whole = |(_, factor): &&(&str, f64)| value.is_multiple_of(*factor as u64);
    let (unit, factor) = units.iter().rev().find(whole).copied().unwrap_or(units[0]);
    format!("{}{unit}", value / factor as u64)
}

impl Time {
    /// Parses a time with its unit, for example "20ms".
    pub fn parse(text: &str) -> Option<Self> {
        parse(text, TIMES, false).map(Self)
    }

    /// Formats the time for [`Time::parse`], in the largest unit in which it is an integer.
    pub(crate) fn exact(self) -> String {
        exact(self.0, &TIMES[..4])
    }

    /// Returns the time in seconds.
    pub fn secs(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Rate {
    /// Parses a rate with its unit, for example "10mbit". `None` for a rate of 0.
    pub fn parse(text: &str) -> Option<Self> {
        parse(text, RATES, false).filter(|rate| *rate > 0).map(Self)
    }

    /// Formats the rate for [`Rate::parse`], in the largest unit in which it is an integer.
    pub(crate) fn exact(self) -> String {
        exact(self.0, RATES)
    }
}

impl Size {
    /// Parses a size in bytes with an optional unit, for example "64KiB" or "1500".
    pub fn parse(text: &str) -> Option<Self> {
        parse(text, SIZES, true).map(Self)
    }
}

impl Share {
    /// Parses a percentage such as "1%", or a number from 0 to 1.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let number = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().ok()? / 100.,
            None => text.parse().ok()?,
        };
        Probability::new(number).map(Self)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&seconds(self.secs()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, shift) = match self.0 {
            0..=0x3ff => ("B", 0),
            0x400..=0xf_ffff => ("KiB", 10),
            0x10_0000..=0x3fff_ffff => ("MiB", 20),
            _ => ("GiB", 30),
        };
        let number = self.0 as f64 / (1u64 << shift) as f64;
        let whole = number.fract() == 0.;
        let number = if whole { number.to_string() } else { short(number) };
        write!(f, "{number} {unit}")
    }
}

/// Formats a time given in seconds, with the unit that keeps the number short.
pub fn seconds(value: f64) -> String {
    let (number, unit) = match value {
        v if v <= 0. => (0., "s"),
        v if v < 1e-3 => (v * 1e6, "us"),
        v if v < 1. => (v * 1e3, "ms"),
        v => (v, "s"),
    };
    format!("{} {unit}", short(number))
}

/// Formats a rate given in bits per second, with the unit that keeps the number short.
pub fn bits_per_second(value: f64) -> String {
    let (number, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "Gbit/s"),
        v if v >= 1e6 => (v / 1e6, "Mbit/s"),
        v if v >= 1e3 => (v / 1e3, "kbit/s"),
        v => (v, "bit/s"),
    };
    format!("{} {unit}", short(number))
}

/// Formats a number with three digits. If its integer part has more digits, all of them are kept.
pub fn short(number: f64) -> String {
    match number {
        0. => "0".to_owned(),
        n if n.abs() >= 100. => format!("{n:.0}"),
        n if n.abs() >= 10. => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

macro_rules! deserialize {
    ($name:ident, $expected:literal, |$number:ident| $from_number:expr) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        let wrong = || E::invalid_value(Unexpected::Str(text), &self);
                        $name::parse(text).ok_or_else(wrong)
                    }
                    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<$name, E> {
                        let wrong = || E::invalid_value(Unexpected::Signed(number), &self);
                        let $number = number as f64;
                        $from_number.ok_or_else(wrong)
                    }
                    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<$name, E> {
                        let wrong = || E::invalid_value(Unexpected::Float(number), &self);
                        let $number = number;
                        $from_number.ok_or_else(wrong)
                    }
                }
                from.deserialize_any(Text)
            }
        }
    };
}

deserialize!(Time, "a time with its unit, as \"20ms\" (ns, us, ms, s, min, h)", |number| {
    (number == 0.).then_some(Time(0))
});
deserialize!(
    Rate,
    "a rate above 0 with its unit, as \"10mbit\" (bit, kbit, mbit, gbit)",
    |number| {
        let _ = number;
        None::<Rate>
    }
);
deserialize!(Size, "a size, as \"64KiB\" or 1500 (B, kB, MB, KiB, MiB)", |number| {
    ((0. ..=MOST).contains(&number) && number.fract() == 0.).then_some(Size(number as u64))
});
deserialize!(Share, "a share, as \"1%\" or a number from 0 to 1", |number| {
    Probability::new(number).map(Share)
});

/// Start time such as "1s", or a range such as ["0s", "1s"] from which each run draws a start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StartTime {
    /// Earliest start time.
    pub from: Time,
    /// Latest start time, which is not before `from`.
    pub to: Time,
}

impl<'de> Deserialize<'de> for StartTime {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TimeOrRange;
        impl<'de> Visitor<'de> for TimeOrRange {
            type Value = StartTime;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with its unit, as \"1s\", or a range, as [\"0s\", \"1s\"]")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<StartTime, E> {
                let time = Time::parse(text);
                let time = time.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))?;
                Ok(StartTime { from: time, to: time })
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<StartTime, E> {
                let wrong = E::invalid_value(Unexpected::Signed(number), &self);
                if number == 0 { Ok(StartTime::default()) } else { Err(wrong) }
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<StartTime, A::Error> {
                let mut times = Vec::new();
                while let Some(time) = seq.next_element::<Time>()? {
                    times.push(time);
                }
                match times[..] {
                    [from, to] if from <= to => Ok(StartTime { from, to }),
                    [from, to] => Err(A::Error::custom(format!(
                        "the range begins at {from} and ends at {to}; expected the earlier first"
                    ))),
                    _ => Err(A::Error::invalid_length(times.len(), &self)),
                }
            }
        }
        from.deserialize_any(TimeOrRange)
    }
}

/// Names of hosts in a scenario: a single name, a list of names, or a pattern that ends with a
/// star.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostNames(pub Vec<String>);

impl<'de> Deserialize<'de> for HostNames {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = HostNames;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a host, a pattern as \"left*\", or a list of names")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<HostNames, E> {
                Ok(HostNames(vec![text.to_owned()]))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<HostNames, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = seq.next_element()? {
                    names.push(name);
                }
                if names.is_empty() {
                    return Err(A::Error::invalid_length(0, &self));
                }
                Ok(HostNames(names))
            }
        }
        from.deserialize_any(OneOrMore)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_people_write_them() {
        let times = ["20ms", "1.5s", "10 us", "2min", "0", "1_000ns"].map(Time::parse);
        let wanted = [20_000_000, 1_500_000_000, 10_000, 120_000_000_000, 0, 1_000];
        assert_eq!(times, wanted.map(|ns| Some(Time(ns))));
        assert_eq!(Rate::parse("10Mbit"), Some(Rate(10_000_000)));
        assert_eq!(Rate::parse("0.5gbit"), Some(Rate(500_000_000)));
        let sizes = ["64KiB", "1500", "2MB"].map(Size::parse);
        assert_eq!(sizes, [65_536, 1_500, 2_000_000].map(|bytes| Some(Size(bytes))));
        assert_eq!(Share::parse("50%"), Share::parse("0.5"));
    }

    #[test]
    fn exact_values_are_read_as_what_they_were() {
        let times = [30_000_000_000, 1_500_000_000, 50_000, 1, 0].map(|ns| Time(ns).exact());
        assert_eq!(times, ["30s", "1500ms", "50us", "1ns", "0s"]);
        let rates = [100_000_000, 1_000_000_000, 1_234_567].map(|bits| Rate(bits).exact());
        assert_eq!(rates, ["100mbit", "1gbit", "1234567bit"]);
        assert_eq!(Time::parse(&times[1]), Some(Time(1_500_000_000)));
        assert_eq!(Rate::parse(&rates[0]), Some(Rate(100_000_000)));
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        assert_eq!(["20", "-1ms", "ms", "1e3s", "9999999h", ""].map(Time::parse), [None; 6]);
        assert_eq!(["0mbit", "10", "10mbps", "10 mbit/s"].map(Rate::parse), [None; 4]);
        assert_eq!(["101%", "-1%", "2", "x"].map(Share::parse), [None; 4]);
    }

    #[test]
    fn numbers_are_shown_with_three_digits() {
        assert_eq!(seconds(0.0234), "23.4 ms");
        assert_eq!(seconds(12.), "12.0 s");
        assert_eq!(seconds(0.), "0 s");
        assert_eq!(bits_per_second(9_480_000.), "9.48 Mbit/s");
        assert_eq!(bits_per_second(123_400_000.), "123 Mbit/s");
        let sizes = [900, 1 << 10, 100_000, 1 << 22, 1_400_000_000].map(|it| Size(it).to_string());
        assert_eq!(sizes, ["900 B", "1 KiB", "97.7 KiB", "4 MiB", "1.30 GiB"]);
    }
}
