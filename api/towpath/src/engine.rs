//! The thread that turns the engine of a stack.

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

/// An engine on a thread of its own.
pub(crate) struct EngineThread {
    pub remote: Remote,
    thread: JoinHandle<()>,
    /// Hangs up when the engine's loop has ended, however that came.
    ended: Receiver<()>,
    linger: Duration,
}

impl Recipe {
    /// The engine, with a control socket for this process, whose end is the engine's.
    fn make(self) -> Result<(Engine, Fd), StartError> {
        let mut engine = Engine::with_shards(self.config, self.ports, self.seed)?;
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
        let (alive, ended) = mpsc::channel();
        let work = move || {
            let _alive: mpsc::Sender<()> = alive;
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
            engine.map(Engine::run);
            if let Some(recording) = recording {
                // An error leaves the file incomplete, which whoever reads it is told.
                let _ = recording.finish();
            }
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

impl fmt::Debug for EngineThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineThread").field("linger", &self.linger).finish_non_exhaustive()
    }
}
