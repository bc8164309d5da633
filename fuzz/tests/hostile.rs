//! Runs the harnesses with bytes of a seeded generator.
//!
//! `TOWPATH_HOSTILE_CASES` sets the number of cases, instead of the few for CI.
//! `TOWPATH_HOSTILE_SEED` sets the first seed:
//!
//! ```sh
//! TOWPATH_HOSTILE_CASES=100000000 cargo test --release -p towpath-fuzz --test hostile
//! ```

#![allow(clippy::print_stderr)] // For whoever reads the output of the tests.

use std::str::FromStr;

#[test]
fn a_connection_with_a_hostile_peer() {
    run_cases(5_000, towpath_fuzz::connection::run);
}

#[test]
fn a_sender_recovers_from_wrong_acknowledgements() {
    run_cases(5_000, towpath_fuzz::recovery::run);
}

#[test]
fn a_stack_with_a_hostile_peer() {
    run_cases(400, towpath_fuzz::stack::run);
}

#[test]
fn a_device_with_a_hostile_other_side() {
    run_cases(2_000, towpath_fuzz::device::run);
}

#[test]
fn an_engine_with_a_hostile_program() {
    run_cases(400, towpath_fuzz::engine::run);
}

#[test]
fn access_lists_of_any_text_and_any_rules() {
    run_cases(3_000, towpath_fuzz::filter::run);
}

#[test]
fn socket_filters_of_any_instructions() {
    run_cases(20_000, towpath_fuzz::cbpf::run);
}

#[test]
fn transit_of_packets_with_any_offload_metadata() {
    run_cases(1_000, towpath_fuzz::transit::run);
}

#[test]
fn address_translation_of_packets_in_any_order() {
    run_cases(5_000, towpath_fuzz::conntrack::run);
}

#[test]
fn translation_of_packets_between_versions() {
    run_cases(5_000, towpath_fuzz::siit::run);
}

#[test]
fn dns_messages_of_clients_and_servers() {
    run_cases(5_000, towpath_fuzz::nameserver::run);
}

#[test]
fn configuration_files_of_any_text() {
    run_cases(3_000, towpath_fuzz::config::run);
}

#[test]
fn a_virtual_machine_with_a_hostile_driver() {
    run_cases(500, towpath_fuzz::vhost::run);
}

#[test]
fn a_memif_link_with_a_hostile_peer() {
    run_cases(500, towpath_fuzz::memif::run);
}

/// Names the case that failed.
struct Running(u64);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "failed in case {}; again: TOWPATH_HOSTILE_SEED={} TOWPATH_HOSTILE_CASES=1",
                self.0, self.0
            );
        }
    }
}

fn run_cases(usual: u64, run: fn(&[u8])) {
    let first = variable("TOWPATH_HOSTILE_SEED").unwrap_or(0);
    let cases = variable("TOWPATH_HOSTILE_CASES").unwrap_or(usual);
    for seed in first..first + cases {
        let _running = Running(seed);
        run(&towpath_fuzz::random::bytes(seed));
    }
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let parsed = value.parse().ok();
    assert!(parsed.is_some(), "{name}={value}: a number was expected");
    parsed
}
