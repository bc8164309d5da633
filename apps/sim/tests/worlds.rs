//! Properties of runs: delivery, limits, and independence of the number of threads.

use std::path::PathBuf;

use towpath_sim::{BatchOptions, Report, csv, html, json, read, run_all, table};

fn run(text: &str, options: BatchOptions<'_>) -> Result<Report, String> {
    run_all(&read(text).expect("a scenario"), options, &|_| {})
}

const ONE: BatchOptions<'_> =
    BatchOptions { seed: None, runs: 1, captures: None, traces: true, threads: 1 };

fn pair(link: &str, flow: &str) -> String {
    format!(
        "title = \"t\"\nduration = \"20s\"\n[topology]\nkind = \"pair\"\n{link}\n[[flow]]\n\
         from = \"a\"\nto = \"b\"\n{flow}\n"
    )
}

#[test]
fn a_transfer_arrives_whole_over_a_link_that_does_everything() {
    let link = "rate = \"20mbit\"\ndelay = \"5ms\"\njitter = \"1ms\"\nloss = \"1%\"\n\
                reorder = \"1%\"\nduplicate = \"1%\"\ncorrupt = \"1%\"";
    let text = pair(link, "kind = \"bulk\"\nbytes = \"3MB\"");
    let report = run(&text, ONE).expect("a run");
    let flow = &report.runs[0].flows[0];
    assert_eq!((flow.bytes, &flow.failure), (3_000_000, &None));
    assert!(flow.completion_s.is_some() && flow.retransmitted_bytes > Some(0));
    for link in &report.runs[0].links {
        assert!(link.lost > 0 && link.delivered > 1_000, "{link:?}");
    }
}

#[test]
fn datagrams_and_echoes_are_counted_with_their_delays() {
    let link = "rate = \"1mbit\"\ndelay = \"30ms\"";
    let cbr = pair(link, "kind = \"cbr\"\nrate = \"100kbit\"\nsize = 500");
    let flow = &run(&cbr, ONE).expect("a run").runs[0].flows[0];
    // 25 datagrams per second for 20 s; the last one is sent 40 ms before the end.
    assert_eq!((flow.sent, flow.received), (500, 500));
    // Transmission of 542 bytes at 1 Mbit/s, plus propagation delay.
    let latency = flow.latency.as_ref().expect("delays");
    assert!((latency.p50_s - 0.034336).abs() < 0.0015, "{latency:?}");
    let ping = pair(link, "kind = \"ping\"\ninterval = \"200ms\"");
    let flow = &run(&ping, ONE).expect("a run").runs[0].flows[0];
    assert_eq!((flow.sent, flow.received), (100, 100));
    assert!((flow.latency.as_ref().expect("round trips").p50_s - 0.0616).abs() < 0.002);
}

#[test]
fn a_request_takes_a_round_trip_and_the_time_of_its_answer() {
    let link = "rate = \"8mbit\"\ndelay = \"10ms\"";
    let flow = pair(link, "kind = \"request\"\nresponse = \"1kB\"\nthink = \"10ms\"");
    let report = run(&flow, ONE).expect("a run");
    let flow = &report.runs[0].flows[0];
    assert!(flow.sent > 400 && flow.sent - flow.received <= 1, "{} {}", flow.sent, flow.received);
    assert_eq!(flow.bytes, flow.received * 1_000);
    // 166 bytes of request and 1066 of response at one byte per microsecond, plus 20 ms.
    assert!((flow.latency.as_ref().expect("latencies").p50_s - 0.0212).abs() < 0.001);
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let flow = "kind = \"onoff\"\non = \"300ms\"\noff = \"300ms\"\nrate = \"2mbit\"";
    let text = pair("rate = \"4mbit\"\ndelay = \"5ms\"\nloss = \"1%\"", flow);
    let with = |threads| run(&text, BatchOptions { runs: 3, threads, ..ONE }).expect("runs");
    let (one, three) = (with(1), with(3));
    assert!(json(&one) == json(&three), "JSON differs");
    assert!(csv(&one) == csv(&three), "CSV differs");
    assert!(html(&one) == html(&three), "the page differs");
    assert_eq!(one.summaries[0].runs, 3);
    let seeds: Vec<u64> = one.runs.iter().map(|run| run.seed).collect();
    assert_eq!(seeds, [1, 2, 3]);
    assert_ne!(one.runs[0].flows[0].bytes, one.runs[1].flows[0].bytes);
    assert!(table(&one).contains("\n3 runs: mean, and half of its 95 % confidence"));
}

/// Runs two transfers over 10 Mbit/s, with additional keys for each.
fn two(first: &str, second: &str, runs: usize) -> Report {
    let flow = format!(
        "kind = \"bulk\"\n{first}\n[[flow]]\nfrom = \"a\"\nto = \"b\"\nkind = \"bulk\"\n{second}"
    );
    let text = pair("rate = \"10mbit\"\ndelay = \"5ms\"\nqdisc = \"pfifo limit 50\"", &flow);
    run(&text, BatchOptions { runs, ..ONE }).expect("runs")
}

#[test]
fn goodput_of_all_is_over_the_run_and_fairness_of_flows_that_meet() {
    let apart = &two("stop = \"10s\"", "start = \"10s\"", 1).runs[0];
    assert!((9e6..10e6).contains(&apart.goodput_bps), "{}", apart.goodput_bps);
    assert_eq!((apart.fairness, apart.flows[1].start_s), (None, 10.));
    // The first flow is alone for half of the time, and therefore transfers more bytes.
    let late = &two("", "start = \"10s\"", 1).runs[0];
    let whole: Vec<f64> = late.flows.iter().map(|flow| flow.goodput_bps).collect();
    let sum: f64 = whole.iter().sum();
    let of_whole = sum * sum / (2. * whole.iter().map(|v| v * v).sum::<f64>());
    assert!(late.fairness.expect("they meet") > of_whole + 0.01, "{late:?} {of_whole}");
}

#[test]
fn starts_are_drawn_from_their_range_and_equal_seeds_are_told() {
    let drawn = two("", "start = [\"0s\", \"2s\"]", 4);
    let starts: Vec<f64> = drawn.runs.iter().map(|run| run.flows[1].start_s).collect();
    assert!(starts.iter().all(|start| (0. ..2.).contains(start)), "{starts:?}");
    assert!(starts.windows(2).all(|pair| pair[0] != pair[1]), "{starts:?}");
    assert!(!drawn.summaries[0].is_same && !table(&drawn).contains("All seeds gave"));
    let again = two("", "start = [\"0s\", \"2s\"]", 4);
    assert!(json(&drawn) == json(&again), "the same seeds draw the same");
    let same = two("", "", 2);
    assert!(same.summaries[0].is_same);
    for text in [table(&same), html(&same)] {
        assert!(text.contains("All seeds gave the same figures"), "{text}");
    }
}

#[test]
fn the_page_and_the_rows_have_all_variants_of_a_sweep() {
    let sweep = "[sweep]\n\"topology.delay\" = [\"1ms\", \"2ms\", \"3ms\", \"4ms\", \"5ms\"]\n\
                 \"topology.qdisc\" = [\"pfifo limit 20\", \"codel\", \"fq_codel\", \"pie\"]\n";
    let text = pair("rate = \"5mbit\"\ndelay = \"1ms\"", "kind = \"bulk\"\ncount = 2");
    let text = text.replace("20s", "1s") + sweep;
    let report = run(&text, BatchOptions { runs: 2, ..ONE }).expect("runs");
    let means: usize = report.summaries.iter().map(|summary| summary.figures.len()).sum();
    let page = html(&report);
    assert!(means > 60 && page.matches("<td>\u{b1} ").count() == means, "{means} means");
    let rows = csv(&report);
    let lines: Vec<&str> = rows.lines().collect();
    assert_eq!(lines.len(), 1 + 40);
    let head =
        "variant,topology.delay,topology.qdisc,seed,events,goodput_bps,fairness,bulk1.1 start_s";
    assert!(lines[0].starts_with(head), "{}", lines[0]);
    assert!(lines[40].starts_with("\"delay 5ms, qdisc pie\",5ms,pie,2,"), "{}", lines[40]);
    let columns = lines[0].split(',').count();
    // The name of a variant contains a comma, which must be quoted.
    assert!(lines[1..].iter().all(|line| line.split(',').count() == columns + 1));
}

#[test]
fn a_slow_start_that_overshoots_loses_retransmissions_and_no_seconds() {
    // The path holds 175 packets. CUBIC reduces its window from 350 to 245, and the queue also
    // drops more than a hundred retransmissions.
    let link = "rate = \"20mbit\"\ndelay = \"22ms\"\nqdisc = \"pfifo limit 100\"";
    let flow = &run(&pair(link, "kind = \"bulk\""), ONE).expect("a run").runs[0].flows[0];
    assert!(flow.goodput_bps > 18_500_000., "{} bit/s of 20,000,000", flow.goodput_bps);
}

#[test]
fn a_run_beyond_its_limits_is_given_up_with_the_reason() {
    let text = pair("rate = \"10mbit\"", "kind = \"bulk\"") + "[limits]\nevents = 1000\n";
    let error = run(&text, ONE).expect_err("a limit of events");
    assert!(error.contains("seed 1: given up at"), "{error}");
    assert!(error.contains("1000 events, the limit"), "{error}");

    let link = "rate = \"1mbit\"\nqdisc = \"pfifo limit 1000000\"";
    let text = pair(link, "kind = \"cbr\"\nrate = \"50mbit\"");
    let error = run(&(text + "[limits]\nmemory = \"4MiB\"\n"), ONE).expect_err("a limit of memory");
    assert!(error.contains("the limit is 4 MiB"), "{error}");
}

#[test]
fn the_limit_of_memory_counts_what_programs_do_not_read() {
    let stall = "{ end = \"to\", what = \"read\", at = \"0s\", for = \"4s\" }";
    let flow = format!("kind = \"exchange\"\nbytes = 4000000\ncount = 8\nstall = [{stall}]");
    let text = pair("rate = \"1gbit\"\ndelay = \"1ms\"", &flow);
    let with = |limit: &str| run(&format!("{text}[limits]\nmemory = \"{limit}\"\n"), ONE);
    let error = with("16MiB").expect_err("32 MB wait in receive buffers");
    assert!(error.contains("packets, buffers and samples take"), "{error}");
    with("64MiB").expect("32 MB and the send buffers");
}

#[test]
fn the_limit_of_memory_counts_hosts_and_the_tables_of_queues() {
    let run = |n: usize, qdisc: &str, memory: &str| {
        let text = format!(
            "title = \"t\"\nduration = \"1s\"\n[topology]\nkind = \"star\"\nn = {n}\n\
             rate = \"10mbit\"\nedge_rate = \"10mbit\"\nqdisc = \"{qdisc}\"\n[[flow]]\n\
             kind = \"bulk\"\nfrom = \"host1\"\nto = \"server\"\n[limits]\n\
             memory = \"{memory}\"\n"
        );
        run(&text, ONE)
    };
    run(20, "fq_codel flows 4096", "8MiB")
        .expect("hosts take 2 MB, and the queues of one flow little");
    let error = run(100, "pfifo", "8MiB").expect_err("101 hosts take 10 MB");
    assert!(error.contains("given up at 0 s of 1.00 s: hosts, queues, packets"), "{error}");
    let error = run(4, "fq_codel flows 65536", "1MB").expect_err("two tables of 262 kB");
    assert!(error.contains("given up at 0 s"), "{error}");
}

/// Temporary directory, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = format!("towpath-sim-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_capture_has_each_packet_of_a_link_once() {
    let folder = Folder::new();
    let link = "rate = \"10mbit\"\ndelay = \"5ms\"\nqdisc = \"pfifo limit 10\"";
    let text = pair(link, "kind = \"bulk\"\nbytes = \"200kB\"");
    let options = BatchOptions { captures: Some(&folder.0), ..ONE };
    let report = run(&text, options).expect("a run");
    let file = std::fs::read(folder.0.join("link-1.pcapng")).expect("a capture");
    let (mut at, mut packets, mut drops) = (0, 0, 0);
    while at < file.len() {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
        let (kind, len) = (word(at), word(at + 4) as usize);
        assert_eq!(word(at + len - 4) as usize, len, "the block says its length twice");
        let block = &file[at..at + len];
        packets += u64::from(kind == 6);
        drops += u64::from(block.windows(15).any(|words| words == b"drop: overlimit"));
        at += len;
    }
    let links = &report.runs[0].links;
    let dropped: u64 = links.iter().map(|link| link.queue_dropped).sum();
    let delivered: u64 = links.iter().map(|link| link.delivered).sum();
    assert!(dropped > 0);
    assert_eq!((packets, drops), (delivered + dropped, dropped));
}

/// Runs a bulk flow and a ping over a device, and returns the results.
fn through_device(device: &str, more: &str) -> Report {
    let link = format!("rate = \"100mbit\"\ndelay = \"1ms\"\ndevice = {{ {device} }}\n{more}");
    let text = pair(&link, "kind = \"bulk\"").replace("duration = \"20s\"", "duration = \"4s\"");
    let ping = "[[flow]]\nkind = \"ping\"\nfrom = \"a\"\nto = \"b\"\ninterval = \"10ms\"\n";
    run(&(text + ping), ONE).expect("a run")
}

#[test]
fn a_full_device_holds_its_ring_and_with_limits_only_what_it_needs() {
    let p50 = |report: &Report| report.runs[0].flows[1].latency.as_ref().expect("pings").p50_s;
    let device = |report: &Report| {
        let device = report.runs[0].links[0].device.as_ref().expect("a device");
        (device.stops, device.limit_stops, device.inflight_mean())
    };
    let queue = "qdisc = \"fq_codel\"";
    let bare = through_device("ring = 256", queue);
    let (stops, limit_stops, inflight) = device(&bare);
    assert!(stops > 100 && limit_stops == 0 && inflight > 300_000., "{stops} {inflight}");
    // 256 packets of 1514 bytes take 31 ms at 100 Mbit/s.
    assert!((0.025..0.036).contains(&p50(&bare)), "{}", p50(&bare));
    let limited = through_device("ring = 256, bql = true", queue);
    let (stops, limit_stops, inflight) = device(&limited);
    assert!(stops == 0 && limit_stops > 1_000 && inflight < 10_000., "{stops} {inflight}");
    assert!((0.002..0.004).contains(&p50(&limited)), "{}", p50(&limited));
    let goodput = |report: &Report| report.runs[0].flows[0].goodput_bps;
    assert!(goodput(&limited) > 0.99 * goodput(&bare), "{}", goodput(&limited));
}

#[test]
fn a_host_without_a_discipline_waits_for_its_device() {
    let limited = through_device("ring = 64, frames = 8, delay = \"100us\", bql = true", "");
    let link = &limited.runs[0].links[0];
    let device = link.device.as_ref().expect("a device");
    assert_eq!(link.queue_dropped, 0);
    assert!(device.limit_stops > 100 && link.utilization > Some(0.9), "{:?}", link.utilization);
    assert!(link.sojourn.max_s < 0.005, "packets wait in the stack: {}", link.sojourn.max_s);
    let samples = limited.runs[0].sample_s.len();
    assert_eq!((device.series.sent.len(), device.series.limit_bytes.len()), (samples, samples));
    assert!(device.series.sent.iter().sum::<u64>() == device.sent && device.sent > 30_000);
}

#[test]
fn datagrams_come_in_phases() {
    let flow = "kind = \"onoff\"\ntransport = \"udp\"\nrate = \"1mbit\"\nsize = 1250\n\
                on = \"1s\"\noff = \"3s\"\nlengths = \"constant\"";
    let report = run(&pair("rate = \"10mbit\"", flow), ONE).expect("a run");
    let flow = &report.runs[0].flows[0];
    // 100 datagrams per second in 5 of 20 seconds.
    assert!((500..=505).contains(&flow.sent) && flow.received == flow.sent, "{}", flow.sent);
    let busy = flow.series.goodput_bps.iter().filter(|bps| **bps > 0.).count();
    assert!((100..=110).contains(&busy), "{busy} of 400 samples");
    assert_eq!(flow.congestion, None);
}

#[test]
fn queues_mark_packets_of_hosts_with_ecn_instead_of_dropping_them() {
    let run = |qdisc: &str, a: &str, b: &str| {
        let link = format!("rate = \"10mbit\"\ndelay = \"10ms\"\nqdisc = \"{qdisc}\"");
        let hosts = format!(
            "kind = \"bulk\"\n[[host]]\nname = \"a\"\ntcp = \"{a}\"\n[[host]]\nname = \"b\"\n\
             tcp = \"{b}\""
        );
        let report = run(&pair(&link, &hosts), ONE).expect("a run");
        let run = &report.runs[0];
        let marked = run.links.iter().map(|link| link.marked).sum::<u64>();
        (marked, run.flows[0].retransmitted_bytes, run.flows[0].bytes)
    };
    for qdisc in ["codel ecn", "fq_codel ecn", "cobalt ecn"] {
        let (marked, retransmitted, dropped_bytes) = run(qdisc, "ecn=off", "ecn=accept");
        assert!(marked == 0 && retransmitted > Some(0), "{qdisc}");
        for ecn in ["on", "accurate"] {
            let (marked, retransmitted, bytes) =
                run(qdisc, &format!("ecn={ecn}"), &format!("ecn={ecn}"));
            assert!(marked > 10 && retransmitted == Some(0), "{qdisc}: {marked} {retransmitted:?}");
            assert!(bytes >= dropped_bytes, "{qdisc}: {bytes} {dropped_bytes}");
        }
    }
    for qdisc in ["pie ecn", "red limit 150kb min 5kb max 60kb avpkt 1500 bandwidth 10mbit ecn"] {
        assert!(run(qdisc, "ecn=on", "ecn=accept").0 > 10, "{qdisc}");
    }
}

#[test]
fn settings_of_a_host_that_have_their_own_key_are_refused() {
    for (tcp, expected) in [
        ("ecn=maybe", "expected off, on, accept"),
        ("rmem-max=65536", "`recv_buffer`"),
        ("congestion=reno", "`congestion` of a flow"),
    ] {
        let flow = format!("kind = \"bulk\"\n[[host]]\nname = \"a\"\ntcp = \"{tcp}\"");
        let error = read(&pair("rate = \"1mbit\"", &flow)).expect_err(tcp).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
