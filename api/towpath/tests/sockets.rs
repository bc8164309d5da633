//! Sockets and their stack: which one, its end, and options beyond std's. The table of `std_table`
//! compares the rest with the kernel's sockets.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use towpath::Stack;
use towpath::net::{Incoming, TcpListener, TcpState, TcpStream, UdpSocket};

fn stack() -> Stack {
    Stack::builder().loopback().start().unwrap()
}

fn pair(stack: &Stack) -> (TcpStream, TcpStream) {
    let listener = stack.listen("127.0.0.1:0").unwrap();
    let client = stack.connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Starts a thread, and returns when it sleeps in what it does.
fn blocked<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        work()
    });
    let id = told.recv().unwrap().as_raw_nonzero();
    let sleeps = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat"));
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
    };
    while !thread.is_finished() && !sleeps() {
        thread::sleep(Duration::from_millis(1));
    }
    thread
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

#[test]
fn sockets_can_be_sent_and_shared() {
    fn is_all<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe>() {}
    is_all::<TcpStream>();
    is_all::<TcpListener>();
    is_all::<UdpSocket>();
    is_all::<Incoming<'_>>();
}

#[test]
fn sockets_are_of_the_default_stack_or_that_which_the_thread_has_entered() {
    let addr: SocketAddr = "127.0.0.1:1".parse().unwrap();
    for error in [
        TcpListener::bind(addr).map(drop).unwrap_err(),
        TcpStream::connect(addr).map(drop).unwrap_err(),
        TcpStream::connect_timeout(&addr, Duration::from_secs(1)).map(drop).unwrap_err(),
        UdpSocket::bind(addr).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        assert!(error.to_string().contains("set_default"), "{error}");
    }
    let (one, other) = (stack(), stack());
    one.set_default();
    let first = TcpListener::bind("127.0.0.1:80").unwrap();
    let inside = other.enter();
    // The port is free on another host.
    let second = TcpListener::bind("127.0.0.1:80").unwrap();
    let _client = TcpStream::connect("127.0.0.1:80").unwrap();
    drop(inside);
    first.set_nonblocking(true).unwrap();
    second.accept().unwrap();
    assert_eq!(kind(first.accept()), ErrorKind::WouldBlock);
    // Clones stay with their stack.
    let _inside = other.enter();
    assert_eq!(kind(one.listen("127.0.0.1:80")), ErrorKind::AddrInUse);
    assert_eq!(kind(first.try_clone().unwrap().accept()), ErrorKind::WouldBlock);
}

#[test]
fn sockets_outlive_the_handle_of_their_stack() {
    let stack = stack();
    let (mut client, mut server) = pair(&stack);
    drop(stack);
    client.write_all(b"still").unwrap();
    let mut said = [0; 5];
    server.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"still");
}

#[test]
fn blocked_calls_end_with_their_stack() {
    let stack = Stack::builder().loopback().linger(Duration::ZERO).start().unwrap();
    let listener = stack.listen("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (mut reader, mut writer) = (stack.connect(addr).unwrap(), stack.connect(addr).unwrap());
    let _servers = [listener.accept().unwrap(), listener.accept().unwrap()];
    let socket = stack.bind_udp("127.0.0.1:0").unwrap();
    let calls = [
        blocked(move || listener.accept().map(drop)),
        blocked(move || reader.read(&mut [0]).map(drop)),
        blocked(move || writer.write_all(&vec![0; 64 << 20])),
        blocked(move || socket.recv(&mut [0]).map(drop)),
    ];
    // The writer's bytes were lost, which `shutdown` tells.
    let _ = stack.shutdown();
    for call in calls {
        assert_eq!(kind(call.join().unwrap()), ErrorKind::NetworkDown);
    }
}

#[test]
fn calls_after_the_end_of_the_stack_fail() {
    let stack = stack();
    let listener = stack.listen("127.0.0.1:0").unwrap();
    let (mut client, server) = pair(&stack);
    let socket = stack.bind_udp("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    stack.shutdown().unwrap();
    let results = [
        listener.accept().map(drop),
        listener.local_addr().map(drop),
        listener.set_ttl(1),
        client.read(&mut [0]).map(drop),
        client.write(b"x").map(drop),
        client.peek(&mut [0]).map(drop),
        client.peer_addr().map(drop),
        client.set_nodelay(true),
        client.set_linger(None),
        client.info().map(drop),
        client.take_error().map(drop),
        server.shutdown(Shutdown::Both),
        server.set_nonblocking(true),
        server.set_read_timeout(None),
        socket.send_to(b"x", addr).map(drop),
        socket.recv(&mut [0]).map(drop),
        socket.connect(addr),
        socket.set_broadcast(true),
        stack.listen(addr).map(drop),
        stack.connect(addr).map(drop),
        stack.bind_udp(addr).map(drop),
    ];
    for (n, result) in results.into_iter().enumerate() {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NetworkDown, "call {n}");
    }
    assert!(format!("{client:?}{listener:?}{socket:?}").contains("TcpStream"));
}

#[test]
fn a_full_backlog_lets_a_connect_time_out() {
    const LIMIT: Duration = Duration::from_millis(30);
    let stack = stack();
    let listener = stack.listen("127.0.0.1:0").unwrap();
    listener.set_backlog(0).unwrap();
    let addr = listener.local_addr().unwrap();
    // As on Linux, one more than the backlog wait.
    let _first = stack.connect(addr).unwrap();
    let began = Instant::now();
    assert_eq!(kind(stack.connect_timeout(&addr, LIMIT)), ErrorKind::TimedOut);
    assert!(began.elapsed() >= LIMIT);
    listener.set_backlog(10).unwrap();
    stack.connect(addr).unwrap();
}

#[test]
fn info_counts_what_was_moved() {
    let stack = stack();
    let (mut client, mut server) = pair(&stack);
    let fresh = client.info().unwrap();
    assert_eq!((fresh.bytes_sent, fresh.since_sent, fresh.since_received), (0, None, None));
    assert!(fresh.cwnd >= 10 && fresh.send_mss > 500 && fresh.send_window > 0, "{fresh:?}");
    client.write_all(&[0; 5000]).unwrap();
    server.read_exact(&mut [0; 5000]).unwrap();
    server.write_all(b"ok").unwrap();
    client.read_exact(&mut [0; 2]).unwrap();
    let info = client.info().unwrap();
    assert_eq!((info.bytes_sent, info.bytes_received), (5000, 2));
    assert_eq!((info.retransmits_total, info.lost, info.ssthresh), (0, 0, None));
    assert!(info.sack && info.timestamps && info.window_scale.is_some(), "{info:?}");
    assert!(info.since_sent.is_some() && info.segments_out > fresh.segments_out, "{info:?}");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    assert_eq!(server.info().unwrap().state, TcpState::CloseWait);
    // The end of the stream counts as a byte.
    assert_eq!(server.info().unwrap().bytes_received, 5001);
}

#[test]
fn each_connection_is_accepted_once() {
    const THREADS: usize = 4;
    const EACH: usize = 25;
    let stack = stack();
    let listener = stack.listen("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let accepts = [(); THREADS].map(|()| {
        let clone = listener.try_clone().unwrap();
        thread::spawn(move || {
            (0..EACH).map(|_| clone.accept().unwrap().1.port()).collect::<Vec<_>>()
        })
    });
    let clients: Vec<_> = (0..THREADS * EACH).map(|_| stack.connect(addr).unwrap()).collect();
    let mut ports: Vec<_> = clients.iter().map(|c| c.local_addr().unwrap().port()).collect();
    let mut accepted: Vec<_> = accepts.into_iter().flat_map(|t| t.join().unwrap()).collect();
    ports.sort_unstable();
    accepted.sort_unstable();
    assert_eq!(accepted, ports);
}
