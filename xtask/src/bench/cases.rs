//! The programs that are measured: what runs as server and client, and what the client says.

use std::path::Path;

/// The port of every server.
pub const PORT: u16 = 7900;

/// The command of a server or a client.
pub type Words = fn(&Place<'_>) -> Vec<String>;

/// Rows of the table that one client gives.
pub struct Case {
    pub name: &'static str,
    pub server: Words,
    pub client: Words,
    /// At least one.
    pub readings: &'static [Reading],
}

/// One of them.
pub struct Reading {
    /// Which of several it is.
    pub which: &'static str,
    pub unit: &'static str,
    pub read: fn(&str) -> Option<f64>,
}

/// What server and client are told.
pub struct Place<'a> {
    /// Where the server is for the client.
    pub host: &'a str,
    /// How long the client goes on.
    pub seconds: u32,
    /// A folder of the server's own.
    pub scratch: &'a Path,
    /// A folder with the programs of `tests/src/bin`.
    pub programs: &'a Path,
}

const fn rate(unit: &'static str, read: fn(&str) -> Option<f64>) -> Reading {
    Reading { which: "", unit, read }
}

pub const CASES: &[Case] = &[
    Case {
        name: "iperf3 to the program",
        server: iperf_server,
        client: |at| iperf(at, &[]),
        readings: &[rate("Gbit/s", gbits)],
    },
    Case {
        name: "iperf3 from the program",
        server: iperf_server,
        client: |at| iperf(at, &["-R"]),
        readings: &[rate("Gbit/s", gbits)],
    },
    Case {
        name: "nginx, wrk -c64, keep-alive",
        server: nginx,
        client: |at| wrk(at, &[]),
        readings: &[rate("requests/s", wrk_rate)],
    },
    Case {
        name: "nginx, wrk -c64, connection each",
        server: nginx,
        client: |at| wrk(at, &["-H", "Connection: close"]),
        readings: &[rate("requests/s", wrk_rate)],
    },
    Case {
        name: "redis GET, 50 clients",
        server: redis,
        client: |at| redis_get(at, 1),
        readings: &[rate("requests/s", redis_rate)],
    },
    Case {
        name: "redis GET, 50 clients, pipeline 16",
        server: redis,
        client: |at| redis_get(at, 16),
        readings: &[rate("requests/s", redis_rate)],
    },
    Case {
        name: "one connection, round trip",
        server: |at| crowd(at, &format!("answer {PORT}")),
        client: |at| crowd(at, &format!("ask {}:{PORT} {}", at.host, at.seconds)),
        readings: &[
            Reading { which: ", p50", unit: "µs", read: |text| nth_word(text, 0) },
            Reading { which: ", p99", unit: "µs", read: |text| nth_word(text, 1) },
        ],
    },
];

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn iperf_server(_: &Place<'_>) -> Vec<String> {
    words(&format!("iperf3 -s -p {PORT}"))
}

fn iperf(at: &Place<'_>, more: &[&str]) -> Vec<String> {
    let Place { host, seconds, .. } = at;
    words(&format!("iperf3 -J -C cubic -c {host} -p {PORT} -t {seconds} {}", more.join(" ")))
}

fn gbits(text: &str) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(report["end"]["sum_received"]["bits_per_second"].as_f64()? / 1e9)
}

pub fn nginx(at: &Place<'_>) -> Vec<String> {
    let scratch = at.scratch;
    let root = scratch.display();
    let config = format!(
        "daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log; events {{}} \
         http {{ access_log off; keepalive_requests 1000000; \
         client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f; \
         uwsgi_temp_path {root}/u; scgi_temp_path {root}/s; \
         server {{ listen {PORT} backlog=1024; location / {{ return 200 'hello from nginx'; }} }} }}"
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

pub fn redis(_: &Place<'_>) -> Vec<String> {
    words(&format!(
        "redis-server --port {PORT} --bind 0.0.0.0 --protected-mode no --save --appendonly no"
    ))
}

fn redis_get(at: &Place<'_>, pipeline: u32) -> Vec<String> {
    let Place { host, seconds, .. } = at;
    let n = seconds * 100_000 * pipeline.min(8);
    words(&format!("redis-benchmark -h {host} -p {PORT} -n {n} -c 50 -P {pipeline} -t get --csv"))
}

fn redis_rate(text: &str) -> Option<f64> {
    let line = text.lines().find(|l| l.starts_with("\"GET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

fn crowd(at: &Place<'_>, line: &str) -> Vec<String> {
    let program = at.programs.join("crowd").display().to_string();
    std::iter::once(program).chain(words(line)).collect()
}

fn nth_word(text: &str, n: usize) -> Option<f64> {
    text.split_whitespace().nth(n)?.parse().ok()
}
