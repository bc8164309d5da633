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
    /// Compares Towpath with the kernel in one run: throughput, request rates, idle CPU (needs
    /// root).
    Bench(bench::Options),
    /// Creates a page with plots from the output of `bench --json`.
    Report(report::Options),
    /// Counts system calls, context switches and copies per request, connection and MiB, and
    /// instructions per packet; compares builds (needs root).
    Counts(counts::Options),
    /// Measures a million idle connections, and their effect on an active one (needs root, and 10
    /// GiB of memory).
    Crowd(crowd::Options),
    /// Compares the simulator with ns-3: goodput and waiting times of the same networks, or speed
    /// (Debian's libns3-dev and g++).
    Anchor(anchor::Options),
    /// Compares several echo servers under `towpath load`.
    Echo(echo::Options),
    /// Compares TUN proxies and rootless networks of namespaces (needs root).
    Proxies(proxies::Options),
    /// Compares servers on each device of `towpath run` with servers on the kernel, over a veth
    /// (needs root).
    Devices(devices::Options),
    /// Compares `towpath router` with the kernel as the router between two hosts (needs root).
    Router(router::Options),
    /// Compares two shards on two processors with one over an in-memory port, and measures the cost
    /// of a packet with up to eight shards.
    Shards(shards::Options),
    /// Compares the core's cost of a packet with gVisor's netstack (needs Go) and smoltcp; fetches
    /// both from the network.
    Packets(packets::Options),
    /// Runs random worlds of the simulator, and checks rules at every step.
    Sim(sim::Options),
    /// Compares a tokio server on Towpath with the kernel (needs root).
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
