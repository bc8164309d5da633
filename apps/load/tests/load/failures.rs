//! Failures of each kind, caused by a real server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use towpath_load::{
    Arrivals, Ended, Error, Failure, HttpRequest, LoadPlanError, Plan, PlannedAnswer, Protocol,
    Report, ReportSnapshot, Shape, Spacing, Target, run,
};

use crate::serving::{answering, echo, nobody, resetting, tcp, udp, until};

const MS: Duration = Duration::from_millis(1);

fn plan(to: SocketAddr, users: usize) -> Plan {
    let mut plan = Plan::new(Target::from(to));
    plan.users = users;
    plan.reconnect_pause = MS * 10;
    plan.timeout = Duration::from_secs(30);
    plan.grace = MS * 50;
    plan
}

/// Returns a condition for `until`: failures of `kind` have happened `times` times.
fn happened(kind: Failure, times: u64) -> impl Fn(&ReportSnapshot) -> bool {
    move |now| now.failures.count(kind) >= times
}

/// Checks that `kind` is among the failures, and that its example names the server.
#[track_caller]
fn has_failed(report: &Report, kind: Failure) {
    let failures: Vec<_> = report.failures.iter().collect();
    assert!(report.failures.count(kind) > 0, "{failures:?}");
    let example = &failures.iter().find(|it| it.kind == kind).expect("it is counted").example;
    assert!(example.starts_with(&report.address.to_string()), "{example}");
    assert_eq!(report.sent - report.received, report.lost.count(), "{failures:?}");
    assert!(report.lost.count() <= report.failures.total(), "{failures:?}");
}

#[test]
fn a_port_without_a_program_ends_the_run_at_once() {
    let mut plan = plan(nobody(), 3);
    plan.duration = Duration::from_secs(3600);
    let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).expect("the plan is sound");
    assert_eq!(report.ended, Ended::NoConnection);
    has_failed(&report, Failure::Refused);
    assert!(report.failures.count(Failure::Refused) >= 3);
    assert_eq!((report.sent, report.duration), (0, Duration::ZERO));
}

#[test]
fn a_refused_connection_for_each_request_is_counted_for_each() {
    let mut plan = plan(nobody(), 2);
    plan.shape = Shape::ConnectEach;
    let report = until(&plan, happened(Failure::Refused, 4));
    has_failed(&report, Failure::Refused);
    assert_eq!(report.failures.count(Failure::Refused), report.sent);
}

#[test]
fn refused_datagrams_are_counted() {
    let mut plan = plan(nobody(), 2);
    plan.protocol = Protocol::Udp;
    has_failed(&until(&plan, happened(Failure::Refused, 2)), Failure::Refused);
}

#[test]
fn a_reset_is_counted_and_the_user_comes_back() {
    let report = until(&plan(tcp(resetting), 2), happened(Failure::Reset, 4));
    has_failed(&report, Failure::Reset);
    assert_eq!(report.received, 0);
    assert!(report.reconnects > 0);
}

#[test]
fn a_server_that_closes_in_the_midst_is_counted_and_the_other_answers_stand() {
    let address = tcp(|mut stream| {
        let mut bytes = [0; 6];
        for _ in 0..3 {
            if stream.read_exact(&mut bytes).is_err() || stream.write_all(&bytes).is_err() {
                return;
            }
        }
        // Send half of the fourth answer.
        let _ = stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes[..3]));
    });
    let report = until(&plan(address, 2), happened(Failure::Closed, 4));
    has_failed(&report, Failure::Closed);
    assert!(report.received >= 12 && report.response.count() == report.received);
}

#[test]
fn an_idle_connection_that_the_server_closes_is_no_failure() {
    let seen = Arc::new(AtomicU64::new(0));
    let served = seen.clone();
    let address = tcp(move |mut stream| {
        // Send two answers, and close while no request is in flight.
        let mut bytes = [0; 6];
        for _ in 0..2 {
            if stream.read_exact(&mut bytes).is_err() || stream.write_all(&bytes).is_err() {
                return;
            }
            served.fetch_add(1, Relaxed);
        }
    });
    let mut plan = plan(address, 2);
    // Long enough for the close to arrive before the next request.
    plan.interval = MS * 500;
    let report = until(&plan, |_| seen.load(Relaxed) >= 8);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.closed_idle >= 2 && report.reconnects >= 2, "{report:?}");
    assert_eq!(report.sent, report.received);
    // The server closes each connection before any request.
    plan.target = Target::from(tcp(drop));
    plan.shape = Shape::Idle { heartbeat: Duration::from_secs(3600 * 24) };
    plan.interval = Duration::ZERO;
    plan.duration = MS * 300;
    let unused = run(&plan, &AtomicBool::new(false), &mut |_| {}).expect("the plan is sound");
    assert!(unused.failures.is_empty() && unused.sent == 0, "{:?}", unused.failures);
    assert!(unused.closed_idle >= 2, "{}", unused.closed_idle);
}

#[test]
fn answers_without_end_hold_up_neither_other_users_nor_the_end() {
    // Send endless header lines to the first connection, and answers to later ones.
    let is_first = Arc::new(AtomicBool::new(true));
    let address = tcp(move |mut stream| {
        let _ = stream.read(&mut [0; 1000]);
        if is_first.swap(false, Relaxed) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
            let lines = b"X: y\r\n".repeat(20_000);
            while stream.write_all(&lines).is_ok() {}
            return;
        }
        while stream.write_all(b"HTTP/1.1 204 No\r\n\r\n").is_ok() {
            let Ok(1..) = stream.read(&mut [0; 1000]) else { return };
        }
    });
    let mut plan = plan(address, 2);
    plan.protocol = Protocol::Http1(HttpRequest::get("/"));
    plan.timeout = MS * 100;
    let report =
        until(&plan, |now| now.received >= 50 && now.failures.count(Failure::ShortAnswer) >= 1);
    has_failed(&report, Failure::ShortAnswer);
}

#[test]
fn requests_of_a_limited_number_end_without_their_server() {
    let mut plan = plan(nobody(), 2);
    plan.shape = Shape::ConnectEach;
    plan.requests = Some(5);
    plan.duration = Duration::from_secs(3600);
    let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).expect("the plan is sound");
    assert_eq!((report.ended, report.failures.total()), (Ended::Requests, 5));
    // A server that answers twice and then stops.
    plan.users = 1;
    // Bursts also give requests to users without a connection.
    for shape in [Shape::Request, Shape::Burst { every: MS }] {
        plan.shape = shape;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        plan.target = Target::from(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 6];
            for _ in 0..2 {
                stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes)).unwrap();
            }
        });
        let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).expect("the plan is sound");
        assert_eq!((report.ended, report.received), (Ended::Requests, 2), "{:?}", report.failures);
    }
}

#[test]
fn silence_and_half_an_answer_are_told_apart() {
    let mut plan = plan(tcp(answering(b"")), 2);
    plan.timeout = MS * 20;
    let silent = until(&plan, happened(Failure::NoAnswer, 3));
    has_failed(&silent, Failure::NoAnswer);
    assert_eq!(silent.failures.count(Failure::ShortAnswer), 0);
    assert!(silent.lost.max() >= plan.timeout);
    plan.target = Target::from(tcp(answering(b"hel")));
    has_failed(&until(&plan, happened(Failure::ShortAnswer, 3)), Failure::ShortAnswer);
}

#[test]
fn answers_with_more_or_other_bytes_are_told_apart() {
    let long = plan(tcp(answering(b"hello\nhello\n")), 1);
    has_failed(&until(&long, happened(Failure::LongAnswer, 1)), Failure::LongAnswer);
    let wrong = plan(tcp(answering(b"hellO\n")), 1);
    let wrong = until(&wrong, happened(Failure::WrongAnswer, 1));
    has_failed(&wrong, Failure::WrongAnswer);
    let example = &wrong.failures.iter().next().expect("one kind").example;
    assert!(example.ends_with("byte 4 is 0x4f, expected 0x6f"), "{example}");
    let mut length = plan(tcp(answering(b"12345")), 1);
    length.answer = PlannedAnswer::Length { bytes: 4 };
    has_failed(&until(&length, happened(Failure::LongAnswer, 1)), Failure::LongAnswer);
}

#[test]
fn a_server_that_never_answers_does_not_hold_up_the_end() {
    let mut plan = plan(tcp(answering(b"")), 3);
    plan.timeout = Duration::from_secs(3600);
    let report = until(&plan, |now| now.sent >= 3);
    has_failed(&report, Failure::Unanswered);
    assert_eq!((report.sent, report.received), (3, 0));
    assert_eq!(report.failures.count(Failure::Unanswered), 3);
}

#[test]
fn a_server_that_accepts_no_more_lets_connects_time_out() {
    // A minimal backlog that is never accepted from, so that later SYNs stay unanswered.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut plan = plan(listener.local_addr().unwrap(), 8);
    plan.connect_timeout = MS * 100;
    let report = until(&plan, happened(Failure::ConnectTimeout, 1));
    has_failed(&report, Failure::ConnectTimeout);
    assert!(report.connected < 8);
}

#[test]
fn lost_datagrams_are_counted_and_the_others_answered() {
    // Drop every third datagram.
    let lossy = udp(|number, bytes| (number % 3 != 2).then(|| bytes.to_vec()));
    for numbered in [false, true] {
        let mut plan = plan(lossy, 2);
        plan.protocol = Protocol::Udp;
        plan.message = b"datagrams".to_vec();
        plan.numbered = numbered;
        plan.timeout = MS * 50;
        let report =
            until(&plan, |now| now.received > 0 && now.failures.count(Failure::NoAnswer) >= 2);
        has_failed(&report, Failure::NoAnswer);
        assert_eq!(report.response.count(), report.received);
    }
    let mut plan = plan(udp(|_, bytes| Some(bytes[1..].to_vec())), 1);
    plan.protocol = Protocol::Udp;
    has_failed(&until(&plan, happened(Failure::ShortAnswer, 1)), Failure::ShortAnswer);
}

#[test]
fn a_doubled_datagram_is_late_the_second_time() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 100];
        loop {
            let (len, from) = socket.recv_from(&mut bytes).unwrap();
            let _ = socket.send_to(&bytes[..len], from);
            let _ = socket.send_to(&bytes[..len], from);
        }
    });
    let mut plan = plan(address, 1);
    plan.protocol = Protocol::Udp;
    plan.message = vec![1; 64];
    plan.numbered = true;
    let report = until(&plan, |now| now.received >= 20);
    // The end of the run may leave the last request unanswered.
    assert!(report.failures.total() <= 1, "{:?}", report.failures);
    assert!(report.late_answers >= 10, "{} of {}", report.late_answers, report.received);
}

#[test]
fn answers_that_say_no_are_failures_on_connections_that_stay() {
    let refusing = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
    let mut plan = plan(tcp(answering(refusing)), 1);
    plan.protocol = Protocol::Http1(HttpRequest::get("/"));
    let http = until(&plan, happened(Failure::Status, 5));
    has_failed(&http, Failure::Status);
    assert_eq!((http.received, http.reconnects), (0, 0));
    plan.target = Target::from(tcp(answering(b"-ERR unknown command\r\n")));
    plan.protocol = Protocol::Redis { words: vec!["NO".into()] };
    let redis = until(&plan, happened(Failure::Status, 5));
    has_failed(&redis, Failure::Status);
    let example = &redis.failures.iter().next().expect("one kind").example;
    assert!(example.contains("-ERR unknown command"), "{example}");
}

#[test]
fn a_rate_beyond_the_server_leaves_requests_unsent_and_says_how_many() {
    let pause = MS * 20;
    let address = tcp(move |mut stream| {
        let mut bytes = [0; 6];
        while stream.read_exact(&mut bytes).is_ok() {
            std::thread::sleep(pause);
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let mut plan = plan(address, 2);
    plan.arrivals = Arrivals::Open { per_second: 10_000., spacing: Spacing::Uniform };
    plan.grace = Duration::from_secs(30);
    let report = until(&plan, |now| now.received >= 8);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    let most = 2 * report.duration.as_nanos().div_ceil(pause.as_nanos()) as u64;
    assert!(report.sent <= most, "{} sent, expected {most} at most", report.sent);
    assert_eq!(report.scheduled, report.duration.as_nanos().div_ceil(100_000) as u64);
    assert_eq!(report.generator.unsent, report.scheduled - report.sent);
    assert!(report.generator.waited_for_user >= report.sent.saturating_sub(2));
}

#[test]
fn a_local_address_of_another_machine_is_an_error_that_names_it() {
    let mut plan = plan(tcp(echo), 1);
    plan.local_addresses = vec!["203.0.113.7".parse().unwrap()];
    let error = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::LocalAddress { .. }), "{error}");
    assert!(error.to_string().contains("203.0.113.7"), "{error}");
}

#[test]
fn a_name_without_an_address_is_an_error_that_says_what_was_expected() {
    for name in ["no.such.host.invalid:80", "127.0.0.1", "127.0.0.1:port", ""] {
        let error = Target::resolve(name).unwrap_err().to_string();
        assert!(error.contains(&format!("\"{name}\"")) && error.contains("HOST:PORT"), "{error}");
    }
}

#[test]
fn descriptors_beyond_the_hard_limit_are_an_error_that_says_how_to_raise_it() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(5000);
    let soft = Rlimit { current: Some(hard.min(200)), maximum: Some(hard) };
    setrlimit(Resource::Nofile, soft).unwrap();
    let error = run(&plan(nobody(), 20_000), &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    let Error::Descriptors { users, needed, limit } = error else { panic!("{error}") };
    assert_eq!((users, limit), (20_000, hard));
    assert!(needed > 20_000);
    let text = error.to_string();
    assert!(text.contains("ulimit -Hn") && text.contains("limits.conf"), "{text}");
    // The soft limit must not prevent the run, because it can be raised.
    let mut plan = plan(tcp(echo), 100);
    plan.interval = Duration::from_secs(1);
    assert_eq!(until(&plan, |_| true).connected, 100);
    assert_eq!(getrlimit(Resource::Nofile).current, Some(hard));
}

#[test]
fn a_plan_that_contradicts_itself_is_refused_with_the_value() {
    let change: [fn(&mut Plan); 10] = [
        |it| it.users = 0,
        |it| it.users = 2_000_000,
        |it| it.duration = Duration::ZERO,
        |it| it.message.clear(),
        |it| it.numbered = true,
        |it| it.arrivals = Arrivals::Open { per_second: -1., spacing: Spacing::Uniform },
        |it| it.arrivals = Arrivals::Open { per_second: f64::NAN, spacing: Spacing::Uniform },
        |it| it.shape = Shape::Burst { every: Duration::ZERO },
        |it| it.protocol = Protocol::Http1(HttpRequest::get("no slash")),
        |it| it.local_addresses = vec!["::1".parse().unwrap()],
    ];
    let valid = plan(nobody(), 1);
    assert_eq!(valid.check(), Ok(()));
    for change in change {
        let mut plan = valid.clone();
        change(&mut plan);
        let error = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Plan(_)), "{error}");
    }
    let mut plan = valid.clone();
    plan.interval = MS;
    plan.arrivals = Arrivals::Open { per_second: 5., spacing: Spacing::Poisson };
    assert_eq!(plan.check(), Err(LoadPlanError::OpenInterval));
}
