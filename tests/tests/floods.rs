//! Clients of a listener that is flooded with SYNs over a TAP device.

use towpath_tests::{Mode, Namespace, PATIENCE, is_inline, program, towpath, wait_for_port};

/// The number of SYNs per second depends on the machine's speed.
mod nightly {
    use super::*;

    #[test]
    fn clients_connect_by_cookie_while_a_listener_is_flooded() {
        if !Mode::all().contains(&Mode::Tap) || is_inline() {
            return;
        }
        let (script, towpath) = (program("flood.py"), towpath());
        for rtt in [1, 100, 300] {
            let ns = Namespace::new();
            let link = format!("delay {}us limit 100000", rtt * 500);
            let server = [towpath.as_str(), "run", "--tap", "--stats=json", "--netem", &link, "--"];
            let server =
                ns.spawn(&[&server[..], &["python3", &script, "serve", "80", "12"]].concat());
            wait_for_port(&ns, "10.77.0.2", 80);
            // Room for a tenth of a second, in which the engine may not run.
            ns.shell("ip link set towpath0 txqueuelen 10000").ok();
            let flood = ["python3", script.as_str(), "syn", "10.77.0.2", "80", "100000", "6"];
            let flood = ns.spawn(&flood);
            std::thread::sleep(std::time::Duration::from_secs(2));
            let client = ns.run(&["python3", &script, "call", "10.77.0.2", "80", "40"]).ok();
            assert_eq!(client.stdout.lines().count(), 40, "{rtt} ms: every client connects");
            flood.wait(PATIENCE).ok();
            let counters = server.wait(PATIENCE).stderr;
            let line = counters.lines().find(|line| line.starts_with('{')).expect("counters");
            let counters: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let of = |name: &str| counters["sockets"][name].as_u64().expect("a counter");
            assert!(of("tcp_syn_cookies_sent") > 10_000, "{line}");
            assert!(of("tcp_syn_cookies_valid") >= 40, "{line}");
        }
    }
}
