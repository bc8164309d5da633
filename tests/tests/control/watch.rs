//! Commands that watch a running stack: `towpath ip monitor`, `top` and `metrics`.

use serde_json::Value;
use towpath_tests::{Mode, PATIENCE, Process, Scratch, eventually, towpath};

use super::Lab;

impl Lab {
    /// Starts `towpath ip monitor` on this run. Returns when the monitor has printed a change.
    fn monitor(&self, options: &str, dev: &str) -> Process {
        let towpath = towpath();
        let mut words = vec![towpath.as_str(), "ip", "--name", &self.name];
        words.extend(options.split_whitespace());
        words.push("monitor");
        let monitor = self.ns.spawn(&words);
        let mut mtus = [1400, 1500].into_iter().cycle();
        eventually("the monitor prints a change", || {
            self.ip(&format!("link set {dev} mtu {}", mtus.next().expect("endless"))).ok();
            !monitor.stdout().is_empty()
        });
        self.ip(&format!("link set {dev} mtu 1500")).ok();
        monitor
    }
}

#[test]
fn a_monitor_prints_changes_as_they_happen() {
    for mode in Mode::all() {
        let Some(lab) = Lab::new(*mode, "monitor", &["sleep", "100"]) else { return };
        let dev = lab.dev();
        let (text, json) = (lab.monitor("", &dev), lab.monitor("-j", &dev));
        lab.ip(&format!("addr add 10.5.0.1/24 dev {dev}")).ok();
        lab.ip("route add 10.8.0.0/16 via 10.5.0.7 metric 5").ok();
        lab.ip("route replace 10.8.0.0/16 via 10.5.0.8 metric 5").ok();
        lab.ip("route del 10.8.0.0/16").ok();
        lab.ip(&format!("addr del 10.5.0.1/24 dev {dev}")).ok();
        let lines = [
            format!(": {dev}    inet 10.5.0.1/24 scope global {dev}\n"),
            format!("\n10.5.0.0/24 dev {dev} proto kernel scope link src 10.5.0.1 \n"),
            format!("\n10.8.0.0/16 via 10.5.0.7 dev {dev} metric 5 \n"),
            format!("\n10.8.0.0/16 via 10.5.0.8 dev {dev} metric 5 \n"),
            format!("\nDeleted 10.8.0.0/16 via 10.5.0.8 dev {dev} metric 5 \n"),
            format!("\nDeleted 10.5.0.0/24 dev {dev} proto kernel scope link src 10.5.0.1 \n"),
            format!(": {dev}    inet 10.5.0.1/24 scope global {dev}\n"),
        ];
        eventually("all changes are printed", || {
            let printed = text.stdout();
            let mut rest = &printed[..];
            lines.iter().all(|line| match rest.split_once(line.as_str()) {
                Some((_, after)) => {
                    // A line break may end one line and begin the next one.
                    rest = &rest[rest.len() - after.len() - 1..];
                    true
                }
                None => false,
            })
        });
        let objects = || {
            let printed = json.stdout();
            let complete = printed.rsplit_once('\n').map_or("", |(lines, _)| lines).to_owned();
            let parse = |line: &str| serde_json::from_str::<Value>(line).expect("one object");
            complete.lines().map(parse).collect::<Vec<_>>()
        };
        let is_last = |it: &Value| it["deleted"] == true && it["local"] == "10.5.0.1";
        eventually("all objects are printed", || objects().iter().any(is_last));
        let gone: Vec<_> = objects().into_iter().filter(|it| it["deleted"] == true).collect();
        let kinds: Vec<_> = gone.iter().filter_map(|it| it["object"].as_str()).collect();
        assert_eq!(kinds, ["route", "route", "address"]);
        assert_eq!(gone[0]["gateway"], "10.5.0.8");
        // A monitor ends with its run.
        lab.run.signal(rustix::process::Signal::TERM);
        text.wait(PATIENCE).ok();
        json.wait(PATIENCE).ok();
    }
}

#[test]
fn a_stopped_monitor_is_told_how_many_changes_it_lost() {
    let Some(lab) = Lab::new(Mode::Rootless, "lost", &["sleep", "100"]) else { return };
    let (dev, scratch) = (lab.dev(), Scratch::new());
    let monitor = lab.monitor("-j", &dev);
    monitor.signal(rustix::process::Signal::STOP);
    // The reports have some 150 bytes each, twice as many as a run stores for a client.
    const ROUTES: u32 = 30_000;
    let routes = (0..ROUTES).map(|n| {
        let [_, high, low, _] = (n << 8).to_be_bytes();
        format!("route add 11.{high}.{low}.0/24 dev {dev}\n")
    });
    let file = scratch.write("routes.txt", routes.collect::<String>());
    lab.ip(&format!("--batch {file}")).ok();
    // The stopped monitor does not delay the run.
    assert!(lab.ip("route show 11.0.0.0/24").ok().stdout.contains("11.0.0.0/24"));
    monitor.signal(rustix::process::Signal::CONT);
    let lost = || {
        let printed = monitor.stdout();
        let line = printed.lines().find(|line| line.starts_with("{\"lost\":"))?;
        let object: Value = serde_json::from_str(line).ok()?;
        object["lost"].as_u64().map(|count| count as u32)
    };
    let mut count = None;
    eventually("the monitor is told", || {
        count = lost();
        count.is_some()
    });
    let printed = monitor.stdout();
    let received = printed.lines().filter(|line| line.contains("\"dst\":\"11.")).count() as u32;
    let all = received + count.expect("told");
    assert_eq!(all, ROUTES, "{received} received");
}

#[test]
fn top_and_metrics_show_a_run_once() {
    let Some(lab) = Lab::new(Mode::Rootless, "once", &["sleep", "100"]) else { return };
    let page = lab.command("top", "--once -d 0.1").ok().stdout;
    for words in ["towpath top", &lab.name, "INTERFACE", "SHARD", "DROPS", "PROTO"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let refused = lab.command("top", "");
    assert_eq!(refused.code(), 2);
    assert!(refused.stderr.contains("towpath stats"), "{}", refused.stderr);
    let text = lab.command("metrics", "").ok().stdout;
    let info = format!("towpath_run_info{{run=\"{}\",pid=\"", lab.name);
    for words in [&info, "# TYPE towpath_engine_turns_total counter\n", "interface=\"lo\""] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // A scraper gets the same metrics, from a socket on loopback.
    let towpath = towpath();
    let line = [&towpath, "metrics", "--name", &lab.name, "--listen", "0"];
    let server = lab.ns.spawn(&line);
    let url = || {
        let printed = server.stderr();
        printed.split_once("serving ").map(|(_, url)| url.trim_end().to_owned())
    };
    eventually("the server listens", || url().is_some_and(|url| url.ends_with("/metrics")));
    let url = url().expect("it listens");
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let get = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())";
    let scraped = lab.ns.run(&["python3", "-c", get, &url]).ok().stdout;
    assert!(scraped.contains(&info), "{scraped}");
    let refused = lab.ns.run(&["python3", "-c", get, &url.replace("/metrics", "/other")]);
    assert!(refused.stderr.contains("404"), "{}", refused.stderr);
}
