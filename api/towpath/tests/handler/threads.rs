//! Work that other threads do for a handler.

use std::io::{ErrorKind, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, mpsc};
use std::thread;

use towpath::handler::{Conn, ConnAction, ConnId, Handler, HandlerRemote, HandlerShard, KeptBytes};

use crate::{Hosts, LIMIT, read};

type Remote = HandlerRemote<HandsOff, u32>;

/// Hands each request of four bytes to a thread, and answers in order.
struct HandsOff {
    work: Sender<(Remote, ConnId, KeptBytes)>,
    remote: Option<Remote>,
}

impl Handler for HandsOff {
    type State = u32;

    fn started(&mut self, _: &mut HandlerShard<'_>, remote: Remote) {
        self.remote = Some(remote);
    }

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut u32) -> ConnAction {
        let id = conn.id();
        let Some(request) = conn.reader().slice(4) else { return ConnAction::Continue };
        self.work.send((self.remote.clone().unwrap(), id, request)).unwrap();
        ConnAction::Pause
    }
}

/// A value whose destructor panics.
struct PanicsAtDrop;

impl Drop for PanicsAtDrop {
    fn drop(&mut self) {
        panic!("a panic in a destructor");
    }
}

type Work = Receiver<(Remote, ConnId, KeptBytes)>;

fn hosts() -> (Hosts, Work) {
    let (work, to_do) = channel();
    let work = Mutex::new(work);
    let make = move |_| HandsOff { work: work.lock().unwrap().clone(), remote: None };
    (Hosts::new(make), to_do)
}

#[test]
fn another_thread_resumes_a_paused_connection() {
    let (hosts, to_do) = hosts();
    let worker = thread::spawn(move || {
        while let Ok((remote, id, request)) = to_do.recv() {
            let answer = request.slices().concat().to_ascii_uppercase();
            let done = remote.call(id, move |_, conn, count| {
                *count += 1;
                conn.writer().write_all(format!("{count}").as_bytes());
                conn.writer().write_all(&answer);
                ConnAction::Continue
            });
            if done.is_err() {
                return;
            }
        }
    });
    let mut stream = hosts.connect();
    // Requests that arrive while the connection is paused are answered afterwards.
    stream.write_all(b"downthe towpath!").unwrap();
    assert_eq!(read(&mut stream, 20), b"1DOWN2THE 3TOWP4ATH!");
    drop((stream, hosts));
    worker.join().unwrap();
}

#[test]
fn calls_for_ended_connections_and_stacks_are_dropped() {
    let (hosts, to_do) = hosts();
    let mut stream = hosts.connect();
    stream.write_all(b"work").unwrap();
    let (remote, id, _request) = to_do.recv_timeout(LIMIT).unwrap();
    stream.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(stream);
    hosts.until(|counters| counters.closed == 1);
    let value = PanicsAtDrop;
    remote
        .call(id, move |_, _, _| {
            drop(value);
            ConnAction::Continue
        })
        .unwrap();
    let (called, calls) = mpsc::channel::<()>();
    remote
        .call(id, move |_, _, _| {
            let _ = called.send(());
            ConnAction::Continue
        })
        .unwrap();
    // The sender is dropped with the closure.
    assert!(
        calls.recv_timeout(LIMIT).is_err_and(|error| error == mpsc::RecvTimeoutError::Disconnected)
    );
    // Another closure runs with the handler itself.
    let (number, numbers) = mpsc::channel();
    remote
        .run(move |_, shard| number.send((shard.number(), shard.connections())).unwrap())
        .unwrap();
    assert_eq!(numbers.recv_timeout(LIMIT), Ok((0, 0)));
    hosts.server.shutdown().unwrap();
    let error = remote.run(|_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkDown);
}
