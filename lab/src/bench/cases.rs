//! Measured programs: the commands of server and client, and the figures that the client prints.

use std::fmt;
use std::path::Path;

use super::link::Link;

/// Port of every server, and the first of the three ports of [`Serves::Load`].
pub const PORT: u16 = 7900;

/// Measurement by one client, which fills one or more rows of the table.
pub struct Case {
    pub group: Group,
    pub name: &'static str,
    pub serves: Serves,
    pub client: Client,
    /// Link with delay and loss between client and server, if any.
    pub link: Option<Link>,
    /// Figures of the client, at least one.
    pub readings: &'static [Reading],
}

/// Groups of measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Group {
    /// Unmodified programs: iperf3, nginx, redis.
    Programs,
    /// Requests of several sizes on persistent connections.
    Rr,
    /// A connection for each request.
    Churn,
    /// Many users that each send a request from time to time.
    Users,
    /// Bulk transfer at maximum speed.
    Bulk,
    /// Datagrams.
    Udp,
    /// Bulk transfer over a link with a round trip of 20 ms and loss.
    Loss,
    /// All groups.
    All,
}

/// Duration of a run over a link in seconds, long enough that slow start and the first losses are a
/// small part.
const LINK_SECONDS: u32 = 8;

/// Service of a server.
pub enum Serves {
    /// A separate program.
    Program(fn(&Place<'_>) -> Vec<String>),
    /// The service of `lab/load/src/serve.rs`.
    Load,
}

/// Command of the client.
pub enum Client {
    Program(fn(&Place<'_>) -> Vec<String>),
    /// Client of `lab/load` with these arguments. HOST and SECONDS are replaced by their values.
    Load(&'static str),
}

/// Figure that a client prints.
pub struct Reading {
    /// Name of the figure if there are several.
    pub which: &'static str,
    pub unit: &'static str,
    pub read: fn(&str) -> Option<f64>,
}

/// Parameters of server and client.
pub struct Place<'a> {
    /// Address of the server as seen by the client.
    pub host: &'a str,
    /// Duration of the client's run.
    pub seconds: u32,
    /// Directory for the server's files.
    pub scratch: &'a Path,
    /// The program `tests/src/bin/crowd.rs`.
    pub crowd: &'a Path,
    /// The program `lab/load`.
    pub load: &'a Path,
}

impl Case {
    pub fn server(&self, at: &Place<'_>) -> Vec<String> {
        match self.serves {
            Serves::Program(line) => line(at),
            Serves::Load => load(at, &format!("serve {PORT}")),
        }
    }

    pub fn client(&self, at: &Place<'_>) -> Vec<String> {
        match self.client {
            Client::Program(line) => line(at),
            Client::Load(line) => {
                let host = format!("{}:{PORT}", at.host);
                load(at, &line.replace("HOST", &host).replace("SECONDS", &at.seconds.to_string()))
            }
        }
    }

    /// Returns the default duration of a client's run in seconds.
    pub fn seconds(&self) -> u32 {
        match self.link {
            Some(_) => LINK_SECONDS,
            None => 1,
        }
    }

    /// Returns the server's ports in the syntax of `towpath run -p`.
    pub fn ports(&self) -> Vec<String> {
        match self.serves {
            Serves::Program(_) => vec![PORT.to_string()],
            Serves::Load => {
                let udp = (PORT..PORT + 2).map(|port| format!("{port}/udp"));
                (PORT..PORT + 3).map(|port| port.to_string()).chain(udp).collect()
            }
        }
    }
}

impl Reading {
    /// Returns whether smaller values are better, as for times.
    pub fn is_less_better(&self) -> bool {
        self.unit == "µs"
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Programs => "programs",
            Self::Rr => "rr",
            Self::Churn => "churn",
            Self::Users => "users",
            Self::Bulk => "bulk",
            Self::Udp => "udp",
            Self::Loss => "loss",
            Self::All => "all",
        })
    }
}

/// Returns all measurements.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    CASES.iter().chain(super::loads::CASES).chain(super::losses::CASES)
}

const fn rate(unit: &'static str, read: fn(&str) -> Option<f64>) -> Reading {
    Reading { which: "", unit, read }
}

const CASES: &[Case] = &[
    program("iperf3 to the program", iperf_server, |at| iperf(at, &[]), &[rate("Gbit/s", gbits)]),
    program(
        "iperf3 from the program",
        iperf_server,
        |at| iperf(at, &["-R"]),
        &[rate("Gbit/s", gbits)],
    ),
    program(
        "nginx, wrk -c64, keep-alive",
        |at| nginx(at.scratch),
        |at| wrk(at, &[]),
        &[rate("requests/s", wrk_rate)],
    ),
    program(
        "nginx, wrk -c64, connection each",
        |at| nginx(at.scratch),
        |at| wrk(at, &["-H", "Connection: close"]),
        &[rate("requests/s", wrk_rate)],
    ),
    program(
        "redis GET, 50 clients",
        |_| redis(),
        |at| redis_get(at, 1),
        &[rate("requests/s", redis_rate)],
    ),
    program(
        "redis SET, 50 clients",
        |_| redis(),
        |at| redis_benchmark(at, "set", 1),
        &[rate("requests/s", redis_rate)],
    ),
    program(
        "redis GET, 50 clients, pipeline 16",
        |_| redis(),
        |at| redis_get(at, 16),
        &[rate("requests/s", redis_rate)],
    ),
    program(
        "one connection, round trip",
        |at| crowd(at, &format!("answer {PORT}")),
        |at| crowd(at, &format!("ask {}:{PORT} {}", at.host, at.seconds)),
        &[
            Reading { which: ", p50", unit: "µs", read: |text| nth_word(text, 0) },
            Reading { which: ", p99", unit: "µs", read: |text| nth_word(text, 1) },
        ],
    ),
];

const fn program(
    name: &'static str,
    server: fn(&Place<'_>) -> Vec<String>,
    client: fn(&Place<'_>) -> Vec<String>,
    readings: &'static [Reading],
) -> Case {
    let (serves, client) = (Serves::Program(server), Client::Program(client));
    Case { group: Group::Programs, name, serves, client, link: None, readings }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

pub fn iperf_server(_: &Place<'_>) -> Vec<String> {
    words(&format!("iperf3 -s -p {PORT}"))
}

pub fn iperf(at: &Place<'_>, more: &[&str]) -> Vec<String> {
    let Place { host, seconds, .. } = at;
    words(&format!("iperf3 -J -C cubic -c {host} -p {PORT} -t {seconds} {}", more.join(" ")))
}

pub fn gbits(text: &str) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(report["end"]["sum_received"]["bits_per_second"].as_f64()? / 1e9)
}

/// Returns the command of nginx with one worker, with its files in `scratch`.
pub fn nginx(scratch: &Path) -> Vec<String> {
    let root = scratch.display();
    let config = format!(
        "daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log; events {{}} \
         http {{ access_log off; keepalive_requests 1000000; \
         client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f; \
         uwsgi_temp_path {root}/u; scgi_temp_path {root}/s; \
         server {{ listen {PORT} backlog=1024; \
         location / {{ return 200 'hello from nginx'; }} }} }}"
    );
    let path = scratch.join("nginx.conf");
    std::fs::write(&path, config).expect("scratch file");
    vec!["nginx".into(), "-c".into(), path.to_str().expect("plain").into()]
}

fn wrk(at: &Place<'_>, more: &[&str]) -> Vec<String> {
    let Place { host, seconds, .. } = at;
    let mut line = words(&format!("wrk -t1 -c64 -d{seconds}s"));
    line.extend(more.iter().map(|&m| m.to_owned()));
    line.push(format!("http://{host}:{PORT}/"));
    line
}

fn wrk_rate(text: &str) -> Option<f64> {
    text.lines().find_map(|l| l.strip_prefix("Requests/sec:"))?.trim().parse().ok()
}

/// Returns the command of redis without persistence.
pub fn redis() -> Vec<String> {
    words(&format!(
        "redis-server --port {PORT} --bind 0.0.0.0 --protected-mode no --save --appendonly no"
    ))
}

fn redis_get(at: &Place<'_>, pipeline: u32) -> Vec<String> {
    redis_benchmark(at, "get", pipeline)
}

fn redis_benchmark(at: &Place<'_>, what: &str, pipeline: u32) -> Vec<String> {
    let Place { host, seconds, .. } = at;
    let n = seconds * 100_000 * pipeline.min(8);
    words(&format!(
        "redis-benchmark -h {host} -p {PORT} -n {n} -c 50 -P {pipeline} -t {what} --csv"
    ))
}

fn redis_rate(text: &str) -> Option<f64> {
    let line = text.lines().find(|l| ["\"GET\"", "\"SET\""].iter().any(|it| l.starts_with(it)))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

fn load(at: &Place<'_>, line: &str) -> Vec<String> {
    std::iter::once(at.load.display().to_string()).chain(words(line)).collect()
}

fn crowd(at: &Place<'_>, line: &str) -> Vec<String> {
    std::iter::once(at.crowd.display().to_string()).chain(words(line)).collect()
}

fn nth_word(text: &str, n: usize) -> Option<f64> {
    text.split_whitespace().nth(n)?.parse().ok()
}
