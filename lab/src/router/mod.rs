//! Compares `towpath router` with the kernel as the router between two kernel hosts: the table of
//! docs/router.md.
//!
//! `world` creates the hosts and starts a router; `cases` measures across it. Each round measures
//! all routers in turn.

mod cases;
mod world;

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::rounds::Rounds;
use crate::table::{Table, progress};
use crate::{debian, interrupt, workspace};
use cases::{CASES, Case, Figure};
use world::{Contender, World};

#[derive(clap::Args)]
pub struct Options {
    /// Measure only these: kernel, packet, tap.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Measure only cases whose names contain this: iperf3, UDP, IPv6.
    #[arg(long, value_name = "TEXT", default_value = "")]
    case: String,
    #[command(flatten)]
    rounds: Rounds,
}

/// Measures and prints the table. Needs root.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    let known = Contender::ALL.map(Contender::name);
    for name in &options.only {
        ensure!(known.contains(&&**name), "{name:?} is not a router; there are {known:?}");
    }
    let is_wanted =
        |it: &Contender| options.only.is_empty() || options.only.iter().any(|n| n == it.name());
    let contenders: Vec<_> = Contender::ALL.into_iter().filter(is_wanted).collect();
    let cases: Vec<_> = CASES.iter().filter(|case| case.name.contains(&options.case)).collect();
    ensure!(!cases.is_empty(), "{}: there is no such case", options.case);
    debian::install()?;
    let release = workspace::build_release(root, &["--bins", "-p", "towpath-cli"])?;
    let towpath = release.join("towpath");
    // Figures by case and router.
    let mut figures = vec![vec![Vec::new(); contenders.len()]; cases.len()];
    for round in 1..=options.rounds.repeat {
        for (n, contender) in contenders.iter().enumerate() {
            let world = World::new(*contender, &towpath)?;
            for (case, figures) in cases.iter().zip(&mut figures) {
                interrupt::check()?;
                progress(&format!("round {round}: {}: {}", contender.name(), case.name));
                figures[n].push(case.measure(&world, options.rounds.seconds)?);
            }
        }
    }
    progress("");
    print(&cases, &contenders, figures, options.rounds.json);
    Ok(())
}

/// Prints the table or JSON, with the round of the median rate.
fn print(cases: &[&Case], routers: &[Contender], figures: Vec<Vec<Vec<Figure>>>, json: bool) {
    let table = Table::new(!json, &["", "router", "rate", "CPU of the router", "CPU of all"]);
    let mut all = Vec::new();
    for (case, figures) in cases.iter().zip(figures) {
        for (contender, mut rounds) in routers.iter().zip(figures) {
            rounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
            let Figure { rate, router, machine } = rounds[rounds.len() / 2];
            // The kernel forwards in interrupts, which belong to no process.
            let own = router.map_or_else(|| "–".to_owned(), |cores| format!("{cores:.2}"));
            let machine_words = format!("{machine:.2}");
            let name = contender.name();
            table.row(&[&case.name, &name, &case.rate_words(rate), &own, &machine_words]);
            all.push(json!({
                "case": case.name,
                "router": name,
                "rate": rate,
                "rates": rounds.iter().map(|it| it.rate).collect::<Vec<_>>(),
                "router_cores": router,
                "all_cores": machine,
            }));
        }
    }
    if json {
        println!("{:#}", Value::Array(all));
    }
}
