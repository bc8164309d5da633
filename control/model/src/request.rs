//! Requests and answers of the control protocol, which are serialized to JSON.

use serde::de::Error;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::acl::{Acl, AclChange};
use crate::bounded;
use crate::flows::{FlowFilter, Nat, NatChange, ShownFlow};
use crate::lookup::{FoundRoute, RouteLookup};
use crate::net::{Change, Net};
use crate::ports::Port;
use crate::settings::{TcpSetting, TcpSettingChange};
use crate::sockets::{ShownSocket, Word};
use crate::subscription::Subscription;

/// Version of the protocol. A run rejects requests of another version.
pub const VERSION: u32 = 1;

/// A request with its version, sent as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Request {
    pub version: u32,
    #[serde(flatten)]
    pub call: Call,
}

/// Request of a client to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "request", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Call {
    /// Queries only the fields that every answer contains, such as the run's name and program.
    Info,
    /// Queries the sockets of a run, or the flows of a proxy.
    Sockets,
    /// Queries the interfaces, routes and neighbours.
    Net,
    /// Looks up the route to a destination.
    Route {
        /// Destination of the packets, with optional conditions.
        lookup: RouteLookup,
    },
    /// Queries the run's counters.
    Counters,
    /// Queries the ports, each with its device, interface and counters.
    Ports,
    /// Applies changes of the network configuration: all of them, or none if one is invalid.
    Apply {
        /// Changes, in the order in which they are applied.
        changes: Vec<Change>,
    },
    /// Queries the access list, with the counters of its rules.
    Acl,
    /// Applies changes to the access list: all of them, or none if one is invalid.
    #[serde(rename = "apply-acl")]
    ApplyAcl {
        /// Changes, in the order in which they are applied.
        changes: Vec<AclChange>,
    },
    /// Queries the rules for address translation.
    Nat,
    /// Applies changes to the rules for address translation: all of them, or none if one is
    /// invalid.
    #[serde(rename = "apply-nat")]
    ApplyNat {
        /// Changes, in the order in which they are applied.
        changes: Vec<NatChange>,
    },
    /// Queries the tracked flows that match a filter.
    Flows {
        /// Conditions that a flow must meet.
        filter: FlowFilter,
    },
    /// Queries the stored events of flows, beginning with a number. With 0, returns only the number
    /// of the next event.
    #[serde(rename = "flow-events")]
    FlowEvents {
        /// Number of the first event to return.
        from: u64,
    },
    /// Deletes the tracked flows that match a filter.
    #[serde(rename = "delete-flows")]
    DeleteFlows {
        /// Conditions that a flow must meet.
        filter: FlowFilter,
    },
    /// Removes all answers from the cache of the DNS forwarder.
    #[serde(rename = "flush-dns")]
    FlushDns,
    /// Queries the TCP settings.
    Settings,
    /// Changes TCP settings for new connections: all of them, or none if one is invalid.
    #[serde(rename = "apply-settings")]
    ApplySettings {
        /// Changes, in the order in which they are applied.
        changes: Vec<TcpSettingChange>,
    },
    /// Queries the configuration of a router.
    Config,
    /// Changes a router to a configuration: either all of it, or nothing.
    #[serde(rename = "apply-config")]
    ApplyConfig {
        /// Configuration in TOML. Contains the rules themselves instead of the name of a file with
        /// rules.
        text: String,
        /// Time in seconds after which the change is undone unless it is confirmed.
        #[serde(skip_serializing_if = "Option::is_none")]
        confirm_s: Option<u32>,
    },
    /// Confirms the latest change of the configuration, so that it is not undone.
    #[serde(rename = "confirm-config")]
    ConfirmConfig,
    /// Undoes the latest change of the configuration.
    #[serde(rename = "rollback-config")]
    RollbackConfig,
    /// Requests reports, which are sent until the client closes the connection.
    Subscribe {
        /// Subjects of the reports, and the period of samples.
        subscription: Subscription,
    },
}

impl Call {
    /// Returns whether the request modifies the run.
    #[must_use]
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Apply { .. }
                | Self::ApplyAcl { .. }
                | Self::ApplyNat { .. }
                | Self::DeleteFlows { .. }
                | Self::FlushDns
                | Self::ApplySettings { .. }
                | Self::ApplyConfig { .. }
                | Self::ConfirmConfig
                | Self::RollbackConfig
        )
    }

    /// Parses a request. Unknown fields are skipped without buffering them.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, RequestFault> {
        let fault = |why: String| RequestFault::new("request", why);
        let head: RequestHead = serde_json::from_slice(line)
            .map_err(|error| fault(format!("the request is not a line of JSON: {error}")))?;
        match head.version {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                let why = format!("version {version} of the protocol is not known, {VERSION} is");
                return Err(RequestFault::new("version", why));
            }
            None => return Err(fault(format!("the request has no version, which is {VERSION}"))),
        }
        Self::parse_known(line).map_err(|error| fault(error.to_string()))
    }

    fn parse_known(line: &[u8]) -> serde_json::Result<Self> {
        let name: Name = serde_json::from_slice(line)?;
        Ok(match name.request {
            Kind::Info => Self::Info,
            Kind::Sockets => Self::Sockets,
            Kind::Net => Self::Net,
            Kind::Route => {
                let LookupField { lookup } = serde_json::from_slice(line)?;
                Self::Route { lookup }
            }
            Kind::Counters => Self::Counters,
            Kind::Ports => Self::Ports,
            Kind::Acl => Self::Acl,
            Kind::Apply => {
                let Changes { changes } = serde_json::from_slice(line)?;
                Self::Apply { changes }
            }
            Kind::ApplyAcl => {
                let Changes { changes } = serde_json::from_slice(line)?;
                Self::ApplyAcl { changes }
            }
            Kind::Nat => Self::Nat,
            Kind::ApplyNat => {
                let Changes { changes } = serde_json::from_slice(line)?;
                Self::ApplyNat { changes }
            }
            Kind::Flows => Self::Flows { filter: FilterField::parse(line)? },
            Kind::DeleteFlows => Self::DeleteFlows { filter: FilterField::parse(line)? },
            Kind::FlowEvents => {
                let FirstEvent { from } = serde_json::from_slice(line)?;
                Self::FlowEvents { from }
            }
            Kind::FlushDns => Self::FlushDns,
            Kind::Settings => Self::Settings,
            Kind::ApplySettings => {
                let Changes { changes } = serde_json::from_slice(line)?;
                Self::ApplySettings { changes }
            }
            Kind::Config => Self::Config,
            Kind::ApplyConfig => {
                let NewConfig { text, confirm_s } = serde_json::from_slice(line)?;
                Self::ApplyConfig { text, confirm_s }
            }
            Kind::ConfirmConfig => Self::ConfirmConfig,
            Kind::RollbackConfig => Self::RollbackConfig,
            Kind::Subscribe => {
                let SubscriptionField { subscription } = serde_json::from_slice(line)?;
                subscription.check().map_err(|fault| Error::custom(fault.message))?;
                Self::Subscribe { subscription }
            }
        })
    }
}

#[derive(Deserialize)]
struct RequestHead {
    version: Option<u64>,
}

#[derive(Deserialize)]
struct Name {
    request: Kind,
}

/// Name of a kind of [`Call`], as in the field `request`.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Info,
    Sockets,
    Net,
    Route,
    Counters,
    Ports,
    Apply,
    Acl,
    #[serde(rename = "apply-acl")]
    ApplyAcl,
    Nat,
    #[serde(rename = "apply-nat")]
    ApplyNat,
    Flows,
    #[serde(rename = "flow-events")]
    FlowEvents,
    #[serde(rename = "delete-flows")]
    DeleteFlows,
    #[serde(rename = "flush-dns")]
    FlushDns,
    Settings,
    #[serde(rename = "apply-settings")]
    ApplySettings,
    Config,
    #[serde(rename = "apply-config")]
    ApplyConfig,
    #[serde(rename = "confirm-config")]
    ConfirmConfig,
    #[serde(rename = "rollback-config")]
    RollbackConfig,
    Subscribe,
}

#[derive(Deserialize)]
struct SubscriptionField {
    subscription: Subscription,
}

#[derive(Deserialize)]
struct NewConfig {
    text: String,
    confirm_s: Option<u32>,
}

#[derive(Deserialize)]
struct FilterField<'a> {
    #[serde(borrow)]
    filter: &'a RawValue,
}

impl FilterField<'_> {
    /// Parses the filter of a request. Unknown fields are skipped without buffering them.
    fn parse(line: &[u8]) -> serde_json::Result<FlowFilter> {
        let FilterField { filter } = serde_json::from_slice(line)?;
        if filter.get().len() > CHANGE_LEN_MAX {
            return Err(too_long(filter.get()));
        }
        serde_json::from_str(filter.get())
    }
}

#[derive(Deserialize)]
struct LookupField {
    lookup: RouteLookup,
}

#[derive(Deserialize)]
struct FirstEvent {
    from: u64,
}

#[derive(Deserialize)]
struct Changes<T: bounded::Change> {
    #[serde(deserialize_with = "bounded::changes", bound = "")]
    changes: Vec<T>,
}

/// Maximum length in bytes of the JSON text of one change. Changes of access lists have another
/// limit.
const CHANGE_LEN_MAX: usize = 4096;

impl bounded::Change for Change {
    fn read(json: &str) -> serde_json::Result<Self> {
        if json.len() <= CHANGE_LEN_MAX { serde_json::from_str(json) } else { Err(too_long(json)) }
    }
}

impl bounded::Change for NatChange {
    fn read(json: &str) -> serde_json::Result<Self> {
        if json.len() <= CHANGE_LEN_MAX { serde_json::from_str(json) } else { Err(too_long(json)) }
    }
}

impl bounded::Change for TcpSettingChange {
    fn read(json: &str) -> serde_json::Result<Self> {
        if json.len() <= CHANGE_LEN_MAX { serde_json::from_str(json) } else { Err(too_long(json)) }
    }
}

impl bounded::Change for AclChange {
    fn read(json: &str) -> serde_json::Result<Self> {
        if json.len() <= CHANGE_LEN_MAX {
            return serde_json::from_str(json);
        }
        let Load { change: IsLoad::Load, text } =
            serde_json::from_str(json).map_err(|_| too_long(json))?;
        Ok(Self::Load { text })
    }
}

/// Fields of [`AclChange::Load`], in a type that serde can deserialize without a buffer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    change: IsLoad,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum IsLoad {
    Load,
}

fn too_long(json: &str) -> serde_json::Error {
    let len = json.len();
    serde::de::Error::custom(format!("it has {len} bytes; {CHANGE_LEN_MAX} are allowed"))
}

/// Answer to a request. Contains the first five fields, and either the field that was requested or
/// `error`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Version of the protocol.
    pub version: u32,
    /// Process id of `towpath run`, `router` or `proxy`.
    pub pid: u32,
    /// Name of the run that was given by `--name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Word>,
    /// Kind of the run that answers.
    pub kind: RunKind,
    /// PROGRAM and its arguments, as the run executes them.
    #[serde(deserialize_with = "bounded::words")]
    pub program: Vec<String>,
    /// Answer to [`Call::Sockets`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "bounded::list")]
    pub sockets: Option<Vec<ShownSocket>>,
    /// Answer to [`Call::Net`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<Net>,
    /// Answer to [`Call::Route`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<FoundRoute>,
    /// Answer to [`Call::Counters`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Vec<Layer>>,
    /// Answer to [`Call::Ports`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<Port>>,
    /// Answer to [`Call::Acl`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Acl>,
    /// Answer to [`Call::Nat`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat: Option<Nat>,
    /// Answer to [`Call::Flows`], or the events that answer [`Call::FlowEvents`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "bounded::list")]
    pub flows: Option<Vec<ShownFlow>>,
    /// Number of the next event, in the answer to [`Call::FlowEvents`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_event: Option<u64>,
    /// Answer to [`Call::Settings`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "bounded::list")]
    pub settings: Option<Vec<TcpSetting>>,
    /// Answer to [`Call::Config`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<RunningConfig>,
    /// Number of applied changes, of deleted flows, or of removed DNS answers, in the answer to a
    /// request that changes the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<usize>,
    /// Reason why the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RequestFault>,
}

/// Configuration of a running router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningConfig {
    /// The configuration in TOML.
    pub text: String,
    /// Path of the file that the router was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Time in seconds after which the latest change is undone. None if no change waits for its
    /// confirmation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_in_s: Option<u64>,
}

/// Kind of a run, by the command that started it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// `towpath run`.
    #[default]
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
    /// Names and values of the counters.
    pub counters: Vec<(Word, u64)>,
}

/// Reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFault {
    /// Code that programs can check: `request`, `version`, `busy`, `unsupported`, `silent`, `gone`,
    /// `no-device`, `no-route` or `refused`.
    pub code: Word,
    /// Message for the user.
    pub message: String,
    /// Index of the first invalid change, from 0. Set only with the codes `no-device` and
    /// `refused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<usize>,
}

impl RequestFault {
    /// Creates an error with a code and a message.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Word::known(code), message: message.into(), at: None }
    }
}

impl Reply {
    /// Creates an answer that contains only the fields common to all answers.
    pub fn new(kind: RunKind, program: Vec<String>) -> Self {
        Self {
            version: VERSION,
            pid: std::process::id(),
            name: None,
            kind,
            program,
            ..Self::default()
        }
    }
}
