//! Each shape of traffic. Counts are exact or have a lower bound; times have no upper bound,
//! because the machine may be busy.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use towpath_load::{
    Arrivals, Ended, Header, HttpRequest, Plan, PlannedAnswer, Protocol, Report, ReportSnapshot,
    RunPhase, Shape, Spacing, Target, run,
};

use crate::serving::{answering, echo, tcp, udp, until};

const MS: Duration = Duration::from_millis(1);

/// Returns a plan whose timeouts are not reached on a busy machine.
fn plan(to: SocketAddr, users: usize) -> Plan {
    let mut plan = Plan::new(Target::from(to));
    plan.users = users;
    plan.timeout = Duration::from_secs(30);
    plan.connect_timeout = Duration::from_secs(30);
    plan.grace = Duration::from_secs(30);
    plan
}

/// Counts the requests due in the measurement if the first is due at 0, and then one per `gap`.
fn due(report: &Report, gap: Duration) -> u64 {
    report.duration.as_nanos().div_ceil(gap.as_nanos()) as u64
}

/// Checks that every request was answered, and that all figures agree.
#[track_caller]
fn is_clean(report: &Report) {
    assert!(report.failures.is_empty(), "{:?}", report.failures);
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
    let report = until(&plan(tcp(echo), 5), |now| now.received >= 50);
    is_clean(&report);
    assert_eq!(report.connect.count(), 5);
    assert_eq!((report.connected, report.reconnects), (5, 0));
    assert_eq!(report.bytes_sent, report.sent * 6);
    assert_eq!(report.bytes_received, report.received * 6);
    assert!(report.cpu > Duration::ZERO);
}

#[test]
fn the_duration_ends_a_run() {
    let mut plan = plan(tcp(echo), 1);
    plan.duration = MS * 60;
    let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).expect("the plan is sound");
    assert_eq!(report.ended, Ended::Duration);
    assert_eq!(report.duration, plan.duration);
    assert_eq!(report.periods.iter().map(|it| it.length).sum::<Duration>(), plan.duration);
}

#[test]
fn a_user_of_a_closed_loop_pauses_for_the_interval() {
    let mut plan = plan(tcp(echo), 4);
    plan.interval = MS * 20;
    let report = until(&plan, |now| now.received >= 20);
    is_clean(&report);
    // At most one request per user and interval of 20 ms.
    let most = 4 * due(&report, plan.interval);
    assert!(report.sent <= most, "{} sent, expected {most} at most", report.sent);
}

#[test]
fn long_messages_come_back_whole() {
    let mut plan = plan(tcp(echo), 3);
    plan.message = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    is_clean(&until(&plan, |now| now.received >= 6));
}

#[test]
fn several_requests_may_be_under_way_on_one_connection() {
    let mut plan = plan(tcp(echo), 2);
    plan.depth = 8;
    is_clean(&until(&plan, |now| now.received >= 100));
}

#[test]
fn requests_that_are_due_at_once_are_one_write() {
    let (sender, receiver) = mpsc::channel();
    let address = tcp(move |mut stream| {
        let mut bytes = [0; 16 * 1024];
        while let Ok(len @ 1..) = stream.read(&mut bytes) {
            let _ = sender.send(len);
            if stream.write_all(&bytes[..len]).is_err() {
                return;
            }
        }
    });
    let mut plan = plan(address, 1);
    plan.depth = 16;
    is_clean(&until(&plan, |now| now.received >= 160));
    let reads: Vec<usize> = receiver.try_iter().collect();
    // The server answers each read at once, so that the answers allow as many new requests at once.
    assert!(reads.iter().all(|&len| len == 16 * 6), "{reads:?}");
}

#[test]
fn a_limited_number_of_requests_is_sent_exactly() {
    let served = Arc::new(AtomicU64::new(0));
    let counter = served.clone();
    let address = tcp(move |mut stream| {
        let mut bytes = [0; 6];
        while stream.read_exact(&mut bytes).is_ok() {
            counter.fetch_add(1, Relaxed);
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let open = Arrivals::Open { per_second: 2000., spacing: Spacing::Poisson };
    let cases = [
        (Shape::Request, Arrivals::Closed, 4),
        (Shape::Request, open, 1),
        (Shape::ConnectEach, Arrivals::Closed, 1),
        (Shape::Burst { every: MS }, Arrivals::Closed, 1),
    ];
    for (shape, arrivals, depth) in cases {
        served.store(0, Relaxed);
        let mut plan = plan(address, 5);
        (plan.shape, plan.arrivals, plan.depth) = (shape, arrivals, depth);
        plan.threads = 2;
        plan.requests = Some(101);
        plan.duration = Duration::from_secs(3600);
        let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).expect("the plan is sound");
        is_clean(&report);
        assert_eq!((report.ended, report.sent), (Ended::Requests, 101), "{shape:?}");
        assert_eq!(served.load(Relaxed), 101, "{shape:?}");
        assert!(report.duration < plan.duration && report.duration >= report.service.min());
    }
}

#[test]
fn a_pause_holds_on_the_next_connection_as_well() {
    let address = tcp(|mut stream| {
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let mut plan = plan(address, 4);
    plan.protocol = Protocol::Http1(HttpRequest::get("/"));
    plan.interval = MS * 20;
    let report = until(&plan, |now| now.received >= 20);
    is_clean(&report);
    let most = 4 * due(&report, plan.interval);
    assert!(report.sent <= most, "{} sent, expected {most} at most", report.sent);
}

#[test]
fn users_are_divided_among_threads() {
    let mut plan = plan(tcp(echo), 7);
    plan.threads = 3;
    let report = until(&plan, |now| now.received >= 70);
    is_clean(&report);
    assert_eq!((report.connect.count(), report.connected), (7, 7));
}

#[test]
fn an_open_loop_sends_each_request_of_its_schedule() {
    let mut plan = plan(tcp(echo), 20);
    plan.arrivals = Arrivals::Open { per_second: 500., spacing: Spacing::Uniform };
    let report = until(&plan, |now| now.received >= 50);
    is_clean(&report);
    assert_eq!(report.scheduled, due(&report, MS * 2));
}

#[test]
fn poisson_arrivals_are_divided_among_threads() {
    let mut plan = plan(tcp(echo), 20);
    plan.arrivals = Arrivals::Open { per_second: 500., spacing: Spacing::Poisson };
    plan.threads = 2;
    is_clean(&until(&plan, |now| now.received >= 50));
}

#[test]
fn a_stall_of_the_server_shows_in_the_response_times_of_all_requests_that_were_due() {
    // Use a single connection, so that requests wait while the server sleeps.
    let address = tcp(|mut stream| {
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
    let report = until(&plan, |now| now.received >= 40);
    is_clean(&report);
    // A stall of 100 ms delays its own request and some 20 requests that become due every 5 ms.
    let slow = report.response.count_above(MS * 50);
    assert!(slow >= 8, "{slow} of {}", report.received);
    assert!(report.service.count_above(MS * 90) >= 1);
    assert!(report.generator.waited_for_user >= 10, "{}", report.generator.waited_for_user);
}

#[test]
fn a_warm_up_is_in_no_figure() {
    let served = Arc::new(AtomicU64::new(0));
    let counter = served.clone();
    let address = tcp(move |mut stream| {
        let mut bytes = [0; 6];
        while stream.read_exact(&mut bytes).is_ok() {
            counter.fetch_add(1, Relaxed);
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let mut plan = plan(address, 1);
    plan.arrivals = Arrivals::Open { per_second: 100., spacing: Spacing::Uniform };
    plan.warmup = MS * 200;
    let report = until(&plan, |now| now.received >= 10);
    is_clean(&report);
    assert_eq!(report.scheduled, due(&report, MS * 10));
    assert_eq!(served.load(Relaxed), 20 + report.sent);
}

#[test]
fn each_request_has_a_connection_of_its_own() {
    let mut plan = plan(tcp(echo), 3);
    plan.shape = Shape::ConnectEach;
    let closed = until(&plan, |now| now.received >= 10);
    is_clean(&closed);
    assert_eq!(closed.connect.count(), closed.received);
    assert!(closed.service.min() >= closed.connect.min());
    plan.arrivals = Arrivals::Open { per_second: 100., spacing: Spacing::Uniform };
    let open = until(&plan, |now| now.received >= 10);
    is_clean(&open);
    assert_eq!((open.scheduled, open.connect.count()), (due(&open, MS * 10), open.sent));
}

#[test]
fn idle_users_send_one_heartbeat_each_round() {
    let mut plan = plan(tcp(echo), 40);
    let heartbeat = MS * 50;
    plan.shape = Shape::Idle { heartbeat };
    let report = until(&plan, |now| now.received >= 80);
    is_clean(&report);
    let rounds = due(&report, heartbeat);
    let possible = 40 * (rounds - 1)..=40 * rounds;
    assert!(possible.contains(&report.scheduled), "{} in {rounds} rounds", report.scheduled);
}

#[test]
fn a_burst_is_sent_by_all_users_at_once() {
    let mut plan = plan(tcp(echo), 30);
    plan.shape = Shape::Burst { every: MS * 50 };
    let report = until(&plan, |now| now.received >= 60);
    is_clean(&report);
    assert_eq!(report.scheduled, 30 * due(&report, MS * 50));
}

#[test]
fn streams_carry_bytes_in_each_direction() {
    const ENOUGH: u64 = 1 << 20;
    let sink = tcp(|mut stream| {
        // Close only after all counted bytes have been read.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let mut plan = plan(sink, 2);
    plan.shape = Shape::StreamUp;
    let up = until(&plan, |now| now.bytes_sent >= ENOUGH);
    assert!(up.failures.is_empty(), "{:?}", up.failures);
    assert!(up.bits_sent() > 0. && up.bytes_received == 0);

    plan.target = Target::from(tcp(|mut stream| {
        let _ = std::io::copy(&mut std::io::repeat(7), &mut stream);
    }));
    plan.shape = Shape::StreamDown;
    let down = until(&plan, |now| now.bytes_received >= ENOUGH);
    assert!(down.failures.is_empty() && down.bytes_sent == 0, "{:?}", down.failures);

    plan.target = Target::from(tcp(echo));
    plan.shape = Shape::StreamBoth;
    let both = until(&plan, |now| now.bytes_received >= ENOUGH);
    assert!(both.failures.is_empty(), "{:?}", both.failures);
    assert!(both.bytes_sent >= both.bytes_received);
}

#[test]
fn a_stream_repeats_the_message_without_a_gap() {
    let (sender, receiver) = mpsc::channel();
    let address = tcp(move |mut stream| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    let mut plan = plan(address, 1);
    plan.shape = Shape::StreamUp;
    plan.message = (0..=250).collect();
    let report = until(&plan, |now| now.bytes_sent >= 1 << 20);
    let bytes = receiver.recv().expect("the server has read all");
    assert!(bytes.len() as u64 >= report.bytes_sent);
    assert!(bytes.iter().zip((0..=250_u8).cycle()).all(|(got, sent)| *got == sent));
}

#[test]
fn datagrams_are_answered_with_and_without_numbers() {
    let mut plan = plan(udp(|_, bytes| Some(bytes.to_vec())), 3);
    plan.protocol = Protocol::Udp;
    is_clean(&until(&plan, |now| now.received >= 30));
    plan.message = vec![b'x'; 1000];
    plan.numbered = true;
    plan.depth = 4;
    is_clean(&until(&plan, |now| now.received >= 30));
}

#[test]
fn datagrams_stream_up() {
    let mut plan = plan(udp(|_, _| None), 1);
    plan.protocol = Protocol::Udp;
    plan.shape = Shape::StreamUp;
    plan.message = vec![0; 100];
    let report = until(&plan, |now| now.sent >= 100);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!(report.bytes_sent, report.sent * 100);
}

#[test]
fn http_is_spoken_on_connections_that_stay() {
    let mut plan = plan(tcp(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")), 2);
    plan.protocol = Protocol::Http1(HttpRequest::get("/"));
    let report = until(&plan, |now| now.received >= 20);
    is_clean(&report);
    assert_eq!(report.reconnects, 0);
}

#[test]
fn http_requests_have_their_method_headers_and_body() {
    let (sender, receiver) = mpsc::channel();
    let address = tcp(move |mut stream| {
        let mut request = Vec::new();
        let mut bytes = [0; 1000];
        while !request.ends_with(b"\r\n\r\nthe body") {
            let len = stream.read(&mut bytes).expect("the request");
            request.extend_from_slice(&bytes[..len]);
        }
        let _ = sender.send(String::from_utf8(request).expect("text"));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let mut plan = plan(address, 1);
    let mut request = HttpRequest::get("/p?q=1");
    request.method = "POST".into();
    request.headers = vec![Header::parse("Host: example.net").expect("a header")];
    request.body = b"the body".to_vec();
    plan.protocol = Protocol::Http1(request);
    plan.requests = Some(1);
    is_clean(&run(&plan, &AtomicBool::new(false), &mut |_| {}).expect("the plan is sound"));
    let got = receiver.recv().expect("a request");
    assert!(got.starts_with("POST /p?q=1 HTTP/1.1\r\n"), "{got}");
    assert!(got.contains("\r\nHost: example.net\r\nContent-Length: 8\r\n"), "{got}");
    assert_eq!(got.matches("Host:").count(), 1);
}

#[test]
fn http_users_connect_again_where_the_server_announces_its_close() {
    let address = tcp(|mut stream| {
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end");
    });
    let mut plan = plan(address, 2);
    plan.protocol = Protocol::Http1(HttpRequest::get("/"));
    let report = until(&plan, |now| now.received >= 20);
    is_clean(&report);
    assert!(report.reconnects >= 18, "{}", report.reconnects);
}

#[test]
fn redis_commands_are_sent_and_their_replies_found() {
    let mut plan = plan(tcp(answering(b"$3\r\nabc\r\n")), 2);
    plan.protocol = Protocol::Redis { words: vec!["GET".into(), "key".into()] };
    let report = until(&plan, |now| now.received >= 20);
    is_clean(&report);
    assert_eq!(report.bytes_sent, report.sent * "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".len() as u64);
}

#[test]
fn random_keys_differ_from_request_to_request() {
    let keys: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = keys.clone();
    let address = tcp(move |mut stream| {
        let mut command = [0; "*2\r\n$3\r\nGET\r\n$14\r\nk:000000000000\r\n".len()];
        while stream.read_exact(&mut command).is_ok() {
            let text = String::from_utf8_lossy(&command);
            let key = text.split("\r\n").nth(4).expect("a key").to_owned();
            seen.lock().unwrap().push(key);
            if stream.write_all(b"$-1\r\n").is_err() {
                return;
            }
        }
    });
    let mut plan = plan(address, 2);
    plan.protocol = Protocol::Redis { words: vec!["GET".into(), "k:__rand_int__".into()] };
    plan.depth = 8;
    plan.requests = Some(100);
    is_clean(&run(&plan, &AtomicBool::new(false), &mut |_| {}).expect("the plan is sound"));
    let keys = keys.lock().unwrap();
    assert!(keys.iter().all(|key| key[2..].parse::<u64>().is_ok_and(|it| it < 1_000_000)));
    let different: std::collections::BTreeSet<_> = keys.iter().collect();
    assert!(different.len() > 95, "{} of {}", different.len(), keys.len());
}

#[test]
fn answers_of_a_length_or_of_any_need_no_echo() {
    let mut plan = plan(tcp(answering(b"0123456789")), 2);
    plan.answer = PlannedAnswer::Length { bytes: 10 };
    is_clean(&until(&plan, |now| now.received >= 20));
    plan.answer = PlannedAnswer::Any;
    is_clean(&until(&plan, |now| now.received >= 20));
}

#[test]
fn users_send_from_the_local_addresses_in_turn() {
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
    // A user has an answer only if the server has seen its address.
    plan.shape = Shape::Burst { every: MS * 10 };
    is_clean(&until(&plan, |now| now.received >= 10));
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
    let mut seen: Vec<ReportSnapshot> = Vec::new();
    let report = run(&plan, &stop, &mut |now| {
        seen.push(now.clone());
        let measured = seen.iter().filter(|it| it.phase == RunPhase::Measuring).count();
        stop.store(measured >= 3 && now.received > 0, Relaxed);
    });
    let report = report.expect("the plan is sound");
    assert_eq!(report.ended, Ended::Stopped);
    assert!(report.duration < plan.duration && report.duration > MS * 50);
    let measured: Vec<_> = seen.iter().filter(|it| it.phase == RunPhase::Measuring).collect();
    assert!(measured.is_sorted_by_key(|it| it.received));
    let last = measured.last().expect("three of them");
    assert_eq!((last.users, last.connected), (4, 4));
    assert_eq!(last.response.count(), last.received);
    assert!(last.period.is_some() && report.received >= last.received);
    is_clean(&report);
}

#[test]
fn reports_of_two_runs_merge_without_loss() {
    let plan = plan(tcp(echo), 2);
    let first = until(&plan, |now| now.received >= 20);
    let second = until(&plan, |now| now.received >= 20);
    let mut both = first.clone();
    both.merge(&second);
    is_clean(&both);
    assert_eq!(both.received, first.received + second.received);
    assert_eq!(both.duration, first.duration + second.duration);
    assert_eq!(both.response.max(), first.response.max().max(second.response.max()));
    assert_eq!(both.periods.last().map(|it| it.at), Some(both.duration));
}

#[test]
fn a_report_is_one_json_object_with_the_plan_and_all_histograms() {
    let report = until(&plan(tcp(echo), 2), |now| now.received >= 20);
    let value = serde_json::to_value(&report).expect("a report has a JSON form");
    assert_eq!(value["plan"]["users"], 2);
    assert_eq!(value["plan"]["message"]["begins"], r"hello\n");
    assert_eq!(value["ended"], "stopped");
    for name in ["response", "service", "connect"] {
        assert!(value[name]["p99_us"].as_f64().is_some_and(|it| it > 0.), "{name}");
    }
    assert_eq!(value["response"]["count"], report.received);
    assert!(value["generator"]["lateness"]["buckets"].is_array());
}

#[test]
fn a_panic_of_the_watcher_ends_the_threads_and_goes_on() {
    let mut plan = plan(tcp(echo), 2);
    plan.duration = Duration::from_secs(3600);
    plan.period = MS * 5;
    let caught = std::panic::catch_unwind(|| {
        run(&plan, &AtomicBool::new(false), &mut |_| panic!("the view is broken"))
    });
    assert!(caught.is_err());
}
