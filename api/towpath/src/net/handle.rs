//! A socket of a stack: the calls that reach it, and how long each may wait.
//!
//! [`Handle`] is shared by all clones of a `TcpStream`, `TcpListener` or `UdpSocket`. Dropping the
//! last one closes the socket, as close(2) of the last descriptor does.

use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::time::Duration;

use rustix::io::Errno;
use towpath_client::interrupt::Handled;
use towpath_client::{Client, Deadline, Error, Socket, stream, wait};
use towpath_shm::control::{ControlReply, Request, call};
use towpath_shm::layout::{Slot, flags, op};

use crate::error::io_error;
use crate::shared::Shared;

/// Time that a first write without blocking waits for transmit memory, which the engine attaches
/// within a turn. A longer wait means that memory is short everywhere.
const MEMORY_PATIENCE: Duration = Duration::from_millis(100);
/// FIN_WAIT2, TIME_WAIT and CLOSE, as Linux numbers them: the peer has acknowledged our FIN.
const FIN_ACKNOWLEDGED: std::ops::RangeInclusive<u32> = 5..=7;

/// AF_INET or AF_INET6, as slots have it.
pub(super) const INET: u32 = 2;
/// See [`INET`].
pub(super) const INET6: u32 = 10;
/// IPPROTO_TCP.
pub(super) const TCP: u32 = 6;
/// IPPROTO_UDP.
pub(super) const UDP: u32 = 17;

/// A socket of a stack, closed when the value is dropped.
pub(super) struct Handle {
    shared: Arc<Shared>,
    pub(super) socket: Socket,
    /// Address family: [`INET`] or [`INET6`].
    pub(super) family: u32,
    nonblocking: AtomicBool,
    /// Limits in µs on the wait of a receiving and of a sending call. 0: no limit.
    pub(super) recv_timeout_us: AtomicU64,
    pub(super) send_timeout_us: AtomicU64,
    /// Multicast options as last set, which the engine does not report.
    pub(super) multicast: Multicast,
}

/// IP_MULTICAST_TTL, IP_MULTICAST_LOOP and IPV6_MULTICAST_LOOP, as getsockopt(2) gives them back.
pub(super) struct Multicast {
    pub(super) ttl: AtomicU8,
    pub(super) loop_v4: AtomicBool,
    pub(super) loop_v6: AtomicBool,
}

/// How long one call may wait.
#[derive(Clone, Copy)]
pub(super) struct WaitLimit {
    nonblocking: bool,
    /// Point in time at which the call gives up. None: never.
    deadline: Option<Deadline>,
    since: Handled,
}

impl WaitLimit {
    /// Until a handler interrupts the wait, or `limit` has passed.
    pub(super) fn blocking(limit: Option<Duration>) -> Self {
        Self::until(limit.map(Deadline::after))
    }

    /// Until a handler interrupts the wait, or `deadline` has passed.
    pub(super) fn until(deadline: Option<Deadline>) -> Self {
        Self { nonblocking: false, deadline, since: Handled::so_far() }
    }
}

impl Handle {
    /// Makes a socket: socket(2).
    pub(super) fn open(shared: &Arc<Shared>, family: u32, protocol: u32) -> io::Result<Self> {
        let request = Request { call: call::SOCKET, a: family, b: protocol, ..Request::default() };
        let reply = shared.client().call(&request).map_err(io_error)?;
        let socket = Socket { slot: reply.slot, generation: reply.generation };
        Ok(Self::of(shared, socket, family))
    }

    /// Owns a socket that is there already: an accepted connection.
    pub(super) fn of(shared: &Arc<Shared>, socket: Socket, family: u32) -> Self {
        Self {
            shared: Arc::clone(shared),
            socket,
            family,
            nonblocking: AtomicBool::new(false),
            recv_timeout_us: AtomicU64::new(0),
            send_timeout_us: AtomicU64::new(0),
            multicast: Multicast {
                ttl: AtomicU8::new(1),
                loop_v4: AtomicBool::new(true),
                loop_v6: AtomicBool::new(true),
            },
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn client(&self) -> &Client {
        self.shared.client()
    }

    /// The socket's slot.
    ///
    /// # Errors
    /// The engine's end: as [`io_error`] tells [`Error::Dead`].
    pub(super) fn slot(&self) -> io::Result<&Slot> {
        let client = self.client();
        match client.slot(self.socket).filter(|_| !client.is_dead()) {
            Some(slot) => Ok(slot),
            None => Err(io_error(Error::Dead)),
        }
    }

    /// Changes words of the slot that belong to the program.
    pub(super) fn change<T>(&self, change: impl FnOnce(&Slot) -> T) -> io::Result<T> {
        self.slot()?;
        self.socket.change(self.client(), change).map_err(io_error)
    }

    /// Tells the engine of an option whose value has been checked.
    pub(super) fn setting(&self, setting: u32, value: u64) {
        self.client().setting(self.socket, setting, value);
    }

    /// Sends a request about this socket and waits for the answer.
    pub(super) fn call(
        &self,
        call: u32,
        fill: impl FnOnce(&mut Request),
    ) -> io::Result<ControlReply> {
        let Socket { slot, generation } = self.socket;
        let mut request = Request { call, slot, generation, ..Request::default() };
        fill(&mut request);
        self.client().call(&request).map_err(io_error)
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.slot()?;
        self.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    pub(super) fn recv_patience(&self) -> WaitLimit {
        self.patience(&self.recv_timeout_us)
    }

    pub(super) fn send_patience(&self) -> WaitLimit {
        self.patience(&self.send_timeout_us)
    }

    fn patience(&self, timeout_us: &AtomicU64) -> WaitLimit {
        let limit = match timeout_us.load(Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(us)),
        };
        WaitLimit { nonblocking: self.is_nonblocking(), ..WaitLimit::blocking(limit) }
    }

    /// Repeats `attempt` while it would block, as long as `patience` allows. Without patience, too,
    /// it waits for what sockets of the stack have sent.
    pub(super) fn blocking<T>(
        &self,
        patience: WaitLimit,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match attempt() {
            Err(Error::WouldBlock) if !patience.nonblocking => {
                let WaitLimit { deadline, since, .. } = patience;
                wait::until(self.client(), self.socket, deadline, since, attempt)
            }
            Err(Error::WouldBlock) if self.client().await_senders(self.socket) => attempt(),
            result => result,
        }
    }

    /// As [`Self::blocking`], for calls that queue bytes to send. A call that must not block waits
    /// nevertheless for the socket's first transmit memory, which is no backpressure of the peer.
    pub(super) fn sending<T>(
        &self,
        patience: WaitLimit,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        // Read before the attempt: the engine may attach memory right after an attempt that
        // failed.
        let lacked = stream::lacks_memory(self.client(), self.socket);
        match attempt() {
            Err(Error::WouldBlock)
                if patience.nonblocking
                    && (lacked || stream::lacks_memory(self.client(), self.socket)) =>
            {
                self.wait_for_memory(attempt)
            }
            Err(Error::WouldBlock) if !patience.nonblocking => self.blocking(patience, attempt),
            result => result,
        }
    }

    fn wait_for_memory<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (client, socket) = (self.client(), self.socket);
        let is_connecting = |slot: &Slot| slot.flags.load(Acquire) & flags::CONNECTING != 0;
        if client.slot(socket).is_some_and(is_connecting) {
            return Err(Error::WouldBlock);
        }
        // The engine answers with memory or says that there is none. Either way the socket lacks
        // none any more, and the attempt after that is the last one.
        let mut once = || {
            let lacked = stream::lacks_memory(client, socket);
            match attempt() {
                Err(Error::WouldBlock) if !lacked => Err(Error::TimedOut),
                result => result,
            }
        };
        match self.blocking(WaitLimit::blocking(Some(MEMORY_PATIENCE)), &mut once) {
            Err(Error::Interrupted) => once(),
            result => result,
        }
    }
}

// A panic of the caller leaves nothing half done in here: no call runs code of the caller's.
impl UnwindSafe for Handle {}
impl RefUnwindSafe for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let client = self.shared.client();
        client.process().forget(self.socket);
        let linger = match client.slot(self.socket) {
            Some(slot) if !self.nonblocking.load(Relaxed) => slot.linger.load(Relaxed),
            _ => 0,
        };
        client.tell_end(self.socket, op::CLOSE, 0);
        if linger > 1 {
            wait_for_end(client, self.socket, Duration::from_secs(u64::from(linger - 1)));
        }
    }
}

/// SO_LINGER: closing returns when the peer has acknowledged everything, or at the limit.
fn wait_for_end(client: &Client, socket: Socket, limit: Duration) {
    let ended = || match client.slot(socket) {
        Some(slot)
            if slot.flags.load(Acquire) & flags::DEAD == 0
                && slot.linger.load(Relaxed) > 1
                && !FIN_ACKNOWLEDGED.contains(&slot.state.load(Acquire)) =>
        {
            Err(Error::WouldBlock)
        }
        _ => Ok(()),
    };
    // As close(2), which does not tell whether everything was acknowledged in time.
    let deadline = Some(Deadline::after(limit));
    let _ = wait::until(client, socket, deadline, Handled::so_far(), ended);
}

/// An error with an errno of Linux.
pub(super) fn fail<T>(errno: Errno) -> io::Result<T> {
    Err(errno.into())
}
