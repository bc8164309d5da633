//! `towpath proxy`: programs in a namespace whose routes lead into a TUN device, and servers in
//! another namespace behind a veth pair. Skipped without root.
#![allow(clippy::print_stderr)] // Output for readers of the tests.

use std::collections::HashSet;

use rustix::process::Signal;
use towpath_tests::proxy_lab::{Lab, ROUTED, counter};
use towpath_tests::{Namespace, PATIENCE, Scratch, eventually, towpath, wait_for_port};

/// UDP server that answers with the client's address, a space and the datagram. Bound to one
/// address per family, because a wildcard socket would answer from the address of its veth end.
const UDP_ECHO: &str = "import socket,sys,threading\n\
    def serve(family,host):\n\
    \x20s=socket.socket(family,2); s.bind((host,int(sys.argv[1])))\n\
    \x20while True:\n\
    \x20\x20d,a=s.recvfrom(65536); s.sendto(('%s %d '%a[:2]).encode()+d,a)\n\
    threading.Thread(target=serve,args=(2,'10.9.0.1')).start()\n\
    serve(10,'fd00:9::1')";

/// TCP server that reads a stream to its end, and answers with its length.
const COUNTER: &str = "import socket\n\
    s=socket.create_server(('::',7805),family=socket.AF_INET6,dualstack_ipv6=True)\n\
    while True:\n c,_=s.accept(); n=0\n\
    \x20while d:=c.recv(65536): n+=len(d)\n\
    \x20c.sendall(str(n).encode()); c.close()";

#[test]
fn pages_refusals_and_unreachable_hosts_pass() {
    let Some(lab) = Lab::new() else { return };
    let folder = Scratch::new();
    let _server = lab.serve(&folder);
    let mut options = ROUTED.to_vec();
    options.push("--stats=json");
    let proxy = lab.proxy(&options);
    for host in ["10.9.0.1", "[fd00:9::1]"] {
        let page = lab.curl(&format!("http://{host}:7801/"));
        assert_eq!(page.ok().stdout, "a page\n", "{host}");
    }
    let script = "import socket,errno\n\
        for f,h,p in ((2,'10.9.0.1',9),(10,'fd00:9::1',9),(2,'10.9.66.1',80)):\n\
        \x20print(errno.errorcode[socket.socket(f).connect_ex((h,p))])";
    assert_eq!(lab.python(script), "ECONNREFUSED\nECONNREFUSED\nEHOSTUNREACH\n");
    let output = proxy.stop();
    assert_eq!(output.code(), 0, "{}", output.stderr);
    let count = |name| counter(&output.stderr, "gateway", name);
    assert_eq!((count("tcp_connected"), count("tcp_refused"), count("loops_refused")), (2, 3, 0));
    assert!(counter(&output.stderr, "tun", "rx_frames") > 0);
    assert!(lab.is_clean());
}

#[test]
fn a_half_closed_stream_comes_whole() {
    let Some(lab) = Lab::new() else { return };
    let _server = lab.there.spawn(&["python3", "-c", COUNTER]);
    wait_for_port(&lab.there, "10.9.0.1", 7805);
    let _proxy = lab.proxy(&ROUTED);
    for host in ["10.9.0.1", "fd00:9::1"] {
        let script = format!(
            "import socket\ns=socket.create_connection(('{host}',7805))\n\
             s.sendall(b'x'*5000000); s.shutdown(1)\n\
             while d:=s.recv(99): print(d.decode(),end='')"
        );
        assert_eq!(lab.python(&script), "5000000", "{host}");
    }
}

#[test]
fn udp_has_one_port_whoever_is_written_to() {
    let Some(lab) = Lab::new() else { return };
    let _server = lab.there.spawn(&["python3", "-c", UDP_ECHO, "7802"]);
    let _second = lab.there.spawn(&["python3", "-c", UDP_ECHO, "7803"]);
    eventually("both servers", || {
        lab.there.shell("ss -lun | grep -q 7802 && ss -lun | grep -q 7803").success()
    });
    let _proxy = lab.proxy(&ROUTED);
    // 9000 bytes arrive in fragments, and leave in fragments.
    let script = "import socket\n\
        for f,h in ((2,'10.9.0.1'),(10,'fd00:9::1')):\n\
        \x20s=socket.socket(f,2); s.settimeout(30); seen=set()\n\
        \x20for p in (7802,7803):\n\
        \x20\x20for n in (0,1,1200,9000):\n\
        \x20\x20\x20s.sendto(b'x'*n,(h,p)); d,a=s.recvfrom(65536)\n\
        \x20\x20\x20assert a[:2]==(h,p),a\n\
        \x20\x20\x20ip,port,rest=d.split(b' ',2); assert rest==b'x'*n; seen.add((ip,port))\n\
        \x20assert len(seen)==1,seen\n\
        \x20print(seen.pop()[0].decode())\n\
        s=socket.socket(2,2); s.settimeout(30); s.connect(('10.9.0.1',9)); s.send(b'x')\n\
        try: s.recv(1)\n\
        except ConnectionRefusedError: print('refused')";
    assert_eq!(lab.python(script), "192.0.2.1\nfd00:2::1\nrefused\n");
}

#[test]
fn an_echo_is_the_destinations() {
    let Some(lab) = Lab::new() else { return };
    let _proxy = lab.proxy(&ROUTED);
    for host in ["10.9.0.1", "fd00:9::1"] {
        let pinged = lab.here.run(&["ping", "-c", "1", "-W", "30", host]);
        assert!(pinged.success(), "{host}: {}", pinged.stdout);
    }
    // The first address has no host, so an answer would come from the gateway itself.
    let script = "import socket,struct\n\
        s=socket.socket(2,3,1); s.settimeout(30)\n\
        for h in ('10.9.0.77','10.9.0.2'):\n\
        \x20s.sendto(struct.pack('!BBHHH',8,0,0xf7fd,2,0),(h,0))\n\
        while True:\n d,a=s.recvfrom(999)\n if d[20]==0: print(a[0]); break";
    assert_eq!(lab.python(script), "10.9.0.2\n");
}

#[test]
fn every_question_goes_to_the_nameserver_that_is_named() {
    let Some(lab) = Lab::new() else { return };
    let _server = lab.there.spawn(&[
        "python3",
        "-c",
        "import socket\ns=socket.socket(2,2); s.bind(('10.9.0.1',53))\n\
         while True:\n d,a=s.recvfrom(999); s.sendto(d[:2]+b'\\x81\\x80'+d[4:],a)",
    ]);
    eventually("the nameserver", || lab.there.shell("ss -lun | grep -q 10.9.0.1:53").success());
    let mut options = vec!["--route", "198.51.100.0/24", "--dns", "10.9.0.1"];
    options.extend(["--interface", "va", "--stats=json"]);
    let proxy = lab.proxy(&options);
    let script = "import socket,struct\n\
        s=socket.socket(2,2); s.settimeout(30); s.connect(('198.51.100.53',53))\n\
        q=struct.pack('!6H',0x1234,0x100,1,0,0,0)+b'\\1a\\0'+struct.pack('!2H',1,1)\n\
        s.send(q); r=s.recv(999); assert r[:2]==q[:2] and r[4:]==q[4:],r\n\
        print('answered')";
    assert_eq!(lab.python(script), "answered\n");
    let output = proxy.stop();
    assert_eq!(counter(&output.stderr, "gateway", "dns_answers"), 1);
}

#[test]
fn device_and_routes_vanish_with_a_killed_process() {
    let Some(lab) = Lab::new() else { return };
    let folder = Scratch::new();
    let _server = lab.serve(&folder);
    let proxy = lab.proxy(&ROUTED);
    assert!(lab.curl("http://10.9.0.1:7801/").success());
    assert!(!lab.is_clean());
    proxy.signal(Signal::KILL);
    proxy.wait(PATIENCE);
    eventually("device and routes have gone", || lab.is_clean());
    // The same set-up works again.
    let _proxy = lab.proxy(&ROUTED);
    assert!(lab.curl("http://10.9.0.1:7801/").success());
}

#[test]
fn a_loop_is_found_at_the_start_and_later() {
    let Some(lab) = Lab::new() else { return };
    let (code, message) = lab.refused(&["--route", "10.9.0.0/16"]);
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("add --interface IF"), "{message}");
    let (code, message) = lab.refused(&["--route", "10.9.0.0/16", "--mark", "7"]);
    assert_eq!(code, 125, "{message}");
    assert!(message.contains("ip rule add fwmark 7"), "{message}");
    assert!(lab.is_clean());

    let proxy = lab.proxy(&["--stats=json"]);
    lab.here.shell("ip route add 10.9.0.0/16 dev tw0; ip route add fd00:9::/32 dev tw0").ok();
    for host in ["10.9.0.1", "[fd00:9::1]"] {
        let refused = lab.curl(&format!("http://{host}:80/"));
        assert_eq!(refused.code(), 7, "{host}: {}", refused.stderr);
    }
    eventually("the loop is named", || proxy.stderr().contains("came back into its tunnel"));
    for host in ["10.9.0.1", "fd00:9::1"] {
        let ping = lab.here.run(&["ping", "-n", "-c", "1", host]);
        assert!(ping.stdout.to_lowercase().contains("unreachable"), "{host}: {}", ping.stdout);
    }
    let output = proxy.stop();
    assert_eq!(counter(&output.stderr, "gateway", "loops_refused"), 4);
    assert_eq!(counter(&output.stderr, "gateway", "echo_requests"), 2);
}

/// Two clients send pings with the same identifier, and each receives only its own answers. The
/// host's sockets are raw, or ping sockets allowed by ping_group_range.
#[test]
fn pings_of_clients_with_one_identifier_are_kept_apart() {
    const CLIENT: &str = "
import socket, struct, threading
def sum16(b):
    s = sum(struct.unpack('!%dH' % (len(b) // 2), b)); s = (s >> 16) + (s & 0xffff)
    return ~(s + (s >> 16)) & 0xffff
heard = {}
def client(source, s):
    payload = source.encode().ljust(16)
    for seq in range(3):
        ask = lambda sum: struct.pack('!BBHHH', 8, 0, sum, 7, seq) + payload
        s.sendto(ask(sum16(ask(0))), ('10.9.0.1', 0))
    got = heard[source] = []
    try:
        while True:
            got.append(s.recv(999)[20:]); s.settimeout(60 if len(got) < 3 else .2)
    except TimeoutError: pass
sources = '10.77.0.1', '10.77.0.2'
# Before any answer comes: a raw socket without an address hears those of all.
sockets = [socket.socket(2, socket.SOCK_RAW, 1) for source in sources]
for s, source in zip(sockets, sources): s.bind((source, 0)); s.settimeout(60)
all = [threading.Thread(target=client, args=args) for args in zip(sources, sockets)]
for t in all: t.start()
for t in all: t.join()
for source in sources:
    wanted = [(0, 7, seq, source) for seq in range(3)]
    got = [(m[0], *struct.unpack('!HH', m[4:8]), m[8:].decode().strip()) for m in heard[source]]
    assert got == wanted, got
print('each its own')
";
    let Some(lab) = Lab::new() else { return };
    lab.here.shell("ip addr add 10.77.0.1 dev lo; ip addr add 10.77.0.2 dev lo").ok();
    for groups in ["1 0", "0 0"] {
        lab.here.shell(&format!("echo {groups} > /proc/sys/net/ipv4/ping_group_range")).ok();
        let proxy = lab.proxy(&[&ROUTED[..], &["--stats=json"]].concat());
        assert_eq!(lab.python(CLIENT), "each its own\n", "{groups}");
        // The server sees each client with an identifier of its own.
        let shown = lab.here.run(&[&towpath(), "ss", "-j", &proxy.id().to_string()]).ok().stdout;
        let rows: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        let rows = rows.as_array().expect("an array");
        let via: HashSet<_> = rows.iter().filter_map(|row| row["via"].as_str()).collect();
        assert_eq!((rows.len(), via.len()), (2, 2), "{shown}");
        for host in ["10.9.0.1", "fd00:9::1"] {
            let ping = lab.here.run(&["ping", "-n", "-c", "3", "-i", "0.2", host]).ok().stdout;
            assert!(!ping.contains("DUP"), "{ping}");
        }
        let output = proxy.stop();
        assert_eq!(counter(&output.stderr, "gateway", "echo_replies"), 12, "{}", output.stderr);
    }
}

#[test]
fn a_mark_and_a_rule_lead_past_the_device() {
    let Some(lab) = Lab::new() else { return };
    let folder = Scratch::new();
    let _server = lab.serve(&folder);
    lab.here
        .shell("ip rule add fwmark 7 lookup 100; ip route add default via 192.0.2.2 table 100")
        .ok();
    let _proxy = lab.proxy(&["--route", "10.9.0.0/16", "--mark", "7"]);
    assert_eq!(lab.curl("http://10.9.0.1:7801/").ok().stdout, "a page\n");
}

#[test]
fn a_device_that_was_made_beforehand_stays() {
    let Some(lab) = Lab::new() else { return };
    let folder = Scratch::new();
    let _server = lab.serve(&folder);
    lab.here.shell("ip tuntap add dev tw0 mode tun && ip addr add 198.18.7.1/32 dev tw0").ok();
    let (code, message) = lab.refused(&ROUTED);
    assert_eq!(code, 125, "{message}");
    assert!(message.contains("sudo ip route add 10.9.0.0/16 dev tw0"), "{message}");
    let proxy = lab.proxy(&["--interface", "va"]);
    lab.here.shell("ip route add 10.9.0.0/16 dev tw0").ok();
    assert_eq!(lab.curl("http://10.9.0.1:7801/").ok().stdout, "a page\n");
    let (code, message) = lab.refused(&[]);
    assert_eq!(code, 125, "{message}");
    assert!(message.contains("the TUN device tw0 is in use"), "{message}");
    proxy.stop();
    let shown = lab.here.shell("ip -o -4 addr show dev tw0").ok();
    assert!(shown.stdout.contains("198.18.7.1"), "{}", shown.stdout);
    lab.here.shell("ip link del tw0").ok();
}

#[test]
fn a_deleted_device_is_named_at_the_end() {
    let Some(lab) = Lab::new() else { return };
    let proxy = lab.proxy(&["--interface", "va"]);
    lab.here.shell("ip link del tw0").ok();
    let output = proxy.wait(PATIENCE);
    assert_eq!(output.code(), 125, "{}", output.stderr);
    assert!(output.stderr.contains("tw0 was deleted"), "{}", output.stderr);
}

#[test]
fn traffic_goes_on_when_the_device_went_down_and_up() {
    let Some(lab) = Lab::new() else { return };
    let folder = Scratch::new();
    let _server = lab.serve(&folder);
    let _proxy = lab.proxy(&["--interface", "va"]);
    for _ in 0..2 {
        lab.here.shell("ip link set tw0 up && ip route add 10.9.0.0/16 dev tw0").ok();
        assert_eq!(lab.curl("http://10.9.0.1:7801/").ok().stdout, "a page\n");
        lab.here.shell("ip link set tw0 down").ok();
    }
}

#[test]
fn the_set_up_is_shown_beforehand_and_packets_are_recorded() {
    let Some(lab) = Lab::new() else { return };
    let folder = Scratch::new();
    let _server = lab.serve(&folder);
    let towpath = towpath();
    let mut line = vec![towpath.as_str(), "proxy", "--tun", "tw0", "--dry-run"];
    line.extend(ROUTED);
    let shown = lab.here.run(&line).ok().stdout;
    assert!(shown.contains("ip route add 10.9.0.0/16 dev tw0\n"), "{shown}");
    assert!(lab.is_clean());
    // The printed commands are valid, and create the complete set-up.
    lab.here.shell(&format!("set -e\n{shown}ip link del tw0")).ok();

    let file = folder.path().join("packets.pcapng");
    let mut options = vec!["--pcap", file.to_str().expect("plain")];
    options.extend(ROUTED);
    let proxy = lab.proxy(&options);
    assert!(lab.curl("http://10.9.0.1:7801/").success());
    assert_eq!(proxy.stop().code(), 0);
    let bytes = std::fs::read(&file).expect("a capture");
    // The block type of a section header, and the page.
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    assert!(bytes.windows(7).any(|window| window == b"a page\n"));
}

#[test]
fn mistakes_are_named() {
    let Some(lab) = Lab::new() else { return };
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--interface", "lo", "--route", "10.9.0.0/16"], 2, "nothing leaves this host by lo"),
        (&["--route", "default"], 2, "--route 0.0.0.0/1 --route 128.0.0.0/1"),
        (&["--interface", "va", "--route", "0.0.0.0/0"], 125, "--route 0.0.0.0/1"),
        (&["--address", "192.0.2.1/24"], 125, "on va already"),
        (&["--interface", "nosuch0"], 125, "there is no such interface"),
        (&["--interface", "tw0"], 2, "cannot leave by the device"),
        (&["--route", "10.9.0.1/16"], 2, "give 10.9.0.0/16"),
        (&["--mark", "x"], 2, "is not a mark"),
        (&["--address", "198.18.0.1"], 2, "ADDRESS/LENGTH"),
    ];
    for (options, wanted, word) in cases {
        let (code, message) = lab.refused(options);
        assert_eq!(code, wanted, "{options:?}: {message}");
        assert!(message.contains(word), "{options:?}: {message}");
    }
    // Device names are validated before anything is created.
    let towpath = towpath();
    for (name, more) in [("a/b", None), ("", None), ("a/b", Some("--dry-run"))] {
        let line: Vec<_> = [&*towpath, "proxy", "--tun", name].into_iter().chain(more).collect();
        let output = lab.here.run(&line);
        assert_eq!(output.code(), 2, "{line:?}");
        assert!(output.stderr.contains("is no interface name"), "{}", output.stderr);
    }
    for (name, more) in [("va", None), ("lo", Some("--dry-run")), ("va", Some("--dry-run"))] {
        let line: Vec<_> = [&*towpath, "proxy", "--tun", name].into_iter().chain(more).collect();
        let output = lab.here.run(&line);
        assert_eq!(output.code(), 125, "{line:?}");
        assert!(output.stderr.contains("is not a TUN device"), "{}", output.stderr);
    }
}

/// By default the kernel does not accept its own address as a source from a device.
#[test]
fn forwarded_clients_hear_errors_of_the_proxys_own_host() {
    let Some(lab) = Lab::new() else { return };
    let client = Namespace::new();
    let (Some(here), Some(name)) = (lab.here.name(), client.name()) else { return };
    let commands = format!(
        "set -e\nip link add vc netns {name} type veth peer name vd netns {here}\n\
         ip -n {name} addr add 10.1.0.2/24 dev vc\nip -n {here} addr add 10.1.0.1/24 dev vd\n\
         ip -n {name} link set vc up\nip -n {here} link set vd up\n\
         ip -n {name} route add default via 10.1.0.1\necho 1 > /proc/sys/net/ipv4/ip_forward"
    );
    lab.here.shell(&commands).ok();
    // From now on the default route's router does not answer ARP.
    lab.there.shell("ip addr del 192.0.2.2/24 dev vb").ok();
    lab.here.shell("ip neigh flush dev va").ok();
    let _proxy = lab.proxy(&ROUTED);
    let script = "import socket,errno\n\
        s=socket.socket(); s.settimeout(40)\n\
        print(errno.errorcode[s.connect_ex(('10.9.0.1',80))])";
    assert_eq!(client.run(&["python3", "-c", script]).ok().stdout, "EHOSTUNREACH\n");
    // An existing device is not changed; the message has the command.
    lab.here.shell("ip tuntap add dev tw1 mode tun && ip link set tw1 mtu 1500 up").ok();
    let towpath = towpath();
    let other = lab.here.spawn(&[&towpath, "proxy", "--tun", "tw1", "--interface", "va"]);
    eventually("the device", || other.stderr().contains("Ctrl-C ends"));
    assert!(other.stderr().contains("sysctl -w net/ipv4/conf/tw1/accept_local=1"));
    let setting = lab.here.shell("cat /proc/sys/net/ipv4/conf/tw1/accept_local").ok().stdout;
    assert_eq!(setting, "0\n");
}

#[test]
fn datagrams_and_pings_fit_a_narrower_path() {
    let Some(lab) = Lab::new() else { return };
    let far = Namespace::new();
    let (Some(there), Some(name)) = (lab.there.name(), far.name()) else { return };
    let commands = format!(
        "set -e\nip link add nf netns {there} type veth peer name ng netns {name}\n\
         ip -n {there} link set nf mtu 1280 up\nip -n {name} link set ng mtu 1280 up\n\
         ip -n {there} addr add fd00:9:5::1/64 dev nf nodad\n\
         ip -n {name} addr add fd00:9:5::2/64 dev ng nodad\n\
         ip -n {there} addr add 10.9.5.1/24 dev nf\nip -n {name} addr add 10.9.5.2/24 dev ng\n\
         ip -n {name} route add default via 10.9.5.1\n\
         ip -n {name} route add default via fd00:9:5::1\n\
         echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
    );
    lab.there.shell(&commands).ok();
    let echo = "import socket\ns=socket.socket(10,2); s.bind(('::',7811))\n\
        while True: d,a=s.recvfrom(65536); s.sendto(d,a)";
    let _server = far.spawn(&["python3", "-c", echo]);
    eventually("the server", || far.shell("ss -lun | grep -q 7811").success());
    let _proxy = lab.proxy(&ROUTED);
    // The first datagram is lost, and the router reports why.
    let script = "import socket\n\
        s=socket.socket(10,2); s.settimeout(2); s.connect(('fd00:9:5::2',7811))\n\
        s.setsockopt(41,23,0)\n\
        for length in 1300, 3000:\n\
        \x20for n in range(9):\n\
        \x20 try: s.send(b'x'*length); print(len(s.recv(65536))); break\n\
        \x20 except OSError: pass";
    assert_eq!(lab.python(script), "1300\n3000\n");
    let ping = |dont_fragment: &str| {
        lab.here.run(&["ping", "-n", "-c2", "-W5", "-s1400", "-M", dont_fragment, "10.9.5.2"])
    };
    let refused = ping("do");
    assert!(!refused.success() && refused.stdout.contains("1280"), "{}", refused.stdout);
    assert!(ping("dont").success());
}

#[test]
fn services_of_this_host_are_thought_of_where_all_traffic_is_led_away() {
    let Some(lab) = Lab::new() else { return };
    let halves = ["--route", "0.0.0.0/1", "--route", "128.0.0.0/1", "--interface", "va"];
    let proxy = lab.proxy(&halves);
    let said = proxy.stderr();
    assert_eq!(said.matches("rule add from ADDRESS lookup 100").count(), 1, "{said}");
    assert!(said.contains("via ROUTER dev va table 100"), "{said}");
    drop(proxy.stop());
    assert!(!lab.proxy(&ROUTED).stderr().contains("ip rule add from"));
}

#[test]
fn clients_are_reset_when_the_proxy_ends() {
    let Some(lab) = Lab::new() else { return };
    let server = "import socket,time\n\
        s=socket.create_server(('10.9.0.1',7809)); k=[]\n\
        while True: c,_=s.accept(); c.sendall(b'!'); k.append(c)";
    let _server = lab.there.spawn(&["python3", "-c", server]);
    wait_for_port(&lab.there, "10.9.0.1", 7809);
    let proxy = lab.proxy(&ROUTED);
    let script = "import socket,sys\n\
        s=socket.create_connection(('10.9.0.1',7809)); s.settimeout(40); s.recv(1)\n\
        print('up',file=sys.stderr,flush=True)\n\
        try: s.recv(1)\n\
        except OSError as e: print(type(e).__name__,file=sys.stderr)";
    let client = lab.here.spawn(&["python3", "-c", script]);
    eventually("a connection", || client.stderr().contains("up"));
    assert_eq!(proxy.stop().code(), 0);
    let said = client.wait(PATIENCE).ok().stderr;
    assert!(said.ends_with("ConnectionResetError\n"), "{said}");
}

#[test]
fn a_user_without_rights_is_told_what_to_do() {
    let Some(lab) = Lab::new() else { return };
    // All privileges except the one to create devices.
    let towpath = towpath();
    let drop = "--bounding-set=-net_admin";
    let output = lab.here.run(&[
        "setpriv",
        drop,
        "--inh-caps=-net_admin",
        &towpath,
        "proxy",
        "--tun",
        "tw0",
    ]);
    assert_eq!(output.code(), 125, "{}", output.stderr);
    assert!(
        // The test runs as root, as in a container.
        output.stderr.contains("--cap-add NET_ADMIN"),
        "{}",
        output.stderr
    );
}

/// Creates a TUN device with the flags of the first argument, sets it up, and executes `towpath
/// proxy` with its descriptor.
const HAND_OVER: &str = "
import fcntl, os, struct, subprocess, sys
tun = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH22x', b'tw0', int(sys.argv[1], 16)))
for words in ['addr add 198.18.0.1/32 dev tw0', 'link set tw0 up', 'route add 10.9.0.0/16 dev tw0']:
    subprocess.check_call(['ip'] + words.split())
os.set_inheritable(tun, True)
os.execv(sys.argv[2], [sys.argv[2], 'proxy', '--tun', 'fd:%d' % tun] + sys.argv[3:])
";

#[test]
fn a_device_is_taken_over_by_its_descriptor() {
    let Some(lab) = Lab::new() else { return };
    let folder = Scratch::new();
    let _server = lab.serve(&folder);
    let towpath = towpath();
    let line = |flags, options: &'static [&str]| {
        [&["python3", "-c", HAND_OVER, flags, &towpath][..], options].concat()
    };
    // IFF_TUN and IFF_NO_PI, with and without IFF_VNET_HDR.
    for flags in ["5001", "1001"] {
        let proxy = lab.here.spawn(&line(flags, &["--interface", "va"]));
        eventually("the device is taken over", || proxy.stderr().contains("tw0 is up"));
        assert_eq!(lab.curl("http://10.9.0.1:7801/").ok().stdout, "a page\n");
        proxy.signal(Signal::TERM);
        assert_eq!(proxy.wait(PATIENCE).code(), 0);
        assert!(lab.is_clean());
    }

    let refused = |flags, options, wanted| {
        let output = lab.here.run(&line(flags, options));
        assert!(output.code() != 0 && output.stderr.contains(wanted), "{}", output.stderr);
    };
    refused("5002", &[], "of the other kind");
    refused("5001", &["--route", "10.8.0.0/16", "--interface", "va"], "leave --route out");
    let no_device = lab.here.run(&[&towpath, "proxy", "--tun", "fd:0"]);
    assert!(no_device.stderr.contains("no device is attached to it"), "{}", no_device.stderr);
    let closed = lab.here.run(&[&towpath, "proxy", "--tun", "fd:77"]);
    assert!(closed.stderr.contains("descriptor 77"), "{}", closed.stderr);
    let word = lab.here.run(&[&towpath, "proxy", "--tun", "fd:x"]);
    assert!(word.stderr.contains("\"x\" is not a descriptor"), "{}", word.stderr);
}
