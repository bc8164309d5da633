//! State of a stack, shared by all its handles and sockets.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::Shutdown;
use towpath_client::Client;
use towpath_shm::Fd;

use crate::attachment::Attachment;
use crate::engine::EngineThread;
use crate::error::{ShutdownError, StartError};
use crate::fork::Origin;
use crate::handler::SharedCounters;
use crate::place::StackAddresses;
use crate::unused;

/// A running stack, ended when the last handle is dropped.
pub(crate) struct SharedStack {
    /// Connection of this process to the engine. Dropped by `drop`, except in a forked child.
    attachment: ManuallyDrop<Attachment>,
    /// Thread that runs the engine; `None` after [`Self::shutdown`], or in a forked child.
    engine: Mutex<Option<EngineThread>>,
    place: StackAddresses,
    origin: Origin,
    /// Counters of the event handlers that the engine runs.
    pub(crate) handlers: Vec<Arc<SharedCounters>>,
    #[cfg(feature = "tokio")]
    pub(crate) dispatchers: crate::tokio::dispatch::Dispatchers,
}

impl SharedStack {
    /// Creates the state of a stack whose engine is running, and attaches this process to the
    /// engine.
    pub fn new(
        engine: EngineThread,
        control: Fd,
        place: StackAddresses,
        origin: Origin,
    ) -> Result<Self, StartError> {
        match Attachment::new(control) {
            Ok(attachment) => Ok(Self {
                attachment: ManuallyDrop::new(attachment),
                engine: Mutex::new(Some(engine)),
                place,
                origin,
                handlers: Vec::new(),
                #[cfg(feature = "tokio")]
                dispatchers: Default::default(),
            }),
            Err(error) => {
                engine.kill();
                Err(StartError::from_client(error))
            }
        }
    }

    /// Returns the client, through which sockets send requests to the engine. All its calls fail in
    /// a forked child of the process that created the stack.
    #[inline]
    pub fn client(&self) -> &Client {
        if self.origin.is_elsewhere() {
            self.disown();
        }
        self.attachment.client()
    }

    /// Returns the client without checking whether this process is a forked child. The caller must
    /// check this itself.
    #[inline]
    pub fn attached(&self) -> &Client {
        self.attachment.client()
    }

    pub fn place(&self) -> &StackAddresses {
        &self.place
    }

    #[cold]
    fn disown(&self) {
        let client = self.attachment.client();
        if !client.is_abandoned() {
            client.disown();
        }
    }

    /// Requests the engine to close all sockets. [`Self::shutdown`] waits until they are closed.
    /// Does nothing in a forked child.
    pub fn begin_end(&self) {
        if !self.origin.is_elsewhere() {
            self.hang_up();
        }
    }

    /// Sends all written data and ends the engine.
    pub fn shutdown(&self) -> Result<(), ShutdownError> {
        if self.origin.is_elsewhere() {
            self.disown();
            return Err(ShutdownError::Forked);
        }
        // Hold the lock while waiting, so that a second call returns only after the shutdown is
        // complete.
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = engine.take() else { return Ok(()) };
        if engine.has_ended() {
            engine.kill();
            return Err(ShutdownError::Failed);
        }
        self.hang_up();
        engine.finish()
    }

    /// Disconnects this process from the engine, which handles this like the end of the process.
    /// The engine closes all sockets, and ends when their data is sent. shutdown(2) works even if
    /// forked children have copies of the control socket.
    fn hang_up(&self) {
        let control = self.attachment.client().control();
        // Ignore errors: the socket may be disconnected already because the engine has ended.
        let _ = rustix::net::shutdown(control.borrow(), Shutdown::Both);
    }
}

impl Drop for SharedStack {
    fn drop(&mut self) {
        let engine = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.origin.is_elsewhere() {
            // Leak the handle of the engine in this forked child, because the parent still uses the
            // engine's thread and mappings.
            self.disown();
            std::mem::forget(engine);
            return;
        }
        if engine.is_some() {
            self.hang_up();
        }
        // SAFETY: the attachment is dropped only here, and is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.attachment) };
        if let Some(engine) = engine {
            unused::finish(engine, self.origin);
        }
    }
}

impl fmt::Debug for SharedStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("origin", &self.origin).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind, Read, Write};
    use std::thread;

    use super::*;
    use crate::Stack;

    /// Stops the engine's event loop at once, which no public method can do.
    fn stop_engine(stack: &Stack) {
        let engine = stack.shared.engine.lock().expect("no panic");
        engine.as_ref().expect("it runs").remote.stop();
    }

    fn wait_for_engine(stack: &Stack) {
        let has_ended = || {
            let engine = stack.shared.engine.lock().expect("no panic");
            engine.as_ref().is_none_or(EngineThread::has_ended)
        };
        while !has_ended() {
            thread::yield_now();
        }
    }

    fn kind<T>(result: io::Result<T>) -> ErrorKind {
        result.map(drop).expect_err("the engine has ended").kind()
    }

    #[test]
    fn the_end_of_the_engine_is_an_error_in_every_call() {
        let stack = Stack::builder().loopback().start().expect("a stack");
        let listener = stack.listen("127.0.0.1:0").expect("a listener");
        let mut client = stack.connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        let waits = thread::spawn(move || server.read(&mut [0]));
        stop_engine(&stack);
        // Calls that wait, or begin to wait, fail as well.
        assert_eq!(kind(waits.join().expect("no panic")), ErrorKind::NetworkDown);
        wait_for_engine(&stack);
        assert_eq!(kind(client.write(b"x")), ErrorKind::NetworkDown);
        assert_eq!(kind(client.read(&mut [0])), ErrorKind::NetworkDown);
        assert_eq!(kind(listener.accept()), ErrorKind::NetworkDown);
        assert_eq!(kind(stack.listen("127.0.0.1:0")), ErrorKind::NetworkDown);
        let error = stack.bind_udp("127.0.0.1:0").map(drop).expect_err("the engine has ended");
        assert!(error.to_string().contains("start another"), "{error}");
        assert!(matches!(stack.shutdown(), Err(ShutdownError::Failed)));
        assert!(stack.shutdown().is_ok());
    }

    #[test]
    fn a_stack_whose_engine_has_ended_is_dropped_without_a_wait() {
        let builder = Stack::builder().loopback().linger(std::time::Duration::MAX);
        let stack = builder.start().expect("a stack");
        stop_engine(&stack);
        drop(stack);
    }
}
