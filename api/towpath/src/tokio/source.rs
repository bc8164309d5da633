//! A socket in non-blocking mode, with the wakers of tasks that wait for it.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use ::tokio::io::{Interest, Ready};
use ::tokio::task::coop;
use towpath_client::reactor::{ALWAYS, Registration};
use towpath_client::{ready, stream};

use super::dispatch::RuntimeDispatcher;
use crate::error::io_error;
use crate::net::handle::OwnedSocket;
use crate::net::{TcpListener, TcpStream, UdpSocket};
use crate::shared::SharedStack;

/// Maximum number of attempts in one poll. An attempt fails if another task reads or writes the
/// ready socket first. After the last attempt, the task yields to other tasks.
const ATTEMPTS: usize = 4;

/// A socket in non-blocking mode, with the registrations of tasks that wait for it.
pub(super) struct IoSource<S: HasSocket> {
    /// Registration of the last task that polled to read, and of the last one that polled to write.
    /// Each is created by the first poll that must wait, and dropped before the socket and its
    /// stack.
    reader: OnceLock<Registration>,
    writer: OnceLock<Registration>,
    socket: S,
    dispatcher: Arc<RuntimeDispatcher>,
}

/// A socket type of [`crate::net`]: a handle that shares an [`OwnedSocket`].
pub(super) trait HasSocket {
    fn owned(&self) -> &OwnedSocket;
}

impl HasSocket for TcpListener {
    fn owned(&self) -> &OwnedSocket {
        &self.handle
    }
}

impl HasSocket for TcpStream {
    fn owned(&self) -> &OwnedSocket {
        &self.handle
    }
}

impl HasSocket for UdpSocket {
    fn owned(&self) -> &OwnedSocket {
        self.handle()
    }
}

/// Condition for which a task waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Received data, a connection to accept, or the end of the data.
    Input,
    /// Free space in the send buffer.
    Room,
    /// The result of connecting.
    Connection,
}

/// Registration of a future's waker, dropped with the future.
struct FutureWakeup<'a> {
    registration: Registration,
    shared: &'a SharedStack,
}

impl Drop for FutureWakeup<'_> {
    fn drop(&mut self) {
        // Detect whether this process is a forked child. Otherwise dropping the registration in a
        // child would lock the parent's table of waiting tasks.
        self.shared.client();
    }
}

impl<S: HasSocket> IoSource<S> {
    /// Converts a socket of [`crate::net`] for the current runtime.
    ///
    /// # Errors
    /// As for [`RuntimeDispatcher::current`].
    pub fn new(socket: S) -> io::Result<Self> {
        socket.owned().set_nonblocking(true)?;
        let dispatcher = RuntimeDispatcher::current(socket.owned().shared())?;
        Ok(Self { reader: OnceLock::new(), writer: OnceLock::new(), socket, dispatcher })
    }

    /// Returns the dispatcher of the current runtime. While the caller holds it, creating further
    /// sockets does not fail for lack of a descriptor.
    pub fn dispatcher(&self) -> io::Result<Arc<RuntimeDispatcher>> {
        RuntimeDispatcher::current(self.socket.owned().shared())
    }

    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Repeats `attempt` until it does not return `WouldBlock`. Only the last task that polled for
    /// this condition is woken.
    pub fn poll_io<T>(
        &self,
        awaited: Awaited,
        cx: &mut Context<'_>,
        attempt: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        poll_attempts(cx, attempt, |cx| {
            let registration = self.lasting(awaited)?;
            self.poll_ready(registration, awaited, awaited.interest(), cx).map_ok(drop)
        })
    }

    /// Repeats `attempt` until it does not return `WouldBlock`. Any number of futures may wait for
    /// the same condition.
    pub async fn io<T>(
        &self,
        awaited: Awaited,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut wakeup = None;
        poll_fn(|cx| {
            poll_attempts(cx, &mut attempt, |cx| {
                let registration = self.of_future(&mut wakeup)?;
                self.poll_ready(registration, awaited, awaited.interest(), cx).map_ok(drop)
            })
        })
        .await
    }

    /// Waits until the socket is ready for `awaited`. As for [`Self::poll_io`], only the last task
    /// that polled is woken.
    pub fn poll_io_ready(&self, awaited: Awaited, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let coop = ready!(coop::poll_proceed(cx));
        self.request_memory(awaited == Awaited::Room);
        let registration = self.lasting(awaited)?;
        let ready = self.poll_ready(registration, awaited, awaited.interest(), cx);
        if ready.is_ready() {
            coop.made_progress();
        }
        ready.map_ok(drop)
    }

    /// Waits until the socket is ready for one of the operations in `interest`.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let mut wakeup = None;
        let wanted = events_of(interest);
        self.request_memory(interest.is_writable());
        poll_fn(|cx| {
            let coop = ready!(coop::poll_proceed(cx));
            let registration = self.of_future(&mut wakeup)?;
            let mask = ready!(self.poll_ready(registration, Awaited::Room, wanted, cx))?;
            coop.made_progress();
            Poll::Ready(Ok(tokio_ready(mask)))
        })
        .await
    }

    /// Calls `attempt` if the socket is ready for one of the operations in `interest`.
    pub fn try_io<T>(
        &self,
        interest: Interest,
        attempt: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let owned = self.socket.owned();
        let mask = owned.socket.readiness(owned.client());
        if mask & (events_of(interest) | ALWAYS) == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        attempt()
    }

    /// Waits until the socket is ready for `interest` and `attempt` does not return `WouldBlock`.
    /// After `WouldBlock`, waits for the next event of the socket.
    pub async fn async_io<T>(
        &self,
        interest: Interest,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut wakeup = None;
        let wanted = events_of(interest);
        poll_fn(|cx| {
            let coop = ready!(coop::poll_proceed(cx));
            self.request_memory(interest.is_writable());
            let registration = self.of_future(&mut wakeup)?;
            ready!(self.poll_ready(registration, Awaited::Room, wanted, cx))?;
            let mut result = attempt();
            if is_blocked(&result) {
                // The socket may still be ready, so waiting for readiness would spin. Attempt again
                // after the registration, because an event may have arrived before it.
                self.wait_for_event(registration, wanted, cx)?;
                result = attempt();
                if is_blocked(&result) {
                    return Poll::Pending;
                }
            }
            coop.made_progress();
            Poll::Ready(result)
        })
        .await
    }

    /// Requests memory for the send buffer before the first write. Without memory, the socket
    /// counts as ready although a write fails, so that the task would poll it again and again.
    fn request_memory(&self, is_writer: bool) {
        if is_writer {
            let owned = self.socket.owned();
            stream::request_memory(owned.client(), owned.socket);
        }
    }

    /// Returns the registration of the task that polls for `awaited`, and creates it on first use.
    fn lasting(&self, awaited: Awaited) -> io::Result<&Registration> {
        let place = if awaited == Awaited::Input { &self.reader } else { &self.writer };
        match place.get() {
            Some(registration) => Ok(registration),
            None => {
                let registration = self.register()?;
                Ok(place.get_or_init(|| registration))
            }
        }
    }

    fn of_future<'a, 'b>(
        &'a self,
        wakeup: &'b mut Option<FutureWakeup<'a>>,
    ) -> io::Result<&'b Registration> {
        let registered = match wakeup.take() {
            Some(registered) => registered,
            None => {
                FutureWakeup { registration: self.register()?, shared: self.dispatcher.shared() }
            }
        };
        Ok(&wakeup.insert(registered).registration)
    }

    fn register(&self) -> io::Result<Registration> {
        let owned = self.socket.owned();
        Registration::new(owned.client(), owned.socket).map_err(io_error)
    }

    fn poll_ready(
        &self,
        registration: &Registration,
        awaited: Awaited,
        interest: u32,
        cx: &Context<'_>,
    ) -> Poll<io::Result<u32>> {
        let client = self.socket.owned().client();
        let ready = match awaited {
            Awaited::Room => registration.poll_room(client, interest, cx.waker()),
            _ => registration.poll_ready(client, interest, cx.waker()),
        };
        if ready.is_pending() {
            self.dispatcher.check_running()?;
            self.dispatcher.look_on();
        }
        ready.map_err(io_error)
    }

    /// Registers the task of `cx` for the next event of the socket.
    ///
    /// # Errors
    /// Fails if no event can follow, because the socket or the dispatcher has ended.
    fn wait_for_event(
        &self,
        registration: &Registration,
        interest: u32,
        cx: &Context<'_>,
    ) -> io::Result<()> {
        let client = self.socket.owned().client();
        match registration.poll_event(client, interest, cx.waker()) {
            Poll::Pending => self.dispatcher.check_running(),
            Poll::Ready(Ok(_)) => Err(io::ErrorKind::NotConnected.into()),
            Poll::Ready(Err(error)) => Err(io_error(error)),
        }
    }
}

impl<S: HasSocket> Drop for IoSource<S> {
    fn drop(&mut self) {
        // Detect whether this process is a forked child. Otherwise dropping the registrations in a
        // child would lock the parent's table of waiting tasks.
        self.dispatcher.shared().client();
    }
}

impl Awaited {
    /// Returns the socket events that end the wait, as bits of [`ready`].
    fn interest(self) -> u32 {
        match self {
            Self::Input => ready::IN | ready::RDHUP,
            Self::Room | Self::Connection => ready::OUT,
        }
    }
}

/// Returns the socket events that make a socket ready for `interest`, as bits of [`ready`].
fn events_of(interest: Interest) -> u32 {
    let mut events = 0;
    if interest.is_readable() {
        events |= Awaited::Input.interest();
    }
    if interest.is_priority() {
        events |= ready::PRI;
    }
    if interest.is_writable() {
        events |= Awaited::Room.interest();
    }
    events
}

fn is_blocked<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// Repeats `attempt` while it returns `WouldBlock` although `wait` reports that the socket is
/// ready.
fn poll_attempts<T>(
    cx: &mut Context<'_>,
    mut attempt: impl FnMut() -> io::Result<T>,
    mut wait: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
) -> Poll<io::Result<T>> {
    let coop = ready!(coop::poll_proceed(cx));
    for _ in 0..ATTEMPTS {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(wait(cx))?,
            result => {
                coop.made_progress();
                return Poll::Ready(result);
            }
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Converts bits of [`ready`] to tokio's readiness, as mio does for events of epoll(7).
fn tokio_ready(mask: u32) -> Ready {
    let mut all = Ready::EMPTY;
    let bits = [
        (ready::IN, Ready::READABLE),
        (ready::OUT, Ready::WRITABLE),
        (ready::PRI, Ready::PRIORITY),
        (ready::RDHUP, Ready::READ_CLOSED),
        (ready::HUP, Ready::READ_CLOSED | Ready::WRITE_CLOSED),
        (ready::ERR, Ready::ERROR),
    ];
    for (bit, ready) in bits {
        if mask & bit != 0 {
            all |= ready;
        }
    }
    all
}
