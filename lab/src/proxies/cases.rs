//! Measurements, the same for each proxy.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::built::Built;
use super::contenders::Started;
use super::world::{CROWD, LOAD, SERVER, World, at};
use crate::bench::cpu;
use crate::interrupt;
use crate::running::Running;

/// All figures of one proxy. A failed measurement does not prevent further ones.
pub struct Figures {
    pub up: Result<Bulk>,
    pub down: Result<Bulk>,
    up_8: Result<Bulk>,
    down_8: Result<Bulk>,
    udp: Result<Datagrams>,
    connections: Result<Value>,
    round_trip: Result<Value>,
    pub idle: Result<Memory>,
}

/// Bulk transfer in one direction.
pub struct Bulk {
    bits_per_second: f64,
    gigabytes: f64,
    /// CPU time in seconds, of the proxy and of the whole machine.
    proxy: f64,
    all: f64,
}

/// Datagrams in one direction, sent as fast as the client can.
struct Datagrams {
    bits_per_second: f64,
    lost_percent: f64,
}

/// Resident memory of a proxy in bytes, before and with a number of idle connections.
pub struct Memory {
    before: f64,
    with: f64,
    connections: usize,
}

/// Length of a datagram in bytes that fits an Ethernet frame with all headers.
const DATAGRAM: &str = "1400";
/// Number of clients that connect simultaneously.
const CLIENTS: &str = "64";
/// Length of their requests in bytes.
const QUESTION: &str = "100";
/// Time after which a proxy has freed the memory that it used while connecting.
const SETTLED: Duration = Duration::from_secs(2);

/// Measures rates, each for some seconds.
pub fn rates(world: &World, started: &Started, load: &Path, seconds: u64) -> Result<Figures> {
    let seconds = seconds.to_string();
    let bulk = |words: &[&str]| {
        interrupt::check()?;
        Bulk::measure(world, started, &[&["-t", &seconds], words].concat())
    };
    let program = load.display().to_string();
    let load = |words: &[&str]| {
        interrupt::check()?;
        let line = [&[&*program], words].concat();
        asked(&mut world.command(&started.place, &line))
    };
    let to = at(LOAD);
    Ok(Figures {
        up: bulk(&[]),
        down: bulk(&["-R"]),
        up_8: bulk(&["-P", "8"]),
        down_8: bulk(&["-P", "8", "-R"]),
        udp: Datagrams::measure(world, started, &seconds),
        connections: load(&["churn", &to, CLIENTS, QUESTION, &seconds]),
        round_trip: load(&["ask", &to, "1", "1", &seconds]),
        idle: Err(anyhow::anyhow!("not measured")),
    })
}

impl Figures {
    /// Returns the bulk transfers with their names.
    pub fn bulk(&self) -> [(&'static str, &Result<Bulk>); 4] {
        [("up", &self.up), ("down", &self.down), ("8 up", &self.up_8), ("8 down", &self.down_8)]
    }

    /// Returns the cells of the other rates, in the order of the table.
    pub fn others(&self) -> [(&'static str, Result<String>); 4] {
        let field = |value: &Result<Value>, name: &str| match value {
            Ok(value) => Ok(value[name].as_f64().context("the client's figures")?),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        let udp = match &self.udp {
            Ok(it) => Ok(format!("{:.2} ({:.0} %)", it.bits_per_second / 1e9, it.lost_percent)),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        let connections = field(&self.connections, "rate").map(|rate| format!("{rate:.0}"));
        let p50 = field(&self.round_trip, "p50").map(|time| format!("{time:.0} µs"));
        let p99 = field(&self.round_trip, "p99").map(|time| format!("{time:.0} µs"));
        [("UDP", udp), ("connections", connections), ("round trip", p50), ("round trip", p99)]
    }

    pub fn json(&self) -> Value {
        let or_error = |value: Result<Value, &anyhow::Error>| match value {
            Ok(value) => value,
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        let bulk = |bulk: &Result<Bulk>| or_error(bulk.as_ref().map(Bulk::json));
        json!({
            "up": bulk(&self.up),
            "down": bulk(&self.down),
            "up_8": bulk(&self.up_8),
            "down_8": bulk(&self.down_8),
            "udp": or_error(self.udp.as_ref().map(Datagrams::json)),
            "connections": or_error(self.connections.as_ref().map(Value::clone)),
            "round_trip": or_error(self.round_trip.as_ref().map(Value::clone)),
            "idle": or_error(self.idle.as_ref().map(Memory::json)),
        })
    }
}

impl Bulk {
    fn measure(world: &World, started: &Started, words: &[&str]) -> Result<Self> {
        let (proxy, all) = (used(started)?, cpu::busy()?);
        let said = iperf3(world, started, &[&["-C", "cubic"], words].concat())?;
        let (proxy, all) = (used(started)? - proxy, cpu::busy()? - all);
        let received = &said["end"]["sum_received"];
        let number = |name: &str| received[name].as_f64().context("iperf3 received nothing");
        Ok(Self {
            bits_per_second: number("bits_per_second")?,
            gigabytes: number("bytes")? / 1e9,
            proxy,
            all,
        })
    }

    pub fn gbit_s(&self) -> f64 {
        self.bits_per_second / 1e9
    }

    /// Returns the proxy's CPU time in seconds per gigabyte.
    pub fn proxy_per_gb(&self) -> f64 {
        self.proxy / self.gigabytes
    }

    /// Returns the machine's CPU time in seconds per gigabyte, including client, server and kernel.
    pub fn all_per_gb(&self) -> f64 {
        self.all / self.gigabytes
    }

    fn json(&self) -> Value {
        json!({
            "bits_per_second": self.bits_per_second,
            "proxy_cpu_s_per_gb": self.proxy_per_gb(),
            "all_cpu_s_per_gb": self.all_per_gb(),
        })
    }
}

impl Datagrams {
    fn measure(world: &World, started: &Started, seconds: &str) -> Result<Self> {
        interrupt::check()?;
        let said = iperf3(world, started, &["-u", "-b", "0", "-l", DATAGRAM, "-t", seconds])?;
        let sum = &said["end"]["sum"];
        let number = |name: &str| sum[name].as_f64().context("iperf3 received nothing");
        let (packets, lost) = (number("packets")?, number("lost_packets")?);
        let bytes = DATAGRAM.parse::<f64>()? * (packets - lost);
        Ok(Self {
            bits_per_second: bytes * 8. / number("seconds")?,
            lost_percent: lost / packets.max(1.) * 100.,
        })
    }

    fn json(&self) -> Value {
        json!({ "bits_per_second": self.bits_per_second, "lost_percent": self.lost_percent })
    }
}

impl Memory {
    pub fn measure(
        world: &World,
        started: &Started,
        built: &Built,
        connections: usize,
    ) -> Result<Self> {
        interrupt::check()?;
        let before = resident(started)?;
        let (crowd, to) = (built.crowd.display().to_string(), at(CROWD));
        let (source, count) = (world.own_address(&started.place)?, connections.to_string());
        let line = [&*crowd, "hold", &to, &count, &source];
        let mut command = world.command(&started.place, &line);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = child.stdout.take().context("piped")?;
        let mut holder = Running(child);
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        ensure!(line.trim() == "held", "{connections} connections were not made");
        interrupt::sleep(SETTLED)?;
        let with = resident(started)?;
        holder.stop();
        Ok(Self { before, with, connections })
    }

    /// Returns the cells of the table.
    pub fn cells(&self) -> [String; 3] {
        let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
        let each = (self.with - self.before) / self.connections.max(1) as f64;
        [mib(self.before), mib(self.with), format!("{each:.0}")]
    }

    fn json(&self) -> Value {
        json!({
            "before_bytes": self.before,
            "with_bytes": self.with,
            "connections": self.connections,
        })
    }
}

/// Runs iperf3, and returns its JSON output.
fn iperf3(world: &World, started: &Started, words: &[&str]) -> Result<Value> {
    let line = [&["iperf3", "-c", SERVER, "-J"], words].concat();
    let said = asked(&mut world.command(&started.place, &line))?;
    let error = said["error"].as_str().map(str::to_owned);
    error.map_or(Ok(said), |error| Err(anyhow::anyhow!("iperf3: {error}")))
}

/// Returns the JSON that a program prints.
fn asked(command: &mut Command) -> Result<Value> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout)
        .with_context(|| said.lines().next().unwrap_or("it printed no figures").to_owned())
}

/// Returns the CPU time of a proxy so far, in seconds.
fn used(started: &Started) -> Result<f64> {
    started.proxy.as_ref().map_or(Ok(0.), |proxy| cpu::of_tree(proxy.0.id()))
}

/// Returns the resident memory of a proxy and its helper processes, excluding the program that
/// holds a namespace.
fn resident(started: &Started) -> Result<f64> {
    let Some(proxy) = &started.proxy else { return Ok(0.) };
    let pids = std::iter::once(proxy.0.id()).chain(cpu::descendants(proxy.0.id())?);
    let of = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let is_holder = status.starts_with("Name:\tsleep\n");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib = line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.);
        if is_holder { 0. } else { kib * 1024. }
    };
    Ok(pids.map(of).sum())
}
