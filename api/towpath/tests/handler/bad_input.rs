//! Handlers and peers that do harm.

use std::io::{ErrorKind, Read, Write};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use towpath::Stack;
use towpath::handler::{
    CloseReason, Conn, ConnAction, ConnId, Handler, HandlerShard, ServeOptions,
};

use crate::handlers::{Echo, OnBytes};
use crate::{Hosts, LIMIT, read};

/// Connects, and returns the error with which the connection ends during or after its handshake.
fn refused(hosts: &Hosts) -> ErrorKind {
    let connected = hosts.client.connect("10.0.0.1:7");
    connected.and_then(|mut stream| stream.read(&mut [0])).expect_err("it is reset").kind()
}

#[test]
fn a_handler_that_never_reads_closes_the_window() {
    let options = ServeOptions::new().listen("0.0.0.0:7").recv_buffer(16384, 16384);
    let hosts = Hosts::with(options, |_| OnBytes(|_: &mut Conn<'_>| ConnAction::Continue));
    let mut stream = hosts.connect();
    stream.set_nonblocking(true).unwrap();
    stream.set_send_buffer_size(16384).unwrap();
    let (mut sent, begin) = (0, std::time::Instant::now());
    while begin.elapsed() < Duration::from_millis(300) {
        match stream.write(&[7; 4096]) {
            Ok(n) => sent += n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    // Both buffers are full, and nothing else stores bytes.
    assert!((16384..300_000).contains(&sent), "{sent}");
    // Another connection is not affected.
    let mut other = hosts.connect();
    other.write_all(b"x").unwrap();
    hosts.until(|counters| counters.accepted == 2);
}

#[test]
fn a_paused_connection_resumes_with_all_bytes() {
    // Reads only after another connection has sent a byte.
    #[derive(Default)]
    struct Stopper(Option<ConnId>);
    impl Handler for Stopper {
        type State = ();
        fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
            let id = conn.id();
            match self.0 {
                None => {
                    self.0 = Some(id);
                    ConnAction::Pause
                }
                Some(paused) if paused != id => {
                    conn.shard().resume(paused);
                    ConnAction::Finish
                }
                Some(_) => {
                    let (mut reader, mut writer) = conn.split();
                    writer.forward(&mut reader);
                    ConnAction::AwaitRoom
                }
            }
        }
    }
    let hosts = Hosts::new(|_| Stopper::default());
    let mut stream = hosts.connect();
    stream.write_all(&[7; 60_000]).unwrap();
    hosts.until(|counters| counters.calls == 2);
    let mut other = hosts.connect();
    other.write_all(b"x").unwrap();
    assert_eq!(other.read(&mut [0]).unwrap(), 0);
    assert_eq!(read(&mut stream, 60_000), [7; 60_000]);
}

#[test]
fn a_handler_that_accepts_nothing_resets_connections() {
    struct Closed;
    impl Handler for Closed {
        type State = ();
        fn accepted(&mut self, _: &mut Conn<'_>) -> Option<()> {
            None
        }
        fn readable(&mut self, _: &mut Conn<'_>, _: &mut ()) -> ConnAction {
            unreachable!("nothing is accepted")
        }
        fn closed(&mut self, _: &mut HandlerShard<'_>, _: ConnId, (): (), _: CloseReason) {
            unreachable!("there is no state")
        }
    }
    let hosts = Hosts::new(|_| Closed);
    for n in 1..=50 {
        assert_eq!(refused(&hosts), ErrorKind::ConnectionReset);
        hosts.until(|counters| counters.closed == n);
    }
    let counters = hosts.server.handlers()[0];
    assert_eq!((counters.accepted, counters.connections, counters.panics), (0, 0, 0));
}

#[test]
fn a_panic_ends_only_its_connection() {
    struct Panics(Sender<(u32, CloseReason)>, u32);
    impl Handler for Panics {
        type State = u32;
        fn accepted(&mut self, _: &mut Conn<'_>) -> Option<u32> {
            self.1 += 1;
            assert_ne!(self.1, 3, "a panic in accepted");
            Some(0)
        }
        fn readable(&mut self, conn: &mut Conn<'_>, count: &mut u32) -> ConnAction {
            *count += 1;
            let (mut reader, mut writer) = conn.split();
            assert_ne!(reader.peek(1), Some(&b"!"[..]), "a panic in readable");
            writer.forward(&mut reader);
            ConnAction::Continue
        }
        fn closed(&mut self, _: &mut HandlerShard<'_>, _: ConnId, count: u32, reason: CloseReason) {
            self.0.send((count, reason)).unwrap();
            assert_ne!(reason, CloseReason::Panicked, "a panic in closed");
        }
    }
    let (to, ends) = channel();
    let to = Mutex::new(to);
    let hosts = Hosts::new(move |_| Panics(to.lock().unwrap().clone(), 0));
    let (mut well, mut bad) = (hosts.connect(), hosts.connect());
    well.write_all(b"one").unwrap();
    assert_eq!(read(&mut well, 3), b"one");
    bad.write_all(b"!").unwrap();
    assert_eq!(bad.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
    assert_eq!(ends.recv_timeout(LIMIT), Ok((1, CloseReason::Panicked)));
    assert_eq!(refused(&hosts), ErrorKind::ConnectionReset);
    well.write_all(b"two").unwrap();
    assert_eq!(read(&mut well, 3), b"two");
    hosts.until(|counters| counters.panics == 3 && counters.connections == 1);
}

#[test]
fn a_peer_that_resets_during_a_call_ends_after_it() {
    /// Waits in each call until the test has reset the connection.
    struct Waits(Sender<Option<CloseReason>>, std::sync::mpsc::Receiver<()>);
    impl Handler for Waits {
        type State = ();
        fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
            self.0.send(None).unwrap();
            self.1.recv_timeout(LIMIT).unwrap();
            let (mut reader, mut writer) = conn.split();
            assert_eq!(reader.next(5), Some(&b"hello"[..]));
            assert!(writer.write_all(b"an answer"));
            conn.set_timer(Duration::from_millis(1));
            ConnAction::Continue
        }
        fn timer(&mut self, _: &mut Conn<'_>, _: &mut ()) -> ConnAction {
            ConnAction::Pause
        }
        fn closed(&mut self, _: &mut HandlerShard<'_>, _: ConnId, (): (), reason: CloseReason) {
            self.0.send(Some(reason)).unwrap();
        }
    }
    let ((to, events), (go_on, waits)) = (channel(), channel());
    let parts = Mutex::new(Some((to, waits)));
    let hosts = Hosts::new(move |_| {
        let (to, waits) = parts.lock().unwrap().take().expect("one thread");
        Waits(to, waits)
    });
    let mut stream = hosts.connect();
    stream.write_all(b"hello").unwrap();
    assert_eq!(events.recv_timeout(LIMIT), Ok(None));
    stream.set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    go_on.send(()).unwrap();
    assert_eq!(events.recv_timeout(LIMIT), Ok(Some(CloseReason::PeerReset)));
    assert_eq!(hosts.server.handlers()[0].panics, 0);
}

#[test]
fn a_handler_that_never_writes_takes_all_bytes() {
    let hosts = Hosts::new(|_| {
        OnBytes(|conn: &mut Conn<'_>| {
            conn.reader().skip(usize::MAX);
            ConnAction::Continue
        })
    });
    let mut stream = hosts.connect();
    for _ in 0..500 {
        stream.write_all(&[7; 10_000]).unwrap();
    }
    drop(stream);
    hosts.until(|counters| counters.closed == 1);
}

#[test]
fn slow_calls_are_counted() {
    let hosts = Hosts::new(|_| {
        OnBytes(|conn: &mut Conn<'_>| {
            if conn.reader().skip(usize::MAX) == 4 {
                std::thread::sleep(Duration::from_millis(5));
            }
            conn.writer().write_all(b"x");
            ConnAction::Continue
        })
    });
    let mut stream = hosts.connect();
    stream.write_all(b"slow").unwrap();
    read(&mut stream, 1);
    let counters = hosts.server.handlers()[0];
    assert!(counters.slow >= 1 && counters.slowest >= Duration::from_millis(5), "{counters:?}");
    assert!(counters.name.contains("OnBytes"));
}

#[test]
fn a_full_table_accepts_again_when_a_connection_ends() {
    // The listener is a socket, too.
    let options = ServeOptions::new().listen("0.0.0.0:7").sockets_max(3);
    let hosts = Hosts::with(options, |_| Echo);
    let mut streams: Vec<_> = (0..2).map(|_| hosts.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"hello").unwrap();
        assert_eq!(read(stream, 5), b"hello");
    }
    // Its handshake is complete for the client alone.
    let mut third = hosts.connect();
    third.write_all(b"hello").unwrap();
    third.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(third.read(&mut [0]).expect_err("full").kind(), ErrorKind::WouldBlock);
    let first = streams.remove(0);
    first.set_linger(Some(Duration::ZERO)).unwrap();
    drop(first);
    third.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(read(&mut third, 5), b"hello");
}

#[test]
fn serves_thousands_of_connections() {
    const COUNT: usize = 3000;
    let hosts = Hosts::new(|_| Echo);
    let mut streams: Vec<_> = (0..COUNT).map(|_| hosts.connect()).collect();
    for (n, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&(n as u32).to_be_bytes()).unwrap();
    }
    for (n, stream) in streams.iter_mut().enumerate() {
        assert_eq!(read(stream, 4), (n as u32).to_be_bytes());
    }
    hosts.until(|counters| counters.connections == COUNT as u64);
    drop(streams);
    hosts.until(|counters| counters.connections == 0 && counters.closed == COUNT as u64);
}

#[test]
fn connections_end_themselves_and_others_within_a_call() {
    // Ends itself and all connections before it, in every way, and more than once.
    #[derive(Default)]
    struct Ends(Vec<ConnId>);
    impl Handler for Ends {
        type State = ();
        fn accepted(&mut self, conn: &mut Conn<'_>) -> Option<()> {
            self.0.push(conn.id());
            Some(())
        }
        fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
            let own = conn.id();
            let how = conn.reader().peek(1).map(|bytes| bytes[0]);
            let mut shard = conn.shard();
            for id in &self.0 {
                shard.resume(*id);
                shard.finish(*id);
                shard.reset(*id);
            }
            shard.finish(own);
            match how {
                Some(b'r') => ConnAction::Reset,
                Some(b'p') => ConnAction::Pause,
                _ => ConnAction::Finish,
            }
        }
        fn closed(&mut self, shard: &mut HandlerShard<'_>, id: ConnId, (): (), _: CloseReason) {
            self.0.retain(|other| *other != id);
            shard.finish(id);
            assert!(shard.write(id, b"x").is_err(), "it has ended");
        }
    }
    let hosts = Hosts::new(|_| Ends::default());
    for (round, how) in [b'r', b'p', b'f'].into_iter().enumerate() {
        let mut streams: Vec<_> = (0..5).map(|_| hosts.connect()).collect();
        hosts.until(|counters| counters.connections == 5);
        streams[4].write_all(&[how]).unwrap();
        for stream in &mut streams {
            // Closed with or without a reset.
            let _ = stream.read(&mut [0]);
        }
        let ended = (round as u64 + 1) * 5;
        hosts.until(|counters| counters.closed == ended && counters.connections == 0);
    }
    assert_eq!(hosts.server.handlers()[0].panics, 0);
}

#[test]
fn a_handler_that_awaits_room_of_an_empty_buffer_is_called_again() {
    let hosts = Hosts::new(|_| OnBytes(|_: &mut Conn<'_>| ConnAction::AwaitRoom));
    let mut stream = hosts.connect();
    for n in 1..=5 {
        stream.write_all(b"x").unwrap();
        // The first call is that of `accepted`.
        hosts.until(|counters| counters.calls > n);
    }
}

#[test]
fn addresses_are_checked_at_the_start() {
    let start = |at: &str| Stack::builder().loopback().serve(at, |_| Echo).start().map(drop);
    let error = start("0.0.0.0").expect_err("it has no port").to_string();
    assert!(error.starts_with("serve(\"0.0.0.0\")") && error.contains("0.0.0.0:80"), "{error}");
    let error = start("192.0.2.1:7").expect_err("it is not the stack's").to_string();
    assert!(error.contains("use an address of the stack"), "{error}");
    let twice = ServeOptions::new().listen("0.0.0.0:7").listen("0.0.0.0:7");
    let builder = Stack::builder().loopback().serve(twice, |_| Echo);
    let error = builder.start().map(drop).expect_err("it is in use").to_string();
    assert!(error.contains("use another address"), "{error}");
}

#[test]
fn the_end_of_the_stack_resets_connections_and_drops_states() {
    struct Holds;
    #[derive(Default)]
    struct HeldState(Option<Sender<()>>);
    impl Drop for HeldState {
        fn drop(&mut self) {
            if let Some(to) = &self.0 {
                let _ = to.send(());
            }
        }
    }
    static TO: Mutex<Option<Sender<()>>> = Mutex::new(None);
    impl Handler for Holds {
        type State = HeldState;
        fn accepted(&mut self, _: &mut Conn<'_>) -> Option<HeldState> {
            Some(HeldState(TO.lock().unwrap().clone()))
        }
        fn readable(&mut self, _: &mut Conn<'_>, _: &mut HeldState) -> ConnAction {
            ConnAction::Continue
        }
    }
    let (to, dropped) = channel();
    *TO.lock().unwrap() = Some(to);
    let hosts = Hosts::new(|_| Holds);
    let mut stream = hosts.connect();
    hosts.until(|counters| counters.accepted == 1);
    hosts.server.shutdown().unwrap();
    dropped.recv_timeout(LIMIT).expect("the state is dropped");
    assert_eq!(stream.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
}
