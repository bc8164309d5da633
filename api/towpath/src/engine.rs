//! The thread that runs the engine of a stack.

use std::cell::Cell;
use std::fmt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use towpath_client::syscall::SignalsBlocked;
use towpath_engine::{Engine, EngineConfig, Remote};
use towpath_pool::Port;
use towpath_shm::Fd;
use towpath_uplink::{Followed, MtuFollower, Recording};

use crate::error::{ShutdownError, StartError};
use crate::handler::HandlerServices;

/// Everything needed to create an engine: configuration, ports, seed, recording and handlers.
pub(crate) struct Recipe {
    pub config: EngineConfig,
    /// Network ports of the engine, one list for each shard (engine thread).
    pub ports: Vec<Vec<Box<dyn Port + Send>>>,
    pub seed: [u8; 32],
    /// Capture file to which packets are recorded, if any.
    pub recording: Option<Recording>,
    /// Event handlers that the engine runs.
    pub services: HandlerServices,
    /// Kernel interface whose MTU changes the engine adopts, if any.
    pub followed: Option<Followed>,
}

std::thread_local! {
    /// Whether this thread runs an engine.
    static IS_ENGINE: Cell<bool> = const { Cell::new(false) };
}

/// An engine that runs on its own thread.
pub(crate) struct EngineThread {
    pub remote: Remote,
    thread: JoinHandle<()>,
    /// Channel on which the engine's thread sends the number of lost bytes when the engine ends. If
    /// the thread panics, the channel is disconnected.
    ended: Receiver<u64>,
    linger: Duration,
    /// Time at which [`Self::finish`] stops waiting for unsent data, if [`Self::begin_linger`] was
    /// called. Otherwise `finish` waits for `linger`.
    lingers_until: Option<Instant>,
    /// Thread that adopts MTU changes of the kernel interface, if there is one.
    _follower: Option<MtuFollower>,
}

impl Recipe {
    /// Creates the engine, and the control socket by which this process connects to it. The engine
    /// ends when this process disconnects.
    fn make(self) -> Result<(Engine, Fd), StartError> {
        let engine = Engine::with_shards(self.config, self.ports, self.seed);
        let mut engine = engine.map_err(StartError::from_engine)?;
        if let Some(recording) = &self.recording {
            recording.add_drops(&mut engine);
        }
        for services in self.services.services {
            engine.add_services(services).map_err(StartError::from_service)?;
        }
        let control = engine.attach_host().map_err(StartError::System)?;
        Ok((engine, control.into()))
    }
}

impl EngineThread {
    /// Starts an engine on a new thread, and returns when the engine is ready to run.
    pub fn start(mut recipe: Recipe, linger: Duration) -> Result<(Self, Fd), StartError> {
        let followed = recipe.followed.take();
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
            // The send cannot fail, because `start` waits for this message.
            let _ = tell.send(made);
            drop(tell);
            let report = engine.map(Engine::run);
            if let Some(recording) = recording {
                // Ignore errors: programs that read the capture file detect that it is incomplete.
                let _ = recording.finish();
            }
            // Ignore errors: if the stack could not be started, there is no receiver.
            let _ = end.send(report.map_or(0, |report| report.unsent));
        };
        // Block signals, because the program's handlers must run on the program's threads.
        let blocked = SignalsBlocked::new();
        let thread = Builder::new().name("towpath-engine".into()).spawn(work);
        drop(blocked);
        let thread = thread.map_err(StartError::System)?;
        let made = told.recv().unwrap_or(Err(StartError::Panicked));
        match made {
            Ok((remote, control)) => {
                let follower = followed.and_then(|followed| follow_mtu(followed, &remote));
                let engine = Self {
                    remote,
                    thread,
                    ended,
                    linger,
                    lingers_until: None,
                    _follower: follower,
                };
                Ok((engine, control))
            }
            Err(error) => {
                // Wait for the thread to end. Ignore the result, because `error` already reports a
                // panic.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// Returns whether the current thread runs an engine.
    pub fn is_current_thread() -> bool {
        IS_ENGINE.get()
    }

    /// Returns whether the engine has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Starts the linger time, the limit for sending remaining data. [`Self::finish`] then waits
    /// only for the remaining part.
    pub fn begin_linger(&mut self) {
        self.lingers_until = Instant::now().checked_add(self.linger);
    }

    /// Waits until the engine has sent all data and ended. Stops the engine after the linger time.
    /// The caller must have shut the control socket down before.
    pub fn finish(self) -> Result<(), ShutdownError> {
        let linger = self.linger;
        let rest = |until: Instant| until.saturating_duration_since(Instant::now());
        let rest = self.lingers_until.map_or(linger, rest);
        let ended = self.ended.recv_timeout(rest).or_else(|error| match error {
            RecvTimeoutError::Timeout => {
                // Count unsent bytes before the engine stops. When it stops, shards on other
                // threads reset their connections, which discards these bytes.
                let left = self.remote.left().map_or(0, |left| left.unsent);
                self.remote.stop();
                self.ended.recv().map(|lost| lost.max(left)).map_err(|_| ShutdownError::Failed)
            }
            RecvTimeoutError::Disconnected => Err(ShutdownError::Failed),
        });
        // Wait for the thread to end. Ignore the result: after a panic, `ended` is already an
        // error.
        let _ = self.thread.join();
        match ended? {
            0 => Ok(()),
            bytes => Err(ShutdownError::Unsent { bytes, linger }),
        }
    }

    /// Stops the engine at once, without sending remaining data.
    pub fn kill(self) {
        self.remote.stop();
        // Ignore a panic of the thread: its message was printed, and the engine has ended.
        let _ = self.thread.join();
    }
}

/// Starts to adopt MTU changes of the kernel interface below a stack. Otherwise the kernel would
/// reject the stack's frames after a lower MTU, and connections would hang. Returns `None` if no
/// thread or descriptor is available.
fn follow_mtu(followed: Followed, remote: &Remote) -> Option<MtuFollower> {
    // Block signals, because the program's handlers must run on the program's threads.
    let _signals = SignalsBlocked::new();
    // Ignore messages and errors, because a library cannot show them.
    MtuFollower::of_engine(followed, remote.clone(), |_| {}).ok()
}

impl fmt::Debug for EngineThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineThread").field("linger", &self.linger).finish_non_exhaustive()
    }
}
