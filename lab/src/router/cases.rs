//! Measurements across a router, the same for each router.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::world::{SERVER_V4, SERVER_V6, World};
use crate::bench::cpu;
use crate::interrupt;
use crate::namespace::READY;

/// An iperf3 client, whose server is behind the router.
pub struct Case {
    pub name: &'static str,
    server: &'static str,
    options: &'static [&'static str],
    unit: Unit,
}

#[derive(Clone, Copy)]
enum Unit {
    Bits,
    Datagrams,
}

/// Figures of a round.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    pub rate: f64,
    /// Number of processors used by the router's process; `None` for the kernel.
    pub router: Option<f64>,
    /// Number of processors used by the machine, including hosts.
    pub machine: f64,
}

const fn tcp(name: &'static str, server: &'static str, options: &'static [&'static str]) -> Case {
    Case { name, server, options, unit: Unit::Bits }
}

const fn udp(name: &'static str, server: &'static str) -> Case {
    Case { name, server, options: &["-u", "-b", "0", "-l", "64"], unit: Unit::Datagrams }
}

pub const CASES: &[Case] = &[
    tcp("iperf3, up, IPv4", SERVER_V4, &[]),
    tcp("iperf3, down, IPv4", SERVER_V4, &["-R"]),
    tcp("iperf3, up, IPv6", SERVER_V6, &[]),
    tcp("iperf3, down, IPv6", SERVER_V6, &["-R"]),
    udp("UDP, 64 bytes, IPv4", SERVER_V4),
    udp("UDP, 64 bytes, IPv6", SERVER_V6),
];

impl Case {
    /// Runs the client once.
    pub fn measure(&self, world: &World, seconds: u64) -> Result<Figure> {
        let seconds = seconds.to_string();
        let line = ["iperf3", "-J", "-c", self.server, "-t", &seconds];
        let line = [&line[..], self.options].concat();
        let patience = Instant::now() + READY;
        loop {
            let (own, all, begun) = (world.router_time()?, cpu::busy()?, Instant::now());
            let output = world.client(&line).output().context("iperf3")?;
            let elapsed = begun.elapsed().as_secs_f64();
            let machine = (cpu::busy()? - all) / elapsed;
            let router = world.router_time()?.zip(own).map(|(now, own)| (now - own) / elapsed);
            let said = String::from_utf8_lossy(&output.stdout);
            // Retry, because the server briefly does not listen after a client.
            if said.contains("Connection refused") && Instant::now() < patience {
                interrupt::sleep(Duration::from_millis(50))?;
                continue;
            }
            ensure!(output.status.success(), "{line:?} said: {said}");
            let rate = self.rate(&said).with_context(|| format!("{line:?} said: {said}"))?;
            return Ok(Figure { rate, router, machine });
        }
    }

    /// Returns the receiver's rate from iperf3's JSON output.
    fn rate(&self, said: &str) -> Option<f64> {
        let told: Value = serde_json::from_str(said).ok()?;
        let of = |place: &str| told.pointer(place)?.as_f64();
        match self.unit {
            Unit::Bits => of("/end/sum_received/bits_per_second"),
            Unit::Datagrams => {
                let received = of("/end/sum/packets")? - of("/end/sum/lost_packets")?;
                Some(received / of("/end/sum/seconds")?)
            }
        }
    }

    pub fn rate_words(&self, rate: f64) -> String {
        match self.unit {
            Unit::Bits => format!("{:.2} Gbit/s", rate / 1e9),
            Unit::Datagrams => format!("{rate:.0} datagrams/s"),
        }
    }
}
