//! Compares the core's cost of a packet with that of other stacks, without a network: the tables of
//! docs/benchmarking.md.
//!
//! `lab/packets` measures our stack, and programs of `lab/peers` measure the same cases with other
//! stacks. Our program and the peer alternate, with a new process for each measurement, because a
//! program's speed varies between starts. Each program also prints its result, and a table compares
//! only equal results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::figures::{Interval, Median, Sample};
use crate::table::{Table, progress};
use crate::workspace;

#[derive(clap::Args)]
pub struct Options {
    /// Measure only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Duration of each measurement in milliseconds.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    ms: u32,
    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Print a JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// Another stack, and the command that builds its program.
struct Peer {
    name: &'static str,
    /// Prefixes of the names of its cases.
    cases: &'static [&'static str],
    build: fn(&Path, &Path) -> Command,
    /// Path of the built program within the target directory of peers.
    program: &'static str,
}

const PEERS: &[Peer] = &[
    Peer { name: "gVisor", cases: &["write"], build: gvisor, program: "gvisor" },
    Peer {
        name: "smoltcp",
        cases: &["echo", "emit", "parse"],
        build: smoltcp,
        program: "release/towpath-peer-smoltcp",
    },
];

fn gvisor(root: &Path, target: &Path) -> Command {
    let mut build = Command::new("go");
    build.args(["build", "-buildvcs=false", "-mod=readonly", "-o"]).arg(target.join("gvisor"));
    build.arg(".").current_dir(root.join("lab/peers/gvisor"));
    build
}

fn smoltcp(root: &Path, target: &Path) -> Command {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--locked", "--target-dir"]).arg(target);
    build.current_dir(root.join("lab/peers/smoltcp"));
    build
}

/// Suffix of our cases that differ from the peer's only in the number of packets per turn.
const A_TURN: &str = ", 32 a turn";

/// Measures and prints the tables.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let release = workspace::build_lab(root, &["towpath-lab-packets"])?;
    let ours = std::path::absolute(release.join("towpath-lab-packets"))?;
    let target = std::path::absolute(workspace::target(root))?;
    let all = call(&ours, "1x", &options.only)?;
    ensure!(!all.is_empty(), "{}: there is no such case", options.only);
    let (mut rows, mut missing) = (Vec::new(), BTreeMap::new());
    for peer in PEERS {
        let cases = cases(&all, peer, &options.only);
        if cases.is_empty() {
            continue;
        }
        let theirs = match built(peer, root, &target.join("peers")) {
            Ok(program) => Some(program),
            Err(why) => {
                eprintln!("{} is missing: {why:#}", peer.name);
                missing.insert(peer.name, format!("{why:#}"));
                None
            }
        };
        rows.extend(table(&ours, peer, theirs.as_deref(), &cases, options)?);
    }
    if options.json {
        println!("{:#}", json!({ "cases": rows, "missing": missing }));
    }
    Ok(())
}

/// Returns the peer's cases, in the order of ours.
fn cases(all: &[Line], peer: &Peer, only: &str) -> Vec<String> {
    let mut cases = Vec::new();
    for line in all {
        let case = peers_case(&line.name);
        let is_its = peer.cases.iter().any(|begin| case.starts_with(begin));
        if is_its && line.name.contains(only) && !cases.iter().any(|it| it == case) {
            cases.push(case.to_owned());
        }
    }
    cases
}

/// Returns the peer's name for one of our cases.
fn peers_case(name: &str) -> &str {
    name.strip_suffix(A_TURN).unwrap_or(name)
}

/// Builds a peer, and returns its program.
///
/// # Errors
/// Fails without a compiler, or without a network to fetch its dependencies.
fn built(peer: &Peer, root: &Path, target: &Path) -> Result<PathBuf> {
    progress(&format!("building {}", peer.name));
    let mut build = (peer.build)(root, target);
    let compiler = build.get_program().to_string_lossy().into_owned();
    let output = build.stdin(Stdio::null()).output().with_context(|| compiler.clone())?;
    progress("");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        // Use the last line, because compilers print errors after their progress.
        let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
        bail!("{compiler} build: {}: {}", output.status, last.unwrap_or("it does not say why"));
    }
    Ok(target.join(peer.program))
}

/// Results of a row in all rounds.
#[derive(Default)]
struct Measured {
    ns: Vec<Sample>,
    allocations: f64,
    bytes: f64,
}

impl Measured {
    fn add(&mut self, line: &Line) {
        self.ns.push(Sample { value: line.ns, cores: 1., parts: None });
        self.allocations = line.allocations;
        self.bytes = line.bytes;
    }

    /// Formats the allocations and their bytes per packet. Less than one in a hundred packets is
    /// shown as 0, because it is caused by the program's start and the garbage collector.
    fn memory(&self) -> String {
        match self.allocations < 0.01 {
            true => "0".to_owned(),
            false => format!("{:.1} ({:.0} B)", self.allocations, self.bytes),
        }
    }

    fn json(&self) -> Value {
        let ns = Median::of(&self.ns).json()["value"].clone();
        json!({ "ns": ns, "allocations": self.allocations, "bytes": self.bytes })
    }
}

/// Measures the cases of one peer, and prints their table.
fn table(
    ours: &Path,
    peer: &Peer,
    theirs: Option<&Path>,
    cases: &[String],
    options: &Options,
) -> Result<Vec<Value>> {
    let heads = [
        "case",
        &format!("{}, ns", peer.name),
        "Towpath, ns",
        "times as fast",
        &format!("allocations, {}", peer.name),
        "Towpath",
    ];
    let table = Table::new(!options.json, &heads);
    let mut rows = Vec::new();
    for case in cases {
        let (all, their) = rounds(ours, theirs, case, options)?;
        for (name, our) in all.iter().filter(|(name, _)| name.contains(&options.only)) {
            let median = Median::of(&our.ns).figure();
            let mut row = json!({ "case": name, "peer": peer.name, "ours": our.json() });
            match &their {
                Some(their) => {
                    let ratio = Interval::of_ratios(&their.ns, &our.ns);
                    let memory = (their.memory(), our.memory());
                    let their_median = Median::of(&their.ns).figure();
                    table.row(&[name, &their_median, &median, &ratio, &memory.0, &memory.1]);
                    row["theirs"] = their.json();
                    row["ratio"] = ratio.json();
                }
                None => {
                    let gap = "missing";
                    table.row(&[name, &gap, &median, &gap, &gap, &our.memory()]);
                }
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Runs our program and the peer's alternately, in reverse order in every second round. Our case
/// may have several rows.
fn rounds(
    ours: &Path,
    theirs: Option<&Path>,
    case: &str,
    options: &Options,
) -> Result<(BTreeMap<String, Measured>, Option<Measured>)> {
    let (mut all, mut their) = (BTreeMap::<String, Measured>::new(), Measured::default());
    for round in 0..options.repeat {
        progress(&format!("{case}: round {} of {}", round + 1, options.repeat));
        let mut sides = vec![Some(ours), theirs];
        if round % 2 == 1 {
            sides.reverse();
        }
        let mut made = Vec::new();
        for side in sides.into_iter().flatten() {
            for line in call(side, &options.ms.to_string(), case)? {
                if peers_case(&line.name) != case {
                    continue;
                }
                match side == ours {
                    true => all.entry(line.name.clone()).or_default().add(&line),
                    false => their.add(&line),
                }
                made.push(line.made);
            }
        }
        let first = made.first().with_context(|| format!("{case}: nobody measured it"))?;
        let is_same = made.iter().all(|it| it == first);
        ensure!(is_same, "{case}: ours and the peer's are not the same work: {made:?}");
        ensure!(theirs.is_none() || their.ns.len() > round as usize, "{case}: the peer has none");
    }
    progress("");
    Ok((all, theirs.map(|_| their)))
}

/// Line that a program prints about a case.
#[derive(Debug, PartialEq)]
struct Line {
    name: String,
    ns: f64,
    allocations: f64,
    bytes: f64,
    made: String,
}

/// Runs a program for the cases whose names contain `part`.
fn call(program: &Path, limit: &str, part: &str) -> Result<Vec<Line>> {
    let mut command = Command::new(program);
    command.args([limit, part]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().with_context(|| program.display().to_string())?;
    ensure!(output.status.success(), "{} {part}: {}", program.display(), output.status);
    String::from_utf8(output.stdout)?.lines().map(line).collect()
}

fn line(said: &str) -> Result<Line> {
    let words: Vec<&str> = said.split('\t').collect();
    let [name, ns, allocations, bytes, made] = words[..] else { bail!("a program says: {said}") };
    Ok(Line {
        name: name.to_owned(),
        ns: ns.parse()?,
        allocations: allocations.parse()?,
        bytes: bytes.parse()?,
        made: made.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_others_refused() {
        let read = line("write 1 B, here\t12.5\t3.0\t56\t43 B frame").unwrap();
        assert_eq!((&*read.name, read.ns, read.bytes), ("write 1 B, here", 12.5, 56.));
        assert!(line("write 1 B").is_err() && line("a\tb\t0\t0\tc").is_err());
    }

    #[test]
    fn cases_are_the_peers_each_once() {
        let named = |name: &str| line(&format!("{name}\t1\t0\t0\t-")).unwrap();
        let all = ["write 1 B", "write 1 B, 32 a turn", "emit 1 B", "parse 1 B"].map(named);
        assert_eq!(cases(&all, &PEERS[0], ""), ["write 1 B"]);
        assert_eq!(cases(&all, &PEERS[0], "32 a turn"), ["write 1 B"]);
        assert_eq!(cases(&all, &PEERS[1], ""), ["emit 1 B", "parse 1 B"]);
        assert!(cases(&all, &PEERS[1], "write").is_empty());
    }

    #[test]
    fn a_peer_that_cannot_be_built_says_why() {
        let nowhere = |_: &Path, _: &Path| Command::new("/no/such/compiler");
        let peer = Peer { name: "none", cases: &[], build: nowhere, program: "none" };
        let here = Path::new("/");
        assert!(format!("{:#}", built(&peer, here, here).unwrap_err()).contains("/no/such/compil"));
        let fails = |_: &Path, _: &Path| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo one >&2; echo two >&2; exit 3"]);
            command
        };
        let peer = Peer { build: fails, ..peer };
        let why = format!("{:#}", built(&peer, here, here).unwrap_err());
        assert!(why.contains("two") && !why.contains("one"), "{why}");
    }

    #[test]
    fn rare_allocations_are_none() {
        let mut measured = Measured::default();
        measured.add(&line("a\t1\t0.0004\t56\tb").unwrap());
        assert_eq!(measured.memory(), "0");
        measured.add(&line("a\t1\t3.0004\t56.3\tb").unwrap());
        assert_eq!(measured.memory(), "3.0 (56 B)");
    }
}
