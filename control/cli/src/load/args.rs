//! The options of `towpath load`, and the plan that is created from them.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::io::Read as _;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use towpath_load::results::values::{
    Goal, Limit, Output, Place, ResultFormat, parse_answer, parse_message, parse_message_size,
    parse_rate, parse_time,
};
use towpath_load::{
    Arrivals, Header, HttpRequest, HttpUrl, Plan, PlannedAnswer, Protocol, Shape, Spacing, Target,
};

use crate::args::parse_number;
use crate::error::{ExitCode, Failure};

#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Server to measure
    ///
    /// An address or a name, and a port: 127.0.0.1:7, [::1]:7, example.net:80. A URL, as
    /// http://127.0.0.1:8080/index.html, is asked for by HTTP/1.1.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    #[arg(help_heading = SERVER)]
    pub host: String,

    /// URL to ask for by HTTP/1.1, as http://127.0.0.1:8080/index.html: --host URL
    #[arg(value_name = "URL", conflicts_with_all = ["host", "http", "compare"])]
    pub url: Option<String>,

    /// Send datagrams over UDP
    ///
    /// Each request is one datagram, and so is each answer.
    #[arg(long, help_heading = SERVER, conflicts_with_all = ["http", "redis"])]
    pub udp: bool,

    /// Ask for PATH by HTTP/1.1
    ///
    /// An answer with a status of 400 or more is a failure.
    #[arg(long, value_name = "PATH", help_heading = SERVER)]
    #[arg(conflicts_with_all = ["redis", "message", "message_size", "answer"])]
    pub http: Option<String>,

    /// Header of HTTP requests, as 'Accept: text/html'
    ///
    /// May be given several times. Host, User-Agent, Accept and Connection replace the tester's
    /// own.
    #[arg(short = 'H', long, value_name = "HEADER", value_parser = parse_header)]
    #[arg(help_heading = SERVER)]
    pub header: Vec<Header>,

    /// Method of HTTP requests: GET unless given, with --body POST
    #[arg(long, value_name = "METHOD", help_heading = SERVER)]
    pub method: Option<String>,

    /// Body of HTTP requests, or @FILE for the content of a file
    ///
    /// Content-Length is set automatically. Content-Type is not: set it by --header.
    #[arg(long, value_name = "TEXT|@FILE", help_heading = SERVER)]
    pub body: Option<String>,

    /// Send a redis command, as PING or "GET key:__rand_int__"
    ///
    /// Words are parted by spaces. An answer that is an error is a failure. Each __rand_int__ is
    /// replaced by a random number of 12 digits in each request, see --keyspace.
    #[arg(long, value_name = "COMMAND", help_heading = SERVER)]
    #[arg(conflicts_with_all = ["message", "message_size", "answer"])]
    pub redis: Option<String>,

    /// Replace __rand_int__ in --redis by random numbers from 0 to NUMBER - 1
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000_000, help_heading = SERVER)]
    #[arg(requires = "redis")]
    pub keyspace: u64,

    /// Network stack of the users' sockets: kernel, rootless, tap or tap=NAME
    ///
    /// With rootless and tap, the tester runs on a stack of its own, as by `towpath run` or
    /// `towpath run --tap`. With rootless, 127.0.0.1 is replaced by 10.0.2.2, at which the stack
    /// reaches this machine's loopback. With tap, the server must listen on 10.77.0.1, the address
    /// of this machine on the device.
    #[arg(long, value_name = "WHERE", default_value = "kernel", help_heading = SERVER)]
    pub on: Place,

    /// Stack that the tester uses. Set only in a tester that `--on` has started under `towpath
    /// run`.
    #[arg(long, value_name = "WHERE", hide = true)]
    pub inside: Option<Place>,

    /// Local address of the users, used in turn
    ///
    /// May be given several times. Each address has some 28,000 ports; on loopback, 127.0.0.2 to
    /// 127.255.255.254 can be used without preparation.
    #[arg(long, value_name = "ADDRESS", help_heading = SERVER)]
    pub local_address: Vec<IpAddr>,

    /// Users, each with a connection of its own
    #[arg(long, value_name = "NUMBER", default_value_t = 10, help_heading = LOAD)]
    pub users: usize,

    /// Time of the measurement, as 10s, 500ms or 1m30s: 10s unless --requests is given
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = LOAD)]
    pub duration: Option<Duration>,

    /// End after this number of requests of all users together
    ///
    /// The run ends when all requests are answered or lost, or after --duration. A failed connect
    /// counts as a request.
    #[arg(short = 'n', long, value_name = "NUMBER", help_heading = LOAD)]
    pub requests: Option<u64>,

    /// Pause of a user between an answer and the next request
    ///
    /// With --shape burst, the time between two bursts: 1s unless given.
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = LOAD)]
    pub interval: Option<Duration>,

    /// Requests per second of all users together, whether or not earlier ones are answered
    ///
    /// The load is then an open loop: requests are due by a schedule that the server cannot delay.
    /// Response times are measured from the time at which a request was due. Without this option,
    /// each user waits for an answer before its next request (closed loop).
    #[arg(long, value_name = "RATE", value_parser = parse_rate, help_heading = LOAD)]
    pub rate: Option<f64>,

    /// Gaps between the requests of --rate or --search: poisson unless given
    #[arg(long, value_name = "RULE", help_heading = LOAD)]
    pub arrivals: Option<Spaced>,

    /// Pattern of the traffic
    #[arg(long, value_name = "PATTERN", default_value = "request", help_heading = LOAD)]
    #[arg(conflicts_with = "idle")]
    pub shape: Pattern,

    /// Idle connections with a request now and then: --shape idle
    #[arg(long, help_heading = LOAD)]
    pub idle: bool,

    /// Time between two requests of an idle user
    ///
    /// Each user begins at a random phase of its own.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    #[arg(help_heading = LOAD)]
    pub keepalive_interval: Duration,

    /// Maximum number of requests in flight on one connection
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = LOAD)]
    pub depth: usize,

    /// Time of traffic before the measurement, which no figure includes
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_time)]
    #[arg(help_heading = LOAD)]
    pub warmup: Duration,

    /// Number of threads that send requests
    ///
    /// A single thread is often best if the server runs on the same machine.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = LOAD)]
    pub threads: usize,

    /// Seed of phases and Poisson gaps: equal seeds give equal schedules
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = LOAD)]
    pub seed: u64,

    /// Text of a request, followed by a newline
    ///
    /// The escapes \n, \r, \t, \0, \\ and \xHH are replaced by the bytes that they denote.
    #[arg(long, value_name = "TEXT", default_value = "hello", help_heading = MESSAGE)]
    pub message: String,

    /// Send the message without a newline
    #[arg(long, help_heading = MESSAGE)]
    pub no_newline: bool,

    /// Length of a request: the message is repeated or cut to so many bytes
    #[arg(long, value_name = "BYTES", value_parser = parse_message_size, help_heading = MESSAGE)]
    pub message_size: Option<usize>,

    /// Expected answer to a message: echo, any, or its length in bytes
    ///
    /// echo: the message itself; other bytes count as a failure. any: the bytes that arrive first.
    #[arg(long, value_name = "ANSWER", default_value = "echo", value_parser = parse_answer)]
    #[arg(help_heading = MESSAGE)]
    pub answer: PlannedAnswer,

    /// Number the datagrams in their first 8 bytes, to distinguish late answers from lost ones
    #[arg(long, requires = "udp", help_heading = MESSAGE)]
    pub numbered: bool,

    /// Limit on the time of an answer; a later one is a failure
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    #[arg(help_heading = MESSAGE)]
    pub timeout: Duration,

    /// Limit on the time of a connect
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    #[arg(help_heading = MESSAGE)]
    pub connect_timeout: Duration,

    /// Format of the results, and a file for them: text, json, csv, series, html
    ///
    /// -o json prints JSON instead of text. -o html=FILE writes an HTML page in addition to the
    /// text, and so does -o report.html, because of the file name. May be given several times. csv
    /// has a row for each run, series a row for each second.
    #[arg(short, long, value_name = "FORMAT[=FILE]", help_heading = OUTPUT)]
    pub output: Vec<Output>,

    /// Progress on standard error
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = OUTPUT)]
    pub live: When,

    /// No progress: --live never
    #[arg(long, conflicts_with = "live", help_heading = OUTPUT)]
    pub no_live: bool,

    /// Exit with status 3 unless a result meets a bound
    ///
    /// Examples: 'p99<5ms', 'p99.9<=20ms', 'avg<1ms', 'max<1s', 'rate>1000' or 'failures<1'. A
    /// request that failed or was never sent counts as later than every bound. May be given several
    /// times.
    #[arg(long, value_name = "BOUND", help_heading = OUTPUT)]
    pub assert: Vec<Goal>,

    /// Measure two servers alternately, and decide whether they differ by more than noise
    ///
    /// The order is A B A B..., each for --duration, in --rounds rounds.
    #[arg(long, value_names = ["A", "B"], num_args = 2, help_heading = SEVERAL)]
    #[arg(conflicts_with_all = ["host", "search", "assert"])]
    pub compare: Vec<String>,

    /// Rounds of --compare
    #[arg(long, value_name = "NUMBER", default_value_t = 5, help_heading = SEVERAL)]
    #[arg(value_parser = parse_rounds)]
    pub rounds: u32,

    /// Find the highest rate that meets a response time, such as p99=5ms
    ///
    /// Starts at --rate, or 1000, and runs each step for --duration. Exit status 5 means that the
    /// tester reached its own limit before the server did.
    #[arg(long, value_name = "LIMIT", help_heading = SEVERAL, conflicts_with = "assert")]
    pub search: Option<Limit>,
}

const SERVER: &str = "Server";
const LOAD: &str = "Load";
const MESSAGE: &str = "Messages";
const OUTPUT: &str = "Figures";
const SEVERAL: &str = "Several runs";

/// `--shape`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Requests and answers on connections that stay
    Request,
    /// A connection for each request
    Connect,
    /// Bytes to the server, as many as go
    Up,
    /// Bytes from the server, as many as come
    Down,
    /// Bytes each way
    Both,
    /// Idle connections with a request per --keepalive-interval
    Idle,
    /// A request of all users at the same moment, once per --interval
    Burst,
}

/// `--arrivals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Spaced {
    /// Equal gaps
    Uniform,
    /// Exponential gaps, as of many independent users
    Poisson,
}

/// `--live`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// A view in a terminal, a line each second elsewhere
    Auto,
    /// A view, even if TERM says that the terminal cannot draw
    Always,
    /// No view and no lines
    Never,
}

/// Duration of a measurement if neither `--duration` nor `--requests` is given.
const DURATION: Duration = Duration::from_secs(10);
/// Time limit of a measurement that ends by `--requests`: a year, the longest duration of a plan.
const UNTIL_DONE: Duration = Duration::from_secs(366 * 24 * 3600);
/// Maximum length of `--body` in bytes, equal to that of `--message-size`.
const BODY_MAX: u64 = 64 << 20;
/// Time between two bursts if `--interval` is not given.
const BURST_EVERY: Duration = Duration::from_secs(1);
/// Minimum length of a period of the time series, which matters for short runs. Each period costs
/// time, because it merges the histograms of all threads.
const PERIOD_MIN: Duration = Duration::from_millis(100);
/// Number of periods of the time series in a run of less than 10 s.
const PERIODS: u32 = 10;

impl LoadArgs {
    /// Creates the plan for measuring a server. `url` is the URL if the server was given by one.
    ///
    /// # Errors
    /// Fails if options contradict each other, or a value is invalid.
    pub fn plan(&self, target: Target, url: Option<HttpUrl>) -> Result<Plan> {
        let mut plan = Plan::new(target);
        plan.protocol = self.protocol(url)?;
        plan.shape = self.shape();
        plan.users = self.users;
        plan.requests = self.requests;
        let without = if self.requests.is_some() { UNTIL_DONE } else { DURATION };
        plan.duration = self.duration.unwrap_or(without);
        plan.keyspace = self.keyspace;
        if self.arrivals.is_some() && self.rate.is_none() && self.search.is_none() {
            return Err(usage(
                "--arrivals needs --rate or --search: a closed loop has no schedule",
            ));
        }
        plan.warmup = self.warmup;
        if !matches!(plan.shape, Shape::Burst { .. }) {
            plan.interval = self.interval.unwrap_or_default();
        }
        if let Some(per_second) = self.rate {
            plan.arrivals = self.open(per_second);
        }
        plan.depth = self.depth;
        plan.message = self.message()?;
        plan.answer = self.answer;
        plan.numbered = self.numbered;
        plan.timeout = self.timeout;
        plan.connect_timeout = self.connect_timeout;
        plan.local_addresses.clone_from(&self.local_address);
        plan.threads = self.threads;
        plan.seed = self.seed;
        plan.period = (plan.duration / PERIODS).clamp(PERIOD_MIN, Duration::from_secs(1));
        plan.check().map_err(|error| usage(error.to_string()))?;
        Ok(plan)
    }

    /// Returns the server as the user gave it: a URL or HOST:PORT.
    ///
    /// # Errors
    /// Fails if the argument URL has no scheme.
    pub fn url(&self) -> Result<&str> {
        match &self.url {
            Some(url) if !url.contains("://") => Err(usage(format!(
                "\"{url}\" is not a URL: expected one as http://127.0.0.1:8080/; for HOST:PORT, \
                 use --host"
            ))),
            Some(url) => Ok(url),
            None => Ok(&self.host),
        }
    }

    /// Returns the schedule of requests for an open loop with this rate per second.
    pub fn open(&self, per_second: f64) -> Arrivals {
        let spacing = match self.arrivals {
            Some(Spaced::Uniform) => Spacing::Uniform,
            Some(Spaced::Poisson) | None => Spacing::Poisson,
        };
        Arrivals::Open { per_second, spacing }
    }

    fn protocol(&self, url: Option<HttpUrl>) -> Result<Protocol> {
        match (url, &self.http) {
            (Some(url), None) => {
                self.expect_only_http(&url)?;
                let mut request = self.http_request(url.path)?;
                request.host = Some(url.host);
                return Ok(Protocol::Http1(request));
            }
            (Some(_), Some(_)) => {
                return Err(usage(
                    "--http: the URL has a path already; give HOST:PORT, or no --http",
                ));
            }
            (None, Some(path)) => return Ok(Protocol::Http1(self.http_request(path.clone())?)),
            (None, None) => {}
        }
        let given = [
            ("--header", !self.header.is_empty()),
            ("--method", self.method.is_some()),
            ("--body", self.body.is_some()),
        ];
        if let Some((option, _)) = given.into_iter().find(|it| it.1) {
            return Err(usage(format!("{option} needs HTTP: give a URL, or --http PATH")));
        }
        if self.udp {
            return Ok(Protocol::Udp);
        }
        Ok(match &self.redis {
            Some(command) => {
                let words = command.split_whitespace().map(str::to_owned);
                Protocol::Redis { words: words.collect() }
            }
            None => Protocol::Tcp,
        })
    }

    /// Returns an error if options that select another protocol or a message are given together
    /// with a URL.
    fn expect_only_http(&self, url: &HttpUrl) -> Result<()> {
        let other = [
            ("--udp", self.udp),
            ("--redis", self.redis.is_some()),
            ("--message-size", self.message_size.is_some()),
        ];
        match other.into_iter().find(|it| it.1) {
            Some((option, _)) => Err(usage(format!(
                "{option}: a URL is asked for by HTTP; for another protocol, give --host {}",
                url.server
            ))),
            None => Ok(()),
        }
    }

    fn http_request(&self, path: String) -> Result<HttpRequest> {
        let mut request = HttpRequest::get(path);
        if let Some(body) = &self.body {
            request.body = body_bytes(body)?;
            request.method = "POST".to_owned();
        }
        if let Some(method) = &self.method {
            request.method.clone_from(method);
        }
        request.headers.clone_from(&self.header);
        Ok(request)
    }

    fn shape(&self) -> Shape {
        let pattern = if self.idle { Pattern::Idle } else { self.shape };
        match pattern {
            Pattern::Request => Shape::Request,
            Pattern::Connect => Shape::ConnectEach,
            Pattern::Up => Shape::StreamUp,
            Pattern::Down => Shape::StreamDown,
            Pattern::Both => Shape::StreamBoth,
            Pattern::Idle => Shape::Idle { heartbeat: self.keepalive_interval },
            Pattern::Burst => Shape::Burst { every: self.interval.unwrap_or(BURST_EVERY) },
        }
    }

    fn message(&self) -> Result<Vec<u8>> {
        let mut message =
            parse_message(&self.message).map_err(|error| usage(format!("--message {error}")))?;
        if !self.no_newline {
            message.push(b'\n');
        }
        if let Some(size) = self.message_size {
            if message.is_empty() {
                return Err(usage("--message-size has no message to repeat: give --message"));
            }
            message = message.iter().copied().cycle().take(size).collect();
        }
        Ok(message)
    }

    /// Returns the requested outputs of the results. Adds text on standard output unless another
    /// format is written there.
    ///
    /// # Errors
    /// Fails if two formats are requested for standard output.
    pub fn outputs(&self) -> Result<Vec<Output>> {
        let mut outputs = self.output.clone();
        let on_stdout = outputs.iter().filter(|output| output.file.is_none()).count();
        if on_stdout > 1 {
            let why =
                "-o: two formats for standard output would mix; give one a file, as -o html=FILE";
            return Err(usage(why));
        }
        if on_stdout == 0 {
            outputs.push(Output { format: ResultFormat::Text, file: None });
        }
        Ok(outputs)
    }

    /// Returns when to show the progress of the run.
    pub fn live(&self) -> When {
        if self.no_live { When::Never } else { self.live }
    }
}

/// Parses `--rounds`.
fn parse_rounds(text: &str) -> Result<u32, String> {
    let number = parse_number(text, 5..=50, "rounds");
    number.map_err(|error| format!("{error}: fewer cannot tell a difference from chance"))
}

/// Parses `--header`.
fn parse_header(text: &str) -> Result<Header, String> {
    Header::parse(text).map_err(|error| error.to_string())
}

/// Returns the request body for `--body`: the text itself, or the content of the file whose name
/// follows an @.
fn body_bytes(text: &str) -> Result<Vec<u8>> {
    let Some(name) = text.strip_prefix('@') else { return Ok(text.as_bytes().to_vec()) };
    let failed = |error: std::io::Error| usage(format!("--body: cannot read {name}: {error}"));
    let mut bytes = Vec::new();
    let file = std::fs::File::open(name).map_err(failed)?;
    file.take(BODY_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BODY_MAX {
        return Err(usage(format!("--body: {name} is longer than {BODY_MAX} bytes")));
    }
    Ok(bytes)
}

/// Creates an error about the command line, with the exit status of usage errors.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Failure::error(ExitCode::Usage, message)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use towpath_load::results::samples::address;

    fn args(words: &[&str]) -> Result<LoadArgs, clap::Error> {
        let cli = Cli::try_parse_from(["towpath", "load"].iter().chain(words))?;
        match cli.command {
            Command::Load(args) => Ok(*args),
            _ => unreachable!("load was given"),
        }
    }

    fn plan(words: &[&str]) -> Plan {
        let plan = args(words).expect("it is parsed").plan(Target::from(address()), None);
        plan.expect("it is a plan")
    }

    fn refusal(words: &[&str]) -> String {
        let plan = args(words).expect("it is parsed").plan(Target::from(address()), None);
        let error = plan.expect_err("it is refused");
        assert_eq!(crate::error::exit_code(&error), 2, "{error}");
        error.to_string()
    }

    #[test]
    fn flags_of_the_old_tester_keep_their_meaning() {
        let words = "--host 127.0.0.1:7 --users 1000 --duration 10s --message hi --interval 100ms";
        let words: Vec<_> = words.split(' ').collect();
        let plan = plan(&words);
        assert_eq!((plan.users, plan.duration), (1000, Duration::from_secs(10)));
        assert_eq!((plan.message, plan.interval), (b"hi\n".to_vec(), Duration::from_millis(100)));
        assert_eq!((plan.shape, plan.arrivals), (Shape::Request, Arrivals::Closed));
        let plan = self::plan(&["--idle", "--keepalive-interval", "2s"]);
        assert_eq!(plan.shape, Shape::Idle { heartbeat: Duration::from_secs(2) });
        assert_eq!(self::plan(&["--idle"]).shape, self::plan(&["--shape", "idle"]).shape);
    }

    #[test]
    fn defaults_are_those_of_the_old_tester() {
        let args = args(&[]).expect("no option is needed");
        assert_eq!(args.host, "127.0.0.1:8080");
        let plan = args.plan(Target::from(address()), None).expect("a plan");
        assert_eq!((plan.users, plan.duration), (10, Duration::from_secs(10)));
        assert_eq!((plan.message, plan.interval), (b"hello\n".to_vec(), Duration::ZERO));
    }

    #[test]
    fn a_rate_makes_an_open_loop() {
        let open = |spacing| Arrivals::Open { per_second: 2000., spacing };
        assert_eq!(plan(&["--rate", "2k"]).arrivals, open(Spacing::Poisson));
        let words = ["--rate", "2000", "--arrivals", "uniform"];
        assert_eq!(plan(&words).arrivals, open(Spacing::Uniform));
    }

    fn http(words: &[&str], url: Option<&str>) -> Result<HttpRequest> {
        let url = url.map(|it| HttpUrl::parse(it).expect("a URL").expect("a scheme"));
        let plan = args(words).expect("it is parsed").plan(Target::from(address()), url)?;
        match plan.protocol {
            Protocol::Http1(request) => Ok(request),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn http_requests_come_from_a_url_or_a_path() {
        let get = http(&["--http", "/a"], None).expect("a plan");
        assert_eq!((&*get.method, &*get.path, get.host), ("GET", "/a", None));
        let url = Some("http://example.net/b?c");
        let get = http(&[], url).expect("a plan");
        assert_eq!((&*get.method, &*get.path), ("GET", "/b?c"));
        assert_eq!(get.host.as_deref(), Some("example.net"));
        let post = http(&["--body", "x=1", "-H", "Host: a", "--header", "B: c"], url);
        let post = post.expect("a plan");
        assert_eq!((&*post.method, &*post.body, post.headers.len()), ("POST", &b"x=1"[..], 2));
        let put = http(&["--body", "x", "--method", "PUT"], url).expect("a plan");
        assert_eq!(put.method, "PUT");
        for words in [&["--udp"][..], &["--redis", "PING"], &["--http", "/"]] {
            let error = http(words, url).expect_err("two protocols").to_string();
            assert!(error.starts_with(words[0]), "{error}");
        }
    }

    #[test]
    fn a_number_of_requests_has_no_other_end_unless_a_duration_is_given() {
        let plan = self::plan(&["--requests", "5"]);
        assert_eq!((plan.requests, plan.duration), (Some(5), UNTIL_DONE));
        assert_eq!(self::plan(&["-n", "5", "--duration", "3s"]).duration, Duration::from_secs(3));
        assert_eq!(self::plan(&[]).duration, DURATION);
    }

    #[test]
    fn messages_are_repeated_to_their_size() {
        assert_eq!(plan(&["--message", "ab", "--message-size", "7"]).message, b"ab\nab\na");
        let words = ["--message", "ab", "--no-newline", "--message-size", "5"];
        assert_eq!(plan(&words).message, b"ababa");
        assert_eq!(plan(&["--message-size", "3"]).message, b"hel");
    }

    #[test]
    fn bursts_come_once_per_interval() {
        let every = |words: &[&str]| match plan(words).shape {
            Shape::Burst { every } => every,
            other => panic!("{other:?}"),
        };
        assert_eq!(every(&["--shape", "burst"]), Duration::from_secs(1));
        let words = ["--shape", "burst", "--interval", "50ms"];
        assert_eq!(every(&words), Duration::from_millis(50));
        assert_eq!(plan(&words).interval, Duration::ZERO);
    }

    #[test]
    fn periods_of_short_runs_are_short() {
        let period = |duration| plan(&["--duration", duration]).period;
        assert_eq!(period("1h"), Duration::from_secs(1));
        assert_eq!(period("3s"), Duration::from_millis(300));
        assert_eq!(period("1ms"), PERIOD_MIN);
    }

    #[test]
    fn contradictions_are_refused_with_the_reason() {
        let cases: [(&[&str], &str); 16] = [
            (&["--users", "0"], "users is 0"),
            (&["--rate", "0"], "a rate of 0 per second"),
            (&["--rate", "10", "--interval", "1s"], "exclude each other"),
            (&["--rate", "0"], "expected 0.0002 to"),
            (&["--rate", "10", "--shape", "up"], "a rate needs the shape request or connect; up,"),
            (&["--udp", "--shape", "connect"], "the shape connect needs TCP"),
            (&["--arrivals", "uniform"], "--arrivals needs --rate or --search"),
            (&["--method", "PUT"], "--method needs HTTP"),
            (&["--http", "/", "--body", "@/no/such/file"], "cannot read /no/such/file"),
            (&["--http", "/", "-H", "content-length: 5"], "leave it out"),
            (&["--requests", "0"], "requests is 0"),
            (&["--duration", "0s"], "duration is 0"),
            (&["--http", "index"], "begins with /"),
            (&["--redis", " "], "words of the redis command is 0"),
            (&["--message", r"\q"], "--message \"\\q\""),
            (&["--message", "", "--no-newline", "--message-size", "5"], "no message to repeat"),
        ];
        for (words, wanted) in cases {
            let error = refusal(words);
            assert!(error.contains(wanted), "{words:?}: {error}");
        }
        for words in [&["--udp", "--http", "/"][..], &["--idle", "--shape", "up"], &["--numbered"]]
        {
            args(words).expect_err(&words.join(" "));
        }
    }

    #[test]
    fn text_is_printed_unless_another_format_is() {
        let outputs = |words: &[&str]| args(words).expect("parsed").outputs();
        let on_stdout = |words: &[&str]| {
            let outputs = outputs(words).expect("one format");
            outputs.iter().find(|it| it.file.is_none()).map(|it| it.format)
        };
        assert_eq!(on_stdout(&[]), Some(ResultFormat::Text));
        assert_eq!(on_stdout(&["-o", "json"]), Some(ResultFormat::Json));
        assert_eq!(on_stdout(&["-o", "html=a", "-o", "json=b"]), Some(ResultFormat::Text));
        let error = outputs(&["-o", "json", "-o", "csv"]).expect_err("two formats");
        assert!(error.to_string().contains("-o html=FILE"), "{error}");
    }
}
