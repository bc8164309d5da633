//! Each shape against a real server over the kernel's loopback. Counts are exact or have a lower
//! bound; no time has an upper bound.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::serving::{answering, echo, tcp, udp};
use towpath_load::{
    Answer, Arrivals, Ended, Phase, Plan, Protocol, Report, Shape, Snapshot, Spacing, Target, run,
};

const MS: Duration = Duration::from_millis(1);

/// A plan of `users` users for 200 ms.
fn plan(to: SocketAddr, users: usize) -> Plan {
    let mut plan = Plan::new(Target::from(to));
    plan.users = users;
    plan.duration = MS * 200;
    // A machine that is busy must not fail a test.
    plan.timeout = Duration::from_secs(30);
    plan.connect_timeout = Duration::from_secs(30);
    plan.grace = Duration::from_secs(30);
    plan
}

#[track_caller]
fn report(plan: &Plan) -> Report {
    run(plan, &AtomicBool::new(false), &mut |_| {}).expect("the plan is sound")
}

/// Every request was answered, and every figure says the same.
#[track_caller]
fn is_clean(report: &Report) {
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!(report.ended, Ended::Duration);
    assert!(report.sent > 0, "nothing was sent");
    assert_eq!(report.sent, report.received);
    assert_eq!(report.response.count(), report.received);
    assert_eq!(report.service.count(), report.received);
    assert_eq!(report.generator.lateness.count(), report.sent);
    assert_eq!(report.scheduled, report.sent + report.generator.unsent);
    let periods: u64 = report.periods.iter().map(|it| it.received).sum();
    assert_eq!(periods, report.received, "periods add up to the whole");
    assert!(report.response.mean() >= report.service.mean());
}

#[test]
fn a_closed_loop_sends_after_each_answer() {
    let plan = plan(tcp(echo), 5);
    let report = report(&plan);
    is_clean(&report);
    assert_eq!(report.connect.count(), 5);
    assert_eq!((report.connected, report.reconnects), (5, 0));
    assert_eq!(report.bytes_sent, report.sent * 6);
    assert_eq!(report.bytes_received, report.received * 6);
    assert!(report.duration >= plan.duration && report.cpu > Duration::ZERO);
}

#[test]
fn a_user_of_a_closed_loop_pauses_for_the_interval() {
    let mut plan = plan(tcp(echo), 4);
    plan.interval = MS * 30;
    let report = report(&plan);
    is_clean(&report);
    // A phase below 30 ms, then one request per 30 ms and answer: at most 7 in 200 ms.
    assert!(report.sent <= 4 * 7, "{} sent", report.sent);
}

#[test]
fn long_messages_come_back_whole() {
    let mut plan = plan(tcp(echo), 3);
    plan.message = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    is_clean(&report(&plan));
}

#[test]
fn several_requests_may_be_under_way_on_one_connection() {
    let mut plan = plan(tcp(echo), 2);
    plan.depth = 8;
    is_clean(&report(&plan));
}

#[test]
fn users_are_divided_among_threads() {
    let mut plan = plan(tcp(echo), 7);
    plan.threads = 3;
    let report = report(&plan);
    is_clean(&report);
    assert_eq!((report.connect.count(), report.connected), (7, 7));
}

#[test]
fn an_open_loop_sends_each_request_of_its_schedule() {
    for spacing in [Spacing::Uniform, Spacing::Poisson] {
        let mut plan = plan(tcp(echo), 20);
        plan.arrivals = Arrivals::Open { per_second: 500., spacing };
        plan.threads = 2;
        let report = report(&plan);
        is_clean(&report);
        match spacing {
            Spacing::Uniform => assert_eq!(report.scheduled, 100),
            // Equal seeds give equal schedules.
            Spacing::Poisson => assert_eq!(report.scheduled, self::report(&plan).scheduled),
        }
    }
}

#[test]
fn a_stall_of_the_server_shows_in_the_response_times_of_all_requests_that_were_due() {
    // Only one connection: while the server sleeps, requests are due and wait.
    let address = tcp(|mut stream| {
        use std::io::{Read, Write};
        let mut bytes = [0; 6];
        for number in 0.. {
            if stream.read_exact(&mut bytes).is_err() {
                return;
            }
            if number == 3 {
                std::thread::sleep(MS * 100);
            }
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let mut plan = plan(address, 1);
    plan.arrivals = Arrivals::Open { per_second: 200., spacing: Spacing::Uniform };
    let report = report(&plan);
    assert_eq!(report.sent, report.received);
    // 100 ms hold up the request itself and some 20 that are due every 5 ms meanwhile.
    assert!(report.response.count_above(MS * 50) >= 8, "{:?}", report.response.quantile(0.5));
    assert!(report.service.count_above(MS * 90) >= 1);
    assert!(report.generator.waited_for_user >= 10, "{}", report.generator.waited_for_user);
}

#[test]
fn a_warm_up_is_in_no_figure() {
    let mut plan = plan(tcp(echo), 1);
    plan.arrivals = Arrivals::Open { per_second: 100., spacing: Spacing::Uniform };
    plan.warmup = MS * 200;
    let report = report(&plan);
    is_clean(&report);
    assert_eq!(report.scheduled, 20);
    assert!(report.bytes_received >= 20 * 6);
}

#[test]
fn each_request_has_a_connection_of_its_own() {
    let mut plan = plan(tcp(echo), 3);
    plan.shape = Shape::ConnectEach;
    let closed = report(&plan);
    is_clean(&closed);
    assert!(closed.connect.count() >= closed.received);
    assert!(closed.service.min() >= closed.connect.min());
    plan.arrivals = Arrivals::Open { per_second: 100., spacing: Spacing::Uniform };
    let open = report(&plan);
    is_clean(&open);
    assert_eq!((open.scheduled, open.connect.count()), (20, 20));
}

#[test]
fn idle_users_send_one_heartbeat_each_round() {
    let mut plan = plan(tcp(echo), 40);
    plan.shape = Shape::Idle { heartbeat: MS * 50 };
    let report = report(&plan);
    is_clean(&report);
    assert_eq!(report.scheduled, 160);
}

#[test]
fn a_burst_is_sent_by_all_users_at_once() {
    let mut plan = plan(tcp(echo), 30);
    plan.shape = Shape::Burst { every: MS * 100 };
    let report = report(&plan);
    is_clean(&report);
    assert_eq!(report.scheduled, 60);
}

#[test]
fn streams_carry_the_message_in_each_direction() {
    let sink = tcp(|mut stream| {
        // All that was counted has been read once the server closes.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let mut plan = plan(sink, 2);
    plan.shape = Shape::StreamUp;
    let up = report(&plan);
    assert!(up.failures.is_empty(), "{:?}", up.failures);
    assert!(up.bytes_sent > 0 && up.bits_sent() > 0. && up.bytes_received == 0);
    assert!(up.duration >= plan.duration);

    plan.target = Target::from(tcp(|mut stream| {
        let _ = std::io::copy(&mut std::io::repeat(7), &mut stream);
    }));
    plan.shape = Shape::StreamDown;
    let down = report(&plan);
    assert!(down.failures.is_empty(), "{:?}", down.failures);
    assert!(down.bytes_received > 0 && down.bytes_sent == 0);

    plan.target = Target::from(tcp(echo));
    plan.shape = Shape::StreamBoth;
    let both = report(&plan);
    assert!(both.failures.is_empty(), "{:?}", both.failures);
    assert!(both.bytes_received > 0 && both.bytes_sent > 0);
}

#[test]
fn a_stream_repeats_the_message_without_a_gap() {
    use std::io::Read;
    use std::sync::mpsc;
    let (sender, receiver) = mpsc::channel();
    let address = tcp(move |mut stream| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    let mut plan = plan(address, 1);
    plan.shape = Shape::StreamUp;
    plan.duration = MS * 50;
    plan.message = (0..=250).collect();
    let report = report(&plan);
    let bytes = receiver.recv().expect("the server has read all");
    assert_eq!(bytes.len() as u64, report.bytes_sent);
    assert!(bytes.iter().zip((0..=250_u8).cycle()).all(|(got, sent)| *got == sent));
}

#[test]
fn datagrams_are_answered_with_and_without_numbers() {
    let mut plan = plan(udp(|_, bytes| Some(bytes.to_vec())), 3);
    plan.protocol = Protocol::Udp;
    is_clean(&report(&plan));
    plan.message = vec![b'x'; 1000];
    plan.numbered = true;
    plan.depth = 4;
    is_clean(&report(&plan));
}

#[test]
fn datagrams_stream_up() {
    let mut plan = plan(udp(|_, _| None), 1);
    plan.protocol = Protocol::Udp;
    plan.shape = Shape::StreamUp;
    plan.message = vec![0; 100];
    let report = report(&plan);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.sent > 0);
    assert_eq!(report.bytes_sent, report.sent * 100);
}

#[test]
fn http_is_spoken_on_connections_that_stay_and_reconnects_where_the_server_closes() {
    let staying = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let mut plan = plan(tcp(answering(staying)), 2);
    plan.protocol = Protocol::Http1 { path: "/".into(), host: None };
    let report_staying = report(&plan);
    is_clean(&report_staying);
    assert_eq!(report_staying.reconnects, 0);

    plan.target = Target::from(tcp(|mut stream| {
        use std::io::{Read, Write};
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end");
    }));
    let report_closing = report(&plan);
    is_clean(&report_closing);
    assert!(report_closing.reconnects > 0);
}

#[test]
fn redis_commands_are_sent_and_their_replies_found() {
    let mut plan = plan(tcp(answering(b"$3\r\nabc\r\n")), 2);
    plan.protocol = Protocol::Redis { words: vec!["GET".into(), "key".into()] };
    let report = report(&plan);
    is_clean(&report);
    assert_eq!(report.bytes_sent, report.sent * "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".len() as u64);
}

#[test]
fn answers_of_a_length_or_of_any_need_no_echo() {
    let mut plan = plan(tcp(answering(b"0123456789")), 2);
    plan.answer = Answer::Length { bytes: 10 };
    is_clean(&report(&plan));
    plan.answer = Answer::Any;
    is_clean(&report(&plan));
}

#[test]
fn users_send_from_the_local_addresses_in_turn() {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    let from: Arc<Mutex<BTreeMap<IpAddr, u32>>> = Arc::default();
    let seen = from.clone();
    let address = tcp(move |stream| {
        let peer = stream.peer_addr().expect("it is connected").ip();
        *seen.lock().unwrap().entry(peer).or_default() += 1;
        echo(stream);
    });
    let mut plan = plan(address, 10);
    let locals: Vec<IpAddr> = (2..4).map(|n| Ipv4Addr::new(127, 0, 0, n).into()).collect();
    plan.local_addresses = locals.clone();
    plan.threads = 2;
    is_clean(&report(&plan));
    let from = from.lock().unwrap();
    assert_eq!(from.keys().copied().collect::<Vec<_>>(), locals);
    assert!(from.values().all(|&count| count == 5), "{from:?}");
}

#[test]
fn snapshots_show_the_figures_so_far_and_stop_ends_the_run() {
    let mut plan = plan(tcp(echo), 4);
    plan.duration = Duration::from_secs(3600);
    plan.period = MS * 20;
    let stop = AtomicBool::new(false);
    let mut seen: Vec<Snapshot> = Vec::new();
    let report = run(&plan, &stop, &mut |now| {
        seen.push(now.clone());
        // Enough of both for sure, however slow the machine.
        let measured = seen.iter().filter(|it| it.phase == Phase::Measuring).count();
        stop.store(measured >= 3 && now.received > 0, Ordering::Relaxed);
    });
    let report = report.expect("the plan is sound");
    assert_eq!(report.ended, Ended::Stopped);
    assert!(report.duration < plan.duration && report.duration > MS * 50);
    let measured: Vec<_> = seen.iter().filter(|it| it.phase == Phase::Measuring).collect();
    assert!(measured.is_sorted_by_key(|it| it.received));
    let last = measured.last().expect("three of them");
    assert_eq!((last.users, last.connected), (4, 4));
    assert_eq!(last.response.count(), last.received);
    assert!(last.period.is_some() && report.received >= last.received);
    assert_eq!(report.received, report.response.count());
}
