//! A socket with the connection to its engine, and the time limits of calls on it.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use rustix::io::Errno;
use towpath_shm::control::{ControlReply, Request};
use towpath_shm::layout::{Kind, Slot, flags, op};

use crate::interrupt::Handled;
use crate::{Client, Deadline, Error, Socket, stream, wait};

/// Maximum time for which the first write on a connection waits for send buffer memory, even if the
/// call is nonblocking. The engine normally provides memory in the next iteration of its event
/// loop. If it takes longer, the memory limit is reached.
const MEMORY_PATIENCE: Duration = Duration::from_millis(100);
/// Timeout below which a wait may end before the engine has run its event loop.
const BRIEF: Duration = Duration::from_millis(1);
/// The connection state CLOSE, with Linux's number (TCP_CLOSE).
const TCP_CLOSE: u32 = 7;
/// Connection states in which the peer has acknowledged our FIN, as Linux numbers them: FIN_WAIT2,
/// TIME_WAIT and CLOSE.
const FIN_ACKNOWLEDGED: std::ops::RangeInclusive<u32> = 5..=TCP_CLOSE;

/// A socket, and the connection to the engine (network stack) that serves it. Used by every API.
#[derive(Debug, Clone, Copy)]
pub struct Handle<'a> {
    /// The connection of this process to the engine.
    pub client: &'a Client,
    /// The socket, identified by slot and generation.
    pub socket: Socket,
}

/// How long one call may wait.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimit {
    /// Whether the call must not wait at all.
    pub nonblocking: bool,
    /// Time at which the call fails; `None` if there is no timeout.
    pub deadline: Option<Deadline>,
    /// Number of signal handlers that had run on this thread when the call began. If it has
    /// changed, a handler has interrupted the wait.
    pub since: Handled,
}

impl WaitLimit {
    /// Returns the time limit of a call that begins now. `timeout_us` is SO_RCVTIMEO or SO_SNDTIMEO
    /// in microseconds; 0 means no timeout.
    #[inline]
    pub fn new(nonblocking: bool, timeout_us: u64) -> Self {
        let limit = (timeout_us != 0).then(|| Duration::from_micros(timeout_us));
        Self { nonblocking, ..Self::until(limit.map(Deadline::after)) }
    }

    /// Returns the limit of a call that waits until `deadline`, or without limit.
    #[inline]
    pub fn until(deadline: Option<Deadline>) -> Self {
        Self { nonblocking: false, deadline, since: Handled::so_far() }
    }

    /// Returns whether the call might end before the engine has run its event loop, because it is
    /// nonblocking or has a short timeout.
    fn is_brief(&self) -> bool {
        self.nonblocking || self.deadline.is_some_and(|deadline| deadline.left() < BRIEF)
    }
}

impl<'a> Handle<'a> {
    /// Returns the socket's shared state.
    ///
    /// # Errors
    /// `Dead` if the slot belongs to a newer socket.
    #[inline]
    pub fn slot(self) -> Result<&'a Slot, Error> {
        self.client.slot(self.socket).ok_or(Error::Dead)
    }

    /// Changes fields of the socket's shared state that are written by the program, not the engine.
    ///
    /// # Errors
    /// As for [`Socket::enter`].
    pub fn change<T>(self, change: impl FnOnce(&Slot) -> T) -> Result<T, Error> {
        self.socket.change(self.client, change)
    }

    /// Sends the engine the request `call` about the socket, and waits for the answer. `fill` sets
    /// further fields of the request.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn call(self, call: u32, fill: impl FnOnce(&mut Request)) -> Result<ControlReply, Error> {
        self.client.call(&self.request(call, fill))
    }

    /// Returns the request `call` about the socket, without sending it. `fill` sets further fields
    /// of the request.
    pub fn request(self, call: u32, fill: impl FnOnce(&mut Request)) -> Request {
        let Socket { slot, generation } = self.socket;
        let mut request = Request { call, slot, generation, ..Request::default() };
        fill(&mut request);
        request
    }

    /// Repeats `attempt` while it returns `WouldBlock`, until `limit` allows no further wait. Even
    /// a nonblocking call waits for bytes that another program using the stack has sent before,
    /// because they may be about to arrive.
    ///
    /// # Errors
    /// As for [`wait::until`]; `WouldBlock` if the call is nonblocking.
    #[inline]
    pub fn blocking<T>(
        self,
        limit: WaitLimit,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match attempt() {
            Err(Error::WouldBlock) if !limit.nonblocking => {
                wait::until(self.client, self.socket, limit.deadline, limit.since, attempt)
            }
            Err(Error::WouldBlock) if self.client.await_senders(self.socket) => attempt(),
            result => result,
        }
    }

    /// Repeats `attempt`, which queues bytes to send, as [`Self::blocking`] does. Even a
    /// nonblocking call waits if the socket has no send buffer memory yet, because that is not the
    /// peer's backpressure.
    ///
    /// # Errors
    /// As for [`Self::blocking`]; `TimedOut` if no memory was attached in time.
    #[inline]
    pub fn sending<T>(
        self,
        limit: WaitLimit,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        // Check for missing memory before the attempt, because the engine may provide memory right
        // after the attempt fails.
        let lacked = self.lacks_memory();
        match attempt() {
            Err(Error::WouldBlock) if limit.is_brief() && (lacked || self.lacks_memory()) => {
                self.wait_for_memory(attempt)
            }
            Err(Error::WouldBlock) if !limit.nonblocking => self.blocking(limit, attempt),
            result => result,
        }
    }

    #[inline]
    fn lacks_memory(self) -> bool {
        stream::lacks_memory(self.client, self.socket)
    }

    fn wait_for_memory<T>(self, mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        if self.slot().is_ok_and(|slot| slot.flags.load(Acquire) & flags::CONNECTING != 0) {
            return Err(Error::WouldBlock);
        }
        // Wait until the engine has provided send buffer memory, or has reported that there is
        // none. In both cases `lacks_memory` becomes false, and one more attempt is made. Memory
        // that arrives after a failed attempt is used by this attempt.
        let mut once = || {
            let lacked = self.lacks_memory();
            match attempt() {
                Err(Error::WouldBlock) if !lacked => Err(Error::TimedOut),
                result => result,
            }
        };
        let limit = WaitLimit::until(Some(Deadline::after(MEMORY_PATIENCE)));
        match self.blocking(limit, &mut once) {
            Err(Error::Interrupted) => once(),
            result => result,
        }
    }

    /// Returns the result of the last connect(2) on the socket, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` while the connect is in progress. `Refused` with the error of the connect, or
    /// with ECONNABORTED if another call has cleared that error.
    pub fn connected(self) -> Result<(), Error> {
        match self.slot()?.flags.load(Acquire) {
            seen if seen & (flags::CONNECTING | flags::OPENING) != 0 => Err(Error::WouldBlock),
            seen if seen & flags::CONNECTED != 0 && seen & flags::DEAD == 0 => Ok(()),
            _ => {
                self.socket.take_error(self.client)?;
                Err(Errno::CONNABORTED.into())
            }
        }
    }

    /// Closes the socket. Called when its last descriptor in the process is closed. With `lingers`,
    /// waits as SO_LINGER requires: until the peer has acknowledged all data, or the linger time
    /// has passed.
    pub fn close(self, lingers: bool) {
        self.client.process().forget(self.socket);
        let linger = match self.slot() {
            Ok(slot) if lingers => slot.linger.load(Relaxed),
            _ => 0,
        };
        self.client.tell_end(self.socket, op::CLOSE, 0);
        if linger > 1 {
            self.wait_for_end(Duration::from_secs(u64::from(linger - 1)));
        }
    }

    fn wait_for_end(self, limit: Duration) {
        let ended = || match self.slot() {
            Ok(slot)
                if slot.flags.load(Acquire) & flags::DEAD == 0
                    && slot.linger.load(Relaxed) > 1
                    && !FIN_ACKNOWLEDGED.contains(&slot.state.load(Acquire)) =>
            {
                Err(Error::WouldBlock)
            }
            _ => Ok(()),
        };
        // Ignore a timeout, because close(2) does not report whether all data was acknowledged in
        // time.
        let limit = WaitLimit::until(Some(Deadline::after(limit)));
        let _ = wait::until(self.client, self.socket, limit.deadline, limit.since, ended);
    }
}

/// Returns the kind of the socket in a slot. The kind may change: listen(2) makes a stream a
/// listener.
#[inline]
pub fn kind(slot: &Slot) -> Kind {
    Kind::from_u32(slot.kind.load(Acquire)).unwrap_or(Kind::Free)
}

/// Returns whether the socket in a slot is a TCP socket, listening or not.
#[inline]
pub fn is_tcp(slot: &Slot) -> bool {
    matches!(kind(slot), Kind::Stream | Kind::Listener)
}

/// Returns whether the stream socket in a slot is connected or connecting.
pub fn is_open_stream(slot: &Slot) -> bool {
    let seen = slot.flags.load(Acquire);
    seen & (flags::CONNECTED | flags::CONNECTING) != 0
        && seen & flags::DEAD == 0
        && slot.state.load(Acquire) != TCP_CLOSE
}
