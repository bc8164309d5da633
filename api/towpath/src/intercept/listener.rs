//! The listener for intercepted TCP connections, and connections whose SYN is not yet answered.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use towpath_direct::PendingSyn;
use towpath_stack::{ReceivedFields, Refusal};

use super::handle::{InterceptHandle, wait};
use super::stream::TcpStream;
use super::wakers::{TASK, WaitId};

/// Returns intercepted TCP connections, to any address and port.
///
/// Dropping the listener resets connections that it has not yet returned, and all later ones.
#[derive(Debug)]
pub struct TcpListener {
    handle: InterceptHandle,
}

impl TcpListener {
    pub(super) fn new(handle: InterceptHandle) -> Self {
        Self { handle }
    }

    /// Returns the next connection, whose SYN has no answer yet. Several tasks may wait.
    ///
    /// # Cancel safety
    /// No connection is lost if the future is dropped.
    ///
    /// # Errors
    /// `NetworkDown` if the runner has ended.
    pub async fn accept(&self) -> io::Result<IncomingConnection> {
        let poll = |id, cx: &mut Context<'_>| self.poll_accept_as(id, cx);
        wait(&self.handle, |core| &mut core.syns.acceptors, poll).await
    }

    /// Polls for the next connection, like [`Self::accept`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<IncomingConnection>> {
        self.poll_accept_as(TASK, cx)
    }

    fn poll_accept_as(&self, id: WaitId, cx: &Context<'_>) -> Poll<io::Result<IncomingConnection>> {
        let accepted = self.handle.with(|core| core.poll_accept(id, cx));
        accepted.map_ok(|(syn, fields)| IncomingConnection {
            handle: self.handle.clone(),
            syn,
            fields,
            is_decided: false,
        })
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.handle.with(|core| core.stop_listening());
    }
}

/// An incoming connection whose SYN is not yet answered.
///
/// The client retransmits the SYN while it waits for the answer; Linux does so for about two
/// minutes. Dropping this value resets the connection, so that the client does not wait in vain.
#[derive(Debug)]
pub struct IncomingConnection {
    handle: InterceptHandle,
    syn: PendingSyn,
    fields: ReceivedFields,
    is_decided: bool,
}

impl IncomingConnection {
    /// Returns the address of the client.
    pub fn source(&self) -> SocketAddr {
        self.syn.remote
    }

    /// Returns the address to which the client connects.
    pub fn destination(&self) -> SocketAddr {
        self.syn.local
    }

    /// Returns the TTL, or hop limit, of the SYN.
    pub fn ttl(&self) -> u8 {
        self.fields.ttl
    }

    /// Returns the type of service, or traffic class, of the SYN, with the ECN bits.
    pub fn traffic_class(&self) -> u8 {
        self.fields.tos
    }

    /// Answers the SYN, and waits until the handshake is complete.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    /// - `TimedOut`: the client gave up before the call.
    /// - `OutOfMemory`: [`InterceptLimits::memory`](super::InterceptLimits::memory) or
    ///   `memory_per_source` is exhausted. The SYN is ignored, and reported again if the client
    ///   retransmits it.
    /// - `NetworkDown`: the runner has ended.
    /// - `ConnectionReset` and other kinds: the client does not complete the handshake.
    pub async fn accept(mut self) -> io::Result<TcpStream> {
        self.is_decided = true;
        let syn = self.syn;
        let socket = self.handle.with(|core| core.accept(&syn))?;
        let stream = TcpStream::new(self.handle.clone(), socket, &syn, self.fields);
        poll_fn(|cx| self.handle.with(|core| core.poll_connected(socket, cx))).await?;
        Ok(stream)
    }

    /// Refuses the connection by a reset or an ICMP error, so that the client's connect fails at
    /// once. The number of ICMP errors per second is limited. Beyond the limit the client gets no
    /// answer, and its retransmitted SYN is reported again.
    pub fn refuse(mut self, refusal: Refusal) {
        self.decide(refusal);
    }

    /// Ignores the SYN. If the client retransmits it, it is reported again.
    pub fn ignore(mut self) {
        self.decide(Refusal::Ignore);
    }

    fn decide(&mut self, refusal: Refusal) {
        if !std::mem::replace(&mut self.is_decided, true) {
            let syn = self.syn.id;
            self.handle.with(|core| core.refuse(syn, refusal));
        }
    }
}

impl Drop for IncomingConnection {
    fn drop(&mut self) {
        self.decide(Refusal::Reset);
    }
}
