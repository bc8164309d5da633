//! Published ports follow the sockets of the program's stack: the host's kernel refuses a client
//! unless a socket would receive its packets.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use towpath_direct::Direct;
use towpath_gateway::{Bound, Forward, ForwardProtocol, GatewayConfig, Notice, PublishWatch};
use towpath_pool::{LinkType, Offloads};
use towpath_stack::net::InterfaceConfig;
use towpath_stack::{
    BindOptions, Family, IfaceId, Linger, SocketId, SocketKind, SocketOption, Stack, StackConfig,
};
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

const NOW: Instant = Instant(1_000_000_000);

/// Shards of a program's stack, and the host ports published for it.
struct World {
    shards: Vec<Stack<Direct>>,
    hosts: Vec<SocketAddr>,
    notices: Receiver<Notice>,
    _bound: Vec<Bound>,
}

impl World {
    fn new(shards: usize, hosts: &[&str], protocol: ForwardProtocol) -> Self {
        let forward =
            |host: &&str| Forward { host: host.parse().expect("an address"), port: 80, protocol };
        let forwards: Vec<_> = hosts.iter().map(forward).collect();
        let bound = Bound::all(&forwards).expect("free ports");
        let (tell, notices) = channel();
        let tell = move |notice| tell.send(notice).expect("the test listens");
        let watch = PublishWatch::new(&GatewayConfig::default(), &bound, tell);
        let config = StackConfig { receivers: Some(watch), ..StackConfig::default() };
        let mut shards = Stack::shards(config, [7; 32], NOW, shards);
        let addresses = ["10.0.2.15/24", "fd00:2::15/64"].map(|text| text.parse().expect("one"));
        shards[0].net.add_interface(
            NOW,
            InterfaceConfig {
                name: "eth0".into(),
                link: LinkType::Ip,
                mac: MacAddr([0; 6]),
                mtu: 1500,
                offloads: Offloads::default(),
                addresses: addresses.into(),
                slaac: false,
                any_address: false,
                kernel_cuts: false,
                in_process: true,
            },
        );
        let hosts = bound.iter().map(|bound| bound.host).collect();
        Self { shards, hosts, notices, _bound: bound }
    }

    fn socket(
        &mut self,
        shard: usize,
        kind: SocketKind,
        addr: &str,
        options: BindOptions,
    ) -> SocketId {
        let addr: SocketAddr = addr.parse().expect("an address");
        let family = if addr.is_ipv4() { Family::V4 } else { Family::V6 };
        let stack = &mut self.shards[shard];
        let id = stack.open(kind, family, 1).expect("room");
        stack.bind(id, addr, options).expect("a free port");
        id
    }

    fn listen(&mut self, addr: &str) -> SocketId {
        let id = self.socket(0, SocketKind::Stream, addr, BindOptions::default());
        self.shards[0].listen(id, 8).expect("it may listen");
        id
    }

    fn close(&mut self, shard: usize, id: SocketId) {
        self.shards[shard].close(NOW, id, Linger::Default);
    }

    /// Returns whether a client can connect to each of the host's ports.
    fn tcp(&self) -> Vec<bool> {
        self.hosts.iter().map(|host| connects(*host)).collect()
    }

    fn udp(&self) -> Vec<bool> {
        let ask = |host: &SocketAddr| {
            let any = if host.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
            let client = UdpSocket::bind(any).expect("a port");
            client.connect(local(*host)).expect("it sends nothing");
            // On loopback, delivery and the ICMP refusal happen within the system call.
            client.send(b"hello").expect("nothing was refused before");
            gets_in(client.send(b"hello"))
        };
        self.hosts.iter().map(ask).collect()
    }
}

/// Returns an address of this host at which clients reach `host`.
fn local(host: SocketAddr) -> SocketAddr {
    let loopback = if host.is_ipv4() { "127.0.0.1" } else { "::1" };
    match host.ip().is_unspecified() {
        true => SocketAddr::new(loopback.parse().expect("an address"), host.port()),
        false => host,
    }
}

/// Returns whether a client can connect. Checks that it receives nothing before it is served.
fn connects(host: SocketAddr) -> bool {
    let client = TcpStream::connect(local(host));
    let silent = |mut client: &TcpStream| {
        client.set_nonblocking(true).expect("it is a socket");
        client.read(&mut [0]).expect_err("neither bytes nor an end").kind()
    };
    if let Ok(client) = &client {
        assert_eq!(silent(client), ErrorKind::WouldBlock);
    }
    gets_in(client)
}

fn gets_in<T>(result: std::io::Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => false,
        Err(error) => panic!("neither let in nor refused: {error}"),
    }
}

const SHARED: BindOptions = BindOptions { reuse_port: true, v6_only: true, ..BindOptions::PLAIN };

#[test]
fn clients_are_refused_before_and_after_and_let_in_while_the_program_listens() {
    let hosts = ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"];
    let mut world = World::new(1, &hosts, ForwardProtocol::Tcp);
    for _ in 0..3 {
        assert_eq!(world.tcp(), [false; 4], "before");
        let bound = world.socket(0, SocketKind::Stream, "0.0.0.0:80", BindOptions::default());
        assert_eq!(world.tcp(), [false; 4], "bound is not yet listening");
        world.shards[0].listen(bound, 8).expect("it may listen");
        assert_eq!(world.tcp(), [true; 4], "while");
        world.close(0, bound);
        assert_eq!(world.tcp(), [false; 4], "after");
    }
}

#[test]
fn where_the_program_listens_decides_whom_it_takes() {
    let mut world = World::new(1, &["127.0.0.1:0", "[::]:0"], ForwardProtocol::Tcp);
    // For TCP the gateway tries both addresses of the program.
    let cases = [
        ("10.0.2.15:80", true),
        ("[fd00:2::15]:80", true),
        ("[::]:80", true),
        ("127.0.0.1:80", false),
        ("[::1]:80", false),
        ("0.0.0.0:81", false),
    ];
    for (addr, wanted) in cases {
        let listener = world.listen(addr);
        assert_eq!(world.tcp(), [wanted; 2], "{addr}");
        world.close(0, listener);
        assert_eq!(world.tcp(), [false; 2], "after {addr}");
    }
    let udp = world.socket(0, SocketKind::Datagram, "0.0.0.0:80", BindOptions::default());
    assert_eq!(world.tcp(), [false; 2], "of another protocol");
    world.close(0, udp);
}

#[test]
fn a_port_stays_open_until_the_last_listener_has_gone() {
    for shards in [1, 2] {
        let mut world = World::new(shards, &["127.0.0.1:0"], ForwardProtocol::Tcp);
        let listeners: Vec<_> = (0..3)
            .map(|n| {
                let shard = n % shards;
                let id = world.socket(shard, SocketKind::Stream, "0.0.0.0:80", SHARED);
                world.shards[shard].listen(id, 8).expect("it may listen");
                (shard, id)
            })
            .collect();
        for (shard, id) in listeners {
            assert_eq!(world.tcp(), [true]);
            world.close(shard, id);
        }
        assert_eq!(world.tcp(), [false]);
    }
}

#[test]
fn a_listener_that_moves_to_the_loopback_interface_takes_no_clients() {
    let mut world = World::new(1, &["127.0.0.1:0"], ForwardProtocol::Tcp);
    let listener = world.listen("0.0.0.0:80");
    let mut set = |device| {
        let option = SocketOption::Device(device);
        world.shards[0].set_option(listener, option).expect("listeners have it");
        world.tcp()
    };
    assert_eq!(set(Some(IfaceId::LOOPBACK)), [false]);
    assert_eq!(set(Some(IfaceId(1))), [true]);
    assert_eq!(set(None), [true]);
}

#[test]
fn datagrams_are_refused_unless_the_program_has_a_socket_for_them() {
    for shards in [1, 2] {
        let hosts = ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"];
        let mut world = World::new(shards, &hosts, ForwardProtocol::Udp);
        let last = shards - 1;
        for _ in 0..3 {
            assert_eq!(world.udp(), [false; 4], "before");
            let id = world.socket(last, SocketKind::Datagram, "0.0.0.0:80", BindOptions::default());
            assert_eq!(world.udp(), [true; 4], "while");
            world.close(last, id);
            assert_eq!(world.udp(), [false; 4], "after");
        }
        // Local clients appear over IPv4, and clients that reach [::] from the network over IPv6.
        let v6 = world.socket(0, SocketKind::Datagram, "[fd00:2::15]:80", BindOptions::default());
        assert_eq!(world.udp(), [false, false, false, true]);
        // A connected UDP socket serves a single peer, but still has the port.
        let v4 = world.socket(0, SocketKind::Datagram, "10.0.2.15:80", BindOptions::default());
        let peer = "10.0.2.2:4000".parse().expect("an address");
        let connected = world.shards[0].connect_datagram(NOW, v4, peer);
        assert_eq!((connected, world.udp()), (Ok(()), vec![true; 4]));
        world.close(0, v6);
        assert_eq!(world.udp(), [true, true, true, true]);
        world.close(0, v4);
        assert_eq!(world.udp(), [false; 4]);
    }
}

#[test]
fn a_port_is_nobody_elses_while_it_refuses() {
    let mut world = World::new(1, &["127.0.0.1:0"], ForwardProtocol::Tcp);
    let host = world.hosts[0];
    // std's listeners have SO_REUSEADDR, which would allow the bind if the reserved socket had it,
    // too.
    let taken = |addr| TcpListener::bind(addr).expect_err("it is taken").kind();
    let all: SocketAddr = SocketAddr::new([0, 0, 0, 0].into(), host.port());
    assert_eq!([taken(host), taken(all)], [ErrorKind::AddrInUse; 2]);
    // The connection of an earlier client also holds the port.
    let listener = world.listen("0.0.0.0:80");
    let _client = TcpStream::connect(host).expect("it listens");
    world.close(0, listener);
    assert_eq!([taken(host), taken(all)], [ErrorKind::AddrInUse; 2]);
    world.listen("0.0.0.0:80");
    assert_eq!(world.tcp(), [true]);

    let world = World::new(1, &["127.0.0.1:0"], ForwardProtocol::Udp);
    let taken = UdpSocket::bind(world.hosts[0]).expect_err("it is taken");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
}

#[test]
fn a_port_that_another_listens_on_is_an_error_at_the_start() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = other.local_addr().expect("bound");
    for host in [host, SocketAddr::new([0, 0, 0, 0].into(), host.port())] {
        let which = Forward { host, port: 80, protocol: ForwardProtocol::Tcp };
        let error = Bound::all(&[which]).expect_err("it is taken");
        assert_eq!((error.which, error.source.kind()), (which, ErrorKind::AddrInUse));
    }
    let other = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let host = other.local_addr().expect("bound");
    let which = Forward { host, port: 80, protocol: ForwardProtocol::Udp };
    let error = Bound::all(&[which]).expect_err("it is taken");
    assert_eq!(error.source.kind(), ErrorKind::AddrInUse);
}

#[test]
fn that_only_the_loopback_is_listened_on_is_said_once() {
    let mut world = World::new(1, &["127.0.0.1:0"], ForwardProtocol::Tcp);
    let host = world.hosts[0];
    for _ in 0..2 {
        let listener = world.listen("127.0.0.1:80");
        world.close(0, listener);
    }
    let (protocol, program) = (ForwardProtocol::Tcp, "10.0.2.15:80".parse().expect("an address"));
    let wanted = Notice::LoopbackOnly { protocol, host, program };
    assert_eq!(world.notices.try_iter().collect::<Vec<_>>(), [wanted]);
    let text = wanted.to_string();
    assert!(text.contains("port 80 of its loopback only"), "{text}");
}

#[test]
fn a_watch_begins_with_ports_that_refuse() {
    let which = Forward {
        host: "127.0.0.1:0".parse().expect("an address"),
        port: 80,
        protocol: ForwardProtocol::Tcp,
    };
    let bound = Bound::all(&[which]).expect("a free port");
    bound[0].open().expect("it may listen");
    assert!(connects(bound[0].host));
    // A new watch, as for a program that replaces another one in the same process, closes the port.
    let watch: Arc<_> = PublishWatch::new(&GatewayConfig::default(), &bound, drop);
    assert!(!connects(bound[0].host), "{watch:?}");
}
