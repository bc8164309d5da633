//! Many threads, many processes, and little memory: failures that only occur under load.

use towpath_tests::{Mode, Namespace, program, run};

fn passes(name: &str) {
    passes_with(name, &[]);
}

/// Runs a program, with `before` put before its command.
fn passes_with(name: &str, before: &[&str]) {
    let (ns, program) = (Namespace::new(), program(&format!("stress/{name}")));
    let out = run(&ns, Mode::Rootless, &[], &[before, &["python3", &program]].concat());
    assert_eq!(out.code(), 0, "{name}: {}{}", out.stdout, out.stderr);
}

#[test]
fn threads_at_one_epoll_set_wake_each_other() {
    passes("shared_epoll.py");
}

#[test]
fn peers_that_do_not_read_stop_nobody_else() {
    passes("slow_peers.py");
}

#[test]
fn workers_are_killed_at_any_moment() {
    passes("killed_workers.py");
}

#[test]
fn idle_pollers_sleep_while_another_connection_is_busy() {
    passes("idle_pollers.py");
}

/// Thread ids are not comparable between PID namespaces.
#[test]
fn workers_in_pid_namespaces_of_their_own_are_killed() {
    if rustix::process::geteuid().is_root() {
        passes("pid_namespaces.py");
    }
}

/// Tests that also check times and wake-ups, for an otherwise idle machine.
mod nightly {
    #[test]
    fn nobody_waits_for_long() {
        for name in ["slow_peers.py", "killed_workers.py", "idle_pollers.py"] {
            super::passes_with(name, &["env", "TOWPATH_JUDGE_TIME=1"]);
        }
    }
}
