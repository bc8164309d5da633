//! Datagrams from any address to any address.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use towpath_stack::net::Unreachable;
use towpath_stack::{DatagramFrom, DatagramMeta, Refusal};

use super::handle::{InterceptHandle, wait};
use super::wakers::{TASK, WaitId};

/// Receives and sends all datagrams of the intercepted traffic.
///
/// Clones share one queue, and may be used in several tasks. Dropping the last clone drops the
/// queued datagrams, and all that arrive later.
#[derive(Debug)]
pub struct UdpSocket {
    handle: InterceptHandle,
    /// Datagrams for all clones. Lock this before the interceptor.
    taken: Arc<Mutex<TakenDatagrams>>,
}

/// Datagrams taken from the queue of the interceptor. Several are taken at once, because each lock
/// of the interceptor may wait for a turn of the stack.
#[derive(Debug, Default)]
struct TakenDatagrams {
    unread: VecDeque<(DatagramMeta, Vec<u8>)>,
    /// Buffers of read datagrams, which the stack uses again.
    spent: Vec<Vec<u8>>,
}

/// Addresses and header fields of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpFlow {
    /// Address of the sender.
    pub source: SocketAddr,
    /// Address of the receiver.
    pub destination: SocketAddr,
    /// TTL, or hop limit. `None` for the default of the stack when sending.
    pub ttl: Option<u8>,
    /// Type of service, or traffic class, with the ECN bits.
    pub traffic_class: u8,
}

/// ICMP error about a datagram that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndeliveredDatagram {
    /// Source address of the datagram.
    pub source: SocketAddr,
    /// Destination address of the datagram.
    pub destination: SocketAddr,
    /// Address of the host or router that sent the ICMP message.
    pub from: std::net::IpAddr,
    /// Type and code of the ICMP message, or of the ICMPv6 message if the addresses are IPv6.
    pub message: (u8, u8),
    /// MTU in bytes of the link for which the datagram was too long, if that was the error.
    pub mtu: Option<u32>,
    /// Beginning of the datagram's payload, as far as the ICMP message quotes it.
    pub payload: Vec<u8>,
}

impl UdpFlow {
    /// Creates the addresses of a datagram to be sent, with the default TTL and traffic class.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        Self { source, destination, ttl: None, traffic_class: 0 }
    }

    /// Returns the addresses for a reply: source and destination exchanged.
    #[must_use]
    pub fn reply(&self) -> Self {
        Self::new(self.destination, self.source)
    }
}

impl UdpSocket {
    pub(super) fn new(handle: InterceptHandle) -> Self {
        Self::sharing(handle, Arc::default())
    }

    fn sharing(handle: InterceptHandle, taken: Arc<Mutex<TakenDatagrams>>) -> Self {
        handle.with(|core| core.datagrams.sockets += 1);
        Self { handle, taken }
    }

    /// Receives a datagram. Bytes that do not fit into `buf` are lost; 65,535 bytes are enough for
    /// every datagram.
    ///
    /// # Cancel safety
    /// No datagram is lost if the future is dropped.
    ///
    /// # Errors
    /// `NetworkDown` if the runner has ended.
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, UdpFlow)> {
        let poll = |id, cx: &mut Context<'_>| self.poll_recv_as(id, cx, buf);
        wait(&self.handle, |core| &mut core.datagrams.receivers, poll).await
    }

    /// Polls for a datagram, like [`Self::recv`].
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<(usize, UdpFlow)>> {
        self.poll_recv_as(TASK, cx, buf)
    }

    fn poll_recv_as(
        &self,
        id: WaitId,
        cx: &Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<(usize, UdpFlow)>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let TakenDatagrams { unread, spent } = &mut *taken;
        let (meta, bytes) = match unread.pop_front() {
            Some(datagram) => datagram,
            None => ready!(self.handle.with(|core| {
                core.check()?;
                spent.drain(..).for_each(|bytes| core.node.recycle(bytes));
                let Some(datagram) = core.datagrams.pop() else {
                    core.unused.extend(core.datagrams.receivers.register(id, cx));
                    return Poll::Pending;
                };
                core.datagrams.take(unread);
                Poll::Ready(io::Result::Ok(datagram))
            }))?,
        };
        let len = bytes.len().min(buf.len());
        buf[..len].copy_from_slice(&bytes[..len]);
        spent.push(bytes);
        let flow = UdpFlow {
            source: meta.remote,
            destination: meta.local,
            ttl: Some(meta.ttl),
            traffic_class: meta.tos,
        };
        Poll::Ready(Ok((len, flow)))
    }

    /// Sends a datagram from any source address, and waits while the output queue is full.
    ///
    /// # Cancel safety
    /// The datagram is not sent if the future is dropped before it is ready.
    ///
    /// # Errors
    /// - `InvalidInput`: the datagram is too long, the addresses are of different families, or the
    ///   destination port is 0. A client may have sent from port 0, so a reply to it may fail.
    /// - `NetworkUnreachable`, `PermissionDenied`: there is no route to the destination, or it is a
    ///   broadcast address.
    /// - `NetworkDown`: the runner has ended.
    pub async fn send(&self, payload: &[u8], flow: &UdpFlow) -> io::Result<()> {
        let poll = |id, cx: &mut Context<'_>| self.poll_send_as(id, cx, payload, flow);
        wait(&self.handle, |core| &mut core.datagrams.senders, poll).await
    }

    /// Polls for sending a datagram, like [`Self::send`].
    pub fn poll_send(
        &self,
        cx: &mut Context<'_>,
        payload: &[u8],
        flow: &UdpFlow,
    ) -> Poll<io::Result<()>> {
        self.poll_send_as(TASK, cx, payload, flow)
    }

    fn poll_send_as(
        &self,
        id: WaitId,
        cx: &Context<'_>,
        payload: &[u8],
        flow: &UdpFlow,
    ) -> Poll<io::Result<()>> {
        let from = DatagramFrom {
            local: flow.source,
            remote: flow.destination,
            ttl: flow.ttl,
            tos: flow.traffic_class,
        };
        self.handle.with(|core| core.poll_send(&from, payload, id, cx))
    }

    /// Refuses a received datagram, given by `payload` and `flow`, by sending an ICMP error to its
    /// sender. [`Refusal::Reset`] sends "port unreachable". The number of errors per second is
    /// limited.
    ///
    /// # Errors
    /// `NetworkDown` if the runner has ended.
    pub fn refuse(&self, payload: &[u8], flow: &UdpFlow, refusal: Refusal) -> io::Result<()> {
        let why = match refusal {
            Refusal::Reset => Unreachable::Port,
            Refusal::HostUnreachable => Unreachable::Host,
            Refusal::NetUnreachable => Unreachable::Net,
            Refusal::AdminProhibited => Unreachable::AdminProhibited,
            Refusal::Ignore => return Ok(()),
        };
        let answer = DatagramFrom {
            local: flow.destination,
            remote: flow.source,
            ttl: flow.ttl,
            tos: flow.traffic_class,
        };
        self.handle.with(|core| core.refuse_datagram(&answer, payload, why))
    }

    /// Receives an ICMP error about a datagram that was sent recently.
    ///
    /// # Cancel safety
    /// No error is lost if the future is dropped.
    ///
    /// # Errors
    /// `NetworkDown` if the runner has ended.
    pub async fn recv_error(&self) -> io::Result<UndeliveredDatagram> {
        let poll = |id, cx: &mut Context<'_>| self.poll_recv_error_as(id, cx);
        wait(&self.handle, |core| &mut core.datagrams.error_readers, poll).await
    }

    /// Polls for an ICMP error, like [`Self::recv_error`].
    pub fn poll_recv_error(&self, cx: &mut Context<'_>) -> Poll<io::Result<UndeliveredDatagram>> {
        self.poll_recv_error_as(TASK, cx)
    }

    fn poll_recv_error_as(
        &self,
        id: WaitId,
        cx: &Context<'_>,
    ) -> Poll<io::Result<UndeliveredDatagram>> {
        self.handle.with(|core| {
            core.check()?;
            let Some(error) = core.datagrams.errors.pop() else {
                core.unused.extend(core.datagrams.error_readers.register(id, cx));
                return Poll::Pending;
            };
            Poll::Ready(Ok(UndeliveredDatagram {
                source: SocketAddr::new(error.src, error.src_port),
                destination: SocketAddr::new(error.dst, error.dst_port),
                from: error.from,
                message: error.message,
                mtu: error.too_big.filter(|mtu| *mtu > 0),
                payload: error.payload,
            }))
        })
    }
}

impl Clone for UdpSocket {
    fn clone(&self) -> Self {
        Self::sharing(self.handle.clone(), Arc::clone(&self.taken))
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.handle.with(|core| {
            core.datagrams.sockets -= 1;
            if core.datagrams.sockets == 0 {
                core.datagrams.clear();
            }
        });
    }
}
