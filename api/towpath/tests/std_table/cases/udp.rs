//! Datagrams.

use super::net::{SocketAddr, UdpSocket};
use crate::facts::{Facts, blocked, own_address, until_some};

fn bind() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

/// Address at which no program receives (tcpmux, RFC 1078).
fn nobody() -> SocketAddr {
    (own_address(), 1).into()
}

pub fn a_foreign_address_is_not_available(facts: &mut Facts) {
    facts.call("bind", UdpSocket::bind("198.51.100.1:0").map(drop));
}

pub fn a_port_is_given_to_one_socket(facts: &mut Facts) {
    let (_socket, addr) = bind();
    facts.call("bind", UdpSocket::bind(addr).map(drop));
    facts.call("bind", UdpSocket::bind(("0.0.0.0", addr.port())).map(drop));
}

pub fn no_address_is_invalid_input(facts: &mut Facts) {
    facts.call("bind", UdpSocket::bind(&[][..]).map(drop));
    let (socket, _) = bind();
    facts.call("connect", socket.connect(&[][..]));
    facts.call("send", socket.send_to(b"x", &[][..]));
}

pub fn datagrams_go_both_ways(facts: &mut Facts) {
    let ((a, a_addr), (b, b_addr)) = (bind(), bind());
    let mut buf = [0; 64];
    facts.call("send", a.send_to(b"ping", b_addr));
    let (len, from) = b.recv_from(&mut buf).unwrap();
    facts.value("received", (buf[..len].to_vec(), from == a_addr));
    facts.call("send", b.send_to(b"pong!", from));
    let (len, from) = a.recv_from(&mut buf).unwrap();
    facts.value("received", (buf[..len].to_vec(), from == b_addr));
}

pub fn datagrams_keep_their_order(facts: &mut Facts) {
    let ((a, _), (b, b_addr)) = (bind(), bind());
    for n in 0..100u8 {
        a.send_to(&[n], b_addr).unwrap();
    }
    let mut buf = [0; 4];
    let received: Vec<u8> = (0..100).map(|_| (b.recv(&mut buf).unwrap() as u8, buf[0]).1).collect();
    facts.value("received", received);
}

pub fn datagrams_without_bytes_arrive(facts: &mut Facts) {
    let ((a, a_addr), (b, b_addr)) = (bind(), bind());
    facts.call("send", a.send_to(&[], b_addr));
    facts.call("peek", b.peek(&mut [0; 8]));
    facts.call("received", b.recv_from(&mut [0; 8]).map(|(len, from)| (len, from == a_addr)));
    // Into no room.
    a.send_to(b"abc", b_addr).unwrap();
    facts.call("received", b.recv(&mut []));
    a.send_to(b"next", b_addr).unwrap();
    facts.call("received", b.recv(&mut [0; 8]));
}

pub fn a_datagram_longer_than_the_buffer_is_cut(facts: &mut Facts) {
    let ((a, _), (b, b_addr)) = (bind(), bind());
    a.send_to(b"longer", b_addr).unwrap();
    a.send_to(b"next", b_addr).unwrap();
    let mut buf = [0; 4];
    facts.call("peek", b.peek(&mut buf[..2]));
    facts.call("received", b.recv(&mut buf).map(|n| buf[..n].to_vec()));
    facts.call("received", b.recv(&mut buf).map(|n| buf[..n].to_vec()));
}

pub fn the_longest_datagram_arrives(facts: &mut Facts) {
    let ((a, _), (b, b_addr)) = (bind(), bind());
    facts.call("send", a.send_to(&[7; 65_507], b_addr));
    let mut buf = [0; 70_000];
    facts.call("received", b.recv(&mut buf));
    facts.value("whole", buf[..65_507].iter().all(|byte| *byte == 7));
}

pub fn longer_datagrams_are_refused(facts: &mut Facts) {
    let (socket, addr) = bind();
    for len in [65_508, 65_535, 65_536, 1_000_000] {
        facts.call("send", socket.send_to(&vec![0; len], addr));
    }
    socket.connect(addr).unwrap();
    facts.call("send", socket.send(&[0; 65_508]));
    // None of them came.
    facts.call("send", socket.send(b"x"));
    facts.call("received", socket.recv(&mut [0; 8]));
}

pub fn peek_leaves_the_datagram(facts: &mut Facts) {
    let ((a, a_addr), (b, b_addr)) = (bind(), bind());
    a.send_to(b"abcd", b_addr).unwrap();
    let mut buf = [0; 8];
    facts.call("peek", b.peek(&mut buf));
    facts.call("peek", b.peek_from(&mut buf).map(|(len, from)| (len, from == a_addr)));
    facts.call("received", b.recv_from(&mut buf).map(|(len, from)| (len, from == a_addr)));
    b.set_nonblocking(true).unwrap();
    facts.call("peek", b.peek(&mut buf));
}

pub fn sending_without_a_peer_asks_for_an_address(facts: &mut Facts) {
    let (socket, _) = bind();
    facts.call("send", socket.send(b"x"));
    facts.call("peer", socket.peer_addr().map(drop));
}

pub fn a_connected_socket_has_a_peer(facts: &mut Facts) {
    let ((a, a_addr), (b, b_addr)) = (bind(), bind());
    facts.call("connect", a.connect(b_addr));
    facts.call("peer", a.peer_addr().map(|peer| peer == b_addr));
    facts.call("send", a.send(b"hello"));
    facts.call("received", b.recv_from(&mut [0; 8]).map(|(len, from)| (len, from == a_addr)));
    b.send_to(b"back", a_addr).unwrap();
    facts.call("received", a.recv_from(&mut [0; 8]).map(|(len, from)| (len, from == b_addr)));
}

pub fn a_connected_socket_hears_its_peer_alone(facts: &mut Facts) {
    let ((a, a_addr), (b, b_addr), (c, _)) = (bind(), bind(), bind());
    a.connect(b_addr).unwrap();
    facts.call("send", c.send_to(b"from another", a_addr));
    b.send_to(b"from the peer", a_addr).unwrap();
    facts.call("received", a.recv(&mut [0; 64]));
}

pub fn a_connected_socket_knows_its_address(facts: &mut Facts) {
    let (_peer, addr) = bind();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    facts.call("at first", socket.local_addr().map(|addr| addr.ip()));
    socket.connect(addr).unwrap();
    facts.call("connected", socket.local_addr().map(|addr| addr.ip()));
}

pub fn a_connected_socket_sends_elsewhere_too(facts: &mut Facts) {
    let ((a, _), (_b, b_addr), (c, c_addr)) = (bind(), bind(), bind());
    a.connect(b_addr).unwrap();
    facts.call("send", a.send_to(b"x", c_addr));
    facts.call("received", c.recv(&mut [0; 8]));
}

pub fn a_socket_connects_again(facts: &mut Facts) {
    let ((a, _), (_b, b_addr), (c, c_addr)) = (bind(), bind(), bind());
    a.connect(b_addr).unwrap();
    facts.call("connect", a.connect(c_addr));
    facts.call("peer", a.peer_addr().map(|peer| peer == c_addr));
    a.send(b"x").unwrap();
    facts.call("received", c.recv(&mut [0; 8]));
}

pub fn a_refused_datagram_is_told_when_connected(facts: &mut Facts) {
    let (socket, _) = bind();
    socket.connect(nobody()).unwrap();
    facts.call("send", socket.send(b"x"));
    facts.call("received", socket.recv(&mut [0; 8]));
    socket.set_nonblocking(true).unwrap();
    facts.call("once", socket.recv(&mut [0; 8]));
}

pub fn a_refused_datagram_can_be_taken(facts: &mut Facts) {
    let (socket, _) = bind();
    socket.connect(nobody()).unwrap();
    socket.send(b"x").unwrap();
    let taken = until_some(|| socket.take_error().unwrap());
    facts.value("taken", (taken.kind(), taken.raw_os_error()));
    facts.call("again", socket.take_error().map(|error| error.is_none()));
}

pub fn a_refused_datagram_is_not_told_otherwise(facts: &mut Facts) {
    let (socket, addr) = bind();
    facts.call("send", socket.send_to(b"x", nobody()));
    facts.call("send", socket.send_to(b"to itself", addr));
    facts.call("received", socket.recv(&mut [0; 64]));
}

pub fn port_0_is_no_destination(facts: &mut Facts) {
    let (socket, _) = bind();
    facts.call("send", socket.send_to(b"x", "127.0.0.1:0"));
}

pub fn ipv6_is_no_destination_of_ipv4(facts: &mut Facts) {
    let (socket, _) = bind();
    facts.call("send", socket.send_to(b"x", "[::1]:9"));
    facts.call("connect", socket.connect("[::1]:9"));
    facts.call("peer", socket.peer_addr().map(drop));
}

pub fn broadcasts_need_permission(facts: &mut Facts) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    facts.call("all", socket.send_to(b"x", "127.255.255.255:9"));
    socket.set_broadcast(true).unwrap();
    facts.call("all", socket.send_to(b"x", "127.255.255.255:9"));
    socket.set_broadcast(false).unwrap();
    facts.call("all", socket.send_to(b"x", "127.255.255.255:9"));
    facts.call("one", socket.send_to(b"x", "127.0.0.3:9"));
}

pub fn a_clone_receives_too(facts: &mut Facts) {
    let ((a, a_addr), (b, b_addr)) = (bind(), bind());
    let clone = b.try_clone().unwrap();
    drop(b);
    a.send_to(b"x", b_addr).unwrap();
    facts.call("received", clone.recv(&mut [0; 8]));
    facts.call("send", clone.send_to(b"y", a_addr));
    facts.call("received", a.recv_from(&mut [0; 8]).map(|(len, from)| (len, from == b_addr)));
}

pub fn a_blocked_receive_gets_what_comes(facts: &mut Facts) {
    let ((a, _), (b, b_addr)) = (bind(), bind());
    let receiver = blocked(move || b.recv(&mut [0; 8]));
    a.send_to(b"now", b_addr).unwrap();
    facts.call("received", receiver.join().unwrap());
}

pub fn debug_shows_the_address(facts: &mut Facts) {
    let (socket, addr) = bind();
    facts.debug(&socket, &[addr]);
}
