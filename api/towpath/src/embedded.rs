//! An engine without an attachment, for an API of another language. Not part of the Rust API.

use std::net::IpAddr;

use towpath_shm::Fd;

use crate::builder::Builder;
use crate::engine::EngineThread;
use crate::error::{ShutdownError, StartError};
use crate::fork::Origin;
use crate::place::{Published, StackAddresses};

/// An engine that runs on its own thread, to which the caller attaches this process.
#[derive(Debug)]
pub struct EmbeddedEngine {
    engine: EngineThread,
    place: StackAddresses,
}

impl EmbeddedEngine {
    /// Starts the engine, and returns the control socket of this process.
    ///
    /// # Errors
    /// As for [`Builder::start`].
    pub fn start(builder: Builder) -> Result<(Self, Fd), StartError> {
        // Forget the thread id of the parent if this process is a forked child.
        Origin::here()?;
        let linger = builder.linger;
        let (recipe, place) = builder.recipe()?;
        let (engine, control) = EngineThread::start(recipe, linger)?;
        Ok((Self { engine, place }, control))
    }

    /// Returns the stack's addresses on its link.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.place.addresses
    }

    /// Returns the ports of this machine that are forwarded to the stack.
    pub fn published(&self) -> &[Published] {
        &self.place.published
    }

    /// Starts the linger time, so that [`Self::finish`] waits only for the rest of it.
    pub fn begin_linger(&mut self) {
        self.engine.begin_linger();
    }

    /// Waits until the engine has sent all data and ended. The caller must have shut the control
    /// socket down.
    ///
    /// # Errors
    /// As for [`Stack::shutdown`](crate::Stack::shutdown); `Failed` if the engine panicked.
    pub fn finish(self) -> Result<(), ShutdownError> {
        self.engine.finish()
    }

    /// Stops the engine at once.
    pub fn kill(self) {
        self.engine.kill();
    }

    /// Returns whether the current thread runs an engine, so that it cannot wait for one.
    pub fn is_current_thread() -> bool {
        EngineThread::is_current_thread()
    }
}
