//! Compares the simulator with ns-3: goodput and waiting times of the same networks, and speed.
//!
//! `lab/peers/ns3` is our program that uses ns-3's libraries, configured like Towpath. Its link
//! rates are lower, because a PPP header is shorter than an Ethernet header. Both links thus carry
//! the same number of full packets per second.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::table::Table;
use crate::workspace;

#[derive(clap::Args)]
pub struct Options {
    /// Compare only the networks whose names contain this.
    #[arg(long, default_value = "")]
    only: String,
    /// Measure speed instead: dumbbells of 10, 100 and 1000 flows. The machine must be idle.
    #[arg(long)]
    speed: bool,
}

/// A dumbbell network with bulk flows.
struct Dumbbell {
    name: &'static str,
    rate_mbit: f64,
    edge_rate_mbit: f64,
    delay_ms: f64,
    /// Delays of the hosts' links, used in turn.
    edge_delays_ms: &'static [u32],
    queue: &'static str,
    limit: u32,
    congestion: &'static str,
    duration_s: u32,
    /// Start times of the flows.
    starts_ms: Vec<u32>,
    /// First packet that the bottleneck loses, and the number of lost packets.
    lost: [u32; 2],
    /// Time from which waiting times count. Two TCP implementations recover differently from the
    /// first overrun of slow start, which is no property of the queueing discipline.
    waits_from_s: u32,
}

/// Figures of a run.
struct Figures {
    goodputs_mbit: Vec<f64>,
    wait_mean_ms: f64,
    /// 95th percentile of the waiting times; `None` if only a part of the run counts.
    wait_p95_ms: Option<f64>,
    events: f64,
    wall_s: f64,
}

/// Maximum differences: of goodput relative to ns-3's, of a flow relative to the sum, and of waits
/// relative or in ms. The device below ns-3's disciplines holds one packet more. ns-3 also lacks
/// our detection of lost retransmissions, and has another phase of ACKs.
const GOODPUT: f64 = 0.05;
const FLOW: f64 = 0.08;
const WAIT: f64 = 0.15;
const WAIT_MS: f64 = 2.;

/// Length of a full packet in bytes, with a PPP header in ns-3 and with an Ethernet header.
const FULL: [f64; 2] = [1502., 1514.];

/// Compares, and prints tables. Fails if a figure exceeds its margin.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let peer = build_peer(root)?;
    let towpath = workspace::build_release(root, &["-p", "towpath-cli"])?.join("towpath");
    if options.speed {
        return speed(&towpath, &peer);
    }
    let heads = ["network", "goodput Mbit/s", "ns-3", "wait mean ms", "ns-3", "p95", "ns-3", ""];
    let table = Table::new(true, &heads);
    let mut failed = Vec::new();
    for network in networks().iter().filter(|network| network.name.contains(&options.only)) {
        let (ours, theirs) = (network.ours(&towpath)?, network.theirs(&peer, true)?);
        let is_near = ours.is_near(&theirs);
        if !is_near {
            failed.push(network.name);
        }
        table.row(&[
            &network.name,
            &ours.goodputs(),
            &theirs.goodputs(),
            &format!("{:.1}", ours.wait_mean_ms),
            &format!("{:.1}", theirs.wait_mean_ms),
            &ours.p95(),
            &theirs.p95(),
            &if is_near { "near" } else { "FAR" },
        ]);
    }
    ensure!(failed.is_empty(), "beyond the margin: {}", failed.join(", "));
    Ok(())
}

/// Compares the simulated seconds per second, without start, end and report. Our time includes the
/// creation of hosts, and ns-3's does not.
fn speed(towpath: &Path, peer: &Path) -> Result<()> {
    let heads = ["flows", "simulated s/s", "ns-3", "times as fast", "million events/s", "ns-3"];
    let table = Table::new(true, &heads);
    for flows in [10, 100, 1000] {
        let network = Dumbbell {
            rate_mbit: 1000.,
            edge_rate_mbit: 10_000.,
            delay_ms: 10.,
            limit: 1000,
            congestion: "cubic",
            duration_s: 10,
            starts_ms: (0..flows).collect(),
            ..plain("speed")
        };
        let (ours, theirs) = (network.ours(towpath)?, network.theirs(peer, false)?);
        let a_second = |figures: &Figures| f64::from(network.duration_s) / figures.wall_s;
        let events = |figures: &Figures| figures.events / figures.wall_s / 1e6;
        table.row(&[
            &flows,
            &format!("{:.2}", a_second(&ours)),
            &format!("{:.2}", a_second(&theirs)),
            &format!("{:.1}", theirs.wall_s / ours.wall_s),
            &format!("{:.2}", events(&ours)),
            &format!("{:.2}", events(&theirs)),
        ]);
    }
    Ok(())
}

fn plain(name: &'static str) -> Dumbbell {
    Dumbbell {
        name,
        rate_mbit: 10.,
        edge_rate_mbit: 1000.,
        delay_ms: 20.,
        edge_delays_ms: &[1],
        queue: "pfifo",
        limit: 50,
        congestion: "reno",
        duration_s: 60,
        starts_ms: vec![0],
        lost: [0, 0],
        waits_from_s: 0,
    }
}

fn networks() -> Vec<Dumbbell> {
    vec![
        plain("Reno, pfifo 50"),
        Dumbbell { rate_mbit: 20., limit: 100, congestion: "cubic", ..plain("CUBIC, pfifo 100") },
        Dumbbell {
            rate_mbit: 20.,
            queue: "codel",
            limit: 1000,
            congestion: "cubic",
            ..plain("CUBIC, CoDel")
        },
        Dumbbell {
            delay_ms: 5.,
            edge_delays_ms: &[1, 31],
            limit: 40,
            duration_s: 120,
            starts_ms: vec![0, 300],
            ..plain("two round trips, Reno")
        },
        Dumbbell {
            rate_mbit: 20.,
            queue: "fq_codel",
            limit: 1000,
            congestion: "cubic",
            starts_ms: vec![0, 300],
            waits_from_s: 10,
            ..plain("two CUBIC, FQ-CoDel")
        },
        Dumbbell {
            rate_mbit: 20.,
            queue: "pie",
            limit: 1000,
            waits_from_s: 10,
            ..plain("Reno, PIE")
        },
        Dumbbell { limit: 1000, duration_s: 8, lost: [600, 20], ..plain("20 packets lost, Reno") },
    ]
}

impl Dumbbell {
    fn ours(&self, towpath: &Path) -> Result<Figures> {
        let (run, wall_s) = self.run_ours(towpath, self.duration_s)?;
        let bytes = |flow: &Value| flow["bytes"].as_f64().unwrap_or(f64::NAN);
        let flows = run["flows"].as_array().context("no flows")?;
        let goodputs_mbit = flows.iter().map(|flow| self.mbit(bytes(flow))).collect();
        let [count, mean_ms, p95_ms] = waits(&run)?;
        let (wait_mean_ms, wait_p95_ms) = if self.waits_from_s == 0 {
            (mean_ms, Some(p95_ms))
        } else {
            // Equal seeds give equal runs, so the first part of the run can be subtracted.
            let [before, mean_before, _] = waits(&self.run_ours(towpath, self.waits_from_s)?.0)?;
            ((count * mean_ms - before * mean_before) / (count - before), None)
        };
        let events = run["events"].as_f64().unwrap_or(f64::NAN);
        Ok(Figures { goodputs_mbit, wait_mean_ms, wait_p95_ms, events, wall_s })
    }

    /// Returns the run in the report, and the duration that `towpath sim` prints, which includes
    /// the creation of hosts but not the report.
    fn run_ours(&self, towpath: &Path, duration_s: u32) -> Result<(Value, f64)> {
        let file = std::env::temp_dir().join(format!("anchor-{}.toml", std::process::id()));
        std::fs::write(&file, self.scenario(duration_s)?)?;
        let output = Command::new(towpath).arg("sim").arg(&file).args(["-o", "-"]).output();
        std::fs::remove_file(&file)?;
        let output = output?;
        let run = document(&output, "towpath sim")?["runs"][0].take();
        let said = String::from_utf8_lossy(&output.stderr);
        let wall_s = said.split_once(" events in ").and_then(|(_, rest)| rest.split_once(" s:"));
        let wall_s = wall_s.context("towpath sim tells no time")?.0.parse()?;
        Ok((run, wall_s))
    }

    fn theirs(&self, peer: &Path, observe: bool) -> Result<Figures> {
        let list = |all: &[u32]| all.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let output = Command::new(peer)
            .arg(format!("--rate={:.0}", self.rate_mbit * 1e6 * FULL[0] / FULL[1]))
            .arg(format!("--edgeRate={:.0}", self.edge_rate_mbit * 1e6))
            .arg(format!("--delay={}", self.delay_ms))
            .arg(format!("--edgeDelays={}", list(self.edge_delays_ms)))
            .arg(format!("--starts={}", list(&self.starts_ms)))
            .arg(format!("--queue={}", self.queue))
            .arg(format!("--limit={}", self.limit))
            .arg(format!("--congestion={}", self.congestion))
            .arg(format!("--duration={}", self.duration_s))
            .arg(format!("--lostFirst={}", self.lost[0]))
            .arg(format!("--lostCount={}", self.lost[1]))
            .arg(format!("--waitsFrom={}", self.waits_from_s))
            .arg(format!("--observe={observe}"))
            .output()?;
        let report = document(&output, "ns-3")?;
        let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
        let bytes = report["bytes"].as_array().context("no bytes")?;
        let bytes = bytes.iter().map(|bytes| bytes.as_f64().unwrap_or(f64::NAN));
        Ok(Figures {
            goodputs_mbit: bytes.map(|bytes| self.mbit(bytes)).collect(),
            wait_mean_ms: number("wait_mean_s") * 1e3,
            wait_p95_ms: (self.waits_from_s == 0).then(|| number("wait_p95_s") * 1e3),
            events: number("events"),
            wall_s: number("wall_s"),
        })
    }

    fn mbit(&self, bytes: f64) -> f64 {
        bytes * 8e-6 / f64::from(self.duration_s)
    }

    fn scenario(&self, duration_s: u32) -> Result<String> {
        let Self { rate_mbit, delay_ms, queue, limit, .. } = self;
        let ecn = if *queue == "pfifo" { "" } else { " noecn" };
        let [first, count] = self.lost;
        let mut text = format!(
            "title = \"{}\"\nduration = \"{duration_s}s\"\nsample = \"1s\"\n\
             [[switch]]\nname = \"west\"\n\
             [[switch]]\nname = \"east\"\n[[link]]\nname = \"bottleneck\"\n\
             between = [\"west\", \"east\"]\nrate = \"{rate_mbit}mbit\"\n\
             delay = \"{delay_ms}ms\"\nqdisc = \"{queue} limit {limit}{ecn}\"\n\
             lose = {{ first = {first}, count = {count} }}\n\
             back = {{ lose = {{ first = 0, count = 0 }}, qdisc = \"pfifo limit 1000\" }}\n",
            self.name
        );
        let delays = self.edge_delays_ms.iter().cycle();
        for (number, (start, left)) in self.starts_ms.iter().zip(delays).enumerate() {
            for (side, switch, ms) in [("left", "west", *left), ("right", "east", 1)] {
                write!(
                    text,
                    "[[host]]\nname = \"{side}{number}\"\n[[link]]\n\
                     between = [\"{side}{number}\", \"{switch}\"]\ndelay = \"{ms}ms\"\n\
                     rate = \"{}mbit\"\n",
                    self.edge_rate_mbit
                )?;
            }
            write!(
                text,
                "[[flow]]\nkind = \"bulk\"\nfrom = \"left{number}\"\nto = \"right{number}\"\n\
                 start = \"{start}ms\"\ncongestion = \"{}\"\n",
                self.congestion
            )?;
        }
        Ok(text)
    }
}

/// Returns the number of packets that waited at the bottleneck, the mean of their waits in ms, and
/// the 95th percentile in ms.
fn waits(run: &Value) -> Result<[f64; 3]> {
    let links = run["links"].as_array().context("no links")?;
    let is_ours = |link: &&Value| link["name"] == "bottleneck" && link["from"] == "west";
    let wait = &links.iter().find(is_ours).context("no bottleneck")?["sojourn"];
    let number = |name: &str| wait[name].as_f64().unwrap_or(f64::NAN);
    Ok([number("count"), number("mean_s") * 1e3, number("p95_s") * 1e3])
}

impl Figures {
    fn p95(&self) -> String {
        self.wait_p95_ms.map_or(String::new(), |ms| format!("{ms:.1}"))
    }

    fn goodputs(&self) -> String {
        let all: Vec<_> = self.goodputs_mbit.iter().map(|mbit| format!("{mbit:.2}")).collect();
        all.join(" + ")
    }

    /// Returns whether all figures are within their margins of `other`.
    fn is_near(&self, other: &Self) -> bool {
        let [ours, theirs] = [self, other].map(|it| it.goodputs_mbit.iter().sum::<f64>());
        let mut flows = self.goodputs_mbit.iter().zip(&other.goodputs_mbit);
        let wait = |ours: f64, theirs: f64| (ours - theirs).abs() <= WAIT_MS.max(WAIT * theirs);
        (ours - theirs).abs() <= GOODPUT * theirs
            && flows.all(|(a, b)| (a - b).abs() <= FLOW * theirs)
            && wait(self.wait_mean_ms, other.wait_mean_ms)
            && self.wait_p95_ms.zip(other.wait_p95_ms).is_none_or(|(a, b)| wait(a, b))
    }
}

fn document(output: &std::process::Output, of: &str) -> Result<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).with_context(|| format!("{of}: {}", said.trim()))
}

/// Builds the program that uses ns-3. As root, installs the package of ns-3 before.
fn build_peer(root: &Path) -> Result<PathBuf> {
    crate::debian::ensure_package("libns3-dev", "/usr/include/ns3/core-module.h")?;
    let out = workspace::target(root).join("peers");
    std::fs::create_dir_all(&out)?;
    let program = out.join("ns3-dumbbell");
    let parts =
        ["applications", "point-to-point", "internet", "traffic-control", "network", "core"];
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O2", "-o"]).arg(&program);
    compiler.arg(root.join("lab/peers/ns3/dumbbell.cc"));
    compiler.args(parts.map(|part| format!("-lns3-{part}")));
    ensure!(compiler.status().context("g++")?.success(), "lab/peers/ns3 was not built");
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(goodputs_mbit: &[f64], wait_mean_ms: f64) -> Figures {
        Figures {
            goodputs_mbit: goodputs_mbit.to_vec(),
            wait_mean_ms,
            wait_p95_ms: Some(50.),
            events: 1.,
            wall_s: 1.,
        }
    }

    #[test]
    fn figures_are_near_within_each_margin_alone() {
        let theirs = figures(&[6., 4.], 30.);
        assert!(figures(&[6.3, 3.8], 34.).is_near(&theirs));
        assert!(!figures(&[6.5, 4.2], 30.).is_near(&theirs));
        assert!(!figures(&[6.9, 3.1], 30.).is_near(&theirs));
        assert!(!figures(&[6., 4.], 36.).is_near(&theirs));
        let far = Figures { wait_p95_ms: Some(60.), ..figures(&[6., 4.], 30.) };
        assert!(!far.is_near(&theirs));
        assert!(Figures { wait_p95_ms: None, ..far }.is_near(&theirs));
        assert!(figures(&[6., 4.], 3.9).is_near(&figures(&[6., 4.], 2.)));
    }
}
