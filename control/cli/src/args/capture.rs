//! Options for captures, shared by all commands that process packets.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use std::path::PathBuf;

use clap::{Args, ValueHint};
use towpath_pcap::SNAPLEN_DEFAULT;

use super::values::{parse_size, parse_snaplen};

/// File of a capture, and its limits.
#[derive(Debug, Clone, Args)]
pub struct CaptureArgs {
    /// Write the packets to a pcapng file; "-" is standard output
    ///
    /// Wireshark and tcpdump can read the file, also while it grows. A packet that the stack
    /// dropped is recorded a second time, with the reason as its comment. Loopback packets are
    /// recorded only if they were dropped. If packets arrive faster than they can be written, some
    /// are not recorded, so that none are delayed. If the file cannot be written, for example
    /// because the disk is full, the file ends after its last complete packet. The command
    /// continues, and its exit status is 125 instead of 0. With "-", the standard output of a
    /// program that the command runs is redirected to standard error.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub pcap: Option<PathBuf>,

    /// Most bytes of each packet in the capture, 64 to 262144
    ///
    /// 128 hold the headers.
    #[arg(long, value_name = "BYTES", requires = "pcap")]
    #[arg(default_value_t = SNAPLEN_DEFAULT, value_parser = parse_snaplen)]
    pub pcap_snaplen: u32,

    /// Largest size of the capture in bytes, or as 500K, 100M, 2G; 0: no limit
    ///
    /// When it is reached, recording stops, and the command goes on.
    #[arg(long, value_name = "SIZE", requires = "pcap")]
    #[arg(default_value = "1G", value_parser = parse_size)]
    pub pcap_size: u64,
}

impl CaptureArgs {
    /// Returns the maximum recorded length of a packet and the maximum size of the file, both in
    /// bytes.
    pub fn limits(&self) -> (u32, u64) {
        (self.pcap_snaplen, self.pcap_size)
    }
}
