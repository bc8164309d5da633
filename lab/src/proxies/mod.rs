//! Compares proxies that carry a host's traffic over ordinary connections: the table of
//! docs/benchmarking.md.
//!
//! The contenders run one after the other, each between two namespaces (`world`). `contenders`
//! starts them, and `cases` measures. Clients and servers use the kernel's stack, the same for all
//! contenders.

mod built;
mod cases;
mod contenders;
mod world;

use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::table::Table;
use crate::{debian, interrupt};
use built::Built;
use cases::Figures;
use contenders::Contender;

/// Debian packages that the measurement requires, each with a file by which to check that it is
/// installed.
const PACKAGES: &[(&str, &str)] = &[
    ("iperf3", "/usr/bin/iperf3"),
    ("iproute2", "/usr/sbin/ip"),
    ("slirp4netns", "/usr/bin/slirp4netns"),
    ("passt", "/usr/bin/pasta"),
];

#[derive(clap::Args)]
pub struct Options {
    /// Measure only these: direct, tun, intercept, netstack-smoltcp, tun2socks, tun2proxy, run,
    /// slirp4netns, pasta.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Time of each measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Number of idle connections for the measurement of memory.
    #[arg(long, default_value_t = 10_000)]
    idle: usize,
    /// Print everything as JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Figures of a contender, or the reason why they are missing.
struct Row {
    contender: Contender,
    version: String,
    figures: Result<Figures>,
}

/// Measures and prints the table. Needs root, Go, and the registries of the peers' languages.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    let contenders = wanted(&options.only)?;
    debian::install_packages(PACKAGES)?;
    let built = Built::new(root)?;
    let mut rows = Vec::new();
    for contender in contenders {
        crate::table::progress(contender.key());
        let figures = measure(contender, &built, options);
        interrupt::check()?;
        rows.push(Row { contender, version: contender.version(&built), figures });
    }
    crate::table::progress("");
    match options.json {
        true => println!("{:#}", Value::Array(rows.iter().map(Row::json).collect())),
        false => print(&rows, options.idle),
    }
    Ok(())
}

fn measure(contender: Contender, built: &Built, options: &Options) -> Result<Figures> {
    let program = contender.build(built)?;
    let new = || -> Result<_> {
        let world = world::World::new(built, options.idle)?;
        let started = contender.start(&world, &program, &built.load)?;
        // Put the proxy first in the tuple, so that it is dropped before its world.
        Ok((started, world))
    };
    let (started, world) = new()?;
    let mut figures = cases::rates(&world, &started, &built.load, options.seconds)?;
    drop((started, world));
    // Start again, because ports and memory in use from the rates would affect the idle
    // connections.
    let (started, world) = new()?;
    figures.idle = cases::Memory::measure(&world, &started, built, options.idle);
    Ok(figures)
}

fn wanted(names: &[String]) -> Result<Vec<Contender>> {
    let known = Contender::ALL.map(Contender::key);
    for name in names {
        ensure!(known.contains(&&**name), "{name:?} is not a contender; there are {known:?}");
    }
    let is_wanted = |it: &Contender| names.is_empty() || names.iter().any(|name| name == it.key());
    Ok(Contender::ALL.into_iter().filter(is_wanted).collect())
}

/// Reasons for missing figures, one per line.
#[derive(Default)]
struct Reasons(String);

impl Reasons {
    fn note(&mut self, row: &Row, what: &str, error: &anyhow::Error) {
        let name = row.contender.key();
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "- {name}{what}: {error:#}");
    }
}

/// Prints the tables, followed by the reasons for missing figures.
fn print(rows: &[Row], idle: usize) {
    let mut reasons = Reasons::default();
    print_rates(rows, &mut reasons);
    print_costs(rows, idle, &mut reasons);
    if !reasons.0.is_empty() {
        println!("\nMissing:\n\n{}", reasons.0);
    }
}

fn print_rates(rows: &[Row], reasons: &mut Reasons) {
    let heads = [
        "proxy",
        "version",
        "up",
        "down",
        "8 up",
        "8 down",
        "UDP (lost)",
        "connections/s",
        "round trip, p50",
        "p99",
    ];
    let rates = Table::new(true, &heads);
    for row in rows {
        let mut cells = vec![row.contender.key().to_owned(), row.version.clone()];
        match &row.figures {
            Ok(figures) => {
                for (name, bulk) in figures.bulk() {
                    let cell = bulk.as_ref().map(|bulk| format!("{:.1}", bulk.gbit_s()));
                    cells.push(cell.unwrap_or_else(|error| {
                        reasons.note(row, &format!(", {name}"), error);
                        "–".to_owned()
                    }));
                }
                for (name, cell) in figures.others() {
                    cells.push(cell.unwrap_or_else(|error| {
                        reasons.note(row, &format!(", {name}"), &error);
                        "–".to_owned()
                    }));
                }
            }
            Err(error) => {
                reasons.note(row, "", error);
                cells.resize(heads.len(), "–".to_owned());
            }
        }
        rates.row(&cells.iter().map(|cell| cell as _).collect::<Vec<_>>());
    }
}

fn print_costs(rows: &[Row], idle: usize, reasons: &mut Reasons) {
    let with_idle = format!("MiB with {idle}");
    let heads = [
        "proxy",
        "CPU s/GB up: proxy",
        "all",
        "down: proxy",
        "all",
        "MiB idle",
        &with_idle,
        "bytes each",
    ];
    let costs = Table::new(true, &heads);
    for row in rows {
        let Ok(figures) = &row.figures else { continue };
        let mut cells = vec![row.contender.key().to_owned()];
        let cost = |seconds: f64| format!("{seconds:.2}");
        for bulk in [&figures.up, &figures.down] {
            let pair = bulk.as_ref().map(|bulk| (bulk.proxy_per_gb(), bulk.all_per_gb()));
            let (proxy, all) =
                pair.map_or(("–".into(), "–".into()), |it| (cost(it.0), cost(it.1)));
            cells.extend([proxy, all]);
        }
        match &figures.idle {
            Ok(memory) => cells.extend(memory.cells()),
            Err(error) => {
                reasons.note(row, ", idle", error);
                cells.resize(heads.len(), "–".to_owned());
            }
        }
        costs.row(&cells.iter().map(|cell| cell as _).collect::<Vec<_>>());
    }
}

impl Row {
    fn json(&self) -> Value {
        let figures = match &self.figures {
            Ok(figures) => figures.json(),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        json!({ "proxy": self.contender.key(), "version": self.version, "figures": figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contender_that_is_not_there_is_refused_by_name() {
        let error = wanted(&["squid".into()]).unwrap_err().to_string();
        assert!(error.contains("squid") && error.contains("pasta"), "{error}");
        assert!(wanted(&[]).is_ok_and(|all| all.len() == Contender::ALL.len()));
        assert_eq!(wanted(&["tun".into(), "direct".into()]).unwrap().len(), 2);
    }
}
