//! Calls of handlers, and what they can do.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use towpath::Stack;
use towpath::handler::{
    CloseReason, Conn, ConnAction, ConnId, Handler, HandlerRemote, HandlerShard, ServeOptions,
    UdpId,
};

use crate::handlers::{Echo, OnBytes};
use crate::{Hosts, LIMIT, read};

/// Bytes without a short period.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n ^ n >> 9) as u8).collect()
}

#[test]
fn echoes_a_stream_and_its_end() {
    let hosts = Hosts::new(|_| Echo);
    let mut stream = hosts.connect();
    let bytes = pattern(3_000_000);
    let (mut writer, to_send) = (stream.try_clone().unwrap(), bytes.clone());
    let sends = thread::spawn(move || {
        writer.write_all(&to_send).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut echo = Vec::new();
    stream.read_to_end(&mut echo).unwrap();
    sends.join().unwrap();
    assert!(echo == bytes);
    hosts.until(|counters| counters.closed == 1 && counters.connections == 0);
}

#[test]
fn serves_hosts_beside_the_gateway() {
    let builder = Stack::builder().rootless().publish("127.0.0.1::7");
    let stack = builder.serve("0.0.0.0:7", |_| Echo).start().unwrap();
    let mut client = std::net::TcpStream::connect(stack.published()[0].host).unwrap();
    client.write_all(b"down the towpath").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut echo = String::new();
    client.read_to_string(&mut echo).unwrap();
    assert_eq!(echo, "down the towpath");
    // Sockets in the style of std are on the same stack.
    assert!(stack.listen("0.0.0.0:7").is_err());
    stack.listen("0.0.0.0:8").unwrap();
}

#[test]
fn listens_on_several_addresses() {
    let options = ServeOptions::new().listen("0.0.0.0:7").listen("0.0.0.0:8").listen("[::]:9");
    let hosts = Hosts::with(options, |_| Echo);
    for address in ["10.0.0.1:7", "10.0.0.1:8", "[fd00::1]:9"] {
        let mut stream = hosts.client.connect(address).unwrap();
        stream.write_all(b"hello").unwrap();
        assert_eq!(read(&mut stream, 5), b"hello", "{address}");
    }
}

/// Reads lines, and answers each with its length; keeps every third one.
#[derive(Default)]
struct Lines {
    kept: Vec<(towpath::handler::KeptBytes, Vec<u8>)>,
}

impl Handler for Lines {
    type State = usize;

    fn readable(&mut self, conn: &mut Conn<'_>, lines: &mut usize) -> ConnAction {
        let (mut reader, mut writer) = conn.split();
        while let Some(len) = reader.find(b'\n') {
            if writer.room() < 10 {
                return ConnAction::AwaitRoom;
            }
            let expected = reader.peek(len + 1).map(<[u8]>::to_vec).expect("the line");
            *lines += 1;
            match *lines % 3 {
                0 => {
                    let kept = reader.slice(len + 1).expect("the line");
                    self.kept.push((kept, expected));
                }
                1 => assert_eq!(reader.until(b'\n'), Some(&expected[..])),
                _ => assert_eq!(reader.next(len + 1), Some(&expected[..])),
            }
            assert!(writer.write_all(format!("{len}\n").as_bytes()));
        }
        for (kept, expected) in &self.kept {
            assert_eq!(kept.slices().concat(), *expected, "nothing has overwritten it");
        }
        self.kept.truncate(20);
        ConnAction::Continue
    }
}

#[test]
fn borrows_peeks_and_keeps_bytes_across_the_wrap_of_the_buffer() {
    let options = ServeOptions::new().listen("0.0.0.0:7").recv_buffer(4096, 4096);
    let hosts = Hosts::with(options, |_| Lines::default());
    let mut stream = hosts.connect();
    // Lines of up to 700 bytes in writes of 1000 bytes: a line and its end are often apart.
    let lens: Vec<usize> = (0..2000).map(|n| n * 37 % 701).collect();
    let mut text = Vec::new();
    for len in &lens {
        text.extend(pattern(*len).iter().map(|byte| b'a' + byte % 26));
        text.push(b'\n');
    }
    let mut writer = stream.try_clone().unwrap();
    let sends = thread::spawn(move || {
        for piece in text.chunks(1000) {
            writer.write_all(piece).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    sends.join().unwrap();
    let answers: Vec<usize> = answers.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(answers, lens);
    assert_eq!(hosts.server.handlers()[0].panics, 0);
}

#[test]
fn waits_for_room_and_writes_in_place() {
    // Answers a request by a megabyte, through a send buffer of 8 KiB.
    struct Source;
    impl Handler for Source {
        type State = u32;
        fn readable(&mut self, conn: &mut Conn<'_>, sent: &mut u32) -> ConnAction {
            conn.reader().skip(1);
            self.writable(conn, sent)
        }
        fn writable(&mut self, conn: &mut Conn<'_>, sent: &mut u32) -> ConnAction {
            let mut writer = conn.writer();
            while *sent < 1000 {
                let Some(mut space) = writer.reserve(1001) else { return ConnAction::AwaitRoom };
                space.bytes().fill(*sent as u8);
                space.commit(1000);
                *sent += 1;
            }
            ConnAction::Finish
        }
    }
    let options = ServeOptions::new().listen("0.0.0.0:7").send_buffer(8192, 8192);
    let hosts = Hosts::with(options, |_| Source);
    let mut stream = hosts.connect();
    stream.write_all(b"x").unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let expected: Vec<u8> = (0..1000u32).flat_map(|n| [n as u8; 1000]).collect();
    assert!(all == expected);
}

#[test]
fn timers_do_not_end_the_wait_for_room() {
    // Answers a request by a megabyte, while a timer fires again and again.
    struct Source;
    impl Handler for Source {
        type State = u32;
        fn readable(&mut self, conn: &mut Conn<'_>, sent: &mut u32) -> ConnAction {
            conn.reader().skip(1);
            conn.set_timer(Duration::from_millis(1));
            self.writable(conn, sent)
        }
        fn writable(&mut self, conn: &mut Conn<'_>, sent: &mut u32) -> ConnAction {
            while *sent < 1000 {
                if !conn.writer().write_all(&[*sent as u8; 1000]) {
                    return ConnAction::AwaitRoom;
                }
                *sent += 1;
            }
            ConnAction::Finish
        }
        fn timer(&mut self, conn: &mut Conn<'_>, _: &mut u32) -> ConnAction {
            conn.set_timer(Duration::from_millis(1));
            ConnAction::Continue
        }
    }
    let options = ServeOptions::new().listen("0.0.0.0:7").send_buffer(8192, 8192);
    let hosts = Hosts::with(options, |_| Source);
    let mut stream = hosts.connect();
    stream.write_all(b"x").unwrap();
    // The client's receive buffer is full long before, so most calls are those of the timer.
    hosts.until(|counters| counters.calls > 1000);
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 1_000_000);
}

#[test]
fn reserves_more_than_the_buffer_has_at_first_when_it_is_empty() {
    let options = ServeOptions::new().listen("0.0.0.0:7").send_buffer(1000, 5000);
    let hosts = Hosts::with(options, |_| {
        OnBytes(|conn: &mut Conn<'_>| {
            conn.reader().skip(1);
            let mut writer = conn.writer();
            assert!(writer.reserve(5001).is_none(), "its maximum is less");
            let mut space = writer.reserve(5000).expect("it is empty");
            space.bytes().fill(7);
            space.commit(usize::MAX);
            assert!(writer.reserve(1).is_none());
            assert_eq!((writer.room(), writer.queued()), (0, 5000));
            ConnAction::Finish
        })
    });
    let mut stream = hosts.connect();
    stream.write_all(b"x").unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, [7; 5000]);
}

/// Records all events in a channel.
struct Recorder {
    to: Sender<String>,
    timer: Option<Duration>,
}

impl Handler for Recorder {
    type State = u32;

    fn accepted(&mut self, conn: &mut Conn<'_>) -> Option<u32> {
        self.to.send(format!("accepted {}", conn.peer_addr().ip())).unwrap();
        if let Some(after) = self.timer {
            conn.set_timer(after);
        }
        Some(0)
    }

    fn readable(&mut self, conn: &mut Conn<'_>, count: &mut u32) -> ConnAction {
        let mut reader = conn.reader();
        let ended = if reader.is_ended() { " and the end" } else { "" };
        let n = reader.skip(usize::MAX);
        *count += 1;
        self.to.send(format!("{n} bytes{ended}")).unwrap();
        ConnAction::Continue
    }

    fn timer(&mut self, conn: &mut Conn<'_>, count: &mut u32) -> ConnAction {
        *count += 100;
        self.to.send("timer".into()).unwrap();
        conn.writer().write_all(b"too late");
        ConnAction::Finish
    }

    fn closed(&mut self, _: &mut HandlerShard<'_>, _: ConnId, count: u32, reason: CloseReason) {
        self.to.send(format!("closed {count} {reason:?}")).unwrap();
    }
}

fn recorded(timer: Option<Duration>) -> (Hosts, Receiver<String>) {
    let (to, events) = channel();
    let to = std::sync::Mutex::new(to);
    let make = move |_| Recorder { to: to.lock().unwrap().clone(), timer };
    (Hosts::new(make), events)
}

fn next(events: &Receiver<String>) -> String {
    events.recv_timeout(LIMIT).expect("an event follows")
}

#[test]
fn reports_the_life_of_a_connection() {
    let (hosts, events) = recorded(None);
    let mut stream = hosts.connect();
    assert_eq!(next(&events), "accepted 10.0.0.2");
    stream.write_all(b"hello").unwrap();
    assert_eq!(next(&events), "5 bytes");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(next(&events), "0 bytes and the end");
    assert_eq!(next(&events), "closed 2 Finished");
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 0);
}

#[test]
fn reports_a_reset_of_the_peer() {
    let (hosts, events) = recorded(None);
    let stream = hosts.connect();
    assert_eq!(next(&events), "accepted 10.0.0.2");
    stream.set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    assert_eq!(next(&events), "closed 0 PeerReset");
}

#[test]
fn fires_timers_and_not_after_the_end() {
    let (hosts, events) = recorded(Some(Duration::from_millis(30)));
    // Before the timer is set, so that a delay of this thread only adds to the time.
    let begin = std::time::Instant::now();
    let mut stream = hosts.connect();
    assert_eq!(next(&events), "accepted 10.0.0.2");
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "too late");
    assert!(begin.elapsed() >= Duration::from_millis(20));
    assert_eq!((next(&events), next(&events)), ("timer".into(), "closed 100 Finished".into()));

    let stream = hosts.connect();
    assert_eq!(next(&events), "accepted 10.0.0.2");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(next(&events), "0 bytes and the end");
    assert_eq!(next(&events), "closed 1 Finished");
    // The next connection has the place of the last one, and its timer fires later.
    let _stream = hosts.connect();
    assert_eq!(next(&events), "accepted 10.0.0.2");
    assert_eq!(next(&events), "timer");
    assert_eq!(next(&events), "closed 100 Finished");
}

/// Accepts at port 7, and forwards to port 8 of the client's host.
#[derive(Default)]
struct Forwarder {
    partners: std::collections::HashMap<ConnId, ConnId>,
}

impl Handler for Forwarder {
    type State = ();

    fn accepted(&mut self, conn: &mut Conn<'_>) -> Option<()> {
        if conn.is_outgoing() {
            let partner = self.partners.get(&conn.id()).copied()?;
            conn.shard().resume(partner);
            return Some(());
        }
        let to = SocketAddr::new(conn.peer_addr().ip(), 8);
        let (own, other) = (conn.id(), conn.shard().connect(to).ok()?);
        self.partners.extend([(own, other), (other, own)]);
        Some(())
    }

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
        let Some(partner) = self.partners.get(&conn.id()).copied() else {
            return ConnAction::Finish;
        };
        let mut reader = conn.reader();
        let bytes = reader.slices().concat();
        let is_ended = reader.is_ended();
        match conn.shard().write(partner, &bytes) {
            Ok(()) => conn.reader().skip(usize::MAX),
            // The partner's handshake is not complete.
            Err(error) if error.kind() == ErrorKind::NotConnected => return ConnAction::Pause,
            Err(error) => panic!("{error}"),
        };
        if is_ended {
            conn.shard().finish(partner);
        }
        ConnAction::Continue
    }

    fn closed(&mut self, _: &mut HandlerShard<'_>, id: ConnId, (): (), _: CloseReason) {
        self.partners.remove(&id);
    }

    fn refused(&mut self, shard: &mut HandlerShard<'_>, id: ConnId, reason: CloseReason) {
        assert_eq!(reason, CloseReason::Refused);
        if let Some(partner) = self.partners.remove(&id) {
            shard.reset(partner);
        }
    }
}

#[test]
fn connects_to_other_hosts() {
    let hosts = Hosts::new(|_| Forwarder::default());
    // The handler resets the connection at once, before or after `connect` returns.
    let refused = hosts.client.connect("10.0.0.1:7");
    let error = refused.and_then(|mut stream| stream.read(&mut [0]));
    let error = error.expect_err("nothing listens at port 8");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    let listener = hosts.client.listen("0.0.0.0:8").unwrap();
    let mut stream = hosts.connect();
    stream.write_all(b"down ").unwrap();
    let (mut behind, _) = listener.accept().unwrap();
    stream.write_all(b"the towpath").unwrap();
    assert_eq!(read(&mut behind, 16), b"down the towpath");
    behind.write_all(b"and back").unwrap();
    assert_eq!(read(&mut stream, 8), b"and back");
    drop(stream);
    assert_eq!(behind.read(&mut [0]).unwrap(), 0);
    hosts.until(|counters| counters.connections == 0);
    assert_eq!(hosts.server.handlers()[0].panics, 0);
}

#[test]
fn answers_datagrams() {
    struct Upper;
    impl Handler for Upper {
        type State = ();
        fn readable(&mut self, _: &mut Conn<'_>, _: &mut ()) -> ConnAction {
            ConnAction::Reset
        }
        fn datagram(
            &mut self,
            shard: &mut HandlerShard<'_>,
            socket: UdpId,
            from: SocketAddr,
            bytes: &[u8],
        ) {
            assert_eq!(shard.udp_sockets().next(), Some(socket));
            assert_eq!(shard.udp_addr(socket).unwrap().port(), 7);
            shard.send_to(socket, from, &bytes.to_ascii_uppercase()).unwrap();
        }
    }
    let hosts = Hosts::with(ServeOptions::new().udp("0.0.0.0:7"), |_| Upper);
    let socket = hosts.client.bind_udp("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.connect("10.0.0.1:7").unwrap();
    for text in ["", "hello", "down the towpath"] {
        socket.send(text.as_bytes()).unwrap();
        let mut answer = [0; 100];
        let n = socket.recv(&mut answer).unwrap();
        assert_eq!(answer[..n], *text.to_uppercase().as_bytes());
    }
    assert_eq!(hosts.server.handlers()[0].panics, 0);
}

#[test]
fn opens_datagram_sockets_later() {
    struct Asks(Sender<(SocketAddr, Vec<u8>)>);
    impl Handler for Asks {
        type State = ();
        fn started(&mut self, shard: &mut HandlerShard<'_>, _: HandlerRemote<Self, ()>) {
            let socket = shard.udp("0.0.0.0:0".parse().unwrap()).unwrap();
            let error = shard.udp("10.9.9.9:1".parse().unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            shard.send_to(socket, "127.0.0.1:9999".parse().unwrap(), b"to nobody").unwrap();
            let other = shard.udp("127.0.0.1:9998".parse().unwrap()).unwrap();
            shard.send_to(socket, "127.0.0.1:9998".parse().unwrap(), b"to myself").unwrap();
            assert_eq!(shard.udp_sockets().collect::<Vec<_>>(), [socket, other]);
        }
        fn readable(&mut self, _: &mut Conn<'_>, _: &mut ()) -> ConnAction {
            ConnAction::Reset
        }
        fn datagram(
            &mut self,
            shard: &mut HandlerShard<'_>,
            socket: UdpId,
            from: SocketAddr,
            bytes: &[u8],
        ) {
            shard.close_udp(socket);
            self.0.send((from, bytes.to_vec())).unwrap();
        }
    }
    let (to, events) = channel();
    let to = std::sync::Mutex::new(to);
    let builder = Stack::builder().loopback();
    let make = move |_| Asks(to.lock().unwrap().clone());
    let _stack = builder.serve(ServeOptions::new(), make).start().unwrap();
    let (from, bytes) = events.recv_timeout(LIMIT).unwrap();
    assert_eq!((from.ip(), &bytes[..]), ([127, 0, 0, 1].into(), &b"to myself"[..]));
}

#[test]
fn answers_after_the_peer_has_ended_its_bytes() {
    // Counts all bytes of a client, and answers when the client has sent all.
    let hosts = Hosts::new(|_| {
        OnBytes(|conn: &mut Conn<'_>| {
            let (reader, mut writer) = conn.split();
            if reader.is_ended() {
                let answer = format!("{} bytes", reader.len());
                io::Write::write_all(&mut writer, answer.as_bytes()).unwrap();
            }
            ConnAction::Continue
        })
    });
    let mut stream = hosts.connect();
    stream.write_all(&[7; 50_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "50000 bytes");
}

#[test]
fn ends_its_bytes_and_reads_on() {
    let hosts = Hosts::new(|_| {
        OnBytes(|conn: &mut Conn<'_>| {
            let first = conn.reader().skip(usize::MAX) > 0;
            if first {
                conn.writer().write_all(b"bye");
                conn.end_bytes();
                assert_eq!((conn.writer().room(), conn.writer().write(b"more")), (0, 0));
                let error = io::Write::write(&mut conn.writer(), b"more").unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                let id = conn.id();
                let error = conn.shard().write(id, b"more").unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            }
            ConnAction::Continue
        })
    });
    let mut stream = hosts.connect();
    stream.write_all(b"hello").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "bye");
    stream.write_all(b"still read").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    hosts.until(|counters| counters.closed == 1);
    assert_eq!(hosts.server.handlers()[0].panics, 0);
}

#[test]
fn each_thread_has_a_handler() {
    let builder = Stack::builder().loopback().shards(4);
    let stack = builder.serve("127.0.0.1:7", |_| Echo).start().unwrap();
    let mut streams: Vec<_> = (0..200).map(|_| stack.connect("127.0.0.1:7").unwrap()).collect();
    for stream in &mut streams {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"down the towpath").unwrap();
    }
    for stream in &mut streams {
        assert_eq!(read(stream, 16), b"down the towpath");
    }
    let counters = stack.handlers();
    let accepted: Vec<u64> = counters.iter().map(|counters| counters.accepted).collect();
    assert_eq!(accepted.iter().sum::<u64>(), 200, "{accepted:?}");
    // Ports decide which shard owns a connection.
    assert!(accepted.iter().filter(|count| **count > 0).count() > 1, "{accepted:?}");
    let numbers: Vec<usize> = counters.iter().map(|counters| counters.shard).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
}
