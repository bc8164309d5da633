//! Devices side by side: the kernel's own stack on an end of a veth pair, and Towpath's by each
//! device. The tables of docs/devices.md.
//!
//! Servers run at one end and the kernel's clients at the other (`world`), one server at a time.
//! `cases` measures. All senders use CUBIC. `bounce` measures devices without a stack.

mod bounce;
mod cases;
mod contender;
mod world;

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::table::Table;
use crate::{debian, interrupt, workspace};
use cases::{Case, Figure};
use contender::Contender;
use world::World;

#[derive(clap::Args)]
pub struct Options {
    /// Only these: kernel, packet, xdp; DPDK's devices are left out then.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Only cases whose names contain this: iperf3, UDP, nginx, redis, bounce, macswap.
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
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

impl Options {
    fn wants(&self, case: &str) -> bool {
        self.case.as_ref().is_none_or(|text| case.contains(text))
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
    let cases: Vec<_> = cases::ALL.iter().filter(|case| options.wants(case.name)).collect();
    if !cases.is_empty() {
        let words = ["build", "--release", "--bins", "-p", "towpath-cli"];
        ensure!(workspace::cargo(root, &words).status()?.success(), "the release build failed");
    }
    let towpath = workspace::target(root).join("release/towpath");
    let bounce = options.wants(bounce::NAME).then(|| bounce::build(root)).transpose()?;
    let is_wanted = |it: &Contender| {
        options.only.is_empty() || options.only.iter().any(|name| name == it.name())
    };
    let contenders: Vec<_> = Contender::ALL.into_iter().filter(is_wanted).collect();
    let heads = ["", "device", "rate", "CPU of the server's side", "CPU of all"];
    let table = Table::new(!options.json, &heads);
    let mut all = Vec::new();
    for case in cases {
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
    let mut put = |case: &str, device: &str, rate: f64, cpu: [String; 2]| {
        let millions = format!("{:.2} million frames/s", rate / 1e6);
        table.row(&[&case, &device, &millions, &cpu[0], &cpu[1]]);
        all.push(json!({ "case": case, "device": device, "rate": rate }));
    };
    if let Some(program) = bounce {
        let devices: Vec<_> =
            contenders.iter().copied().filter(|it| *it != Contender::Kernel).collect();
        let bounced = rounds(bounce::NAME, &devices, options, |contender| {
            bounce::measure(contender, &program, options.seconds)
        })?;
        for Measured { contender, figure } in bounced {
            let cpu = [figure.server, figure.all].map(cores);
            put(bounce::NAME, contender.name(), figure.rate, cpu);
        }
    }
    if options.only.is_empty() && options.wants(bounce::DPDK) {
        for (device, ours, theirs) in bounce::dpdk(root, options.seconds)? {
            for (name, rate) in [("dpdk", ours), ("testpmd", theirs)] {
                let case = format!("{}, {device}", bounce::DPDK);
                put(&case, name, rate, [String::new(), String::new()]);
            }
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

/// Starts the case's server for each round of it.
fn measure(
    case: &Case,
    contenders: &[Contender],
    towpath: &Path,
    options: &Options,
) -> Result<Vec<Measured>> {
    rounds(case.name, contenders, options, |contender| {
        let world = World::new(contender)?;
        let mut server = world.start(case.server, towpath)?;
        case.measure(&world, &mut server, options.seconds)
    })
}

/// The round with the median rate of each contender, whose rounds alternate.
fn rounds(
    case: &str,
    contenders: &[Contender],
    options: &Options,
    round: impl Fn(Contender) -> Result<Figure>,
) -> Result<Vec<Measured>> {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for _ in 0..options.repeat {
        for (contender, figures) in contenders.iter().zip(&mut rounds) {
            interrupt::check()?;
            crate::table::progress(&format!("{case}: {}", contender.name()));
            figures.push(round(*contender)?);
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
