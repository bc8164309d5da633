//! Measurements, the same for each device.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::world::{SERVER, World};
use crate::bench::cpu;
use crate::interrupt;
use crate::namespace::READY;
use crate::running::Running;

/// A server and its measuring client.
pub struct Case {
    pub name: &'static str,
    pub server: fn(&World) -> Result<Server>,
    client: fn(u64) -> Vec<String>,
    rate: fn(&str) -> Option<f64>,
    unit: Unit,
}

/// Command of a server, and its port.
pub struct Server {
    pub line: Vec<String>,
    pub port: u16,
}

/// Unit of a rate.
enum Unit {
    Bits,
    PerSecond(&'static str),
}

/// Figures of a round.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    pub rate: f64,
    /// Number of processors used by the server with its stack, excluding the kernel's work in
    /// interrupts.
    pub server: f64,
    /// Number of processors used by the machine, including clients.
    pub all: f64,
}

pub const ALL: &[Case] = &[
    Case {
        name: "iperf3, to the server",
        server: iperf_server,
        client: |seconds| iperf(seconds, &[]),
        rate: |text| number(text, "/end/sum_received/bits_per_second"),
        unit: Unit::Bits,
    },
    Case {
        name: "iperf3, from the server",
        server: iperf_server,
        client: |seconds| iperf(seconds, &["-R"]),
        rate: |text| number(text, "/end/sum_received/bits_per_second"),
        unit: Unit::Bits,
    },
    Case {
        name: "UDP, 64 bytes, to the server",
        server: iperf_server,
        client: |seconds| iperf(seconds, &["-u", "-b", "0", "-l", "64"]),
        rate: |text| {
            let of = |name: &str| number(text, &format!("/end/sum/{name}"));
            Some((of("packets")? - of("lost_packets")?) / of("seconds")?)
        },
        unit: Unit::PerSecond("datagrams"),
    },
    Case {
        name: "nginx, wrk -c64",
        server: nginx,
        client: |seconds| words(&format!("wrk -t1 -c64 -d{seconds}s http://{SERVER}:{PORT}/")),
        rate: |text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"))?;
            line.trim().parse().ok()
        },
        unit: Unit::PerSecond("requests"),
    },
    Case {
        name: "redis, GET, 50 clients",
        server: |_| {
            let options = "--bind 0.0.0.0 --protected-mode no --save --appendonly no";
            let line = words(&format!("redis-server --port {PORT} {options}"));
            Ok(Server { line, port: PORT })
        },
        // The client supports only a number of requests, so pass about as many as fit the duration.
        client: |seconds| {
            let requests = seconds * 100_000;
            words(&format!(
                "redis-benchmark -h {SERVER} -p {PORT} -n {requests} -c 50 -t get --csv"
            ))
        },
        rate: |text| text.lines().last()?.split(',').nth(1)?.trim_matches('"').parse().ok(),
        unit: Unit::PerSecond("requests"),
    },
];

const PORT: u16 = 7900;
/// Default port of iperf3.
const IPERF_PORT: u16 = 5201;

impl Case {
    /// Runs the client once.
    pub fn measure(&self, world: &World, server: &mut Running, seconds: u64) -> Result<Figure> {
        let line = (self.client)(seconds);
        let pid = server.0.id();
        let patience = Instant::now() + READY;
        let (output, elapsed, used, all) = loop {
            let (used, all, begun) = (cpu::of_tree(pid)?, cpu::busy()?, Instant::now());
            let output = world.client(&line)?.output().context("the client")?;
            let elapsed = begun.elapsed().as_secs_f64();
            // Retry a refused connection, because iperf3 does not listen between two clients.
            let is_refused = String::from_utf8_lossy(&output.stdout).contains("Connection refused");
            if !is_refused || Instant::now() > patience {
                break (output, elapsed, cpu::of_tree(pid)? - used, cpu::busy()? - all);
            }
            interrupt::sleep(Duration::from_millis(50))?;
        };
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
        let rate = (self.rate)(&said).with_context(|| format!("{line:?} said: {said}"))?;
        Ok(Figure { rate, server: used / elapsed, all: all / elapsed })
    }

    pub fn rate_words(&self, rate: f64) -> String {
        match self.unit {
            Unit::Bits => format!("{:.2} Gbit/s", rate / 1e9),
            Unit::PerSecond(what) => format!("{rate:.0} {what}/s"),
        }
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn iperf_server(_: &World) -> Result<Server> {
    Ok(Server { line: words("iperf3 -s"), port: IPERF_PORT })
}

fn iperf(seconds: u64, more: &[&str]) -> Vec<String> {
    let mut line = words(&format!("iperf3 -c {SERVER} -J -t {seconds}"));
    line.extend(more.iter().copied().map(str::to_owned));
    line
}

/// Returns a number in iperf3's JSON output.
fn number(text: &str, place: &str) -> Option<f64> {
    serde_json::from_str::<Value>(text).ok()?.pointer(place)?.as_f64()
}

/// Returns the command of nginx with one worker that answers from memory.
fn nginx(world: &World) -> Result<Server> {
    let folder = world.folder().display();
    let config = format!(
        "daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit;
         events {{ worker_connections 1024; }}
         http {{ access_log off; keepalive_requests 1000000000;
         server {{ listen {PORT} backlog=1024;
         location / {{ return 200 'hello from nginx'; }} }} }}"
    );
    let path = world.folder().join("nginx.conf");
    fs::write(&path, config).with_context(|| path.display().to_string())?;
    Ok(Server { line: words(&format!("nginx -c {}", path.display())), port: PORT })
}
