//! Compares devices: the kernel's own stack on a veth, and Towpath's stack on each device. Measures
//! the tables of docs/devices.md.
//!
//! Servers run at one end of the link and clients at the other (`world`), one server at a time.
//! Clients use the kernel's stack, and with memif one of their own. `cases` measures them. All
//! senders use CUBIC. `bounce` measures devices without a stack.

mod bounce;
mod cases;
mod contender;
mod world;

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::rounds::Rounds;
use crate::table::Table;
use crate::{debian, interrupt, workspace};
use cases::{Case, Figure};
use contender::Contender;
use world::World;

#[derive(clap::Args)]
pub struct Options {
    /// Measure only these: kernel, packet, xdp, tap, memif, memif-64k. DPDK's devices are skipped
    /// then.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Measure only cases whose names contain this: iperf3, UDP, nginx, redis, bounce, macswap.
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
    #[command(flatten)]
    rounds: Rounds,
}

impl Options {
    fn wants(&self, case: &str) -> bool {
        self.case.as_ref().is_none_or(|text| case.contains(text))
    }

    fn contenders(&self) -> Vec<Contender> {
        let is_wanted =
            |it: &Contender| self.only.is_empty() || self.only.iter().any(|n| n == it.name());
        Contender::ALL.into_iter().filter(is_wanted).collect()
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
    let contenders = options.contenders();
    let bounce = options.wants(bounce::NAME).then(|| bounce::build(root)).transpose()?;
    let mut report = Report::new(options.rounds.json);
    let cases: Vec<_> = cases::ALL.iter().filter(|case| options.wants(case.name)).collect();
    if !cases.is_empty() {
        let release = workspace::build_release(root, &["--bins", "-p", "towpath-cli"])?;
        let towpath = release.join("towpath");
        for case in cases {
            for measured in measure(case, &contenders, &towpath, options)? {
                report.add_case(case, &measured);
            }
        }
    }
    if let Some(program) = bounce {
        let devices: Vec<_> = contenders.into_iter().filter(|it| it.bounces()).collect();
        let bounced = rounds(bounce::NAME, &devices, options, |contender| {
            bounce::measure(contender, &program, options.rounds.seconds)
        })?;
        for Measured { contender, figure } in bounced {
            let cpu = [figure.server, figure.all].map(cores);
            report.add_frames(bounce::NAME, contender.name(), figure.rate, cpu);
        }
    }
    if options.only.is_empty() && options.wants(bounce::DPDK) {
        for (device, ours, theirs) in bounce::dpdk(root, options.rounds.seconds)? {
            for (name, rate) in [("dpdk", ours), ("testpmd", theirs)] {
                let case = format!("{}, {device}", bounce::DPDK);
                report.add_frames(&case, name, rate, [String::new(), String::new()]);
            }
        }
    }
    report.finish();
    Ok(())
}

/// Rows of the table, printed immediately, and of the JSON, printed at the end.
struct Report {
    table: Table,
    rows: Vec<Value>,
    is_json: bool,
}

impl Report {
    fn new(is_json: bool) -> Self {
        let heads = ["", "device", "rate", "CPU of the server's side", "CPU of all"];
        Self { table: Table::new(!is_json, &heads), rows: Vec::new(), is_json }
    }

    fn add_case(&mut self, case: &Case, measured: &Measured) {
        let Figure { rate, server, all } = measured.figure;
        let device = measured.contender.name();
        let words = case.rate_words(rate);
        self.table.row(&[&case.name, &device, &words, &cores(server), &cores(all)]);
        self.rows.push(json!({
            "case": case.name,
            "device": device,
            "rate": rate,
            "server_cores": server,
            "all_cores": all,
        }));
    }

    fn add_frames(&mut self, case: &str, device: &str, rate: f64, cpu: [String; 2]) {
        let millions = format!("{:.2} million frames/s", rate / 1e6);
        self.table.row(&[&case, &device, &millions, &cpu[0], &cpu[1]]);
        self.rows.push(json!({ "case": case, "device": device, "rate": rate }));
    }

    fn finish(self) {
        if self.is_json {
            println!("{:#}", Value::Array(self.rows));
        }
    }
}

struct Measured {
    contender: Contender,
    figure: Figure,
}

/// Measures a case in all rounds, with a new server for each.
fn measure(
    case: &Case,
    contenders: &[Contender],
    towpath: &Path,
    options: &Options,
) -> Result<Vec<Measured>> {
    rounds(case.name, contenders, options, |contender| {
        let world = World::new(contender, Some(towpath))?;
        let mut server = world.start(case.server)?;
        case.measure(&world, &mut server, options.rounds.seconds)
    })
}

/// Runs the contenders alternately. Returns the round with the median rate of each.
fn rounds(
    case: &str,
    contenders: &[Contender],
    options: &Options,
    round: impl Fn(Contender) -> Result<Figure>,
) -> Result<Vec<Measured>> {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for _ in 0..options.rounds.repeat {
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

/// Formats a number of busy processors.
fn cores(cores: f64) -> String {
    format!("{cores:.2}")
}
