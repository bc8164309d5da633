//! Names resolved by libc: the run's nameserver is queried over the stack, and the results equal
//! those of glibc over the kernel's network.

use towpath_tests::{Namespace, Process, Scratch, towpath, wait_for_port};

/// DNS server with aliases, an answer that is too long for UDP, and one that fails.
const NAMESERVER: &str = r"
import socket, struct, sys, threading
def wire(name): return b''.join(bytes([len(l)]) + l.encode() for l in name.split('.')) + b'\0'
A, CNAME, PTR, AAAA = 1, 5, 12, 28
ZONE = {
    'name.example': {A: [bytes([192,0,2,7]), bytes([192,0,2,8])],
                     AAAA: [bytes.fromhex('20010db8') + bytes(11) + b'\7']},
    'alias.example': {CNAME: [wire('mid.example')]},
    'mid.example': {CNAME: [wire('name.example')]},
    'v4.example': {A: [bytes([192,0,2,4])]},
    'text.example': {},
    'big.example': {A: [bytes([198,51,100,n]) for n in range(60)]},
    'wide.example': {A: [bytes([198,51,n // 100,n % 100]) for n in range(300)]},
    'gone.example': {A: [bytes([192,0,2,66])]},
    'short.search.example': {A: [bytes([192,0,2,9])]},
    '7.2.0.192.in-addr.arpa': {PTR: [wire('name.example')]},
    '.'.join(reversed('20010db8' + 23*'0' + '7')) + '.ip6.arpa': {PTR: [wire('name.example')]},
}
def records(name, kind):
    have = ZONE.get(name, {})
    alias = have.get(CNAME, [])
    found = [(name, CNAME, alias[0])] if alias else [(name, kind, d) for d in have.get(kind, [])]
    if alias:
        target = {wire(n): n for n in ZONE}[alias[0]]
        found += records(target, kind)
    return found
def answer(q, udp):
    end = q.index(b'\0', 12) + 5
    labels, at = [], 12
    while q[at]: labels.append(q[at+1:at+1+q[at]].decode()); at += q[at] + 1
    name, kind = '.'.join(labels).lower(), struct.unpack('>H', q[end-4:end-2])[0]
    code = 0 if name in ZONE and not name.startswith('gone') else 3
    if name.startswith('broken'): code = 2
    found = records(name, kind)
    body = b''.join(wire(n) + struct.pack('>HHIH', k, 1, 60, len(d)) + d for n, k, d in found)
    flags, count = 0x8180 | code, len(found)
    if udp and len(body) > 400 and name != 'wide.example':
        flags, count, body = flags | 0x200, 0, b''
    return q[:2] + struct.pack('>HHHHH', flags, 1, count, 0, 0) + q[12:end] + body
at = (sys.argv[1], 53)
u = socket.socket(type=socket.SOCK_DGRAM); u.bind(at)
t = socket.create_server(at)
def serve(c):
    f = c.makefile('rb')
    while head := f.read(2):
        a = answer(f.read(struct.unpack('>H', head)[0]), False)
        c.sendall(struct.pack('>H', len(a)) + a)
def tcp():
    while True: threading.Thread(target=serve, args=t.accept()[:1], daemon=True).start()
threading.Thread(target=tcp, daemon=True).start()
while True:
    q, a = u.recvfrom(4096)
    # A stranger's identifier first: nobody takes it.
    u.sendto(bytes([q[0] ^ 255]) + answer(q, True)[1:], a)
    u.sendto(answer(q, True), a)
";

/// All kinds of lookups. Addresses are sorted, because glibc orders them by the kernel's routes.
/// Names are bytes, which Python does not convert.
const QUESTIONS: &str = r"
import socket, threading
def tell(what, ask):
    try: print(what, ask())
    except OSError as e: print(what, type(e).__name__, e.errno)
names = ['name.example', 'NAME.example.', 'alias.example', 'v4.example', 'text.example',
         'big.example', 'wide.example', 'gone.example', 'short',
         'missing.example', 'broken.example', 'x' * 64 + '.example',
         '.'.join(['x' * 63] * 4), '.'.join(['x' * 61] * 4),
         'a..b', 'localhost', '192.0.2.1']
def found(name, family=0, flags=0):
    all = socket.getaddrinfo(name, 'http', family, socket.SOCK_STREAM, flags=flags)
    canonical = [i[3] for i in all if i[3]]
    return sorted({i[4][0] for i in all}), {i[4][1] for i in all}, canonical
for name in map(str.encode, names):
    for family in (0, socket.AF_INET, socket.AF_INET6):
        tell(('getaddrinfo', name, int(family)),
             lambda: found(name, family, socket.AI_CANONNAME))
    tell(('mapped', name), lambda: found(name, socket.AF_INET6, socket.AI_V4MAPPED | socket.AI_ALL))
    tell(('gethostbyname', name), lambda: socket.gethostbyname_ex(name))
for address in ('192.0.2.7', '2001:db8::7', '192.0.2.99'):
    tell(('gethostbyaddr', address), lambda: socket.gethostbyaddr(address)[0::2])
    tell(('getnameinfo', address), lambda: socket.getnameinfo((address, 80), 0))
    tell(('required', address),
         lambda: socket.getnameinfo((address, 80), socket.NI_NAMEREQD))
results = []
ask = lambda: results.append(found('alias.example'))
threads = [threading.Thread(target=ask) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print(len(results), all(r == results[0] for r in results))
";

struct Lab {
    ns: Namespace,
    folder: Scratch,
    conf: String,
    _server: Process,
}

impl Lab {
    /// Creates a host whose programs read `conf` as /etc/resolv.conf, with a nameserver at
    /// 127.0.0.53.
    fn new(conf: &str) -> Option<Self> {
        let ns = Namespace::new();
        ns.name()?;
        let folder = Scratch::new();
        folder.write("resolv.conf", conf);
        folder.write("nsswitch.conf", "hosts: files resolve [!UNAVAIL=return] dns\n");
        let server = ns.spawn(&["python3", "-c", NAMESERVER, "127.0.0.53"]);
        wait_for_port(&ns, "127.0.0.53", 53);
        let conf = folder.file("resolv.conf");
        Some(Self { ns, folder, conf, _server: server })
    }

    fn run(&self, line: &[&str]) -> String {
        let switch = self.folder.file("nsswitch.conf");
        let mount = "mount --bind \"$0\" /etc/resolv.conf && \
            mount --bind \"$1\" /etc/nsswitch.conf && shift && exec \"$@\"";
        let mut whole = vec!["unshare", "-m", "sh", "-c", mount, &self.conf, &switch];
        whole.extend(line);
        self.ns.run(&whole).ok().stdout
    }
}

const CONF: &str = "nameserver 127.0.0.53\nsearch search.example\noptions timeout:1 attempts:1\n";

/// The host's nameserver is unreachable, so answers can only come over the stack.
#[test]
fn answers_are_those_of_glibc_over_the_kernel() {
    let Some(kernel) = Lab::new(CONF) else { return };
    let expected = kernel.run(&["python3", "-c", QUESTIONS]);
    assert!(expected.contains("198.51.100.59") && expected.contains("8 True"), "{expected}");
    let towpath = towpath();
    let stack = Lab::new(&CONF.replace("127.0.0.53", "127.0.0.99")).expect("as above");
    for options in [&[][..], &["--shards", "2"], &["--inline"]] {
        let mut line = vec![towpath.as_str(), "run", "-q", "--dns", "127.0.0.53"];
        line.extend(options);
        line.extend(["--", "python3", "-c", QUESTIONS]);
        let got = stack.run(&line);
        for (got, expected) in got.lines().zip(expected.lines()) {
            assert_eq!(got, expected, "{options:?}");
        }
        assert_eq!(got.lines().count(), expected.lines().count(), "{options:?}");
    }
    for option in ["edns0", "use-vc", "single-request", "rotate"] {
        let env = format!("RES_OPTIONS={option}");
        let run = ["run", "-q", "--dns", "127.0.0.53", "--", "python3", "-c", QUESTIONS];
        let line = [&["env", &env, &towpath], &run[..]].concat();
        assert_eq!(stack.run(&line), expected, "{option}");
    }
}

#[test]
fn a_capture_has_the_questions() {
    let Some(lab) = Lab::new(CONF) else { return };
    let (towpath, file) = (towpath(), lab.folder.file("run.pcapng"));
    let run = ["run", "-q", "--pcap", &file, "--"];
    let programs = "getent hosts name.example; getent ahostsv4 big.example | grep -c STREAM; \
        python3 -c 'import socket; print(socket.gethostbyaddr(\"192.0.2.7\")[0])'";
    let out = lab.run(&[&[towpath.as_str()][..], &run, &["sh", "-c", programs]].concat());
    assert_eq!(out, "2001:db8::7     name.example\n60\nname.example\n");
    let fields = ["-Y", "dns.flags.response==0", "-T", "fields", "-e", "ip.dst", "-e"];
    let asked = lab.run(&[&["tshark", "-r", &file], &fields[..], &["dns.qry.name"]].concat());
    for name in ["name.example", "big.example", "7.2.0.192.in-addr.arpa"] {
        assert!(asked.contains(&format!("10.0.2.3\t{name}\n")), "{asked}");
    }
    let by_tcp = lab.run(&[
        "tshark",
        "-r",
        &file,
        "-Y",
        "tcp.port==53 && dns",
        "-T",
        "fields",
        "-e",
        "dns.qry.name",
    ]);
    assert!(by_tcp.contains("big.example"), "{by_tcp}");
}

/// Without a nameserver in the run, glibc resolves names by itself.
#[test]
fn without_a_nameserver_names_are_the_hosts() {
    let Some(lab) = Lab::new(CONF) else { return };
    let towpath = towpath();
    let line = [&towpath, "run", "-q", "--dns", "none", "--", "getent", "hosts", "v4.example"];
    assert_eq!(lab.run(&line), "192.0.2.4       v4.example\n");
}

/// AI_ADDRCONFIG: a stack without IPv6 gets no IPv6 addresses.
#[test]
fn addresses_that_the_stack_cannot_use_are_left_out() {
    const WANTED: &str = "import socket\n\
        for family in (0, socket.AF_INET, socket.AF_INET6):\n\
        \x20 try: print({i[0].name for i in socket.getaddrinfo('name.example', 80, family,\n\
        \x20   flags=socket.AI_ADDRCONFIG)})\n\
        \x20 except socket.gaierror as e: print(e.errno)";
    let Some(lab) = Lab::new(CONF) else { return };
    let towpath = towpath();
    let run = ["run", "-q", "--address", "192.0.2.100/24", "--", "python3", "-c", WANTED];
    let out = lab.run(&[&[towpath.as_str()][..], &run].concat());
    assert_eq!(out, "{'AF_INET'}\n{'AF_INET'}\n-2\n");
}

/// The stack's sockets receive the ICMP error, as glibc's do, so that the resolver does not wait
/// for an answer. With the timeout of this configuration a waiting resolver would exceed the test's
/// limit.
#[test]
fn unreachable_nameservers_cost_no_timeout() {
    const UNREACHABLE: &str = "nameserver 198.51.100.53\n";
    const OPTIONS: &str = "options timeout:30 attempts:1\n";
    let Some(lab) = Lab::new(&format!("{UNREACHABLE}{OPTIONS}")) else { return };
    let several = Lab::new(&format!("{UNREACHABLE}nameserver 127.0.0.53\n{OPTIONS}"));
    let several = several.expect("as above");
    let (towpath, none) = (towpath(), "; echo $?");
    for options in ["", "--shards 2", "--inline"] {
        let run = |what: &str| {
            format!("timeout 25 {towpath} run -q {options} --dns 198.51.100.53 -- getent {what}")
        };
        let ask = run("ahosts name.example") + none + ";" + &run("hosts 10.0.2.2") + none;
        assert_eq!(lab.run(&["sh", "-c", &ask]), "2\n2\n", "{options}");
        let ask = format!(
            "timeout 25 {towpath} run -q {options} --dns 127.0.0.53 -- getent ahostsv4 v4.example"
        );
        let found = several.run(&["sh", "-c", &ask]);
        assert!(found.starts_with("192.0.2.4 "), "{options}: {found}");
    }
}
