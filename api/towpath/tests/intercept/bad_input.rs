//! Malformed packets, sources that end, and programs that never poll.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use towpath::intercept::{InterceptLimits, Intercepted, Interceptor};
use towpath_direct::NodeEvent;

use crate::client::Client;
use crate::{on_both, pair};

const SERVER: ([u8; 4], u16) = ([192, 0, 2, 7], 80);

#[test]
fn malformed_packets_are_dropped_and_counted() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let mut packets = vec![Bytes::new(), Bytes::from_static(&[0; 40]), vec![0x45; 20].into()];
        packets.push(vec![0x60; 40].into());
        // A header that claims a longer packet.
        let mut long = [0; 60];
        (long[0], long[2], long[3]) = (0x45, 0x40, 0);
        packets.push(Bytes::copy_from_slice(&long));
        packets.push(vec![0x45; 65_535].into());
        packets.push(vec![0x45; 100_000].into());
        let count = packets.len() as u64 - 1;
        for packet in packets {
            client.to.send(packet).await.unwrap();
        }
        client
            .until(|_| (parts.interceptor.counters().packets_dropped >= count).then_some(()))
            .await;
        let (_, _stream) = client.connected(&parts.tcp, SERVER.into()).await;
    });
}

#[test]
fn a_closed_channel_ends_the_runner_and_all_calls() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let (_, mut stream) = client.connected(&parts.tcp, SERVER.into()).await;
        let reader = tokio::spawn(async move {
            let read = stream.read_u8().await;
            (read, stream)
        });
        let udp = parts.udp.clone();
        let receiver = tokio::spawn(async move { udp.recv(&mut [0; 10]).await });
        tokio::task::yield_now().await;
        drop(client);
        assert!(parts.runner.await.unwrap().is_ok());
        let (read, mut stream) = reader.await.unwrap();
        assert_eq!(read.unwrap_err().kind(), ErrorKind::NetworkDown);
        assert_eq!(receiver.await.unwrap().unwrap_err().kind(), ErrorKind::NetworkDown);
        assert_eq!(stream.write_u8(1).await.unwrap_err().kind(), ErrorKind::NetworkDown);
        assert_eq!(parts.tcp.accept().await.unwrap_err().kind(), ErrorKind::NetworkDown);
        assert_eq!(parts.interceptor.counters().accepted, 1);
    });
}

#[test]
fn the_runner_ends_after_the_last_part_and_connection() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let (socket, mut stream) = client.connected(&parts.tcp, SERVER.into()).await;
        stream.write_all(b"the last bytes").await.unwrap();
        let crate::Spawned { runner, tcp, udp, echo, interceptor } = parts;
        drop((tcp, udp, echo, interceptor, stream));
        client.event(NodeEvent::PeerClosed(socket)).await;
        assert_eq!(client.recv_exact(socket, 14).await, b"the last bytes");
        assert!(!runner.is_finished());
        client.node.close(socket);
        client.until(|_| runner.is_finished().then_some(())).await;
        assert!(runner.await.unwrap().is_ok());
    });
}

#[test]
fn a_dropped_runner_ends_all_calls() {
    on_both(|| async {
        let (_client, receiver, sender) = Client::new();
        let builder = Interceptor::builder().channels(receiver, sender);
        let Intercepted { runner, tcp, udp, .. } = builder.build().unwrap();
        let accept = tokio::spawn(async move { tcp.accept().await.map(drop) });
        tokio::task::yield_now().await;
        drop(runner);
        assert_eq!(accept.await.unwrap().unwrap_err().kind(), ErrorKind::NetworkDown);
        assert_eq!(udp.recv(&mut [0]).await.unwrap_err().kind(), ErrorKind::NetworkDown);
    });
}

#[test]
fn a_dropped_runner_drops_its_source() {
    on_both(|| async {
        let (mut client, receiver, sender) = Client::new();
        let builder = Interceptor::builder().channels(receiver, sender);
        let Intercepted { runner, udp, interceptor, .. } = builder.build().unwrap();
        drop(runner);
        assert_eq!(client.from.recv().await, None);
        assert!(client.to.is_closed());
        drop((udp, interceptor));
    });
}

#[test]
fn a_dropped_listener_resets_connections() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let undecided = client.node.connect(SERVER.into()).unwrap();
        client.until(|_| (parts.interceptor.counters().undecided == 1).then_some(())).await;
        drop(parts.tcp);
        let refused = towpath_stack::SocketError::Refused;
        client.event(NodeEvent::Failed(undecided, refused)).await;
        let later = client.node.connect(SERVER.into()).unwrap();
        client.event(NodeEvent::Failed(later, refused)).await;
    });
}

/// A stream that is never read takes a window of bytes, and the sender then waits.
#[test]
fn an_unread_stream_is_bounded() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let (socket, stream) = client.connected(&parts.tcp, SERVER.into()).await;
        let mut sent = 0;
        let mut quiet = 0;
        client
            .until(|client| {
                let n = client.node.send(socket, &[7; 65_536]).unwrap_or(0);
                sent += n;
                quiet = if n == 0 { quiet + 1 } else { 0 };
                (quiet > 200).then_some(())
            })
            .await;
        assert!(sent < 8 << 20, "{sent}");
        assert!(parts.interceptor.counters().memory_reserved <= 8 << 20);
        drop(stream);
    });
}

struct NoTask;

impl Wake for NoTask {
    fn wake(self: Arc<Self>) {}
}

/// Otherwise each task that gives up waiting for a rare event would stay in memory.
#[test]
fn dropped_waits_leave_no_waker() {
    on_both(|| async {
        let (_client, parts) = pair(|builder| builder);
        let task = Arc::new(NoTask);
        let waker = Waker::from(Arc::clone(&task));
        let mut cx = Context::from_waker(&waker);
        let mut buf = [0; 10];
        assert!(pin!(parts.tcp.accept()).poll(&mut cx).is_pending());
        assert!(pin!(parts.udp.recv(&mut buf)).poll(&mut cx).is_pending());
        assert!(pin!(parts.udp.recv_error()).poll(&mut cx).is_pending());
        drop(waker);
        assert_eq!(Arc::strong_count(&task), 1);
    });
}

#[test]
fn an_evicted_syn_cannot_be_accepted() {
    on_both(|| async {
        let limits = InterceptLimits { undecided: 1, ..InterceptLimits::default() };
        let (mut client, parts) = pair(|builder| builder.limits(limits));
        client.node.connect(SERVER.into()).unwrap();
        client.until(|_| Some(())).await;
        let incoming = parts.tcp.accept().await.unwrap();
        client.node.connect(SERVER.into()).unwrap();
        client.until(|_| (parts.interceptor.counters().forgotten == 1).then_some(())).await;
        let error = incoming.accept().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn invalid_options_are_refused() {
    let (_client, receiver, sender) = Client::new();
    let error = Interceptor::builder().build().unwrap_err();
    assert!(error.to_string().contains("tun()"), "{error}");
    let builder = Interceptor::builder().channels(receiver, sender);
    let error = builder.mtu(100).build().unwrap_err();
    assert!(error.to_string().contains("mtu(100)"), "{error}");
    let error = Interceptor::builder().tun("tw0").route([10, 0, 0, 0].into(), 33).build();
    assert!(error.unwrap_err().to_string().contains("route(10.0.0.0, 33)"));
    let error = Interceptor::builder().tun("tw0").own([10, 0, 0, 0].into(), 24).build();
    assert!(error.unwrap_err().to_string().starts_with("own: "));
}
