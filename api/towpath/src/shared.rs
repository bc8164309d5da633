//! The one thing that handles of a stack and its sockets share.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use rustix::net::Shutdown;
use towpath_client::Client;
use towpath_shm::Fd;

use crate::attachment::Attachment;
use crate::engine::EngineThread;
use crate::error::{ShutdownError, StartError};
use crate::fork::Origin;

/// A running stack. Its last handle drops it.
pub(crate) struct Shared {
    /// Dropped in `drop`, where it is this process's.
    attachment: ManuallyDrop<Attachment>,
    /// None: [`Self::shutdown`] has ended the thread, or this process is a child of the one that
    /// has it.
    engine: Mutex<Option<EngineThread>>,
    origin: Origin,
}

impl Shared {
    /// Attaches this process to the engine that `engine` runs.
    pub fn new(engine: EngineThread, control: Fd, origin: Origin) -> Result<Self, StartError> {
        match Attachment::new(control) {
            Ok(attachment) => Ok(Self {
                attachment: ManuallyDrop::new(attachment),
                engine: Mutex::new(Some(engine)),
                origin,
            }),
            Err(error) => {
                let _ = engine.kill();
                Err(StartError::from_client(error))
            }
        }
    }

    /// The attachment, with which all calls on sockets are made. In a child of the process that
    /// made the stack every one of them fails.
    #[inline]
    #[allow(dead_code, reason = "sockets use it")]
    pub fn client(&self) -> &Client {
        if self.origin.is_elsewhere() {
            self.disown();
        }
        self.attachment.client()
    }

    #[cold]
    fn disown(&self) {
        let client = self.attachment.client();
        if !client.is_abandoned() {
            client.disown();
        }
    }

    /// Sends what was written and ends the engine.
    pub fn shutdown(&self) -> Result<(), ShutdownError> {
        if self.origin.is_elsewhere() {
            self.disown();
            return Err(ShutdownError::Forked);
        }
        // Held while waiting: a second thread that shuts down returns when everything is over.
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = engine.take() else { return Ok(()) };
        self.hang_up();
        engine.finish()
    }

    /// Has the engine see the end of this process. The engine closes all sockets, as those of a
    /// process that exits, and ends when their bytes are sent. A copy of the control socket in a
    /// child of this process does not keep the engine from that.
    fn hang_up(&self) {
        let control = self.attachment.client().control();
        let _ = rustix::net::shutdown(control.borrow(), Shutdown::Both);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let engine = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.origin.is_elsewhere() {
            // The thread is the parent's, and so are the mappings, of which the parent's threads
            // may have been in the midst.
            self.disown();
            std::mem::forget(engine);
            return;
        }
        if engine.is_some() {
            self.hang_up();
        }
        // SAFETY: dropped here alone, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.attachment) };
        if let Some(engine) = engine {
            // A drop has nobody to tell; `shutdown` does.
            let _ = engine.finish();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("origin", &self.origin).finish_non_exhaustive()
    }
}
