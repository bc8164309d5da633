//! Listeners.

use std::time::{Duration, Instant};

use super::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use crate::facts::{Facts, at_last, blocked, own_address};

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

pub fn a_foreign_address_is_not_available(facts: &mut Facts) {
    facts.call("bind", TcpListener::bind("198.51.100.1:0").map(drop));
}

pub fn a_port_is_given_to_one_listener(facts: &mut Facts) {
    let (_listener, addr) = listen();
    facts.call("bind", TcpListener::bind(addr).map(drop));
}

pub fn a_listener_on_all_addresses_has_the_port_on_each(facts: &mut Facts) {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    facts.call("bind", TcpListener::bind(("127.0.0.1", port)).map(drop));
    TcpStream::connect(("127.0.0.1", port)).unwrap();
    facts.call("accept", listener.accept().map(|(_, peer)| peer.ip()));
}

pub fn a_port_is_free_when_its_listener_is_dropped(facts: &mut Facts) {
    let listener = TcpListener::bind((own_address(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let again = TcpListener::bind(addr);
    facts.call("bind", again.map(|again| again.local_addr().unwrap() == addr));
}

pub fn a_port_is_free_while_its_connections_linger(facts: &mut Facts) {
    use std::io::Read;
    let listener = TcpListener::bind((own_address(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(addr).unwrap();
    // The listener's end is closed first: it goes to TIME-WAIT.
    drop(listener.accept().unwrap());
    facts.call("read", client.read(&mut [0]));
    drop((client, listener));
    facts.call("bind", TcpListener::bind(addr).map(drop));
}

pub fn no_address_is_invalid_input(facts: &mut Facts) {
    facts.call("bind", TcpListener::bind(&[][..]).map(drop));
}

pub fn a_text_that_is_no_address_is_invalid_input(facts: &mut Facts) {
    facts.call("bind", TcpListener::bind("127.0.0.1").map(drop));
    facts.call("bind", TcpListener::bind("127.0.0.1:65536").map(drop));
}

pub fn the_first_address_that_works_is_taken(facts: &mut Facts) {
    let addrs: [SocketAddr; 2] = ["198.51.100.1:0", "127.0.0.1:0"].map(|a| a.parse().unwrap());
    let listener = TcpListener::bind(&addrs[..]);
    facts.call("bind", listener.map(|listener| listener.local_addr().unwrap().ip()));
    facts.call("bind", TcpListener::bind(&addrs[..1]).map(drop));
}

pub fn a_wildcard_is_shown_as_such(facts: &mut Facts) {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let addr = listener.local_addr();
    facts.call("local address", addr.map(|addr| (addr.ip(), addr.port() != 0)));
}

pub fn accept_without_blocking_says_so(facts: &mut Facts) {
    let (listener, addr) = listen();
    listener.set_nonblocking(true).unwrap();
    facts.call("accept", listener.accept().map(drop));
    let client = TcpStream::connect(addr).unwrap();
    let peer = at_last(|| listener.accept()).unwrap().1;
    facts.value("is the client", peer == client.local_addr().unwrap());
    facts.call("accept", listener.accept().map(drop));
    listener.set_nonblocking(false).unwrap();
    let _second = TcpStream::connect(addr).unwrap();
    facts.call("accept", listener.accept().map(|(_, peer)| peer.ip()));
}

pub fn an_accepted_connection_blocks(facts: &mut Facts) {
    use std::io::Read;
    const LIMIT: Duration = Duration::from_millis(40);
    let (listener, addr) = listen();
    listener.set_nonblocking(true).unwrap();
    let _client = TcpStream::connect(addr).unwrap();
    let (mut server, _) = at_last(|| listener.accept()).unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    let began = Instant::now();
    facts.call("read", server.read(&mut [0]));
    facts.value("it waited", began.elapsed() >= LIMIT);
}

pub fn accept_tells_the_peers_address(facts: &mut Facts) {
    let (listener, addr) = listen();
    let client = TcpStream::connect(addr).unwrap();
    let (server, peer) = listener.accept().unwrap();
    facts.value("is the client", peer == client.local_addr().unwrap());
    facts.value("so says the connection", server.peer_addr().unwrap() == peer);
    facts.value("its own is the listener's", server.local_addr().unwrap() == addr);
}

pub fn incoming_keeps_the_order_of_connections(facts: &mut Facts) {
    let (listener, addr) = listen();
    for _ in 0..20 {
        let client = TcpStream::connect(addr).unwrap();
        let server = listener.incoming().next().unwrap().unwrap();
        facts.value("order", server.peer_addr().unwrap() == client.local_addr().unwrap());
    }
}

pub fn a_clone_goes_on_when_the_listener_is_dropped(facts: &mut Facts) {
    let (listener, addr) = listen();
    let clone = listener.try_clone().unwrap();
    drop(listener);
    facts.call("connect", TcpStream::connect(addr).map(drop));
    facts.call("accept", clone.accept().map(|(_, peer)| peer.ip()));
    drop(clone);
    facts.call("connect", TcpStream::connect(addr).map(drop));
}

pub fn a_handle_dropped_elsewhere_leaves_accept_waiting(facts: &mut Facts) {
    let (listener, addr) = listen();
    let clone = listener.try_clone().unwrap();
    let accepts = blocked(move || clone.accept().map(|(_, peer)| peer));
    drop(listener);
    let client = TcpStream::connect(addr).unwrap();
    let peer = accepts.join().unwrap().unwrap();
    facts.value("is the client", peer == client.local_addr().unwrap());
}

pub fn an_accepted_connection_has_the_listeners_ttl(facts: &mut Facts) {
    let (listener, addr) = listen();
    facts.call("ttl", listener.ttl());
    facts.call("set", listener.set_ttl(100));
    facts.call("ttl", listener.ttl());
    let client = TcpStream::connect(addr).unwrap();
    facts.call("server's", listener.accept().unwrap().0.ttl());
    facts.call("client's", client.ttl());
}

pub fn ttl_beyond_a_byte_is_refused(facts: &mut Facts) {
    let (listener, _) = listen();
    for ttl in [0, 1, 255, 256, u32::MAX / 2, u32::MAX] {
        facts.call("set", listener.set_ttl(ttl));
        facts.call("ttl", listener.ttl());
    }
}

#[allow(deprecated, reason = "std has it still")]
pub fn only_v6_is_for_ipv6(facts: &mut Facts) {
    let (listener, _) = listen();
    facts.call("only v6", listener.only_v6());
    facts.call("set", listener.set_only_v6(true));
}

pub fn there_is_no_error_to_take(facts: &mut Facts) {
    let (listener, _) = listen();
    facts.call("take", listener.take_error().map(|error| error.map(|error| error.kind())));
}

pub fn debug_shows_the_address(facts: &mut Facts) {
    let (listener, addr) = listen();
    facts.debug(&listener, &[addr]);
}

pub fn a_listener_accepts_what_connected_before(facts: &mut Facts) {
    use std::io::{Read, Write};
    let (listener, addr) = listen();
    let mut client = TcpStream::connect(addr).unwrap();
    client.write_all(b"early").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut said = String::new();
    facts.call("read", server.read_to_string(&mut said));
    facts.value("said", said);
    drop(server);
    facts.call("client's read", client.read(&mut [0; 8]));
}
