//! The project's own chores: `cargo xtask test` is what CI runs, the rest are its parts.
#![allow(clippy::print_stdout, clippy::print_stderr)] // Chores talk to who runs them.
#![forbid(unsafe_code)]

mod anchor;
mod bench;
mod circles;
mod counts;
mod crowd;
mod debian;
mod devices;
mod echo;
mod figures;
mod findings;
mod fuzz;
mod gate;
mod interrupt;
mod licences;
mod nightly;
mod packets;
mod proxies;
mod report;
mod requirements;
mod rounds;
mod router;
mod running;
mod shards;
mod sim;
mod structure;
mod table;
mod tidy;
mod words;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Chores of the Towpath project.
#[derive(Parser)]
enum Chore {
    /// The gate: format, tidy, licences, requirements, lints, unit tests, loom, a choice of real
    /// programs.
    Test(gate::Options),
    /// Long checks and those judged over several runs (stress, times, whole hostings, fuzzing,
    /// counts); ends with a table.
    Nightly(nightly::Options),
    /// Ours beside the kernel's in one run: throughput, requests a second, idle CPU (needs root).
    Bench(bench::Options),
    /// A page with plots, of what `bench --json` wrote.
    Report(report::Options),
    /// System calls, sleeps and copies a request, a connection and a MiB, and instructions a
    /// packet, beside another build's (needs root).
    Counts(counts::Options),
    /// Measures a million idle connections, and their cost for others (needs root, and 10 GiB of
    /// memory).
    Crowd(crowd::Options),
    /// The simulator beside ns-3: goodput and waits of the same networks, or speed (Debian's
    /// libns3-dev and g++).
    Anchor(anchor::Options),
    /// Measures echo servers of several kinds side by side with `towpath load`.
    Echo(echo::Options),
    /// Measures TUN proxies and rootless networks of namespaces side by side (needs root).
    Proxies(proxies::Options),
    /// Measures servers on a veth by each device of `towpath run`, beside the kernel (needs root).
    Devices(devices::Options),
    /// `towpath router` between two hosts, beside the kernel as their router (needs root).
    Router(router::Options),
    /// Two shards on two processors beside one, over a port in memory, and what a packet costs with
    /// up to eight.
    Shards(shards::Options),
    /// Measures the core's cost of a packet, beside gVisor's netstack and smoltcp (Go for the one,
    /// both from the network).
    Packets(packets::Options),
    /// Searches for inputs that make a harness of `fuzz/` fail, by coverage (needs a C++ compiler).
    Fuzz(fuzz::Options),
    /// Random worlds of the simulator, held against rules at every step.
    Sim(sim::Options),
    /// Edges of layers, circles of files, unsafe bans, plain words, named tests, file hygiene.
    Tidy(tidy::Options),
    /// Every dependency is permissively licensed.
    Licences,
    /// Requirements of the RFCs (docs/requirements) are cited where the code follows them.
    Requirements,
}

fn main() -> ExitCode {
    match run(&workspace::root(), Chore::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a backtrace, whatever RUST_BACKTRACE says: the error is about the project,
            // not about this program.
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, chore: Chore) -> Result<()> {
    match chore {
        Chore::Test(options) => gate::run(root, &options),
        Chore::Nightly(options) => nightly::run(root, &options),
        Chore::Bench(options) => bench::run(root, &options),
        Chore::Report(options) => report::run(&options),
        Chore::Counts(options) => counts::run(root, &options),
        Chore::Crowd(options) => crowd::run(root, &options),
        Chore::Anchor(options) => anchor::run(root, &options),
        Chore::Echo(options) => echo::run(root, &options),
        Chore::Proxies(options) => proxies::run(root, &options),
        Chore::Devices(options) => devices::run(root, &options),
        Chore::Router(options) => router::run(root, &options),
        Chore::Shards(options) => shards::run(root, &options),
        Chore::Packets(options) => packets::run(root, &options),
        Chore::Sim(options) => sim::run(root, &options),
        Chore::Fuzz(options) => fuzz::run(root, &options),
        Chore::Tidy(options) => tidy::chore(root, &options),
        Chore::Licences => licences::run(root),
        Chore::Requirements => requirements::run(root),
    }
}
