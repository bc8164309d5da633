//! Link descriptions in the syntax of tc-netem(8): `delay 50ms 5ms loss 1% rate 20mbit limit 100`.

mod error;
mod units;
mod words;

#[cfg(test)]
mod tests;

use std::str::FromStr;

pub use error::NetemError;

use crate::{Chance, LinkConfig, Loss, Probability};
use words::{Word, Words};

/// A link described in the syntax of tc-netem(8).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Netem {
    /// Properties of the link. As in tc-netem, packets keep their order despite jitter if the
    /// description has a rate.
    pub config: LinkConfig,
    /// Seed of the random numbers, if the description has one.
    pub seed: Option<u64>,
}

/// Default of the property `limit` in packets, as in tc-netem.
const LIMIT_DEFAULT: usize = 1000;
/// Maximum of the property `limit` in packets. Each packet takes 2 KiB of memory.
const LIMIT_MAX: u64 = 100_000;

/// Keywords with which the properties of a link description begin.
const KEYWORDS: &str = "delay, loss, ecn, duplicate, corrupt, reorder, gap, rate, limit or seed";

impl FromStr for Netem {
    type Err = NetemError;

    fn from_str(text: &str) -> Result<Self, NetemError> {
        let mut words = Words::new(text);
        let mut parsed = Parsed::default();
        while let Some(word) = words.next() {
            parsed.property(word, &mut words)?;
        }
        parsed.finish(&words)
    }
}

/// The properties parsed so far, each with the word of the link description at which it begins.
#[derive(Default)]
struct Parsed<'a> {
    config: LinkConfig,
    seed: Option<u64>,
    seen: Vec<(&'a str, Word<'a>)>,
}

impl<'a> Parsed<'a> {
    fn property(&mut self, word: Word<'a>, words: &mut Words<'a>) -> Result<(), NetemError> {
        // As in tc-netem, `latency` is another name for `delay`, and `drop` for `loss`.
        let name = match word.text {
            "latency" => "delay",
            "drop" => "loss",
            name => name,
        };
        if self.seen.iter().any(|(seen, _)| *seen == name) {
            return Err(word.error(format!("{name} is given twice: leave one out")));
        }
        match name {
            "delay" => self.delay(words)?,
            "loss" => self.config.loss = loss(words)?,
            "ecn" => self.config.ecn = true,
            "duplicate" => self.config.duplicate = chance(words)?,
            "corrupt" => self.config.corrupt = chance(words)?,
            "reorder" => self.config.reorder = chance(words)?,
            "gap" => self.config.gap = words.value("a number of packets", units::count)?,
            "rate" => self.rate(words)?,
            "limit" => self.limit(words)?,
            "seed" => self.seed = Some(words.value("a number", units::number)?),
            "distribution" => return Err(word.error("distribution stands behind a delay".into())),
            "slot" => return Err(word.error("slot is not supported: leave slot out".into())),
            _ => return Err(word.error(format!("unknown word: expected {KEYWORDS}"))),
        }
        self.seen.push((name, word));
        Ok(())
    }

    /// Parses `delay TIME [JITTER [CORRELATION]] [distribution uniform]`.
    fn delay(&mut self, words: &mut Words<'a>) -> Result<(), NetemError> {
        const TIME: &str = "a time, as 50ms";
        self.config.delay_ns = words.value(TIME, units::time_ns)?;
        if words.is_number_next() {
            self.config.jitter_ns = words.value(TIME, units::time_ns)?;
        }
        if words.is_number_next() {
            self.config.jitter_correlation = percent(words)?;
        }
        let Some(distribution) = words.next_if("distribution") else { return Ok(()) };
        let expected = || "expected uniform, the distribution that is supported".to_owned();
        match words.next() {
            Some(word) if word.text == "uniform" => {}
            Some(word) => return Err(word.error(expected())),
            None => return Err(words.end(expected())),
        }
        if self.config.jitter_ns == 0 {
            return Err(distribution.error("distribution needs a jitter: delay 50ms 5ms".into()));
        }
        Ok(())
    }

    fn rate(&mut self, words: &mut Words<'a>) -> Result<(), NetemError> {
        self.config.rate = Some(words.value("a rate, as 20mbit", units::rate)?);
        if words.is_number_next()
            && let Some(word) = words.next()
        {
            let message = "the overhead of a packet is not supported: leave the number out";
            return Err(word.error(message.into()));
        }
        Ok(())
    }

    fn limit(&mut self, words: &mut Words<'a>) -> Result<(), NetemError> {
        let expected = "a number of packets, 1 to 100000";
        let limit = words.value(expected, |word| {
            units::number(word).filter(|limit| (1..=LIMIT_MAX).contains(limit))
        })?;
        self.config.limit = Some(limit as usize);
        Ok(())
    }

    /// Checks that the parsed properties are consistent with each other, and returns the link.
    fn finish(mut self, words: &Words<'a>) -> Result<Netem, NetemError> {
        let word = |name| self.seen.iter().find(|(seen, _)| *seen == name).map(|(_, word)| word);
        if self.seen.is_empty() {
            return Err(words.end(format!("nothing is given: expected {KEYWORDS}")));
        }
        if let Some(reorder) = word("reorder") {
            if self.config.delay_ns == 0 {
                let message = "reorder needs a delay, which the other packets have: delay 10ms";
                return Err(reorder.error(message.into()));
            }
        } else if let Some(gap) = word("gap") {
            return Err(gap.error("gap needs a chance: reorder 25% gap 5".into()));
        }
        if let Some(ecn) = word("ecn").filter(|_| self.config.loss == Loss::NONE) {
            return Err(ecn.error("ecn marks in the place of losses: loss 1% ecn".into()));
        }
        self.config.keeps_order = self.config.rate.is_some();
        self.config.limit.get_or_insert(LIMIT_DEFAULT);
        Ok(Netem { config: self.config, seed: self.seed })
    }
}

/// Parses `loss [random] PERCENT [CORRELATION]` or `loss gemodel P [R [1-H [1-K]]]`.
fn loss(words: &mut Words<'_>) -> Result<Loss, NetemError> {
    if let Some(state) = words.next_if("state") {
        let message = "loss state is not supported: expected a percentage, random or gemodel";
        return Err(state.error(message.into()));
    }
    if words.next_if("gemodel").is_none() {
        words.next_if("random");
        return chance(words).map(Loss::Random);
    }
    let to_bad = percent(words)?;
    let mut next = |default| {
        if words.is_number_next() { percent(words) } else { Ok(default) }
    };
    // The default is Gilbert's model: all packets are lost in the bad state, and none in the good
    // state.
    Ok(Loss::GilbertElliott {
        to_bad,
        to_good: next(to_bad.complement())?,
        in_bad: next(Probability::ALWAYS)?,
        in_good: next(Probability::NEVER)?,
    })
}

/// Parses `PERCENT [CORRELATION]`.
fn chance(words: &mut Words<'_>) -> Result<Chance, NetemError> {
    let probability = percent(words)?;
    let correlation = if words.is_number_next() { percent(words)? } else { Probability::NEVER };
    Ok(Chance { probability, correlation })
}

fn percent(words: &mut Words<'_>) -> Result<Probability, NetemError> {
    words.value("a percentage, 0% to 100%", units::percent)
}
