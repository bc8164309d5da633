//! Tests of the four examples: compares their reports with golden files, and checks their main
//! results.
//!
//! `TOWPATH_GOLDEN=write` updates the files of tests/golden, as for the scenarios.

use std::net::Ipv4Addr;
use std::path::Path;

use towpath_sim::{
    Bql, CardOptions, Example, ExampleReport, Latency, Load, LoadTransport, OnOffOptions,
    PingOptions, Rate, SendMode, SendOptions, TcOptions, Time, qdisc_words, read, svg, text,
};

const MS: u64 = 1_000_000;

fn ms(number: u64) -> Time {
    Time(number * MS)
}

fn load(from: u64, to: u64) -> Load {
    Load { from: ms(from), to: ms(to), phases: None }
}

fn card(mbit: u64, qdisc: &str) -> CardOptions {
    CardOptions {
        rate: Rate(mbit * 1_000_000),
        ring: 256,
        tx_frames: None,
        tx_delay: Time(50_000),
        qdisc: qdisc.to_owned(),
        bql: Bql::Both,
        every: ms(500),
        delay: Time(100_000),
        real: None,
    }
}

fn ping(qdisc: &str) -> PingOptions {
    PingOptions {
        remote: Ipv4Addr::new(10, 0, 1, 2),
        interval: ms(500),
        data_rate: Some(Rate(120_000_000)),
        size: 1400,
        load: load(2_000, 4_000),
        duration: ms(6_000),
        card: card(100, qdisc),
    }
}

fn onoff(transport: LoadTransport) -> OnOffOptions {
    OnOffOptions {
        client: Ipv4Addr::new(10, 0, 1, 11),
        server: Ipv4Addr::new(10, 0, 1, 22),
        transport,
        data_rate: Rate(120_000_000),
        size: 1400,
        phases: [ms(1_000), ms(1_000)],
        is_random: false,
        load: load(2_000, 5_000),
        ping: Some(ms(200)),
        duration: ms(6_000),
        card: card(100, "pfifo_fast"),
    }
}

fn send(mode: SendMode) -> SendOptions {
    let packets = if mode == SendMode::Write { 200_000 } else { 30_000 };
    let card = CardOptions { every: ms(10), ..card(1_000, "pfifo_fast") };
    SendOptions {
        mode,
        packets,
        size: 64,
        poll: Time(10_000),
        server: Ipv4Addr::new(10, 0, 1, 2),
        data_rate: None,
        duration: ms(1_000),
        card,
    }
}

fn tc(qdisc: &str, transport: LoadTransport) -> TcOptions {
    TcOptions {
        source: Ipv4Addr::new(10, 0, 1, 1),
        server: Ipv4Addr::new(10, 0, 2, 1),
        in_rate: Rate(1_000_000_000),
        transport,
        data_rate: Rate(150_000_000),
        load: load(2_000, 6_000),
        ping: Some(ms(250)),
        duration: ms(7_000),
        card: CardOptions { delay: ms(1), ..card(100, qdisc) },
    }
}

fn run(example: Result<Example, String>) -> ExampleReport {
    example.expect("options that fit").run(None, 1, &|_| {}).expect("no limit is reached")
}

/// 64-bit FNV-1a.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn check(name: &str, example: Result<Example, String>) {
    let mut report = run(example);
    // Hide the version, so that a release does not change the result.
    report.report.version = "any";
    let found = format!("{}\nJSON: {:016x}\n", text(&report), digest(&report.json()));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("TOWPATH_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::write(&path, &found).expect("the golden file");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} gave\n{wanted}\nand gives now\n{found}");
}

#[test]
fn ping_gives_what_it_gave() {
    check("example-ping", ping("pfifo_fast").example());
}

#[test]
fn onoff_gives_what_it_gave() {
    check("example-onoff", onoff(LoadTransport::Udp).example());
}

#[test]
fn send_gives_what_it_gave() {
    check("example-send", send(SendMode::Write).example());
}

#[test]
fn sendto_gives_what_it_gave() {
    check("example-sendto", send(SendMode::Sendto).example());
}

#[test]
fn tc_gives_what_it_gave() {
    check("example-tc", tc("fq_codel", LoadTransport::Tcp).example());
}

/// Returns the median latencies under load, without and with byte queue limits.
fn medians(report: &ExampleReport) -> [f64; 2] {
    let [off, on] = &report.latency[..] else { panic!("two variants: {:?}", report.latency) };
    [off, on].map(|latency| latency.under_load.expect("replies").p50_s)
}

#[test]
fn limits_take_the_ring_out_of_the_latency_and_leave_the_rate() {
    for qdisc in ["fq_codel", "codel", "cobalt"] {
        let report = run(tc(qdisc, LoadTransport::Tcp).example());
        let [off, on] = medians(&report);
        // A full ring takes 31.5 ms at 100 Mbit/s: 256 packets of 1514 bytes and 24 bytes of
        // overhead. FQ-CoDel serves echo requests first; other disciplines queue them behind the
        // connection's packets.
        let is_fair = qdisc == "fq_codel";
        assert!(off > if is_fair { 0.025 } else { 0.015 }, "{qdisc}: {off}");
        assert!(on < if is_fair { 0.005 } else { off / 1.5 }, "{qdisc}: {off} and {on}");
        let [off, on] = &report.latency[..] else { panic!("two variants") };
        let rate = |latency: &Latency| latency.delivered_bps;
        assert!(rate(on) > 0.98 * rate(off), "{qdisc}: {} and {}", rate(off), rate(on));
        assert!(on.device_bytes < 10_000. && off.device_bytes > 100_000., "{off:?}");
    }
}

#[test]
fn limits_alone_do_not_cure_a_long_queue() {
    let [off, on] = medians(&run(ping("pfifo_fast limit 1000").example()));
    let [cured_off, cured] = medians(&run(ping("fq_codel").example()));
    assert!(off > on && on > 0.05, "{off} {on}");
    assert!(cured_off > 0.02 && cured < 0.002, "{cured_off} {cured}");
}

#[test]
fn a_connection_fills_the_queue_of_its_host_in_each_phase() {
    let report = run(onoff(LoadTransport::Tcp).example());
    for latency in &report.latency {
        let [idle, loaded] =
            [latency.without_load, latency.under_load].map(|trips| trips.expect("replies").p50_s);
        assert!(loaded > 10. * idle, "{}: {idle} and {loaded}", latency.variant);
    }
    let random = OnOffOptions { is_random: true, ..onoff(LoadTransport::Udp) };
    let other = random.example().expect("it fits").run(Some(7), 1, &|_| {}).expect("a run");
    assert_ne!(run(random.example()).json(), other.json(), "the seed decides on the phases");
}

#[test]
fn frames_leave_at_the_line_rate_unless_their_writer_looks_too_seldom() {
    let with = |poll_ns| SendOptions { poll: Time(poll_ns), ..send(SendMode::Write) };
    let report = run(with(1_000).example());
    for latency in &report.latency {
        // 88 bytes on the wire take 704 ns.
        assert!((1_400_000. ..1_421_000.).contains(&latency.sent_per_s), "{latency:?}");
    }
    let runs = &report.report.runs;
    assert!(runs.iter().all(|run| run.flows[0].received == 200_000));
    let [off, on] = [0, 1].map(|at| report.latency[at].device_bytes);
    assert!(off > 14_000. && on < 8_000., "{off} and {on}");
    // The limit shrinks after a second. A writer that polls every 10 us then finds the ring empty,
    // because the limit assumes a sender that is woken at once.
    let late = run(SendOptions { packets: 4_000_000, ..with(10_000) }.example()).latency;
    assert!(late[0].sent_per_s > 1_400_000. && late[1].sent_per_s < 1_300_000., "{late:?}");
    let slow = run(with(MS).example()).latency;
    assert!(slow[0].sent_per_s < 300_000., "256 frames each millisecond: {slow:?}");
}

#[test]
fn frames_have_charts_and_samples_in_a_run_without_a_line() {
    let all = SendOptions { packets: 20_000, ..send(SendMode::Write) };
    let report =
        run(SendOptions { card: CardOptions { every: ms(1_000), ..all.card }, ..all }.example());
    let [off, on] = [0, 1].map(|at| report.latency[at].device_bytes);
    assert!(off > 12_000. && on < 8_000., "{off} and {on} after 14 ms");
    let page = report.html();
    assert!(page.contains("<b>Bytes in the device</b>") && page.contains("Side by side"));
    let picture = svg(&report.report);
    assert!(picture.contains("Bytes in the device") && !picture.contains("-0\""), "{picture}");
}

#[test]
fn the_stack_waits_where_no_discipline_is() {
    let report = run(ping("none").example());
    assert!(report.latency.iter().all(|latency| latency.queue_packets < Some(1.)));
    let dropped = report.report.runs.iter().map(|run| run.links[0].queue_dropped);
    assert_eq!(dropped.collect::<Vec<_>>(), [0, 0]);
    let [off, on] = [0, 1].map(|at| report.latency[at].device_bytes);
    assert!(off > 300_000. && on < 10_000., "{off} and {on}");
}

#[test]
fn the_scenario_of_an_example_gives_the_same_runs() {
    for example in [ping("codel").example(), tc("fq_codel", LoadTransport::Udp).example()] {
        let example = example.expect("it fits");
        let plans = read(example.scenario.as_deref().expect("a scenario")).expect("it is read");
        let options = towpath_sim::BatchOptions {
            seed: None,
            runs: 1,
            captures: None,
            traces: false,
            threads: 2,
        };
        let report = towpath_sim::run_all(&plans, options, &|_| {}).expect("a run");
        let own = example.run(None, 2, &|_| {}).expect("a run");
        assert_eq!(towpath_sim::csv(&report), towpath_sim::csv(&own.report));
        assert!(own.series().contains("bql on,1,"));
        assert!(own.series().contains(",ping,seq 3,time_s,"));
        assert!(own.html().contains("Bytes in the device") && own.html().contains("Under load"));
    }
}

#[test]
fn names_of_ns3_stand_for_disciplines() {
    for (name, words) in [("PfifoFast", "pfifo_fast"), ("FqCoDel", "fq_codel"), ("PIE", "pie")] {
        assert_eq!(qdisc_words(name).as_deref(), Ok(words));
    }
    assert!(qdisc_words("ARED").expect("red").starts_with("red "));
    assert!(qdisc_words("fqcodel").expect_err("a typo").contains("fq_codel"));
}
