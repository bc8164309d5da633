//! The thread that turns the engine of a stack.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use towpath_client::syscall::SignalsBlocked;
use towpath_engine::{Engine, Remote};
use towpath_shm::Fd;

use crate::error::{ShutdownError, StartError};

/// An engine on a thread of its own.
#[derive(Debug)]
pub(crate) struct EngineThread {
    remote: Remote,
    thread: JoinHandle<()>,
    /// Hangs up when the engine's loop has ended, however that came.
    ended: Receiver<()>,
    linger: Duration,
}

impl EngineThread {
    /// Makes the engine on the new thread, because a port stays on the thread that makes it.
    /// Returns when it is about to run, with a control socket for this process.
    pub fn start(
        make: impl FnOnce() -> Result<Engine, StartError> + Send + 'static,
        linger: Duration,
    ) -> Result<(Self, Fd), StartError> {
        let (tell, told) = mpsc::channel();
        let (alive, ended) = mpsc::channel();
        let work = move || {
            let alive = alive;
            let made = make().and_then(|mut engine| {
                let control = engine.attach_host().map_err(StartError::System)?;
                Ok((engine, Fd::from(control)))
            });
            let engine = match made {
                Ok((engine, control)) => {
                    // The receiver waits for this message.
                    let _ = tell.send(Ok((engine.remote(), control)));
                    engine
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            drop(tell);
            engine.run();
            drop(alive);
        };
        // The program's signal handlers run on the program's threads.
        let blocked = SignalsBlocked::new();
        let thread = Builder::new().name("towpath-engine".into()).spawn(work);
        drop(blocked);
        let thread = thread.map_err(StartError::System)?;
        let (remote, control) = told.recv().map_err(|_| StartError::Panicked)??;
        Ok((Self { remote, thread, ended, linger }, control))
    }

    /// Waits until the engine has sent everything and has ended, which it does after its process
    /// hung up. Ends the engine when `linger` is over.
    pub fn finish(self) -> Result<(), ShutdownError> {
        let in_time = match self.ended.recv_timeout(self.linger) {
            Err(RecvTimeoutError::Timeout) => false,
            Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
        };
        // An engine that ends meanwhile has sent everything.
        let unsent = if in_time { 0 } else { self.remote.left().map_or(0, |left| left.unsent) };
        let linger = self.linger;
        let result = self.kill();
        if unsent > 0 { Err(ShutdownError::Unsent { bytes: unsent, linger }) } else { result }
    }

    /// Ends the engine at once.
    pub fn kill(self) -> Result<(), ShutdownError> {
        self.remote.stop();
        self.thread.join().map_err(|_| ShutdownError::Failed)
    }
}
