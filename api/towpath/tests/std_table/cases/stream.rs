//! Connections: making them, reading, writing, clones.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::time::Duration;

use super::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use crate::facts::{Facts, blocked, own_address};

/// Port that no program listens on (tcpmux, RFC 1078).
const PORT_OF_NOBODY: u16 = 1;

/// A client's end, and the server's.
pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn nobody() -> SocketAddr {
    (own_address(), PORT_OF_NOBODY).into()
}

pub fn connecting_to_nobody_is_refused(facts: &mut Facts) {
    facts.call("connect", TcpStream::connect(nobody()).map(drop));
    facts.call("by 0.0.0.0", TcpStream::connect(("0.0.0.0", PORT_OF_NOBODY)).map(drop));
}

pub fn connecting_in_time_to_nobody_is_refused(facts: &mut Facts) {
    let limit = Duration::from_secs(3600);
    facts.call("connect", TcpStream::connect_timeout(&nobody(), limit).map(drop));
}

pub fn connecting_in_no_time_is_invalid_input(facts: &mut Facts) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    facts.call("connect", TcpStream::connect_timeout(&addr, Duration::ZERO).map(drop));
}

pub fn connecting_to_a_group_or_to_all_is_unreachable(facts: &mut Facts) {
    facts.call("group", TcpStream::connect("224.0.0.1:80").map(drop));
    facts.call("all", TcpStream::connect("255.255.255.255:80").map(drop));
}

pub fn connecting_to_no_port_is_refused(facts: &mut Facts) {
    facts.call("connect", TcpStream::connect("127.0.0.1:0").map(drop));
}

pub fn connecting_to_no_address_is_invalid_input(facts: &mut Facts) {
    facts.call("connect", TcpStream::connect(&[][..]).map(drop));
}

pub fn connecting_tries_all_addresses(facts: &mut Facts) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let stream = TcpStream::connect(&[nobody(), addr][..]);
    facts.call("connect", stream.map(|stream| stream.peer_addr().unwrap() == addr));
}

pub fn connecting_in_time_connects(facts: &mut Facts) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(3600)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"x").unwrap();
    // The stream blocks, as one that was connected without a limit.
    facts.call("read", stream.read(&mut [0; 8]));
}

pub fn a_refused_address_can_be_tried_again(facts: &mut Facts) {
    let addr = SocketAddr::from((own_address(), 2));
    for _ in 0..3 {
        facts.call("connect", TcpStream::connect(addr).map(drop));
    }
}

pub fn addresses_of_both_ends_match(facts: &mut Facts) {
    let (client, server) = pair();
    facts.value("peer", client.peer_addr().unwrap() == server.local_addr().unwrap());
    facts.value("own", client.local_addr().unwrap() == server.peer_addr().unwrap());
    facts.call("ip", client.local_addr().map(|addr| addr.ip()));
}

pub fn bytes_go_both_ways(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    facts.call("write", client.write(b"hello"));
    let mut buf = [0; 5];
    facts.call("read", server.read_exact(&mut buf).map(|()| buf));
    facts.call("write", (&server).write(b"world"));
    facts.call("read", (&client).read_exact(&mut buf).map(|()| buf));
}

pub fn end_of_file_stays(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    server.write_all(b"bye").unwrap();
    drop(server);
    let mut said = Vec::new();
    facts.call("read", client.read_to_end(&mut said));
    facts.call("again", client.read(&mut [0; 8]));
    facts.call("again", client.read(&mut [0; 8]));
}

pub fn many_connections_echo(facts: &mut Facts) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let echo = |mut connection: TcpStream| {
            std::io::copy(&mut connection.try_clone().unwrap(), &mut connection).unwrap()
        };
        let threads = listener.incoming().take(20).map(|connection| {
            let connection = connection.unwrap();
            std::thread::spawn(move || echo(connection))
        });
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
    });
    for n in 0..20u8 {
        let mut client = TcpStream::connect(addr).unwrap();
        client.write_all(&[n; 10]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap();
        facts.value("back", back);
    }
    facts.value("bytes", server.join().unwrap());
}

pub fn a_long_transfer_is_whole(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || client.write_all(&sent));
    let mut received = Vec::new();
    facts.call("read", server.read_to_end(&mut received));
    facts.call("write", writer.join().unwrap());
    facts.value("whole", received == bytes);
}

pub fn peek_leaves_the_bytes(facts: &mut Facts) {
    let (mut client, server) = pair();
    (&server).write_all(b"abcd").unwrap();
    let mut buf = [0; 4];
    client.read_exact(&mut buf[..1]).unwrap();
    // All four came together, or follow: a peek may see fewer than are to come.
    let mut seen = 0;
    while seen < 3 {
        seen = client.peek(&mut buf).unwrap();
    }
    facts.value("peeked", buf);
    facts.call("peek", client.peek(&mut buf[..2]));
    facts.call("read", client.read(&mut buf).map(|n| buf[..n].to_vec()));
    client.set_nonblocking(true).unwrap();
    facts.call("peek", client.peek(&mut buf));
}

pub fn peek_at_the_end_gives_nothing(facts: &mut Facts) {
    let (client, server) = pair();
    drop(server);
    facts.call("peek", client.peek(&mut [0; 8]));
    facts.call("peek", client.peek(&mut [0; 8]));
}

pub fn vectored_reads_fill_their_buffers(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    server.write_all(b"abcdefgh").unwrap();
    let mut all = [0; 8];
    while client.peek(&mut all).unwrap() < 8 {}
    let (mut a, mut b, mut c) = ([0; 2], [], [0; 3]);
    let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c)];
    facts.call("read", client.read_vectored(&mut bufs));
    facts.value("filled", (a, c));
    let (mut a, mut b) = ([0; 1], [0; 9]);
    let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    facts.call("read", client.read_vectored(&mut bufs));
    facts.value("filled", (a, b));
}

pub fn vectored_writes_gather(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    let bufs = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")];
    facts.call("write", client.write_vectored(&bufs));
    drop(client);
    let mut said = String::new();
    facts.call("read", server.read_to_string(&mut said));
    facts.value("said", said);
}

pub fn vectored_calls_take_so_many_buffers(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    let bufs = [IoSlice::new(b"x"); 1500];
    facts.call("write", client.write_vectored(&bufs));
    let mut all = [0; 1024];
    while server.peek(&mut all).unwrap() < 1024 {}
    let mut bytes = [[0u8; 1]; 1500];
    let mut bufs: Vec<_> = bytes.iter_mut().map(|byte| IoSliceMut::new(byte)).collect();
    facts.call("read", server.read_vectored(&mut bufs));
}

pub fn empty_buffers_move_nothing(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    server.write_all(b"x").unwrap();
    client.peek(&mut [0]).unwrap();
    facts.call("read", client.read(&mut []));
    facts.call("read", client.read_vectored(&mut []));
    facts.call("write", client.write(&[]));
    facts.call("write", client.write_vectored(&[]));
    facts.call("read", client.read(&mut [0]));
    drop(server);
    facts.call("read", client.read(&mut [0]));
    facts.call("read", client.read(&mut []));
    client.shutdown(Shutdown::Write).unwrap();
    facts.call("write", client.write(&[]));
}

pub fn clones_write_to_one_stream(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    let mut clone = client.try_clone().unwrap();
    client.write_all(b"one ").unwrap();
    clone.write_all(b"two ").unwrap();
    let other = std::thread::spawn(move || clone.write_all(b"three"));
    facts.call("clone", other.join().unwrap());
    drop(client);
    let mut said = String::new();
    facts.call("read", server.read_to_string(&mut said));
    facts.value("said", said);
}

pub fn a_clone_keeps_the_connection(facts: &mut Facts) {
    let (client, mut server) = pair();
    let mut clone = client.try_clone().unwrap();
    drop(client);
    clone.write_all(b"still").unwrap();
    let mut buf = [0; 5];
    facts.call("read", server.read_exact(&mut buf).map(|()| buf));
    drop(clone);
    facts.call("end", server.read(&mut buf));
}

pub fn a_clone_reads_while_another_does(facts: &mut Facts) {
    let (client, mut server) = pair();
    let readers = [(); 2].map(|()| {
        let mut clone = client.try_clone().unwrap();
        blocked(move || {
            let mut byte = [0];
            clone.read_exact(&mut byte).map(|()| byte[0])
        })
    });
    server.write_all(b"a").unwrap();
    server.write_all(b"b").unwrap();
    let mut read = readers.map(|reader| reader.join().unwrap().unwrap());
    read.sort_unstable();
    facts.value("each byte once", read);
}

pub fn a_handle_dropped_elsewhere_leaves_read_waiting(facts: &mut Facts) {
    let (client, mut server) = pair();
    let mut clone = client.try_clone().unwrap();
    let reader = blocked(move || clone.read(&mut [0; 8]));
    drop(client);
    server.write_all(b"abc").unwrap();
    facts.call("read", reader.join().unwrap());
}

pub fn debug_shows_both_addresses(facts: &mut Facts) {
    let (client, _server) = pair();
    facts.debug(&client, &[client.local_addr().unwrap(), client.peer_addr().unwrap()]);
}

pub fn flush_has_nothing_to_do(facts: &mut Facts) {
    let (mut client, server) = pair();
    facts.call("flush", client.flush());
    facts.call("flush", (&server).flush());
    client.shutdown(Shutdown::Both).unwrap();
    facts.call("flush", client.flush());
}

pub fn a_blocked_read_gets_what_comes(facts: &mut Facts) {
    let (mut client, mut server) = pair();
    let reader = blocked(move || {
        let mut buf = [0; 8];
        client.read(&mut buf).map(|n| buf[..n].to_vec())
    });
    server.write_all(b"now").unwrap();
    facts.call("read", reader.join().unwrap());
}

pub fn a_blocked_write_goes_on_when_the_peer_reads(facts: &mut Facts) {
    const LEN: usize = 16 << 20;
    let (mut client, mut server) = pair();
    let writer = blocked(move || client.write(&vec![7; LEN]));
    let mut received = Vec::new();
    facts.call("read", server.read_to_end(&mut received));
    facts.value("all of them", received.len() == LEN && received.iter().all(|byte| *byte == 7));
    facts.call("write", writer.join().unwrap());
}
