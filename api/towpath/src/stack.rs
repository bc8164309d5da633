//! The handle of a stack.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::builder::Builder;
use crate::current::{self, Entered};
use crate::engine::{EngineThread, Recipe};
use crate::error::{ShutdownError, StartError};
use crate::exit;
use crate::fork::Origin;
use crate::place::{Published, StackAddresses};
use crate::shared::SharedStack;

/// A TCP/IP stack: a host of its own, in this process.
///
/// Clones are handles of the same stack. Sockets hold one, too: see [the life of a stack](crate).
#[derive(Debug, Clone)]
#[must_use = "a stack ends when its last handle is dropped"]
pub struct Stack {
    pub(crate) shared: Arc<SharedStack>,
}

impl Stack {
    /// Begins to say how a stack is connected.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// # drop(stack);
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Two hosts that are joined by a link in memory, for tests: 10.0.0.1 and fd00::1, and
    /// 10.0.0.2 and fd00::2.
    ///
    /// The link carries IP packets of 1500 bytes and loses nothing while both are there. Neither
    /// has a route to anywhere else. [`Builder::pair`] makes hosts with other values, as a link
    /// with delay and loss.
    ///
    /// # Errors
    /// [`StartError::AddressSpace`] and [`StartError::System`].
    ///
    /// ```
    /// let (server, client) = towpath::Stack::pair()?;
    /// assert_eq!(server.addresses()[0].to_string(), "10.0.0.1");
    /// assert_eq!(client.addresses()[0].to_string(), "10.0.0.2");
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn pair() -> Result<(Self, Self), StartError> {
        Self::builder().pair()
    }

    /// Starts the engine of a stack, and attaches this process to it.
    pub(crate) fn begin(
        recipe: Recipe,
        place: StackAddresses,
        linger: Duration,
        origin: Origin,
    ) -> Result<Self, StartError> {
        let (engine, control) = EngineThread::start(recipe, linger)?;
        let shared = SharedStack::new(engine, control, place, origin)?;
        let shared = Arc::new(shared);
        exit::register(&shared);
        Ok(Self { shared })
    }

    /// Addresses of the stack on its link, those of IPv4 first unless the builder was given
    /// others. A stack without a link has none but 127.0.0.1 and ::1, which are not told.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().rootless().start()?;
    /// let all: Vec<_> = stack.addresses().iter().map(|address| address.to_string()).collect();
    /// assert_eq!(all, ["10.0.2.15", "fd00:2::15"]);
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn addresses(&self) -> &[IpAddr] {
        &self.shared.place().addresses
    }

    /// Ports of this machine that lead to the stack: see [`Builder::publish`]. Ports that the
    /// kernel chose come last.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().rootless().publish("127.0.0.1::80").start()?;
    /// let published = stack.published()[0];
    /// assert_eq!((published.port, published.host.ip().is_loopback()), (80, true));
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn published(&self) -> &[Published] {
        &self.shared.place().published
    }

    /// Makes this the stack of all threads that have [entered](Self::enter) none: there
    /// `towpath::net::TcpListener::bind` and its kin, which name no stack, use it.
    ///
    /// The process keeps the stack alive from then on, until another one takes its place,
    /// [`Self::clear_default`] is called, or [the process ends](crate#life-of-a-stack). Dropping
    /// other handles then ends nothing.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// stack.set_default();
    /// // ... towpath::net::TcpListener::bind("127.0.0.1:80")
    /// towpath::Stack::clear_default();
    /// stack.shutdown()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_default(&self) {
        current::set_default(Some(Arc::clone(&self.shared)));
    }

    /// Lets go of the stack that [`Self::set_default`] was called on, which lives on while it has
    /// other handles.
    ///
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// towpath::Stack::builder().loopback().start()?.set_default();
    /// towpath::Stack::clear_default();
    /// let error = towpath::net::TcpStream::connect("127.0.0.1:80").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotConnected);
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn clear_default() {
        current::set_default(None);
    }

    /// Makes this the stack of the current thread until the result is dropped; then the one
    /// before is.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// {
    ///     let _inside = stack.enter();
    ///     // Here towpath::net::TcpStream::connect(..) is a connection of `stack`.
    /// }
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn enter(&self) -> Entered {
        current::enter(Arc::clone(&self.shared))
    }

    /// Ends the stack: sends what was written, for at most [`Builder::linger`], and then ends its
    /// thread.
    ///
    /// Sockets that are still there fail from now on with [`std::io::ErrorKind::NetworkDown`],
    /// also in calls of other threads that wait. A second call does nothing and succeeds.
    ///
    /// # Errors
    /// [`ShutdownError::Unsent`]: peers did not take everything within that time, and saw a
    /// reset. [`ShutdownError::Failed`]: the thread of the stack had ended by itself, with what
    /// was not sent. [`ShutdownError::Forked`]: the stack is the parent process's.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// stack.shutdown()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn shutdown(&self) -> Result<(), ShutdownError> {
        self.shared.shutdown()
    }
}
