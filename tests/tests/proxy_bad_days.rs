//! `towpath proxy` under adverse conditions: stalled servers, a device that goes down, address
//! changes, descriptor exhaustion, and many clients. `docs/proxy.md` lists them. Skipped without
//! root.

use rustix::process::Signal;
use towpath_tests::proxy_lab::{Lab, ROUTED, counter};
use towpath_tests::{PATIENCE, Process, Scratch, eventually, towpath, wait_for_port};

/// TCP server whose behaviour depends on the first byte of a connection:
/// - `e` echoes until the end;
/// - `r` resets after ten bytes;
/// - `b` sends 20 MB and closes;
/// - `c` waits for a connection with `g`, and then counts bytes until the end.
const SERVER: &str = "
import socket, struct, threading
s = socket.create_server(('::', 7810), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
release = threading.Event()
def serve(c):
    what = c.recv(1)
    if what == b'r':
        c.sendall(b'ten bytes.')
        c.recv(1)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    elif what == b'b': c.sendall(b'x' * 20_000_000)
    elif what == b'e':
        while d := c.recv(65536): c.sendall(d)
    elif what == b'g': release.set()
    elif what == b'c':
        release.wait()
        n = 0
        while d := c.recv(1 << 20): n += len(d)
        c.sendall(str(n).encode())
    c.close()
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";

impl Day {
    fn new() -> Option<Self> {
        let lab = Lab::new()?;
        let server = lab.there.spawn(&["python3", "-c", SERVER]);
        wait_for_port(&lab.there, "10.9.0.1", 7810);
        Some(Self { lab, _server: server })
    }

    /// Returns whether an echo through the proxy works.
    fn works(&self) -> bool {
        let script = "import socket\n\
            s=socket.create_connection(('10.9.0.1',7810),5); s.sendall(b'ehello')\n\
            assert s.recv(9)==b'hello'";
        self.lab.here.run(&["python3", "-c", script]).success()
    }
}

struct Day {
    lab: Lab,
    _server: Process,
}

/// Options that print the counters as JSON at the end.
fn counted() -> Vec<&'static str> {
    [&ROUTED[..], &["--stats=json"]].concat()
}

#[test]
fn a_reset_comes_behind_the_bytes_before_it() {
    let Some(day) = Day::new() else { return };
    let _proxy = day.lab.proxy(&ROUTED);
    for host in ["10.9.0.1", "fd00:9::1"] {
        let script = format!(
            "import socket\ns=socket.create_connection(('{host}',7810)); s.settimeout(30)\n\
             s.sendall(b'r'); got=b''\n\
             while len(got)<10: got+=s.recv(99)\n\
             assert got==b'ten bytes.',got\n\
             s.sendall(b'x')\n\
             try: print('end',s.recv(9))\nexcept ConnectionResetError: print('reset')"
        );
        assert_eq!(day.lab.python(&script), "reset\n", "{host}");
    }
}

/// SYNs to 10.9.77.0/24 get no answer. Their clients time out, and other clients are not affected.
#[test]
fn addresses_that_do_not_answer_hold_nobody_up() {
    let Some(day) = Day::new() else { return };
    day.lab.there.shell("ip route add blackhole 10.9.77.0/24").ok();
    let proxy = day.lab.proxy(&counted());
    let script = "import socket,select\n\
        def begin(n):\n\
        \x20s=socket.socket(); s.setblocking(False)\n\
        \x20s.connect_ex(('10.9.77.%d'%(1+n%250),1000+n)); return s\n\
        waiting=[begin(n) for n in range(300)]\n\
        for _ in range(20):\n\
        \x20c=socket.create_connection(('10.9.0.1',7810),30); c.sendall(b'ehello')\n\
        \x20assert c.recv(9)==b'hello'; c.close()\n\
        assert not select.select([],waiting,[],0)[1]\n\
        print('silence')";
    assert_eq!(day.lab.python(script), "silence\n");
    let output = proxy.stop();
    let count = |name| counter(&output.stderr, "gateway", name);
    assert_eq!((count("tcp_connected"), count("tcp_refused")), (20, 0), "{}", output.stderr);
}

#[test]
fn a_device_that_was_down_carries_again() {
    let Some(day) = Day::new() else { return };
    let mut proxy = day.lab.proxy(&ROUTED);
    for _ in 0..2 {
        assert!(day.works());
        day.lab.here.shell("ip link set tw0 down; ip link set tw0 up").ok();
        // The kernel has removed the route together with the link.
        day.lab.here.shell("ip route add 10.9.0.0/16 dev tw0").ok();
    }
    assert!(day.works() && proxy.is_running());
}

/// Addresses of one family: the host's before and after the change, and the server's.
struct Change {
    before: &'static str,
    after: &'static str,
    server: &'static str,
    /// Commands that change the host's address.
    commands: &'static str,
}

const CHANGES: [Change; 2] = [
    Change {
        before: "192.0.2.1",
        after: "192.0.2.3",
        server: "10.9.0.1",
        commands: "ip addr del 192.0.2.1/24 dev va; ip addr add 192.0.2.3/24 dev va; \
                   ip route replace default via 192.0.2.2",
    },
    Change {
        before: "fd00:2::1",
        after: "fd00:2::3",
        server: "fd00:9::1",
        commands: "ip addr add fd00:2::3/64 dev va nodad; ip addr del fd00:2::1/64 dev va; \
                   ip -6 route replace default via fd00:2::2",
    },
];

/// The source address of towpath's own sockets changes, as after a change of network.
#[test]
fn addresses_of_the_host_may_change() {
    for Change { before, after, server, commands } in CHANGES {
        let Some(day) = Day::new() else { return };
        let echo = format!(
            "import socket\ns=socket.socket(10 if ':' in '{server}' else 2,2)\n\
             s.bind(('{server}',7811))\n\
             while True:\n d,a=s.recvfrom(99); s.sendto(a[0].encode(),a)"
        );
        let _echo = day.lab.there.spawn(&["python3", "-c", &echo]);
        eventually("the echo", || day.lab.there.shell("ss -lun | grep -q :7811").success());
        let proxy = day.lab.proxy(&counted());
        let ping = day.lab.here.spawn(&["ping", "-n", "-i", "0.2", server]);
        let replies = || ping.stdout().matches(" ttl=").count();
        eventually("pings", || replies() > 1);
        // The client sends from the same port before and after the change.
        let script = format!(
            "import socket,subprocess\n\
             s=socket.socket(10 if ':' in '{server}' else 2,2); s.settimeout(1)\n\
             c=socket.create_connection(('{server}',7810)); c.sendall(b'e')\n\
             def ask():\n\
             \x20for _ in range(30):\n\
             \x20\x20try: s.sendto(b'x',('{server}',7811)); return s.recv(99).decode()\n\
             \x20\x20except OSError: pass\n\
             print(ask()); subprocess.run('{commands}',shell=True,check=True)\n\
             print(ask())\n\
             d=socket.create_connection(('{server}',7810),30); d.sendall(b'ehello')\n\
             assert d.recv(9)==b'hello'"
        );
        assert_eq!(day.lab.python(&script), format!("{before}\n{after}\n"));
        let answered = replies();
        eventually("pings from the other address", || replies() > answered + 2);
        let output = proxy.stop();
        assert!(counter(&output.stderr, "gateway", "address_lost") >= 2, "{}", output.stderr);
    }
}

/// A host without an address for a while. New flows get a source address that receives no answers.
struct Gap {
    server: &'static str,
    /// Commands that remove the host's address, and commands that add the next one and its routes.
    lose: &'static str,
    gain: [&'static str; 2],
    after: &'static str,
}

const GAPS: [Gap; 2] = [
    Gap {
        server: "10.9.0.1",
        lose: "ip addr del 192.0.2.1/24 dev va",
        gain: ["ip addr add 192.0.2.3/24 dev va", "ip route add default via 192.0.2.2"],
        after: "192.0.2.3",
    },
    Gap {
        server: "fd00:9::1",
        lose: "ip addr add fd00:4::1/128 dev lo nodad; ip -6 addr flush dev va",
        gain: [
            "ip addr add fd00:2::3/64 dev va nodad",
            "ip -6 route replace default via fd00:2::2",
        ],
        after: "fd00:2::3",
    },
];

/// Pings, datagrams and connections that start while the host has no address. The kernel assigns
/// another source address, and the flows move to the next address later.
#[test]
fn flows_that_begin_between_two_addresses_leave_from_the_next() {
    for Gap { server, lose, gain, after } in GAPS {
        let Some(day) = Day::new() else { return };
        let family = if server.contains(':') { 10 } else { 2 };
        let echo = format!(
            "import socket\ns=socket.socket({family},2); s.bind(('{server}',7811))\n\
             while True:\n d,a=s.recvfrom(99)\n\
             \x20try: s.sendto(a[0].encode(),a)\n\
             \x20except OSError: pass"
        );
        let _echo = day.lab.there.spawn(&["python3", "-c", &echo]);
        eventually("the echo", || day.lab.there.shell("ss -lun | grep -q :7811").success());
        let proxy = day.lab.proxy(&counted());
        day.lab.here.shell(lose).ok();
        let ping = day.lab.here.spawn(&["ping", "-n", "-i", "0.2", server]);
        let script = format!(
            "import socket\n\
             s=socket.socket({family},2); s.settimeout(.3)\n\
             c=socket.socket({family}); c.setblocking(False); c.connect_ex(('{server}',7810))\n\
             while True:\n\
             \x20try: s.sendto(b'x',('{server}',7811)); print(s.recv(99).decode()); break\n\
             \x20except OSError: pass\n\
             c.settimeout(60); c.sendall(b'ehello'); assert c.recv(9)==b'hello'"
        );
        let client = day.lab.here.spawn(&["python3", "-c", &script]);
        let id = proxy.id().to_string();
        eventually("flows of all kinds", || {
            let shown = Process::spawn(&[&towpath(), "ss", "-a", &id]).wait(PATIENCE).ok().stdout;
            ["icmp", "udp", "tcp"].iter().all(|kind| shown.contains(kind))
        });
        // Without routes, the source address does not change yet.
        for command in gain {
            day.lab.here.shell(command).ok();
        }
        assert_eq!(client.wait(PATIENCE).ok().stdout, format!("{after}\n"));
        eventually("pings", || ping.stdout().contains(" ttl="));
        let output = proxy.stop();
        assert!(counter(&output.stderr, "gateway", "source_moved") > 0, "{}", output.stderr);
    }
}

/// Runs a proxy with a limit of 200 descriptors, and 300 connections that start at once from the
/// `clients` in turn. Returns its output.
fn with_few_descriptors(day: &Day, clients: &[String]) -> String {
    let towpath = towpath();
    let routed = ROUTED.join(" ");
    let line = format!("ulimit -n 200; exec {towpath} proxy --tun tw0 {routed} --stats=json");
    let proxy = day.lab.here.spawn(&["bash", "-c", &line]);
    eventually("the device is up", || proxy.stderr().contains("Ctrl-C ends"));
    let script = format!(
        "import socket,select\n\
         clients={clients:?}\n\
         def begin(n):\n\
         \x20s=socket.socket(); s.bind((clients[n%len(clients)],0)); s.setblocking(False)\n\
         \x20s.connect_ex(('10.9.0.1',7810)); return s\n\
         all=[begin(n) for n in range(300)]; served=0\n\
         while all:\n\
         \x20ready=select.select([],all,[],60)[1]\n\
         \x20assert ready, len(all)\n\
         \x20for s in ready:\n\
         \x20\x20assert s.getsockopt(1,4)==0\n\
         \x20\x20s.setblocking(True); s.settimeout(30); s.sendall(b'ehello')\n\
         \x20\x20assert s.recv(9)==b'hello'; s.close(); all.remove(s); served+=1\n\
         print(served)"
    );
    assert_eq!(day.lab.python(&script), "300\n");
    assert!(day.works());
    proxy.stop().stderr
}

/// A single client leaves descriptors for other clients. Its remaining connections wait until
/// earlier ones end.
#[test]
fn connections_beyond_a_share_of_few_descriptors_wait() {
    let Some(day) = Day::new() else { return };
    let said = with_few_descriptors(&day, &["192.0.2.1".to_owned()]);
    assert!(said.contains("as many as one client may have"), "{said}");
    assert!(counter(&said, "gateway", "tcp_client_full") > 0, "{said}");
}

/// Many clients together exhaust the descriptors, although each has only a few.
#[test]
fn descriptors_that_ran_out_come_back() {
    let Some(day) = Day::new() else { return };
    let clients: Vec<String> = (1..=60).map(|n| format!("10.8.0.{n}")).collect();
    day.lab.here.shell("for n in $(seq 60); do ip addr add 10.8.0.$n/32 dev lo; done").ok();
    let said = with_few_descriptors(&day, &clients);
    assert!(said.contains("the limit of 200 descriptors"), "{said}");
    assert!(counter(&said, "gateway", "tcp_flows_full") > 0, "{said}");
}

/// Opens many connections at once.
fn crowd(day: &Day, count: usize) {
    let script = format!(
        "import asyncio,resource\n\
         h=resource.getrlimit(7)[1]; resource.setrlimit(7,(h,h))\n\
         async def one(n,met):\n\
         \x20r,w=await asyncio.open_connection('10.9.0.1',7812); w.write(b'%d.'%n)\n\
         \x20assert await r.readuntil(b'.')==b'%d.'%n\n\
         \x20met[0]+=1\n\
         \x20while met[0]<{count}: await asyncio.sleep(.05)\n\
         \x20w.close()\n\
         async def all():\n\
         \x20met=[0]; await asyncio.gather(*(one(n,met) for n in range({count})))\n\
         asyncio.run(all()); print('all')"
    );
    assert_eq!(day.lab.python(&script), "all\n");
}

/// Echo server with a high descriptor limit.
const ROOMY: &str = "
import asyncio, resource, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
async def echo(r, w):
    while d := await r.read(999): w.write(d)
    w.close()
async def main():
    s = await asyncio.start_server(echo, '10.9.0.1', int(sys.argv[1]), backlog=65535)
    await s.serve_forever()
asyncio.run(main())
";

fn roomy(day: &Day, port: u16) -> Process {
    let server = day.lab.there.spawn(&["python3", "-c", ROOMY, &port.to_string()]);
    wait_for_port(&day.lab.there, "10.9.0.1", port);
    server
}

#[test]
fn hundreds_connect_at_once() {
    let Some(day) = Day::new() else { return };
    let _roomy = roomy(&day, 7812);
    let proxy = day.lab.proxy(&counted());
    crowd(&day, 500);
    let output = proxy.stop();
    let count = |name| counter(&output.stderr, "gateway", name);
    assert_eq!((count("tcp_connected"), count("tcp_refused")), (500, 0), "{}", output.stderr);
}

/// A flow of the client to each server port, each answered by its own server socket.
#[test]
fn thousands_of_udp_flows_are_kept_apart() {
    let Some(day) = Day::new() else { return };
    let _echo = day.lab.there.spawn(&[
        "python3",
        "-c",
        "import resource,select,socket\n\
         h=resource.getrlimit(7)[1]; resource.setrlimit(7,(h,h))\n\
         e=select.epoll(); all={}\n\
         for p in range(20000,23000):\n\
         \x20s=socket.socket(2,2); s.bind(('10.9.0.1',p)); all[s.fileno()]=s; e.register(s,1)\n\
         m=socket.socket(2,2); m.bind(('10.9.0.1',7813))\n\
         while True:\n\
         \x20for f,_ in e.poll():\n\
         \x20\x20d,a=all[f].recvfrom(99); all[f].sendto(d+b' %d'%all[f].getsockname()[1],a)",
    ]);
    eventually("the servers", || {
        day.lab.there.shell("ss -Hlun sport = :7813 | grep -q .").success()
    });
    let proxy = day.lab.proxy(&counted());
    let script = "import socket\n\
        s=socket.socket(2,2); s.settimeout(5); s.setsockopt(1,8,1<<20)\n\
        def ask(p,word):\n\
        \x20for _ in range(9):\n\
        \x20\x20s.sendto(word,('10.9.0.1',p))\n\
        \x20\x20try:\n\
        \x20\x20\x20while True:\n\
        \x20\x20\x20\x20d,a=s.recvfrom(99)\n\
        \x20\x20\x20\x20if a[1]==p: assert d==word+b' %d'%p,d; return\n\
        \x20\x20except TimeoutError: pass\n\
        \x20raise SystemExit(f'no answer of {p}')\n\
        for word in (b'once',b'again'):\n\
        \x20for p in range(20000,23000): ask(p,word)\n\
        print('all')";
    assert_eq!(day.lab.python(script), "all\n");
    let output = proxy.stop();
    let count = |name| counter(&output.stderr, "gateway", name);
    assert_eq!((count("udp_flows"), count("udp_evicted")), (3000, 0), "{}", output.stderr);
}

/// A peer that does not read blocks only its own connection, and loses nothing.
#[test]
fn a_slow_reader_holds_up_itself_alone() {
    let Some(day) = Day::new() else { return };
    let proxy = day.lab.proxy(&ROUTED);
    let script = "import socket,threading\n\
        to=('10.9.0.1',7810)\n\
        down=socket.create_connection(to); down.settimeout(60); down.sendall(b'b')\n\
        up=socket.create_connection(to); up.settimeout(60); up.sendall(b'c')\n\
        t=threading.Thread(target=up.sendall,args=(b'y'*20_000_000,)); t.start()\n\
        for _ in range(20):\n\
        \x20c=socket.create_connection(to,30); c.sendall(b'ehello')\n\
        \x20assert c.recv(9)==b'hello'; c.close()\n\
        assert t.is_alive()\n\
        g=socket.create_connection(to); g.sendall(b'g')\n\
        t.join(); up.shutdown(1); print(up.recv(99).decode())\n\
        n=0\n\
        while d:=down.recv(1<<20): n+=len(d)\n\
        print(n)";
    assert_eq!(day.lab.python(script), "20000000\n20000000\n");
    // Each direction buffers at most 256 KiB.
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.id())).expect("running");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 64 << 10, "{peak} KiB at most");
}

#[test]
fn a_killed_proxy_starts_again_under_its_clients() {
    let Some(day) = Day::new() else { return };
    for _ in 0..2 {
        let proxy = day.lab.proxy(&ROUTED);
        let folder = Scratch::new();
        let ready = folder.file("ready");
        let script = format!(
            "import os,socket\n\
             all=[socket.create_connection(('10.9.0.1',7810)) for _ in range(50)]\n\
             for s in all: s.sendall(b'ehello'); assert s.recv(9)==b'hello'\n\
             open('{ready}','w').close()\n\
             while True: os.read(0,1) or __import__('time').sleep(1)"
        );
        let _clients = day.lab.here.spawn(&["python3", "-c", &script]);
        eventually("clients are connected", || std::path::Path::new(&ready).exists());
        proxy.signal(Signal::KILL);
        proxy.wait(PATIENCE);
        eventually("device and routes have gone", || day.lab.is_clean());
    }
    let _proxy = day.lab.proxy(&ROUTED);
    assert!(day.works());
}

#[test]
fn flows_are_shown_with_their_destinations_and_bytes() {
    let Some(day) = Day::new() else { return };
    let proxy = day.lab.proxy(&ROUTED);
    let folder = Scratch::new();
    let ready = folder.file("ready");
    let script = format!(
        "import socket,time\n\
         s=socket.create_connection(('10.9.0.1',7810)); s.sendall(b'ehello'); s.recv(9)\n\
         u=socket.socket(2,2); u.sendto(b'seven..',('10.9.0.1',7899))\n\
         p=socket.socket(10,1); p.connect(('fd00:9::1',7810))\n\
         open('{ready}','w').close()\n\
         time.sleep(100)"
    );
    let _client = day.lab.here.spawn(&["python3", "-c", &script]);
    eventually("a client is connected", || std::path::Path::new(&ready).exists());
    let id = proxy.id().to_string();
    let towpath = towpath();
    let shown = Process::spawn(&[&towpath, "ss", "-j", &id]).wait(PATIENCE).ok().stdout;
    let rows: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let rows = rows.as_array().expect("an array");
    let row = |remote: &str, proto: &str| {
        let mut all = rows.iter();
        all.find(|row| row["remote"] == remote && row["proto"] == proto).expect(&shown)
    };
    let tcp = row("10.9.0.1:7810", "tcp");
    assert_eq!((&tcp["bytes_to_server"], &tcp["bytes_to_client"]), (&6.into(), &5.into()));
    assert!(tcp["local"].as_str().is_some_and(|client| client.starts_with("198.18.0.1:")));
    assert!(tcp["via"].as_str().is_some_and(|via| via.starts_with("192.0.2.1:")), "{shown}");
    assert_eq!((&tcp["state"], &tcp["program"]), (&"ESTAB".into(), &"proxy".into()));
    assert_eq!(row("10.9.0.1:7899", "udp")["bytes_to_server"], 7);
    assert_eq!(row("[fd00:9::1]:7810", "tcp")["bytes_to_server"], 0);
    let table = Process::spawn(&[&towpath, "ss", "-tn", &id]).wait(PATIENCE).ok().stdout;
    assert!(table.contains("bytes_to_server:6 bytes_to_client:5 via:192.0.2.1:"), "{table}");
}

mod nightly {
    use super::*;

    /// Clients beyond the limit of 16,384 flows are served when others end. Clients and servers are
    /// split into two processes each, because of their descriptor limits.
    #[test]
    fn twenty_thousand_connect_at_once() {
        let Some(day) = Day::new() else { return };
        let ports = [7812, 7814];
        let _roomy = ports.map(|port| roomy(&day, port));
        let proxy = day.lab.proxy(&counted());
        let clients = ports.map(|port| {
            let script = format!(
                "import asyncio,resource\n\
                 h=resource.getrlimit(7)[1]; resource.setrlimit(7,(h,h))\n\
                 async def one(n):\n\
                 \x20r,w=await asyncio.open_connection('10.9.0.1',{port}); w.write(b'%d.'%n)\n\
                 \x20assert await r.readuntil(b'.')==b'%d.'%n\n\
                 \x20await asyncio.sleep(10); w.close()\n\
                 async def all(): await asyncio.gather(*(one(n) for n in range(10_000)))\n\
                 asyncio.run(all()); print('all')"
            );
            day.lab.here.spawn(&["python3", "-c", &script])
        });
        for client in clients {
            assert_eq!(client.wait(5 * PATIENCE).ok().stdout, "all\n");
        }
        let output = proxy.stop();
        let count = |name| counter(&output.stderr, "gateway", name);
        assert_eq!(
            (count("tcp_connected"), count("tcp_refused")),
            (20_000, 0),
            "{}",
            output.stderr
        );
    }
}
