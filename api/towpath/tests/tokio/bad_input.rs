//! Calls that must fail, or must not grow anything.

use std::future::Future;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use towpath::tokio::{TcpListener, TcpSocket, TcpStream, UdpSocket};

use crate::{connection, current_thread, listener, on_both, stack, udp_pair};

#[test]
fn without_a_stack_calls_say_what_to_do() {
    current_thread().block_on(async {
        let error = TcpStream::connect("127.0.0.1:80").await.expect_err("no stack");
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        assert!(error.to_string().contains("Stack::set_default"), "{error}");
        let error = TcpSocket::new_v4().expect_err("no stack");
        assert_eq!(error.kind(), ErrorKind::NotConnected);
    });
}

#[test]
fn outside_of_a_runtime_creating_a_socket_fails() {
    let stack = stack();
    let listener = stack.listen("127.0.0.1:80").expect("a port");
    let error = TcpListener::from_std(listener).expect_err("no runtime");
    assert!(error.to_string().contains("within a Tokio runtime"), "{error}");
    // The failed call has closed the listener.
    drop(stack.listen("127.0.0.1:80").expect("the port is free"));
}

#[test]
fn outside_of_a_runtime_names_are_not_resolved() {
    let stack = stack();
    let bind = pin!(TcpListener::bind_on(&stack, "localhost:80"));
    match bind.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(error)) => {
            assert!(error.to_string().contains("within a Tokio runtime"), "{error}");
        }
        _ => panic!("an error without waiting"),
    }
}

#[test]
fn a_runtime_without_io_is_refused() {
    let (stack, runtime) = (stack(), Builder::new_current_thread().build().expect("a runtime"));
    let bind = || runtime.block_on(UdpSocket::bind_on(&stack, "127.0.0.1:0"));
    let panic = catch_unwind(AssertUnwindSafe(bind)).expect_err("no I/O");
    let message = panic.downcast_ref::<&str>().map(ToString::to_string);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a text");
    assert!(message.contains("enable_io"), "{message}");
    // The stack is as before.
    current_thread().block_on(udp_pair(&stack));
}

#[test]
fn waits_end_with_the_stack() {
    on_both(|stack| async move {
        let (mut client, _server) = connection(&stack).await;
        let (_client, mut server) = connection(&stack).await;
        let listener = listener(&stack).await;
        let socket = UdpSocket::bind_on(&stack, "127.0.0.1:0").await.expect("a port");
        let waits = [
            tokio::spawn(async move { server.read(&mut [0]).await.map(drop) }),
            tokio::spawn(async move { listener.accept().await.map(drop) }),
            tokio::spawn(async move { socket.recv(&mut [0]).await.map(drop) }),
            tokio::spawn(async move {
                // Longer than both buffers.
                client.write_all(&vec![0; 64 << 20]).await
            }),
        ];
        tokio::task::yield_now().await;
        // The unread bytes cannot be delivered.
        let ended = stack.clone();
        let ending = tokio::task::spawn_blocking(move || ended.shutdown());
        for wait in waits {
            let error = wait.await.expect("no panic").expect_err("the stack has ended");
            assert_eq!(error.kind(), ErrorKind::NetworkDown, "{error}");
        }
        let _ = ending.await.expect("no panic");
        let errors = [
            TcpStream::connect_on(&stack, "127.0.0.1:80").await.map(drop),
            TcpListener::bind_on(&stack, "127.0.0.1:80").await.map(drop),
            UdpSocket::bind_on(&stack, "127.0.0.1:80").await.map(drop),
        ];
        for error in errors {
            assert_eq!(error.expect_err("no stack").kind(), ErrorKind::NetworkDown);
        }
    });
}

#[test]
fn wrong_addresses_are_errors_as_in_tokio() {
    on_both(|stack| async move {
        let listener = listener(&stack).await;
        let addr = listener.local_addr().expect("bound");
        let kind = async |addr: &str| {
            TcpStream::connect_on(&stack, addr).await.expect_err("no peer").kind()
        };
        assert_eq!(kind("127.0.0.1:1").await, ErrorKind::ConnectionRefused);
        assert_eq!(kind("192.0.2.1:1").await, ErrorKind::NetworkUnreachable);
        assert_eq!(kind("not an address").await, ErrorKind::InvalidInput);
        let kind = async |addr: &str| {
            TcpListener::bind_on(&stack, addr).await.expect_err("no address").kind()
        };
        assert_eq!(kind("192.0.2.1:1").await, ErrorKind::AddrNotAvailable);
        assert_eq!(kind(&addr.to_string()).await, ErrorKind::AddrInUse);
        // The first address that works is used.
        let addrs = ["127.0.0.1:1".parse().expect("an address"), addr];
        TcpStream::connect_on(&stack, &addrs[..]).await.expect("connected");
    });
}

/// A thread that polls nothing meanwhile stands for a program that never polls.
#[test]
fn events_that_no_task_takes_are_bounded_and_not_lost() {
    const CONNECTIONS: usize = 300;
    current_thread().block_on(async {
        let stack = stack();
        let listener = TcpSocket::new_v4_on(&stack).expect("a socket");
        listener.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let listener = listener.listen(CONNECTIONS as u32).expect("listens");
        let addr = listener.local_addr().expect("bound");
        let (a, b) = udp_pair(&stack).await;
        let waits = tokio::spawn(async move { b.recv(&mut [0; 100]).await.map(|_| b) });
        let accepts = tokio::spawn(async move {
            let (mut bytes, mut streams) = (0, Vec::new());
            while streams.len() < CONNECTIONS {
                streams.push(listener.accept().await.expect("accepted").0);
            }
            for stream in &mut streams {
                bytes += usize::from(stream.read_u8().await.expect("data"));
            }
            bytes
        });
        tokio::task::yield_now().await;
        // Blocking calls of the std-like sockets keep the thread of the runtime.
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let client = stack.connect(addr).expect("connected");
            std::io::Write::write_all(&mut &client, &[1]).expect("written");
            clients.push(client);
        }
        for _ in 0..5_000 {
            match a.try_send(&[0; 100]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
        waits.await.expect("no panic").expect("a datagram");
        assert_eq!(accepts.await.expect("no panic"), CONNECTIONS);
    });
}

#[test]
fn a_full_table_of_ports_is_an_error_until_a_socket_is_dropped() {
    current_thread().block_on(async {
        let (stack, mut sockets) = (stack(), Vec::new());
        let bind = || UdpSocket::bind_on(&stack, "127.0.0.1:0");
        let error = loop {
            match bind().await {
                Ok(socket) => sockets.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(sockets.len() > 10_000, "{}", sockets.len());
        let last = sockets.pop().map(|socket| socket.local_addr().expect("bound"));
        let next = bind().await.expect("a port");
        assert_eq!(Some(next.local_addr().expect("bound")), last);
    });
}

#[test]
fn an_empty_buffer_reads_nothing() {
    on_both(|stack| async move {
        let (mut client, mut server) = connection(&stack).await;
        assert_eq!(server.read(&mut []).await.expect("nothing"), 0);
        client.write_all(&[]).await.expect("nothing");
        client.write_all(b"x").await.expect("written");
        assert_eq!(server.read_u8().await.expect("data"), b'x');
    });
}
