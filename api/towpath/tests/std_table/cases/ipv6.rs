//! IPv6, and IPv4 on sockets of IPv6.

use std::io::{Read, Write};

use super::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use crate::facts::{Facts, own_address};

fn listen(addr: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(addr).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn bind(addr: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(addr).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

pub fn bytes_go_both_ways(facts: &mut Facts) {
    let (listener, addr) = listen("[::1]:0");
    let mut client = TcpStream::connect(addr).unwrap();
    let (mut server, peer) = listener.accept().unwrap();
    facts.value("peer", (peer.ip(), peer == client.local_addr().unwrap()));
    client.write_all(b"hello").unwrap();
    let mut buf = [0; 5];
    facts.call("read", server.read_exact(&mut buf).map(|()| buf));
    server.write_all(b"world").unwrap();
    facts.call("read", client.read_exact(&mut buf).map(|()| buf));
}

pub fn connecting_to_nobody_is_refused(facts: &mut Facts) {
    facts.call("connect", TcpStream::connect("[::1]:1").map(drop));
    facts.call("by ::", TcpStream::connect("[::]:1").map(drop));
}

pub fn a_wildcard_listener_accepts_ipv4(facts: &mut Facts) {
    let (listener, addr) = listen("[::]:0");
    let client = TcpStream::connect(("127.0.0.1", addr.port())).unwrap();
    let (server, peer) = listener.accept().unwrap();
    facts.value("peer", peer.ip());
    facts.call("own", server.local_addr().map(|addr| addr.ip()));
    facts.call("client's peer", client.peer_addr().map(|addr| addr.ip()));
}

pub fn a_listener_on_one_address_does_not_accept_ipv4(facts: &mut Facts) {
    let (_listener, addr) = listen("[::1]:0");
    let there = (own_address(), addr.port());
    facts.call("connect", TcpStream::connect(there).map(drop));
    let (_listener, addr) = listen("[::]:0");
    facts.call("a wildcard's", TcpListener::bind(("127.0.0.1", addr.port())).map(drop));
}

#[allow(deprecated, reason = "std has it still")]
pub fn only_v6_follows_the_address(facts: &mut Facts) {
    facts.call("one", listen("[::1]:0").0.only_v6());
    facts.call("any", listen("[::]:0").0.only_v6());
    facts.call("set", listen("[::]:0").0.set_only_v6(true));
}

pub fn a_mapped_address_reaches_ipv4(facts: &mut Facts) {
    let (listener, addr) = listen("127.0.0.1:0");
    let client = TcpStream::connect(("::ffff:127.0.0.1", addr.port())).unwrap();
    facts.call("own", client.local_addr().map(|addr| addr.ip()));
    facts.call("peer", client.peer_addr().map(|addr| addr.ip()));
    facts.value("accepted", listener.accept().unwrap().1.ip());
}

pub fn debug_shows_the_address(facts: &mut Facts) {
    let (listener, addr) = listen("[::1]:0");
    facts.debug(&listener, &[addr]);
    let client = TcpStream::connect(addr).unwrap();
    facts.debug(&client, &[client.local_addr().unwrap(), addr]);
    let (socket, addr) = bind("[::1]:0");
    facts.debug(&socket, &[addr]);
}

pub fn ttl_is_that_of_ipv4(facts: &mut Facts) {
    let (listener, _) = listen("[::1]:0");
    facts.call("at first", listener.ttl());
    facts.call("set", listener.set_ttl(100));
    facts.call("kept", listener.ttl());
}

pub fn datagrams_go_both_ways(facts: &mut Facts) {
    let ((a, a_addr), (b, b_addr)) = (bind("[::1]:0"), bind("[::1]:0"));
    facts.call("send", a.send_to(b"ping", b_addr));
    facts.call("received", b.recv_from(&mut [0; 8]).map(|(len, from)| (len, from == a_addr)));
    b.connect(a_addr).unwrap();
    facts.call("send", b.send(b"pong!"));
    facts.call("received", a.recv_from(&mut [0; 8]).map(|(len, from)| (len, from == b_addr)));
}

pub fn a_wildcard_socket_receives_from_ipv4(facts: &mut Facts) {
    let ((a, _), (b, b_addr)) = (bind("127.0.0.1:0"), bind("[::]:0"));
    a.send_to(b"x", ("127.0.0.1", b_addr.port())).unwrap();
    facts.call("received", b.recv_from(&mut [0; 8]).map(|(len, from)| (len, from.ip())));
}

pub fn a_wildcard_socket_sends_to_ipv4(facts: &mut Facts) {
    let ((a, _), (b, b_addr)) = (bind("[::]:0"), bind("127.0.0.1:0"));
    facts.call("send", a.send_to(b"x", b_addr));
    facts.call("received", b.recv_from(&mut [0; 8]).map(|(len, from)| (len, from.ip())));
    facts.call("connect", a.connect(b_addr));
    facts.call("peer", a.peer_addr().map(|addr| addr.ip()));
    facts.call("own", a.local_addr().map(|addr| addr.ip()));
    a.send(b"yy").unwrap();
    facts.call("received", b.recv(&mut [0; 8]));
}

pub fn a_socket_on_one_address_does_not_reach_ipv4(facts: &mut Facts) {
    let (socket, _) = bind("[::1]:0");
    facts.call("send", socket.send_to(b"x", "127.0.0.1:9"));
    facts.call("connect", socket.connect("127.0.0.1:9"));
    facts.call("connect", socket.connect("[::ffff:127.0.0.1]:9"));
}

pub fn a_refused_datagram_is_told_when_connected(facts: &mut Facts) {
    let (socket, _) = bind("[::1]:0");
    // No program receives there (tcpmux, RFC 1078).
    socket.connect("[::1]:1").unwrap();
    facts.call("send", socket.send(b"x"));
    facts.call("received", socket.recv(&mut [0; 8]));
}

pub fn groups_are_joined_once(facts: &mut Facts) {
    let (socket, _) = bind("[::1]:0");
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x199);
    // Interface 1 is the loopback, of the kernel and of a stack.
    facts.call("join", socket.join_multicast_v6(&group, 1));
    facts.call("again", socket.join_multicast_v6(&group, 1));
    facts.call("leave", socket.leave_multicast_v6(&group, 1));
    facts.call("again", socket.leave_multicast_v6(&group, 1));
    facts.call("nobody's", socket.join_multicast_v6(&group, 999_999));
    facts.call("no group", socket.join_multicast_v6(&Ipv6Addr::LOCALHOST, 1));
}

pub fn multicast_loop_is_kept(facts: &mut Facts) {
    let (socket, _) = bind("[::1]:0");
    facts.call("at first", socket.multicast_loop_v6());
    for on in [false, true] {
        facts.call("set", socket.set_multicast_loop_v6(on));
        facts.call("kept", socket.multicast_loop_v6());
    }
}
