//! Queries the kernel for sockets in a network namespace by sock_diag(7), with one lookup for each
//! query.
//!
//! A lookup by SOCK_DIAG_BY_FAMILY finds the socket to which the kernel would deliver an arriving
//! packet. The kernel applies addresses, IPV6_V6ONLY, SO_BINDTODEVICE and SO_REUSEPORT. Unlike
//! /proc/net/tcp, the cost of a lookup does not depend on the number of sockets on the host. A
//! netlink socket stays in the namespace in which it was created, and lookups need no privileges.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, netlink, recv, send,
    socket_with,
};
use serde::{Deserialize, Serialize};
use towpath_gateway::{ForwardProtocol, ProgramKernel, SocketQuestion};

/// Client that queries the kernel for sockets in a namespace.
#[derive(Debug)]
pub struct SockDiag {
    /// Netlink socket that was created in the namespace.
    pub socket: OwnedFd,
    /// Properties of the namespace that queries need.
    pub facts: Facts,
    /// Sequence number of the latest request.
    seq: u32,
}

/// Properties of a namespace that queries need, in a form that can be sent to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Index of the network device on which packets of clients arrive.
    device: u32,
    /// Whether the kernel supports queries for TCP (CONFIG_INET_TCP_DIAG).
    tcp: bool,
    /// Whether the kernel supports queries for UDP (CONFIG_INET_UDP_DIAG).
    udp: bool,
}

/// Maximum number of queries in one packet. All answers must fit into the socket's receive buffer
/// of 208 KiB, and each takes about 1 KiB of it.
const QUESTIONS_PER_PACKET: usize = 32;
/// Index of the loopback interface, equal in all namespaces (LOOPBACK_IFINDEX).
const LOOPBACK: u32 = 1;
/// Maximum length of a packet with answers in bytes; netlink(7) recommends 8192.
const ANSWERS_LEN: usize = 8192;

// Constants of <linux/netlink.h>, <linux/sock_diag.h> and <linux/inet_diag.h>.
const NLMSG_HDRLEN: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Size of `struct inet_diag_req_v2` in bytes.
const REQUEST_LEN: usize = 56;
const INET_DIAG_NOCOOKIE: [u8; 8] = [0xff; 8];
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
/// TCP states of <net/tcp_states.h>, as bit masks.
const ESTABLISHED: u32 = 1 << 1;
const ANY_STATE: u32 = u32::MAX;

impl SockDiag {
    /// Opens a netlink socket in the namespace of this process. `device` is the network device on
    /// which packets of clients arrive.
    ///
    /// # Errors
    /// Fails if the kernel does not support sock_diag, or the device does not exist.
    pub fn open(device: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = AddressFamily::NETLINK;
        let socket = socket_with(family, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
        let device = netdevice::name_to_index(&socket, device)?;
        let mut own = Self::new(socket, Facts { device, tcp: false, udp: false });
        // Test whether the kernel supports each protocol, by a query for a socket of our own. If
        // the protocol's module is missing, the kernel returns ENOENT, as for a socket that does
        // not exist.
        let ip = Ipv4Addr::LOCALHOST;
        let listener = TcpListener::bind((ip, 0))?;
        let datagrams = UdpSocket::bind((ip, 0))?;
        own.facts.tcp = own.finds(ForwardProtocol::Tcp, listener.local_addr()?);
        own.facts.udp = own.finds(ForwardProtocol::Udp, datagrams.local_addr()?);
        Ok(own)
    }

    /// Creates a client from the parts of a client that was opened in another process.
    pub fn new(socket: OwnedFd, facts: Facts) -> Self {
        Self { socket, facts, seq: 0 }
    }

    /// Returns whether the kernel supports queries for sockets of a protocol.
    pub fn answers_for(&self, protocol: ForwardProtocol) -> bool {
        match protocol {
            ForwardProtocol::Tcp => self.facts.tcp,
            ForwardProtocol::Udp => self.facts.udp,
        }
    }

    fn finds(&mut self, protocol: ForwardProtocol, program: SocketAddr) -> bool {
        self.reached(&[SocketQuestion { protocol, program }]).is_ok_and(|answers| answers == [true])
    }

    /// Sends a packet of requests. The kernel queues all answers before this call returns.
    fn ask(&self, packet: &[u8]) -> io::Result<()> {
        send(&self.socket, packet, SendFlags::empty())?;
        Ok(())
    }

    /// Receives messages. Calls `hear` with the type, sequence number and body of each message,
    /// until `hear` returns true.
    fn hear(&self, mut hear: impl FnMut(u16, u32, &[u8]) -> bool) -> io::Result<()> {
        let mut buffer = [0; ANSWERS_LEN];
        loop {
            let (len, _) = recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
            let mut rest = buffer.get(..len).unwrap_or_default();
            while let Some((kind, seq, body, behind)) = split(rest) {
                if hear(kind, seq, body) {
                    return Ok(());
                }
                rest = behind;
            }
        }
    }
}

impl ProgramKernel for SockDiag {
    fn reached(&mut self, questions: &[SocketQuestion]) -> io::Result<Vec<bool>> {
        let mut all = Vec::with_capacity(questions.len());
        for questions in questions.chunks(QUESTIONS_PER_PACKET) {
            let first = self.seq.wrapping_add(1);
            self.seq = self.seq.wrapping_add(questions.len() as u32);
            let mut packet = Vec::with_capacity(questions.len() * (NLMSG_HDRLEN + REQUEST_LEN));
            for (question, n) in questions.iter().zip(0..) {
                let lookup = lookup(question, self.facts.device);
                put(&mut packet, NLM_F_REQUEST, first.wrapping_add(n), &lookup);
            }
            self.ask(&packet)?;
            let mut answers = vec![None; questions.len()];
            let mut left = questions.len();
            self.hear(|kind, seq, _| {
                // Ignore an answer to a request of an earlier packet.
                let Some(answer) = answers.get_mut(seq.wrapping_sub(first) as usize) else {
                    return false;
                };
                left -= usize::from(answer.replace(kind == SOCK_DIAG_BY_FAMILY).is_none());
                left == 0
            })?;
            all.extend(answers.into_iter().map(|answer| answer == Some(true)));
        }
        Ok(all)
    }

    fn has_peer(&mut self, program: SocketAddr) -> io::Result<bool> {
        let mut has = false;
        // Search sockets of both families: an IPv6 socket may have an IPv4 peer.
        let families = match program {
            SocketAddr::V4(_) => &[AddressFamily::INET, AddressFamily::INET6][..],
            SocketAddr::V6(_) => &[AddressFamily::INET6],
        };
        for family in families {
            self.seq = self.seq.wrapping_add(1);
            let mut packet = Vec::new();
            let ends = [(unspecified(*family), program.port()), (unspecified(*family), 0)];
            let head = [family_number(*family), IPPROTO_UDP];
            put(
                &mut packet,
                NLM_F_REQUEST | NLM_F_DUMP,
                self.seq,
                &request(head, ESTABLISHED, ends, 0),
            );
            self.ask(&packet)?;
            let seq = self.seq;
            let mut refused = false;
            self.hear(|kind, its, body| {
                if its != seq {
                    return false;
                }
                refused |= kind == NLMSG_ERROR;
                has |= kind == SOCK_DIAG_BY_FAMILY && source(body) == Some(program);
                [NLMSG_ERROR, NLMSG_DONE].contains(&kind)
            })?;
            if refused {
                return Err(Errno::OPNOTSUPP.into());
            }
        }
        Ok(has)
    }
}

/// Creates the request that finds the socket which would receive a packet to `program`.
fn lookup(question: &SocketQuestion, device: u32) -> [u8; REQUEST_LEN] {
    let program = question.program;
    let family = if program.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // Use 0 as the client's port, to match no existing connection: no packet has source port 0.
    let (own, client) = ((program.ip(), program.port()), (unspecified(family), 0));
    let interface = if program.ip().is_loopback() { LOOPBACK } else { device };
    let (protocol, ends) = match question.protocol {
        ForwardProtocol::Tcp => (IPPROTO_TCP, [own, client]),
        // Exchange source and destination for UDP: "src and dst are swapped for historical reasons"
        // (udp_dump_one in net/ipv4/udp_diag.c).
        ForwardProtocol::Udp => (IPPROTO_UDP, [client, own]),
    };
    request([family_number(family), protocol], ANY_STATE, ends, interface)
}

/// Encodes a request as `struct inet_diag_req_v2`.
fn request(
    [family, protocol]: [u8; 2],
    states: u32,
    ends: [(IpAddr, u16); 2],
    interface: u32,
) -> [u8; REQUEST_LEN] {
    let mut all = [0; REQUEST_LEN];
    all[..2].copy_from_slice(&[family, protocol]);
    all[4..8].copy_from_slice(&states.to_ne_bytes());
    for (n, (ip, port)) in ends.into_iter().enumerate() {
        all[8 + 2 * n..][..2].copy_from_slice(&port.to_be_bytes());
        match ip {
            IpAddr::V4(ip) => all[12 + 16 * n..][..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => all[12 + 16 * n..][..16].copy_from_slice(&ip.octets()),
        }
    }
    all[44..48].copy_from_slice(&interface.to_ne_bytes());
    all[48..].copy_from_slice(&INET_DIAG_NOCOOKIE);
    all
}

/// Appends a netlink message to a packet.
fn put(packet: &mut Vec<u8>, flags: u16, seq: u32, body: &[u8]) {
    packet.extend(((NLMSG_HDRLEN + body.len()) as u32).to_ne_bytes());
    packet.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    packet.extend(flags.to_ne_bytes());
    packet.extend(seq.to_ne_bytes());
    packet.extend(0_u32.to_ne_bytes());
    packet.extend(body);
}

/// Splits off the first netlink message. Returns its type, sequence number and body, and the
/// following bytes.
fn split(packet: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let u32_at = |at| Some(u32::from_ne_bytes(packet.get(at..at + 4)?.try_into().ok()?));
    let len = u32_at(0)? as usize;
    let kind = u16::from_ne_bytes(packet.get(4..6)?.try_into().ok()?);
    let body = packet.get(NLMSG_HDRLEN..len)?;
    let behind = packet.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, u32_at(8)?, body, behind))
}

/// Returns the local address in a `struct inet_diag_msg`. Converts an IPv4-mapped address to IPv4.
fn source(body: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(body.get(4..6)?.try_into().ok()?);
    let ip: [u8; 16] = body.get(8..24)?.try_into().ok()?;
    let ip = match *body.first()? == family_number(AddressFamily::INET) {
        true => IpAddr::from([ip[0], ip[1], ip[2], ip[3]]),
        false => Ipv6Addr::from(ip).to_canonical(),
    };
    Some(SocketAddr::new(ip, port))
}

fn family_number(family: AddressFamily) -> u8 {
    // The cast is lossless, because address families have small numbers.
    family.as_raw() as u8
}

fn unspecified(family: AddressFamily) -> IpAddr {
    match family {
        AddressFamily::INET => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(diag: &mut SockDiag, protocol: ForwardProtocol, programs: &[String]) -> Vec<bool> {
        let question = |text: &String| SocketQuestion { protocol, program: text.parse().unwrap() };
        diag.reached(&programs.iter().map(question).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_listener_is_found_where_its_packets_would_find_it() {
        let mut diag = SockDiag::open("lo").unwrap();
        assert!(diag.facts.tcp && diag.facts.udp, "this kernel does not answer");
        let cases = [
            ("127.0.0.1:0", [true, false, false]),
            ("0.0.0.0:0", [true, true, false]),
            ("[::1]:0", [false, false, true]),
            ("[::]:0", [true, true, true]),
        ];
        for (bound, wanted) in cases {
            let listener = TcpListener::bind(bound).unwrap();
            let socket = UdpSocket::bind(bound).unwrap();
            let (tcp, udp) = (listener.local_addr().unwrap(), socket.local_addr().unwrap());
            let at = |port| ["127.0.0.1", "127.0.0.2", "[::1]"].map(|ip| format!("{ip}:{port}"));
            for _ in 0..2 {
                assert_eq!(asked(&mut diag, ForwardProtocol::Tcp, &at(tcp.port())), wanted);
                assert_eq!(asked(&mut diag, ForwardProtocol::Udp, &at(udp.port())), wanted);
            }
            drop((listener, socket));
            assert_eq!(asked(&mut diag, ForwardProtocol::Tcp, &at(tcp.port())), [false; 3]);
            assert_eq!(asked(&mut diag, ForwardProtocol::Udp, &at(udp.port())), [false; 3]);
        }
    }

    #[test]
    fn as_many_as_asked_are_answered() {
        let mut diag = SockDiag::open("lo").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let mut all = vec!["127.0.0.1:1".to_owned(); 5 * QUESTIONS_PER_PACKET + 1];
        all[3 * QUESTIONS_PER_PACKET] = own.to_string();
        let answers = asked(&mut diag, ForwardProtocol::Tcp, &all);
        let found: Vec<_> = (0..answers.len()).filter(|n| answers[*n]).collect();
        assert_eq!((answers.len(), found), (all.len(), vec![3 * QUESTIONS_PER_PACKET]));
    }

    #[test]
    fn a_socket_with_a_peer_takes_nothing_of_strangers_and_is_found_as_such() {
        let mut diag = SockDiag::open("lo").unwrap();
        for bound in ["127.0.0.1:0", "[::]:0", "[::1]:0"] {
            let socket = UdpSocket::bind(bound).unwrap();
            let ip = if bound == "[::1]:0" { "::1" } else { "127.0.0.1" };
            let own = SocketAddr::new(ip.parse().unwrap(), socket.local_addr().unwrap().port());
            assert!(!diag.has_peer(own).unwrap());
            let mapped = if bound == "[::]:0" { "[::ffff:127.0.0.1]:9" } else { "127.0.0.1:9" };
            let peer = if own.is_ipv6() { "[::1]:9" } else { mapped };
            socket.connect(peer).unwrap();
            assert_eq!(asked(&mut diag, ForwardProtocol::Udp, &[own.to_string()]), [false]);
            assert!(diag.has_peer(own).unwrap(), "{bound}");
            drop(socket);
            assert!(!diag.has_peer(own).unwrap());
        }
    }
}
