//! A socket of a stack, with methods for calls on the socket and the time limits of the calls.
//!
//! All clones of a `TcpStream`, `TcpListener` or `UdpSocket` share an [`OwnedSocket`]. Dropping the
//! last clone closes the socket, as closing the last descriptor of a kernel socket does.

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

/// AF_INET: the value by which a socket's slot in shared memory represents IPv4.
pub(crate) const INET: u32 = 2;
/// AF_INET6: the value by which a socket's slot in shared memory represents IPv6.
pub(crate) const INET6: u32 = 10;
/// Protocol number of TCP (IPPROTO_TCP).
pub(crate) const TCP: u32 = 6;
/// Protocol number of UDP (IPPROTO_UDP).
pub(crate) const UDP: u32 = 17;

/// A socket of a stack, closed when the value is dropped.
pub(crate) struct OwnedSocket {
    shared: Arc<SharedStack>,
    pub(crate) socket: Socket,
    /// Address family of the socket: [`INET`] or [`INET6`].
    pub(crate) family: u32,
    nonblocking: AtomicBool,
    /// Time limits of receiving and of sending calls (SO_RCVTIMEO, SO_SNDTIMEO), in µs. 0 means no
    /// limit.
    pub(crate) recv_timeout_us: AtomicU64,
    pub(crate) send_timeout_us: AtomicU64,
    /// Current multicast options, stored here because the engine does not report them.
    pub(crate) multicast: Multicast,
}

/// Values of IP_MULTICAST_TTL, IP_MULTICAST_LOOP and IPV6_MULTICAST_LOOP.
pub(crate) struct Multicast {
    pub(crate) ttl: AtomicU8,
    pub(crate) loop_v4: AtomicBool,
    pub(crate) loop_v6: AtomicBool,
}

impl OwnedSocket {
    /// Creates a socket (socket(2)).
    pub(crate) fn open(shared: &Arc<SharedStack>, family: u32, protocol: u32) -> io::Result<Self> {
        let request = Request { call: call::SOCKET, a: family, b: protocol, ..Request::default() };
        let reply = shared.client().call(&request).map_err(io_error)?;
        let socket = Socket { slot: reply.slot, generation: reply.generation };
        Ok(Self::of(shared, socket, family))
    }

    /// Takes ownership of an existing socket, such as an accepted connection.
    pub(crate) fn of(shared: &Arc<SharedStack>, socket: Socket, family: u32) -> Self {
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

    pub(crate) fn shared(&self) -> &Arc<SharedStack> {
        &self.shared
    }

    pub(crate) fn client(&self) -> &Client {
        self.shared.client()
    }

    /// Returns a handle for one try of a socket call, such as a nonblocking read. The call fails in
    /// a forked child of the process that created the stack, because the stack is not the child's.
    pub(crate) fn attempting(&self) -> towpath_client::Handle<'_> {
        towpath_client::Handle { client: self.client(), socket: self.socket }
    }

    /// Returns a handle for waiting until the socket is ready. The handle does not detect a fork,
    /// so attempts of calls must use [`Self::client`].
    fn waiting(&self) -> towpath_client::Handle<'_> {
        towpath_client::Handle { client: self.shared.attached(), socket: self.socket }
    }

    /// Returns the socket's slot: its state in the memory that this process shares with the engine.
    ///
    /// # Errors
    /// If the engine has ended, returns [`Error::Dead`], converted by [`io_error`].
    pub(crate) fn slot(&self) -> io::Result<&Slot> {
        let client = self.client();
        match client.slot(self.socket).filter(|_| !client.is_dead()) {
            Some(slot) => Ok(slot),
            None => Err(io_error(Error::Dead)),
        }
    }

    /// Changes fields of the socket's slot in shared memory that this process may write.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&Slot) -> T) -> io::Result<T> {
        self.slot()?;
        self.attempting().change(change).map_err(io_error)
    }

    /// Notifies the engine of a changed socket option. The value must be valid.
    pub(crate) fn setting(&self, setting: u32, value: u64) {
        self.client().setting(self.socket, setting, value);
    }

    /// Sends a request about this socket and waits for the reply.
    pub(crate) fn call(
        &self,
        call: u32,
        fill: impl FnOnce(&mut Request),
    ) -> io::Result<ControlReply> {
        self.attempting().call(call, fill).map_err(io_error)
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.slot()?;
        self.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    pub(crate) fn recv_limit(&self) -> WaitLimit {
        WaitLimit::new(self.is_nonblocking(), self.recv_timeout_us.load(Relaxed))
    }

    pub(crate) fn send_limit(&self) -> WaitLimit {
        WaitLimit::new(self.is_nonblocking(), self.send_timeout_us.load(Relaxed))
    }

    /// Repeats a call, and waits in between, while it returns `WouldBlock`: see
    /// [`towpath_client::Handle::blocking`].
    pub(crate) fn blocking<T>(
        &self,
        limit: WaitLimit,
        attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.waiting().blocking(limit, attempt)
    }

    /// Repeats a sending call, and waits in between, while it returns `WouldBlock`: see
    /// [`towpath_client::Handle::sending`].
    pub(crate) fn sending<T>(
        &self,
        limit: WaitLimit,
        attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.waiting().sending(limit, attempt)
    }
}

// Unwind safety: no call on a socket runs code of the caller. So a panic of the caller cannot leave
// a socket inconsistent.
impl UnwindSafe for OwnedSocket {}
impl RefUnwindSafe for OwnedSocket {}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        self.attempting().close(!self.is_nonblocking());
    }
}

/// Returns a Linux errno as an error.
pub(crate) fn fail<T>(errno: Errno) -> io::Result<T> {
    Err(errno.into())
}
