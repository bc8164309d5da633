//! Clients of other programs, over a rootless stack and over a TAP device: curl, and h2load of
//! nghttp2. The tests name the program that is missing, and the device needs user namespaces.

#![allow(clippy::print_stderr)] // For readers of the output of the tests.

use std::process::Command;

use towpath::Stack;
use towpath::tokio::TcpListener;

use crate::{example, tls_example};

/// Runs `ask` with the addresses of the service without TLS, and with it.
async fn served(stack: &Stack, addrs: [String; 2], ask: fn(&str, &str)) {
    let plain = TcpListener::bind_on(stack, "0.0.0.0:80").await.expect("a port");
    tokio::spawn(async { axum::serve(plain, example::service()).await });
    let (acceptor, _) = tls_example::self_signed("localhost").expect("a certificate");
    let secure = TcpListener::bind_on(stack, "0.0.0.0:443").await.expect("a port");
    let service = example::service();
    tokio::spawn(async move { tls_example::serve(&secure, &acceptor, &service).await });
    let [http, https] = addrs;
    let asking = tokio::task::spawn_blocking(move || {
        ask(&format!("http://{http}/hello/you"), &format!("https://{https}/hello/you"));
    });
    asking.await.expect("no panic");
}

/// Returns what a program prints, or `None` if the machine lacks it.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(program).args(args).output() else {
        eprintln!("left out: needs {program}");
        return None;
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {out}{err}");
    Some(out)
}

/// Asks with HTTP/1.1, with HTTP/2 by prior knowledge and by ALPN, and with HTTP/1.1 over TLS.
fn ask_by_curl(http: &str, https: &str) {
    let cases = [
        ("1.1", "--http1.1", http),
        ("2", "--http2-prior-knowledge", http),
        ("2", "--http2", https),
        ("1.1", "--http1.1", https),
    ];
    for (version, option, url) in cases {
        let format = "%{http_version} %{http_code}";
        let args = ["-sSk", "--noproxy", "*", "-m", "50", "-w", format, option, url];
        if let Some(answer) = output("curl", &args) {
            assert_eq!(answer, format!("Hello, you!\n{version} 200"), "{option} {url}");
        }
    }
}

/// Has ten connections with ten streams each carry 2,000 requests.
fn load_by_h2load(http: &str, https: &str) {
    for url in [http, https] {
        let args = ["-n", "2000", "-c", "10", "-m", "10", "-t", "2", url];
        if let Some(report) = output("h2load", &args) {
            assert!(report.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{report}");
            assert!(report.contains("2000 2xx"), "{report}");
        }
    }
}

fn ask_by_both(http: &str, https: &str) {
    ask_by_curl(http, https);
    load_by_h2load(http, https);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_and_h2load_reach_a_rootless_stack() {
    let builder = Stack::builder().rootless().publish("127.0.0.1::80").publish("127.0.0.1::443");
    let stack = builder.start().expect("a stack");
    let addrs = [0, 1].map(|at| stack.published()[at].host.to_string());
    served(&stack, addrs, ask_by_both).await;
}

/// Runs the next test in a network namespace of its own, with all rights there.
#[test]
fn curl_and_h2load_reach_a_tap_device() {
    let run = Command::new("unshare")
        .args(["-U", "-n", "--map-current-user", "--keep-caps"])
        .arg(std::env::current_exe().expect("a path"))
        .args(["--exact", "programs::inside_a_namespace", "--ignored", "--nocapture"])
        .output()
        .expect("unshare(1) of util-linux");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && out.contains("1 passed"), "{out}{err}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "another test runs it in a namespace"]
async fn inside_a_namespace() {
    let stack = Stack::builder().tap("tw8").address("10.77.0.2/24").start().expect("a stack");
    served(&stack, [80, 443].map(|port| format!("10.77.0.2:{port}")), ask_by_both).await;
}
