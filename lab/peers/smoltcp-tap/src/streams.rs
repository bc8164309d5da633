//! Connections to one port.

use std::error::Error;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};

/// Service of a port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Echo,
    Sink,
    Source,
}

pub struct Streams {
    port: u16,
    role: Role,
    /// Number of listening sockets.
    listening: usize,
    all: Vec<SocketHandle>,
}

impl Streams {
    pub fn new(port: u16, role: Role, listening: usize) -> Self {
        Self { port, role, listening, all: Vec::new() }
    }

    /// Serves the connections, and replenishes the listening sockets. Returns whether any had work.
    pub fn serve(
        &mut self,
        sockets: &mut SocketSet<'_>,
        bytes: &mut [u8],
    ) -> Result<bool, Box<dyn Error>> {
        let (mut is_busy, mut listening) = (false, 0);
        for &handle in &self.all {
            let socket = sockets.get_mut::<Socket>(handle);
            match socket.state() {
                State::Listen => listening += 1,
                State::Closed | State::TimeWait if listening < self.listening => {
                    socket.abort();
                    socket.listen(self.port)?;
                    listening += 1;
                    is_busy = true;
                }
                State::Closed | State::TimeWait => {}
                _ => is_busy |= self.role.step(socket, bytes)?,
            }
        }
        for _ in listening..self.listening {
            let mut socket = self.role.socket();
            socket.listen(self.port)?;
            self.all.push(sockets.add(socket));
            is_busy = true;
        }
        Ok(is_busy)
    }
}

impl Role {
    /// Creates a socket. Its buffers are zero pages of the kernel until bytes arrive.
    fn socket(self) -> Socket<'static> {
        let (receive, send) = match self {
            Self::Echo => (64 << 10, 64 << 10),
            Self::Sink => (1 << 20, 1 << 10),
            Self::Source => (1 << 10, 1 << 20),
        };
        let buffer = |len: usize| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(buffer(receive), buffer(send));
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(CongestionControl::Cubic);
        socket
    }

    fn step(self, socket: &mut Socket<'_>, bytes: &mut [u8]) -> Result<bool, Box<dyn Error>> {
        let mut moved = 0;
        match self {
            Self::Echo => {
                while socket.can_recv() && socket.can_send() {
                    let room = socket.send_capacity() - socket.send_queue();
                    let len = room.min(bytes.len());
                    let len = socket.recv_slice(&mut bytes[..len])?;
                    moved += socket.send_slice(&bytes[..len])?;
                }
            }
            Self::Sink => {
                while socket.can_recv() {
                    moved += socket.recv_slice(bytes)?;
                }
            }
            Self::Source => {
                if socket.can_send() {
                    moved += socket.send_slice(bytes)?;
                }
            }
        }
        if socket.state() == State::CloseWait && !socket.can_recv() {
            socket.close();
            moved += 1;
        }
        Ok(moved > 0)
    }
}
