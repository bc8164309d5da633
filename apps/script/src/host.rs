//! Owner of the stack, which records the events of sockets for the system calls of the script.

use std::collections::VecDeque;
use std::net::SocketAddr;

use towpath_ring::{HeapRecv, HeapSend, Payload};
use towpath_stack::{DatagramMeta, Host, SocketError, SocketEvent, SocketId};

/// Sizes of a socket's buffers in bytes, corresponding to Linux's `tcp_rmem` and `tcp_wmem`.
#[derive(Debug, Clone, Copy)]
pub struct SocketSizes {
    pub recv: u32,
    pub recv_max: u32,
    pub send: u32,
    pub send_max: u32,
}

impl SocketSizes {
    pub fn create(self) -> (HeapRecv, HeapSend) {
        (HeapRecv::new(self.recv, self.recv_max), HeapSend::new(self.send, self.send_max))
    }
}

/// State of a socket as reported by its events.
#[derive(Debug)]
pub struct SocketStatus {
    pub id: SocketId,
    pub sizes: SocketSizes,
    /// User numbers of the connections that wait for accept(2).
    pub children: VecDeque<u32>,
    pub connected: bool,
    /// Whether the peer's FIN has arrived.
    pub ended: bool,
    /// Error of the socket that no call has returned yet.
    pub error: Option<SocketError>,
    /// Whether the connection has failed.
    pub failed: bool,
    pub closed: bool,
    /// Number of events of the socket, for edge-triggered epoll.
    pub edges: u32,
}

/// Host callbacks of the stack. Records the state of all sockets, by their user number.
#[derive(Debug)]
pub struct ScriptHost {
    pub sockets: Vec<SocketStatus>,
}

impl ScriptHost {
    /// Adds a socket, and returns its user number. The caller must set its id.
    pub fn add(&mut self, id: SocketId, sizes: SocketSizes) -> u32 {
        self.sockets.push(SocketStatus {
            id,
            sizes,
            children: VecDeque::new(),
            connected: false,
            ended: false,
            error: None,
            failed: false,
            closed: false,
            edges: 0,
        });
        self.sockets.len() as u32 - 1
    }

    fn sizes(&self, user: u32) -> Option<SocketSizes> {
        self.sockets.get(user as usize).map(|socket| socket.sizes)
    }
}

impl Host for ScriptHost {
    type Recv = HeapRecv;
    type Send = HeapSend;

    fn recv_room(&self, listener: u32) -> u32 {
        self.sizes(listener).map_or(0, |sizes| sizes.recv)
    }

    fn accept(
        &mut self,
        listener: u32,
        child: SocketId,
        _local: SocketAddr,
        _remote: SocketAddr,
    ) -> Option<(u32, HeapRecv, HeapSend)> {
        let sizes = self.sizes(listener)?;
        let user = self.add(child, sizes);
        self.sockets[user as usize].connected = true;
        let parent = self.sockets.get_mut(listener as usize)?;
        parent.children.push_back(user);
        parent.edges += 1;
        let (recv, send) = sizes.create();
        Some((user, recv, send))
    }

    fn datagram(&mut self, _user: u32, _meta: &DatagramMeta, _payload: &Payload<'_>) -> bool {
        false
    }

    fn event(&mut self, user: u32, event: SocketEvent) {
        let Some(socket) = self.sockets.get_mut(user as usize) else { return };
        socket.edges += 1;
        match event {
            SocketEvent::Connected => socket.connected = true,
            SocketEvent::PeerClosed => socket.ended = true,
            SocketEvent::Error(error) => {
                socket.error = Some(error);
                socket.failed = true;
            }
            SocketEvent::Closed => socket.closed = true,
            _ => {}
        }
    }
}
