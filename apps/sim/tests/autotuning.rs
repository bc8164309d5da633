//! Autotuning of the receive buffer by an endpoint that only receives.

use towpath_sim::{BatchOptions, RunResult, read, run_all};

const MBIT: f64 = 1e6;

/// Runs a scenario whose hosts have timestamps, or not.
fn run(text: &str, timestamps: bool) -> RunResult {
    let text = text.replace("TCP", if timestamps { "timestamps=on" } else { "timestamps=off" });
    let options = BatchOptions { seed: None, runs: 1, captures: None, traces: false, threads: 1 };
    let plans = read(&text).expect("a scenario");
    run_all(&plans, options, &|_| {}).expect("no limit is reached").runs.remove(0)
}

/// Returns the largest flight in the second half of the run.
fn late_flight_max(run: &RunResult) -> u32 {
    let flight = &run.flows[0].series.flight_bytes;
    flight[flight.len() / 2..].iter().flatten().copied().max().expect("samples")
}

const LONG_PATH: &str = r#"
title = "a long path"
duration = "5s"
topology = { kind = "pair", rate = "100mbit", delay = "50ms" }
flow = [{ kind = "bulk", from = "a", to = "b" }]
[[host]]
name = "a"
tcp = "TCP"
[[host]]
name = "b"
recv_buffer = "128KiB"
recv_buffer_max = "8128KiB"
tcp = "TCP"
"#;

#[test]
fn a_long_path_opens_the_window() {
    for timestamps in [true, false] {
        let goodput = run(LONG_PATH, timestamps).flows[0].goodput_bps / MBIT;
        // 128 KiB per round trip would give 10.5 Mbit/s.
        assert!(goodput > 75.0, "timestamps {timestamps}: {goodput} Mbit/s");
    }
}

const STANDING_QUEUE: &str = r#"
title = "a standing queue"
duration = "30s"
topology = { kind = "dumbbell", rate = "10mbit", delay = "10ms", qdisc = "pfifo limit 1000" }
flow = [{ kind = "bulk", from = "left1", to = "right1", congestion = "reno" }]
[[host]]
name = "left1"
tcp = "TCP"
[[host]]
name = "right1"
recv_buffer = "128KiB"
recv_buffer_max = "8128KiB"
tcp = "TCP"
"#;

/// The handshake takes 20 ms. Then the queue of the flow delays each segment by up to 1.2 s.
#[test]
fn a_standing_queue_opens_the_window() {
    // An estimate by the handshake's round-trip time would keep the window at 216 kB. Without
    // timestamps the estimate is the minimum, measured while the queue was short.
    for (timestamps, limit) in [(true, 1_000_000), (false, 230_000)] {
        let flight = late_flight_max(&run(STANDING_QUEUE, timestamps));
        assert!(flight > limit, "timestamps {timestamps}: {flight} bytes in flight");
    }
}
