//! Creates the bytes of requests, and detects the end of their answers.
//!
//! A [`Dialogue`] is created once per thread. Each user has a [`Reader`], which keeps its parsing
//! state between reads and buffers at most one line.

use crate::failure::Failure;
use crate::plan::{NUMBER_LEN, Plan, PlannedAnswer, Protocol, RANDOM, Shape};
use crate::redis::{self, RedisReader};
use crate::response::HttpReader;
use crate::schedule::SplitMix;
use crate::verdict::{Cause, Step, Trouble, Verdict};

/// Request of a plan, and the form of the answers to it.
pub struct Dialogue {
    /// Bytes of a single request.
    pub request: Vec<u8>,
    pub form: AnswerForm,
    /// Whether each datagram starts with a sequence number.
    pub numbered: bool,
    /// Offsets in a request at which random numbers are inserted.
    slots: Vec<usize>,
    keyspace: u64,
    seed: u64,
    /// Maximum number of requests in one write. See [`Dialogue::train`].
    train_max: usize,
    /// Repeated requests for one write. If all requests are equal, they are built only once. Empty
    /// if `train_max` is one.
    train: Vec<u8>,
}

/// Maximum length in bytes of a write that contains several requests. Longer writes save little
/// time, because a system call costs about as much as a copy of a few KiB.
const TRAIN: usize = 64 * 1024;
/// Number of digits of a random number in a request.
const DIGITS: usize = RANDOM.len();

/// Form of the answers that a user expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerForm {
    Echo,
    Length(usize),
    Any,
    Http { is_head: bool },
    Redis,
}

impl Dialogue {
    pub fn new(plan: &Plan) -> Self {
        let (request, form) = match &plan.protocol {
            Protocol::Tcp | Protocol::Udp => (plan.message.clone(), AnswerForm::of(plan.answer)),
            Protocol::Http1(request) => {
                let stays = plan.shape != Shape::ConnectEach;
                let bytes = request.bytes(&plan.target.name, stays);
                (bytes, AnswerForm::Http { is_head: request.is_head() })
            }
            Protocol::Redis { words } => (redis::request(words), AnswerForm::Redis),
        };
        let slots = if form == AnswerForm::Redis { redis::slots(&request) } else { Vec::new() };
        let train_max = (TRAIN / request.len().max(1)).clamp(1, plan.depth);
        let is_varied = !slots.is_empty() || plan.numbered || train_max == 1;
        let train = if is_varied { Vec::new() } else { request.repeat(train_max) };
        let (keyspace, seed, numbered) = (plan.keyspace, plan.seed, plan.numbered);
        Self { request, form, numbered, slots, keyspace, seed, train_max, train }
    }

    /// Returns bytes for one write, so that several requests that are due share a system call. The
    /// user has `left` unsent bytes of requests, and the result is their beginning. `number` is the
    /// number of the first of these requests.
    pub fn train(&mut self, user: u64, number: u64, left: usize) -> &[u8] {
        let len = self.request.len();
        let skip = (len - left % len) % len;
        if self.numbered {
            // Each write must contain a single datagram.
            self.request[..NUMBER_LEN].copy_from_slice(&number.to_be_bytes());
            return &self.request;
        }
        if !self.slots.is_empty() {
            self.train.clear();
            let count = left.div_ceil(len).min(self.train_max);
            (0..count as u64).for_each(|n| self.add_varied(user, number + n));
        } else if self.train.is_empty() {
            return &self.request[skip..];
        }
        &self.train[skip..self.train.len().min(skip + left)]
    }

    /// Appends a request that contains random numbers.
    ///
    /// The numbers are a function of the seed, the user and the number of the request. A request
    /// that was sent only in part can therefore be generated again.
    fn add_varied(&mut self, user: u64, number: u64) {
        let base = self.train.len();
        self.train.extend_from_slice(&self.request);
        let mut random = SplitMix::new(self.seed ^ user.rotate_left(40) ^ number);
        for slot in &self.slots {
            let mut value = random.next() % self.keyspace;
            let digits = &mut self.train[base + slot..base + slot + DIGITS];
            for digit in digits.iter_mut().rev() {
                *digit = b'0' + (value % 10) as u8;
                value /= 10;
            }
        }
    }

    /// Compares a whole datagram with the expected answer.
    pub fn check_datagram(&self, bytes: &[u8]) -> Result<(), Trouble> {
        let expected = match self.form {
            AnswerForm::Echo => self.request.len(),
            AnswerForm::Length(bytes) => bytes,
            _ => return Ok(()),
        };
        if bytes.len() != expected {
            let is_short = bytes.len() < expected;
            let kind = if is_short { Failure::ShortAnswer } else { Failure::LongAnswer };
            return Err(Trouble::lengths(kind, bytes.len(), expected));
        }
        let skip = if self.numbered { NUMBER_LEN } else { 0 };
        match self.form {
            AnswerForm::Echo => same(&bytes[skip..], &self.request[skip..], skip),
            _ => Ok(()),
        }
    }
}

impl AnswerForm {
    fn of(answer: PlannedAnswer) -> Self {
        match answer {
            PlannedAnswer::Echo => Self::Echo,
            PlannedAnswer::Length { bytes } => Self::Length(bytes),
            PlannedAnswer::Any => Self::Any,
        }
    }
}

/// State of parsing the current answer to a user.
pub enum Reader {
    /// Number of bytes of the answer that were received so far.
    Raw(usize),
    Http(HttpReader),
    Redis(RedisReader),
}

impl Reader {
    pub fn new(form: AnswerForm) -> Self {
        match form {
            AnswerForm::Echo | AnswerForm::Length(_) | AnswerForm::Any => Self::Raw(0),
            AnswerForm::Http { is_head } => Self::Http(HttpReader::new(is_head)),
            AnswerForm::Redis => Self::Redis(RedisReader::default()),
        }
    }

    /// Returns whether a part of an answer was received.
    pub fn has_begun(&self) -> bool {
        match self {
            Self::Raw(got) => *got > 0,
            Self::Http(reader) => reader.has_begun(),
            Self::Redis(reader) => reader.has_begun(),
        }
    }

    /// Parses further bytes of an answer. Bytes after the end of the answer are left for the next
    /// call.
    pub fn read(&mut self, bytes: &[u8], dialogue: &Dialogue) -> Result<Step, Trouble> {
        match self {
            Self::Raw(got) => {
                let expected = match dialogue.form {
                    AnswerForm::Length(expected) => expected,
                    AnswerForm::Echo => dialogue.request.len(),
                    _ => bytes.len(),
                };
                let used = bytes.len().min(expected - *got);
                if dialogue.form == AnswerForm::Echo {
                    same(&bytes[..used], &dialogue.request[*got..*got + used], *got)?;
                }
                *got += used;
                if *got < expected {
                    return Ok(Step::Partial);
                }
                *got = 0;
                Ok(Step::Whole { used, verdict: Verdict::default() })
            }
            Self::Http(reader) => reader.read(bytes),
            Self::Redis(reader) => reader.read(bytes),
        }
    }

    /// Handles that the server has closed the connection, which completes some answers. `None` if
    /// the answer is incomplete.
    pub fn end(&mut self) -> Option<Verdict> {
        match self {
            Self::Http(reader) => reader.end(),
            Self::Raw(_) | Self::Redis(_) => None,
        }
    }
}

/// Compares a part of an echo with the bytes that were sent. `offset` is the position of the part
/// in the answer.
fn same(got: &[u8], expected: &[u8], offset: usize) -> Result<(), Trouble> {
    if got == expected {
        return Ok(());
    }
    let at = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let cause = Cause::Byte { at: offset + at, got: got[at], expected: expected[at] };
    Err(Trouble { kind: Failure::WrongAnswer, cause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Target;

    /// Returns all bytes of `count` requests, if each write accepts at most `taken` bytes.
    fn sent(dialogue: &mut Dialogue, count: usize, taken: usize) -> Vec<u8> {
        let len = dialogue.request.len();
        let mut bytes = Vec::new();
        let mut left = count * len;
        while left > 0 {
            let number = (count - left.div_ceil(len)) as u64;
            let part = dialogue.train(3, number, left);
            assert!(!part.is_empty() && part.len() <= left);
            let part = &part[..part.len().min(taken)];
            bytes.extend_from_slice(part);
            left -= part.len();
        }
        bytes
    }

    fn plan() -> Plan {
        let mut plan = Plan::new(Target::from(std::net::SocketAddr::from(([127, 0, 0, 1], 7))));
        plan.depth = 16;
        plan
    }

    #[test]
    fn requests_that_are_due_at_once_are_one_write() {
        let mut dialogue = Dialogue::new(&plan());
        assert_eq!(dialogue.train(0, 0, 16 * 6), b"hello\n".repeat(16));
        for taken in [1, 4, 6, 7, 100] {
            assert_eq!(sent(&mut dialogue, 40, taken), b"hello\n".repeat(40), "{taken}");
        }
    }

    #[test]
    fn random_keys_differ_and_stay_equal_in_the_rest_of_a_request() {
        let mut plan = plan();
        let words = ["SET", "k:__rand_int__", "__rand_int__"];
        plan.protocol = Protocol::Redis { words: words.map(str::to_owned).to_vec() };
        plan.keyspace = 1000;
        let mut dialogue = Dialogue::new(&plan);
        let all = sent(&mut dialogue, 200, usize::MAX);
        for taken in [1, 13, 50] {
            assert_eq!(sent(&mut dialogue, 200, taken), all, "{taken}");
        }
        let text = String::from_utf8(all).expect("digits");
        let keys: Vec<&str> = text.split("\r\n").filter_map(|it| it.strip_prefix("k:")).collect();
        assert_eq!(keys.len(), 200);
        for key in &keys {
            assert!(key.len() == 12 && key.parse::<u64>().is_ok_and(|it| it < 1000), "{key}");
        }
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        // 200 draws from 1000 keys have 181 different results on average, with a standard deviation
        // of 4.
        assert!(different.len() > 150, "{}", different.len());
    }
}
