//! Echo requests ("ping") to any address.

use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll, Waker};

use towpath_stack::EchoMeta;

use super::counters::InterceptCounters;
use super::handle::{InterceptHandle, wait};
use super::limits::InterceptLimits;
use super::messages::MessageQueue;
use super::wakers::{TASK, WaitId, Wakers};

/// How echo requests ("ping") are handled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EchoPolicy {
    /// The stack answers in the name of each destination, whether it exists or not.
    #[default]
    Answer,
    /// Requests are passed to the program by [`Intercepted::echo`](super::Intercepted::echo).
    Deliver,
    /// Requests are dropped without a reply.
    Ignore,
}

/// Receives echo requests, and sends replies in the name of their destinations. See
/// [`EchoPolicy::Deliver`].
#[derive(Debug)]
pub struct EchoSocket {
    handle: InterceptHandle,
}

/// Addresses and ids of a received echo request, needed by [`EchoSocket::reply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoFlow {
    meta: EchoMeta,
}

impl EchoFlow {
    /// Returns the address of the host that sent the request.
    pub fn source(&self) -> IpAddr {
        self.meta.remote
    }

    /// Returns the address to which the request was sent.
    pub fn destination(&self) -> IpAddr {
        self.meta.local
    }

    /// Returns the identifier of the echo request.
    pub fn ident(&self) -> u16 {
        self.meta.ident
    }

    /// Returns the sequence number of the echo request.
    pub fn seq(&self) -> u16 {
        self.meta.seq
    }

    /// Returns the received TTL, or for IPv6 the hop limit.
    pub fn ttl(&self) -> u8 {
        self.meta.ttl
    }
}

impl EchoSocket {
    pub(super) fn new(handle: InterceptHandle) -> Self {
        Self { handle }
    }

    /// Receives an echo request. Data that does not fit into `buf` is lost.
    ///
    /// # Cancel safety
    /// No request is lost if the future is dropped.
    ///
    /// # Errors
    /// `NetworkDown` if the runner has ended.
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, EchoFlow)> {
        let poll = |id, cx: &mut Context<'_>| self.poll_recv_as(id, cx, buf);
        wait(&self.handle, |core| &mut core.echoes.receivers, poll).await
    }

    /// Polls for an echo request, like [`Self::recv`].
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<(usize, EchoFlow)>> {
        self.poll_recv_as(TASK, cx, buf)
    }

    fn poll_recv_as(
        &self,
        id: WaitId,
        cx: &Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<(usize, EchoFlow)>> {
        self.handle.with(|core| {
            core.check()?;
            let Some((meta, data)) = core.echoes.queue.pop() else {
                core.unused.extend(core.echoes.receivers.register(id, cx));
                return Poll::Pending;
            };
            let len = data.len().min(buf.len());
            buf[..len].copy_from_slice(&data[..len]);
            Poll::Ready(Ok((len, EchoFlow { meta })))
        })
    }

    /// Sends the reply to an echo request, with `data`. The reply is dropped if the output queue is
    /// full.
    ///
    /// # Errors
    /// `InvalidInput` if the data is too long; `NetworkDown` if the runner has ended.
    pub fn reply(&self, request: &EchoFlow, data: &[u8]) -> io::Result<()> {
        self.handle.with(|core| core.send_echo_reply(&request.meta, data))
    }
}

impl Drop for EchoSocket {
    fn drop(&mut self) {
        self.handle.with(|core| core.echoes.stop());
    }
}

/// Queue of received echo requests, with the policy for them.
#[derive(Debug)]
pub(super) struct EchoQueue {
    policy: EchoPolicy,
    queue: MessageQueue<(EchoMeta, Vec<u8>)>,
    receivers: Wakers,
}

impl EchoQueue {
    pub(super) fn new(policy: EchoPolicy) -> Self {
        Self { policy, queue: MessageQueue::default(), receivers: Wakers::default() }
    }

    /// Handles a received echo request according to the policy: queues it, drops it, or returns it
    /// to be answered.
    pub(super) fn push(
        &mut self,
        meta: EchoMeta,
        data: Vec<u8>,
        limits: &InterceptLimits,
        counters: &mut InterceptCounters,
    ) -> Option<(EchoMeta, Vec<u8>)> {
        match self.policy {
            EchoPolicy::Answer => return Some((meta, data)),
            EchoPolicy::Ignore => counters.without_socket += 1,
            EchoPolicy::Deliver => self.queue.push(meta.remote, (meta, data), limits, counters),
        }
        None
    }

    pub(super) fn wake_readers(&mut self, due: &mut Vec<Waker>) {
        if !self.queue.is_empty() {
            self.receivers.wake(due);
        }
    }

    pub(super) fn wake_all(&mut self, due: &mut Vec<Waker>) {
        self.receivers.wake(due);
    }

    /// Drops the queued echo requests, and ignores all later ones.
    fn stop(&mut self) {
        self.policy = EchoPolicy::Ignore;
        self.queue = MessageQueue::default();
    }
}
