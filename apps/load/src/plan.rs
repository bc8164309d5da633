//! Plan of a run: target, protocol, traffic pattern, arrivals and limits.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::request::HttpRequest;

/// Plan of a run. [`Plan::new`] sets defaults, and the caller sets further fields as needed.
///
/// [`run`](crate::run) refuses an inconsistent plan. See [`Plan::check`].
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Server that the run tests.
    pub target: Target,
    /// Protocol of the requests and answers. Default: [`Protocol::Tcp`].
    pub protocol: Protocol,
    /// Pattern of the traffic. Default: [`Shape::Request`].
    pub shape: Shape,
    /// Number of connections (TCP) or sockets (UDP). Default: 1.
    pub users: usize,
    /// Duration of the measurement, which starts when the users are connected and the warm-up is
    /// over. Default: 10 s.
    #[serde(with = "as_seconds")]
    pub duration: Duration,
    /// Number of requests in the measurement. The measurement ends when all of them are answered or
    /// lost. A failed connect counts as a request, so that a run without a server ends. Default:
    /// none, and `duration` determines the end.
    pub requests: Option<u64>,
    /// Duration of the traffic before the measurement. No figures include it. Default: none.
    #[serde(with = "as_seconds")]
    pub warmup: Duration,
    /// Pause between an answer and the next request of the user in a closed loop. Default: none.
    #[serde(with = "as_seconds")]
    pub interval: Duration,
    /// Whether the run is a closed or an open loop, for [`Shape::Request`] and
    /// [`Shape::ConnectEach`]. Default: closed.
    pub arrivals: Arrivals,
    /// Maximum number of requests in flight on each connection. Default: 1.
    pub depth: usize,
    /// Bytes of a request (TCP, UDP), or the bytes that a stream repeats. Default: `hello\n`.
    #[serde(serialize_with = "message")]
    pub message: Vec<u8>,
    /// Number of different keys. [`RANDOM`] in a redis command is replaced by a number less than
    /// this one. Default: 1,000,000.
    pub keyspace: u64,
    /// Expected answer to a message (TCP, UDP). Default: [`PlannedAnswer::Echo`].
    pub answer: PlannedAnswer,
    /// Whether the first 8 bytes of each datagram are replaced by a sequence number, so that late
    /// and duplicate answers are detected. Only for UDP with [`PlannedAnswer::Echo`].
    ///
    /// Default: false. In that case, a socket is replaced after each loss. Otherwise a late answer
    /// would be taken for the answer to the next request.
    pub numbered: bool,
    /// Timeout for an answer. When it expires, the request has failed, and its connection is
    /// replaced. Default: 5 s.
    #[serde(with = "as_seconds")]
    pub timeout: Duration,
    /// Timeout for a connect. Default: 5 s.
    #[serde(with = "as_seconds")]
    pub connect_timeout: Duration,
    /// Maximum number of concurrent connects, which prevents an overflow of the listener's backlog.
    /// Default: 100.
    pub connecting_max: usize,
    /// Pause after a failure before the user connects again. Default: 100 ms.
    #[serde(with = "as_seconds")]
    pub reconnect_pause: Duration,
    /// Maximum time to wait for outstanding answers after the measurement. Default: 1 s.
    #[serde(with = "as_seconds")]
    pub grace: Duration,
    /// Local addresses of the sockets, used in turn. Each address has some 28,000 ephemeral ports.
    /// Default: the kernel chooses the address.
    pub local_addresses: Vec<IpAddr>,
    /// Number of threads that send requests. The users are divided among them. Default: 1, which is
    /// often best if the server runs on the same machine.
    pub threads: usize,
    /// Seed for random phases and Poisson arrivals. Equal seeds result in equal schedules. Default:
    /// 1.
    pub seed: u64,
    /// Interval between two snapshots, and length of a [`Period`](crate::Period). Default: 1 s.
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

    /// Checks that the fields of the plan are consistent.
    ///
    /// # Errors
    /// Returns the first inconsistency as a message for the user.
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

/// Maximum number of users. More users would exhaust the ports of 64 local addresses of loopback.
const USERS_MAX: usize = 1_000_000;
/// Maximum duration in a plan, which prevents an overflow of sums of times in ns.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Minimum rate per second, which corresponds to one request in 5000 s.
const RATE_MIN: f64 = 0.0002;
/// Maximum rate per second. Uniform gaps are then at least 10 ns long, which the clock can resolve.
const RATE_MAX: f64 = 1e8;
/// Maximum payload of a datagram over IPv4 in bytes: 65535 minus the lengths of the IPv4 and UDP
/// headers.
const DATAGRAM_MAX: usize = 65_507;
/// Placeholder for a random number in a redis command, as in redis-benchmark. Its 12 letters stand
/// for 12 digits.
pub const RANDOM: &str = "__rand_int__";
/// Maximum number of different keys. Their numbers have as many digits as [`RANDOM`] has letters.
const KEYSPACE_MAX: u64 = 1_000_000_000_000;
/// Length of the sequence number in a datagram, in bytes.
pub(crate) const NUMBER_LEN: usize = 8;

/// Server to test, given by its name, with the addresses of this name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Target {
    /// Host and port of the server as given by the caller.
    pub name: String,
    /// Addresses of the server in the order of the resolver. TCP uses the first address that
    /// accepts a connection, and UDP uses the first address.
    pub addresses: Vec<SocketAddr>,
}

impl Target {
    /// Resolves the name of a server, such as `127.0.0.1:7`, `[::1]:7` or `example.net:80`.
    ///
    /// # Errors
    /// Returns [`Error::Resolve`] if the text contains no port, or if the name has no address.
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

/// Protocol of the requests and answers in a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Protocol {
    /// Sends the plan's message, which is answered according to [`Plan::answer`].
    Tcp,
    /// Sends the plan's message in one datagram, which is answered by one datagram.
    Udp,
    /// Sends an HTTP/1.1 request. An answer with a status of 400 or more is a failure.
    Http1(HttpRequest),
    /// Sends a redis command such as `["SET", "key", "value"]`. An error reply is a failure. In
    /// each request, a new random number replaces each occurrence of [`RANDOM`].
    Redis {
        /// Name of the command, followed by its arguments.
        words: Vec<String>,
    },
}

/// Traffic pattern of a run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Shape {
    /// Requests and answers on connections that stay open.
    Request,
    /// A new connection for each request. Response and service times include the connect.
    ConnectEach,
    /// Bytes from the users to the server, as fast as possible.
    StreamUp,
    /// Bytes from the server to the users, as fast as possible.
    StreamDown,
    /// Bytes in both directions on each connection, as fast as possible.
    StreamBoth,
    /// Idle connections. Each user sends one request per `heartbeat`, at its own random phase.
    Idle {
        /// Time between two requests of a user.
        #[serde(with = "as_seconds")]
        heartbeat: Duration,
    },
    /// Simultaneous requests of all users, once in each interval `every`.
    Burst {
        /// Time between two bursts.
        #[serde(with = "as_seconds")]
        every: Duration,
    },
}

impl Shape {
    /// Returns whether the traffic is a stream, so that bytes are counted instead of requests.
    pub fn is_stream(self) -> bool {
        matches!(self, Self::StreamUp | Self::StreamDown | Self::StreamBoth)
    }
}

/// Rule that determines when requests are due.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Closed loop: the next request of a user is due [`Plan::interval`] after the user's last
    /// answer. If there is an interval, the first requests are spread over one interval.
    Closed,
    /// Open loop: requests are due by a schedule, whether or not earlier requests are answered. The
    /// next free user sends a request that is due.
    Open {
        /// Number of requests per second of all users together.
        per_second: f64,
        /// Distribution of the time between two requests.
        spacing: Spacing,
    },
}

/// Distribution of the time between two requests in an open loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// All gaps are equal.
    Uniform,
    /// The gaps are exponentially distributed, as those of many independent users.
    Poisson,
}

/// Answer that is expected to a message over TCP or UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannedAnswer {
    /// The message itself. Any difference is [`Failure::WrongAnswer`](crate::Failure::WrongAnswer).
    Echo,
    /// Any bytes, if their number is correct.
    Length {
        /// Length of an answer in bytes.
        bytes: usize,
    },
    /// Any bytes that a single read returns, for servers whose answers have no fixed length.
    Any,
}

/// Reason why a [`Plan`] is inconsistent.
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

/// Serializes the length and the beginning of a message. A message of megabytes would make the
/// report, which contains it, unreadable.
pub(crate) fn message<S: Serializer>(message: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    const SHOWN: usize = 64;
    let mut fields = serializer.serialize_struct("Message", 2)?;
    fields.serialize_field("bytes", &message.len())?;
    let shown = &message[..message.len().min(SHOWN)];
    fields.serialize_field("begins", &shown.escape_ascii().to_string())?;
    fields.end()
}

/// Serializes a duration as a number of seconds with a fraction.
pub(crate) mod as_seconds {
    use super::{Duration, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }
}
