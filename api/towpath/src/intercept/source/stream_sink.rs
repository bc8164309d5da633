//! A stream and a sink of IP packets as a link of the program.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;

use super::packets::PacketLink;

/// Link that receives packets from a stream, and sends packets to a sink.
pub(crate) struct StreamSinkLink<R, S> {
    stream: R,
    sink: S,
}

impl<R, S> StreamSinkLink<R, S> {
    pub(crate) fn new(stream: R, sink: S) -> Self {
        Self { stream, sink }
    }
}

impl<R, S> PacketLink for StreamSinkLink<R, S>
where
    R: Stream<Item = Bytes> + Send + Unpin,
    S: Sink<Bytes, Error: Into<io::Error>> + Send + Unpin,
{
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut Vec<Bytes>,
        max: usize,
    ) -> Poll<io::Result<bool>> {
        while to.len() < max {
            match Pin::new(&mut self.stream).poll_next(cx) {
                Poll::Ready(Some(packet)) => to.push(packet),
                Poll::Ready(None) => return Poll::Ready(Ok(false)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(true))
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        packets: &mut VecDeque<Bytes>,
    ) -> Poll<io::Result<bool>> {
        let mut sink = Pin::new(&mut self.sink);
        while !packets.is_empty() {
            match sink.as_mut().poll_ready(cx).map_err(Into::into)? {
                Poll::Ready(()) => {
                    if let Some(packet) = packets.pop_front() {
                        sink.as_mut().start_send(packet).map_err(Into::into)?;
                    }
                }
                // Flush a full sink, so that it can accept packets again.
                Poll::Pending => {
                    let _ = sink.as_mut().poll_flush(cx).map_err(Into::into)?;
                    return Poll::Pending;
                }
            }
        }
        sink.as_mut().poll_flush(cx).map_err(Into::into).map_ok(|()| true)
    }
}
