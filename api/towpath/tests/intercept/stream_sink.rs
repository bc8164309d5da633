//! A stream and a sink as the source of packets.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender};
use towpath::intercept::{Intercepted, Interceptor};

use crate::client::Client;
use crate::{on_both, pattern};

struct PacketStream(Receiver<Bytes>);

impl Stream for PacketStream {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_recv(cx)
    }
}

/// Sink that keeps packets until it is flushed.
struct PacketSink {
    to: Sender<Bytes>,
    kept: VecDeque<Bytes>,
}

impl Sink<Bytes> for PacketSink {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.kept.len() < 4 { Poll::Ready(Ok(())) } else { self.poll_flush(cx) }
    }

    fn start_send(mut self: Pin<&mut Self>, packet: Bytes) -> io::Result<()> {
        self.kept.push_back(packet);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(packet) = self.kept.pop_front() {
            match self.to.try_send(packet) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
                Err(TrySendError::Full(packet)) => {
                    self.kept.push_front(packet);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

#[test]
fn bytes_pass_a_stream_and_a_sink_until_the_sink_fails() {
    on_both(|| async {
        let (mut client, receiver, sender) = Client::new();
        let sink = PacketSink { to: sender, kept: VecDeque::new() };
        let builder = Interceptor::builder().packets(PacketStream(receiver), sink);
        let Intercepted { runner, tcp, .. } = builder.build().unwrap();
        let runner = tokio::spawn(runner);
        let (socket, mut stream) = client.connected(&tcp, ([192, 0, 2, 7], 80).into()).await;
        let bytes = pattern(300_000);
        let sent = bytes.clone();
        let writer = tokio::spawn(async move {
            stream.write_all(&sent).await.unwrap();
            stream
        });
        assert!(client.recv_exact(socket, bytes.len()).await == bytes);
        let mut stream = writer.await.unwrap();
        // The stream stays open, so the error of the sink ends the runner.
        client.from.close();
        while client.from.try_recv().is_ok() {}
        stream.write_all(b"lost").await.unwrap();
        let error = runner.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(stream.read_u8().await.is_err());
    });
}
