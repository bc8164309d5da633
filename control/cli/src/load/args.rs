//! The options of `towpath load`, and the plan that they make.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use towpath_load::{Answer, Arrivals, Plan, Protocol, Shape, Spacing, Target};

use super::values::{
    Format, Goal, Limit, Output, Place, parse_answer, parse_message, parse_message_size,
    parse_rate, parse_time,
};
use crate::error::{ExitCode, Failure};

#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Server to measure
    ///
    /// An address or a name, and a port: 127.0.0.1:7, [::1]:7, example.net:80.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    #[arg(help_heading = SERVER)]
    pub host: String,

    /// Send datagrams
    ///
    /// A request is a datagram of its own, and so is the answer.
    #[arg(long, help_heading = SERVER, conflicts_with_all = ["http", "redis"])]
    pub udp: bool,

    /// Ask for PATH by HTTP/1.1
    ///
    /// Each request is a GET of PATH. An answer with a status of 400 or more is a failure.
    #[arg(long, value_name = "PATH", help_heading = SERVER)]
    #[arg(conflicts_with_all = ["redis", "message", "message_size", "answer"])]
    pub http: Option<String>,

    /// Send a redis command, as PING or "GET key"
    ///
    /// Words are parted by spaces. An answer that is an error is a failure.
    #[arg(long, value_name = "COMMAND", help_heading = SERVER)]
    #[arg(conflicts_with_all = ["message", "message_size", "answer"])]
    pub redis: Option<String>,

    /// Sockets of the users: kernel, rootless, tap or tap=NAME
    ///
    /// With rootless and tap, the tester runs on a stack of its own: `towpath run`, or `towpath run
    /// --tap`. Rootless, 127.0.0.1 is replaced by 10.0.2.2, where the stack finds this machine's
    /// loopback. With tap, the server must listen on this machine's address on the device,
    /// 10.77.0.1.
    #[arg(long, value_name = "WHERE", default_value = "kernel", help_heading = SERVER)]
    pub on: Place,

    /// Place of a tester that another one has started.
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

    /// Time of the measurement, as 10s, 500ms or 1m30s
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    #[arg(help_heading = LOAD)]
    pub duration: Duration,

    /// Pause of a user between an answer and the next request
    ///
    /// With --shape burst, the time between two bursts: 1s unless given.
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = LOAD)]
    pub interval: Option<Duration>,

    /// Requests per second of all users together, answered or not
    ///
    /// Makes an open loop: requests are due by a schedule that the server cannot delay, and
    /// response times count from when a request was due. Without it, each user waits for its
    /// answer before the next request (closed loop).
    #[arg(long, value_name = "RATE", value_parser = parse_rate, help_heading = LOAD)]
    pub rate: Option<f64>,

    /// Gaps between the requests of --rate or --search
    #[arg(long, value_name = "RULE", default_value = "poisson", help_heading = LOAD)]
    pub arrivals: Spaced,

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

    /// Requests under way at once on one connection
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = LOAD)]
    pub depth: usize,

    /// Time of traffic before the measurement, which no figure includes
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_time)]
    #[arg(help_heading = LOAD)]
    pub warmup: Duration,

    /// Threads that send
    ///
    /// A single thread is often best where the server shares the machine.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = LOAD)]
    pub threads: usize,

    /// Seed of phases and Poisson gaps: equal seeds give equal schedules
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = LOAD)]
    pub seed: u64,

    /// Text of a request, sent with a newline behind it
    ///
    /// \n, \r, \t, \0, \\ and \xHH stand for the bytes that they name.
    #[arg(long, value_name = "TEXT", default_value = "hello", help_heading = MESSAGE)]
    pub message: String,

    /// Send the message without a newline
    #[arg(long, help_heading = MESSAGE)]
    pub no_newline: bool,

    /// Length of a request: the message is repeated or cut to so many bytes
    #[arg(long, value_name = "BYTES", value_parser = parse_message_size, help_heading = MESSAGE)]
    pub message_size: Option<usize>,

    /// Answer to a message: echo, any, or its length in bytes
    ///
    /// echo: the message itself, and other bytes are a failure. any: whatever arrives first.
    #[arg(long, value_name = "ANSWER", default_value = "echo", value_parser = parse_answer)]
    #[arg(help_heading = MESSAGE)]
    pub answer: Answer,

    /// Number the datagrams in their first 8 bytes, which tells late answers from lost ones
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

    /// Form of the figures, and a file for them: text, json, csv, series, html
    ///
    /// -o json prints JSON in place of the text, -o html=FILE writes a page beside it. May be given
    /// several times. csv has a row for each run, series one for each second.
    #[arg(short, long, value_name = "FORMAT[=FILE]", help_heading = OUTPUT)]
    pub output: Vec<Output>,

    /// Progress on standard error
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = OUTPUT)]
    pub live: When,

    /// No progress: --live never
    #[arg(long, conflicts_with = "live", help_heading = OUTPUT)]
    pub no_live: bool,

    /// Exit with status 3 unless a figure keeps its bound
    ///
    /// As 'p99<5ms', 'p99.9<=20ms', 'avg<1ms', 'max<1s', 'rate>1000' or 'failures<1'. May be given
    /// several times.
    #[arg(long, value_name = "BOUND", help_heading = OUTPUT)]
    pub assert: Vec<Goal>,

    /// Measure two servers in turn, and tell a difference from noise
    ///
    /// Runs A B A B..., each for --duration, in --rounds rounds.
    #[arg(long, value_names = ["A", "B"], num_args = 2, help_heading = SEVERAL)]
    #[arg(conflicts_with_all = ["host", "search", "assert"])]
    pub compare: Vec<String>,

    /// Rounds of --compare
    #[arg(long, value_name = "NUMBER", default_value_t = 5, help_heading = SEVERAL)]
    #[arg(value_parser = clap::value_parser!(u32).range(5..=50))]
    pub rounds: u32,

    /// Find the highest rate that keeps a response time, as p99=5ms
    ///
    /// Begins at --rate, or 1000, and runs each step for --duration.
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
    /// A view, also where TERM says that the terminal cannot draw
    Always,
    /// Nothing
    Never,
}

/// Time between two bursts unless `--interval` is given.
const BURST_EVERY: Duration = Duration::from_secs(1);
/// Shortest period of the series, which short runs have: a snapshot costs a merge of histograms.
const PERIOD_MIN: Duration = Duration::from_millis(100);
/// Periods of runs of less than 10 s.
const PERIODS: u32 = 10;

impl LoadArgs {
    /// The plan for a server.
    ///
    /// # Errors
    /// Options that contradict each other.
    pub fn plan(&self, target: Target) -> Result<Plan> {
        let mut plan = Plan::new(target);
        plan.protocol = self.protocol();
        plan.shape = self.shape();
        plan.users = self.users;
        plan.duration = self.duration;
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
        plan.period = (self.duration / PERIODS).clamp(PERIOD_MIN, Duration::from_secs(1));
        plan.check().map_err(|error| usage(error.to_string()))?;
        Ok(plan)
    }

    /// Arrivals of an open loop.
    pub fn open(&self, per_second: f64) -> Arrivals {
        let spacing = match self.arrivals {
            Spaced::Uniform => Spacing::Uniform,
            Spaced::Poisson => Spacing::Poisson,
        };
        Arrivals::Open { per_second, spacing }
    }

    fn protocol(&self) -> Protocol {
        if self.udp {
            return Protocol::Udp;
        }
        match (&self.http, &self.redis) {
            (Some(path), _) => Protocol::Http1 { path: path.clone(), host: None },
            (None, Some(command)) => {
                let words = command.split_whitespace().map(str::to_owned);
                Protocol::Redis { words: words.collect() }
            }
            (None, None) => Protocol::Tcp,
        }
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

    /// Outputs as they were asked for; text on standard output where no other format is there.
    ///
    /// # Errors
    /// Two formats for standard output.
    pub fn outputs(&self) -> Result<Vec<Output>> {
        let mut outputs = self.output.clone();
        let on_stdout = outputs.iter().filter(|output| output.file.is_none()).count();
        if on_stdout > 1 {
            let why =
                "-o: two formats for standard output would mix; give one a file, as -o html=FILE";
            return Err(usage(why));
        }
        if on_stdout == 0 {
            outputs.push(Output { format: Format::Text, file: None });
        }
        Ok(outputs)
    }

    /// When there is a view of the run.
    pub fn live(&self) -> When {
        if self.no_live { When::Never } else { self.live }
    }
}

/// An error of the command line.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Failure::error(ExitCode::Usage, message)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::samples::address;
    use super::*;
    use crate::args::{Cli, Command};

    fn args(words: &[&str]) -> Result<LoadArgs, clap::Error> {
        let cli = Cli::try_parse_from(["towpath", "load"].iter().chain(words))?;
        match cli.command {
            Command::Load(args) => Ok(*args),
            _ => unreachable!("load was given"),
        }
    }

    fn plan(words: &[&str]) -> Plan {
        let plan = args(words).expect("it is parsed").plan(Target::from(address()));
        plan.expect("it is a plan")
    }

    fn refusal(words: &[&str]) -> String {
        let plan = args(words).expect("it is parsed").plan(Target::from(address()));
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
        let plan = args.plan(Target::from(address())).expect("a plan");
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
        let cases: [(&[&str], &str); 9] = [
            (&["--users", "0"], "users is 0"),
            (&["--rate", "0"], "a rate of 0 per second"),
            (&["--rate", "10", "--interval", "1s"], "exclude each other"),
            (&["--rate", "10", "--shape", "up"], "a rate needs"),
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
        assert_eq!(on_stdout(&[]), Some(Format::Text));
        assert_eq!(on_stdout(&["-o", "json"]), Some(Format::Json));
        assert_eq!(on_stdout(&["-o", "html=a", "-o", "json=b"]), Some(Format::Text));
        let error = outputs(&["-o", "json", "-o", "csv"]).expect_err("two formats");
        assert!(error.to_string().contains("-o html=FILE"), "{error}");
    }
}
