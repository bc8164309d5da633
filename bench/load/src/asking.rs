//! Connections to the echo server, in one epoll set.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// A connection and the question that is under way in it.
pub struct Asking {
    stream: TcpStream,
    /// Bytes that are still to be sent, and to come back.
    to_send: usize,
    to_come: usize,
}

/// What they share.
pub struct Askers {
    pub poll: Poll,
    pub events: Events,
    to: SocketAddr,
    /// What questions are made of, and where answers come.
    bytes: Vec<u8>,
}

impl Askers {
    pub fn new(to: SocketAddr) -> Result<Self> {
        Ok(Self {
            poll: Poll::new()?,
            events: Events::with_capacity(1024),
            to,
            bytes: vec![0; 128 * 1024],
        })
    }

    /// Waits for events; those there are then are in `events`.
    pub fn wait(&mut self, time: Option<Duration>) -> Result<()> {
        match self.poll.poll(&mut self.events, time) {
            Err(error) if error.kind() == ErrorKind::Interrupted => self.events.clear(),
            result => result?,
        }
        Ok(())
    }

    /// Begins a connection, whose events have this number.
    pub fn connect(&self, number: usize) -> Result<Asking> {
        let mut stream = TcpStream::connect(self.to).with_context(|| self.to.to_string())?;
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(number), both)?;
        Ok(Asking { stream, to_send: 0, to_come: 0 })
    }

    /// `count` connections that are established, in numbers from 0. Not more at once than a listener's backlog holds.
    pub fn connect_all(&mut self, count: usize) -> Result<Vec<Asking>> {
        const AT_ONCE: usize = 100;
        const LONGEST: Duration = Duration::from_secs(30);
        let end = Instant::now() + LONGEST;
        let mut all = Vec::with_capacity(count);
        let mut is_there = vec![false; count];
        let mut there = 0;
        while there < count {
            while all.len() < count && all.len() < there + AT_ONCE {
                all.push(self.connect(all.len())?);
            }
            self.wait(Some(LONGEST))?;
            for event in &self.events {
                let Token(number) = event.token();
                if !is_there[number] && all[number].is_established()? {
                    is_there[number] = true;
                    there += 1;
                }
            }
            ensure!(Instant::now() < end, "{there} of {count} connections in {LONGEST:?}");
        }
        Ok(all)
    }

    /// Moves the bytes of a connection that can be moved. How many came back.
    pub fn go_on(&mut self, asking: &mut Asking) -> Result<usize> {
        asking.send(&self.bytes)?;
        asking.receive(&mut self.bytes)
    }

    /// Sends a question of `len` bytes, behind what is under way.
    pub fn ask(&self, asking: &mut Asking, len: usize) -> Result<()> {
        asking.to_send += len;
        asking.to_come += len;
        asking.send(&self.bytes)
    }
}

impl Asking {
    pub fn is_established(&self) -> Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error).context("connect");
        }
        match self.stream.peer_addr() {
            Ok(_) => Ok(self.stream.set_nodelay(true).map(|()| true)?),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error).context("connect"),
        }
    }

    /// Whether a question is under way.
    pub fn is_waiting(&self) -> bool {
        self.to_come > 0
    }

    /// Bytes that have not come back.
    pub fn missing(&self) -> usize {
        self.to_come
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        while self.to_send > 0 {
            match self.stream.write(&bytes[..self.to_send.min(bytes.len())]) {
                Ok(sent) => self.to_send -= sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("send"),
            }
        }
        Ok(())
    }

    /// Reads until nothing is left, which a short read says: what comes afterwards is an event of its own.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let mut come = 0;
        loop {
            match self.stream.read(bytes) {
                Ok(len) => {
                    ensure!(len > 0, "the server closed a connection");
                    ensure!(len <= self.to_come, "more came back than was sent");
                    self.to_come -= len;
                    come += len;
                    if len < bytes.len() {
                        return Ok(come);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(come),
                Err(error) => return Err(error).context("receive"),
            }
        }
    }
}
