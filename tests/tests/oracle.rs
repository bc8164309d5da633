//! The kernel as the oracle: small programs print the results of socket calls on the kernel and on
//! Towpath, which must be equal.
//!
//! Each program is a file of `programs/oracle`, requires only loopback, and prints only values that
//! a stack may not choose. There are no stored expectations: the kernel runs each time.
#![allow(clippy::print_stderr)] // Tests report what they skip.

use std::process::Command;
use towpath_tests::{Mode, Namespace, Output, PATIENCE, Scratch, program, start};

/// Defines a test per program, and the list of all programs.
macro_rules! programs {
    ($($(#[$doc:meta])* $name:ident)*) => {
        const PROGRAMS: &[&str] = &[$(stringify!($name)),*];
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                compare(stringify!($name));
            }
        )*
    };
}

programs! {
    addresses answers at_once bind_listen chroot connect control_messages cork device disconnect
    duplex duplicates epoll_errors epoll_modes epoll_threads error_queue exec files fork
    fork_threads handlers hop_limits identity ioctls limit linger listeners many masks memory_lock
    messages modules multicast names nonblocking nothing null_pointers opening options options_rare
    peeking poll_room poll_select ports printing queue_sizes receive_flags reset rights sandbox
    segments sendfile_more settings_in_order shutdown signals spawn tcp_options timeouts transfer
    udp udp_shared unconnected urgent vectors waiting
}

/// Ensures that every program of the directory has a test.
#[test]
fn every_program_is_run() {
    let files = std::fs::read_dir(program("oracle")).expect("programs/oracle");
    let names = files.flatten().map(|file| file.file_name().into_string().expect("plain names"));
    let mut names: Vec<_> = names
        .filter_map(|name| Some(name.strip_suffix(".py").or(name.strip_suffix(".c"))?.to_owned()))
        .filter(|name| name != "transcript")
        .collect();
    names.sort();
    assert_eq!(names, PROGRAMS);
}

/// Programs that check times if requested.
mod nightly {
    #[test]
    fn times_are_as_on_the_kernel() {
        for name in ["cork", "linger", "peeking", "poll_select", "signals", "timeouts"] {
            let kernel = super::Namespace::new();
            super::compare_with(name, &["env", "TOWPATH_JUDGE_TIME=1"], &kernel);
        }
    }
}

fn compare(name: &str) {
    if name == "device" && !rustix::process::geteuid().is_root() {
        eprintln!("left out: to bind a socket to a second device takes CAP_NET_RAW on the kernel");
        return;
    }
    let kernel = Namespace::new();
    if name == "opening" {
        if !kernel.is_own() {
            eprintln!("left out: the kernel takes bytes in SYNs where a sysctl is set");
            return;
        }
        kernel.shell("echo 3 > /proc/sys/net/ipv4/tcp_fastopen").ok();
    }
    compare_with(name, &[], &kernel);
}

/// Compares a program; `before` is put before its command.
fn compare_with(name: &str, before: &[&str], kernel: &Namespace) {
    let folder = Scratch::new();
    let command = command(name, &folder);
    let command: Vec<_> =
        before.iter().copied().chain(command.iter().map(String::as_str)).collect();
    let kernel = kernel.run(&command).ok();
    let ns = Namespace::new();
    let ours = start(&ns, Mode::Rootless, &[], &command).wait(PATIENCE);
    let same = kernel.stdout == ours.stdout && kernel.status == ours.status;
    assert!(
        same,
        "{name}: {} on the kernel, {} on towpath\n{}\nstderr: {}",
        kernel.status,
        ours.status,
        difference(&folder, &kernel, &ours),
        ours.stderr
    );
}

/// Returns the command of a program, after compiling it if it is in C.
fn command(name: &str, folder: &Scratch) -> Vec<String> {
    let source = program(&format!("oracle/{name}.c"));
    if !std::path::Path::new(&source).exists() {
        let script = program(&format!("oracle/{name}.py"));
        // -B avoids __pycache__ in the source directory.
        return vec!["python3".into(), "-B".into(), script];
    }
    let binary = folder.file(name);
    let gcc = Command::new("gcc")
        .args(["-O1", "-pthread", "-o", &binary, &source])
        .output()
        .expect("gcc");
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
    vec![binary]
}

/// Returns the lines that differ: `-` the kernel's, `+` ours.
fn difference(folder: &Scratch, kernel: &Output, ours: &Output) -> String {
    let kernel = folder.write("kernel", &kernel.stdout);
    let ours = folder.write("towpath", &ours.stdout);
    let diff = Command::new("diff").args(["-U0", &kernel, &ours]).output().expect("diff");
    String::from_utf8_lossy(&diff.stdout).into_owned()
}
