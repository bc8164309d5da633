//! A socket of a stack: the calls that reach it, and how long each may wait.
//!
//! [`OwnedSocket`] is shared by all clones of a `TcpStream`, `TcpListener` or `UdpSocket`. Dropping
//! the last one closes the socket, as close(2) of the last descriptor does.

use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use rustix::io::Errno;
use towpath_client::{Client, Error, Socket, WaitLimit};
use towpath_shm::control::{ControlReply, Request, call};
use towpath_shm::layout::Slot;

use crate::error::io_error;
use crate::shared::SharedStack;

/// AF_INET or AF_INET6, as slots have it.
pub(super) const INET: u32 = 2;
/// See [`INET`].
pub(super) const INET6: u32 = 10;
/// IPPROTO_TCP.
pub(super) const TCP: u32 = 6;
/// IPPROTO_UDP.
pub(super) const UDP: u32 = 17;

/// A socket of a stack, closed when the value is dropped.
pub(super) struct OwnedSocket {
    shared: Arc<SharedStack>,
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

impl OwnedSocket {
    /// Makes a socket: socket(2).
    pub(super) fn open(shared: &Arc<SharedStack>, family: u32, protocol: u32) -> io::Result<Self> {
        let request = Request { call: call::SOCKET, a: family, b: protocol, ..Request::default() };
        let reply = shared.client().call(&request).map_err(io_error)?;
        let socket = Socket { slot: reply.slot, generation: reply.generation };
        Ok(Self::of(shared, socket, family))
    }

    /// Owns a socket that is there already: an accepted connection.
    pub(super) fn of(shared: &Arc<SharedStack>, socket: Socket, family: u32) -> Self {
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

    pub(super) fn shared(&self) -> &Arc<SharedStack> {
        &self.shared
    }

    pub(super) fn client(&self) -> &Client {
        self.shared.client()
    }

    /// Returns the handle for one attempt of a call. In a child of the process that made the stack
    /// the attempt fails.
    pub(super) fn attempting(&self) -> towpath_client::Handle<'_> {
        towpath_client::Handle { client: self.client(), socket: self.socket }
    }

    /// Returns the handle for a wait between attempts that take [`Self::client`] each.
    fn waiting(&self) -> towpath_client::Handle<'_> {
        towpath_client::Handle { client: self.shared.attached(), socket: self.socket }
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
        self.attempting().change(change).map_err(io_error)
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
        self.attempting().call(call, fill).map_err(io_error)
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.slot()?;
        self.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    pub(super) fn recv_limit(&self) -> WaitLimit {
        WaitLimit::new(self.is_nonblocking(), self.recv_timeout_us.load(Relaxed))
    }

    pub(super) fn send_limit(&self) -> WaitLimit {
        WaitLimit::new(self.is_nonblocking(), self.send_timeout_us.load(Relaxed))
    }

    /// As [`towpath_client::Handle::blocking`].
    pub(super) fn blocking<T>(
        &self,
        limit: WaitLimit,
        attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.waiting().blocking(limit, attempt)
    }

    /// As [`towpath_client::Handle::sending`].
    pub(super) fn sending<T>(
        &self,
        limit: WaitLimit,
        attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.waiting().sending(limit, attempt)
    }
}

// A panic of the caller leaves nothing half done in here: no call runs code of the caller's.
impl UnwindSafe for OwnedSocket {}
impl RefUnwindSafe for OwnedSocket {}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        self.attempting().close(!self.is_nonblocking());
    }
}

/// An error with an errno of Linux.
pub(super) fn fail<T>(errno: Errno) -> io::Result<T> {
    Err(errno.into())
}
