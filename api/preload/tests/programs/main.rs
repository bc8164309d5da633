//! Tests programs with the preload library, on an engine that has only loopback.
//!
//! The parent starts an engine. For each case it starts this same executable with the library
//! preloaded and TOWPATH_CONTROL set. The case runs in the child, which uses std and libc like any
//! program. Cases that are not in the list below also run on Linux without the library.
//!
//! The command line is the part of libtest's that a runner needs. `towpath::NAME` and
//! `kernel::NAME` are separate tests.

#![allow(clippy::print_stdout, clippy::print_stderr)] // For readers of the output of the tests.

mod arguments;
mod asleep;
mod cancel;
mod copies;
mod descriptors;
mod ending;
mod files;
mod filters;
mod forks;
mod harness;
mod hosts;
#[path = "../library/mod.rs"]
mod library;
mod local_ports;
mod looking;
mod marks;
mod netlink;
mod numbers;
mod pacing;
mod polling;
mod ports;
mod processes;
mod processors;
mod queues;
mod records;
mod reuse;
mod signals;
mod sockets;
mod stamps;
mod streams;
mod trains;
mod transfers;
mod unconnected;
mod values;

use harness::{Case, Own};

fn main() -> std::process::ExitCode {
    let cases: Vec<Case> = [
        sockets::CASES,
        transfers::CASES,
        polling::CASES,
        processes::CASES,
        queues::CASES,
        signals::CASES,
        reuse::CASES,
        descriptors::CASES,
        hosts::CASES,
        ports::CASES,
        values::CASES,
        marks::CASES,
        cancel::CASES,
        numbers::CASES,
        streams::CASES,
        forks::CASES,
        looking::CASES,
        netlink::CASES,
        files::CASES,
        unconnected::CASES,
        ending::CASES,
        filters::CASES,
        trains::CASES,
        local_ports::CASES,
        pacing::CASES,
        copies::CASES,
        processors::CASES,
        stamps::CASES,
        records::CASES,
    ]
    .concat();
    harness::main(&cases, TOWPATHS_OWN)
}

/// Cases that Linux does not support, or for which its result differs.
const TOWPATHS_OWN: &[Own] = &[
    ("a_thread_that_waits_does_not_wake_up", NO_ENGINE),
    ("all_who_wait_learn_of_the_engines_end", NO_ENGINE),
    ("who_waits_on_an_older_kernel_learns_of_it", NO_ENGINE),
    ("calls_that_do_not_wait_learn_of_it", NO_ENGINE),
    ("a_process_that_is_cut_off_does_not_hang", NO_ENGINE),
    ("the_engine_dies_in_recv", NO_ENGINE),
    ("the_engine_dies_in_poll", NO_ENGINE),
    ("streams_have_no_filters", "the kernel runs a filter on segments of a stream as well"),
    ("forked_without_us", "sockets work in a child that is made without libc"),
    ("no_io_uring", "there is io_uring"),
    (
        "a_rate_that_is_taken_away_lets_bytes_go",
        "a burst's wait is not shortened, nor is the rate in use forgotten before the next ACK",
    ),
    ("the_kernel_has_nothing_to_read", KERNELS_SOCKET),
    ("a_raw_read_does_not_change_who_it_is", KERNELS_SOCKET),
    ("a_connection_by_number", KERNELS_SOCKET),
    ("sent_to_somebody_outside", "whoever gets a socket in a message can use it"),
    ("slots_are_used_again_under_late_threads", "there are no slots"),
    ("nightly::slots_are_used_again_under_late_threads", "there are no slots"),
    #[cfg(not(debug_assertions))]
    ("a_thread_that_ends_anywhere_leaves_no_lock", "there are no locks of ours"),
    ("options", "TCP_CONGESTION is what the machine's administrator chose"),
    ("option_refusals", "root can set SO_MARK"),
    ("netlink_shows_the_stack", "the machine has other interfaces"),
    ("netlink_is_a_socket_like_others", "whoever may connect to a group may connect to process 1"),
    ("netlink_changes_nothing", "root can add addresses"),
    (
        "names_that_are_too_short",
        "a socket bound to an IPv6 address is for IPv6 only: \
         ENETUNREACH before an IPv4 address is looked at",
    ),
    (
        "as_many_bytes_as_the_mark_says",
        "recv that has taken bytes is not woken before SO_RCVLOWAT more have come",
    ),
];

const KERNELS_SOCKET: &str = "a raw system call finds the socket behind a descriptor";
const NO_ENGINE: &str = "there is no engine that ends";
