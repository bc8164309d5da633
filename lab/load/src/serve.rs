//! Server that each compared stack must provide, on one thread with one epoll set.
//!
//! | port | TCP | UDP |
//! |---|---|---|
//! | PORT | bytes are returned | datagrams are returned |
//! | PORT + 1 | bytes are discarded until the client's FIN; then closed | datagrams are counted |
//! | PORT + 2 | bytes are sent until the client closes | |
//!
//! A datagram of one byte to PORT + 1 is answered with the number of counted datagrams, as 8 bytes
//! in network order.
//!
//! The UDP sockets are bound before the first TCP connection is accepted.

use std::io::{ErrorKind, Read, Result as IoResult, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use mio::net::{TcpListener, TcpStream, UdpSocket};
use mio::{Events, Interest, Poll, Token};

/// Serves all ports until the process is killed.
pub fn run(port: u16) -> Result<()> {
    let at = |offset: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port + offset));
    let mut server = Server {
        poll: Poll::new()?,
        returned: Datagrams::new(at(0))?,
        counted: Datagrams::new(at(1))?,
        listeners: Vec::new(),
        connections: Vec::new(),
        free: Vec::new(),
        left: Vec::new(),
        bytes: vec![0; CHUNK],
    };
    server.listen(&[(at(0), Role::Echo), (at(1), Role::Sink), (at(2), Role::Source)])?;
    // Notify the process that waits until the server is ready.
    let _ = writeln!(std::io::stdout(), "serving on {port} to {}", port + 2);
    let mut events = Events::with_capacity(1024);
    loop {
        // Do not block if connections have work left from their last turn.
        let wait = (!server.left.is_empty()).then_some(Duration::ZERO);
        match server.poll.poll(&mut events, wait) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            result => result?,
        }
        let mut left = std::mem::take(&mut server.left);
        // Connections with work left may also have an event.
        left.sort_unstable();
        left.dedup();
        for token in left {
            server.serve(token, true);
        }
        for event in &events {
            server.serve(event.token(), event.is_read_closed());
        }
    }
}

/// Bytes per read or write, the same as iperf3's.
const CHUNK: usize = 128 * 1024;
/// Maximum number of reads, writes or datagrams of a socket per turn.
const TURN: usize = 16;

const RETURNED: Token = Token(0);
const COUNTED: Token = Token(1);
const LISTENERS: usize = 2;
const CONNECTIONS: usize = 8;

struct Server {
    poll: Poll,
    returned: Datagrams,
    counted: Datagrams,
    listeners: Vec<(TcpListener, Role)>,
    connections: Vec<Option<Connection>>,
    /// Free indices of `connections`.
    free: Vec<usize>,
    /// Connections with work left from their last turn.
    left: Vec<Token>,
    bytes: Vec<u8>,
}

impl Server {
    fn listen(&mut self, places: &[(SocketAddr, Role)]) -> Result<()> {
        let registry = self.poll.registry();
        registry.register(&mut self.returned.socket, RETURNED, Interest::READABLE)?;
        registry.register(&mut self.counted.socket, COUNTED, Interest::READABLE)?;
        for (n, &(address, role)) in places.iter().enumerate() {
            let mut listener = TcpListener::bind(address).with_context(|| address.to_string())?;
            registry.register(&mut listener, Token(LISTENERS + n), Interest::READABLE)?;
            self.listeners.push((listener, role));
        }
        Ok(())
    }

    /// Serves a socket. With `to_the_end`, a short read does not mean that the socket is empty. The
    /// client's FIN may follow, whose event was handled already.
    fn serve(&mut self, token: Token, to_the_end: bool) {
        let goes_on = match token {
            RETURNED => self.returned.give_back(&mut self.bytes),
            COUNTED => self.counted.count(&mut self.bytes),
            Token(n) if n < CONNECTIONS => self.accept(n - LISTENERS),
            Token(n) => self.converse(n - CONNECTIONS, to_the_end),
        };
        if goes_on {
            self.left.push(token);
        }
    }

    /// Accepts connections. Returns whether more may be pending.
    fn accept(&mut self, n: usize) -> bool {
        for _ in 0..TURN {
            let (listener, role) = &self.listeners[n];
            let role = *role;
            match listener.accept() {
                Ok((stream, _)) => self.add(stream, role),
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn add(&mut self, mut stream: TcpStream, role: Role) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let token = Token(CONNECTIONS + place);
        let both = Interest::READABLE | Interest::WRITABLE;
        let is_ready = stream
            .set_nodelay(true)
            .and_then(|()| self.poll.registry().register(&mut stream, token, both));
        match is_ready {
            Ok(()) => {
                self.connections[place] = Some(Connection { stream, role, pending: Vec::new() });
            }
            // The client has disconnected already.
            Err(_) => self.free.push(place),
        }
    }

    /// Serves a connection. Returns whether it has work left. Removes the connection if it has
    /// ended.
    fn converse(&mut self, place: usize, to_the_end: bool) -> bool {
        let Some(connection) = self.connections.get_mut(place).and_then(Option::as_mut) else {
            return false;
        };
        for _ in 0..TURN {
            match connection.step(&mut self.bytes) {
                Ok(Step::Drained) if !to_the_end => return false,
                Ok(Step::Done | Step::Drained) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Ok(Step::Ended) | Err(_) => {
                    self.connections[place] = None;
                    self.free.push(place);
                    return false;
                }
            }
        }
        true
    }
}

#[derive(Clone, Copy)]
enum Role {
    Echo,
    Sink,
    Source,
}

enum Step {
    Done,
    /// The socket is empty, so that further bytes cause a new event.
    Drained,
    Ended,
}

struct Connection {
    stream: TcpStream,
    role: Role,
    /// Received bytes that the socket has not accepted yet.
    pending: Vec<u8>,
}

impl Connection {
    fn step(&mut self, bytes: &mut [u8]) -> IoResult<Step> {
        match self.role {
            Role::Echo => self.echo(bytes),
            Role::Sink => Ok(read(&mut self.stream, bytes)?.1),
            Role::Source => self.stream.write(bytes).map(|_| Step::Done),
        }
    }

    fn echo(&mut self, bytes: &mut [u8]) -> IoResult<Step> {
        while !self.pending.is_empty() {
            let sent = self.stream.write(&self.pending)?;
            self.pending.drain(..sent);
        }
        let (len, step) = read(&mut self.stream, bytes)?;
        let mut sent = 0;
        while sent < len {
            match self.stream.write(&bytes[sent..len]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.pending = bytes[sent..len].to_vec();
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(step)
    }
}

/// Reads bytes. Returns their number, and whether more may be available.
fn read(stream: &mut TcpStream, bytes: &mut [u8]) -> IoResult<(usize, Step)> {
    let len = stream.read(bytes)?;
    let step = match len {
        0 => Step::Ended,
        len if len < bytes.len() => Step::Drained,
        _ => Step::Done,
    };
    Ok((len, step))
}

struct Datagrams {
    socket: UdpSocket,
    count: u64,
}

impl Datagrams {
    fn new(at: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind(at).with_context(|| at.to_string())?;
        Ok(Self { socket, count: 0 })
    }

    /// Echoes datagrams. Returns whether more may be pending. Drops a datagram that cannot be sent.
    fn give_back(&mut self, bytes: &mut [u8]) -> bool {
        for _ in 0..TURN {
            match self.socket.recv_from(bytes) {
                Ok((len, from)) => drop(self.socket.send_to(&bytes[..len], from)),
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn count(&mut self, bytes: &mut [u8]) -> bool {
        for _ in 0..TURN {
            match self.socket.recv_from(bytes) {
                Ok((1, from)) => drop(self.socket.send_to(&self.count.to_be_bytes(), from)),
                Ok(_) => self.count += 1,
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
        true
    }
}
