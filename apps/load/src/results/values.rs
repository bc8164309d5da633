//! Parses the values of options: times, rates, formats and assertions.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::{PlannedAnswer, Report};

use super::figures;

/// Maximum time in an option, in seconds. Larger times could overflow when added.
const SECONDS_MAX: f64 = 366. * 86400.;
/// Maximum value of `--message-size` in bytes. Streams (`--shape up`) are more suitable for larger
/// requests.
const MESSAGE_MAX: usize = 64 << 20;

/// Parses a time with units, such as `10s`, `100ms`, `1m30s` or `1.5h`. Zero needs no unit.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!("\"{text}\" is not a time: expected a number and its unit, as 10s, 100ms or 1m30s")
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut seconds, mut rest) = (0., text);
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.,
            "m" => 60.,
            "h" => 3600.,
            _ => return Err(wrong()),
        };
        seconds += number * scale;
        rest = tail;
    }
    if seconds > SECONDS_MAX {
        return Err(format!("\"{text}\" is too long: expected at most 8784h, a year"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses a rate with an optional suffix `k` or `M`, such as `2000`, `2k` or `1.5M`.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.),
    };
    let rate = number.parse::<f64>().ok().filter(|rate| rate.is_finite());
    rate.map(|rate| rate * scale)
        .ok_or_else(|| format!("\"{text}\" is not a rate: expected a number, as 2000, 2k or 1.5M"))
}

/// Parses the value of `--message-size`, in bytes.
pub fn parse_message_size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| (1..=MESSAGE_MAX).contains(size));
    size.ok_or_else(|| format!("\"{text}\" is not a size: expected 1 to {MESSAGE_MAX} bytes"))
}

/// Parses the value of `--answer`.
pub fn parse_answer(text: &str) -> Result<PlannedAnswer, String> {
    match text {
        "echo" => Ok(PlannedAnswer::Echo),
        "any" => Ok(PlannedAnswer::Any),
        bytes => match bytes.parse() {
            Ok(bytes) => Ok(PlannedAnswer::Length { bytes }),
            Err(_) => Err(format!(
                "\"{text}\" is not an answer: expected echo, any, or a number of bytes"
            )),
        },
    }
}

/// Replaces each of the escapes `\n`, `\r`, `\t`, `\0`, `\\` and `\xHH` by its byte.
pub fn parse_message(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        let (byte, len) = match rest {
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b't', ..] => (b'\t', 1),
            [b'0', ..] => (0, 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', high, low, ..] => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                    return Err(no_escape(text));
                };
                ((high * 16 + low) as u8, 3)
            }
            _ => return Err(no_escape(text)),
        };
        bytes.push(byte);
        rest = &rest[len..];
    }
    Ok(bytes)
}

fn no_escape(text: &str) -> String {
    format!("\"{text}\" has a \\ without a meaning: expected \\n, \\r, \\t, \\0, \\xHH or \\\\")
}

/// Format in which the figures are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultFormat {
    /// Text that people read.
    Text,
    /// JSON document with all figures.
    Json,
    /// CSV with a row per run.
    Csv,
    /// CSV with a row per period of each run.
    Series,
    /// HTML page with plots.
    Html,
}

/// Value of the option `-o`: a format and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Format in which the output is written.
    pub format: ResultFormat,
    /// File to write. `None` selects standard output.
    pub file: Option<PathBuf>,
}

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(format) = by_extension(text) {
            return Ok(Self { format, file: Some(PathBuf::from(text)) });
        }
        let (name, file) = match text.split_once('=') {
            None => (text, None),
            Some((_, "")) => return Err(format!("\"{text}\" names no file behind the =")),
            Some((name, file)) => (name, Some(PathBuf::from(file))),
        };
        let format = match name {
            "text" => ResultFormat::Text,
            "json" => ResultFormat::Json,
            "csv" => ResultFormat::Csv,
            "series" => ResultFormat::Series,
            "html" => ResultFormat::Html,
            _ => {
                return Err(format!(
                    "\"{name}\" is not a format: expected text, json, csv, series or html, or a \
                     file whose name ends in .html, .json, .csv or .txt"
                ));
            }
        };
        Ok(Self { format, file })
    }
}

/// Returns the format for the extension of a file such as `report.html`. `None` if the text
/// contains a format.
fn by_extension(text: &str) -> Option<ResultFormat> {
    let formats = ["text=", "json=", "csv=", "series=", "html="];
    if formats.iter().any(|format| text.starts_with(format)) {
        return None;
    }
    match Path::new(text).extension()?.to_str()? {
        "html" => Some(ResultFormat::Html),
        "json" => Some(ResultFormat::Json),
        "csv" => Some(ResultFormat::Csv),
        "txt" => Some(ResultFormat::Text),
        _ => None,
    }
}

/// Value of the option `--on`: the network stack that has the users' sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Sockets of the kernel on this machine.
    Kernel,
    /// Sockets of Towpath's stack, behind its gateway.
    Rootless,
    /// Sockets of Towpath's stack on a TAP device, with the name of the device if one was given.
    Tap(Option<String>),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kernel" => Ok(Self::Kernel),
            "rootless" => Ok(Self::Rootless),
            "tap" => Ok(Self::Tap(None)),
            _ => match text.strip_prefix("tap=") {
                Some(name) if !name.is_empty() => Ok(Self::Tap(Some(name.to_owned()))),
                _ => Err(format!(
                    "\"{text}\" is not a place: expected kernel, rootless, tap or tap=NAME"
                )),
            },
        }
    }
}

impl Place {
    /// Returns the keyword of the option.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Rootless => "rootless",
            Self::Tap(_) => "tap",
        }
    }
}

/// Figure to which an assertion applies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum AssertedFigure {
    /// Number of answers per second.
    Rate,
    /// Number of failures of all kinds.
    Failures,
    /// Arithmetic mean of the times.
    Average,
    /// Maximum of the times.
    Longest,
    /// Quantile of the times, given as a fraction.
    Quantile(f64),
}

/// Value of the option `--assert`: a bound on a figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    text: String,
    figure: AssertedFigure,
    is_upper: bool,
    takes_equal: bool,
    /// Bound on the figure: seconds, a number per second, or a number of failures.
    bound: f64,
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "\"{text}\" is not an assertion: expected one as 'p99<5ms', 'avg<=1ms', \
                 'rate>1000' or 'failures<1'"
            )
        };
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (name, rest) = text.split_at(at);
        let is_upper = rest.starts_with('<');
        let (takes_equal, value) = match rest[1..].strip_prefix('=') {
            Some(value) => (true, value),
            None => (false, &rest[1..]),
        };
        let figure = match name.trim() {
            "rate" => AssertedFigure::Rate,
            "failures" => AssertedFigure::Failures,
            "avg" => AssertedFigure::Average,
            "max" => AssertedFigure::Longest,
            quantile => AssertedFigure::Quantile(parse_quantile(quantile).ok_or_else(wrong)?),
        };
        let value = value.trim();
        let bound = match figure {
            AssertedFigure::Rate | AssertedFigure::Failures => parse_rate(value)?,
            _ => parse_time(value)?.as_secs_f64(),
        };
        Ok(Self { text: text.to_owned(), figure, is_upper, takes_equal, bound })
    }
}

impl Goal {
    /// Returns the assertion as given on the command line.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether a report meets the bound. A bound on times is not met if there are no
    /// answers.
    ///
    /// Failed and unsent requests have no time. Each of them counts as later than every bound.
    pub fn holds(&self, report: &Report) -> bool {
        let times = figures::main_times(report);
        let value = match self.figure {
            AssertedFigure::Rate => report.rate(),
            AssertedFigure::Failures => report.failures.total() as f64,
            _ if times.is_empty() => return false,
            figure => figure.time(report).map_or(f64::INFINITY, |time| time.as_secs_f64()),
        };
        self.takes_equal && value == self.bound
            || if self.is_upper { value < self.bound } else { value > self.bound }
    }

    /// Formats the measured value of the figure for a message.
    pub fn found(&self, report: &Report) -> String {
        match self.figure {
            AssertedFigure::Rate => figures::rate(report.rate()),
            AssertedFigure::Failures => report.failures.total().to_string(),
            _ if figures::main_times(report).is_empty() => "without an answer".to_owned(),
            figure => match figure.time(report) {
                Some(time) => figures::time(time),
                None => format!(
                    "beyond every time: {} of {} due requests had no answer",
                    unanswered(report),
                    due(report)
                ),
            },
        }
    }
}

impl AssertedFigure {
    /// Returns the time of this figure over all due requests. `None` if an unanswered request
    /// determines it.
    fn time(self, report: &Report) -> Option<Duration> {
        let times = figures::main_times(report);
        let missing = unanswered(report) as f64 / due(report).max(1) as f64;
        match self {
            Self::Quantile(share) => {
                // Convert the quantile of all requests to a quantile of the answered requests.
                let of_answered = share / (1. - missing);
                (of_answered <= 1.).then(|| times.quantile(of_answered))
            }
            // Tolerate the few unsent requests at the end of a run.
            _ if missing > figures::UNSENT_NOTED => None,
            Self::Average => Some(times.mean()),
            _ => Some(times.max()),
        }
    }
}

/// Returns the number of requests that were due in the measurement.
fn due(report: &Report) -> u64 {
    report.scheduled.max(report.sent)
}

/// Returns the number of due requests that failed or were not sent.
fn unanswered(report: &Report) -> u64 {
    due(report).saturating_sub(figures::main_times(report).count())
}

/// Value of the option `--search`: a bound on a quantile of the response times.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Name of the quantile, for example `p99`.
    pub name: String,
    /// Fraction of the requests that must meet the bound.
    pub share: f64,
    /// Maximum response time of these requests.
    pub bound: Duration,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not a limit: expected one as p99=5ms");
        let (name, bound) = text.split_once(['=', '<']).ok_or_else(wrong)?;
        let share = parse_quantile(name).ok_or_else(wrong)?;
        let bound = parse_time(bound)?;
        if bound.is_zero() {
            return Err(wrong());
        }
        Ok(Self { name: name.to_owned(), share, bound })
    }
}

/// Parses a quantile such as `p99` or `p99.9`, and returns it as a fraction.
fn parse_quantile(text: &str) -> Option<f64> {
    let percent: f64 = text.strip_prefix('p')?.parse().ok()?;
    (percent > 0. && percent < 100.).then_some(percent / 100.)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_sums_of_numbers_with_units() {
        let good = [
            ("10s", 10.),
            ("100ms", 0.1),
            ("1m30s", 90.),
            ("1.5h", 5400.),
            ("250us", 250e-6),
            ("250µs", 250e-6),
            ("5ns", 5e-9),
            ("0", 0.),
            ("0s", 0.),
        ];
        for (text, seconds) in good {
            assert_eq!(parse_time(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "10", "s", "-1s", "1d", "1.2.3s", "10 s", "1e3s", "9000h"] {
            let error = parse_time(text).expect_err(text);
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }

    #[test]
    fn rates_may_end_in_k_or_m() {
        for (text, rate) in [("2000", 2000.), ("2k", 2000.), ("1.5M", 1.5e6), ("0", 0.)] {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        for text in ["", "k", "x", "2K", "inf", "nan"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn messages_may_contain_escapes() {
        let good: [(&str, &[u8]); 4] = [
            ("hello", b"hello"),
            (r"a\r\n\t\0\\", b"a\r\n\t\0\\"),
            (r"\x00\xfF!", b"\x00\xff!"),
            ("ü", "ü".as_bytes()),
        ];
        for (text, bytes) in good {
            assert_eq!(parse_message(text).as_deref(), Ok(bytes), "{text}");
        }
        for text in [r"\", r"\q", r"\x1", r"\xgg"] {
            assert!(parse_message(text).is_err(), "{text}");
        }
    }

    #[test]
    fn outputs_are_formats_with_or_without_a_file() {
        let html = Output { format: ResultFormat::Html, file: Some("a=b.html".into()) };
        assert_eq!("html=a=b.html".parse(), Ok(html));
        assert_eq!("csv".parse(), Ok(Output { format: ResultFormat::Csv, file: None }));
        let named = |file: &str| file.parse::<Output>().map(|it| (it.format, it.file));
        assert_eq!(named("a/r.html"), Ok((ResultFormat::Html, Some("a/r.html".into()))));
        assert_eq!(named("a=b.json"), Ok((ResultFormat::Json, Some("a=b.json".into()))));
        assert_eq!(named("series=a.csv"), Ok((ResultFormat::Series, Some("a.csv".into()))));
        for text in ["", "xml", "json=", "=file", "r.pdf"] {
            assert!(text.parse::<Output>().is_err(), "{text}");
        }
    }

    #[test]
    fn places_are_named() {
        assert_eq!("tap=t0".parse(), Ok(Place::Tap(Some("t0".into()))));
        assert_eq!("rootless".parse(), Ok(Place::Rootless));
        for text in ["", "tap=", "kernels"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn answers_are_an_echo_or_a_length() {
        assert_eq!(parse_answer("echo"), Ok(PlannedAnswer::Echo));
        assert_eq!(parse_answer("12"), Ok(PlannedAnswer::Length { bytes: 12 }));
        assert!(parse_answer("-1").is_err());
    }

    #[test]
    fn limits_name_a_quantile_and_a_time() {
        let limit: Limit = "p99.9=5ms".parse().expect("a limit");
        assert_eq!((&*limit.name, limit.share), ("p99.9", 0.9990000000000001));
        assert_eq!(limit.bound, Duration::from_millis(5));
        for text in ["", "p99", "p100=1s", "p0=1s", "99=1s", "p99=0", "p99=5"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }

    #[test]
    fn requests_that_failed_or_never_left_are_later_than_every_bound() {
        let mut report = super::super::samples::report();
        let holds = |text: &str, report: &Report| text.parse::<Goal>().expect(text).holds(report);
        // In this report, 3000 of 3003 requests were answered.
        assert!(holds("p99<5ms", &report) && !holds("p99.95<1h", &report));
        report.generator.unsent = 27_000;
        report.scheduled += 27_000;
        for text in ["p99<1h", "p50<1h", "max<1h", "avg<1h"] {
            assert!(!holds(text, &report), "{text}");
        }
        assert!(holds("p5<5ms", &report), "a tenth was answered");
        let found = "p99<1h".parse::<Goal>().expect("a goal").found(&report);
        assert_eq!(found, "beyond every time: 27003 of 30003 due requests had no answer");
        assert!(holds("failures<=3", &report), "these are no failures");
    }

    #[test]
    fn assertions_compare_a_figure_with_a_bound() {
        let report = super::super::samples::report();
        let cases = [
            ("p99<5ms", true),
            ("p99<500us", false),
            ("p50 <= 1s", true),
            ("max>1h", false),
            ("rate>1", true),
            ("rate<1", false),
            ("failures<1", false),
            ("failures<=3", true),
            ("failures<3", false),
            ("avg<1h", true),
        ];
        for (text, holds) in cases {
            let goal: Goal = text.parse().expect(text);
            assert_eq!(goal.holds(&report), holds, "{text}: {}", goal.found(&report));
        }
        for text in ["", "p99", "p99=1ms", "p99<1", "speed>1", "rate>x", "<1ms"] {
            assert!(text.parse::<Goal>().is_err(), "{text}");
        }
    }
}
