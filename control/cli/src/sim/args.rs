//! The options of `towpath sim`.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use towpath_sim::RUNS_MAX;
use towpath_uplink::DeviceSpec;

use super::common::CommonArgs;
use super::examples::ExampleCommand;

#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
#[command(subcommand_value_name = "EXAMPLE", subcommand_help_heading = "Examples")]
pub struct SimArgs {
    /// Scenario to run, a TOML file
    #[arg(value_name = "SCENARIO", value_hint = ValueHint::FilePath, required = true)]
    pub scenario: Option<PathBuf>,

    /// Number of runs, each with the next seed; of several, means and 95 % confidence are shown
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = parse_runs)]
    pub runs: usize,

    #[command(flatten)]
    pub common: CommonArgs,

    /// Folder for captures, a pcapng file for each link
    ///
    /// Each packet is recorded once for each link: when it is delivered at the other end, or when
    /// it is dropped. A dropped packet has the reason as its comment. Times are relative to the
    /// start of the run.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub pcap: Option<PathBuf>,

    /// Follow the clock, with real devices where hosts of the scenario have a `device`
    ///
    /// The results have the lag: the real time of each event minus its scheduled time.
    #[arg(long)]
    pub realtime: bool,

    #[command(subcommand)]
    pub command: Option<SimCommand>,
}

/// Commands without a scenario.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "parsed once")]
pub enum SimCommand {
    #[command(flatten)]
    Example(ExampleCommand),
    /// Open a real device for a simulation without root
    ///
    /// Run with sudo. Waits for a simulation of the user, passes the device to it, and ends. The
    /// simulation names the socket in the place of the device, as lent:/run/user/1000/eth1.
    ///
    ///   sudo towpath sim lend packet:eth1 /run/user/1000/eth1
    ///   towpath sim ping --device lent:/run/user/1000/eth1 --address 10.0.1.11/24
    #[command(verbatim_doc_comment)]
    Lend(LendArgs),
}

/// Options of `towpath sim lend`.
#[derive(Debug, Args)]
pub struct LendArgs {
    /// Device: packet, tap or stream, with its parameters
    #[arg(value_name = "DEVICE:PARAMETERS", value_parser = DeviceSpec::parse)]
    pub device: DeviceSpec,

    /// Unix socket to create, at which the simulation obtains the device
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub socket: PathBuf,

    /// User id of the user who may obtain the device (default: the user who called sudo)
    #[arg(long, value_name = "UID")]
    pub user: Option<u32>,
}

fn parse_runs(text: &str) -> Result<usize, String> {
    let runs = text.parse().ok().filter(|runs| (1..=RUNS_MAX).contains(runs));
    runs.ok_or_else(|| format!("expected 1 to {RUNS_MAX}"))
}
