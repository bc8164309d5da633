//! Tests of runs in real time without devices, and of messages about devices. Runs with devices of
//! the kernel are in `tests/tests/realtime.rs`.

use std::cell::Cell;

use towpath_sim::{
    BatchOptions, RealPorts, RealtimeOptions, Report, Time, html, json, read, run_all,
    run_in_real_time, table,
};

const PINGS: &str = r#"
title = "Pings"
duration = "40ms"
topology = { kind = "pair", rate = "10mbit", delay = "1ms" }
flow = [{ kind = "ping", from = "a", to = "b", interval = "5ms", stop = "30ms" }]
"#;

const REAL: &str = r#"
title = "A real host"
duration = "40ms"
[[host]]
name = "here"
[[host]]
name = "there"
address = "10.0.7.1"
device = "packet:eth9"
[[link]]
between = ["here", "there"]
qdisc = "fq_codel"
device = { ring = 64, bql = true }
"#;

const BATCH: BatchOptions<'_> =
    BatchOptions { seed: None, runs: 1, captures: None, traces: false, threads: 1 };

fn run(text: &str, max_lag: Time) -> Result<Report, String> {
    let plans = read(text).expect("a valid scenario");
    let options = RealtimeOptions { batch: BATCH, max_lag, macs: [2, 7, 7, 7] };
    let done = Cell::new(0.);
    let report = run_in_real_time(&plans, options, &mut RealPorts::new(), &|share| done.set(share));
    assert!(report.is_err() || done.get() == 1.);
    report
}

#[test]
fn the_clock_changes_no_result() {
    let virtual_time = run_all(&read(PINGS).expect("valid"), BATCH, &|_| {}).expect("no limit");
    let real_time = run(PINGS, Time(u64::MAX)).expect("no limit");
    let latencies = |report: &Report| {
        let flow = &report.runs[0].flows[0];
        (flow.sent, flow.received, flow.points.clone())
    };
    assert_eq!(latencies(&real_time), latencies(&virtual_time));
    assert_eq!(real_time.runs[0].events, virtual_time.runs[0].events);
    assert!(virtual_time.runs[0].realtime.is_none());
}

#[test]
fn a_run_beyond_the_limit_of_the_lag_is_invalid() {
    // Each event is called some ns late.
    let report = run(PINGS, Time(0)).expect("no limit of the world");
    let realtime = report.runs[0].realtime.as_ref().expect("real time");
    assert!(!realtime.is_valid && realtime.late > 0);
    assert!(table(&report).contains("INVALID: "), "{}", table(&report));

    let report = run(PINGS, Time(u64::MAX)).expect("no limit of the world");
    let realtime = report.runs[0].realtime.as_ref().expect("real time");
    assert!(realtime.is_valid && realtime.late == 0);
    assert_eq!(realtime.lag.count, report.runs[0].events);
    let events: u64 = realtime.histogram.iter().map(|bucket| bucket.events).sum();
    assert_eq!(events, realtime.lag.count);
    for text in [table(&report), html(&report)] {
        assert!(text.contains("events behind the clock: p50 "), "{text}");
        assert!(!text.contains("INVALID"), "{text}");
    }
    assert!(json(&report).contains("\"is_valid\": true"));
}

#[test]
fn real_hosts_need_real_time_and_their_device() {
    let plans = read(REAL).expect("a valid scenario without flows");
    let error = run_all(&plans, BATCH, &|_| {}).expect_err("there is no device in virtual time");
    let wanted = "line 9: `there` is behind the device `packet:eth9`";
    assert!(error.contains(wanted) && error.contains("--realtime"), "{error}");
    let error = run(REAL, Time(u64::MAX)).expect_err("the device is not open");
    assert!(error.contains("line 9: the device `packet:eth9` is not open"), "{error}");
}

#[test]
fn keys_that_mean_nothing_for_a_real_host_are_refused() {
    let flow = |from: &str, to: &str, more: &str| {
        format!("{REAL}[[flow]]\nkind = \"ping\"\nfrom = \"{from}\"\nto = \"{to}\"\n{more}")
    };
    let with = |old: &str, new: &str| REAL.replace(old, new);
    let cases = [
        (with("device = \"", "tcp = \"sack=off\"\ndevice = \""), "`tcp` means nothing there"),
        (with("ring = 64", "ring = 0"), "`ring = 0`: expected 1 to 65536 frames"),
        (with("ring = 64", "frames = 4"), "`frames`, `delay` and `overhead` are properties"),
        (with("\"10.0.7.1\"", "\"192.0.2.1\""), "unless a prefix length is given"),
        (with("name = \"here\"", "name = \"here\"\ngateway = \"x\""), "`gateway` is `x`"),
        (flow("there", "there", ""), "from `there` to itself"),
        (flow("here", "there", "port = 0"), "`port` is 0"),
        (
            flow("here", "there", "").replace("address = \"10.0.7.1\"\n", ""),
            "`there`, which has no `address`",
        ),
    ];
    for (text, wanted) in cases {
        let error = read(&text).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{error}");
    }
    let simulated = PINGS.replace("interval", "port = 80, interval");
    let error = read(&simulated).expect_err("no host is real").to_string();
    assert!(error.contains("`port` is for a flow with a real host"), "{error}");
    assert!(read(&flow("here", "there", "port = 80")).is_ok());
}
