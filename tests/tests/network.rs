//! The network as seen by a program: IPv4 and IPv6, ping, UDP, name resolution, and captures.

use towpath_tests::{
    Mode, Namespace, Scratch, eventually, program, run, start, towpath, wait_for_port,
};

/// UDP server for both families that answers each datagram in capital letters.
const UDP_ECHO: &str = "import socket,sys\n\
    s=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); s.setsockopt(41,26,0); \
    s.bind(('::',int(sys.argv[1])))\n\
    while True:\n d,a=s.recvfrom(65536); s.sendto(d.upper(),a)";

/// UDP client that sends three sizes and checks the answers.
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
        // Without a receiver, the ICMP error is reported on the connected socket.
        let script = "import socket,sys\ns=socket.socket(2,2); s.settimeout(5); \
                      s.connect((sys.argv[1],9)); s.send(b'x')\n\
            try: s.recv(10)\nexcept ConnectionRefusedError: print('refused')";
        let out = run(&ns, mode, &[], &["python3", "-c", script, mode.peer()]).ok();
        assert_eq!(out.stdout, "refused\n", "{mode:?}");
    }
}

/// The program pings the host, and over TAP the host pings the program.
#[test]
fn ping() {
    if Mode::all().len() == 1 {
        // A setting of the host decides whether users may ping.
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

/// Names resolve as on the host, because the C library's resolver uses the kernel's sockets.
#[test]
fn names_resolve_as_on_the_host() {
    let ns = Namespace::new();
    let query = ["getent", "ahosts", "localhost"];
    let theirs = ns.run(&query).ok();
    let ours = run(&ns, Mode::Rootless, &[], &query).ok();
    assert_eq!(ours.stdout, theirs.stdout);
}

/// Nameserver with a single answer, 192.0.2.7, over UDP and TCP.
const NAMESERVER: &str = "import socket,struct,sys,threading\n\
    at=(sys.argv[1],53)\n\
    def answer(q):\n\
    \x20 end=q.index(b'\\0',12)+5\n\
    \x20 head=q[:2]+struct.pack('>HHHHH',0x8180,1,1,0,0)\n\
    \x20 return head+q[12:end]+b'\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4'+bytes([192,0,2,7])\n\
    u=socket.socket(type=socket.SOCK_DGRAM); u.bind(at)\n\
    t=socket.create_server(at)\n\
    def tcp():\n\
    \x20 while True:\n\
    \x20  c,_=t.accept(); q=c.recv(4096)[2:]\n\
    \x20  if q: a=answer(q); c.sendall(struct.pack('>H',len(a))+a)\n\
    threading.Thread(target=tcp,daemon=True).start()\n\
    while True:\n\
    \x20 q,a=u.recvfrom(4096); u.sendto(answer(q),a)";

/// A host with systemd-resolved has a nameserver on its loopback. Node.js queries it directly, and
/// so does this program, over TCP.
#[test]
fn a_nameserver_on_the_hosts_loopback_answers() {
    const BY_TCP: &str = "import socket,struct\n\
        lines=[l.split() for l in open('/etc/resolv.conf')]\n\
        at=[l[1] for l in lines if l and l[0]=='nameserver'][0]\n\
        q=b'\\0\\7\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\4name\\7example\\0\\0\\1\\0\\1'\n\
        s=socket.create_connection((at,53),5); s.sendall(struct.pack('>H',len(q))+q)\n\
        print('.'.join(map(str,s.recv(4096)[-4:])))";
    const BY_NODE: &str =
        "require('dns').resolve4('name.example', (e, a) => console.log(e || a[0]))";
    let ns = Namespace::new();
    if ns.name().is_none() {
        return;
    }
    let folder = Scratch::new();
    folder.write("resolv.conf", "# a stub\nnameserver 127.0.0.53\noptions edns0\n");
    let _server = ns.spawn(&["python3", "-c", NAMESERVER, "127.0.0.53"]);
    wait_for_port(&ns, "127.0.0.53", 53);
    let (file, towpath) = (folder.file("resolv.conf"), towpath());
    let mount = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
    let node = "node".to_owned();
    for question in [&["python3", "-c", BY_TCP][..], &[&node, "-e", BY_NODE]] {
        for dns in [None, Some("127.0.0.53")] {
            let mut line = vec!["unshare", "-m", "sh", "-c", mount, &file, &towpath, "run"];
            line.extend(["-q", "--no-host-loopback"]);
            line.extend(dns.iter().flat_map(|at| ["--dns", at]));
            line.push("--");
            line.extend(question);
            assert_eq!(ns.run(&line).ok().stdout, "192.0.2.7\n", "{line:?}");
        }
    }
}

/// Programs such as `ip` use netlink.
#[test]
fn netlink_shows_the_stack() {
    for &mode in Mode::all() {
        let ns = Namespace::new();
        let own = if mode == Mode::Tap { "10.77.0.2" } else { "10.0.2.15" };
        let show = |line: &[&str]| run(&ns, mode, &[], line).ok().stdout;
        let addresses = show(&["ip", "-o", "address"]);
        assert!(addresses.contains(&format!("eth0    inet {own}/24")), "{addresses}");
        assert!(addresses.contains("lo    inet 127.0.0.1/8"), "{addresses}");
        assert!(!addresses.contains("towpath0"), "{addresses}");
        let links = show(&["ip", "link", "show", "dev", "eth0"]);
        assert!(links.contains("eth0:") && links.contains("mtu"), "{links}");
        let routes = show(&["ip", "route"]);
        assert!(routes.contains("default") && routes.contains(&format!("src {own}")), "{routes}");
        let way = show(&["ip", "route", "get", "192.0.2.1"]);
        assert!(way.contains(&format!("dev eth0 src {own}")), "{way}");
        let change = run(&ns, mode, &[], &["ip", "link", "set", "lo", "down"]);
        assert!(change.stderr.contains("Operation not permitted"), "{}", change.stderr);
    }
}

/// Three hosts in a row: the one that runs Towpath, a router, and a host behind a link with an MTU
/// of 1400.
struct Row {
    near: Namespace,
    _router: Namespace,
    far: Namespace,
}

impl Row {
    const FAR: [&str; 2] = ["192.0.2.2", "2001:db8:2::2"];
    /// Addresses of the router on the link to the near host.
    const ROUTER: [&str; 2] = ["198.51.100.1", "2001:db8:1::1"];

    /// Creates the namespaces; None without root.
    fn new() -> Option<Self> {
        let (near, router, far) = (Namespace::new(), Namespace::new(), Namespace::new());
        // Disable duplicate address detection, so that the addresses can be used at once.
        let links = format!(
            "set -e; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
             sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0
             ip link add to-near type veth peer name eth0 netns {}
             ip link add to-far mtu 1400 type veth peer name eth0 mtu 1400 netns {}
             ip link set to-near up; ip link set to-far up
             ip addr add 198.51.100.1/24 dev to-near; ip addr add 2001:db8:1::1/64 dev to-near nodad
             ip addr add 192.0.2.1/24 dev to-far; ip addr add 2001:db8:2::1/64 dev to-far nodad",
            near.name()?,
            far.name()?
        );
        router.shell(&links).ok();
        for (host, v4, v6) in
            [(&near, "198.51.100", "2001:db8:1:"), (&far, "192.0.2", "2001:db8:2:")]
        {
            let addresses = format!(
                "set -e; sysctl -qw net.ipv4.ping_group_range='0 2147483647'; ip link set eth0 up
                 ip addr add {v4}.2/24 dev eth0; ip addr add {v6}:2/64 dev eth0 nodad
                 ip route add default via {v4}.1; ip -6 route add default via {v6}:1"
            );
            host.shell(&addresses).ok();
        }
        let row = Self { near, _router: router, far };
        eventually("a way to the far host", || {
            Self::FAR.iter().all(|far| row.near.run(&["ping", "-c1", "-W1", far]).success())
        });
        Some(row)
    }
}

/// Beginning of the scripts: constants for both families.
const FAMILIES: &str = "import socket,struct,sys,time,errno,select\n\
    far=sys.argv[1]; v6=':' in far; family=socket.AF_INET6 if v6 else socket.AF_INET\n\
    LEVEL,TTL,TOS,MTU,DISCOVER=(41,16,67,24,23) if v6 else (0,2,1,14,10)\n\
    def make(kind,proto=0,ttl=None,tos=None):\n\
    \x20s=socket.socket(family,kind,proto); s.settimeout(5)\n\
    \x20if ttl: s.setsockopt(LEVEL,TTL,ttl)\n\
    \x20if tos: s.setsockopt(LEVEL,TOS,tos)\n\
    \x20return s\n\
    def details(s):\n\
    \x20for o in ((51,66) if v6 else (12,13)): s.setsockopt(LEVEL,o,1)\n\
    def receive(s):\n\
    \x20d,c,_,a=s.recvmsg(65536,256); c={k:x[0] for _,k,x in c}\n\
    \x20return d,a,c[52 if v6 else 2],c[67 if v6 else 1]\n";

fn script(body: &str) -> String {
    format!("{FAMILIES}{body}")
}

/// UDP, ping and TCP of a program receive the errors of the host's hops.
#[test]
fn hops_are_seen_from_a_program() {
    let Some(row) = Row::new() else { return };
    let probe = script(
        "u=make(2,ttl=1); u.connect((far,33434)); u.send(b'probe'); time.sleep(.3)\n\
         u.setsockopt(LEVEL,TTL,2); u.send(b'probe')\n\
         try: u.recv(10)\n\
         except ConnectionRefusedError: print('port')\n\
         p=make(2,58 if v6 else 1,ttl=1); p.connect((far,0))\n\
         request=lambda n: struct.pack('!BBHHH',128 if v6 else 8,0,0,0,n)+b'towpath'\n\
         p.send(request(1)); time.sleep(.3)\n\
         p.setsockopt(LEVEL,TTL,2); p.send(request(2))\n\
         while p.recv(100)[6:8]!=b'\\0\\2': pass\n\
         print('pong')\n\
         t=make(1,ttl=1)\n\
         try: t.connect((far,9))\n\
         except OSError as e: print(errno.errorcode[e.errno])\n",
    );
    for (far, router) in Row::FAR.into_iter().zip(Row::ROUTER) {
        let folder = Scratch::new();
        let (towpath, file) = (towpath(), folder.file("run.pcapng"));
        let line = [&towpath, "run", "--pcap", &file, "--", "python3", "-c", &probe, far];
        let out = row.near.run(&line).ok();
        assert_eq!(out.stdout, "port\npong\nEHOSTUNREACH\n", "{far}: {}", out.stderr);
        let (exceeded, unreachable, version) = match far.contains(':') {
            false => ("icmp.type==11", "icmp.type==3 && icmp.code==3", ["ip.src", "ip.proto"]),
            true => {
                ("icmpv6.type==3", "icmpv6.type==1 && icmpv6.code==4", ["ipv6.src", "ipv6.nxt"])
            }
        };
        let shown = |filter: &str| {
            let [src, protocol] = version;
            let fields = ["-T", "fields", "-E", "separator=;", "-e", src, "-e", protocol];
            let mut line = vec!["tshark", "-r", &file, "-Y", filter];
            line.extend(fields);
            row.near.run(&line).ok().stdout
        };
        // Each line has the reporter, and the quoted packet: ours of UDP, ping and TCP.
        let (own, icmp) = if far.contains(':') { ("fd00:2::15", 58) } else { ("10.0.2.15", 1) };
        let expected: String =
            [17, icmp, 6].map(|protocol| format!("{router},{own};{icmp},{protocol}\n")).concat();
        assert_eq!(shown(exceeded), expected);
        assert_eq!(shown(unreachable), format!("{far},{own};{icmp},17\n"));
        // Ignore checksums of the program's own packets, which are left to the device.
        let errors = "(icmp.type==11 || icmp.type==3 || icmpv6.type<128)";
        let bad = format!(
            "_ws.malformed || {errors} && (icmp.checksum.status==0 || icmpv6.checksum.status==0)"
        );
        assert_eq!(shown(&bad), "");
    }
}

/// The scope of a multicast datagram is the same on the stack's link as on the kernel's. The scope
/// is set by the socket option, the control message, or the group. With TTL 0 it stays on the host,
/// where members still receive it.
#[test]
fn groups_are_reached_as_far_as_the_sender_says() {
    if Mode::all().len() == 1 {
        // Capturing on a link requires root.
        return;
    }
    let script = program("scopes.py");
    let line = ["python3", "-B", &script, "eth0", "10.77.0.2"];
    let kernel = Namespace::new();
    // The peer interface has no addresses, so that each packet it receives came over the link.
    let links = "set -e; ip link add eth0 type veth peer name other; \
                 sysctl -qw net.ipv6.conf.other.disable_ipv6=1
         ip addr add 10.77.0.2/24 dev eth0; ip addr add fd00:77::2/64 dev eth0 nodad
         ip link set other up; ip link set eth0 up; ip route add 224.0.0.0/4 dev eth0";
    kernel.shell(links).ok();
    eventually("a link-local address", || {
        let shown =
            kernel.run(&["ip", "-6", "addr", "show", "dev", "eth0", "scope", "link"]).stdout;
        shown.contains("fe80") && !shown.contains("tentative")
    });
    let theirs = kernel.run(&line).ok().stdout;
    let ours = run(&Namespace::new(), Mode::Tap, &[], &line).ok().stdout;
    assert_eq!(ours, theirs);
    // Ensure that the capture on the kernel's link worked.
    assert!(theirs.contains("on the link [5]") && theirs.contains("heard [0] on the link []"));
}

/// Datagrams that are too long are handled as by the kernel, for each value of IP_MTU_DISCOVER. The
/// test compares the results of calls, the error queue, and the packets on the link.
#[test]
fn datagrams_are_cut_or_refused_as_on_the_kernel() {
    if Mode::all().len() == 1 {
        // Capturing on a link requires root.
        return;
    }
    let kernel = Namespace::new();
    let links = "set -e; ip link add eth0 type veth peer name other; \
                 sysctl -qw net.ipv6.conf.other.disable_ipv6=1
         ip addr add 10.77.0.2/24 dev eth0; ip addr add fd00:77::2/64 dev eth0 nodad
         ip link set other up; ip link set eth0 up
         ip neigh add 10.77.0.1 lladdr 02:00:00:00:00:01 dev eth0
         ip neigh add fd00:77::1 lladdr 02:00:00:00:00:01 dev eth0";
    kernel.shell(links).ok();
    for peer in ["10.77.0.1", "fd00:77::1"] {
        let line = ["python3", "-B", &program("mtu.py"), "eth0", peer];
        let theirs = kernel.run(&line).ok().stdout;
        // The neighbour is the TAP device's end in the namespace, and must accept the datagrams
        // without answering.
        let ns = Namespace::new();
        let sink = "import socket,time\ns=socket.socket(10,2); s.setsockopt(41,26,0); \
                    s.bind(('::',7000))\n\
             print('ready',flush=True); time.sleep(60)";
        let sink = ns.spawn(&["python3", "-c", sink]);
        eventually("the sink", || sink.stdout() == "ready\n");
        let ours = run(&ns, Mode::Tap, &[], &line).ok().stdout;
        assert_eq!(ours, theirs, "{peer}");
        assert!(theirs.contains("EMSGSIZE") && theirs.contains("piece"), "{theirs}");
    }
}

/// With IP_RECVERR a socket receives the errors of each hop, as ping and traceroute need.
#[test]
fn hops_report_to_the_program() {
    let Some(row) = Row::new() else { return };
    let probe = script(
        "u=make(2,ttl=1); u.setsockopt(LEVEL,25 if v6 else 11,1); u.sendto(b'probe',(far,33434))\n\
         p=select.poll(); p.register(u,0); assert p.poll(5000)\n\
         data,control,_,addr=u.recvmsg(100,512,socket.MSG_ERRQUEUE)\n\
         c=control[0][2]; \
         print(data,addr[0]==far,addr[1],c[4:7].hex(),socket.inet_ntop(u.family,c[24:40] if v6 \
         else c[20:24]))\n\
         u.setsockopt(LEVEL,DISCOVER,2)\n\
         try: u.sendto(bytes(60000),(far,33434)); print('sent')\n\
         except OSError as e: assert e.errno==errno.EMSGSIZE,e\n\
         assert p.poll(5000)\n\
         data,control,_,addr=u.recvmsg(100,512,socket.MSG_ERRQUEUE)\n\
         e=struct.unpack('iBBBxI',control[0][2][:12]); \
         print(data,addr[0]==far,errno.errorcode[e[0]],e[1:])\n",
    );
    let ends = [("020b00", "Time to live exceeded"), ("030300", "Time exceeded: Hop limit")];
    for ((far, router), (kind, words)) in Row::FAR.into_iter().zip(Row::ROUTER).zip(ends) {
        let towpath = towpath();
        let out = row.near.run(&[&towpath, "run", "--", "python3", "-c", &probe, far]).ok();
        // The stack itself reports datagrams that are too long for its own link.
        let too_long = "b'' True EMSGSIZE (1, 0, 0, 16384)";
        assert_eq!(out.stdout, format!("b'probe' True 33434 {kind} {router}\n{too_long}\n"));
        let out = row.near.run(&[&towpath, "run", "--", "ping", "-n", "-c1", "-t1", "-W5", far]);
        let told = format!("From {router} icmp_seq=1 {words}");
        assert!(out.stdout.contains(&told), "{}{}", out.stdout, out.stderr);
    }
}

/// TTL and traffic class apply to datagrams, including the ECN bits, and to connections.
#[test]
fn ttl_and_class_go_along() {
    let Some(row) = Row::new() else { return };
    let server = script(
        "s=make(2,ttl=33,tos=0x2a); details(s); s.settimeout(60); s.bind((far,7700)); \
         print('ready',flush=True)\n\
         while True:\n d,a,ttl,tos=receive(s); s.sendto(b'%d %#x'%(ttl,tos),a)\n",
    );
    let client = script(
        "s=make(2,ttl=50,tos=0x8b); details(s); s.connect((far,7700)); s.send(b'x')\n\
         d,_,ttl,tos=receive(s); print(d.decode(),ttl,hex(tos))\n\
         t=make(1,tos=0x48); t.connect((far,7701)); t.setsockopt(LEVEL,TOS,0x10); t.send(b'x'); \
         t.recv(1)\n",
    );
    for (far, prefix) in Row::FAR.into_iter().zip(["tos", "class"]) {
        let server = row.far.spawn(&["python3", "-c", &server, far]);
        eventually("the server", || server.stdout().contains("ready"));
        let echo = "import socket,sys\n\
            s=socket.create_server((sys.argv[1],7701),family=socket.AF_INET6 if ':' in \
            sys.argv[1] else 2)\n\
            while True:\n c=s.accept()[0]; c.sendall(c.recv(1))";
        let _echo = row.far.spawn(&["python3", "-c", echo, far]);
        wait_for_port(&row.far, far, 7701);
        let filter = "tcp and dst port 7701";
        let wire = row.far.spawn(&["tcpdump", "-i", "eth0", "-nnvvl", "--immediate-mode", filter]);
        eventually("tcpdump", || wire.stderr().contains("listening on"));
        let out = run(&row.near, Mode::Rootless, &[], &["python3", "-c", &client, far]).ok();
        assert_eq!(out.stdout, "49 0x8b 32 0x2a\n", "{far}: {}", out.stderr);
        // The SYN has the first class, and segments after the change have the second.
        for (class, flags) in [("0x48", "[S"), ("0x10", "[P")] {
            eventually(&format!("{class} on the wire:\n{}", wire.stdout()), || {
                let all = wire.stdout().replace("\n    ", " ");
                let mut packets = all.lines();
                packets.any(|p| p.contains(&format!("{prefix} {class}")) && p.contains(flags))
            });
        }
    }
}

/// A socket that forbids fragmentation learns the path MTU. Another socket sends the datagram in
/// fragments.
#[test]
fn a_path_mtu_is_told() {
    let Some(row) = Row::new() else { return };
    let server = script(
        "s=make(2); s.settimeout(60); s.bind((far,7700)); print('ready',flush=True)\n\
         while True:\n d,a=s.recvfrom(65536); s.sendto(b'%d'%len(d),a)\n",
    );
    let client = script(
        "def mtu(to,size):\n\
         \x20s=make(2); s.setsockopt(LEVEL,DISCOVER,2); s.connect((to,7700))\n\
         \x20refused=0\n\
         \x20while refused<2:\n\
         \x20 try: s.send(b'x'*size)\n\
         \x20 except OSError as e: assert e.errno==errno.EMSGSIZE,e; refused+=1\n\
         \x20 time.sleep(.05)\n\
         \x20return s.getsockopt(LEVEL,MTU)\n\
         print(mtu(far,1430))\n\
         if not v6: print(mtu(sys.argv[2],3000))\n\
         s=make(2); s.setsockopt(LEVEL,DISCOVER,0); s.connect((far,7700)); s.send(b'x'*5000)\n\
         while (d:=s.recv(100))!=b'5000': pass\n\
         print('whole')\n",
    );
    for (far, router) in Row::FAR.into_iter().zip(Row::ROUTER) {
        let server = row.far.spawn(&["python3", "-c", &server, far]);
        eventually("the server", || server.stdout().contains("ready"));
        let client = ["python3", "-c", &client, far, router];
        let out = run(&row.near, Mode::Rootless, &[], &client).ok();
        // IPv6 has no DF bit: the host fragments datagrams that are too long for its own link.
        let expected = if far.contains(':') { "1400\nwhole\n" } else { "1400\n1500\nwhole\n" };
        assert_eq!(out.stdout, expected, "{far}: {}", out.stderr);
    }
}
