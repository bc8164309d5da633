//! TCP connections of clients (RFC 7766).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use towpath_direct::{PrivateSockets, SocketHandle};
use towpath_nameserver::{DnsClient, DnsForwarder, ReplyPath, client_group};
use towpath_tcp::Instant;

use super::framing::MessageStream;

/// Maximum number of TCP connections of all clients. Connections that the router has closed count
/// until the client has closed them, too, because their sockets remain.
const CLIENTS_MAX: usize = 256;
/// Maximum number of TCP connections of all IPv6 addresses with the same first 64 bits. Hosts of a
/// link share these bits.
const PER_GROUP_MAX: usize = 128;
/// Maximum number of TCP connections of one client address.
const PER_CLIENT_MAX: usize = 16;
/// Time after which a connection without a query is closed. RFC 7766 §6.2.3 recommends a few
/// seconds.
const IDLE: Duration = Duration::from_secs(10);
/// Time after which a connection is closed although replies are outstanding or not read.
const STUCK: Duration = Duration::from_secs(60);
/// Maximum number of queries of a connection that are handled at once. Each may get a reply of
/// 64 KiB from the cache. Further queries are handled after the replies were sent.
const QUERIES_MAX: usize = 4;

/// A TCP connection of a client.
#[derive(Debug)]
struct StreamClient {
    /// Number by which the forwarder knows the connection, and which is not reused.
    number: u64,
    remote: SocketAddr,
    messages: MessageStream,
    /// Number of queries without a reply.
    outstanding: u32,
    /// Whether the client has closed its sending direction.
    has_ended: bool,
    /// Whether more queries may have been received than were handled.
    has_unread: bool,
    used_at: Instant,
}

/// TCP connections of clients.
#[derive(Debug, Default)]
pub struct StreamClients {
    clients: BTreeMap<SocketHandle, StreamClient>,
    by_number: BTreeMap<u64, SocketHandle>,
    /// Closed connections whose sockets remain, with the addresses of the clients.
    closing: BTreeMap<SocketHandle, SocketAddr>,
    last_number: u64,
}

impl StreamClients {
    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns whether a socket is the connection of a client.
    pub fn has(&self, socket: SocketHandle) -> bool {
        self.clients.contains_key(&socket)
    }

    /// Adds an accepted connection. If there are too many, resets it and returns false.
    pub fn add(&mut self, socket: SocketHandle, sockets: &mut dyn PrivateSockets) -> bool {
        let (_, Some(remote)) = sockets.ends(socket) else {
            sockets.abort(socket);
            return false;
        };
        let group = |remote: SocketAddr| -> IpAddr { client_group(remote.ip()) };
        let open = self.clients.values().map(|known| known.remote);
        let (mut own, mut near) = (0, 0);
        for known in open.chain(self.closing.values().copied()) {
            own += usize::from(known.ip() == remote.ip());
            near += usize::from(group(known) == group(remote));
        }
        let is_full = self.clients.len() + self.closing.len() >= CLIENTS_MAX;
        if is_full || own >= PER_CLIENT_MAX || near >= PER_GROUP_MAX {
            sockets.abort(socket);
            return false;
        }
        self.last_number += 1;
        let client = StreamClient {
            number: self.last_number,
            remote,
            messages: MessageStream::default(),
            outstanding: 0,
            has_ended: false,
            has_unread: false,
            used_at: sockets.now(),
        };
        self.by_number.insert(client.number, socket);
        self.clients.insert(socket, client);
        true
    }

    /// Passes queries of a connection to the forwarder, at most [`QUERIES_MAX`].
    pub fn read(
        &mut self,
        socket: SocketHandle,
        forwarder: &mut DnsForwarder,
        sockets: &mut dyn PrivateSockets,
    ) {
        let Some(client) = self.clients.get_mut(&socket) else { return };
        for _ in 0..QUERIES_MAX {
            let Some(message) = client.messages.next_message(socket, sockets) else {
                client.has_unread = false;
                return;
            };
            client.used_at = sockets.now();
            client.outstanding += 1;
            let path = ReplyPath::Stream(client.number);
            let sender = DnsClient { remote: client.remote, path };
            if !forwarder.on_query(client.used_at, sender, &message) {
                client.outstanding -= 1;
            }
        }
        client.has_unread = true;
    }

    /// Sends a reply on the connection with this number, if it is still open.
    pub fn reply(&mut self, number: u64, message: &[u8], sockets: &mut dyn PrivateSockets) {
        let Some(socket) = self.by_number.get(&number).copied() else { return };
        let Some(client) = self.clients.get_mut(&socket) else { return };
        client.outstanding = client.outstanding.saturating_sub(1);
        client.used_at = sockets.now();
        if client.messages.send(message, socket, sockets).is_err() {
            self.remove(socket);
            sockets.abort(socket);
            return;
        }
        self.close_if_done(socket, sockets);
    }

    /// Sends waiting replies of a connection.
    pub fn flush(&mut self, socket: SocketHandle, sockets: &mut dyn PrivateSockets) {
        let Some(client) = self.clients.get_mut(&socket) else { return };
        client.messages.flush(socket, sockets);
        self.close_if_done(socket, sockets);
    }

    /// Closes a connection after its last reply, because the client has sent its last query.
    pub fn end(&mut self, socket: SocketHandle, sockets: &mut dyn PrivateSockets) {
        if let Some(client) = self.clients.get_mut(&socket) {
            client.has_ended = true;
            self.close_if_done(socket, sockets);
        }
    }

    /// Removes a failed connection.
    pub fn abort(
        &mut self,
        socket: SocketHandle,
        forwarder: &mut DnsForwarder,
        sockets: &mut dyn PrivateSockets,
    ) {
        if let Some(client) = self.remove(socket) {
            forwarder.on_stream_closed(client.number);
            sockets.abort(socket);
        }
    }

    /// Forgets a closed connection, whose socket was removed.
    pub fn on_closed(&mut self, socket: SocketHandle) {
        self.closing.remove(&socket);
    }

    /// Reads further queries, and closes connections that were not used for a long time.
    pub fn on_timeout(&mut self, forwarder: &mut DnsForwarder, sockets: &mut dyn PrivateSockets) {
        let unread = self.clients.iter().filter(|(_, client)| client.has_unread);
        let unread: Vec<_> = unread.map(|(socket, _)| *socket).collect();
        for socket in unread {
            self.read(socket, forwarder, sockets);
            self.close_if_done(socket, sockets);
        }
        let now = sockets.now();
        let is_due = |client: &StreamClient| client.closes_at() <= now;
        let due = self.clients.iter().filter(|(_, client)| is_due(client));
        let due: Vec<_> = due.map(|(socket, _)| *socket).collect();
        for socket in due {
            let Some(client) = self.remove(socket) else { continue };
            forwarder.on_stream_closed(client.number);
            match client.is_idle() {
                true => self.close(socket, client.remote, sockets),
                false => sockets.abort(socket),
            }
        }
    }

    /// Returns the time at which [`Self::on_timeout`] must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let due = |client: &StreamClient| match client.has_unread {
            true => Instant::ZERO,
            false => client.closes_at(),
        };
        self.clients.values().map(due).min()
    }

    fn close_if_done(&mut self, socket: SocketHandle, sockets: &mut dyn PrivateSockets) {
        let is_done = |client: &StreamClient| client.has_ended && client.is_idle();
        if self.clients.get(&socket).is_some_and(is_done)
            && let Some(client) = self.remove(socket)
        {
            self.close(socket, client.remote, sockets);
        }
    }

    fn close(
        &mut self,
        socket: SocketHandle,
        remote: SocketAddr,
        sockets: &mut dyn PrivateSockets,
    ) {
        self.closing.insert(socket, remote);
        sockets.close(socket);
    }

    fn remove(&mut self, socket: SocketHandle) -> Option<StreamClient> {
        let client = self.clients.remove(&socket)?;
        self.by_number.remove(&client.number);
        Some(client)
    }
}

impl StreamClient {
    fn is_idle(&self) -> bool {
        self.outstanding == 0 && !self.has_unread && self.messages.is_flushed()
    }

    fn closes_at(&self) -> Instant {
        self.used_at + if self.is_idle() { IDLE } else { STUCK }
    }
}
