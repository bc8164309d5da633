//! DNS forwarder: the order in which it queries nameservers, and the answers that it passes on.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
use towpath_gateway::limits::{DNS_QUERIES_MAX, NAMESERVER_SILENT_NS, NAMESERVER_TIMEOUT_S};
use towpath_gateway::{GatewayConfig, Nameserver};
use towpath_stack::SocketError;

use crate::world::{PATIENCE, Sock, World};

const FORWARDER: &str = "10.0.2.3:53";
const TIMEOUT: Duration = Duration::from_secs(NAMESERVER_TIMEOUT_S);

const SERVFAIL: u8 = 2;
const NOTIMP: u8 = 4;
const REFUSED: u8 = 5;

/// Returns a query for the address of NAME.example.
fn question(id: u16, name: &str) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend(b"\x01\0\0\x01\0\0\0\0\0\0");
    message.push(name.len() as u8);
    message.extend(name.as_bytes());
    message.extend(b"\x07example\0\0\x01\0\x01");
    message
}

/// Returns an answer with this response code; `mark` stands for its records.
fn answer(question: &[u8], code: u8, mark: &[u8]) -> Vec<u8> {
    let mut message = question.to_vec();
    message[2] |= 0x80;
    message[3] = code;
    message.extend(mark);
    message
}

/// A nameserver of the host.
fn nameserver(at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn at(server: &UdpSocket) -> SocketAddr {
    server.local_addr().unwrap()
}

/// Returns an address on which no nameserver listens, and that no other run of these tests uses.
fn nobody() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    at(&nameserver(&format!("127.99.{high}.{low}:0")))
}

fn world(nameservers: &[SocketAddr]) -> World {
    let nameserver = Nameserver::At(nameservers.to_vec());
    World::with(GatewayConfig { nameserver, host_loopback: false, ..GatewayConfig::default() })
}

fn ask(world: &mut World, sock: Sock, question: &[u8]) {
    world.send_to(sock, FORWARDER.parse().unwrap(), question, None);
    world.turn();
}

/// Returns the next query that reaches the nameserver, and its source.
fn asked(world: &mut World, server: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    world.until("a question", |_| {
        let mut bytes = [0; 512];
        let (n, from) = server.recv_from(&mut bytes).ok()?;
        Some((bytes[..n].to_vec(), from))
    })
}

fn answered(world: &mut World) -> (u32, Vec<u8>) {
    let (user, from, bytes) = world.until("an answer", |world| world.program.datagrams.pop_front());
    assert_eq!(from, FORWARDER.parse().unwrap());
    (user, bytes)
}

/// Lets the nameserver answer the next query, and checks that the program receives the answer.
fn answers(world: &mut World, server: &UdpSocket, to: (Sock, &[u8])) {
    let (asked, from) = asked(world, server);
    assert_eq!(asked[2..], to.1[2..]);
    server.send_to(&answer(&asked, 0, b"answer"), from).unwrap();
    assert_eq!(answered(world), (to.0.user, answer(to.1, 0, b"answer")));
}

fn is_asked(server: &UdpSocket) -> bool {
    server.recv_from(&mut [0; 512]).is_ok()
}

/// The nameserver may be on the host's loopback, which the program cannot reach by itself.
#[test]
fn questions_to_the_forwarder_reach_the_nameserver() {
    for server in ["127.0.0.1:0", "[::1]:0"] {
        let tcp = TcpListener::bind(server).unwrap();
        let at = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(at).unwrap();
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut world = world(&[at]);
        for (own, forwarder) in
            [("10.0.2.15:0", "10.0.2.3:53"), ("[fd00:2::15]:0", "[fd00:2::3]:53")]
        {
            let forwarder: SocketAddr = forwarder.parse().unwrap();
            let sock = world.datagram_socket(own);
            let question = question(7, "name");
            world.send_to(sock, forwarder, &question, None);
            world.turn();
            let mut asked = [0; 64];
            let (n, from) = udp.recv_from(&mut asked).unwrap();
            assert_eq!(asked[2..n], question[2..]);
            udp.send_to(&answer(&asked[..n], 0, b"answer"), from).unwrap();
            let got = world.until("an answer", |world| world.program.datagrams.pop_front());
            assert_eq!(got, (sock.user, forwarder, answer(&question, 0, b"answer")));
            // The program repeats a query over TCP if the answer does not fit a datagram.
            world.connected(forwarder);
            tcp.accept().unwrap();
            // Other ports of the forwarder's address refuse connections.
            let elsewhere = world.connect(SocketAddr::new(forwarder.ip(), 80));
            let error = world.until("an error", |world| world.error(elsewhere));
            assert_eq!(error, SocketError::Refused);
        }
    }
}

#[test]
fn a_nameserver_that_says_nothing_is_followed_by_the_next() {
    let (dead, lives) = (nameserver("127.0.0.1:0"), nameserver("[::1]:0"));
    let mut world = world(&[at(&dead), at(&lives)]);
    let sock = world.datagram_socket("10.0.2.15:0");
    let first = question(1, "first");
    ask(&mut world, sock, &first);
    asked(&mut world, &dead);
    world.skip(TIMEOUT - Duration::from_secs(1));
    assert!(!is_asked(&lives));
    world.skip(Duration::from_secs(2));
    answers(&mut world, &lives, (sock, &first));
    // The next query skips the nameserver that timed out.
    let second = question(2, "second");
    ask(&mut world, sock, &second);
    answers(&mut world, &lives, (sock, &second));
    assert!(!is_asked(&dead));
    // After half a minute the nameserver is tried first again.
    world.skip(Duration::from_nanos(NAMESERVER_SILENT_NS));
    let third = question(3, "third");
    ask(&mut world, sock, &third);
    answers(&mut world, &dead, (sock, &third));
    assert_eq!((world.counter("dns_next"), world.counter("dns_answers")), (1, 3));
}

/// Programs repeat queries, often after the same time as the forwarder's timeout.
#[test]
fn a_question_that_is_repeated_tries_the_next_nameserver() {
    let (dead, lives) = (nameserver("127.0.0.1:0"), nameserver("127.0.0.1:0"));
    let mut world = world(&[at(&dead), at(&lives)]);
    let sock = world.datagram_socket("10.0.2.15:0");
    let question = question(1, "name");
    for _ in 0..2 {
        ask(&mut world, sock, &question);
    }
    asked(&mut world, &dead);
    assert!(!is_asked(&dead) && !is_asked(&lives), "one question, and asked just now");
    world.skip(Duration::from_secs(2));
    ask(&mut world, sock, &question);
    answers(&mut world, &lives, (sock, &question));
    assert_eq!(world.counter("dns_repeated"), 2);
}

#[test]
fn a_nameserver_that_cannot_help_is_followed_by_the_next() {
    for code in [SERVFAIL, NOTIMP, REFUSED] {
        let (cannot, lives) = (nameserver("127.0.0.1:0"), nameserver("127.0.0.1:0"));
        let mut world = world(&[nobody(), at(&cannot), at(&lives)]);
        let sock = world.datagram_socket("10.0.2.15:0");
        let question = question(1, "name");
        ask(&mut world, sock, &question);
        let (asked, from) = asked(&mut world, &cannot);
        cannot.send_to(&answer(&asked, code, b"no"), from).unwrap();
        answers(&mut world, &lives, (sock, &question));
        assert!(world.program.datagrams.is_empty(), "one answer");
        assert_eq!(world.counter("dns_next"), 2);
    }
}

/// NXDOMAIN is a usable answer, because other nameservers would return it, too.
#[test]
fn an_answer_that_says_no_is_an_answer() {
    const NXDOMAIN: u8 = 3;
    let (first, second) = (nameserver("127.0.0.1:0"), nameserver("127.0.0.1:0"));
    let mut world = world(&[at(&first), at(&second)]);
    let sock = world.datagram_socket("10.0.2.15:0");
    let question = question(1, "name");
    ask(&mut world, sock, &question);
    let (asked, from) = asked(&mut world, &first);
    first.send_to(&answer(&asked, NXDOMAIN, b""), from).unwrap();
    assert_eq!(answered(&mut world), (sock.user, answer(&question, NXDOMAIN, b"")));
    assert!(!is_asked(&second));
}

#[test]
fn what_no_nameserver_can_do_is_told_at_once() {
    // No nameserver listens.
    let mut nowhere = world(&[nobody(), nobody()]);
    let sock = nowhere.datagram_socket("10.0.2.15:0");
    let now = nowhere.now();
    nowhere.stack.connect_datagram(now, sock.id, FORWARDER.parse().unwrap()).unwrap();
    ask(&mut nowhere, sock, &question(1, "name"));
    let error = nowhere.until("an error", |world| world.error(sock));
    assert_eq!(error, SocketError::PortUnreachable);
    assert_eq!(nowhere.counter("dns_unanswered"), 1);
    // The first nameserver answers SERVFAIL, and the second one does not exist. The program gets
    // the answer rather than an error.
    let cannot = nameserver("127.0.0.1:0");
    let mut world = world(&[at(&cannot), nobody()]);
    let sock = world.datagram_socket("10.0.2.15:0");
    let question = question(1, "name");
    ask(&mut world, sock, &question);
    let (asked, from) = asked(&mut world, &cannot);
    cannot.send_to(&answer(&asked, SERVFAIL, b"no"), from).unwrap();
    assert_eq!(answered(&mut world), (sock.user, answer(&question, SERVFAIL, b"no")));
    assert!(!is_asked(&cannot), "it has said so");
}

#[test]
fn all_nameservers_are_asked_twice_and_then_no_more() {
    let servers = [nameserver("127.0.0.1:0"), nameserver("127.0.0.1:0")];
    let mut world = world(&[at(&servers[0]), at(&servers[1])]);
    let sock = world.datagram_socket("10.0.2.15:0");
    ask(&mut world, sock, &question(1, "name"));
    for n in 0..4 {
        asked(&mut world, &servers[n % 2]);
        world.skip(TIMEOUT + Duration::from_secs(1));
    }
    assert!(!servers.iter().any(is_asked));
    assert_eq!((world.counter("dns_unanswered"), world.counter("dns_next")), (1, 3));
    assert_eq!(world.gateway.borrow().tcp_flows(), 0);
    assert!(world.program.datagrams.is_empty());
}

#[test]
fn nobody_but_the_nameserver_answers() {
    let server = nameserver("127.0.0.1:0");
    let mut world = world(&[at(&server)]);
    let sock = world.datagram_socket("10.0.2.15:0");
    let question = question(1, "name");
    ask(&mut world, sock, &question);
    let (asked, from) = asked(&mut world, &server);
    // A local process that knows port and identifier of the query.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&answer(&asked, 0, b"forged"), from).unwrap();
    // Answers of the nameserver to queries with another identifier or name.
    let mut other_id = asked.clone();
    other_id[0] ^= 1;
    let other_name = self::question(u16::from_be_bytes([asked[0], asked[1]]), "eman");
    for (not_this, code) in [(&other_id, 0), (&other_name, 0), (&other_name, SERVFAIL)] {
        server.send_to(&answer(not_this, code, b"wrong"), from).unwrap();
    }
    server.send_to(&asked, from).unwrap();
    server.send_to(b"?", from).unwrap();
    server.send_to(&answer(&asked, 0, b"right"), from).unwrap();
    assert_eq!(answered(&mut world), (sock.user, answer(&question, 0, b"right")));
    assert_eq!(world.counter("dns_mismatched"), 5, "the kernel keeps the stranger away");
    assert!(world.program.datagrams.is_empty());
}

#[test]
fn programs_that_ask_the_same_hear_each_its_own_answer() {
    const PROGRAMS: usize = 50;
    let server = nameserver("127.0.0.1:0");
    let mut world = world(&[at(&server)]);
    let socks: Vec<_> = (0..PROGRAMS).map(|_| world.datagram_socket("10.0.2.15:0")).collect();
    let question = question(1, "name");
    for sock in &socks {
        ask(&mut world, *sock, &question);
    }
    let all: Vec<_> = (0..PROGRAMS).map(|_| asked(&mut world, &server)).collect();
    let mut ports: Vec<_> = all.iter().map(|(_, from)| from.port()).collect();
    let mut ids: Vec<_> = all.iter().map(|(asked, _)| [asked[0], asked[1]]).collect();
    ports.sort();
    ports.dedup();
    ids.sort();
    ids.dedup();
    assert_eq!(ports.len(), PROGRAMS, "a port for each");
    assert!(ids.len() > PROGRAMS - 5, "identifiers differ but by chance");
    // Answer in reverse order.
    for (n, (asked, from)) in all.iter().enumerate().rev() {
        server.send_to(&answer(asked, 0, &[n as u8]), *from).unwrap();
        let (user, bytes) = answered(&mut world);
        assert_eq!((user, bytes), (socks[n].user, answer(&question, 0, &[n as u8])));
    }
}

#[test]
fn a_flood_of_questions_takes_so_many_sockets_and_no_more() {
    let server = nameserver("127.0.0.1:0");
    let mut world = world(&[at(&server)]);
    let sock = world.datagram_socket("10.0.2.15:0");
    let flood = 3 * DNS_QUERIES_MAX as u16;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for n in 0..flood {
        ask(&mut world, sock, &question(n, "name"));
        if n + 1 < flood {
            is_asked(&server);
        }
    }
    // Tests that run concurrently in this process have descriptors, too.
    assert!(descriptors() - before < 2 * DNS_QUERIES_MAX, "{before} {}", descriptors());
    assert_eq!(world.counter("dns_displaced"), u64::from(flood) - DNS_QUERIES_MAX as u64);
    // The newest question is answered.
    answers(&mut world, &server, (sock, &question(flood - 1, "name")));
    // All remaining queries time out.
    for _ in 0..2 {
        world.skip(TIMEOUT + Duration::from_secs(1));
    }
    assert_eq!(world.counter("dns_unanswered"), DNS_QUERIES_MAX as u64 - 1);
}

#[test]
fn what_is_no_question_is_dropped_and_counted() {
    let server = nameserver("127.0.0.1:0");
    let mut world = world(&[at(&server)]);
    let sock = world.datagram_socket("10.0.2.15:0");
    let response = answer(&question(1, "name"), 0, b"");
    for bytes in [&b""[..], b"hello", &response] {
        ask(&mut world, sock, bytes);
    }
    world.run_for(Duration::from_millis(20));
    assert_eq!((world.counter("dns_malformed"), is_asked(&server)), (3, false));
}

#[test]
fn an_identifier_that_is_used_again_is_of_the_later_question() {
    let server = nameserver("127.0.0.1:0");
    let mut world = world(&[at(&server)]);
    let sock = world.datagram_socket("10.0.2.15:0");
    let (given_up, wanted) = (question(1, "first"), question(1, "second"));
    ask(&mut world, sock, &given_up);
    let (asked, from) = asked(&mut world, &server);
    ask(&mut world, sock, &wanted);
    server.send_to(&answer(&asked, 0, b"late"), from).unwrap();
    answers(&mut world, &server, (sock, &wanted));
}

#[test]
fn connections_go_to_the_first_nameserver_that_accepts() {
    let lives = TcpListener::bind("[::1]:0").unwrap();
    let mut world = world(&[nobody(), lives.local_addr().unwrap()]);
    world.connected(FORWARDER.parse().unwrap());
    lives.accept().unwrap();
    // No nameserver accepts connections.
    let mut world = self::world(&[nobody(), nobody()]);
    let sock = world.connect(FORWARDER.parse().unwrap());
    let error = world.until("an error", |world| world.error(sock));
    assert_eq!(error, SocketError::Refused);
    assert_eq!(world.gateway.borrow().tcp_flows(), 0);
}

#[test]
fn connections_do_not_wait_for_a_nameserver_that_says_nothing() {
    // The kernel drops SYNs to a listener whose queue is full.
    let dead = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&dead, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    listen(&dead, 0).unwrap();
    let dead_at = SocketAddr::try_from(getsockname(&dead).unwrap()).unwrap();
    let _first = TcpStream::connect(dead_at).unwrap();
    let lives = TcpListener::bind("127.0.0.1:0").unwrap();
    lives.set_nonblocking(true).unwrap();
    let mut world = world(&[dead_at, lives.local_addr().unwrap()]);
    let sock = world.connect(FORWARDER.parse().unwrap());
    world.run_for(Duration::from_millis(50));
    world.skip(TIMEOUT - Duration::from_secs(1));
    assert!(lives.accept().is_err());
    world.skip(Duration::from_secs(2));
    let peer = world.until("a connection", |_| lives.accept().ok());
    world.until("connect", |world| {
        world.happened(sock, towpath_stack::SocketEvent::Connected).then_some(())
    });
    // The established flow has no nameserver timeout left that could reset it.
    world.skip(Duration::from_secs(100));
    assert_eq!((world.error(sock), world.counter("tcp_reset")), (None, 0));
    drop(peer);
}

/// A resolv.conf as network managers create it: a symbolic link to a file of theirs.
struct ResolvConf {
    folder: PathBuf,
    versions: usize,
}

impl ResolvConf {
    fn new(name: &str, text: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("towpath-dns-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut this = Self { folder, versions: 0 };
        this.write(text);
        this
    }

    fn path(&self) -> PathBuf {
        self.folder.join("resolv.conf")
    }

    /// Writes the text to a new file, and points the link to it.
    fn write(&mut self, text: &str) {
        let target = self.folder.join(format!("resolv.conf.{}", self.versions));
        std::fs::write(&target, text).unwrap();
        self.link(&target);
    }

    fn link(&mut self, target: &std::path::Path) {
        self.versions += 1;
        let link = self.folder.join(format!("link.{}", self.versions));
        symlink(target, &link).unwrap();
        std::fs::rename(link, self.path()).unwrap();
    }

    fn world(&self) -> World {
        let nameserver = Nameserver::ListedIn(self.path());
        World::with(GatewayConfig { nameserver, ..GatewayConfig::default() })
    }
}

impl Drop for ResolvConf {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Creates a nameserver at port 53 of a loopback address that no other run of these tests uses.
/// Returns `None` if this user may not bind the port.
fn nameserver_at_53(last: u8) -> Option<UdpSocket> {
    let [.., high, low] = std::process::id().to_be_bytes();
    let socket = UdpSocket::bind(SocketAddr::from(([127, 100 + last, high, low], 53))).ok()?;
    socket.set_nonblocking(true).unwrap();
    Some(socket)
}

#[test]
fn a_file_that_is_replaced_is_followed() {
    let [Some(old), Some(new)] = [1, 2].map(nameserver_at_53) else { return };
    let mut file = ResolvConf::new("replaced", &format!("nameserver {}\n", at(&old).ip()));
    let mut world = file.world();
    let sock = world.datagram_socket("10.0.2.15:0");
    let first = question(1, "first");
    ask(&mut world, sock, &first);
    answers(&mut world, &old, (sock, &first));
    // The host changes to another network. The next query may go to the old nameserver first, but
    // moves to the new one once the file was read.
    file.write(&format!("nameserver {}\noptions timeout:1\n", at(&new).ip()));
    world.skip(Duration::from_secs(1));
    let second = question(2, "second");
    ask(&mut world, sock, &second);
    answers(&mut world, &new, (sock, &second));
    while is_asked(&old) {}
    let third = question(3, "third");
    ask(&mut world, sock, &third);
    answers(&mut world, &new, (sock, &third));
    assert!(!is_asked(&old));
}

/// Simulates a network file system that hangs by a FIFO without a writer.
#[test]
fn a_file_that_cannot_be_read_holds_up_nothing() {
    let Some(server) = nameserver_at_53(3) else { return };
    let mut file = ResolvConf::new("hangs", &format!("nameserver {}\n", at(&server).ip()));
    let mut world = file.world();
    let sock = world.datagram_socket("10.0.2.15:0");
    let pipe = file.folder.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    file.link(&pipe);
    for n in 0..5 {
        let question = question(n, "name");
        ask(&mut world, sock, &question);
        answers(&mut world, &server, (sock, &question));
        world.skip(Duration::from_secs(1));
    }
    drop(world);
    // Opening the FIFO for writing unblocks the thread, which then ends.
    drop(std::fs::OpenOptions::new().read(true).write(true).open(pipe));
}
