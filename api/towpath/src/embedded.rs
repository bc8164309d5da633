//! Engine for bindings to other languages, such as the C API. A binding connects this process to
//! the engine itself. Not part of the Rust API.

use std::net::IpAddr;

use towpath_shm::Fd;

use crate::builder::Builder;
use crate::engine::EngineThread;
use crate::error::{ShutdownError, StartError};
use crate::fork::Origin;
use crate::place::{Published, StackAddresses};

/// An engine that runs on its own thread. The caller connects this process to it by a control
/// socket.
#[derive(Debug)]
pub struct EmbeddedEngine {
    engine: EngineThread,
    place: StackAddresses,
}

impl EmbeddedEngine {
    /// Starts the engine. Returns it with the control socket by which this process connects to it.
    ///
    /// # Errors
    /// As for [`Builder::start`].
    pub fn start(builder: Builder) -> Result<(Self, Fd), StartError> {
        // Check whether this process was forked. A forked child must clear the thread ids that its
        // parent has cached.
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

    /// Starts the linger time, the limit for sending remaining data. [`Self::finish`] then waits
    /// only for the remaining part.
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

    /// Stops the engine at once, without sending remaining data.
    pub fn kill(self) {
        self.engine.kill();
    }

    /// Returns whether the current thread runs an engine, and so must not wait for one.
    pub fn is_current_thread() -> bool {
        EngineThread::is_current_thread()
    }
}
