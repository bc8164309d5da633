//! Programs under LD_PRELOAD on an engine with nothing but loopback.
//!
//! The parent starts an engine and, for each case, this same executable with the library preloaded
//! and TOWPATH_CONTROL set; the case then runs in the child, which uses std and libc like any
//! program. Cases that say what Linux does run there too, without the library.

#![allow(clippy::print_stdout)] // For whoever reads the output of the tests.

mod cancel;
mod descriptors;
mod ending;
mod files;
mod forks;
mod harness;
mod hosts;
mod netlink;
mod numbers;
mod polling;
mod ports;
mod processes;
mod reuse;
mod signals;
mod sockets;
mod streams;
mod transfers;
mod unconnected;
mod values;

use harness::Case;

fn main() -> std::process::ExitCode {
    let cases: Vec<Case> = [
        sockets::CASES,
        transfers::CASES,
        polling::CASES,
        processes::CASES,
        signals::CASES,
        reuse::CASES,
        descriptors::CASES,
        hosts::CASES,
        ports::CASES,
        values::CASES,
        cancel::CASES,
        numbers::CASES,
        streams::CASES,
        forks::CASES,
        netlink::CASES,
        files::CASES,
        unconnected::CASES,
        ending::CASES,
    ]
    .concat();
    let linux = [ports::CASES, values::CASES, files::CASES, unconnected::CASES].concat();
    harness::main(&cases, &linux)
}
