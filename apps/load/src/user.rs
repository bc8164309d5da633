//! Simulated user: its socket, its queue of requests, and the state of parsing its answer.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;

use mio::event::Source;
use mio::net::{TcpStream, UdpSocket};
use mio::{Interest, Registry, Token};

use crate::alarm::RunClock;
use crate::answer::{Dialogue, Reader};
use crate::failure::Failure;
use crate::sockets;
use crate::verdict::{Step, Trouble, Verdict};

/// Times of a request in ns of the run's clock.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Time at which the request should be sent.
    pub due: u64,
    /// Time at which the request was sent. Not valid before.
    pub sent: u64,
    /// Sequence number of the request's datagram.
    number: u64,
}

/// Request that was answered, with the time and the result of its answer.
pub struct Answered {
    pub request: Request,
    pub at: u64,
    pub verdict: Verdict,
}

/// State of the connection of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The user needs no connection, as between two requests that each have their own connection.
    Closed,
    /// The user waits for the next attempt to connect, or is queued to connect.
    Waiting,
    /// The SYN was sent at the time `since`.
    Connecting {
        since: u64,
    },
    Open,
}

/// Maximum number of requests in the queue of a user, which bounds the memory. Further requests are
/// counted as unsent.
pub const QUEUE_MAX: usize = 1024;

/// Maximum number of reads of a user in one turn.
pub const TURN: usize = 4;
/// Error message if the server closes a connection without losing a request.
const IDLE_CLOSE: &str = "the server closed an idle connection";

/// User with its connection or socket, and its requests.
pub struct User {
    socket: UserSocket,
    pub state: State,
    /// Requests that are in flight, followed by requests that are due.
    queue: VecDeque<Request>,
    under_way: u32,
    /// Number of bytes of started requests that the socket has not accepted yet.
    to_send: usize,
    reader: Reader,
    next_number: u64,
    /// Number of connections that the user has had. A timer with an older number is stale.
    pub generation: u32,
    /// Time at which the user last became able to send.
    pub free_since: u64,
    /// Time of the last answer. 0 before the first one.
    pub answered_at: u64,
    /// Whether this user is in the crowd's queue of unread sockets.
    pub is_unread: bool,
    /// Whether this user is in the list of free users.
    pub is_listed: bool,
    /// Time of the timer that checks limits, or `u64::MAX` if there is no such timer.
    pub limit_at: u64,
    /// Whether the first connection or failure of this user was counted.
    pub is_settled: bool,
}

enum UserSocket {
    None,
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl User {
    pub fn new(dialogue: &Dialogue) -> Self {
        Self {
            socket: UserSocket::None,
            state: State::Waiting,
            queue: VecDeque::new(),
            under_way: 0,
            to_send: 0,
            reader: Reader::new(dialogue.form),
            next_number: 0,
            generation: 0,
            free_since: 0,
            answered_at: 0,
            is_unread: false,
            is_listed: false,
            limit_at: u64::MAX,
            is_settled: false,
        }
    }

    /// Takes over a TCP socket that is connected or connecting.
    pub fn open_tcp(
        &mut self,
        mut stream: TcpStream,
        registry: &Registry,
        token: Token,
    ) -> Result<(), Trouble> {
        register(&mut stream, registry, token)?;
        self.socket = UserSocket::Tcp(stream);
        Ok(())
    }

    /// Takes over a UDP socket, which needs no connect.
    pub fn open_udp(
        &mut self,
        mut socket: UdpSocket,
        registry: &Registry,
        token: Token,
    ) -> Result<(), Trouble> {
        register(&mut socket, registry, token)?;
        self.socket = UserSocket::Udp(socket);
        Ok(())
    }

    /// Returns whether the connect has completed.
    ///
    /// # Errors
    /// Returns an error if the connect failed.
    pub fn is_established(&self) -> Result<bool, Trouble> {
        let UserSocket::Tcp(stream) = &self.socket else { return Ok(true) };
        if let Some(error) = stream.take_error()? {
            return Err(error.into());
        }
        match stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Closes the socket. Removes the requests in flight and passes them to `lost`. Requests that
    /// were not started stay in the queue for the next connection.
    pub fn close(&mut self, mut lost: impl FnMut(&Request)) {
        self.socket = UserSocket::None;
        self.state = State::Waiting;
        self.generation = self.generation.wrapping_add(1);
        self.queue.drain(..self.under_way as usize).for_each(|it| lost(&it));
        self.under_way = 0;
        self.to_send = 0;
    }

    /// Resets the reader to the beginning of a connection's first answer.
    pub fn begin_reading(&mut self, dialogue: &Dialogue) {
        self.reader = Reader::new(dialogue.form);
    }

    pub fn under_way(&self) -> usize {
        self.under_way as usize
    }

    /// Returns the number of requests that are due and have not been started.
    pub fn waiting(&self) -> usize {
        self.queue.len() - self.under_way()
    }

    /// Returns the intended send times of the requests that have not been started.
    pub fn due(&self) -> impl Iterator<Item = u64> {
        self.queue.range(self.under_way()..).map(|it| it.due)
    }

    /// Returns whether the user can start a request now.
    pub fn may_send(&self, depth: usize) -> bool {
        self.state == State::Open && self.to_send == 0 && self.has_next(depth)
    }

    /// Returns whether a request is in the queue, and the number of requests in flight is below
    /// `depth`.
    pub fn has_next(&self, depth: usize) -> bool {
        self.under_way() < depth && self.waiting() > 0
    }

    pub fn push(&mut self, due: u64) {
        self.queue.push_back(Request { due, sent: 0, number: 0 });
    }

    /// Drops the first request that has not been started, and returns its intended send time.
    pub fn drop_waiting(&mut self) -> Option<u64> {
        self.queue.remove(self.under_way()).map(|it| it.due)
    }

    /// Returns the oldest request in flight. `None` if there is none.
    pub fn oldest(&self) -> Option<&Request> {
        self.queue.front().filter(|_| self.under_way > 0)
    }

    /// Returns whether a part of an answer has arrived.
    pub fn has_part(&self) -> bool {
        self.reader.has_begun()
    }

    /// Drops datagrams that were sent at or before the time `limit`, and passes them to `lost` as
    /// lost requests.
    pub fn give_up(&mut self, limit: u64, mut lost: impl FnMut(&Request)) {
        while self.oldest().is_some_and(|it| it.sent <= limit) {
            self.under_way -= 1;
            lost(&self.queue.pop_front().expect("`oldest` is the front"));
        }
    }

    /// Starts the next request in the queue. [`User::send_rest`] then sends it.
    pub fn start_next(&mut self, dialogue: &Dialogue, sent: u64) -> Request {
        let request = &mut self.queue[self.under_way as usize];
        (request.sent, request.number) = (sent, self.next_number);
        self.under_way += 1;
        self.next_number += 1;
        self.to_send += dialogue.request.len();
        *request
    }

    /// Sends the unsent bytes of started requests in as few writes as possible. Returns the number
    /// of bytes that the socket accepted.
    pub fn send_rest(&mut self, dialogue: &mut Dialogue, user: u64) -> Result<usize, Trouble> {
        let mut taken = 0;
        while self.to_send > 0 {
            let left = self.to_send.div_ceil(dialogue.request.len()) as u64;
            let bytes = dialogue.train(user, self.next_number - left, self.to_send);
            match self.write(bytes) {
                Ok(len) => {
                    taken += len;
                    self.to_send -= len;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(taken)
    }

    /// Writes to the socket. If the queue of the device is full, a datagram counts as written
    /// although it is lost.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.socket {
            UserSocket::None => Err(ErrorKind::NotConnected.into()),
            UserSocket::Tcp(stream) => stream.write(bytes),
            UserSocket::Udp(socket) => match socket.send(bytes) {
                Err(error) if sockets::is_no_room(&error) => Ok(bytes.len()),
                result => result,
            },
        }
    }

    /// Reads from the socket. Returns 0 at the end of the stream.
    pub fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.socket {
            UserSocket::None => Err(ErrorKind::WouldBlock.into()),
            UserSocket::Tcp(stream) => stream.read(bytes),
            UserSocket::Udp(socket) => socket.recv(bytes),
        }
    }

    /// Shuts down the sending direction of the connection, so that the server sees the end of the
    /// stream.
    pub fn finish_sending(&mut self) -> std::io::Result<()> {
        match &self.socket {
            UserSocket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            _ => Ok(()),
        }
    }

    /// Reads answers until the socket is empty, with at most [`TURN`] reads. A server that sends
    /// endlessly therefore delays neither other users nor the end of the run. A short read means
    /// that the socket is empty, unless the end of the stream was announced. In that case no
    /// further event follows.
    ///
    /// Returns whether the socket may contain more bytes. Adds answers and late datagrams to
    /// `inbox`.
    pub fn receive(
        &mut self,
        dialogue: &Dialogue,
        buffer: &mut [u8],
        clock: RunClock,
        has_end: bool,
        inbox: &mut AnswerInbox,
    ) -> Result<bool, Trouble> {
        let is_udp = matches!(self.socket, UserSocket::Udp(_));
        for _ in 0..TURN {
            let len = match self.read(buffer) {
                Ok(0) if !is_udp => return self.on_end(clock, inbox).map(|()| false),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let now = clock.now();
            inbox.bytes += len as u64;
            if is_udp {
                self.on_datagram(&buffer[..len], dialogue, now, inbox)?;
                // Leave a duplicate datagram for the next event, because no request is in flight
                // that it could answer.
                if self.under_way == 0 {
                    return Ok(false);
                }
            } else {
                self.on_bytes(&buffer[..len], dialogue, now, inbox)?;
                if len < buffer.len() && !has_end {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn on_bytes(
        &mut self,
        mut bytes: &[u8],
        dialogue: &Dialogue,
        now: u64,
        inbox: &mut AnswerInbox,
    ) -> Result<(), Trouble> {
        while !bytes.is_empty() {
            if self.under_way == 0 {
                let is_any = dialogue.form == crate::answer::AnswerForm::Any;
                // All remaining bytes belong to an answer of any length, because its end is
                // unknown.
                return if is_any { Ok(()) } else { Err(Trouble::surplus(bytes.len())) };
            }
            match self.reader.read(bytes, dialogue)? {
                Step::Partial => return Ok(()),
                Step::Whole { used, verdict } => {
                    bytes = &bytes[used..];
                    let is_last = verdict.closes;
                    self.answer(0, now, verdict, inbox);
                    if is_last {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn on_datagram(
        &mut self,
        bytes: &[u8],
        dialogue: &Dialogue,
        now: u64,
        inbox: &mut AnswerInbox,
    ) -> Result<(), Trouble> {
        if dialogue.numbered {
            dialogue.check_datagram(bytes)?;
            let (number, _) = bytes.split_first_chunk().expect("an echo has at least a number");
            let number = u64::from_be_bytes(*number);
            let mut under_way = self.queue.range(..self.under_way());
            match under_way.position(|it| it.number == number) {
                Some(at) => self.answer(at, now, Verdict::default(), inbox),
                None => inbox.late += 1,
            }
            return Ok(());
        }
        if self.under_way == 0 {
            inbox.late += 1;
            return Ok(());
        }
        dialogue.check_datagram(bytes)?;
        self.answer(0, now, Verdict::default(), inbox);
        Ok(())
    }

    fn on_end(&mut self, clock: RunClock, inbox: &mut AnswerInbox) -> Result<(), Trouble> {
        if self.under_way > 0
            && let Some(verdict) = self.reader.end()
        {
            self.answer(0, clock.now(), verdict, inbox);
            return Ok(());
        }
        let text = match (self.under_way, self.has_part()) {
            (0, _) => IDLE_CLOSE,
            (_, false) => "the server closed the connection before it answered",
            (_, true) => "the server closed the connection in the middle of an answer",
        };
        Err(Trouble::text(Failure::Closed, text))
    }

    /// Completes the request at index `place` of the requests in flight.
    fn answer(&mut self, place: usize, at: u64, verdict: Verdict, inbox: &mut AnswerInbox) {
        let request = self.queue.remove(place).expect("a request is under way");
        self.answered_at = at;
        self.under_way -= 1;
        inbox.answers.push(Answered { request, at, verdict });
    }
}

/// Results of [`User::receive`]. The object is reused to avoid allocations.
#[derive(Default)]
pub struct AnswerInbox {
    pub answers: Vec<Answered>,
    /// Number of bytes read.
    pub bytes: u64,
    /// Number of datagrams that match no request in flight.
    pub late: u64,
}

impl AnswerInbox {
    pub fn clear(&mut self) {
        self.answers.clear();
        self.bytes = 0;
        self.late = 0;
    }
}

fn register(socket: &mut impl Source, registry: &Registry, token: Token) -> std::io::Result<()> {
    registry.register(socket, token, Interest::READABLE | Interest::WRITABLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, PlannedAnswer, Target};

    #[test]
    fn a_turn_of_reading_ends_while_the_server_sends_on() {
        const READ: usize = 1024;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut plan = Plan::new(Target::from(address));
        plan.answer = PlannedAnswer::Length { bytes: usize::MAX };
        let dialogue = Dialogue::new(&plan);
        let mut user = User::new(&dialogue);
        let client = std::net::TcpStream::connect(address).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(&[0; 16 * TURN * READ]).unwrap();
        // Wait before the first turn until all bytes have arrived.
        let mut all = vec![0; 16 * TURN * READ];
        while client.peek(&mut all).unwrap() < all.len() {}
        client.set_nonblocking(true).unwrap();
        user.socket = UserSocket::Tcp(TcpStream::from_std(client));
        user.push(0);
        user.start_next(&dialogue, 0);
        let (clock, mut inbox) = (RunClock::start(), AnswerInbox::default());
        let mut turn = |bytes| {
            let more = user.receive(&dialogue, &mut [0; READ], clock, true, &mut inbox).unwrap();
            assert_eq!(std::mem::take(&mut inbox.bytes), bytes);
            more
        };
        (0..16).for_each(|_| assert!(turn((TURN * READ) as u64), "more is left"));
        assert!(!turn(0), "the socket is empty");
    }

    /// Checks the memory of idle users: 100,000 of them use some 50 MB, without the kernel's
    /// sockets.
    #[test]
    fn an_idle_user_is_small() {
        assert!(size_of::<User>() <= 512, "{} bytes", size_of::<User>());
        assert!(size_of::<Request>() * 4 <= 128, "the first allocation of a queue");
    }
}
