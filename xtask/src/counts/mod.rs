//! What a request, a connection and a byte cost in things that are counted.
mod threads;
mod tracer;
mod workloads;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::bench::sides::{Hosting, Side, Uplink};
use crate::interrupt;
use workloads::{Cost, WORKLOADS, Workload};

#[derive(clap::Args)]
pub struct Options {
    /// Only workloads whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

pub fn run(root: &Path, options: &Options) -> Result<()> {
    interrupt::hold()?;
    crate::debian::install()?;
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "-p", "towpath", "-p", "towpath-tests", "--bins"]);
    ensure!(build.current_dir(root).status()?.success(), "the release build failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    let programs = target.join("release");
    let ours = |hosting| [Uplink::Tap, Uplink::Rootless].map(|uplink| Side::Ours(hosting, uplink));
    let sides: Vec<Side> = std::iter::once(Side::Kernel).chain(ours(Hosting::Run)).chain(ours(Hosting::Inline)).collect();
    for w in WORKLOADS.iter().filter(|it| it.name.contains(&options.only)) {
        for &side in &sides {
            let costs = w.count(side, &programs.join("towpath"), &programs)?;
            if let Some(c) = &costs.engine { show(w, side, "engine", c, costs.count); }
            show(w, side, "program", &costs.program, costs.count);
        }
    }
    Ok(())
}
fn show(w: &Workload, side: Side, who: &str, c: &Cost, n: u32) {
    let n = f64::from(n);
    let mut by: BTreeMap<i64, u64> = BTreeMap::new();
    let mut total = 0;
    for ((_, nr), k) in &c.calls { *by.entry(*nr).or_default() += k; total += k; }
    let mut by: Vec<_> = by.into_iter().collect();
    by.sort_by_key(|it| std::cmp::Reverse(it.1));
    let names: Vec<String> = by.iter().take(9).map(|(nr, k)| format!("{nr}:{:.3}", *k as f64 / n)).collect();
    println!("{} | {side} | {who} | {:.3} | v {:.3} | i {:.3} | f {:.3} | {}", w.name, total as f64 / n, c.scheduled.voluntary as f64 / n, c.scheduled.involuntary as f64 / n, c.scheduled.faults as f64 / n, names.join(" "));
}
