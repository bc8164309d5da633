//! Bytes of a request, and what completes its answer.
//!
//! A [`Dialogue`] is made once per thread. Each user has a [`Reader`], which keeps its place
//! between two reads with no buffer but a line.

use crate::failure::Failure;
use crate::http::{self, HttpReader};
use crate::plan::{Answer, NUMBER_LEN, Plan, Protocol, Shape};
use crate::redis::{self, RedisReader};
use crate::verdict::{Cause, Step, Trouble, Verdict};

/// Request of a plan, and the form of its answers.
pub struct Dialogue {
    /// Bytes of one request.
    pub request: Vec<u8>,
    pub form: Form,
    /// Whether datagrams begin with a number.
    pub numbered: bool,
}

/// Form of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Echo,
    Length(usize),
    Any,
    Http,
    Redis,
}

impl Dialogue {
    pub fn new(plan: &Plan) -> Self {
        let (request, form) = match &plan.protocol {
            Protocol::Tcp | Protocol::Udp => (plan.message.clone(), Form::of(plan.answer)),
            Protocol::Http1 { path, host } => {
                let host = host.as_deref().unwrap_or(&plan.target.name);
                let stays = plan.shape != Shape::ConnectEach;
                (http::request(path, host, stays), Form::Http)
            }
            Protocol::Redis { words } => (redis::request(words), Form::Redis),
        };
        Self { request, form, numbered: plan.numbered }
    }

    /// Checks a whole datagram against the expected answer.
    pub fn check_datagram(&self, bytes: &[u8]) -> Result<(), Trouble> {
        let expected = match self.form {
            Form::Echo => self.request.len(),
            Form::Length(bytes) => bytes,
            _ => return Ok(()),
        };
        if bytes.len() != expected {
            let is_short = bytes.len() < expected;
            let kind = if is_short { Failure::ShortAnswer } else { Failure::LongAnswer };
            return Err(Trouble::lengths(kind, bytes.len(), expected));
        }
        let skip = if self.numbered { NUMBER_LEN } else { 0 };
        match self.form {
            Form::Echo => same(&bytes[skip..], &self.request[skip..], skip),
            _ => Ok(()),
        }
    }
}

impl Form {
    fn of(answer: Answer) -> Self {
        match answer {
            Answer::Echo => Self::Echo,
            Answer::Length { bytes } => Self::Length(bytes),
            Answer::Any => Self::Any,
        }
    }
}

/// A user's place in an answer.
pub enum Reader {
    /// Bytes of the answer so far.
    Raw(usize),
    Http(HttpReader),
    Redis(RedisReader),
}

impl Reader {
    pub fn new(form: Form) -> Self {
        match form {
            Form::Echo | Form::Length(_) | Form::Any => Self::Raw(0),
            Form::Http => Self::Http(HttpReader::default()),
            Form::Redis => Self::Redis(RedisReader::default()),
        }
    }

    /// Whether a part of an answer has come.
    pub fn has_begun(&self) -> bool {
        match self {
            Self::Raw(got) => *got > 0,
            Self::Http(reader) => reader.has_begun(),
            Self::Redis(reader) => reader.has_begun(),
        }
    }

    /// Reads on. Bytes behind the end of the answer stay for the next call.
    pub fn read(&mut self, bytes: &[u8], dialogue: &Dialogue) -> Result<Step, Trouble> {
        match self {
            Self::Raw(got) => {
                let expected = match dialogue.form {
                    Form::Length(expected) => expected,
                    Form::Echo => dialogue.request.len(),
                    _ => bytes.len(),
                };
                let used = bytes.len().min(expected - *got);
                if dialogue.form == Form::Echo {
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

    /// The server closed the connection, which ends some answers.
    pub fn end(&mut self) -> Option<Verdict> {
        match self {
            Self::Http(reader) => reader.end(),
            Self::Raw(_) | Self::Redis(_) => None,
        }
    }
}

/// Compares a part of an echo, which begins at `offset`, with what was sent.
fn same(got: &[u8], expected: &[u8], offset: usize) -> Result<(), Trouble> {
    if got == expected {
        return Ok(());
    }
    let at = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let cause = Cause::Byte { at: offset + at, got: got[at], expected: expected[at] };
    Err(Trouble { kind: Failure::WrongAnswer, cause })
}
