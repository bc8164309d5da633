//! The thread that turns the engine of a stack.

use std::cell::Cell;
use std::fmt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use towpath_client::syscall::SignalsBlocked;
use towpath_engine::{Engine, EngineConfig, Remote};
use towpath_pool::Port;
use towpath_shm::Fd;
use towpath_uplink::Recording;

use crate::error::{ShutdownError, StartError};

/// Everything that an engine is made of.
pub(crate) struct Recipe {
    pub config: EngineConfig,
    /// Ports of each shard.
    pub ports: Vec<Vec<Box<dyn Port + Send>>>,
    pub seed: [u8; 32],
    /// File into which packets are recorded.
    pub recording: Option<Recording>,
}

std::thread_local! {
    /// The thread turns an engine.
    static IS_ENGINE: Cell<bool> = const { Cell::new(false) };
}

/// An engine on a thread of its own.
pub(crate) struct EngineThread {
    pub remote: Remote,
    thread: JoinHandle<()>,
    /// Bytes that were lost when the engine's loop ended. Hangs up when that panicked.
    ended: Receiver<u64>,
    linger: Duration,
}

impl Recipe {
    /// The engine, with a control socket for this process, whose end is the engine's.
    fn make(self) -> Result<(Engine, Fd), StartError> {
        let engine = Engine::with_shards(self.config, self.ports, self.seed);
        let mut engine = engine.map_err(StartError::from_engine)?;
        if let Some(recording) = &self.recording {
            recording.add_drops(&mut engine);
        }
        let control = engine.attach_host().map_err(StartError::System)?;
        Ok((engine, control.into()))
    }
}

impl EngineThread {
    /// Returns when the engine is about to run on the new thread.
    pub fn start(recipe: Recipe, linger: Duration) -> Result<(Self, Fd), StartError> {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let work = move || {
            IS_ENGINE.set(true);
            let recording = recipe.recording.clone();
            let made = recipe.make();
            let (engine, made) = match made {
                Ok((engine, control)) => {
                    let remote = engine.remote();
                    (Some(engine), Ok((remote, control)))
                }
                Err(error) => (None, Err(error)),
            };
            // The receiver waits for this message.
            let _ = tell.send(made);
            drop(tell);
            let report = engine.map(Engine::run);
            if let Some(recording) = recording {
                // An error leaves the file incomplete, which whoever reads it is told.
                let _ = recording.finish();
            }
            // A stack that cannot be started has no receiver.
            let _ = end.send(report.map_or(0, |report| report.unsent));
        };
        // The program's signal handlers run on the program's threads.
        let blocked = SignalsBlocked::new();
        let thread = Builder::new().name("towpath-engine".into()).spawn(work);
        drop(blocked);
        let thread = thread.map_err(StartError::System)?;
        let made = told.recv().unwrap_or(Err(StartError::Panicked));
        match made {
            Ok((remote, control)) => Ok((Self { remote, thread, ended, linger }, control)),
            Err(error) => {
                // The thread ends. A panic of it is told by the error.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// Whether the caller is the thread of an engine.
    pub fn is_current_thread() -> bool {
        IS_ENGINE.get()
    }

    /// Whether the engine has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the engine has sent everything and has ended, which it does after its process
    /// hung up. Ends the engine when `linger` is over.
    pub fn finish(self) -> Result<(), ShutdownError> {
        let linger = self.linger;
        let ended = self.ended.recv_timeout(linger).or_else(|error| match error {
            RecvTimeoutError::Timeout => {
                // Shards on threads of their own reset their connections before they are counted.
                let left = self.remote.left().map_or(0, |left| left.unsent);
                self.remote.stop();
                self.ended.recv().map(|lost| lost.max(left)).map_err(|_| ShutdownError::Failed)
            }
            RecvTimeoutError::Disconnected => Err(ShutdownError::Failed),
        });
        // The thread has nothing left to do. A panic of it is told by `ended`.
        let _ = self.thread.join();
        match ended? {
            0 => Ok(()),
            bytes => Err(ShutdownError::Unsent { bytes, linger }),
        }
    }

    /// Ends the engine at once.
    pub fn kill(self) {
        self.remote.stop();
        // A panic of the thread was printed, and the engine has ended with it.
        let _ = self.thread.join();
    }
}

impl fmt::Debug for EngineThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineThread").field("linger", &self.linger).finish_non_exhaustive()
    }
}
