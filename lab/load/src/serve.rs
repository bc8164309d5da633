//! The server: what every stack that is compared has to offer, on one thread with one epoll set.
//!
//! | port | TCP | UDP |
//! |---|---|---|
//! | PORT | bytes are returned | datagrams are returned |
//! | PORT + 1 | bytes are discarded until the client's FIN; then closed | datagrams are counted |
//! | PORT + 2 | bytes are sent until the client closes | |
//!
//! A datagram of one byte at PORT + 1 is answered with their count, as 8 bytes in network order.
//!
//! Datagrams' sockets are there before the first connection is accepted.

use std::io::{ErrorKind, Read, Result as IoResult, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use mio::net::{TcpListener, TcpStream, UdpSocket};
use mio::{Events, Interest, Poll, Token};

/// Offers all of it, for ever.
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
    // For whoever waits until it is there.
    let _ = writeln!(std::io::stdout(), "serving on {port} to {}", port + 2);
    let mut events = Events::with_capacity(1024);
    loop {
        // Connections that have had their part of a turn and could go on do so after the others.
        let wait = (!server.left.is_empty()).then_some(Duration::ZERO);
        match server.poll.poll(&mut events, wait) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            result => result?,
        }
        let mut left = std::mem::take(&mut server.left);
        // An event may have come for one of them, too.
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

/// Bytes of a read or write: as many as iperf3's.
const CHUNK: usize = 128 * 1024;
/// Reads, writes or datagrams of one socket before others have a turn.
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
    /// Places in `connections`.
    free: Vec<usize>,
    /// Connections that could go on.
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

    /// With `to_the_end` a short read does not mean that nothing is left. The end of the client's
    /// data may be behind it, and has had its event.
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

    /// Whether there may be more.
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
            // The client has gone already.
            Err(_) => self.free.push(place),
        }
    }

    /// Whether it could go on. A connection that has ended is forgotten.
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
    /// Nothing is left to read: the next bytes are a new event.
    Drained,
    Ended,
}

struct Connection {
    stream: TcpStream,
    role: Role,
    /// Bytes that came and could not be sent back yet.
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

/// How much there was, and whether there may be more.
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

    /// Whether there may be more. A datagram that cannot be sent is lost, as datagrams are.
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
