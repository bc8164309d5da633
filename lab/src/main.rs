//! Measurements of Towpath: `cargo lab NAME`, each of which is described in `lab/README.md`.
#![allow(clippy::print_stdout, clippy::print_stderr)] // Measurements talk to who runs them.
#![forbid(unsafe_code)]

mod anchor;
mod bench;
mod counts;
mod crowd;
mod devices;
mod echo;
mod figures;
mod namespace;
mod packets;
mod proxies;
mod report;
mod rounds;
mod router;
mod running;
mod shards;
mod sim;
mod tokio;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use xtask::{debian, interrupt, table, workspace};

/// Measurements of Towpath.
#[derive(Parser)]
#[command(name = "lab")]
enum Measurement {
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
    /// Random worlds of the simulator, held against rules at every step.
    Sim(sim::Options),
    /// Measures a server of tokio on Towpath beside the kernel (needs root).
    Tokio(tokio::Options),
}

fn main() -> ExitCode {
    match run(&workspace::root(), Measurement::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Avoid the backtrace of RUST_BACKTRACE: the error is about the measured programs, not
            // about this one.
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, measurement: Measurement) -> Result<()> {
    match measurement {
        Measurement::Bench(options) => bench::run(root, &options),
        Measurement::Report(options) => report::run(&options),
        Measurement::Counts(options) => counts::run(root, &options),
        Measurement::Crowd(options) => crowd::run(root, &options),
        Measurement::Anchor(options) => anchor::run(root, &options),
        Measurement::Echo(options) => echo::run(root, &options),
        Measurement::Proxies(options) => proxies::run(root, &options),
        Measurement::Devices(options) => devices::run(root, &options),
        Measurement::Router(options) => router::run(root, &options),
        Measurement::Shards(options) => shards::run(root, &options),
        Measurement::Packets(options) => packets::run(root, &options),
        Measurement::Sim(options) => sim::run(root, &options),
        Measurement::Tokio(options) => tokio::run(root, &options),
    }
}
