//! Futures that are dropped at each point where they wait lose nothing.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use towpath::tokio::{TcpStream, UdpSocket, lookup_host_on};

use crate::{connection, listener, on_both, pattern, udp_pair};

/// Polls a future once. Returns nothing if it has to wait.
async fn polled_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Polls a future once, and drops it when it is woken.
async fn dropped_when_woken<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut has_polled = false;
    poll_fn(|cx| match std::mem::replace(&mut has_polled, true) {
        true => Poll::Ready(None),
        false => future.as_mut().poll(cx).map(Some),
    })
    .await
}

/// Makes a call again and again, and drops its futures while they wait and when they are woken,
/// before the last one is awaited. Hangs if a dropped future has taken a wake-up with it.
macro_rules! with_drops {
    ($call:expr) => {
        match polled_once($call).await {
            Some(output) => output,
            None => match dropped_when_woken($call).await {
                Some(output) => output,
                None => match polled_once($call).await {
                    Some(output) => output,
                    None => $call.await,
                },
            },
        }
    };
}

#[test]
fn reads_and_writes() {
    const LEN: usize = 4 << 20;
    on_both(|stack| async move {
        let (mut client, mut server) = connection(&stack).await;
        let writer = tokio::spawn(async move {
            let bytes = pattern(LEN);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                // Chunks of different lengths, so that partial writes occur.
                let chunk = &rest[..rest.len().min(1 + rest.len() % 150_000)];
                let n = with_drops!(client.write(chunk)).expect("written");
                rest = &rest[n..];
            }
            with_drops!(client.shutdown()).expect("shut down");
            client
        });
        let mut received = Vec::new();
        let mut buf = vec![0; 100_000];
        loop {
            let len = 1 + received.len() % buf.len();
            let n = with_drops!(server.read(&mut buf[..len])).expect("data");
            if n == 0 {
                break;
            }
            received.extend_from_slice(&buf[..n]);
        }
        assert!(received == pattern(LEN));
        drop(writer.await.expect("no panic"));
    });
}

#[test]
fn readiness_and_peeks() {
    on_both(|stack| async move {
        let (mut client, server) = connection(&stack).await;
        let writer = tokio::spawn(async move {
            for byte in 0..100u8 {
                with_drops!(client.writable()).expect("room");
                with_drops!(client.write_all(&[byte])).expect("written");
                tokio::task::yield_now().await;
            }
        });
        let mut next = 0;
        while next < 100 {
            with_drops!(server.readable()).expect("data");
            let mut buf = [0; 1];
            assert_eq!(with_drops!(server.peek(&mut buf)).expect("data"), 1);
            assert_eq!(buf[0], next);
            let read =
                with_drops!(server.async_io(Interest::READABLE, || server.try_read(&mut buf)));
            assert_eq!((read.expect("data"), buf[0]), (1, next));
            next += 1;
        }
        writer.await.expect("no panic");
    });
}

#[test]
fn accepts_and_connects() {
    const CONNECTIONS: usize = 100;
    on_both(|stack| async move {
        let listener = listener(&stack).await;
        let addr = listener.local_addr().expect("bound");
        let connector = tokio::spawn(async move {
            let mut streams = Vec::new();
            for _ in 0..CONNECTIONS {
                // A dropped connect ends its attempt, and does not harm the next one.
                let _ = polled_once(TcpStream::connect_on(&stack, addr)).await;
                let stream = TcpStream::connect_on(&stack, addr).await.expect("connected");
                streams.push(stream.local_addr().expect("bound"));
                std::mem::forget(stream);
            }
            streams
        });
        let mut accepted = Vec::new();
        let mut connected = None;
        let mut connector = pin!(connector);
        while connected.as_ref().is_none_or(|all: &Vec<_>| !is_subset(all, &accepted)) {
            tokio::select! {
                biased;
                all = &mut connector, if connected.is_none() => {
                    connected = Some(all.expect("no panic"));
                }
                from = async { with_drops!(listener.accept()) } => {
                    accepted.push(from.expect("accepted").1);
                }
            }
        }
        // Dropped connects may have been accepted, too.
        assert!(accepted.len() <= 2 * CONNECTIONS, "{}", accepted.len());
    });
}

fn is_subset<T: PartialEq>(part: &[T], all: &[T]) -> bool {
    part.iter().all(|it| all.contains(it))
}

#[test]
fn datagrams() {
    on_both(|stack| async move {
        let (a, b) = udp_pair(&stack).await;
        // All datagrams together fit the receive buffer, because the receiver may be slow.
        let sender = tokio::spawn(async move {
            for number in 0..200u8 {
                with_drops!(a.send(&[number; 500])).expect("sent");
                tokio::task::yield_now().await;
            }
            a
        });
        for number in 0..200u8 {
            let mut buf = [0; 2000];
            assert_eq!(with_drops!(b.peek(&mut buf)).expect("a datagram"), 500);
            let (len, _) = with_drops!(b.recv_from(&mut buf)).expect("a datagram");
            assert_eq!((len, buf[0]), (500, number));
        }
        drop(sender.await.expect("no panic"));
        drop::<UdpSocket>(b);
    });
}

#[test]
fn datagrams_with_addresses_and_names() {
    on_both(|stack| async move {
        let (a, b) = udp_pair(&stack).await;
        let (from, to) = (a.local_addr().expect("bound"), b.local_addr().expect("bound"));
        let sender = tokio::spawn(async move {
            for number in 0..100u8 {
                with_drops!(a.send_to(&[number], to)).expect("sent");
                tokio::task::yield_now().await;
            }
            a
        });
        for number in 0..100u8 {
            let mut buf = [0; 10];
            let ready = with_drops!(b.ready(Interest::READABLE)).expect("a datagram");
            assert!(ready.is_readable(), "{ready:?}");
            assert_eq!(with_drops!(b.peek_sender()).expect("a datagram"), from);
            assert_eq!(with_drops!(b.peek_from(&mut buf)).expect("a datagram"), (1, from));
            assert_eq!(with_drops!(b.recv(&mut buf)).expect("a datagram"), 1);
            assert_eq!(buf[0], number);
        }
        drop(sender.await.expect("no panic"));
        let found = with_drops!(lookup_host_on(&stack, ("localhost", 80))).expect("known");
        assert!(found.count() > 0);
    });
}

#[test]
fn connects_that_end_while_they_wait() {
    on_both(|stack| async move {
        let listener = listener(&stack).await;
        let addr = listener.local_addr().expect("bound");
        for _ in 0..20 {
            let client = with_drops!(TcpStream::connect_on(&stack, addr)).expect("connected");
            // Connects that were dropped may be accepted before.
            let own = client.local_addr().expect("bound");
            while with_drops!(listener.accept()).expect("accepted").1 != own {}
        }
    });
}
