//! Several runtimes and threads.

use std::io::ErrorKind;
use std::sync::mpsc;
use std::thread;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use towpath::tokio::{TcpSocket, TcpStream};

use crate::{connection, current_thread, multi_thread, on_both, pattern, stack, udp_pair};

#[test]
fn a_socket_works_in_another_runtime_while_its_own_runs() {
    let (stack, own, other) = (stack(), multi_thread(), current_thread());
    let (mut client, mut server) = own.block_on(connection(&stack));
    let reader = thread::spawn(move || {
        other.block_on(async {
            let mut all = vec![0; 1 << 20];
            client.read_exact(&mut all).await.expect("data");
            client.write_u8(1).await.expect("written");
            all
        })
    });
    let sent = pattern(1 << 20);
    own.block_on(async {
        server.write_all(&sent).await.expect("written");
        server.read_u8().await.expect("an answer");
    });
    assert!(reader.join().expect("no panic") == sent);
}

#[test]
fn waits_end_with_the_runtime_of_the_socket() {
    let (stack, own, other) = (stack(), multi_thread(), current_thread());
    let (client, server) = own.block_on(connection(&stack));
    let (tell, told) = mpsc::channel();
    let waits = thread::spawn(move || {
        other.block_on(async {
            let mut buf = [0];
            let mut read = std::pin::pin!(client.peek(&mut buf));
            let mut is_first = true;
            std::future::poll_fn(|cx| {
                let polled = read.as_mut().poll(cx);
                if std::mem::take(&mut is_first) {
                    assert!(polled.is_pending());
                    tell.send(()).expect("the test waits");
                }
                polled
            })
            .await
        })
    });
    told.recv().expect("no panic");
    drop(own);
    let error = waits.join().expect("no panic").expect_err("the runtime has ended");
    assert_eq!(error.kind(), ErrorKind::Other, "{error}");
    assert!(error.to_string().contains("runtime"), "{error}");
    // The socket still works for calls that do not wait, and in no runtime.
    let end = loop {
        match server.try_read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            end => break end,
        }
    };
    assert_eq!(end.expect("the end of the data"), 0);
}

#[test]
fn runtimes_of_one_stack_are_independent() {
    let stack = stack();
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let stack = stack.clone();
            thread::spawn(move || {
                for _ in 0..5 {
                    let runtime = if number % 2 == 0 { current_thread() } else { multi_thread() };
                    runtime.block_on(async {
                        let (mut a, mut b) = connection(&stack).await;
                        for round in 0..50 {
                            a.write_u32(round).await.expect("written");
                            assert_eq!(b.read_u32().await.expect("data"), round);
                        }
                        let (a, b) = udp_pair(&stack).await;
                        a.send(b"x").await.expect("sent");
                        assert_eq!(b.recv(&mut [0; 8]).await.expect("a datagram"), 1);
                    });
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn several_stacks_share_a_runtime() {
    multi_thread().block_on(async {
        let stacks = [stack(), stack(), stack()];
        let mut connections = Vec::new();
        for stack in &stacks {
            connections.push(connection(stack).await);
        }
        for (number, (client, server)) in connections.iter_mut().enumerate() {
            client.write_u8(number as u8).await.expect("written");
            assert_eq!(server.read_u8().await.expect("data"), number as u8);
        }
    });
}

#[test]
fn a_stack_ends_after_its_last_socket() {
    let runtime = multi_thread();
    for _ in 0..3 {
        let stack = stack();
        let (mut client, mut server) = runtime.block_on(connection(&stack));
        drop(stack);
        runtime.block_on(async {
            client.write_all(b"last").await.expect("written");
            let mut text = [0; 4];
            server.read_exact(&mut text).await.expect("data");
            assert_eq!(&text, b"last");
        });
    }
}

#[test]
fn dropping_the_last_handle_does_not_stop_other_tasks() {
    current_thread().block_on(async {
        // Without the reader, the data is lost after this time.
        let linger = std::time::Duration::from_secs(10);
        let (there, here) = towpath::Stack::builder().linger(linger).pair().expect("two stacks");
        let socket = TcpSocket::new_v4_on(&there).expect("a socket");
        socket.set_recv_buffer_size(4096).expect("open");
        socket.bind("10.0.0.1:80".parse().expect("an address")).expect("a port");
        let listener = socket.listen(1).expect("listens");
        let mut client = TcpStream::connect_on(&here, "10.0.0.1:80").await.expect("connected");
        let (mut server, _) = listener.accept().await.expect("accepted");
        let sent = client.write(&[7; 100_000]).await.expect("written");
        assert!(sent > 10_000, "{sent} bytes fit into the receive buffer");
        drop((client, here));
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.expect("an end of the data, and no reset");
        assert_eq!(received.len(), sent);
    });
}

/// Each byte arrives while a task polls for events, or after it has stopped.
#[test]
fn no_event_is_lost_while_a_task_begins_to_wait() {
    on_both(|stack| async move {
        let (mut client, mut server) = connection(&stack).await;
        let echo = tokio::spawn(async move {
            while let Ok(byte) = server.read_u8().await {
                server.write_u8(byte).await.expect("written");
            }
        });
        for round in 0..5000_u16 {
            client.write_u8(round as u8).await.expect("written");
            assert_eq!(client.read_u8().await.expect("data"), round as u8);
            if round % 40 == 0 {
                // Longer than a thread polls.
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        }
        drop(client);
        echo.await.expect("no panic");
    });
}
