//! Runs packet scripts on the stack in virtual time.
//!
//! A script is a list of system calls, packets and assertions with times, in a subset of
//! packetdrill's language (docs/script.md). The calls act on sockets of a [`towpath_stack::Stack`],
//! whose packets are compared with the expected ones. No clock is read, so that equal inputs give
//! equal results, and minutes of a script take milliseconds.
//!
//! # Reading order
//! `syntax` parses a script. `run` follows its events. `world` has the stack and its link, and
//! `host` records the events of sockets for `sockets`, the system calls. `flow` translates sequence
//! numbers, `compare` compares packets, and `code` evaluates assertions. `knobs` maps options and
//! sysctls to settings. `batch` runs several scripts on several threads.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod code;
mod compare;
mod flow;
mod host;
mod knobs;
mod run;
mod sockets;
mod syntax;
mod verdict;
mod wire;
mod world;

pub use batch::{find_scripts, run_files};
pub use compare::Relaxations;
pub use knobs::IpVersion;
pub use run::CapturedPacket;
pub use verdict::{RunOptions, ScriptFailure, ScriptResult, run_text};
