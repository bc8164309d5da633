//! Queueing disciplines by their words in tc(8), and what is measured of a queue.

use std::sync::{Arc, Mutex, PoisonError};

use towpath_qdisc::{
    Codel, CodelParams, Counter, Dropped, Fifo, FqCodel, FqCodelParams, Prio, Qdisc, Stats, Tbf,
    TbfParams,
};

use crate::histogram::Histogram;
use crate::packet::SimPacket;
use crate::scenario::unknown_name;
use crate::units::{Rate, Size, Time};

/// A discipline with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum QueueSpec {
    /// A FIFO with a limit in packets.
    Pfifo(usize),
    /// A FIFO with a limit in bytes.
    Bfifo(usize),
    /// Three FIFOs by priority, each with a limit in packets.
    PfifoFast(usize),
    /// A token bucket.
    Tbf(TbfParams),
    /// CoDel.
    Codel(CodelParams),
    /// FQ-CoDel.
    FqCodel(FqCodelParams),
}

/// Packets of a queue for which nothing else is said: Linux's `txqueuelen` of an Ethernet device.
const LIMIT: usize = 1000;

const KINDS: &[&str] = &["pfifo", "bfifo", "pfifo_fast", "tbf", "codel", "fq_codel"];

impl QueueSpec {
    /// Reads words as those of `tc qdisc add … `, as "fq_codel limit 1000 target 5ms noecn".
    ///
    /// # Errors
    /// A sentence about the word that means nothing.
    pub fn parse(words: &str) -> Result<Self, String> {
        let mut words = Words { words: words.split_whitespace(), kind: "" };
        words.kind = words.words.next().unwrap_or_default();
        match words.kind {
            "pfifo" => Ok(Self::Pfifo(words.limit(LIMIT, number)?)),
            "bfifo" => Ok(Self::Bfifo(words.limit(LIMIT * 1514, bytes)?)),
            "pfifo_fast" => Ok(Self::PfifoFast(words.limit(LIMIT, number)?)),
            "tbf" => words.tbf(),
            "codel" => {
                let mut params = CodelParams::default();
                words.codel(&mut params, |_, _| None)?;
                Ok(Self::Codel(params))
            }
            "fq_codel" => {
                let mut all = FqCodelParams::default();
                let mut codel = all.codel;
                let mut own = (None, None, None);
                words.codel(&mut codel, |key, value| match key {
                    "flows" => {
                        number(value).filter(|n| (1..=65_536).contains(n)).map(|n| own.0 = Some(n))
                    }
                    "quantum" => number(value).map(|n| own.1 = Some(n)),
                    "memory_limit" => Size::parse(value).map(|size| own.2 = Some(size.0)),
                    _ => None,
                })?;
                all.codel = codel;
                all.flows = own.0.unwrap_or(all.flows);
                all.quantum = own.1.map_or(all.quantum, |n| n as u32);
                all.memory_limit = own.2.unwrap_or(all.memory_limit);
                Ok(Self::FqCodel(all))
            }
            kind => Err(unknown_name("qdisc", kind, KINDS)),
        }
    }

    /// The discipline, empty. `key` is for hashes.
    pub fn build(&self, key: u64) -> Box<dyn Qdisc<SimPacket>> {
        match self {
            Self::Pfifo(limit) => Box::new(Fifo::packets(*limit)),
            Self::Bfifo(limit) => Box::new(Fifo::bytes(*limit)),
            Self::PfifoFast(limit) => Box::new(Prio::pfifo_fast(*limit)),
            Self::Tbf(params) => Box::new(Tbf::new(*params)),
            Self::Codel(params) => Box::new(Codel::new(*params)),
            Self::FqCodel(params) => {
                Box::new(FqCodel::new(FqCodelParams { perturbation: key, ..*params }))
            }
        }
    }
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
    /// The one parameter that a FIFO has.
    fn limit(&mut self, default: usize, read: fn(&str) -> Option<usize>) -> Result<usize, String> {
        let mut limit = default;
        while let Some((key, value)) = self.pair()? {
            limit = read(value)
                .filter(|n| key == "limit" && *n > 0)
                .ok_or_else(|| self.wrong(key, value))?;
        }
        Ok(limit)
    }

    fn tbf(&mut self) -> Result<QueueSpec, String> {
        let (mut rate, mut burst, mut limit) = (None, None, None);
        while let Some((key, value)) = self.pair()? {
            let known = match key {
                "rate" => Rate::parse(value).map(|value| rate = Some(value.0)),
                "burst" => Size::parse(value).map(|value| burst = Some(value.0)),
                "limit" => Size::parse(value).map(|value| limit = Some(value.0 as usize)),
                _ => None,
            };
            known.ok_or_else(|| self.wrong(key, value))?;
        }
        let missing = |key: &str| format!("qdisc `tbf` needs `{key}`");
        Ok(QueueSpec::Tbf(TbfParams {
            rate: rate.ok_or_else(|| missing("rate"))?,
            burst: burst.ok_or_else(|| missing("burst"))?,
            limit: limit.ok_or_else(|| missing("limit"))?,
            peakrate: None,
            mtu: 1514,
        }))
    }

    /// The parameters of CoDel, and those that `own` knows.
    fn codel(
        &mut self,
        params: &mut CodelParams,
        mut own: impl FnMut(&str, &str) -> Option<()>,
    ) -> Result<(), String> {
        while let Some((key, value)) = self.pair()? {
            let known = match key {
                "limit" => number(value).filter(|n| *n > 0).map(|n| params.limit = n),
                "target" => Time::parse(value).map(|time| params.target_ns = time.0),
                "interval" => Time::parse(value).map(|time| params.interval_ns = time.0),
                "ecn" | "noecn" => {
                    params.ecn = key == "ecn";
                    Some(())
                }
                key => own(key, value),
            };
            known.ok_or_else(|| self.wrong(key, value))?;
        }
        Ok(())
    }

    /// The next key and its value; flags have none.
    fn pair(&mut self) -> Result<Option<(&'a str, &'a str)>, String> {
        let Some(key) = self.words.next() else { return Ok(None) };
        if matches!(key, "ecn" | "noecn") {
            return Ok(Some((key, "")));
        }
        match self.words.next() {
            Some(value) => Ok(Some((key, value))),
            None => Err(format!("qdisc `{}`: `{key}` needs a value", self.kind)),
        }
    }

    fn wrong(&self, key: &str, value: &str) -> String {
        format!("qdisc `{}`: `{key} {value}` is not a valid parameter", self.kind)
    }
}

fn bytes(text: &str) -> Option<usize> {
    Size::parse(text).and_then(|size| usize::try_from(size.0).ok())
}

fn number(text: &str) -> Option<usize> {
    text.parse().ok()
}

/// Measurements of a queue, shared with the discipline that takes them.
#[derive(Debug, Clone, Default)]
pub struct Sojourns(Arc<Mutex<SojournTimes>>);

/// Times that packets waited.
#[derive(Debug, Default)]
pub struct SojournTimes {
    /// All of a run.
    pub all: Histogram,
    /// Largest since the last sample.
    pub max_ns: u64,
}

impl Sojourns {
    /// Looks at, or changes, the measurements.
    pub fn with<R>(&self, what: impl FnOnce(&mut SojournTimes) -> R) -> R {
        // Each world has one thread, so that no call waits; a panic elsewhere leaves plain numbers.
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A discipline whose packets are timed.
pub struct Observed {
    inner: Box<dyn Qdisc<SimPacket>>,
    sojourns: Sojourns,
}

impl Observed {
    /// Times the packets of `inner`.
    pub fn new(inner: Box<dyn Qdisc<SimPacket>>, sojourns: Sojourns) -> Self {
        Self { inner, sojourns }
    }
}

impl Qdisc<SimPacket> for Observed {
    fn enqueue(&mut self, now_ns: u64, item: SimPacket, drops: &mut Vec<Dropped<SimPacket>>) {
        self.inner.enqueue(now_ns, item, drops);
    }

    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<SimPacket>>) -> Option<SimPacket> {
        let item = self.inner.dequeue(now_ns, drops)?;
        let waited = now_ns.saturating_sub(item.entered_ns);
        self.sojourns.with(|times| {
            times.all.record(waited);
            times.max_ns = times.max_ns.max(waited);
        });
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
        let codel = CodelParams { target_ns: 10_000_000, ecn: true, ..CodelParams::default() };
        assert_eq!(QueueSpec::parse("codel target 10ms ecn"), Ok(QueueSpec::Codel(codel)));
        let Ok(QueueSpec::FqCodel(fq)) = QueueSpec::parse("fq_codel flows 8 noecn limit 99") else {
            panic!("fq_codel")
        };
        assert_eq!((fq.flows, fq.codel.ecn, fq.codel.limit), (8, false, 99));
        let Ok(QueueSpec::Tbf(tbf)) = QueueSpec::parse("tbf rate 8mbit burst 10kb limit 20kb")
        else {
            panic!("tbf")
        };
        assert_eq!((tbf.rate, tbf.burst, tbf.limit), (8_000_000, 10_000, 20_000));
    }

    #[test]
    fn words_that_mean_nothing_are_named() {
        for (words, wanted) in [
            ("fq_codl", "did you mean `fq_codel`"),
            ("", "expected one of pfifo"),
            ("pfifo limit", "`limit` needs a value"),
            ("pfifo limit 0", "`limit 0`"),
            ("codel target 5", "`target 5`"),
            ("codel flows 5", "`flows 5`"),
            ("tbf rate 8mbit", "needs `burst`"),
        ] {
            let error = QueueSpec::parse(words).expect_err(words);
            assert!(error.contains(wanted), "{words}: {error}");
        }
    }
}
