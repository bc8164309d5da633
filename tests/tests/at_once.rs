//! Bytes sent over loopback can be read as soon as the sending call returns, as on the kernel. The
//! program counts reads that were too early, in each hosting.

use std::process::Command;

use towpath_tests::{Namespace, PATIENCE, Process, Scratch, program, towpath};

const HOSTINGS: [&[&str]; 5] =
    [&[], &["--inline"], &["--shards", "2"], &["--shards", "4"], &["--busy-poll", "0"]];

/// Runs `rounds` of each kind once on the kernel, and `runs` times in each hosting.
fn compare(rounds: &str, runs: u32) {
    let folder = Scratch::new();
    let (binary, source) = (folder.file("at_once"), program("oracle/at_once.c"));
    let gcc = Command::new("gcc")
        .args(["-O1", "-pthread", "-o", &binary, &source])
        .status()
        .expect("gcc");
    assert!(gcc.success());
    let line = [binary.as_str(), rounds];
    let kernel = Namespace::new().run(&line).ok().stdout;
    let towpath = towpath();
    for options in HOSTINGS {
        for _ in 0..runs {
            let run = [&[towpath.as_str(), "run", "-q"], options, &["--"], &line].concat();
            let ours = Process::spawn(&run).wait(PATIENCE).ok().stdout;
            assert_eq!(ours, kernel, "{options:?}");
        }
    }
}

#[test]
fn every_hosting_is_as_the_kernel() {
    compare("100", 1);
}

/// Tests that take minutes.
mod nightly {
    #[test]
    fn no_call_is_early_in_a_hundred_thousand() {
        super::compare("1200", 10);
    }
}
