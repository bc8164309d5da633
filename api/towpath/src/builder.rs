//! How a stack is connected, and how it is started.

use std::sync::Arc;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use towpath_engine::{Engine, EngineConfig};

use crate::engine::EngineThread;
use crate::error::StartError;
use crate::fork::Origin;
use crate::shared::Shared;
use crate::stack::Stack;

/// Default of [`Builder::linger`]. Peers on a link that works have everything in much less, also
/// after a loss or two. A peer that reads nothing holds up the end of a program for no longer.
const LINGER: Duration = Duration::from_secs(5);

/// A stack to be: see [`Stack::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct Builder {
    link: Option<Link>,
    linger: Duration,
}

/// The link of a stack.
#[derive(Debug, Clone)]
enum Link {
    Loopback,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self { link: None, linger: LINGER }
    }

    /// Connects the stack to nothing: its sockets reach each other by 127.0.0.1 and ::1.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn loopback(mut self) -> Self {
        self.link = Some(Link::Loopback);
        self
    }

    /// Bound on the time for which the end of the stack waits until peers have what was written;
    /// 5 seconds unless this is called.
    ///
    /// Dropping the last handle of a stack, or [`Stack::shutdown`], waits as long as peers take,
    /// and no longer than this. Connections that are not through by then are reset. Zero: nothing
    /// is waited for.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let builder = towpath::Stack::builder().loopback();
    /// let stack = builder.linger(Duration::from_millis(200)).start()?;
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn linger(mut self, most: Duration) -> Self {
        self.linger = most;
        self
    }

    /// Starts the stack on a thread of its own.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left behind.
    pub fn start(self) -> Result<Stack, StartError> {
        let Some(Link::Loopback) = self.link else { return Err(StartError::NoLink) };
        let origin = Origin::here().map_err(|errno| StartError::System(errno.into()))?;
        let make = || {
            let config = EngineConfig { exit_when_unused: true, ..EngineConfig::default() };
            Engine::new(config, Vec::new(), random()?).map_err(StartError::from_engine)
        };
        let (engine, control) = EngineThread::start(make, self.linger)?;
        let shared = Shared::new(engine, control, origin)?;
        Ok(Stack { shared: Arc::new(shared) })
    }
}

/// Bytes that nobody can guess: initial sequence numbers and ports come from them.
fn random() -> Result<[u8; 32], StartError> {
    let mut bytes = [0; 32];
    // Up to 256 bytes come whole once the system has started.
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| StartError::System(errno.into()))?;
    Ok(bytes)
}
