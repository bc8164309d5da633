//! Ports of sockets: effects of bind, connect and disconnect. Each case also runs on the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use crate::harness::Case;
use crate::sockets::{errno, get, set};

pub const CASES: &[Case] = &[
    ("a_refused_connect_lets_a_chosen_port_go", a_refused_connect_lets_a_chosen_port_go),
    ("a_reset_connection_lets_a_chosen_port_go", a_reset_connection_lets_a_chosen_port_go),
    ("disconnected_streams", disconnected_streams),
    ("listeners_that_listen_no_more", listeners_that_listen_no_more),
    ("dissolved_datagram_sockets", dissolved_datagram_sockets),
    (
        "a_connected_datagram_socket_holds_one_address",
        a_connected_datagram_socket_holds_one_address,
    ),
    ("sharing_a_port_that_connect_chose", sharing_a_port_that_connect_chose),
    ("who_may_join_whom", who_may_join_whom),
    ("sharing_is_asked_when_somebody_joins", sharing_is_asked_when_somebody_joins),
    ("the_last_to_connect_hears_the_peer", the_last_to_connect_hears_the_peer),
    ("port_zero", port_zero),
    ("peers_of_the_other_version", peers_of_the_other_version),
    ("past_the_peer_to_the_other_version", past_the_peer_to_the_other_version),
    ("a_failed_datagram_connect_binds", a_failed_datagram_connect_binds),
];

const TCP: i32 = libc::SOCK_STREAM;
const UDP: i32 = libc::SOCK_DGRAM;
const ANY: &str = "0.0.0.0";
const HOST: &str = "127.0.0.1";
const OTHER: &str = "127.0.0.2";

/// A socket, closed when dropped.
struct Socket(i32);

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { libc::close(self.0) };
    }
}

/// Converts the return value of a call: errno for -1.
fn result(value: i32) -> Result<i32, i32> {
    if value < 0 { Err(errno()) } else { Ok(value) }
}

impl Socket {
    fn new(kind: i32) -> Self {
        Self::of(libc::AF_INET, kind)
    }

    fn of(family: i32, kind: i32) -> Self {
        // SAFETY: integers only.
        Self(result(unsafe { libc::socket(family, kind, 0) }).unwrap())
    }

    fn set(&self, level: i32, name: i32, value: i32) {
        set(self.0, level, name, value).unwrap();
    }

    fn share(&self, how: &str) {
        self.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, how.contains('a').into());
        self.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, how.contains('p').into());
    }

    fn bind(&self, ip: &str, port: u16) -> Result<i32, i32> {
        let (bytes, len) = encode(SocketAddr::new(ip.parse().unwrap(), port));
        // SAFETY: `bytes` contains an address of `len` bytes.
        result(unsafe { libc::bind(self.0, bytes.as_ptr().cast(), len) })
    }

    fn connect(&self, ip: &str, port: u16) -> Result<i32, i32> {
        let (bytes, len) = encode(SocketAddr::new(ip.parse().unwrap(), port));
        // SAFETY: `bytes` contains an address of `len` bytes.
        result(unsafe { libc::connect(self.0, bytes.as_ptr().cast(), len) })
    }

    fn disconnect(&self) {
        let nothing = [0u8; 16];
        // SAFETY: `nothing` has 16 bytes; family 0 is AF_UNSPEC.
        result(unsafe { libc::connect(self.0, nothing.as_ptr().cast(), 16) }).unwrap();
    }

    fn send(&self) -> Result<i32, i32> {
        // SAFETY: one byte.
        result(unsafe { libc::send(self.0, b"x".as_ptr().cast(), 1, 0) } as i32)
    }

    fn send_to(&self, ip: &str, port: u16) -> Result<i32, i32> {
        let (bytes, len) = encode(SocketAddr::new(ip.parse().unwrap(), port));
        let data = b"x".as_ptr().cast();
        // SAFETY: `data` points to one byte, and `bytes` contains an address of `len` bytes.
        result(unsafe { libc::sendto(self.0, data, 1, 0, bytes.as_ptr().cast(), len) } as i32)
    }

    fn listen(&self) -> Result<i32, i32> {
        // SAFETY: integers only.
        result(unsafe { libc::listen(self.0, 5) })
    }

    fn accept(&self) -> Socket {
        // SAFETY: null pointers mean that no address is returned.
        let fd = unsafe { libc::accept(self.0, std::ptr::null_mut(), std::ptr::null_mut()) };
        Socket(result(fd).unwrap())
    }

    fn shutdown(&self, how: i32) {
        // SAFETY: integers only.
        result(unsafe { libc::shutdown(self.0, how) }).unwrap();
    }

    fn name(&self) -> (String, u16) {
        let mut bytes = [0u8; 28];
        let mut len = 28;
        // SAFETY: `bytes` has room for `len` bytes.
        result(unsafe { libc::getsockname(self.0, bytes.as_mut_ptr().cast(), &raw mut len) })
            .unwrap();
        let ip: IpAddr = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).into(),
            _ => Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).unwrap()).into(),
        };
        (ip.to_string(), u16::from_be_bytes([bytes[2], bytes[3]]))
    }

    fn port(&self) -> u16 {
        self.name().1
    }

    fn peer(&self) -> Result<i32, i32> {
        let mut bytes = [0u8; 28];
        let mut len = 28;
        // SAFETY: `bytes` has room for `len` bytes.
        result(unsafe { libc::getpeername(self.0, bytes.as_mut_ptr().cast(), &raw mut len) })
    }

    /// Waits until the socket is readable or has an error.
    fn hear(&self) {
        assert!(self.polls(-1));
    }

    /// Returns whether a datagram that was sent before has arrived.
    fn hears(&self) -> bool {
        // When a later datagram over the same path has arrived, the earlier one has, too.
        let (sender, receiver) = (Socket::new(UDP), Socket::new(UDP));
        receiver.bind(HOST, 0).unwrap();
        sender.send_to(HOST, receiver.port()).unwrap();
        receiver.hear();
        self.polls(0)
    }

    fn polls(&self, ms: i32) -> bool {
        let mut entry = libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut entry, 1, ms) == 1 }
    }
}

fn encode(addr: SocketAddr) -> ([u8; 28], u32) {
    let mut bytes = [0; 28];
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => bytes[4..8].copy_from_slice(&SocketAddrV4::ip(&v4).octets()),
        SocketAddr::V6(v6) => bytes[8..24].copy_from_slice(&SocketAddrV6::ip(&v6).octets()),
    }
    (bytes, if addr.is_ipv4() { 16 } else { 28 })
}

/// Returns a free port.
fn free(kind: i32) -> u16 {
    let socket = Socket::new(kind);
    socket.bind(ANY, 0).unwrap();
    socket.port()
}

fn listener() -> (Socket, u16) {
    let listener = Socket::new(TCP);
    listener.bind(ANY, 0).unwrap();
    listener.listen().unwrap();
    let port = listener.port();
    (listener, port)
}

/// Returns whether another socket can be bound to this address and port.
fn can_be_had(kind: i32, ip: &str, port: u16) -> bool {
    let result = Socket::new(kind).bind(ip, port);
    assert!(matches!(result, Ok(_) | Err(libc::EADDRINUSE)), "{result:?}");
    result.is_ok()
}

/// Ways to bind a socket: the address, and whether a port is given. A disconnect keeps the given
/// parts.
const BINDS: [Option<(&str, bool)>; 5] =
    [None, Some((ANY, false)), Some((HOST, false)), Some((HOST, true)), Some((ANY, true))];

fn bound(kind: i32, how: Option<(&str, bool)>) -> Socket {
    let socket = Socket::new(kind);
    if let Some((ip, named)) = how {
        socket.bind(ip, if named { free(kind) } else { 0 }).unwrap();
    }
    socket
}

fn is_named(how: Option<(&str, bool)>) -> bool {
    how.is_some_and(|(_, named)| named)
}

fn a_refused_connect_lets_a_chosen_port_go() {
    for how in BINDS {
        let socket = bound(TCP, how);
        assert_eq!(socket.connect(HOST, free(TCP)), Err(libc::ECONNREFUSED), "{how:?}");
        let (ip, port) = socket.name();
        assert_eq!((ip.as_str(), port != 0), (how.map_or(ANY, |(ip, _)| ip), true), "{how:?}");
        assert_eq!(can_be_had(TCP, HOST, port), !is_named(how), "{how:?}");
        let again = if is_named(how) { Err(libc::EINVAL) } else { Ok(0) };
        assert_eq!(socket.bind(HOST, 0), again, "{how:?}");
        let held = socket.name();
        assert!(!can_be_had(TCP, HOST, held.1), "{how:?}");
        assert_eq!((socket.listen(), socket.name()), (Ok(0), held), "{how:?}");
    }
    // Without another bind, the socket keeps the given address, and gets another port.
    let (_listener, at) = listener();
    let socket = bound(TCP, Some((OTHER, false)));
    assert_eq!(socket.connect(HOST, free(TCP)), Err(libc::ECONNREFUSED));
    assert_eq!((socket.connect(HOST, at), socket.name().0.as_str()), (Ok(0), OTHER));
    assert!(!can_be_had(TCP, OTHER, socket.port()));
    let socket = bound(TCP, Some((HOST, false)));
    assert_eq!(socket.connect(HOST, free(TCP)), Err(libc::ECONNREFUSED));
    assert_eq!((socket.listen(), socket.name().0.as_str()), (Ok(0), HOST));
    assert!(!can_be_had(TCP, HOST, socket.port()));
}

fn a_reset_connection_lets_a_chosen_port_go() {
    let (listener, at) = listener();
    for how in BINDS {
        let socket = bound(TCP, how);
        socket.connect(HOST, at).unwrap();
        let accepted = listener.accept();
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the pointer and size are those of a local `linger`.
        let lingers = unsafe {
            libc::setsockopt(
                accepted.0,
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of_val(&linger) as u32,
            )
        };
        assert_eq!(lingers, 0);
        drop(accepted);
        socket.hear();
        let (ip, port) = socket.name();
        assert_eq!(ip, HOST);
        assert_eq!(can_be_had(TCP, HOST, port), !is_named(how), "{how:?}");
        assert_eq!(socket.connect(HOST, at), Err(libc::EISCONN));
        assert_eq!(socket.listen(), Err(libc::EINVAL));
        let again = if is_named(how) { Err(libc::EINVAL) } else { Ok(0) };
        assert_eq!(socket.bind(HOST, 0), again, "{how:?}");
    }
}

fn disconnected_streams() {
    let (listener, at) = listener();
    for how in BINDS {
        let socket = bound(TCP, how);
        socket.connect(HOST, at).unwrap();
        let _accepted = listener.accept();
        let port = socket.port();
        socket.disconnect();
        let address = how.map_or(ANY, |(ip, _)| ip);
        assert_eq!(socket.name(), (address.to_owned(), port), "{how:?}");
        assert_eq!(can_be_had(TCP, HOST, port), !is_named(how), "{how:?}");
        let again = if is_named(how) { Err(libc::EINVAL) } else { Ok(0) };
        assert_eq!(socket.bind(HOST, 0), again, "{how:?}");
        let held = socket.port();
        assert_eq!(socket.connect(HOST, at), Ok(0), "{how:?}");
        assert_eq!(socket.name(), (HOST.to_owned(), held), "{how:?}");
        listener.accept();
    }
}

fn listeners_that_listen_no_more() {
    for shut in [false, true] {
        for how in BINDS {
            let socket = bound(TCP, how);
            socket.listen().unwrap();
            let before = socket.name();
            if shut {
                socket.shutdown(libc::SHUT_RD)
            } else {
                socket.disconnect()
            }
            assert_eq!(socket.name(), before, "{how:?}");
            assert_eq!(can_be_had(TCP, HOST, before.1), !is_named(how), "{how:?}");
            assert_eq!(socket.listen(), Ok(0), "{how:?}");
            let (ip, port) = socket.name();
            assert_eq!(ip, before.0);
            assert_eq!(Socket::new(TCP).connect(HOST, port), Ok(0), "{how:?}");
            assert!(!is_named(how) || port == before.1, "{how:?}");
        }
    }
}

fn dissolved_datagram_sockets() {
    for how in BINDS {
        let socket = bound(UDP, how);
        socket.connect(HOST, free(UDP)).unwrap();
        let port = socket.port();
        socket.disconnect();
        let address = how.map_or(ANY, |(ip, _)| ip);
        let left = if is_named(how) { port } else { 0 };
        assert_eq!(socket.name(), (address.to_owned(), left), "{how:?}");
        assert_eq!(can_be_had(UDP, HOST, port), !is_named(how), "{how:?}");
        let widened = is_named(how) && address == ANY;
        assert_eq!(can_be_had(UDP, OTHER, port), !widened, "{how:?}");
        Socket::new(UDP).send_to(HOST, port).unwrap();
        match is_named(how) {
            true => socket.hear(),
            false => assert!(!socket.hears(), "{how:?}"),
        }
        let again = if is_named(how) { Err(libc::EINVAL) } else { Ok(0) };
        assert_eq!(socket.bind(HOST, 0), again, "{how:?}");
    }
    // The next send binds the socket to a new port of the address that was given.
    let socket = bound(UDP, Some((OTHER, false)));
    socket.connect(HOST, free(UDP)).unwrap();
    socket.disconnect();
    assert_eq!(socket.name(), (OTHER.to_owned(), 0));
    socket.send_to(HOST, free(UDP)).unwrap();
    assert_eq!((socket.name().0.as_str(), socket.port() != 0), (OTHER, true));
    assert!(can_be_had(UDP, HOST, socket.port()));
    // A disconnect also clears the device, as `__udp_disconnect` of Linux does (POSIX 1003.1g).
    let socket = Socket::new(UDP);
    let name = b"lo\0";
    // SAFETY: three bytes.
    let set = unsafe {
        let level = libc::SOL_SOCKET;
        libc::setsockopt(socket.0, level, libc::SO_BINDTODEVICE, name.as_ptr().cast(), 3)
    };
    assert_eq!((set, get(socket.0, libc::SOL_SOCKET, 62)), (0, Ok(1)));
    socket.connect(HOST, free(UDP)).unwrap();
    socket.disconnect();
    assert_eq!(get(socket.0, libc::SOL_SOCKET, 62), Ok(0), "SO_BINDTOIFINDEX");
}

fn a_connected_datagram_socket_holds_one_address() {
    for how in [None, Some((ANY, false)), Some((ANY, true))] {
        let socket = bound(UDP, how);
        if how.is_some() {
            assert!(!can_be_had(UDP, OTHER, socket.port()), "{how:?}");
        }
        socket.connect(HOST, free(UDP)).unwrap();
        assert!(can_be_had(UDP, OTHER, socket.port()), "{how:?}");
        assert!(!can_be_had(UDP, HOST, socket.port()), "{how:?}");
        assert!(!can_be_had(UDP, ANY, socket.port()), "{how:?}");
    }
}

/// Several UDP sockets are connected from one port to one peer. The last one receives datagrams,
/// and earlier ones after it is closed.
fn the_last_to_connect_hears_the_peer() {
    for how in ["a", "p", "ap"] {
        let peer = UdpSocket::bind((HOST, 0)).unwrap();
        let peer_port = peer.local_addr().unwrap().port();
        let port = free(UDP);
        let mut sockets: Vec<Option<Socket>> = (0..3)
            .map(|_| {
                let socket = Socket::new(UDP);
                socket.share(how);
                socket.bind(HOST, port).unwrap();
                Some(socket)
            })
            .collect();
        for at in [1, 0, 2] {
            sockets[at].as_ref().unwrap().connect(HOST, peer_port).unwrap();
        }
        for last in [2, 0, 1] {
            peer.send_to(b"x", (HOST, port)).unwrap();
            let heard = sockets[last].take().unwrap();
            let mut byte = [0];
            // SAFETY: `byte` has room for a byte.
            let n = unsafe { libc::recv(heard.0, byte.as_mut_ptr().cast(), 1, 0) };
            assert_eq!((n, byte), (1, *b"x"), "{how} {last}");
        }
    }
}

fn sharing_a_port_that_connect_chose() {
    let (listener, at) = listener();
    for kind in [TCP, UDP] {
        for when in ["never", "before", "after"] {
            for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
                let socket = Socket::new(kind);
                if when == "before" {
                    socket.set(libc::SOL_SOCKET, option, 1);
                }
                socket.connect(HOST, at).unwrap();
                let _accepted = (kind == TCP).then(|| listener.accept());
                if when == "after" {
                    socket.set(libc::SOL_SOCKET, option, 1);
                }
                let other = Socket::new(kind);
                let plain = other.bind(HOST, socket.port());
                assert_eq!(plain, Err(libc::EADDRINUSE), "{kind} {when} {option}");
                other.set(libc::SOL_SOCKET, option, 1);
                let expected = if when == "never" { Err(libc::EADDRINUSE) } else { Ok(0) };
                let shared = other.bind(HOST, socket.port());
                assert_eq!(shared, expected, "{kind} {when} {option}");
            }
        }
    }
}

/// Binds sockets one after another to one port, with the options in their words: `a` SO_REUSEADDR,
/// `p` SO_REUSEPORT, `*` any-address, `l` listen. Options after a colon are set after the bind.
/// Returns `+` or `-` for each socket: bound or refused.
fn joined(kind: i32, words: &str) -> String {
    let port = free(kind);
    let mut sockets = Vec::new();
    let mut told = String::new();
    for word in words.split(' ') {
        let (how, later) = word.split_once(':').map_or((word, None), |(how, l)| (how, Some(l)));
        let socket = Socket::new(kind);
        socket.share(how);
        let result = socket.bind(if how.contains('*') { ANY } else { HOST }, port);
        assert!(matches!(result, Ok(_) | Err(libc::EADDRINUSE)), "{result:?}");
        told.push(if result.is_ok() { '+' } else { '-' });
        if how.contains('l') && kind == TCP {
            socket.listen().unwrap();
        }
        if let Some(later) = later {
            socket.share(later);
        }
        if result.is_ok() {
            sockets.push(socket);
        }
    }
    told
}

fn who_may_join_whom() {
    // "-" stands for neither option.
    for words in [
        ("- -", "+-"),
        ("- a", "+-"),
        ("- p", "+-"),
        ("- ap", "+-"),
        ("a -", "+-"),
        ("a a", "++"),
        ("a p", "+-"),
        ("a ap", "++"),
        ("p -", "+-"),
        ("p a", "+-"),
        ("p p", "++"),
        ("p ap", "++"),
        ("ap -", "+-"),
        ("ap a", "++"),
        ("ap p", "++"),
        ("ap ap", "++"),
        ("a a -", "++-"),
        ("a a p", "++-"),
        ("a a ap", "+++"),
        // The newest socket decides for those bound before it.
        ("a ap -", "++-"),
        ("a ap a", "+++"),
        ("a ap p", "+++"),
        ("a ap ap", "+++"),
        ("p p a", "++-"),
        ("p p ap", "+++"),
        ("p ap a", "++-"),
        ("p ap p", "+++"),
        ("ap a p", "++-"),
        ("ap a ap", "+++"),
        ("ap a ap p", "++++"),
        ("ap p a", "++-"),
        ("ap p p", "+++"),
        ("ap ap a", "+++"),
        ("ap ap p", "+++"),
        ("a* ap* p", "+++"),
        ("a ap* p", "+++"),
        ("a* ap p", "+++"),
        ("a ap* p*", "+++"),
    ] {
        let (words, expected) = words;
        assert_eq!(joined(TCP, words), expected, "TCP {words}");
        assert_eq!(joined(UDP, words), expected, "UDP {words}");
    }
    // TCP stores the address for which the port was shared.
    assert_eq!((joined(TCP, "a* ap p*"), joined(UDP, "a* ap p*")), ("++-".into(), "+++".into()));
    // A port with a listener can be shared by SO_REUSEPORT, but not by SO_REUSEADDR.
    assert_eq!(joined(TCP, "al a"), "+-");
    assert_eq!(joined(TCP, "apl ap"), "++");
    assert_eq!(joined(TCP, "apl apl pl"), "+++");
}

fn sharing_is_asked_when_somebody_joins() {
    for kind in [TCP, UDP] {
        assert_eq!(joined(kind, "a:- a"), "+-", "{kind}");
        assert_eq!(joined(kind, "-:a a"), "++", "{kind}");
        assert_eq!(joined(kind, "-:p p"), "++", "{kind}");
    }
    assert_eq!((joined(TCP, "p:- p"), joined(UDP, "p:- p")), ("++".into(), "+-".into()));
}

fn port_zero() {
    for (family, ip) in [(libc::AF_INET, HOST), (libc::AF_INET6, "::1")] {
        let stream = Socket::of(family, TCP);
        assert_eq!(stream.connect(ip, 0), Err(libc::ECONNREFUSED), "{ip}");
        let datagram = Socket::of(family, UDP);
        assert_eq!(datagram.send_to(ip, 0), Err(libc::EINVAL), "{ip}");
        assert_eq!(datagram.connect(ip, 0), Ok(0), "{ip}");
        assert_eq!(datagram.peer(), Err(libc::ENOTCONN), "{ip}");
        assert_eq!(datagram.send(), Ok(1), "{ip}");
        datagram.hear();
        assert_eq!(datagram.send(), Err(libc::ECONNREFUSED), "{ip}");
    }
}

fn past_the_peer_to_the_other_version() {
    let heard = UdpSocket::bind((HOST, 0)).unwrap();
    heard.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let socket = Socket::of(libc::AF_INET6, UDP);
    socket.connect("::1", 9).unwrap();
    let port = heard.local_addr().unwrap().port();
    // The second send goes to the same peer as the first.
    for _ in 0..2 {
        assert_eq!(socket.send_to("::ffff:127.0.0.1", port), Ok(1));
        let (len, from) = heard.recv_from(&mut [0; 8]).unwrap();
        assert_eq!((len, from), (1, SocketAddr::new(HOST.parse().unwrap(), socket.port())));
    }
}

fn peers_of_the_other_version() {
    const MAPPED: &str = "::ffff:127.0.0.1";
    const UNREACH: Result<&str, i32> = Err(libc::ENETUNREACH);
    const NO_FAMILY: Result<&str, i32> = Err(libc::EAFNOSUPPORT);
    let listener = Socket::of(libc::AF_INET6, TCP);
    listener.bind("::", 0).unwrap();
    listener.listen().unwrap();
    let port = listener.port();
    std::thread::spawn(move || {
        loop {
            listener.accept();
        }
    });
    // Bound address, IPV6_V6ONLY, peer; results of connect (TCP, UDP) and of sendto.
    for (from, v6_only, to, expected) in [
        ("::1", 0, "::1", [Ok("::1"), Ok("::1"), Ok("::1")]),
        ("::1", 0, "::", [Ok("::1"), Ok("::1"), Ok("::1")]),
        ("::1", 0, MAPPED, [UNREACH; 3]),
        ("::1", 0, HOST, [Err(libc::EINVAL), NO_FAMILY, UNREACH]),
        ("::1", 0, ANY, [Err(libc::EINVAL), NO_FAMILY, UNREACH]),
        ("::", 0, "::1", [Ok("::1"), Ok("::1"), Ok("::")]),
        ("::", 0, MAPPED, [Ok(MAPPED), Ok(MAPPED), Ok("::")]),
        ("::", 0, HOST, [Err(libc::EINVAL), Ok(MAPPED), Ok("::")]),
        ("::", 1, MAPPED, [UNREACH; 3]),
        ("::", 1, HOST, [Err(libc::EINVAL), NO_FAMILY, UNREACH]),
        ("::", 1, "::", [Ok("::1"), Ok("::1"), Ok("::")]),
        (MAPPED, 0, "::1", [NO_FAMILY; 3]),
        (MAPPED, 0, MAPPED, [Ok(MAPPED); 3]),
        (MAPPED, 0, HOST, [Err(libc::EINVAL), Ok(MAPPED), Ok(MAPPED)]),
        (MAPPED, 0, "::", [Ok(MAPPED); 3]),
        (HOST, 0, "::1", [NO_FAMILY; 3]),
        (HOST, 0, MAPPED, [NO_FAMILY; 3]),
        (HOST, 0, HOST, [Ok(HOST); 3]),
    ] {
        let family = if from.contains(':') { libc::AF_INET6 } else { libc::AF_INET };
        for (n, expected) in expected.into_iter().enumerate() {
            let socket = Socket::of(family, if n == 0 { TCP } else { UDP });
            if family == libc::AF_INET6 {
                socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, v6_only);
            }
            socket.bind(from, 0).unwrap();
            if from == "::1" {
                let only = get(socket.0, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
                assert_eq!(only, Ok(1), "bound to an IPv6 address it is a socket of IPv6 alone");
            }
            let result = if n < 2 { socket.connect(to, port) } else { socket.send_to(to, port) };
            let told = result.map(|_| socket.name().0);
            let expected = expected.map(str::to_owned);
            assert_eq!(told, expected, "from {from} to {to}, call {n}, IPV6_V6ONLY {v6_only}");
        }
    }
    // While connected to an IPv4 host, the socket behaves as if bound to an IPv4 address.
    let socket = Socket::of(libc::AF_INET6, UDP);
    socket.connect(MAPPED, port).unwrap();
    assert_eq!(socket.send_to("::1", port), Err(libc::EAFNOSUPPORT));
    assert_eq!(socket.connect("::1", port), Err(libc::EAFNOSUPPORT));
    socket.disconnect();
    assert_eq!((socket.connect("::1", port), socket.name().0.as_str()), (Ok(0), "::1"));
    // An IPv6-only socket that was bound by a send does not conflict with IPv4 sockets.
    let socket = Socket::of(libc::AF_INET6, UDP);
    socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
    socket.send_to("::1", port).unwrap();
    assert!(can_be_had(UDP, ANY, socket.port()));
}

fn a_failed_datagram_connect_binds() {
    let socket = Socket::new(UDP);
    // Fails with EACCES, or with ENETUNREACH if the stack has only loopback.
    assert!(socket.connect("255.255.255.255", 9).is_err());
    assert_eq!((socket.name().0.as_str(), socket.port() != 0), (ANY, true));
}
