//! Random worlds: whatever the links do, each transfer arrives whole, or says why not.

use std::fmt::Write as _;

use towpath_qdisc::Dice;
use towpath_sim::{BatchOptions, read, run_all};

/// A scenario made of a seed: a shape, links that do all sorts of things, and transfers.
fn scenario(seed: u64) -> String {
    let mut dice = Dice::new(seed, 0);
    let mut pick = |from: &[&'static str]| from[dice.below(from.len() as u64) as usize];
    let shape = pick(&["pair", "dumbbell", "star"]);
    let mut text = format!("title = \"world {seed}\"\nduration = \"3600s\"\nseed = {seed}\n");
    let _ = writeln!(text, "[topology]\nkind = \"{shape}\"");
    if shape != "pair" {
        let _ = writeln!(text, "n = {}", pick(&["1", "2", "5"]));
        let _ = writeln!(text, "edge_rate = \"{}\"", pick(&["20mbit", "1gbit"]));
    }
    let _ = writeln!(text, "rate = \"{}\"", pick(&["1mbit", "8mbit", "50mbit"]));
    let _ = writeln!(text, "delay = \"{}\"", pick(&["0", "2ms", "40ms"]));
    let qdiscs =
        ["pfifo limit 3", "pfifo limit 50", "bfifo limit 30kb", "codel", "fq_codel", "pie"];
    let _ = writeln!(text, "qdisc = \"{}\"", pick(&qdiscs));
    for key in ["loss", "reorder", "duplicate", "corrupt"] {
        let _ = writeln!(text, "{key} = \"{}\"", pick(&["0%", "0%", "0.5%", "4%"]));
    }
    if pick(&["yes", "no"]) == "yes" {
        let _ = writeln!(text, "burst = {{ enter = \"0.2%\", leave = \"30%\" }}");
    }
    let (from, to) = match shape {
        "pair" => ("a", "b"),
        "dumbbell" => ("left*", "right*"),
        _ => ("host*", "server"),
    };
    for name in ["there", "back"] {
        let ends = if name == "there" { (from, to) } else { (to, from) };
        let _ = writeln!(
            text,
            "[[flow]]\nname = \"{name}\"\nkind = \"bulk\"\nfrom = \"{}\"\nto = \"{}\"\nbytes = \
             \"{}\"\ncongestion = \"{}\"\nstart = \"{}\"",
            ends.0,
            ends.1,
            pick(&["1", "30kB", "300kB"]),
            pick(&["cubic", "reno"]),
            pick(&["0", "700ms"]),
        );
    }
    text
}

/// Runs a world; panics with its text when something is wrong.
fn check(seed: u64) -> u64 {
    let text = scenario(seed);
    let plans = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let options = BatchOptions { seed: None, runs: 1, captures: None, threads: 1 };
    let report = run_all(&plans, options, &|_| {});
    let report = report.unwrap_or_else(|error| panic!("{error}\n{text}"));
    let run = &report.runs[0];
    for flow in &run.flows {
        // Three requests of ARP may be lost in a row, and with them the connect.
        if flow.bytes == 0 && flow.failure.as_deref() == Some("HostUnreachable") {
            continue;
        }
        assert_eq!(flow.failure, None, "{}\n{text}", flow.name);
        assert!(flow.completion_s.is_some(), "{}: {} bytes\n{text}", flow.name, flow.bytes);
    }
    for link in &run.links {
        assert!(link.delivered > 0, "{} {}>{}\n{text}", link.name, link.from, link.to);
    }
    run.flows.iter().map(|flow| flow.bytes).sum()
}

#[test]
fn transfers_arrive_whole_in_twenty_worlds() {
    let bytes: u64 = (1..=20).map(check).sum();
    assert!(bytes > 1_000_000, "{bytes}");
}

mod nightly {
    use super::*;

    /// First seed and number of worlds: of TOWPATH_WORLDS, which `cargo xtask sim` sets.
    fn worlds() -> (u64, u64) {
        let Ok(asked) = std::env::var("TOWPATH_WORLDS") else { return (1_000, 1_000) };
        let numbers = asked
            .split_once(':')
            .and_then(|(seed, count)| Some((seed.parse().ok()?, count.parse().ok()?)));
        numbers.unwrap_or_else(|| panic!("TOWPATH_WORLDS={asked}: expected SEED:COUNT"))
    }

    #[test]
    fn transfers_arrive_whole_in_many_worlds() {
        let (seed, count) = worlds();
        for seed in seed..seed.saturating_add(count) {
            check(seed);
        }
    }
}
