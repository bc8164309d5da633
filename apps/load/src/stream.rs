//! Bulk transfers in either direction. Each connection has a turn of bounded length.

use std::collections::VecDeque;
use std::io::ErrorKind;

use crate::failure::Failure;
use crate::plan::{Plan, Protocol, Shape};
use crate::user::User;
use crate::verdict::Trouble;

/// Size of a write in bytes, which is also the size that iperf3 uses.
const CHUNK: usize = 128 * 1024;
/// Maximum number of reads and writes of a connection before the next connection is served.
const TURN: usize = 16;

/// Queue of the connections that are ready to transfer, and the bytes that they send.
pub struct Streams {
    shape: Shape,
    is_udp: bool,
    /// Message to send, repeated so that a chunk can start at any offset in the first copy.
    bytes: Vec<u8>,
    message_len: usize,
    /// Offset in the message at which the next write of each user starts.
    places: Vec<u32>,
    turns: VecDeque<u32>,
    /// Number of streams that have sent all bytes, and wait for the server to close the connection.
    pub closing: usize,
    /// Time at which the server closed the last stream, in ns of the run's clock.
    pub last_end: u64,
}

/// Numbers of bytes and datagrams that a connection has transferred in one turn, and the result.
pub struct Moved {
    pub sent: u64,
    pub received: u64,
    pub datagrams: u64,
    pub result: Result<(), Trouble>,
}

impl Streams {
    pub fn new(plan: &Plan) -> Self {
        let is_udp = plan.protocol == Protocol::Udp;
        let message = if plan.message.is_empty() { &[0][..] } else { &plan.message };
        let is_needed = plan.shape.is_stream() && !is_udp;
        let len = if is_needed { CHUNK + message.len() } else { message.len() };
        let places = if is_needed { plan.users } else { 0 };
        Self {
            shape: plan.shape,
            is_udp,
            bytes: message.iter().copied().cycle().take(len).collect(),
            message_len: message.len(),
            places: vec![0; places],
            turns: VecDeque::new(),
            closing: 0,
            last_end: 0,
        }
    }

    /// Adds a user to the queue of turns, unless the user is in the queue already.
    pub fn take_turn(&mut self, it: &mut User, user: u32) {
        if !std::mem::replace(&mut it.is_listed, true) {
            self.turns.push_back(user);
        }
    }

    pub fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    pub fn next_turn(&mut self, users: &mut [User]) -> Option<u32> {
        let user = self.turns.pop_front()?;
        users[user as usize].is_listed = false;
        Some(user)
    }

    /// Transfers bytes of a user, up to [`TURN`] reads and writes. Queues the user again if it can
    /// transfer more.
    pub fn turn(&mut self, it: &mut User, user: u32, is_over: bool, buffer: &mut [u8]) -> Moved {
        let mut moved = Moved { sent: 0, received: 0, datagrams: 0, result: Ok(()) };
        let sends = !is_over && self.shape != Shape::StreamDown;
        let mut goes_on = false;
        if sends {
            goes_on |= self.send(it, user, &mut moved);
        }
        // Read in upload streams as well. Otherwise an echo server would stall with a full window.
        if moved.result.is_ok() {
            goes_on |= self.receive(it, buffer, &mut moved);
        }
        if goes_on && moved.result.is_ok() {
            self.take_turn(it, user);
        }
        moved
    }

    /// Writes until the socket is full, or the turn is over. Returns whether the socket may accept
    /// more.
    fn send(&mut self, it: &mut User, user: u32, moved: &mut Moved) -> bool {
        for _ in 0..TURN {
            let place = if self.is_udp { 0 } else { self.places[user as usize] as usize };
            let len = if self.is_udp { self.message_len } else { CHUNK };
            match it.write(&self.bytes[place..place + len]) {
                Ok(len) => {
                    moved.sent += len as u64;
                    if self.is_udp {
                        moved.datagrams += 1;
                    } else {
                        self.places[user as usize] = ((place + len) % self.message_len) as u32;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    moved.result = Err(error.into());
                    return false;
                }
            }
        }
        true
    }

    /// Reads until the socket is empty, or the turn is over. Returns whether the socket may contain
    /// more bytes.
    fn receive(&mut self, it: &mut User, buffer: &mut [u8], moved: &mut Moved) -> bool {
        for _ in 0..TURN {
            match it.read(buffer) {
                Ok(0) if !self.is_udp => {
                    let text = "the server closed a stream";
                    moved.result = Err(Trouble::text(Failure::Closed, text));
                    return false;
                }
                Ok(len) => moved.received += len as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    moved.result = Err(error.into());
                    return false;
                }
            }
        }
        true
    }
}
