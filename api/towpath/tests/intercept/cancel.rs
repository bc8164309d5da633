//! Futures that are dropped while they wait lose nothing.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use towpath::intercept::EchoPolicy;
use towpath_stack::SocketOption;

use crate::client::ADDR;
use crate::{on_both, pair, pattern};

const SERVER: ([u8; 4], u16) = ([192, 0, 2, 7], 80);

/// Polls a future once, and drops it. Returns nothing if it has to wait.
async fn polled_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn connections_datagrams_and_pings() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder.echo(EchoPolicy::Deliver));
        let echo = parts.echo.as_ref().expect("a socket");
        let mut buf = [0; 100];
        assert!(polled_once(parts.tcp.accept()).await.is_none());
        assert!(polled_once(parts.udp.recv(&mut buf)).await.is_none());
        assert!(polled_once(parts.udp.recv_error()).await.is_none());
        assert!(polled_once(echo.recv(&mut buf)).await.is_none());
        client.node.connect(SERVER.into()).unwrap();
        let socket = client.node.udp((ADDR, 4000).into()).unwrap();
        client.node.send_to(socket, SERVER.into(), b"query").unwrap();
        let pinger = client.node.echo((ADDR, 0).into()).unwrap();
        client.node.ping(pinger, SERVER.0.into(), 5, b"data").unwrap();
        client.until(|_| Some(())).await;
        assert_eq!(parts.tcp.accept().await.unwrap().destination(), SERVER.into());
        assert_eq!(parts.udp.recv(&mut buf).await.unwrap().0, 5);
        assert_eq!(echo.recv(&mut buf).await.unwrap().1.seq(), 5);
    });
}

#[test]
fn reads_and_writes() {
    on_both(|| async {
        let (mut client, parts) = pair(|builder| builder);
        let (socket, mut stream) = client.connected(&parts.tcp, SERVER.into()).await;
        // Only `client` calls run the client, so it must not delay a byte until an acknowledgment.
        client.node.set_option(socket, SocketOption::NoDelay(true)).unwrap();
        for byte in b"bytes" {
            assert!(polled_once(stream.read_u8()).await.is_none());
            client.send_all(socket, &[*byte]).await;
            assert_eq!(stream.read_u8().await.unwrap(), *byte);
        }
        // The client reads nothing meanwhile, so a write has to wait before all is written.
        let bytes = pattern(16 << 20);
        let mut sent = 0;
        while let Some(len) = polled_once(stream.write(&bytes[sent..])).await {
            sent += len.unwrap();
            assert!(sent < bytes.len(), "the send buffer has no limit");
        }
        stream.shutdown().await.unwrap();
        assert!(client.recv_exact(socket, sent).await == bytes[..sent]);
    });
}
