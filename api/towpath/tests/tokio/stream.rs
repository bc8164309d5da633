use std::cell::Cell;
use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::pin::pin;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, copy, copy_bidirectional};
use tokio::task::yield_now;
use towpath::Stack;
use towpath::tokio::{TcpListener, TcpStream};

use crate::{connection, current_thread, listener, on_both, pattern, stack};

/// Echoes each connection in a task of its own.
async fn serve(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut reader, mut writer) = stream.split();
            // A client that resets the connection ends the copy.
            let _ = copy(&mut reader, &mut writer).await;
            let _ = writer.shutdown().await;
        });
    }
}

#[test]
fn echoes_on_many_connections_at_once() {
    const CONNECTIONS: usize = 50;
    on_both(|stack| async move {
        let listener = listener(&stack).await;
        let addr = listener.local_addr().expect("bound");
        let server = tokio::spawn(serve(listener));
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                let stack = stack.clone();
                tokio::spawn(async move {
                    let stream = TcpStream::connect_on(&stack, addr).await.expect("connected");
                    // Some send more than both buffers hold.
                    let sent = pattern(if number < 3 { 8 << 20 } else { number * 500 });
                    let (mut reader, mut writer) = stream.into_split();
                    let expected = sent.clone();
                    let write = tokio::spawn(async move {
                        writer.write_all(&sent).await.expect("written");
                        // Dropping the half shuts down writing.
                    });
                    let mut received = Vec::new();
                    reader.read_to_end(&mut received).await.expect("read");
                    write.await.expect("no panic");
                    assert!(received == expected, "connection {number}");
                })
            })
            .collect();
        for client in clients {
            client.await.expect("no panic");
        }
        server.abort();
    });
}

#[test]
fn copies_both_ways_through_a_proxy() {
    on_both(|stack| async move {
        let (mut client, mut inner) = connection(&stack).await;
        let (mut outer, mut server) = connection(&stack).await;
        let proxy = tokio::spawn(async move {
            copy_bidirectional(&mut inner, &mut outer).await.expect("copied")
        });
        let request = pattern(100_000);
        client.write_all(&request).await.expect("written");
        client.shutdown().await.expect("shut down");
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.expect("read");
        assert!(received == request);
        server.write_all(b"answer").await.expect("written");
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("read");
        assert_eq!(answer, "answer");
        assert_eq!(proxy.await.expect("no panic"), (100_000, 6));
    });
}

#[test]
fn peek_leaves_the_data() {
    on_both(|stack| async move {
        let (mut client, mut server) = connection(&stack).await;
        client.write_all(b"GET").await.expect("written");
        let mut buf = [0; 8];
        assert_eq!(server.peek(&mut buf).await.expect("data"), 3);
        assert_eq!(server.read(&mut buf).await.expect("data"), 3);
        assert_eq!(&buf[..3], b"GET");
        drop(client);
        assert_eq!(server.peek(&mut buf).await.expect("the end"), 0);
    });
}

#[test]
fn vectored_calls_use_all_buffers() {
    on_both(|stack| async move {
        let (mut client, server) = connection(&stack).await;
        let parts = [IoSlice::new(b"one "), IoSlice::new(b"two")];
        assert_eq!(client.write_vectored(&parts).await.expect("written"), 7);
        server.readable().await.expect("data");
        let (mut first, mut second) = ([0; 3], [0; 10]);
        let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(server.try_read_vectored(&mut bufs).expect("data"), 7);
        assert_eq!((&first, &second[..4]), (b"one", &b" two"[..]));
    });
}

#[test]
fn tries_fail_while_a_connection_is_not_ready() {
    on_both(|stack| async move {
        let (client, server) = connection(&stack).await;
        let error = server.try_read(&mut [0]).expect_err("no data");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let unused = server.try_io(Interest::READABLE, || Ok(()));
        assert_eq!(unused.expect_err("not readable").kind(), ErrorKind::WouldBlock);
        // Fill both buffers. The first write requests memory, so wait for it.
        let mut queued = 0;
        loop {
            client.writable().await.expect("room");
            match client.try_write(&[7; 1 << 16]) {
                Ok(n) => queued += n,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
            if queued > 64 << 20 {
                panic!("the send buffer has no limit");
            }
            let mask = client.try_io(Interest::WRITABLE, || Ok(()));
            if mask.is_err() {
                break;
            }
        }
        let ready = server.ready(Interest::READABLE | Interest::WRITABLE).await.expect("ready");
        assert!(ready.is_readable() && !ready.is_read_closed(), "{ready:?}");
        let reader = tokio::spawn(async move {
            let mut buf = vec![0; 1 << 16];
            let mut received = 0;
            while received < queued {
                let n = server.async_io(Interest::READABLE, || server.try_read(&mut buf)).await;
                received += n.expect("data");
            }
            server
        });
        client.writable().await.expect("room again");
        assert!(client.try_write(b"x").is_ok());
        drop(client);
        let server = reader.await.expect("no panic");
        let ready = server.ready(Interest::READABLE).await.expect("ready");
        assert!(ready.is_readable(), "{ready:?}");
    });
}

/// Otherwise a task whose attempts block for another reason than the socket would never sleep.
#[test]
fn a_blocked_attempt_waits_for_the_next_event() {
    on_both(|stack| async move {
        let (mut client, server) = connection(&stack).await;
        client.write_all(b"a").await.expect("written");
        server.readable().await.expect("data");
        let (attempts, is_blocked) = (Cell::new(0), Cell::new(true));
        let attempt = || {
            attempts.set(attempts.get() + 1);
            if is_blocked.get() {
                return Err(ErrorKind::WouldBlock.into());
            }
            server.try_read(&mut [0; 2])
        };
        let mut io = pin!(server.async_io(Interest::READABLE, attempt));
        assert!(poll_fn(|cx| Poll::Ready(io.as_mut().poll(cx).is_pending())).await);
        assert!(attempts.get() <= 2, "{} attempts", attempts.get());
        let write = async {
            is_blocked.set(false);
            client.write_all(b"b").await.expect("written");
        };
        let (read, ()) = tokio::join!(io, write);
        assert!(read.expect("data") > 0);
    });
}

#[test]
fn a_task_that_never_waits_lets_others_run() {
    const BYTES: usize = 20_000;
    current_thread().block_on(async {
        let stack = stack();
        let (mut client, mut server) = connection(&stack).await;
        client.write_all(&[1; BYTES]).await.expect("written");
        // All data has arrived, so that no read has to wait.
        let mut buf = vec![0; BYTES];
        while server.peek(&mut buf).await.expect("data") < BYTES {
            yield_now().await;
        }
        let ran = std::rc::Rc::new(std::cell::Cell::new(0));
        let counts = std::rc::Rc::clone(&ran);
        tokio::task::LocalSet::new()
            .run_until(async {
                tokio::task::spawn_local(async move {
                    loop {
                        counts.set(counts.get() + 1);
                        yield_now().await;
                    }
                });
                for _ in 0..BYTES {
                    server.read_u8().await.expect("data");
                }
            })
            .await;
        assert!(ran.get() > BYTES / 1000, "the reader kept the thread: {}", ran.get());
    });
}

#[test]
fn halves_of_one_stream_reunite() {
    on_both(|stack| async move {
        let (a, b) = connection(&stack).await;
        let (local, peer) = (a.local_addr().expect("bound"), a.peer_addr().expect("connected"));
        let ((a_read, a_write), (b_read, b_write)) = (a.into_split(), b.into_split());
        assert_eq!(b_read.local_addr().expect("bound"), peer);
        let error = a_read.reunite(b_write).expect_err("of two streams");
        let (a_read, b_write) = (error.0, error.1);
        let mut a = a_write.reunite(a_read).expect("of one stream");
        assert_eq!(a.local_addr().expect("bound"), local);
        let mut b = b_read.reunite(b_write).expect("of one stream");
        // Reuniting has not shut down writing.
        a.write_all(b"x").await.expect("written");
        assert_eq!(b.read_u8().await.expect("data"), b'x');
        let (mut b_read, b_write) = b.into_split();
        b_write.forget();
        a.write_all(b"y").await.expect("written");
        assert_eq!(b_read.read_u8().await.expect("data"), b'y');
    });
}

#[test]
fn a_reset_ends_reads_and_writes() {
    on_both(|stack| async move {
        let (mut client, server) = connection(&stack).await;
        server.set_zero_linger().expect("the engine runs");
        drop(server);
        let error = client.read(&mut [0]).await.expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let error = client.write_all(b"x").await.expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn moves_between_std_and_tokio() {
    on_both(|stack: Stack| async move {
        let listener = stack.listen("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound");
        let listener = TcpListener::from_std(listener).expect("a runtime");
        let client = stack.connect(addr).expect("connected");
        let mut client = TcpStream::try_from(client).expect("a runtime");
        let (server, from) = listener.accept().await.expect("accepted");
        assert_eq!(from, client.local_addr().expect("bound"));
        let server = server.into_std().expect("a socket");
        server.set_nonblocking(false).expect("the engine runs");
        std::io::Write::write_all(&mut &server, b"std").expect("written");
        let mut text = [0; 3];
        client.read_exact(&mut text).await.expect("data");
        assert_eq!(&text, b"std");
        listener.into_std().expect("a socket").local_addr().expect("still bound");
    });
}
