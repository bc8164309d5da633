//! Requests and answers, as they are written in JSON.

use serde::{Deserialize, Serialize};

use crate::acl::{Acl, AclChange};
use crate::net::{Change, Net};
use crate::ports::Port;
use crate::sockets::{Socket, Word};

/// Version of the protocol. A run refuses requests of another version.
pub const VERSION: u32 = 1;

/// A request: one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub version: u32,
    #[serde(flatten)]
    pub call: Call,
}

/// A client's wish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Call {
    /// Nothing but the run's name and program.
    Info,
    /// Its sockets, or the flows of a proxy.
    Sockets,
    /// Its interfaces, routes and neighbours.
    Net,
    /// Its counters.
    Counters,
    /// Its ports, each with its device, its interface and its counters.
    Ports,
    /// All of these changes, or none.
    Apply {
        /// Changes, in order.
        changes: Vec<Change>,
    },
    /// Its access list, with counters.
    Acl,
    /// All of these changes of its access list, or none.
    #[serde(rename = "apply-acl")]
    ApplyAcl {
        /// Changes, in order.
        changes: Vec<AclChange>,
    },
}

/// Answer to a request: the first five fields, and the one that was asked for, or `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Version of the protocol.
    pub version: u32,
    /// Process id of `towpath run`, `router` or `proxy`.
    pub pid: u32,
    /// Name that `--name` gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Word>,
    /// Kind of the run.
    pub kind: RunKind,
    /// PROGRAM and its arguments.
    pub program: Vec<String>,
    /// To [`Call::Sockets`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Vec<Socket>>,
    /// To [`Call::Net`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<Net>,
    /// To [`Call::Counters`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Vec<Layer>>,
    /// To [`Call::Ports`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<Port>>,
    /// To [`Call::Acl`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Acl>,
    /// To [`Call::Apply`] and [`Call::ApplyAcl`]: changes made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<usize>,
    /// Reason why there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

/// Kind of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// `towpath run`.
    Run,
    /// `towpath proxy`, or `towpath proxy run`.
    Proxy,
    /// `towpath router`.
    Router,
}

/// Counters of one layer of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Name of the layer.
    pub name: Word,
    /// Names and values.
    pub counters: Vec<(Word, u64)>,
}

/// Reason why a run did not do what a request wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Word for programs: `request`, `version`, `unsupported`, `silent`, `gone`, `no-device`,
    /// `refused`.
    pub code: Word,
    /// Sentence for people.
    pub message: String,
    /// Place of the first change that cannot be made, from 0: with `no-device` and `refused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<usize>,
}

impl Fault {
    /// A fault with a code and a message.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Word::known(code), message: message.into(), at: None }
    }
}

impl Reply {
    /// An answer with nothing in it.
    pub fn new(kind: RunKind, program: Vec<String>) -> Self {
        Self {
            version: VERSION,
            pid: std::process::id(),
            name: None,
            kind,
            program,
            sockets: None,
            net: None,
            counters: None,
            ports: None,
            acl: None,
            applied: None,
            error: None,
        }
    }
}
