//! Sockets towards upstream servers, one for each message.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use towpath_direct::{DatagramOptions, PrivateSockets, SocketHandle};
use towpath_nameserver::{DnsExchange, DnsForwarder, Protocol};
use towpath_tcp::Instant;

use super::framing::MessageStream;

/// A socket towards an upstream server.
#[derive(Debug)]
struct UpstreamSocket {
    exchange: DnsExchange,
    /// Messages of a TCP connection; `None` for UDP.
    stream: Option<MessageStream>,
}

/// Sockets towards upstream servers.
#[derive(Debug, Default)]
pub struct UpstreamSockets {
    by_socket: BTreeMap<SocketHandle, UpstreamSocket>,
    by_exchange: BTreeMap<DnsExchange, SocketHandle>,
}

impl UpstreamSockets {
    /// Opens the socket of an exchange. A datagram socket is bound to `port`, or to another port if
    /// it is taken. Returns `None` if no socket can be opened.
    pub fn open(
        &mut self,
        exchange: DnsExchange,
        server: SocketAddr,
        protocol: Protocol,
        port: u16,
        sockets: &mut dyn PrivateSockets,
    ) -> Option<SocketHandle> {
        let unspecified: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let (socket, stream) = match protocol {
            Protocol::Udp => {
                let options = DatagramOptions { peer: Some(server), ..DatagramOptions::default() };
                let bound = sockets.udp_with(SocketAddr::new(unspecified, port), &options);
                let socket =
                    bound.or_else(|_| sockets.udp_with(SocketAddr::new(unspecified, 0), &options));
                (socket.ok()?, None)
            }
            Protocol::Tcp => (sockets.connect(server).ok()?, Some(MessageStream::default())),
        };
        self.by_socket.insert(socket, UpstreamSocket { exchange, stream });
        self.by_exchange.insert(exchange, socket);
        Some(socket)
    }

    /// Sends a message on a socket. A message over TCP is sent after the handshake. Returns `None`
    /// after an error.
    pub fn send(
        &mut self,
        socket: SocketHandle,
        server: SocketAddr,
        message: Vec<u8>,
        sockets: &mut dyn PrivateSockets,
    ) -> Option<()> {
        match &mut self.by_socket.get_mut(&socket)?.stream {
            Some(stream) => stream.send(&message, socket, sockets).ok(),
            None => sockets.send_to(socket, server, &message).ok(),
        }
    }

    /// Sends the message of a TCP connection, whose handshake has ended.
    pub fn flush(&mut self, socket: SocketHandle, sockets: &mut dyn PrivateSockets) {
        let known = self.by_socket.get_mut(&socket);
        if let Some(stream) = known.and_then(|known| known.stream.as_mut()) {
            stream.flush(socket, sockets);
        }
    }

    /// Passes received messages to the forwarder.
    pub fn read(
        &mut self,
        socket: SocketHandle,
        forwarder: &mut DnsForwarder,
        sockets: &mut dyn PrivateSockets,
    ) {
        let Some(UpstreamSocket { exchange, stream }) = self.by_socket.get_mut(&socket) else {
            return;
        };
        match stream {
            Some(stream) => {
                while let Some(message) = stream.next_message(socket, sockets) {
                    forwarder.on_answer(sockets.now(), *exchange, &message);
                }
            }
            None => {
                while let Some(datagram) = sockets.recv_from(socket) {
                    forwarder.on_answer(sockets.now(), *exchange, &datagram.bytes);
                    sockets.recycle(datagram.bytes);
                }
            }
        }
    }

    /// Notifies the forwarder that a socket has failed, or that the server has closed the
    /// connection.
    pub fn end(&mut self, socket: SocketHandle, forwarder: &mut DnsForwarder, now: Instant) {
        if let Some(known) = self.by_socket.get(&socket) {
            forwarder.on_failure(now, known.exchange);
        }
    }

    /// Closes the socket of an exchange.
    pub fn close(&mut self, exchange: DnsExchange, sockets: &mut dyn PrivateSockets) {
        if let Some(socket) = self.by_exchange.remove(&exchange) {
            self.by_socket.remove(&socket);
            sockets.abort(socket);
        }
    }
}
