//! The programs that are measured: what runs as server and client, and what the client says.

use std::fmt;
use std::path::Path;

use super::link::Link;

/// The port of every server, and the first of those of [`Serves::Load`].
pub const PORT: u16 = 7900;

/// Rows of the table that one client gives.
pub struct Case {
    pub group: Group,
    pub name: &'static str,
    pub serves: Serves,
    pub client: Client,
    /// Link between client and server, where there is one.
    pub link: Option<Link>,
    /// At least one.
    pub readings: &'static [Reading],
}

/// Measurements that belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Group {
    /// Programs as they are: iperf3, nginx, redis.
    Programs,
    /// Requests of several sizes on connections that stay.
    Rr,
    /// A connection for each request.
    Churn,
    /// Users who send now and then.
    Users,
    /// As many bytes as go.
    Bulk,
    /// Datagrams.
    Udp,
    /// Bulk over a link with 20 ms and loss.
    Loss,
    /// All of them.
    All,
}

/// Enough for slow start and what the first losses make of it to be a small part.
const LINK_SECONDS: u32 = 8;

/// Service of a server.
pub enum Serves {
    /// A program of its own.
    Program(fn(&Place<'_>) -> Vec<String>),
    /// The service of `lab/load/src/serve.rs`.
    Load,
}

/// How the client is started.
pub enum Client {
    Program(fn(&Place<'_>) -> Vec<String>),
    /// `load` of `lab/load` with these words, of which HOST and SECONDS stand for what they say.
    Load(&'static str),
}

/// A figure that a client gives.
pub struct Reading {
    /// Name among several figures.
    pub which: &'static str,
    pub unit: &'static str,
    pub read: fn(&str) -> Option<f64>,
}

/// Parameters of server and client.
pub struct Place<'a> {
    /// Where the server is for the client.
    pub host: &'a str,
    /// How long the client goes on.
    pub seconds: u32,
    /// A folder of the server's own.
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

    /// Seconds of each run of its client, unless others are asked for.
    pub fn seconds(&self) -> u32 {
        match self.link {
            Some(_) => LINK_SECONDS,
            None => 1,
        }
    }

    /// The ports that the server has, as `towpath run -p` names them.
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
    /// Whether less is better, as for times.
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

/// All there are.
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

/// nginx with one worker, whose files are in the folder.
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

/// redis without a file.
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
