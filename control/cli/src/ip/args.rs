//! The options of `towpath ip`, as ip(8) has them.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::ffi::OsString;

use clap::{Args, ValueHint};

use super::grammar::Family;
use crate::args::{parse_pid, parse_user};

/// Options that select one run among several.
#[derive(Debug, Args)]
pub struct WhichRun {
    /// Process id of the `towpath run` or `router`; by default the only one of this user
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub run: Option<u32>,
    /// Name of the `towpath run` or `router`, as set by its option --name
    #[arg(long, value_name = "NAME", conflicts_with = "run")]
    pub name: Option<String>,
    /// Use the runs of this user, by name or number (default: your own); only root can see another
    /// user's runs, and cannot change them
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    pub user: Option<u32>,
}

#[derive(Debug, Args)]
pub struct IpArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Print JSON, with the keys of ip -j
    #[arg(short, long)]
    pub json: bool,
    /// Print JSON in lines of their own (also -pretty)
    #[arg(short, long)]
    pub pretty: bool,
    /// IPv4 only
    #[arg(short = '4', conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// IPv6 only
    #[arg(short = '6')]
    pub ipv6: bool,
    /// A line for each interface or neighbour (also -br)
    #[arg(long)]
    pub brief: bool,
    /// Print each entry on one line, with \ in place of line breaks (also -oneline)
    #[arg(short, long, conflicts_with_all = ["brief", "json"])]
    pub oneline: bool,
    /// Show packets and bytes of each interface, and for link the counters of its device
    #[arg(short, long)]
    pub statistics: bool,
    /// Print the time (UTC) in front of each change (monitor; also -timestamp, -ts)
    #[arg(short, long)]
    pub timestamp: bool,
    /// Read commands from a file, one per line, and apply them as one change: all or none (- is
    /// standard input)
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub batch: Option<String>,
    /// Object and command as in ip(8): monitor, or addr, route, neigh or link and show, add, del,
    /// ...
    #[arg(value_name = "OBJECT", trailing_var_arg = true, required_unless_present = "batch")]
    pub words: Vec<String>,
}

impl IpArgs {
    /// Returns the address family that `-4` or `-6` selects; `None` for both families.
    pub fn family(&self) -> Option<Family> {
        match (self.ipv4, self.ipv6) {
            (true, _) => Some(Family::V4),
            (_, true) => Some(Family::V6),
            _ => None,
        }
    }
}

/// Rewrites long options of ip(8), which begin with one dash, to options with two dashes. Changes
/// only words of `towpath ip` that come before the OBJECT.
pub fn as_options(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_none_or(|word| word != "ip") {
        return words;
    }
    for word in words.iter_mut().skip(2).take_while(|word| !is_object(word)) {
        let long = match word.to_str() {
            Some("-br" | "-brief") => "--brief",
            Some("-json") => "--json",
            Some("-pretty") => "--pretty",
            Some("-oneline") => "--oneline",
            Some("-stats" | "-statistics") => "--statistics",
            Some("-batch") => "--batch",
            Some("-ts" | "-tshort" | "-timestamp") => "--timestamp",
            _ => continue,
        };
        *word = long.into();
    }
    words
}

fn is_object(word: &OsString) -> bool {
    word.to_str().is_some_and(|word| super::grammar::object(word).is_some())
}
