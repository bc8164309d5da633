//! Devices side by side: the kernel's own stack on an end of a veth pair, and Towpath's by each
//! device. The tables of docs/devices.md.
//!
//! Servers run at one end and the kernel's clients at the other (`world`), one server at a time.
//! `cases` measures. All senders use CUBIC.

mod cases;
mod world;

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::table::Table;
use crate::{debian, interrupt, workspace};
use cases::{Case, Figure};
use world::World;

#[derive(clap::Args)]
pub struct Options {
    /// Only these: kernel, packet, xdp.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Time of each measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Prints everything as JSON, and no table.
    #[arg(long)]
    json: bool,
}

/// Owner of the server's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Kernel,
    Packet,
    Xdp,
}

impl Contender {
    const ALL: [Self; 3] = [Self::Kernel, Self::Packet, Self::Xdp];

    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
        }
    }

    /// Option of `towpath run` that names the device.
    fn option(self) -> Option<&'static str> {
        match self {
            Self::Kernel => None,
            Self::Packet => Some("--packet"),
            Self::Xdp => Some("--xdp"),
        }
    }
}

/// Measures and prints the table. Needs root.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    let known = Contender::ALL.map(Contender::name);
    for name in &options.only {
        ensure!(known.contains(&&**name), "{name:?} is not a device; there are {known:?}");
    }
    debian::install()?;
    let words = ["build", "--release", "--bins", "-p", "towpath-cli"];
    ensure!(workspace::cargo(root, &words).status()?.success(), "the release build failed");
    let towpath = workspace::target(root).join("release/towpath");
    let is_wanted = |it: &Contender| {
        options.only.is_empty() || options.only.iter().any(|name| name == it.name())
    };
    let contenders: Vec<_> = Contender::ALL.into_iter().filter(is_wanted).collect();
    let heads = ["", "device", "rate", "CPU of the server's side", "CPU of all"];
    let table = Table::new(!options.json, &heads);
    let mut all = Vec::new();
    for case in cases::ALL {
        for figure in measure(case, &contenders, &towpath, options)? {
            let Measured { contender, figure } = figure;
            let Figure { rate, server, all: machine } = figure;
            let cells = [case.rate_words(rate), cores(server), cores(machine)];
            table.row(&[&case.name, &contender.name(), &cells[0], &cells[1], &cells[2]]);
            all.push(json!({
                "case": case.name,
                "device": contender.name(),
                "rate": rate,
                "server_cores": server,
                "all_cores": machine,
            }));
        }
    }
    if options.json {
        println!("{:#}", Value::Array(all));
    }
    Ok(())
}

struct Measured {
    contender: Contender,
    figure: Figure,
}

/// The round with the median rate of each contender, whose rounds alternate.
fn measure(
    case: &Case,
    contenders: &[Contender],
    towpath: &Path,
    options: &Options,
) -> Result<Vec<Measured>> {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for _ in 0..options.repeat {
        for (contender, figures) in contenders.iter().zip(&mut rounds) {
            interrupt::check()?;
            crate::table::progress(&format!("{}: {}", case.name, contender.name()));
            let world = World::new(*contender)?;
            let mut server = world.start(case.server, towpath)?;
            figures.push(case.measure(&world, &mut server, options.seconds)?);
        }
    }
    crate::table::progress("");
    let median = |(contender, mut figures): (&Contender, Vec<Figure>)| {
        figures.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        Measured { contender: *contender, figure: figures[figures.len() / 2] }
    };
    Ok(contenders.iter().zip(rounds).map(median).collect())
}

/// Processors that were busy.
fn cores(cores: f64) -> String {
    format!("{cores:.2}")
}
