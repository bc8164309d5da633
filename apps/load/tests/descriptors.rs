//! A process that runs out of descriptors. The limit affects the whole process, so this file has a
//! single test.

use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, Rlimit, setrlimit};
use towpath_load::{Failure, Plan, Target, run};

#[test]
fn descriptors_that_the_rest_of_the_process_uses_up_are_counted_as_a_failure() {
    let few = Rlimit { current: Some(100), maximum: Some(100) };
    setrlimit(Resource::Nofile, few).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut plan = Plan::new(Target::from(listener.local_addr().unwrap()));
    std::thread::spawn(move || {
        // The server resets each connection at its first request. If accept fails because of
        // missing descriptors, the server continues.
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 100]);
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
    });
    plan.duration = Duration::from_secs(3600);
    plan.period = Duration::from_millis(10);
    // Snapshots must be more frequent than this pause, during which the user has no descriptor.
    plan.reconnect_pause = Duration::from_millis(50);
    let (stop, mut taken) = (AtomicBool::new(false), Vec::new());
    let report = run(&plan, &stop, &mut |now| {
        taken.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        stop.store(now.failures.count(Failure::NoDescriptors) > 0, Relaxed);
    });
    let failures = report.expect("the plan is sound").failures;
    let failure = failures.iter().find(|it| it.kind == Failure::NoDescriptors);
    let failure = failure.expect("it ended the run");
    assert!(failure.example.contains("Too many open files"), "{}", failure.example);
    assert!(failure.kind.advice().is_some_and(|it| it.contains("ulimit -n")));
}
