//! What the network is to a program: IPv6 as well as IPv4, ping, UDP, names, and captures of it all.

use towpath_tests::{Mode, Namespace, Scratch, eventually, run, start, towpath, wait_for_port};

/// A UDP server that answers each datagram in capitals, on both families.
const UDP_ECHO: &str = "import socket,sys\n\
    s=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); s.setsockopt(41,26,0); s.bind(('::',int(sys.argv[1])))\n\
    while True:\n d,a=s.recvfrom(65536); s.sendto(d.upper(),a)";

/// A client that sends three sizes and checks the answers.
const UDP_CLIENT: &str = "import socket,sys\n\
    i=socket.getaddrinfo(sys.argv[1],int(sys.argv[2]),type=socket.SOCK_DGRAM)[0]\n\
    s=socket.socket(*i[:3]); s.settimeout(5); s.connect(i[4])\n\
    for n in (1,1200,9000):\n s.send(b'a'*n); assert s.recv(65536)==b'A'*n,n\n\
    print('echoed')";

#[test]
fn ipv6_in_both_directions() {
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        folder.write("index.html", "over IPv6\n");
        let root = folder.path().to_str().expect("plain");
        let serve = ["python3", "-m", "http.server", "-b", "::", "-d", root];
        let (options, url, peer) = match mode {
            Mode::Rootless => (&["-p", "[::1]:7601:80"][..], "http://[::1]:7601/", "[fd00:2::2]"),
            Mode::Tap => (&["--tap"][..], "http://[fd00:77::2]:80/", "[fd00:77::1]"),
        };
        let towpath = towpath();
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(options);
        line.push("--");
        line.extend(serve);
        line.push("80");
        let server = ns.spawn(&line);
        eventually("a page over IPv6", || {
            ns.run(&["curl", "-gsS", "-m", "5", url]).stdout == "over IPv6\n"
        });
        drop(server);

        let mut serve = serve.to_vec();
        serve.push("7602");
        let _host = ns.spawn(&serve);
        wait_for_port(&ns, "::1", 7602);
        let url = format!("http://{peer}:7602/");
        let page = run(&ns, mode, &[], &["curl", "-gsS", "-m", "10", &url]).ok();
        assert_eq!(page.stdout, "over IPv6\n", "{mode:?}");
        let refused =
            run(&ns, mode, &[], &["curl", "-gsS", "-m", "10", &format!("http://{peer}:9/")]);
        assert_eq!(refused.code(), 7, "{mode:?}: {}", refused.stderr);
    }
}

#[test]
fn udp_in_both_directions() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let towpath = towpath();
        let options: &[&str] = match mode {
            Mode::Rootless => &["-p", "7603:7603/udp"],
            Mode::Tap => &["--tap"],
        };
        let mut line = vec![towpath.as_str(), "run"];
        line.extend(options);
        line.extend(["--", "python3", "-c", UDP_ECHO, "7603"]);
        let server = ns.spawn(&line);
        eventually("an answer", || {
            ns.run(&["python3", "-c", UDP_CLIENT, mode.host(), "7603"]).stdout == "echoed\n"
        });
        drop(server);

        let _host = ns.spawn(&["python3", "-c", UDP_ECHO, "7604"]);
        eventually("the host's server", || ns.shell("ss -lun | grep -q 7604").success());
        let out = run(&ns, mode, &[], &["python3", "-c", UDP_CLIENT, mode.peer(), "7604"]).ok();
        assert_eq!(out.stdout, "echoed\n", "{mode:?}");
        // Nobody there: the ICMP error arrives as the error of the connected socket.
        let script = "import socket,sys\ns=socket.socket(2,2); s.settimeout(5); s.connect((sys.argv[1],9)); s.send(b'x')\n\
            try: s.recv(10)\nexcept ConnectionRefusedError: print('refused')";
        let out = run(&ns, mode, &[], &["python3", "-c", script, mode.peer()]).ok();
        assert_eq!(out.stdout, "refused\n", "{mode:?}");
    }
}

/// The program pings the host, and over TAP the host pings the program.
#[test]
fn ping() {
    if Mode::all().len() == 1 {
        // Whether a user may ping is the host's setting.
        return;
    }
    let script = "import socket,struct,sys,time\n\
        s=socket.socket(2,2,1); s.settimeout(5); s.connect((sys.argv[1],0))\n\
        s.send(struct.pack('!BBHHH',8,0,0,0,7)+b'towpath'); r=s.recv(100)\n\
        assert r[0]==0 and r[6:8]==b'\\0\\7' and r[8:]==b'towpath',r\nprint('pong')";
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let out = run(&ns, mode, &[], &["python3", "-c", script, mode.peer()]).ok();
        assert_eq!(out.stdout, "pong\n", "{mode:?}");
    }
    let ns = Namespace::new();
    let _sleeper = start(&ns, Mode::Tap, &[], &["sleep", "30"]);
    for (host, option) in [("10.77.0.2", "-4"), ("fd00:77::2", "-6")] {
        eventually(&format!("{host} answers"), || {
            ns.run(&["ping", option, "-c", "2", "-i", "0.2", "-W", "2", host]).success()
        });
    }
}

/// Names resolve as on the host: the C library's resolver stays with the kernel.
#[test]
fn names_resolve_as_on_the_host() {
    let ns = Namespace::new();
    let query = ["getent", "ahosts", "localhost"];
    let theirs = ns.run(&query).ok();
    let ours = run(&ns, Mode::Rootless, &[], &query).ok();
    assert_eq!(ours.stdout, theirs.stdout);
}

/// The capture shows a handshake and data that tshark finds no fault with.
#[test]
fn captures_are_sound() {
    for &mode in Mode::all() {
        let (ns, folder) = (Namespace::new(), Scratch::new());
        folder.write("index.html", "captured\n".repeat(5000));
        let _host = ns.spawn(&[
            "python3",
            "-m",
            "http.server",
            "-d",
            folder.path().to_str().expect("plain"),
            "7605",
        ]);
        wait_for_port(&ns, "127.0.0.1", 7605);
        let (towpath, file) = (towpath(), folder.file("run.pcapng"));
        let url = format!("http://{}:7605/", mode.peer());
        let mut line = vec![towpath.as_str(), "run", "--pcap", &file];
        if mode == Mode::Tap {
            line.push("--tap");
        }
        line.extend(["--", "curl", "-sS", "-o", "/dev/null", &url]);
        ns.run(&line).ok();
        let count = |filter: &str| {
            let out = ns
                .run(&["tshark", "-r", &file, "-Y", filter, "-T", "fields", "-e", "frame.number"])
                .ok();
            out.stdout.lines().count()
        };
        assert_eq!(count("tcp.flags.syn == 1 && tcp.flags.ack == 0"), 1, "{mode:?}");
        assert!(count("http.response.code == 200 || tcp.len > 1000") > 0, "{mode:?}");
        assert_eq!(
            // The kernel, 10.77.0.1, repeats itself when we had no processor for a few milliseconds.
            count(
                "(tcp.analysis.retransmission && ip.src != 10.77.0.1) || tcp.analysis.lost_segment"
            ),
            0,
            "{mode:?}"
        );
        assert_eq!(count("_ws.malformed || ip.checksum.status == 0"), 0, "{mode:?}");
    }
}
