//! Command line of `towpath`: errors, their messages, and the content of reports.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use towpath_tests::{
    Mode, Namespace, Output, Process, Scratch, eventually, is_inline, program, start, towpath,
    wait_for_port,
};

/// Runs a command as the user `nobody`.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

fn run(ns: &Namespace, words: &[&str]) -> Output {
    let towpath = towpath();
    let mut line = vec![towpath.as_str(), "run"];
    line.extend(words);
    ns.run(&line)
}

/// Checks the exit code, and that the message contains all words and starts with the program's
/// name.
#[track_caller]
fn refused(out: &Output, code: i32, words: &[&str]) {
    assert_eq!(out.code(), code, "{}", out.stderr);
    for word in words {
        assert!(out.stderr.contains(word), "no {word:?} in: {}", out.stderr);
    }
    assert_eq!(out.stdout, "");
    assert!(!out.stderr.contains("panicked"), "{}", out.stderr);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn compile(folder: &Scratch, name: &str, options: &[&str]) -> String {
    let source = folder.write("main.c", "#include <stdio.h>\nint main(void) { puts(\"ran\"); }\n");
    let binary = folder.file(name);
    let gcc =
        Command::new("gcc").args(options).args(["-o", &binary, &source]).output().expect("gcc");
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
    binary
}

#[test]
fn a_program_that_cannot_run() {
    let (ns, folder) = (Namespace::new(), Scratch::new());
    refused(&run(&ns, &["--", "no-such-command-here"]), 127, &["no-such-command-here"]);
    refused(&run(&ns, &["--", "/no/such/file"]), 127, &["/no/such/file"]);
    let text = folder.write("text", "hello\n");
    refused(&run(&ns, &["--", &text]), 126, &[&text]);
    refused(&run(&ns, &["--", folder.path().to_str().expect("plain")]), 126, &["directory"]);
    let script = folder.write("script", "#!/no/such/interpreter\n");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("chmod");
    refused(&run(&ns, &["--", &script]), 127, &["/no/such/interpreter"]);
}

#[test]
fn a_program_that_cannot_be_preloaded() {
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let fixed = compile(&folder, "fixed", &["-static"]);
    refused(&run(&ns, &["--", &fixed]), 125, &["fixed", "statically linked", "dynamically linked"]);
    let script = folder.write("script", format!("#!{fixed}\n"));
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("chmod");
    refused(&run(&ns, &["--", &script]), 125, &["script", "statically linked"]);
    let dynamic = compile(&folder, "dynamic", &[]);
    let out = run(&ns, &["-q", "--", &dynamic]).ok();
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("ran\n", ""));
    if is_root() {
        std::os::unix::fs::chown(&dynamic, Some(12345), None).expect("chown");
        std::fs::set_permissions(&dynamic, PermissionsExt::from_mode(0o4755)).expect("chmod");
        refused(&run(&ns, &["--", &dynamic]), 125, &["set-user-ID", "copy"]);
    }
}

#[test]
fn wrong_words() {
    let ns = Namespace::new();
    let cases: [(&[&str], &str); 12] = [
        (&["-p", "80x:80", "--", "true"], "80x"),
        (&["-p", "8080:99999", "--", "true"], "99999"),
        (&["-p", "8080:80/sctp", "--", "true"], "sctp"),
        (&["-p", "somewhere:8080:80", "--", "true"], "somewhere"),
        (&["-p", "70000", "--", "true"], "70000"),
        (&["--address", "10.0.2.15/40", "--", "true"], "40"),
        (&["--address", "10.0.2", "--", "true"], "10.0.2"),
        (&["--tap", "--address", "10.0.2.255/24", "--", "true"], "10.0.2.255"),
        (&["--mtu", "12", "--", "true"], "12"),
        (&["--stats=xml", "--", "true"], "xml"),
        (&["--frobnicate", "--", "true"], "--frobnicate"),
        (&["--tap", "-p", "8080:80", "--", "true"], "--tap"),
    ];
    for (words, offending) in cases {
        let out = run(&ns, words);
        assert_eq!(out.code(), 125, "{words:?}: {}", out.stderr);
        assert!(out.stderr.contains(offending), "{words:?}: {}", out.stderr);
    }
    assert_eq!(run(&ns, &[]).code(), 125);
    let towpath = towpath();
    let unknown = ns.run(&[&towpath, "juggle"]);
    assert_eq!(unknown.code(), 2);
    assert!(unknown.stderr.contains("juggle"), "{}", unknown.stderr);
    assert_eq!(ns.run(&[&towpath, "ss", "4194304"]).code(), 2);
}

#[test]
fn a_port_in_use() {
    let ns = Namespace::new();
    let hold = |kind: &str, port: u16| {
        let script = format!(
            "import socket,time\ns=socket.socket(type=socket.{kind})\n\
             s.bind(('127.0.0.1',{port}))\n\
             if s.type == socket.SOCK_STREAM: s.listen()\nprint('held',flush=True)\ntime.sleep(60)"
        );
        let holder = ns.spawn(&["python3", "-c", &script]);
        eventually("the port is held", || holder.stdout() == "held\n");
        holder
    };
    let _holders = [hold("SOCK_STREAM", 7600), hold("SOCK_DGRAM", 7601)];
    refused(&run(&ns, &["-p", "7600:80", "--", "echo"]), 125, &["7600", "in use"]);
    refused(&run(&ns, &["-p", "7601:80/udp", "--", "echo"]), 125, &["7601", "in use"]);
    refused(&run(&ns, &["-p", "192.0.2.1:7602:80", "--", "echo"]), 125, &["192.0.2.1"]);
    run(&ns, &["-p", "7601:80", "--", "true"]).ok();
}

#[test]
fn no_tap() {
    if !is_root() {
        refused(&run(&Namespace::new(), &["--tap", "--", "true"]), 125, &["sudo"]);
        return;
    }
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let copy = readable_copy(&folder);
    let mut line = NOBODY.to_vec();
    line.extend([copy.as_str(), "run", "--tap", "--", "true"]);
    // Depending on the mode of the device file, either its open or the missing privilege fails.
    // Both messages give advice.
    refused(&ns.run(&line), 125, &["sudo"]);
    let towpath = towpath();
    let hidden = format!("mount -t tmpfs none /dev/net && exec {towpath} run --tap -- true");
    refused(&ns.run(&["unshare", "-m", "sh", "-c", &hidden]), 125, &["/dev/net/tun", "modprobe"]);
    let open = format!(
        "mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && \
         exec {} {copy} run --tap -- true",
        NOBODY.join(" ")
    );
    refused(
        &ns.run(&["unshare", "-m", "sh", "-c", &open]),
        125,
        &["CAP_NET_ADMIN", "ip tuntap add"],
    );
}

/// Creates a copy of the binary that the user `nobody` may execute.
fn readable_copy(folder: &Scratch) -> String {
    let copy = folder.file("towpath");
    std::fs::copy(towpath(), &copy).expect("copy");
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).expect("chmod");
    copy
}

/// Serves a page in the namespace.
fn serve(ns: &Namespace, folder: &Scratch, port: u16) -> Process {
    folder.write("index.html", "a page of the host\n".repeat(1000));
    let path = folder.path().to_str().expect("plain");
    let server = ns.spawn(&["python3", &program("receive.py"), &port.to_string(), path]);
    wait_for_port(ns, "127.0.0.1", port);
    server
}

#[test]
fn nobody_may_run_it() {
    if !is_root() {
        return;
    }
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let copy = readable_copy(&folder);
    let _host = serve(&ns, &folder, 7610);
    let mut line = NOBODY.to_vec();
    line.extend([copy.as_str(), "run", "-q", "--", "sh", "-c"]);
    let script = "id -u; curl -sS -m 10 http://10.0.2.2:7610/ | wc -c";
    line.push(script);
    let out = ns.run(&line).ok();
    assert_eq!(out.stdout, "65534\n19000\n", "{}", out.stderr);

    let mut line = NOBODY.to_vec();
    // Ports below 1024 require a privilege on the host, but not on the stack.
    let path = folder.path().to_str().expect("plain");
    line.extend([
        &copy,
        "run",
        "-p",
        "7611:80",
        "--",
        "python3",
        "-m",
        "http.server",
        "80",
        "-d",
        path,
    ]);
    let server = ns.spawn(&line);
    let theirs = server.id().to_string();
    let as_nobody = || ns.run(&[&NOBODY[..], &[copy.as_str(), "ss", "-aj", &theirs]].concat());
    eventually("the server listens", || as_nobody().stdout.contains("LISTEN"));
    let page = ns.run(&["curl", "-sS", "-m", "10", "http://127.0.0.1:7611/index.html"]).ok();
    assert_eq!(page.stdout.len(), 19000);
    // A process id means root's own runs, unless root names the user.
    refused(&ns.run(&[&copy, "ss", "-aj", &theirs]), 125, &["--user: nobody"]);
    let named = ns.run(&[&copy, "ss", "-aj", "--user", "nobody", &theirs]).ok();
    assert!(named.stdout.contains("LISTEN"), "{}", named.stdout);
    server.stop();
}

#[test]
fn counters_in_json() {
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let _host = serve(&ns, &folder, 7620);
    let url = "http://10.0.2.2:7620/";
    let out =
        run(&ns, &["-q", "--stats=json", "--", "curl", "-sS", "-m", "10", "-o", "/dev/null", url])
            .ok();
    let counters: Value = serde_json::from_str(&out.stderr).expect("nothing but JSON");
    for layer in ["engine", "sockets", "net", "drops", "gateway"] {
        let layer = counters[layer].as_object().unwrap_or_else(|| panic!("{layer}: {counters:#}"));
        assert!(layer.values().all(Value::is_u64), "{layer:?}");
    }
    let sum = |layer: &str| {
        counters[layer]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, v)| v.as_u64())
            .sum::<u64>()
    };
    assert!(sum("engine") > 0 && sum("sockets") > 0 && sum("net") > 0, "{counters:#}");
    assert!(counters["drops"].get("transport_checksum").is_none_or(|n| n == 0), "{counters:#}");

    let out =
        run(&ns, &["-q", "--stats", "--", "curl", "-sS", "-m", "10", "-o", "/dev/null", url]).ok();
    assert!(out.stderr.lines().count() > 3, "{}", out.stderr);
    for line in out.stderr.lines() {
        let (name, value) = line.split_once(' ').expect("a name and a value");
        assert!(name.contains('.') && value.trim().parse::<u64>().is_ok_and(|v| v > 0), "{line}");
    }
}

#[test]
fn a_capture_that_wireshark_reads() {
    if is_inline() {
        // Inline the packets are in the program's process, so that --pcap is refused.
        return;
    }
    let modes = Mode::all();
    for &mode in modes {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        let _host = serve(&ns, &folder, 7630);
        let file = folder.file("out.pcapng");
        let url = format!("http://{}:7630/", mode.peer());
        let fetch = ["curl", "-sS", "-m", "10", "-o", "/dev/null", &url];
        let options = mode.options(&[]);
        let mut words: Vec<_> = options.iter().map(String::as_str).collect();
        words.extend(["--pcap", &file, "--"]);
        words.extend(fetch);
        let fields = |filter: &str, field: &str| {
            let line = ["tshark", "-r", &file, "-Y", filter, "-T", "fields", "-e", field];
            let out = ns.run(&line).ok().stdout;
            out.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        // Retry if the kernel was delayed: late acknowledgements cause probes.
        let is_quiet = || {
            run(&ns, &words).ok();
            let odd = "tcp.analysis.retransmission || tcp.analysis.lost_segment";
            fields(odd, "frame.number").is_empty()
        };
        assert!((0..5).any(|_| is_quiet()), "{mode:?}: something is lost each time");
        assert_eq!(
            fields("tcp.flags.syn==1 && tcp.flags.ack==0", "tcp.dstport"),
            ["7630"],
            "{mode:?}"
        );
        assert_eq!(
            fields("tcp.flags.syn==1 && tcp.flags.ack==1", "tcp.srcport"),
            ["7630"],
            "{mode:?}"
        );
        assert_eq!(fields("http.request", "http.request.uri"), ["/"], "{mode:?}");
        assert_eq!(fields("http.response", "http.content_length"), ["19000"], "{mode:?}");
        assert!(!fields("tcp.flags.fin==1", "frame.number").is_empty(), "{mode:?}");
        let wrong = fields("_ws.malformed || ip.checksum.status == 0", "frame.number");
        assert!(wrong.is_empty(), "{mode:?}: {wrong:?}");
    }
    let ns = Namespace::new();
    refused(
        &run(&ns, &["--pcap", "/no/such/folder/file", "--", "true"]),
        125,
        &["/no/such/folder/file"],
    );
}

#[test]
fn a_capture_that_cannot_be_written_is_a_failure() {
    // Captures are not supported with --inline.
    if is_inline() {
        return;
    }
    let ns = Namespace::new();
    for (program, code) in [("true", 125), ("false", 1)] {
        let out = run(&ns, &["--pcap", "/dev/full", "--", program]);
        refused(&out, code, &["the capture is incomplete", "No space left"]);
    }
}

#[test]
fn sockets_of_a_running_stack() {
    let (ns, folder) = (Namespace::new(), Scratch::new());
    let script = folder.write(
        "open.py",
        "import socket,time\na=socket.socket();a.bind(('127.0.0.1',7640));a.listen(7)\n\
         c=socket.socket();c.setsockopt(1,47,1000000);c.connect(('127.0.0.1',7640))\n\
         s,_=a.accept();c.sendall(b'x'*100)\n\
         u=socket.socket(type=socket.SOCK_DGRAM);u.bind(('0.0.0.0',7641))\n\
         print('open',flush=True);time.sleep(60)",
    );
    let process = start(&ns, Mode::Rootless, &[], &["python3", &script]);
    eventually("the sockets are open", || process.stdout() == "open\n");
    let (towpath, pid) = (towpath(), process.id());
    let ss = |options: &[&str]| {
        let pid = pid.to_string();
        ns.run(&[&[towpath.as_str(), "ss"], options, &[pid.as_str()]].concat()).ok().stdout
    };
    let all: Value = serde_json::from_str(&ss(&["-aj"])).expect("JSON");
    let sockets = all.as_array().expect("an array");
    let with = |state: &str| sockets.iter().filter(|s| s["state"] == state).collect::<Vec<_>>();
    assert_eq!(with("LISTEN").len(), 1, "{all:#}");
    assert_eq!(with("LISTEN")[0]["local"], "127.0.0.1:7640");
    assert_eq!(with("LISTEN")[0]["send_q"], 7, "the backlog: {all:#}");
    assert_eq!(with("ESTAB").len(), 2, "{all:#}");
    assert_eq!(with("UNCONN")[0]["local"], "0.0.0.0:7641", "{all:#}");
    let server =
        with("ESTAB").into_iter().find(|s| s["local"] == "127.0.0.1:7640").expect("server");
    assert_eq!(server["recv_q"], 100, "{all:#}");
    assert!(server["remote"].as_str().is_some_and(|r| r.starts_with("127.0.0.1:")), "{all:#}");
    assert!(sockets.iter().all(|s| s["pid"] == pid && s["program"] == "python3"), "{all:#}");
    assert_eq!(
        serde_json::from_str::<Value>(&ss(&["-tlj"])).expect("JSON").as_array().map(Vec::len),
        Some(1)
    );
    let table = ss(&["-tan"]);
    assert!(table.starts_with("State"), "{table}");
    assert_eq!(table.lines().filter(|l| l.starts_with("ESTAB")).count(), 2, "{table}");
    let info = ss(&["-ti"]);
    // SO_MAX_PACING_RATE is set at one end.
    let paced = info.matches(" pacing_rate 8Mbps/8Mbps ").count();
    assert!(info.contains("cubic") && paced == 1, "{info}");
    assert_eq!(server["pacing_rate"], Value::Null, "{all:#}");
    process.stop();
    let gone = ns.run(&[towpath.as_str(), "ss", "-aj", &pid.to_string()]);
    assert_eq!(gone.code(), 2, "{}", gone.stdout);
}

#[test]
fn completions_and_help() {
    let (ns, towpath) = (Namespace::new(), towpath());
    for shell in ["bash", "fish", "zsh"] {
        let script = ns.run(&[&towpath, "completions", shell]).ok().stdout;
        assert!(script.contains("towpath") && script.contains("publish"), "{shell}");
    }
    let script = format!("source <({towpath} completions bash) && complete -p towpath");
    assert!(ns.shell(&script).ok().stdout.contains("towpath"));
    for words in [&["--help"][..], &["run", "--help"], &["ss", "--help"], &["--version"]] {
        let out = ns.run(&[&[towpath.as_str()], words].concat()).ok();
        assert!(!out.stdout.is_empty() && out.stderr.is_empty(), "{words:?}");
    }
}

/// Closed standard streams must not cause an error.
#[test]
fn closed_standard_streams() {
    let (ns, towpath) = (Namespace::new(), towpath());
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let out = ns.run(&["sh", "-c", &format!("{towpath} run -q -- sh -c 'exit 7' {closed}")]);
        assert_eq!(out.code(), 7, "{closed}: {}", out.stderr);
    }
    let out = ns.shell(&format!("{towpath} run -q -- yes | head -n 2")).stdout;
    assert_eq!(out, "y\ny\n");
    let echoed = format!(
        "echo input | timeout {} {towpath} run -q -- cat",
        Duration::from_secs(10).as_secs()
    );
    assert_eq!(ns.shell(&echoed).ok().stdout, "input\n");
}

/// As in `towpath completions bash | head -1`, the reader is gone before any output.
#[test]
fn a_reader_that_goes_early_is_no_error() {
    let ns = Namespace::new();
    let line = format!("exec 3> >(exit); wait $!; {} completions bash >&3", towpath());
    let out = ns.run(&["bash", "-c", &line]);
    assert_eq!((out.code(), out.stderr.as_str()), (0, ""));
}
