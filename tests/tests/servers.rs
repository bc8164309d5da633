//! Unmodified servers of Debian: nginx with workers and reload, redis, openssl, iperf3.

use std::time::Duration;

use towpath_tests::{
    Mode, Namespace, PATIENCE, Process, Scratch, eventually, run, start, wait_for_listener,
    wait_for_port,
};

fn nginx_config(folder: &Scratch, port: u16) -> String {
    let root = folder.path().display();
    folder.write("index.html", "nginx on towpath\n".repeat(64));
    folder.write(
        "nginx.conf",
        format!(
            "daemon off; master_process on; worker_processes 2; pid {root}/nginx.pid; \
             error_log {root}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; client_body_temp_path {root}/b; proxy_temp_path {root}/p; \
             fastcgi_temp_path {root}/f;\n\
             uwsgi_temp_path {root}/u; scgi_temp_path {root}/s; sendfile on; tcp_nopush on; \
             keepalive_requests 100000;\n\
             server {{ listen {port}; root {root}; }} }}\n"
        ),
    )
}

#[test]
fn nginx_with_workers_under_load() {
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        let config = nginx_config(&folder, 7100);
        let nginx = start(&ns, mode, &[7100], &["nginx", "-c", &config]);
        wait_for_listener(&nginx, 7100);
        let url = format!("http://{}:7100/", mode.host());
        let out = ns.run(&["wrk", "-t2", "-c64", "-d4s", &url]).ok();
        assert!(!out.stdout.contains("Socket errors"), "{mode:?}: {}", out.stdout);
        assert!(!out.stdout.contains("Non-2xx"), "{mode:?}: {}", out.stdout);
        assert!(out.stdout.contains("requests in"), "{mode:?}: {}", out.stdout);
    }
}

/// Reloads during continuous requests: new workers take over the listener, and no request fails.
#[test]
fn nginx_reload_fails_no_request() {
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        let config = nginx_config(&folder, 7101);
        let nginx = start(&ns, mode, &[7101], &["nginx", "-c", &config]);
        wait_for_listener(&nginx, 7101);
        let script = format!(
            "import http.client,time\nend=time.time()+4\nn=0\n\
             while time.time()<end:\n c=http.client.HTTPConnection('{}',7101,timeout=40); \
             c.request('GET','/',headers={{'Connection':'close'}})\n \
             r=c.getresponse(); b=r.read(); \
             assert r.status==200 and len(b)==17*64,(r.status,len(b)); c.close(); n+=1\nprint(n)",
            mode.host()
        );
        // Additional load, whose kept-alive connections may be closed by a worker that exits, as on
        // the kernel.
        let url = format!("http://{}:7101/", mode.host());
        let load = ns.spawn(&["wrk", "-t1", "-c16", "-d4s", &url]);
        let client = ns.spawn(&["python3", "-c", &script]);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_secs(1));
            let pid = std::fs::read_to_string(folder.path().join("nginx.pid")).expect("pid file");
            ns.run(&["kill", "-HUP", pid.trim()]).ok();
        }
        let out = client.wait(PATIENCE).ok();
        let served: u32 = out.stdout.trim().parse().expect("a count");
        assert!(served > 0, "{mode:?}: {served}");
        load.wait(PATIENCE).ok();
    }
}

#[test]
fn redis_with_pipelining() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let redis = start(
            &ns,
            mode,
            &[7200],
            &[
                "redis-server",
                "--port",
                "7200",
                "--bind",
                "0.0.0.0",
                "--protected-mode",
                "no",
                "--save",
                "",
                "--appendonly",
                "no",
            ],
        );
        wait_for_listener(&redis, 7200);
        for pipeline in ["1", "16"] {
            let out = ns
                .run(&[
                    "redis-benchmark",
                    "-h",
                    mode.host(),
                    "-p",
                    "7200",
                    "-n",
                    "20000",
                    "-c",
                    "50",
                    "-P",
                    pipeline,
                    "-q",
                    "-t",
                    "set,get,lpush,lrange_100",
                ])
                .ok();
            assert!(out.stdout.contains("GET:"), "{mode:?}: {}", out.stdout);
            assert!(!out.stdout.contains("Error"), "{mode:?}: {}", out.stdout);
        }
        let cli = ["redis-cli", "-h", mode.host(), "-p", "7200"];
        let big = format!(
            "{{ printf 'SET big '; head -c 3000000 /dev/zero | tr '\\0' x; echo; }} | {} && \
             {} STRLEN big",
            cli.join(" "),
            cli.join(" ")
        );
        let out = ns.shell(&big).ok();
        assert!(out.stdout.contains("3000000"), "{mode:?}: {}", out.stdout);
    }
}

#[test]
fn openssl_server_and_client() {
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        let (key, cert) = (folder.file("key.pem"), folder.file("cert.pem"));
        ns.run(&[
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            &key,
            "-out",
            &cert,
            "-days",
            "1",
            "-subj",
            "/CN=towpath",
        ])
        .ok();
        let serve = [
            "openssl", "s_server", "-accept", "7300", "-key", &key, "-cert", &cert, "-www",
            "-quiet",
        ];
        let server = start(&ns, mode, &[7300], &serve);
        wait_for_listener(&server, 7300);
        let fetch = |host: &str, port: u16| {
            format!(
                "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | \
                 openssl s_client -quiet -connect {host}:{port} 2>/dev/null"
            )
        };
        let out = ns.shell(&fetch(mode.host(), 7300));
        assert!(out.stdout.contains("s_server -accept"), "{mode:?}: {} {}", out.stdout, out.stderr);

        drop(server);
        let _host = ns.spawn(&[
            "openssl", "s_server", "-accept", "7301", "-key", &key, "-cert", &cert, "-www",
            "-quiet",
        ]);
        wait_for_port(&ns, "127.0.0.1", 7301);
        let out = run(&ns, mode, &[], &["bash", "-c", &fetch(mode.peer(), 7301)]);
        assert!(out.stdout.contains("s_server -accept"), "{mode:?}: {} {}", out.stdout, out.stderr);
    }
}

/// An iperf3 server closes its listener after each test and opens a new one; meanwhile it resets
/// clients. The server prints a line when it listens again.
struct Iperf {
    server: Process,
    tests: usize,
}

impl Iperf {
    fn new(server: Process) -> Self {
        Self { server, tests: 0 }
    }

    fn wait_for_listener(&mut self) {
        self.tests += 1;
        eventually("iperf3 listens", || {
            self.server.stdout().matches("Server listening").count() >= self.tests
        });
    }
}

fn iperf(
    ns: &Namespace,
    server: &mut Iperf,
    mode: Mode,
    port: u16,
    options: &[&str],
) -> serde_json::Value {
    server.wait_for_listener();
    let port = port.to_string();
    let mut line = vec!["iperf3", "-J", "-t", "2", "-c", mode.host(), "-p", &port];
    line.extend(options);
    let out = ns.run(&line);
    let report: serde_json::Value = serde_json::from_str(&out.stdout).expect("iperf3 -J");
    assert!(out.success() && report.get("error").is_none(), "{mode:?} {options:?}: {report:#}");
    report
}

/// Returns the number of datagrams sent, and the number lost.
fn udp_loss(ns: &Namespace, server: &mut Iperf, mode: Mode, options: &[&str]) -> (f64, f64) {
    let report = iperf(ns, server, mode, 7400, options);
    let count = |field: &str| report["end"]["sum"][field].as_f64().expect("a count");
    (count("packets"), count("lost_packets"))
}

fn few_are_lost(&(packets, lost): &(f64, f64)) -> bool {
    packets > 1000. && lost < packets * 0.05
}

#[test]
fn iperf3_tcp_and_udp() {
    iperf3_measures(false);
}

fn iperf3_measures(is_quick: bool) {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let mut options = mode.options(&[7400]);
        if mode == Mode::Rootless {
            options.extend(["-p".to_owned(), "127.0.0.1:7400:7400/udp".to_owned()]);
        }
        let towpath = towpath_tests::towpath();
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(options.iter().map(String::as_str));
        line.extend(["--", "iperf3", "-s", "-p", "7400", "--forceflush"]);
        let mut server = Iperf::new(ns.spawn(&line));
        for tcp in [&[][..], &["-R"], &["-P", "8"], &["--bidir"]] {
            let report = iperf(&ns, &mut server, mode, 7400, tcp);
            let received = report["end"]["sum_received"]["bytes"].as_u64().unwrap_or(0);
            let least = if is_quick { 10_000_000 } else { 0 };
            assert!(received > least, "{mode:?} {tcp:?}: {received}");
        }
        for udp in
            [&["-u", "-b", "100M", "-l", "1200"][..], &["-u", "-b", "100M", "-l", "1200", "-R"]]
        {
            // Datagrams are lost on the kernel, too, if the program is not scheduled in time to
            // read them.
            let mut losses = vec![udp_loss(&ns, &mut server, mode, udp)];
            while is_quick && !losses.last().is_some_and(few_are_lost) {
                assert!(losses.len() < 3, "{mode:?} {udp:?}: {losses:?}");
                losses.push(udp_loss(&ns, &mut server, mode, udp));
            }
        }
    }
}

mod nightly {
    /// Requires an otherwise idle machine.
    #[test]
    fn iperf3_is_quick_and_loses_little() {
        super::iperf3_measures(true);
    }
}

/// Opposite roles: iperf3's client runs on Towpath.
#[test]
fn iperf3_client() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let mut server = Iperf::new(ns.spawn(&["iperf3", "-s", "-p", "7401", "--forceflush"]));
        for options in [&[][..], &["-R"], &["-u", "-b", "50M"]] {
            server.wait_for_listener();
            let mut line = vec!["iperf3", "-t", "2", "-c", mode.peer(), "-p", "7401"];
            line.extend(options);
            let out = run(&ns, mode, &[], &line).ok();
            assert!(out.stdout.contains("iperf Done."), "{mode:?} {options:?}: {}", out.stdout);
        }
    }
}
