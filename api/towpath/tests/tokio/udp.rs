use std::future::poll_fn;
use std::io::ErrorKind;
use std::sync::Arc;

use tokio::io::{Interest, ReadBuf};
use towpath::tokio::UdpSocket;

use crate::{on_both, udp_pair};

#[test]
fn datagrams_reach_the_task_that_waits() {
    on_both(|stack| async move {
        let a = UdpSocket::bind_on(&stack, "127.0.0.1:0").await.expect("a port");
        let b = UdpSocket::bind_on(&stack, "127.0.0.1:0").await.expect("a port");
        let (from, to) = (a.local_addr().expect("bound"), b.local_addr().expect("bound"));
        let receiver = tokio::spawn(async move {
            let mut buf = [0; 16];
            let mut all = Vec::new();
            for _ in 0..100 {
                let (len, source) = b.recv_from(&mut buf).await.expect("a datagram");
                assert_eq!((len, source), (2, from));
                all.push(u16::from_be_bytes([buf[0], buf[1]]));
            }
            all
        });
        for number in 0..100u16 {
            a.send_to(&number.to_be_bytes(), to).await.expect("sent");
        }
        assert_eq!(receiver.await.expect("no panic"), (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn waits_for_room_to_send() {
    on_both(|stack| async move {
        let (a, b) = udp_pair(&stack).await;
        let datagram = [5; 60_000];
        // More than the send buffer holds, so that some sends have to wait.
        let sender = tokio::spawn(async move {
            for _ in 0..100 {
                assert_eq!(a.send(&datagram).await.expect("sent"), datagram.len());
            }
            a
        });
        // The receive buffer may drop datagrams, but not the first one.
        let mut buf = vec![0; 65_536];
        assert_eq!(b.recv(&mut buf).await.expect("a datagram"), datagram.len());
        let a = sender.await.expect("no panic");
        a.writable().await.expect("room");
    });
}

#[test]
fn peeking_leaves_the_datagram() {
    on_both(|stack| async move {
        let (a, b) = udp_pair(&stack).await;
        let from = a.local_addr().expect("bound");
        assert_eq!(b.try_peek(&mut [0]).expect_err("none").kind(), ErrorKind::WouldBlock);
        assert_eq!(b.try_recv(&mut [0]).expect_err("none").kind(), ErrorKind::WouldBlock);
        a.writable().await.expect("room");
        assert_eq!(a.try_send(b"datagram").expect("sent"), 8);
        assert_eq!(b.peek_sender().await.expect("a datagram"), from);
        let mut buf = [0; 4];
        assert_eq!(b.peek_from(&mut buf).await.expect("a datagram"), (4, from));
        assert_eq!(b.peek(&mut buf).await.expect("a datagram"), 4);
        assert!(b.ready(Interest::READABLE).await.expect("ready").is_readable());
        assert_eq!(b.recv(&mut buf).await.expect("a datagram"), 4);
        assert_eq!(&buf, b"data");
        assert_eq!(b.try_recv(&mut buf).expect_err("lost").kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn polls_fill_a_read_buf() {
    on_both(|stack| async move {
        let (a, b) = udp_pair(&stack).await;
        let (from, to) = (a.local_addr().expect("bound"), b.local_addr().expect("bound"));
        for text in [&b"one"[..], b"two"] {
            let n = poll_fn(|cx| a.poll_send_to(cx, text, to)).await.expect("sent");
            assert_eq!(n, text.len());
        }
        let mut memory = [std::mem::MaybeUninit::uninit(); 16];
        let mut buf = ReadBuf::uninit(&mut memory);
        poll_fn(|cx| b.poll_recv_ready(cx)).await.expect("ready");
        assert_eq!(poll_fn(|cx| b.poll_recv_from(cx, &mut buf)).await.expect("received"), from);
        assert_eq!(poll_fn(|cx| b.poll_peek_sender(cx)).await.expect("queued"), from);
        poll_fn(|cx| b.poll_recv(cx, &mut buf)).await.expect("received");
        assert_eq!(buf.filled(), b"onetwo");
    });
}

#[test]
fn tasks_share_a_socket() {
    on_both(|stack| async move {
        let (a, b) = udp_pair(&stack).await;
        let b = Arc::new(b);
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let b = Arc::clone(&b);
                tokio::spawn(async move { b.recv(&mut [0; 8]).await.expect("a datagram") })
            })
            .collect();
        for len in 1..=4 {
            a.send(&[0; 8][..len]).await.expect("sent");
        }
        let mut lengths = Vec::new();
        for receiver in receivers {
            lengths.push(receiver.await.expect("no panic"));
        }
        lengths.sort_unstable();
        assert_eq!(lengths, [1, 2, 3, 4]);
    });
}

#[test]
fn a_refused_datagram_is_an_error_of_the_next_call() {
    on_both(|stack| async move {
        let (a, b) = udp_pair(&stack).await;
        drop(b);
        a.send(b"x").await.expect("sent");
        let error = a.recv(&mut [0]).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}
