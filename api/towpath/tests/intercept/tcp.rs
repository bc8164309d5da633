//! Connections: decisions about SYNs, bytes, half-close and resets.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use towpath::intercept::{InterceptLimits, Refusal};
use towpath_direct::{NodeEvent, ReadError};
use towpath_stack::SocketError;

use crate::client::ADDR;
use crate::{on_both, pair, pattern};

const SERVER: ([u8; 4], u16) = ([192, 0, 2, 7], 80);

#[test]
fn the_syn_is_answered_after_the_decision() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let socket = client.node.connect(SERVER.into()).unwrap();
        client.until(|_| Some(())).await;
        let incoming = parts.tcp.accept().await.unwrap();
        assert_eq!(incoming.destination(), SERVER.into());
        assert_eq!(incoming.source().ip(), std::net::IpAddr::from(ADDR));
        client.run_for(Duration::from_millis(50)).await;
        assert_eq!(client.events, [], "no answer yet");
        assert_eq!(parts.interceptor.counters().undecided, 1);
        let (_, stream) =
            tokio::join!(client.event(NodeEvent::Connected(socket)), incoming.accept());
        let stream = stream.unwrap();
        assert_eq!(stream.local_addr(), SERVER.into());
        let counters = parts.interceptor.counters();
        assert_eq!((counters.connections, counters.undecided, counters.accepted), (1, 0, 1));
    });
}

#[test]
fn a_refused_connection_fails_at_the_client() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let cases = [(Some(Refusal::Reset), SocketError::Refused), (None, SocketError::Refused)];
        for (refusal, error) in cases {
            let socket = client.node.connect(SERVER.into()).unwrap();
            client.until(|_| Some(())).await;
            let incoming = parts.tcp.accept().await.unwrap();
            match refusal {
                Some(refusal) => incoming.refuse(refusal),
                None => drop(incoming),
            }
            client.event(NodeEvent::Failed(socket, error)).await;
        }
        assert_eq!(parts.interceptor.counters().refused, 2);
    });
}

#[test]
fn an_ignored_syn_is_reported_again() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let socket = client.node.connect(SERVER.into()).unwrap();
        client.until(|_| Some(())).await;
        parts.tcp.accept().await.unwrap().ignore();
        let again = async { parts.tcp.accept().await.unwrap().accept().await.unwrap() };
        let (_, _stream) = tokio::join!(client.event(NodeEvent::Connected(socket)), again);
        assert_eq!(parts.interceptor.counters().ignored, 1);
    });
}

#[test]
fn bytes_pass_in_both_directions() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let (socket, mut stream) = client.connected(&parts.tcp, SERVER.into()).await;
        let sent = pattern(1 << 20);
        let echo = tokio::spawn(async move {
            let mut buf = vec![0; 1 << 16];
            loop {
                match stream.read(&mut buf).await.unwrap() {
                    0 => break stream.shutdown().await.unwrap(),
                    n => stream.write_all(&buf[..n]).await.unwrap(),
                }
            }
            // Keep the stream until the client has read the end.
            stream
        });
        let (mut at, mut received) = (0, Vec::new());
        client
            .until(|client| {
                at += client.node.send(socket, &sent[at..]).unwrap_or(0);
                let mut chunk = [0; 8192];
                if let Ok(n) = client.node.recv(socket, &mut chunk) {
                    received.extend_from_slice(&chunk[..n]);
                }
                (received.len() == sent.len()).then_some(())
            })
            .await;
        assert!(received == sent);
        client.node.shutdown(socket);
        let (_, stream) = tokio::join!(client.event(NodeEvent::PeerClosed(socket)), echo);
        drop(stream.unwrap());
        client.node.close(socket);
        client.event(NodeEvent::Closed(socket)).await;
        client.until(|_| (parts.interceptor.counters().connections == 0).then_some(())).await;
        assert_eq!(parts.interceptor.counters().memory_reserved, 0);
    });
}

#[test]
fn a_shutdown_ends_one_direction() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let (socket, mut stream) = client.connected(&parts.tcp, SERVER.into()).await;
        stream.write_all(b"the last").await.unwrap();
        stream.shutdown().await.unwrap();
        let error = stream.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        assert_eq!(client.recv_exact(socket, 8).await, b"the last");
        client.event(NodeEvent::PeerClosed(socket)).await;
        client.send_all(socket, b"an answer").await;
        let mut buf = [0; 9];
        stream.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"an answer");
    });
}

#[test]
fn resets_are_errors_at_both_ends() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let (socket, mut stream) = client.connected(&parts.tcp, SERVER.into()).await;
        client.send_all(socket, b"before").await;
        client.node.abort(socket);
        client.event(NodeEvent::Closed(socket)).await;
        let mut buf = Vec::new();
        let error = stream.read_to_end(&mut buf).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(buf, b"before");

        let (socket, stream) = client.connected(&parts.tcp, SERVER.into()).await;
        stream.reset();
        client.event(NodeEvent::Failed(socket, SocketError::Reset)).await;

        // Unread bytes make a drop a reset.
        let (socket, stream) = client.connected(&parts.tcp, SERVER.into()).await;
        client.send_all(socket, b"unread").await;
        client.run_for(Duration::from_millis(20)).await;
        drop(stream);
        client.event(NodeEvent::Failed(socket, SocketError::Reset)).await;
    });
}

#[test]
fn a_dropped_stream_sends_its_last_bytes() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let (socket, mut stream) = client.connected(&parts.tcp, SERVER.into()).await;
        let bytes = pattern(60_000);
        stream.write_all(&bytes).await.unwrap();
        drop(stream);
        assert!(client.recv_exact(socket, bytes.len()).await == bytes);
        client.event(NodeEvent::PeerClosed(socket)).await;
        assert_eq!(client.node.recv(socket, &mut [0; 1]), Ok(0));
    });
}

#[test]
fn ipv6_connections_are_intercepted() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let server: SocketAddr = "[2001:db8::7]:443".parse().unwrap();
        let socket = client.node.connect(server).unwrap();
        let accepted = async {
            let incoming = parts.tcp.accept().await.unwrap();
            assert_eq!(incoming.destination(), server);
            incoming.accept().await.unwrap()
        };
        let (_, mut stream) = tokio::join!(client.event(NodeEvent::Connected(socket)), accepted);
        stream.set_ttl(7).unwrap();
        stream.set_traffic_class(0x28).unwrap();
        stream.set_nodelay(false).unwrap();
        stream.write_all(b"over IPv6").await.unwrap();
        assert_eq!(client.recv_exact(socket, 9).await, b"over IPv6");
    });
}

#[test]
fn an_idle_connection_is_reset() {
    on_both(|| async {
        let idle = Duration::from_millis(300);
        let limits = InterceptLimits { idle, ..InterceptLimits::default() };
        let (mut client, parts) = pair(|builder| builder.limits(limits));
        let (socket, mut stream) = client.connected(&parts.tcp, SERVER.into()).await;
        let read = stream.read_u8();
        let failed = client.event(NodeEvent::Failed(socket, SocketError::Reset));
        let (error, ()) = tokio::join!(read, failed);
        assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(parts.interceptor.counters().idle_resets, 1);
        assert_eq!(client.node.recv(socket, &mut [0]), Err(ReadError::Failed(SocketError::Reset)));
    });
}
