//! A pair of bounded channels as a source of packets.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender};

use super::packets::PacketLink;

type Reserving = Pin<Box<dyn Future<Output = Result<OwnedPermit<Bytes>, SendError<()>>> + Send>>;

/// Link over a pair of channels. The link ends when the program drops its ends of the channels.
pub(crate) struct MpscLink {
    receiver: Receiver<Bytes>,
    sender: Sender<Bytes>,
    /// Pending reservation of a place in the full channel to the program. Allocated each time the
    /// channel becomes full.
    reserving: Option<Reserving>,
}

impl MpscLink {
    pub(crate) fn new(receiver: Receiver<Bytes>, sender: Sender<Bytes>) -> Self {
        Self { receiver, sender, reserving: None }
    }
}

impl PacketLink for MpscLink {
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut Vec<Bytes>,
        max: usize,
    ) -> Poll<io::Result<bool>> {
        self.receiver.poll_recv_many(cx, to, max).map(|count| Ok(count > 0))
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        packets: &mut VecDeque<Bytes>,
    ) -> Poll<io::Result<bool>> {
        while let Some(packet) = packets.pop_front() {
            if let Some(reserving) = &mut self.reserving {
                let Poll::Ready(permit) = reserving.as_mut().poll(cx) else {
                    packets.push_front(packet);
                    return Poll::Pending;
                };
                self.reserving = None;
                let Ok(permit) = permit else { return Poll::Ready(Ok(false)) };
                permit.send(packet);
                continue;
            }
            match self.sender.try_send(packet) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => return Poll::Ready(Ok(false)),
                Err(TrySendError::Full(packet)) => {
                    packets.push_front(packet);
                    self.reserving = Some(Box::pin(self.sender.clone().reserve_owned()));
                }
            }
        }
        Poll::Ready(Ok(true))
    }
}
