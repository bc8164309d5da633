//! resolver(3), whose answers programs parse themselves: over the stack they must equal those of
//! glibc over the kernel's network, byte for byte.

use std::process::Command;

use towpath_tests::{Namespace, Process, Scratch, program, towpath, wait_for_port};

/// Addresses of nameservers: one that answers, one that does not answer over UDP, and one that
/// fails. At the last address no program listens.
const SERVERS: [&str; 4] = ["192.0.2.53", "192.0.2.54", "192.0.2.55", "192.0.2.56"];
/// Timeouts are so long that no query of the program times out.
const CONF: &str =
    "nameserver 192.0.2.53\nsearch search.example second.example\noptions timeout:30 attempts:1\n";
/// Further nameservers that the program queries, with the timeout of each in seconds.
const ELSEWHERE: [&str; 4] = [
    "30/192.0.2.55,192.0.2.53",
    "30/192.0.2.56,192.0.2.53",
    "30/192.0.2.55,192.0.2.55",
    "30/192.0.2.56",
];

/// A host with nameservers, whose programs read `conf` as /etc/resolv.conf.
struct Questioned {
    ns: Namespace,
    folder: Scratch,
    program: String,
    _server: Process,
}

impl Questioned {
    /// Creates the host; None without privileges.
    fn new(conf: &str) -> Option<Self> {
        let ns = Namespace::new();
        ns.name()?;
        for server in SERVERS {
            ns.run(&["ip", "addr", "add", &format!("{server}/32"), "dev", "lo"]).ok();
        }
        let folder = Scratch::new();
        folder.write("resolv.conf", conf);
        folder.write("aliases", "www web.example\nnick name.example\n");
        let (source, binary) = (program("res_query/questions.c"), folder.file("questions"));
        let gcc = Command::new("gcc")
            .args(["-Wall", "-Wno-deprecated-declarations", "-o", &binary, &source, "-lresolv"])
            .output()
            .expect("gcc");
        assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
        let failing = format!("!{}", SERVERS[2]);
        let script = program("res_query/nameserver.py");
        let server = ns.spawn(&["python3", &script, SERVERS[0], SERVERS[1], &failing]);
        wait_for_port(&ns, SERVERS[0], 53);
        Some(Self { ns, folder, program: binary, _server: server })
    }

    fn run(&self, line: &[&str]) -> String {
        let (conf, aliases) = (self.folder.file("resolv.conf"), self.folder.file("aliases"));
        let mount = "mount --bind \"$0\" /etc/resolv.conf && export HOSTALIASES=\"$1\" && shift && \
            exec \"$@\"";
        let whole = [&["unshare", "-m", "sh", "-c", mount, &conf, &aliases][..], line].concat();
        self.ns.run(&whole).ok().stdout
    }
}

/// Returns the output of the program on a new host, run by `before`. Returns `None` without
/// privileges.
fn printed(conf: &str, before: &[&str], elsewhere: &[&str]) -> Option<String> {
    let lab = Questioned::new(conf)?;
    Some(lab.run(&[before, &[&lab.program], elsewhere].concat()))
}

/// Compares the program's output over the kernel's network with that over the stack, where the
/// host's nameserver is unreachable. All runs wait for silent servers concurrently.
fn compare(modes: &[&[&str]], elsewhere: &[&str]) {
    let (towpath, wrong) = (towpath(), CONF.replace("2.53", "2.99"));
    let over_stack = |options: &[&str]| {
        let run = [towpath.as_str(), "run", "-q", "--dns", SERVERS[0]];
        printed(&wrong, &[&run, options, &["--"]].concat(), elsewhere)
    };
    let (expected, all) = std::thread::scope(|scope| {
        let all: Vec<_> = modes.iter().map(|mode| scope.spawn(|| over_stack(mode))).collect();
        let expected = printed(CONF, &[], elsewhere);
        let all = all.into_iter().map(|thread| thread.join().expect("no panic"));
        (expected, all.collect::<Vec<_>>())
    });
    let Some(expected) = expected else { return };
    assert!(expected.lines().count() > 250 && expected.contains(": 989 "), "{expected}");
    for (got, options) in all.into_iter().zip(modes) {
        let got = got.expect("privileges as above");
        for (got, expected) in got.lines().zip(expected.lines()) {
            assert_eq!(got, expected, "{options:?}");
        }
        assert_eq!(got.lines().count(), expected.lines().count(), "{options:?}");
    }
}

#[test]
fn answers_are_those_of_glibc() {
    compare(&[&[], &["--shards", "2"], &["--inline"]], &ELSEWHERE);
}

mod nightly {
    /// With a timeout of one second, a slow machine may skip the second server as well.
    #[test]
    fn a_server_that_says_nothing_is_followed_by_the_next() {
        super::compare(&[&[], &["--inline"]], &["1/192.0.2.54,192.0.2.53", "1/192.0.2.54"]);
    }
}

/// If the host's resolver is on its loopback, the run's forwarder is queried, and the capture
/// contains the queries.
#[test]
fn a_capture_has_the_questions() {
    const PYTHON: &str = "import ctypes\n\
        libc, answer = ctypes.CDLL(None), ctypes.create_string_buffer(512)\n\
        print(libc.res_query(b'name.example', 1, 44, answer, 512))\n\
        print(libc.__res_search(b'a', 1, 1, answer, 512))\n\
        libc.__res_state.restype = ctypes.c_void_p\n\
        ctypes.memset(libc.__res_state(), 0, 568)\n\
        print(libc.__res_init())\n\
        print(*ctypes.string_at(libc.__res_state() + 24, 4))\n";
    let Some(lab) = Questioned::new(&CONF.replace("192.0.2.53", "127.0.0.1")) else { return };
    let script = program("res_query/nameserver.py");
    let _stub = lab.ns.spawn(&["python3", &script, "127.0.0.1"]);
    wait_for_port(&lab.ns, "127.0.0.1", 53);
    let (towpath, file) = (towpath(), lab.folder.file("run.pcapng"));
    let out = lab.run(&[&towpath, "run", "-q", "--pcap", &file, "--", "python3", "-c", PYTHON]);
    assert_eq!(out, "76\n50\n0\n10 0 2 3\n");
    let fields = ["-Y", "dns.flags.response==0", "-T", "fields", "-e", "ip.dst", "-e"];
    let line = [&["tshark", "-r", &file][..], &fields, &["dns.qry.name", "-e", "dns.qry.type"]];
    let asked = lab.run(&line.concat());
    for question in ["10.0.2.3\tname.example\t44\n", "10.0.2.3\ta.search.example\t1\n"] {
        assert!(asked.contains(question), "{asked}");
    }
}

/// Nameservers of the host and the run with IPv6 addresses, which glibc stores separately.
#[test]
fn nameservers_have_either_family() {
    const PYTHON: &str = "import ctypes, socket\n\
        libc, answer = ctypes.CDLL(None), ctypes.create_string_buffer(512)\n\
        libc.__res_state.restype = ctypes.c_void_p\n\
        for _ in range(3):\n\
        \x20 print(libc.res_query(b'name.example', 1, 44, answer, 512), libc.__res_init())\n\
        state = libc.__res_state()\n\
        family = ctypes.c_uint16.from_address(state + 20).value\n\
        v6 = ctypes.c_void_p.from_address(state + 536).value\n\
        ip = ctypes.string_at(state + 24, 4) if family else ctypes.string_at(v6 + 8, 16)\n\
        print(socket.inet_ntop(socket.AF_INET if family else socket.AF_INET6, ip))\n";
    const WIDE: &str = "2001:db8:53::53";
    let towpath = towpath();
    // The run's forwarder has an IPv4 address, unless the stack has none.
    let only_v6 = ["--address", "fd00:2::15/64", "--dns", WIDE];
    let rows = [
        ("::1", "::1", &[][..], "10.0.2.3"),
        ("192.0.2.99", WIDE, &only_v6, "fd00:2::3"),
        ("2001:db8:53::99", WIDE, &only_v6, "fd00:2::3"),
    ];
    for (theirs, server, options, ours) in rows {
        let Some(lab) = Questioned::new(&CONF.replace("192.0.2.53", theirs)) else { return };
        lab.ns.run(&["ip", "addr", "add", WIDE, "dev", "lo", "nodad"]).ok();
        let script = program("res_query/nameserver.py");
        let _server = lab.ns.spawn(&["python3", &script, server]);
        wait_for_port(&lab.ns, server, 53);
        let run = [&[towpath.as_str(), "run", "-q"][..], options].concat();
        let out = lab.run(&[&run[..], &["--", "python3", "-c", PYTHON]].concat());
        assert_eq!(out, format!("76 0\n76 0\n76 0\n{ours}\n"), "{theirs}");
    }
}

/// Names with aliases of the user, and lookups by threads of libc.
#[test]
fn aliases_and_threads_of_libc_ask_over_the_stack() {
    const PYTHON: &str = "import socket\n\
        print(socket.gethostbyname_ex('nick'))\n\
        print(sorted({i[4][0] for i in socket.getaddrinfo('NICK', 80)}))\n\
        try: socket.gethostbyname('www')\n\
        except OSError as e: print(e.errno)\n";
    const THREADS: &str = r#"
        #define _GNU_SOURCE
        #include <arpa/inet.h>
        #include <netdb.h>
        #include <stdio.h>
        int main(void) {
            struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
            struct gaicb asked[3] = {{.ar_name = "name.example", .ar_request = &hints},
                {.ar_name = "missing.example", .ar_request = &hints},
                {.ar_name = "a", .ar_service = "http", .ar_request = &hints}};
            struct gaicb *all[] = {&asked[0], &asked[1], &asked[2]};
            printf("%d\n", getaddrinfo_a(GAI_WAIT, all, 3, NULL));
            for (int i = 0; i < 3; i++) {
                printf("%d\n", gai_error(all[i]));
                if (gai_error(all[i])) continue;
                struct sockaddr_in *to = (void *)all[i]->ar_result->ai_addr;
                char text[INET_ADDRSTRLEN];
                inet_ntop(AF_INET, &to->sin_addr, text, sizeof text);
                printf("%.8s %d\n", text, ntohs(to->sin_port));
            }
            return 0;
        }"#;
    let Some(kernel) = Questioned::new(CONF) else { return };
    let stack = Questioned::new(&CONF.replace("2.53", "2.99")).expect("as above");
    let (source, binary) = (kernel.folder.file("threads.c"), kernel.folder.file("threads"));
    kernel.folder.write("threads.c", THREADS);
    let gcc = Command::new("gcc").args(["-o", &binary, &source]).status();
    assert!(gcc.expect("gcc").success());
    let towpath = towpath();
    for line in [&["python3", "-c", PYTHON][..], &[&binary]] {
        let expected = kernel.run(line);
        assert!(expected.contains("192.0.2."), "{expected}");
        let run = [towpath.as_str(), "run", "-q", "--dns", SERVERS[0], "--"];
        assert_eq!(stack.run(&[&run[..], line].concat()), expected);
    }
}

/// Without a nameserver in the run, glibc resolves names by itself.
#[test]
fn without_a_nameserver_the_hosts_is_asked() {
    let Some(lab) = Questioned::new(CONF) else { return };
    const PYTHON: &str = "import ctypes\n\
        answer = ctypes.create_string_buffer(512)\n\
        print(ctypes.CDLL(None).res_query(b'name.example', 1, 44, answer, 512))\n";
    let towpath = towpath();
    let line = [&towpath, "run", "-q", "--dns", "none", "--", "python3", "-c", PYTHON];
    assert_eq!(lab.run(&line), "76\n");
}

/// Addresses are sorted by the routes of the stack, which differ from those of the kernel.
#[test]
fn addresses_that_the_stack_reaches_come_first() {
    const PYTHON: &str = "import socket\n\
        print([i[4][0] for i in socket.getaddrinfo('name.example', 80, type=socket.SOCK_STREAM)])\n\
        all = socket.getaddrinfo('name.example', 80, flags=socket.AI_CANONNAME)\n\
        print(len(all), [i[3] for i in all if i[3]], all[0][4][0])\n";
    let Some(lab) = Questioned::new(CONF) else { return };
    let towpath = towpath();
    let run = |addresses: &[&str]| {
        let tap = [&towpath, "run", "-q", "--tap", "--dns", SERVERS[0]];
        let addresses: Vec<_> = addresses.iter().flat_map(|at| ["--address", at]).collect();
        lab.run(&[&tap[..], &addresses, &["--", "python3", "-c", PYTHON]].concat())
    };
    // The kernel has no route to the name's IPv6 address.
    let out = run(&["10.77.0.2/24", "2001:db8:0:5::2/64"]);
    let v6_first = "['2001:db8::7', '192.0.2.7', '192.0.2.8']\n9 ['name.example'] 2001:db8::7\n";
    assert_eq!(out, v6_first);
    // Now the kernel has the address, and the stack has no IPv6.
    lab.ns.run(&["ip", "addr", "add", "2001:db8::7/64", "dev", "lo", "nodad"]).ok();
    let out = run(&["10.77.0.2/24"]);
    let v4_first = "['192.0.2.7', '192.0.2.8', '2001:db8::7']\n9 ['name.example'] 192.0.2.7\n";
    assert_eq!(out, v4_first);
}
