//! Clients with different addresses, as behind a TUN device: a client that floods evicts its own
//! flows, and none of other clients.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use towpath_gateway::{FlowProtocol, Gateway, GatewayConfig};
use towpath_pool::{Batch, Checksum, Packet, Pool, Port};
use towpath_wire::{IpProtocol, icmpv4, ipv4, udp};

use crate::world::in_namespace;

/// Client with few flows, and client that floods.
const QUIET: &str = "10.1.0.2";
const FLOODS: &str = "10.1.0.3";
/// A host of the namespace.
const SERVER: &str = "192.0.2.1";
/// Descriptors that allow 55 UDP flows, 222 TCP flows of which 111 connect, and 7 echo flows.
const DESCRIPTORS: u32 = 300;
const UDP_MAX: u64 = 55;
const TCP_MAX: u64 = 222;
const CONNECTING_MAX: u64 = 111;
const ECHO_MAX: u64 = 7;
const FLOOD: u16 = 500;

struct Crowd {
    gateway: Gateway,
    pool: Pool,
    now_ns: u64,
}

impl Crowd {
    fn new() -> Self {
        let config = GatewayConfig {
            program_v4: None,
            program_v6: None,
            gateway_v4: None,
            gateway_v6: None,
            dns_v4: None,
            dns_v6: None,
            descriptors: Some(DESCRIPTORS),
            ..GatewayConfig::default()
        };
        let gateway = Gateway::new(config, 1).unwrap();
        Self { gateway, pool: Pool::default(), now_ns: 1 }
    }

    /// Sends a packet of a client. `body` follows the IP header.
    fn send(&mut self, from: &str, protocol: IpProtocol, body: &[u8]) {
        let packet = packet(&mut self.pool, from, protocol, body);
        self.now_ns += 1;
        self.gateway.submit(self.now_ns, &mut self.pool, &mut Batch::from([packet]));
    }

    fn datagram(&mut self, from: &str, port: u16, to: u16) {
        let mut body = vec![0; udp::HEADER_LEN + 1];
        let (length, checksum) = (body.len() as u16, !0);
        udp::Header { src_port: port, dst_port: to, length, checksum }.emit(&mut body);
        self.send(from, IpProtocol::UDP, &body);
    }

    /// A SYN without options.
    fn syn(&mut self, from: &str, port: u16, to: u16) {
        let ports = [port.to_be_bytes(), to.to_be_bytes()].concat();
        let rest = [0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0];
        self.send(from, IpProtocol::TCP, &[&ports[..], &rest].concat());
    }

    fn ping(&mut self, from: &str, ident: u16) {
        let mut body = vec![0; icmpv4::HEADER_LEN];
        icmpv4::Message::EchoRequest { ident, seq: 1 }.emit(&mut body);
        icmpv4::fill_checksum(&mut body);
        self.send(from, IpProtocol::ICMP, &body);
    }

    /// Returns the destinations of the packets sent to clients.
    fn take(&mut self) -> Vec<IpAddr> {
        let mut out = Batch::new();
        self.now_ns += 1_000_000;
        while self.gateway.poll(self.now_ns, &mut self.pool, &mut out, 1024) > 0 {}
        let to = |packet: &Packet| ipv4::Header::parse(packet.linear()).unwrap().0.dst.into();
        out.iter().map(to).collect()
    }

    /// Flows of a client.
    fn flows(&self, of: &str, protocol: FlowProtocol) -> u64 {
        let flows = self.gateway.flows();
        let is_meant = |flow: &&towpath_gateway::FlowEntry| {
            flow.protocol == protocol && flow.client.ip().to_string() == of
        };
        flows.iter().filter(is_meant).count() as u64
    }
}

fn packet(pool: &mut Pool, from: &str, protocol: IpProtocol, body: &[u8]) -> Packet {
    let mut bytes = vec![0; ipv4::HEADER_LEN];
    bytes.extend(body);
    let header = ipv4::Header {
        tos: 0,
        total_len: bytes.len() as u16,
        ident: 0,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol,
        src: from.parse().unwrap(),
        dst: SERVER.parse().unwrap(),
        options: ipv4::Options::EMPTY,
    };
    header.emit(&mut bytes);
    let mut packet = pool.take(bytes.len());
    packet.push_back(bytes.len()).unwrap().copy_from_slice(&bytes);
    packet.meta.checksum = Checksum::Verified;
    packet
}

#[test]
fn a_flood_of_datagrams_leaves_other_clients_their_flows() {
    in_namespace(|| {
        let server = UdpSocket::bind((SERVER, 0)).unwrap();
        server.set_nonblocking(true).unwrap();
        let port = server.local_addr().unwrap().port();
        let mut crowd = Crowd::new();
        crowd.datagram(QUIET, 4000, port);
        let quiet = server.recv_from(&mut [0; 8]).unwrap().1;
        server.send_to(b"!", quiet).unwrap();
        assert_eq!(crowd.take(), [QUIET.parse::<IpAddr>().unwrap()]);
        for n in 0..FLOOD {
            crowd.datagram(FLOODS, 10_000 + n, port);
        }
        server.send_to(b"!", quiet).unwrap();
        assert_eq!(crowd.take(), [QUIET.parse::<IpAddr>().unwrap()]);
        let counters = crowd.gateway.counters();
        assert_eq!(counters.udp_evicted, u64::from(FLOOD) + 1 - UDP_MAX);
        assert_eq!(counters.udp_answered_evicted, 0);
        assert_eq!(crowd.flows(FLOODS, FlowProtocol::Udp), UDP_MAX - 1);
    });
}

#[test]
fn a_flood_of_pings_leaves_other_clients_theirs() {
    in_namespace(|| {
        let mut crowd = Crowd::new();
        crowd.ping(QUIET, 7);
        if crowd.gateway.counters().echo_not_permitted > 0 {
            return;
        }
        assert_eq!(crowd.take(), [QUIET.parse::<IpAddr>().unwrap()]);
        for n in 0..FLOOD {
            crowd.ping(FLOODS, n);
        }
        assert_eq!(crowd.flows(QUIET, FlowProtocol::Echo), 1);
        let counters = crowd.gateway.counters();
        assert_eq!(counters.echo_evicted, u64::from(FLOOD) + 1 - ECHO_MAX);
        assert_eq!(counters.echo_answered_evicted, 0);
    });
}

/// Creates a listener whose queue is full, so that the kernel answers no further SYN.
fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind((SERVER, 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener, vec![first])
}

#[test]
fn a_flood_of_syns_leaves_other_clients_their_connects() {
    in_namespace(|| {
        let (listener, _first) = full_listener();
        let port = listener.local_addr().unwrap().port();
        let mut crowd = Crowd::new();
        crowd.syn(QUIET, 4000, port);
        for n in 0..FLOOD {
            crowd.syn(FLOODS, 10_000 + n, port);
        }
        crowd.syn("10.1.0.4", 4000, port);
        let counters = crowd.gateway.counters();
        assert_eq!(counters.tcp_connecting_evicted, u64::from(FLOOD) + 2 - CONNECTING_MAX);
        assert_eq!(counters.tcp_forgotten, 0);
        for (client, flows) in [(QUIET, 1), ("10.1.0.4", 1), (FLOODS, CONNECTING_MAX - 2)] {
            assert_eq!(crowd.flows(client, FlowProtocol::Tcp), flows, "{client}");
        }
    });
}

#[test]
fn one_client_does_not_get_all_connections() {
    in_namespace(|| {
        let listener = TcpListener::bind((SERVER, 0)).unwrap();
        let to: SocketAddr = listener.local_addr().unwrap();
        let mut crowd = Crowd::new();
        for n in 0..FLOOD {
            crowd.syn(FLOODS, 10_000 + n, to.port());
            // The host accepts at once, so this flow no longer counts as connecting.
            crowd.take();
        }
        // A client may have seven times as many flows as are free.
        let flows = crowd.flows(FLOODS, FlowProtocol::Tcp);
        assert_eq!(flows, TCP_MAX * 7 / 8 + 1);
        assert_eq!(crowd.gateway.counters().tcp_client_full, u64::from(FLOOD) - flows);
        crowd.syn(QUIET, 4000, to.port());
        assert_eq!(crowd.flows(QUIET, FlowProtocol::Tcp), 1);
        assert_eq!(crowd.gateway.counters().tcp_flows_full, 0);
    });
}

/// Returns the sequence number of the SYN-ACK, which must be the first packet.
fn syn_ack(packets: &Batch) -> u32 {
    let seq = |packet: &Packet| {
        let segment = &packet.linear()[ipv4::HEADER_LEN..];
        u32::from_be_bytes(segment[4..8].try_into().unwrap())
    };
    seq(packets.iter().next().expect("a SYN-ACK"))
}

#[test]
fn a_client_that_vanished_is_noticed_with_the_hosts_times_of_keepalive() {
    in_namespace(|| {
        let times = [("time", 20), ("intvl", 10), ("probes", 3)];
        for (name, value) in times {
            let file = format!("/proc/sys/net/ipv4/tcp_keepalive_{name}");
            std::fs::write(file, format!("{value}")).unwrap();
        }
        let listener = TcpListener::bind((SERVER, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut crowd = Crowd::new();
        crowd.syn(QUIET, 4000, port);
        let mut out = Batch::new();
        let deadline = std::time::Instant::now() + crate::world::PATIENCE;
        while out.is_empty() {
            assert!(std::time::Instant::now() < deadline, "no SYN-ACK");
            crowd.now_ns += 1000;
            crowd.gateway.poll(crowd.now_ns, &mut crowd.pool, &mut out, 8);
        }
        let ack = syn_ack(&out).wrapping_add(1);
        let ports = [4000u16.to_be_bytes(), port.to_be_bytes()].concat();
        let rest = [0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
        let segment = [&ports[..], &2u32.to_be_bytes(), &ack.to_be_bytes(), &rest].concat();
        crowd.send(QUIET, IpProtocol::TCP, &segment);
        let mut peer = listener.accept().unwrap().0;
        peer.set_nonblocking(true).unwrap();
        let (mut seconds, mut probes) = (0, 0);
        while crowd.gateway.tcp_flows() > 0 {
            let ends = peer.read(&mut [0; 1]).map_err(|error| error.kind());
            assert_eq!(ends, Err(ErrorKind::WouldBlock));
            seconds += 1;
            crowd.now_ns += 1_000_000_000;
            probes += crowd.take().len();
        }
        // The first probe follows after 20 s. Two more probes and 10 s for the last answer complete
        // 50 s.
        assert!((49..=51).contains(&seconds), "{seconds}");
        assert!(probes >= 3, "{probes}");
        let ends = peer.read(&mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(ends, Err(ErrorKind::ConnectionReset));
    });
}

#[test]
fn another_port_of_a_peer_may_answer_and_another_peer_may_not() {
    in_namespace(|| {
        let bind = |ip: &str| UdpSocket::bind((ip, 0)).unwrap();
        let (server, other_port, stranger) = (bind(SERVER), bind(SERVER), bind("127.0.0.1"));
        let port = server.local_addr().unwrap().port();
        let mut crowd = Crowd::new();
        crowd.datagram(QUIET, 4000, port);
        let seen = server.recv_from(&mut [0; 8]).unwrap().1;
        other_port.send_to(b"data", seen).unwrap();
        assert_eq!(crowd.take(), [QUIET.parse::<IpAddr>().unwrap()]);
        assert_eq!(crowd.gateway.counters().udp_from_other_ports, 1);
        // The program's datagram to the new port creates a flow, so that later datagrams from this
        // port are no longer counted as from other ports.
        crowd.datagram(QUIET, 4000, other_port.local_addr().unwrap().port());
        assert_eq!(other_port.recv_from(&mut [0; 8]).unwrap().1, seen);
        other_port.send_to(b"data", seen).unwrap();
        assert_eq!(crowd.take().len(), 1);
        assert_eq!(crowd.gateway.counters().udp_from_other_ports, 1);
        let to = SocketAddr::new("127.0.0.1".parse().unwrap(), seen.port());
        stranger.send_to(b"no", to).unwrap();
        assert!(crowd.take().is_empty());
        assert_eq!(crowd.gateway.counters().udp_dropped, 1);
    });
}
