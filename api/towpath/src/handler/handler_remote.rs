//! Access to a handler from other threads.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use towpath_ring::notification;
use towpath_shm::Fd;

use super::conn::{Conn, ConnId};
use super::conn_action::ConnAction;
use super::handler_shard::HandlerShard;

/// Runs closures on the thread of a handler `H` with connection states `S`, from other threads.
/// Clones refer to the same handler. The number of waiting closures has no limit.
///
/// Use this for work that blocks or takes long: the handler starts it on another thread, and pauses
/// the connection. The thread then resumes it:
///
/// ```
/// use std::thread;
/// use towpath::handler::{Conn, ConnAction, Handler, HandlerRemote, HandlerShard};
///
/// #[derive(Default)]
/// struct Sums {
///     remote: Option<HandlerRemote<Self, ()>>,
/// }
///
/// impl Handler for Sums {
///     type State = ();
///
///     fn started(&mut self, _: &mut HandlerShard<'_>, remote: HandlerRemote<Self, ()>) {
///         self.remote = Some(remote);
///     }
///
///     fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
///         let id = conn.id();
///         let Some(bytes) = conn.reader().slice(8) else { return ConnAction::Continue };
///         let Some(remote) = self.remote.clone() else { return ConnAction::Reset };
///         thread::spawn(move || {
///             let bytes = bytes.slices().into_iter().flatten();
///             let sum: u32 = bytes.map(|byte| u32::from(*byte)).sum();
///             // An error says that the stack has ended.
///             let _ = remote.call(id, move |_, conn, _| {
///                 conn.writer().write_all(&sum.to_be_bytes());
///                 ConnAction::Continue
///             });
///         });
///         ConnAction::Pause
///     }
/// }
///
/// let builder = towpath::Stack::builder().serve("0.0.0.0:7", |_| Sums::default());
/// let (_server, client) = builder.pair()?;
/// use std::io::{Read, Write};
/// let mut connection = client.connect("10.0.0.1:7")?;
/// connection.write_all(&[1, 2, 3, 4, 5, 6, 7, 8])?;
/// let mut sum = [0; 4];
/// connection.read_exact(&mut sum)?;
/// assert_eq!(u32::from_be_bytes(sum), 36);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HandlerRemote<H, S> {
    mailbox: Arc<HandlerMailbox<H, S>>,
}

/// A closure that another thread sends to a handler, to run with one of its connections.
pub(super) type CallOfConn<H, S> =
    Box<dyn FnOnce(&mut H, &mut Conn<'_>, &mut S) -> ConnAction + Send>;
/// A closure that another thread sends to a handler, to run with the handler itself.
pub(super) type CallOfShard<H> = Box<dyn FnOnce(&mut H, &mut HandlerShard<'_>) + Send>;

/// A closure sent to a handler by another thread.
pub(super) enum HandlerMail<H, S> {
    Conn(ConnId, CallOfConn<H, S>),
    Shard(CallOfShard<H>),
}

/// Queue of closures that other threads have sent to a handler.
pub(super) struct HandlerMailbox<H, S> {
    /// Whether the queue may contain messages. If false, the handler's thread need not take the
    /// lock.
    has_mail: AtomicBool,
    /// Queued messages; `None` after the handler has ended.
    messages: Mutex<Option<VecDeque<HandlerMail<H, S>>>>,
    bell: Fd,
}

impl<H, S> HandlerRemote<H, S> {
    pub(super) fn new(mailbox: Arc<HandlerMailbox<H, S>>) -> Self {
        Self { mailbox }
    }

    /// Runs `work` with a connection on the connection's thread, and applies the returned action.
    /// After [`ConnAction::Continue`], calls [`Handler::readable`](super::Handler::readable) if
    /// there are unread bytes. `work` is dropped if the connection has ended, or if its handshake
    /// is not complete.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn call(
        &self,
        id: ConnId,
        work: impl FnOnce(&mut H, &mut Conn<'_>, &mut S) -> ConnAction + Send + 'static,
    ) -> io::Result<()> {
        self.mailbox.push(HandlerMail::Conn(id, Box::new(work)))
    }

    /// Runs `work` with the handler, on the handler's thread.
    ///
    /// # Errors
    /// `NetworkDown` if the stack has ended.
    pub fn run(
        &self,
        work: impl FnOnce(&mut H, &mut HandlerShard<'_>) + Send + 'static,
    ) -> io::Result<()> {
        self.mailbox.push(HandlerMail::Shard(Box::new(work)))
    }
}

impl<H, S> HandlerMailbox<H, S> {
    pub fn new() -> io::Result<Self> {
        let (has_mail, messages) = (AtomicBool::new(false), Mutex::new(Some(VecDeque::new())));
        Ok(Self { has_mail, messages, bell: notification::create()? })
    }

    fn push(&self, mail: HandlerMail<H, S>) -> io::Result<()> {
        let mut messages = self.lock();
        let Some(queue) = messages.as_mut() else {
            return Err(io::ErrorKind::NetworkDown.into());
        };
        queue.push_back(mail);
        drop(messages);
        // Wake the handler's thread only for the first message after `take` has cleared the flag.
        if !self.has_mail.swap(true, Ordering::AcqRel) {
            notification::ring(self.bell());
        }
        Ok(())
    }

    /// Moves all queued messages to `to`, which must be empty.
    pub fn take(&self, to: &mut VecDeque<HandlerMail<H, S>>) {
        if !self.has_mail.load(Ordering::Relaxed) {
            return;
        }
        // Clear the flag before taking the queue, so that a message added afterwards sets it and
        // wakes the thread again.
        self.has_mail.swap(false, Ordering::AcqRel);
        if let Some(queue) = self.lock().as_mut() {
            std::mem::swap(queue, to);
        }
    }

    /// Makes later messages fail, and drops the queued ones.
    pub fn close(&self) {
        let queued = self.lock().take();
        // Drop the messages after the lock is released. Their closures may own values whose
        // destructors send further messages, which take the lock.
        drop(queued);
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<HandlerMail<H, S>>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H, S> Clone for HandlerRemote<H, S> {
    fn clone(&self) -> Self {
        Self { mailbox: Arc::clone(&self.mailbox) }
    }
}

impl<H, S> fmt::Debug for HandlerRemote<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerRemote").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value whose destructor sends a message to a handler.
    struct SendsAtDrop(HandlerRemote<(), ()>);

    impl Drop for SendsAtDrop {
        fn drop(&mut self) {
            let error = self.0.run(|_, _| {}).expect_err("the mailbox is closed");
            assert_eq!(error.kind(), io::ErrorKind::NetworkDown);
        }
    }

    #[test]
    fn messages_that_are_dropped_at_the_end_may_send_messages() {
        let mailbox = Arc::new(HandlerMailbox::new().expect("a descriptor"));
        let remote = HandlerRemote::new(Arc::clone(&mailbox));
        let value = SendsAtDrop(remote.clone());
        remote.run(move |_, _| drop(value)).expect("the mailbox is open");
        mailbox.close();
    }
}
