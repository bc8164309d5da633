//! Parses queueing disciplines in the syntax of tc(8), and measures the waiting times in queues.

use std::sync::{Arc, Mutex, PoisonError};

use towpath_qdisc::{
    Cobalt, CobaltParams, Codel, CodelParams, Counter, Dice, Dropped, Fifo, FqCodel, FqCodelParams,
    Pie, PieParams, Prio, Qdisc, Red, RedParams, Stats, Tbf, TbfParams,
};

use crate::histogram::NumberHistogram;
use crate::packet::SimPacket;
use crate::scenario::unknown_name;
use crate::units::{Rate, Size, Time};

/// Queueing discipline and its parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum QueueSpec {
    /// FIFO queue with a limit in packets.
    Pfifo(usize),
    /// FIFO queue with a limit in bytes.
    Bfifo(usize),
    /// Three FIFO queues of different priorities, each with a limit in packets.
    PfifoFast(usize),
    /// Token bucket filter.
    Tbf(TbfParams),
    /// RED.
    Red(RedParams),
    /// CoDel.
    Codel(CodelParams),
    /// FQ-CoDel.
    FqCodel(FqCodelParams),
    /// PIE.
    Pie(PieParams),
    /// COBALT.
    Cobalt(CobaltParams),
}

/// Default limit of a queue in packets, which is Linux's `txqueuelen` of an Ethernet device.
const LIMIT: usize = 1000;

const KINDS: &[&str] =
    &["pfifo", "bfifo", "pfifo_fast", "tbf", "red", "codel", "fq_codel", "pie", "cobalt"];

/// Returns the names of a discipline's parameters, for error messages.
fn parameters(kind: &str) -> &'static [&'static str] {
    match kind {
        "tbf" => &["rate", "burst", "limit"],
        "red" => &[
            "limit",
            "min",
            "max",
            "avpkt",
            "burst",
            "bandwidth",
            "probability",
            "ecn",
            "noecn",
            "harddrop",
            "adaptive",
        ],
        "codel" | "cobalt" => &["limit", "target", "interval", "ecn", "noecn"],
        "fq_codel" => {
            &["limit", "flows", "quantum", "target", "interval", "memory_limit", "ecn", "noecn"]
        }
        "pie" => &["limit", "target", "tupdate", "ecn", "noecn"],
        _ => &["limit"],
    }
}

/// Describes the valid values of a parameter, for error messages.
fn expected(key: &str) -> &'static str {
    match key {
        "target" | "interval" | "tupdate" => "a time above 0 with its unit, as 5ms",
        "rate" | "bandwidth" => "a rate above 0 with its unit, as 10mbit",
        "probability" => "a number above 0 and up to 1",
        "flows" => "a number from 1 to 65536",
        _ => "a number above 0",
    }
}

impl QueueSpec {
    /// Parses the arguments of `tc qdisc add … `, for example "fq_codel limit 1000 target 5ms
    /// noecn".
    ///
    /// # Errors
    /// Returns an error message about the first invalid argument.
    pub fn parse(words: &str) -> Result<Self, String> {
        let mut words = Words { words: words.split_whitespace(), kind: "" };
        words.kind = words.words.next().unwrap_or_default();
        match words.kind {
            "pfifo" => Ok(Self::Pfifo(words.limit(LIMIT, number)?)),
            "bfifo" => Ok(Self::Bfifo(words.limit(LIMIT * 1514, bytes)?)),
            "pfifo_fast" => Ok(Self::PfifoFast(words.limit(LIMIT, number)?)),
            "tbf" => words.tbf(),
            "red" => words.red(),
            "codel" => {
                let mut params = CodelParams::default();
                words.read(|key, value| codel_key(&mut params, key, value))?;
                Ok(Self::Codel(params))
            }
            "fq_codel" => {
                let mut all = FqCodelParams::default();
                words.read(|key, value| match key {
                    "flows" => set(&mut all.flows, number(value).filter(|n| *n <= 65_536)),
                    "quantum" => set(&mut all.quantum, above_0(value)),
                    "memory_limit" => set(&mut all.memory_limit, above_0(value)),
                    _ => codel_key(&mut all.codel, key, value),
                })?;
                Ok(Self::FqCodel(all))
            }
            "pie" => {
                let mut all = PieParams::default();
                words.read(|key, value| match key {
                    "limit" => set(&mut all.limit, number(value)),
                    "target" => set(&mut all.target_ns, time(value)),
                    "tupdate" => set(&mut all.tupdate_ns, time(value)),
                    _ => set(&mut all.ecn, marks(key)),
                })?;
                Ok(Self::Pie(all))
            }
            "cobalt" => {
                let mut all = CobaltParams::default();
                words.read(|key, value| match key {
                    "limit" => set(&mut all.limit, number(value)),
                    "target" => set(&mut all.target_ns, time(value)),
                    "interval" => set(&mut all.interval_ns, time(value)),
                    _ => set(&mut all.ecn, marks(key)),
                })?;
                Ok(Self::Cobalt(all))
            }
            kind => Err(unknown_name("qdisc", kind, KINDS)),
        }
    }

    /// Returns whether packets leave in their order of arrival, and no packet is dropped after it
    /// was queued.
    pub fn is_fifo(&self) -> bool {
        matches!(self, Self::Pfifo(_) | Self::Bfifo(_))
    }

    /// Creates an empty queueing discipline that records the waiting times of its packets. `key`
    /// seeds hashes and random draws.
    pub fn build(&self, key: u64, sojourns: &Sojourns) -> Box<dyn Qdisc<SimPacket>> {
        let dice = || Dice::new(key, 0);
        match self {
            Self::Pfifo(limit) => sojourns.of(Fifo::packets(*limit)),
            Self::Bfifo(limit) => sojourns.of(Fifo::bytes(*limit)),
            Self::PfifoFast(limit) => sojourns.of(Prio::pfifo_fast(*limit)),
            Self::Tbf(params) => sojourns.of(Tbf::new(*params)),
            Self::Red(params) => sojourns.of(Red::new(*params, dice())),
            Self::Codel(params) => sojourns.of(Codel::new(*params)),
            Self::FqCodel(params) => {
                sojourns.of(FqCodel::new(FqCodelParams { perturbation: key, ..*params }))
            }
            Self::Pie(params) => sojourns.of(Pie::new(*params, dice())),
            Self::Cobalt(params) => sojourns.of(Cobalt::new(*params, dice())),
        }
    }
}

/// Converts the arguments of tc, or a discipline's name in ns-3, to the arguments of a queue in a
/// scenario.
///
/// # Errors
/// Returns an error message about the first invalid argument.
pub fn qdisc_words(text: &str) -> Result<String, String> {
    let words = match text {
        "PfifoFast" => "pfifo_fast",
        // The limit corresponds to 0.1 s at 100 Mbit/s. ns-3 uses thresholds of 5 and 15 packets,
        // and a queue of 25 packets.
        "ARED" => "red limit 1250kb min 75kb max 225kb bandwidth 100mbit adaptive",
        "CoDel" => "codel",
        "FqCoDel" => "fq_codel",
        "PIE" => "pie",
        words => words,
    };
    QueueSpec::parse(words).map(|_| words.to_owned())
}

impl Default for QueueSpec {
    fn default() -> Self {
        Self::Pfifo(LIMIT)
    }
}

struct Words<'a> {
    words: std::str::SplitWhitespace<'a>,
    kind: &'a str,
}

impl<'a> Words<'a> {
    /// Parses all parameters of a discipline. `know` handles a key and its value, and returns
    /// `None` if they are invalid.
    fn read(&mut self, mut know: impl FnMut(&str, &str) -> Option<()>) -> Result<(), String> {
        while let Some((key, value)) = self.pair()? {
            let wrong =
                || format!("qdisc `{}`: `{key} {value}`: expected {}", self.kind, expected(key));
            know(key, value).ok_or_else(wrong)?;
        }
        Ok(())
    }

    /// Returns the next key and its value, which is empty for a flag. `None` if there are no more
    /// words.
    fn pair(&mut self) -> Result<Option<(&'a str, &'a str)>, String> {
        let Some(key) = self.words.next() else { return Ok(None) };
        let known = parameters(self.kind);
        if !known.contains(&key) {
            let what = format!("parameter of qdisc `{}`:", self.kind);
            return Err(unknown_name(&what, key, known));
        }
        if FLAGS.contains(&key) {
            return Ok(Some((key, "")));
        }
        match self.words.next() {
            Some(value) => Ok(Some((key, value))),
            None => Err(format!("qdisc `{}`: `{key}` needs a value", self.kind)),
        }
    }

    /// Parses the limit, which is the only parameter of a FIFO.
    fn limit(&mut self, default: usize, read: fn(&str) -> Option<usize>) -> Result<usize, String> {
        let mut limit = default;
        self.read(|key, value| match key {
            "limit" => set(&mut limit, read(value)),
            _ => None,
        })?;
        Ok(limit)
    }

    fn tbf(&mut self) -> Result<QueueSpec, String> {
        let (mut rate, mut burst, mut limit) = (None, None, None);
        self.read(|key, value| match key {
            "rate" => set(&mut rate, Rate::parse(value).map(|rate| Some(rate.0))),
            "burst" => set(&mut burst, bytes(value).map(|bytes| Some(bytes as u64))),
            "limit" => set(&mut limit, bytes(value).map(Some)),
            _ => None,
        })?;
        Ok(QueueSpec::Tbf(TbfParams {
            rate: self.needed("rate", rate)?,
            burst: self.needed("burst", burst)?,
            limit: self.needed("limit", limit)?,
            peakrate: None,
            mtu: 1514,
        }))
    }

    fn red(&mut self) -> Result<QueueSpec, String> {
        let (mut limit, mut min, mut max, mut burst) = (None, None, None, None);
        // Use the defaults of tc-red(8), or those of tc for 10 Mbit/s.
        let (mut avpkt, mut bandwidth, mut probability) = (1_000, 10_000_000, 0.02);
        let (mut ecn, mut harddrop, mut adaptive) = (false, false, false);
        let size = |value: &str| bytes(value).map(|bytes| Some(bytes as u64));
        self.read(|key, value| match key {
            "limit" => set(&mut limit, size(value)),
            "min" => set(&mut min, size(value)),
            "max" => set(&mut max, size(value)),
            "avpkt" => set(&mut avpkt, above_0(value)),
            "burst" => set(&mut burst, above_0(value).map(Some)),
            "bandwidth" => set(&mut bandwidth, Rate::parse(value).map(|rate| rate.0)),
            "probability" => {
                let share = value.parse().ok().filter(|share| *share > 0. && *share <= 1.);
                set(&mut probability, share)
            }
            "harddrop" => set(&mut harddrop, Some(true)),
            "adaptive" => set(&mut adaptive, Some(true)),
            _ => set(&mut ecn, marks(key)),
        })?;
        let (min, max) = (self.needed("min", min)?, self.needed("max", max)?);
        if min >= max {
            return Err(format!("qdisc `red`: `min {min}` is not below `max {max}`"));
        }
        // Use the default recommended by tc-red(8): (2 min + max) / (3 avpkt).
        let guess = ((2 * min + max) / (3 * avpkt)).clamp(1, u64::from(u32::MAX)) as u32;
        Ok(QueueSpec::Red(RedParams {
            limit: self.needed("limit", limit)?,
            min,
            max,
            avpkt,
            burst: burst.unwrap_or(guess),
            bandwidth,
            probability,
            ecn,
            harddrop,
            adaptive,
            gentle: true,
        }))
    }

    fn needed<T>(&self, key: &str, value: Option<T>) -> Result<T, String> {
        value.ok_or_else(|| format!("qdisc `{}` needs `{key}`", self.kind))
    }
}

/// Names of the parameters that have no value.
const FLAGS: &[&str] = &["ecn", "noecn", "harddrop", "adaptive"];

/// Sets a parameter of CoDel. `None` if its key or value is invalid.
fn codel_key(params: &mut CodelParams, key: &str, value: &str) -> Option<()> {
    match key {
        "limit" => set(&mut params.limit, number(value)),
        "target" => set(&mut params.target_ns, time(value)),
        "interval" => set(&mut params.interval_ns, time(value)),
        _ => set(&mut params.ecn, marks(key)),
    }
}

/// Sets a parameter to a value. `None` if the value is invalid.
fn set<T>(to: &mut T, value: Option<T>) -> Option<()> {
    *to = value?;
    Some(())
}

/// Parses the flags `ecn` and `noecn`. `None` for other keys.
fn marks(key: &str) -> Option<bool> {
    match key {
        "ecn" => Some(true),
        "noecn" => Some(false),
        _ => None,
    }
}

fn time(text: &str) -> Option<u64> {
    Time::parse(text).map(|time| time.0).filter(|ns| *ns > 0)
}

fn above_0<T: TryFrom<u64>>(text: &str) -> Option<T> {
    let size = Size::parse(text).filter(|size| size.0 > 0)?;
    T::try_from(size.0).ok()
}

fn bytes(text: &str) -> Option<usize> {
    above_0(text)
}

fn number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number| *number > 0)
}

/// Waiting times of the packets in a queue, shared with the discipline that records them.
#[derive(Debug, Clone, Default)]
pub struct Sojourns(Arc<Mutex<SojournTimes>>);

/// Waiting times of the packets in a queue.
#[derive(Debug, Default)]
pub struct SojournTimes {
    /// Histogram of all nonzero waiting times of a run. Most packets do not wait, and the
    /// discipline counts these.
    pub waits: NumberHistogram,
    /// Maximum waiting time since the last sample, in ns.
    pub max_ns: u64,
}

impl Sojourns {
    /// Locks the measurements, and calls `what` with them.
    pub fn with<R>(&self, what: impl FnOnce(&mut SojournTimes) -> R) -> R {
        // The lock is never contended, because a world runs on one thread. The numbers are valid
        // even after a panic.
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wraps a discipline so that the waiting times of its packets are recorded.
    fn of(&self, inner: impl Qdisc<SimPacket> + 'static) -> Box<dyn Qdisc<SimPacket>> {
        Box::new(Observed { inner, sojourns: self.clone() })
    }
}

/// Discipline that records the waiting times of its packets.
struct Observed<Q> {
    inner: Q,
    sojourns: Sojourns,
}

impl<Q: Qdisc<SimPacket>> Qdisc<SimPacket> for Observed<Q> {
    fn enqueue(&mut self, now_ns: u64, item: SimPacket, drops: &mut Vec<Dropped<SimPacket>>) {
        self.inner.enqueue(now_ns, item, drops);
    }

    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<SimPacket>>) -> Option<SimPacket> {
        let item = self.inner.dequeue(now_ns, drops)?;
        let waited = now_ns.saturating_sub(item.entered_ns);
        if waited > 0 {
            self.sojourns.with(|times| {
                times.waits.record(waited);
                times.max_ns = times.max_ns.max(waited);
            });
        }
        Some(item)
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        self.inner.next_timeout_ns()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn counters(&self) -> Vec<Counter> {
        self.inner.counters()
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_tc_are_read() {
        assert_eq!(QueueSpec::parse("pfifo limit 50"), Ok(QueueSpec::Pfifo(50)));
        assert_eq!(QueueSpec::parse("bfifo limit 15140"), Ok(QueueSpec::Bfifo(15_140)));
        assert_eq!(QueueSpec::parse("bfifo limit 30kb"), Ok(QueueSpec::Bfifo(30_000)));
        let codel = CodelParams { target_ns: 10_000_000, ..CodelParams::default() };
        assert_eq!(QueueSpec::parse("codel target 10ms"), Ok(QueueSpec::Codel(codel)));
        let Ok(QueueSpec::FqCodel(fq)) = QueueSpec::parse("fq_codel flows 8 noecn limit 99") else {
            panic!("fq_codel")
        };
        assert_eq!((fq.flows, fq.codel.ecn, fq.codel.limit), (8, false, 99));
        let Ok(QueueSpec::Tbf(tbf)) = QueueSpec::parse("tbf rate 8mbit burst 10kb limit 20kb")
        else {
            panic!("tbf")
        };
        assert_eq!((tbf.rate, tbf.burst, tbf.limit), (8_000_000, 10_000, 20_000));
        let words = "red limit 90kb min 15kb max 45kb adaptive probability 0.1";
        let Ok(QueueSpec::Red(red)) = QueueSpec::parse(words) else { panic!("red") };
        assert_eq!((red.min, red.max, red.burst, red.probability), (15_000, 45_000, 25, 0.1));
        assert!(
            matches!(QueueSpec::parse(&format!("{words} ecn")), Ok(QueueSpec::Red(red)) if red.ecn)
        );
        assert!(!red.ecn && red.adaptive && red.gentle && !red.harddrop);
        let Ok(QueueSpec::Pie(pie)) = QueueSpec::parse("pie target 20ms tupdate 30ms") else {
            panic!("pie")
        };
        assert_eq!((pie.target_ns, pie.tupdate_ns), (20_000_000, 30_000_000));
        let Ok(QueueSpec::Cobalt(cobalt)) = QueueSpec::parse("cobalt noecn limit 70") else {
            panic!("cobalt")
        };
        assert_eq!((cobalt.ecn, cobalt.limit), (false, 70));
    }

    #[test]
    fn words_that_mean_nothing_are_named() {
        for (words, wanted) in [
            ("fq_codl", "did you mean `fq_codel`"),
            ("", "expected one of pfifo"),
            ("pfifo limit", "`limit` needs a value"),
            ("pfifo limit 0", "`limit 0`"),
            ("codel target 5", "`target 5`: expected a time above 0 with its unit, as 5ms"),
            (
                "codel targt 5ms",
                "unknown parameter of qdisc `codel`: `targt`; did you mean `target`?",
            ),
            ("codel flows 5", "`flows`; expected one of limit, target, interval, ecn, noecn"),
            ("fq_codel flows 65537", "`flows 65537`: expected a number from 1 to 65536"),
            ("pfifo depth", "`depth`; expected one of limit"),
            ("tbf rate 8mbit", "needs `burst`"),
            ("pie interval 5ms", "`interval`; expected one of limit, target, tupdate"),
            ("red limit 9kb min 5kb max 5kb", "`min 5000` is not below `max 5000`"),
            ("codel harddrop", "`harddrop`; expected one of"),
            ("pfifo ecn", "unknown parameter"),
        ] {
            let error = QueueSpec::parse(words).expect_err(words);
            assert!(error.contains(wanted), "{words}: {error}");
        }
    }

    #[test]
    fn parameters_that_messages_name_are_read() {
        for kind in KINDS {
            let needed = match *kind {
                "tbf" => "rate 8mbit burst 10kb limit 20kb",
                "red" => "limit 90kb min 15kb max 45kb",
                _ => "",
            };
            for key in parameters(kind) {
                let value = match *key {
                    "ecn" | "noecn" | "harddrop" | "adaptive" => "",
                    "target" | "interval" | "tupdate" => "7ms",
                    "rate" | "bandwidth" => "8mbit",
                    "probability" => "0.5",
                    "min" => "16kb",
                    "max" => "46kb",
                    _ => "1000",
                };
                let words = format!("{kind} {needed} {key} {value}");
                assert!(QueueSpec::parse(&words).is_ok(), "{words}");
            }
        }
    }
}
