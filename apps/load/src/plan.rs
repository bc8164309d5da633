//! Description of a run: target, protocol, shape, arrivals and limits.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::request::HttpRequest;

/// Description of a run. [`Plan::new`] sets defaults; set further fields as needed.
///
/// [`run`](crate::run) refuses an inconsistent plan, see [`Plan::check`].
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Server to test.
    pub target: Target,
    /// Protocol of requests and answers. Default: [`Protocol::Tcp`].
    pub protocol: Protocol,
    /// Pattern of the traffic. Default: [`Shape::Request`].
    pub shape: Shape,
    /// Connections (TCP) or sockets (UDP). Default: 1.
    pub users: usize,
    /// Duration of the measurement, which starts when users are connected and the warm-up is over.
    /// Default: 10 s.
    #[serde(with = "as_seconds")]
    pub duration: Duration,
    /// Number of requests in the measurement, which ends once all are answered or lost. A failed
    /// connect counts as one, so that a run without a server ends. Default: none, `duration`
    /// applies.
    pub requests: Option<u64>,
    /// Duration of traffic before the measurement, excluded from all figures. Default: none.
    #[serde(with = "as_seconds")]
    pub warmup: Duration,
    /// Pause between an answer and the user's next request in a closed loop. Default: none.
    #[serde(with = "as_seconds")]
    pub interval: Duration,
    /// Closed or open loop, for [`Shape::Request`] and [`Shape::ConnectEach`]. Default: closed.
    pub arrivals: Arrivals,
    /// Maximum number of requests in flight per connection. Default: 1.
    pub depth: usize,
    /// Bytes of a request (TCP, UDP), or the bytes that a stream repeats. Default: `hello\n`.
    #[serde(serialize_with = "message")]
    pub message: Vec<u8>,
    /// Number of keys: [`RANDOM`] in a redis command is replaced by a number below it. Default:
    /// 1,000,000.
    pub keyspace: u64,
    /// Expected answer to a message (TCP, UDP). Default: [`PlannedAnswer::Echo`].
    pub answer: PlannedAnswer,
    /// Whether the first 8 bytes of each datagram are replaced by a sequence number, so that late
    /// and duplicate answers are detected. UDP with [`PlannedAnswer::Echo`] only.
    ///
    /// Default: false. A socket is then replaced after each loss, otherwise a late answer would be
    /// taken for the next one.
    pub numbered: bool,
    /// Timeout of an answer. After it the request has failed and its connection is replaced.
    /// Default: 5 s.
    #[serde(with = "as_seconds")]
    pub timeout: Duration,
    /// Timeout of a connect. Default: 5 s.
    #[serde(with = "as_seconds")]
    pub connect_timeout: Duration,
    /// Maximum number of concurrent connects, to avoid overflow of the listener's backlog. Default:
    /// 100.
    pub connecting_max: usize,
    /// Pause before a user reconnects after a failure. Default: 100 ms.
    #[serde(with = "as_seconds")]
    pub reconnect_pause: Duration,
    /// Maximum wait for outstanding answers after the measurement. Default: 1 s.
    #[serde(with = "as_seconds")]
    pub grace: Duration,
    /// Local addresses, used in turn. Each has some 28,000 ephemeral ports. Default: chosen by the
    /// kernel.
    pub local_addresses: Vec<IpAddr>,
    /// Number of sending threads; the users are divided among them. Default: 1, which is often best
    /// if the server runs on the same machine.
    pub threads: usize,
    /// Seed of phases and Poisson arrivals. Equal seeds give equal schedules. Default: 1.
    pub seed: u64,
    /// Interval between snapshots, and length of a [`Period`](crate::Period). Default: 1 s.
    #[serde(with = "as_seconds")]
    pub period: Duration,
}

impl Plan {
    /// Creates a closed loop of one user that sends `hello\n` for ten seconds and expects an echo.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            protocol: Protocol::Tcp,
            shape: Shape::Request,
            users: 1,
            duration: Duration::from_secs(10),
            requests: None,
            warmup: Duration::ZERO,
            interval: Duration::ZERO,
            arrivals: Arrivals::Closed,
            depth: 1,
            message: b"hello\n".to_vec(),
            keyspace: 1_000_000,
            answer: PlannedAnswer::Echo,
            numbered: false,
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            connecting_max: 100,
            reconnect_pause: Duration::from_millis(100),
            grace: Duration::from_secs(1),
            local_addresses: Vec::new(),
            threads: 1,
            seed: 1,
            period: Duration::from_secs(1),
        }
    }

    /// Checks that the fields are consistent.
    ///
    /// # Errors
    /// Returns the first inconsistency, as a message for the user.
    pub fn check(&self) -> Result<(), LoadPlanError> {
        self.check_numbers()?;
        self.check_shape()?;
        self.check_bytes()
    }

    fn check_numbers(&self) -> Result<(), LoadPlanError> {
        if self.target.addresses.is_empty() {
            return Err(LoadPlanError::NoAddress);
        }
        let counts = [
            ("users", self.users),
            ("depth", self.depth),
            ("threads", self.threads),
            ("connecting_max", self.connecting_max),
        ];
        for (what, value) in counts {
            if value == 0 {
                return Err(LoadPlanError::Zero { what });
            }
        }
        if self.users > USERS_MAX {
            return Err(LoadPlanError::Users { users: self.users });
        }
        if self.requests == Some(0) {
            return Err(LoadPlanError::Zero { what: "requests" });
        }
        if !(1..=KEYSPACE_MAX).contains(&self.keyspace) {
            return Err(LoadPlanError::Keyspace { keyspace: self.keyspace });
        }
        let times = [
            ("duration", self.duration, true),
            ("warmup", self.warmup, false),
            ("interval", self.interval, false),
            ("timeout", self.timeout, true),
            ("connect_timeout", self.connect_timeout, true),
            ("reconnect_pause", self.reconnect_pause, false),
            ("grace", self.grace, false),
            ("period", self.period, true),
        ];
        for (what, value, positive) in times {
            if positive && value.is_zero() {
                return Err(LoadPlanError::Zero { what });
            }
            if value > TIME_MAX {
                return Err(LoadPlanError::TooLong { what, value });
            }
        }
        let first = self.target.addresses[0];
        match self.local_addresses.iter().find(|it| it.is_ipv4() != first.is_ipv4()) {
            Some(&local) => Err(LoadPlanError::Family { local, target: first }),
            None => Ok(()),
        }
    }

    fn check_shape(&self) -> Result<(), LoadPlanError> {
        let is_raw_tcp = matches!(self.protocol, Protocol::Tcp);
        match self.shape {
            Shape::Idle { heartbeat: every } | Shape::Burst { every } if every.is_zero() => {
                return Err(LoadPlanError::Zero { what: "time between two heartbeats or bursts" });
            }
            Shape::ConnectEach if matches!(self.protocol, Protocol::Udp) => {
                return Err(LoadPlanError::Shape { shape: "the shape connect", needs: "TCP" });
            }
            Shape::StreamDown | Shape::StreamBoth if !is_raw_tcp => {
                return Err(LoadPlanError::Shape {
                    shape: "the shape down or both",
                    needs: "TCP without HTTP or redis",
                });
            }
            Shape::StreamUp if !is_raw_tcp && !matches!(self.protocol, Protocol::Udp) => {
                return Err(LoadPlanError::Shape {
                    shape: "the shape up",
                    needs: "TCP or UDP without HTTP or redis",
                });
            }
            _ => {}
        }
        if self.requests.is_some() && self.shape.is_stream() {
            return Err(LoadPlanError::Shape {
                shape: "a number of requests",
                needs: "a shape with requests, not a stream",
            });
        }
        let Arrivals::Open { per_second, .. } = self.arrivals else { return Ok(()) };
        if !matches!(self.shape, Shape::Request | Shape::ConnectEach) {
            return Err(LoadPlanError::OpenShape);
        }
        if !self.interval.is_zero() {
            return Err(LoadPlanError::OpenInterval);
        }
        if !(per_second.is_finite() && (RATE_MIN..=RATE_MAX).contains(&per_second)) {
            return Err(LoadPlanError::Rate { per_second });
        }
        Ok(())
    }

    fn check_bytes(&self) -> Result<(), LoadPlanError> {
        let is_udp = matches!(self.protocol, Protocol::Udp);
        let is_raw = is_udp || matches!(self.protocol, Protocol::Tcp);
        if is_raw && self.message.is_empty() && self.shape != Shape::StreamDown {
            return Err(LoadPlanError::Zero { what: "length of the message" });
        }
        if is_udp && self.message.len() > DATAGRAM_MAX {
            return Err(LoadPlanError::Datagram { len: self.message.len() });
        }
        if is_raw && matches!(self.answer, PlannedAnswer::Length { bytes: 0 }) {
            return Err(LoadPlanError::Zero { what: "length of the answer" });
        }
        let fits = is_udp && self.answer == PlannedAnswer::Echo && self.message.len() >= NUMBER_LEN;
        if self.numbered && !fits {
            return Err(LoadPlanError::Numbered);
        }
        if is_udp && !self.numbered && self.depth > 1 {
            return Err(LoadPlanError::Depth { why: "datagrams without numbers" });
        }
        if self.depth > 1 && self.shape == Shape::ConnectEach {
            return Err(LoadPlanError::Depth { why: "a connection for each request" });
        }
        if self.depth > 1 && is_raw && self.answer == PlannedAnswer::Any {
            return Err(LoadPlanError::Depth { why: "answers of any length" });
        }
        if let Protocol::Http1(request) = &self.protocol {
            request.check()?;
        }
        if matches!(&self.protocol, Protocol::Redis { words } if words.is_empty()) {
            return Err(LoadPlanError::Zero { what: "number of words of the redis command" });
        }
        Ok(())
    }
}

/// Maximum number of users. With more, 64 local addresses of loopback would run out of ports.
const USERS_MAX: usize = 1_000_000;
/// Maximum duration in a plan, so that sums of times in ns cannot overflow.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Minimum rate per second: one request in 5000 s.
const RATE_MIN: f64 = 0.0002;
/// Maximum rate per second: uniform gaps are at least 10 ns, which the clock can resolve.
const RATE_MAX: f64 = 1e8;
/// Maximum payload of a datagram over IPv4, in bytes: 65535 minus the IPv4 and UDP headers.
const DATAGRAM_MAX: usize = 65_507;
/// Placeholder of a random number in a redis command, as in redis-benchmark: 12 digits.
pub const RANDOM: &str = "__rand_int__";
/// Maximum keyspace: its numbers have as many digits as [`RANDOM`] has letters.
const KEYSPACE_MAX: u64 = 1_000_000_000_000;
/// Length of a datagram's sequence number in bytes.
pub(crate) const NUMBER_LEN: usize = 8;

/// Name of a server, and the addresses that it resolves to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Target {
    /// Host and port as given.
    pub name: String,
    /// Addresses in the resolver's order. TCP uses the first one that accepts a connection; UDP
    /// uses the first one.
    pub addresses: Vec<SocketAddr>,
}

impl Target {
    /// Resolves HOST:PORT, as `127.0.0.1:7`, `[::1]:7` or `example.net:80`.
    ///
    /// # Errors
    /// Returns [`Error::Resolve`] if the text lacks a port, or the name has no address.
    pub fn resolve(name: &str) -> Result<Self, Error> {
        let failed = |reason: String| Error::Resolve { name: name.into(), reason };
        let addresses = name.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        let addresses: Vec<_> = addresses.collect();
        if addresses.is_empty() {
            return Err(failed("the name has no address".into()));
        }
        Ok(Self { name: name.into(), addresses })
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self { name: address.to_string(), addresses: vec![address] }
    }
}

/// Protocol of requests and answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Protocol {
    /// The plan's message, answered according to [`Plan::answer`].
    Tcp,
    /// The plan's message in one datagram, answered by one.
    Udp,
    /// An HTTP/1.1 request. A status of 400 or more is a failure.
    Http1(HttpRequest),
    /// A redis command, as `["SET", "key", "value"]`. An error reply is a failure. Each occurrence
    /// of [`RANDOM`] is replaced by a new random number in each request.
    Redis {
        /// Name and arguments of the command.
        words: Vec<String>,
    },
}

/// Pattern of a run's traffic.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Shape {
    /// Requests and answers on persistent connections.
    Request,
    /// A connection per request; response and service times include the connect.
    ConnectEach,
    /// Bytes to the server, as fast as possible.
    StreamUp,
    /// Bytes from the server, as fast as possible.
    StreamDown,
    /// Bytes in both directions on each connection, as fast as possible.
    StreamBoth,
    /// Idle connections. Each user sends one request per `heartbeat`, at a random phase of its own.
    Idle {
        /// Time between two requests of a user.
        #[serde(with = "as_seconds")]
        heartbeat: Duration,
    },
    /// Simultaneous requests of all users, once per `every`.
    Burst {
        /// Time between two bursts.
        #[serde(with = "as_seconds")]
        every: Duration,
    },
}

impl Shape {
    /// Returns whether bytes are counted instead of requests.
    pub fn is_stream(self) -> bool {
        matches!(self, Self::StreamUp | Self::StreamDown | Self::StreamBoth)
    }
}

/// Rule that decides when requests are due.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Closed loop: a user's next request is due [`Plan::interval`] after its last answer. With an
    /// interval, the first requests are spread over one interval.
    Closed,
    /// Open loop: requests are due by a schedule, regardless of answers. The next free user sends
    /// them.
    Open {
        /// Requests per second of all users together.
        per_second: f64,
        /// Distribution of the gaps between requests.
        spacing: Spacing,
    },
}

/// Distribution of the gaps between an open loop's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// Equal gaps.
    Uniform,
    /// Exponential gaps, as produced by many independent users.
    Poisson,
}

/// Expected answer to a message of TCP or UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannedAnswer {
    /// The message itself; any difference is [`Failure::WrongAnswer`](crate::Failure::WrongAnswer).
    Echo,
    /// Any bytes of this length.
    Length {
        /// Bytes of an answer.
        bytes: usize,
    },
    /// Any bytes that one read returns. For servers whose answers have no fixed length.
    Any,
}

/// Inconsistency in a [`Plan`].
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The messages document the variants.
pub enum LoadPlanError {
    #[error("the target has no address")]
    NoAddress,
    #[error("{what} is 0; expected at least 1")]
    Zero { what: &'static str },
    #[error("{users} users are too many; expected at most {USERS_MAX}")]
    Users { users: usize },
    #[error("{what} of {} s is too long; expected at most a year", value.as_secs())]
    TooLong { what: &'static str, value: Duration },
    #[error("a rate of {per_second} per second is not possible; expected {RATE_MIN} to {RATE_MAX}")]
    Rate { per_second: f64 },
    #[error(
        "a rate needs the shape request or connect; up, down and both have no requests, idle and \
         burst have times of their own"
    )]
    OpenShape,
    #[error("a rate and an interval exclude each other: the rate says when requests are due")]
    OpenInterval,
    #[error("{shape} needs {needs}")]
    Shape { shape: &'static str, needs: &'static str },
    #[error("a datagram of {len} bytes is too long; expected at most {DATAGRAM_MAX}")]
    Datagram { len: usize },
    #[error("numbers need UDP, an echo, and a message of at least {NUMBER_LEN} bytes")]
    Numbered,
    #[error("{why} allow one request under way per connection; expected depth 1")]
    Depth { why: &'static str },
    #[error("a keyspace of {keyspace} is not possible; expected 1 to {KEYSPACE_MAX}")]
    Keyspace { keyspace: u64 },
    #[error("the URL \"{url}\" cannot be used: {why}; expected one as http://127.0.0.1:8080/path")]
    Url { url: String, why: String },
    #[error("\"{}\" is not a header; expected one as 'Accept: text/html'", header.escape_default())]
    Header { header: String },
    #[error("the header {name} follows from the body: leave it out")]
    Computed { name: String },
    #[error("\"{}\" is not a method; expected one as GET, POST or DELETE", method.escape_default())]
    Method { method: String },
    #[error("the path \"{path}\" is not valid; expected one that begins with / and has no space")]
    Path { path: String },
    #[error("the local address {local} cannot reach {target}: one is IPv4, the other IPv6")]
    Family { local: IpAddr, target: SocketAddr },
}

/// Serializes length and beginning. A message of megabytes would bury the report that repeats it.
pub(crate) fn message<S: Serializer>(message: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    const SHOWN: usize = 64;
    let mut fields = serializer.serialize_struct("Message", 2)?;
    fields.serialize_field("bytes", &message.len())?;
    let shown = &message[..message.len().min(SHOWN)];
    fields.serialize_field("begins", &shown.escape_ascii().to_string())?;
    fields.end()
}

/// Serializes durations as seconds with a fraction.
pub(crate) mod as_seconds {
    use super::{Duration, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }
}
