//! `towpath dns`: shows the DNS forwarder of a running router, and empties its cache.

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::counters::print_layer;
use crate::ip::{WhichRun, no_answer};
use crate::output;

/// Options of `towpath dns`.
#[derive(Debug, Args)]
pub struct DnsArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    #[arg(value_name = "COMMAND", value_enum, default_value_t = DnsCommand::Show)]
    pub command: DnsCommand,
}

/// Command of `towpath dns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DnsCommand {
    /// Show counters and the size of the cache
    Show,
    /// Remove all answers from the cache
    Flush,
}

/// Text of `towpath dns --help` before the options.
pub const ABOUT: &str = "\
Show the DNS forwarder of a running router, and empty its cache.

A router forwards DNS with --dns, or with the table [dns] of its file (docs/dns.md).";

/// Text of `towpath dns --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath dns
  towpath dns -j | jq .hits
  towpath dns flush

Exit status:
  0  done
  1  words that are wrong, or no such router
  2  the router refused, or did not answer";

/// Runs `towpath dns`.
///
/// # Errors
/// Returns an error message for the user.
pub fn dns(args: &DnsArgs) -> Result<()> {
    match args.command {
        DnsCommand::Show => {
            let client = args.which.client_to_look().map_err(no_answer)?;
            let layers = client.counters().map_err(no_answer)?;
            print_layer(
                &layers,
                "dns",
                "DNS is not forwarded: only routers with --dns do",
                args.json,
            )
        }
        DnsCommand::Flush => {
            let client = args.which.client().map_err(no_answer)?;
            let count = client.flush_dns().map_err(no_answer)?;
            output::write_text(&format!("{count} answers removed\n"))
        }
    }
}
