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

/// A TCP/IP stack in this process, which acts as a separate host.
///
/// Clones are handles of the same stack, and sockets hold a handle too: see [the lifetime of a
/// stack](crate).
#[derive(Debug, Clone)]
#[must_use = "a stack ends when its last handle is dropped"]
pub struct Stack {
    pub(crate) shared: Arc<SharedStack>,
}

impl Stack {
    /// Returns a builder, which configures the link of a new stack.
    ///
    /// ```
    /// let stack = towpath::Stack::builder().loopback().start()?;
    /// # drop(stack);
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Starts two hosts connected by a link in memory, for tests: 10.0.0.1 and fd00::1, and
    /// 10.0.0.2 and fd00::2.
    ///
    /// The link carries IP packets of up to 1500 bytes without loss while both hosts exist. The
    /// hosts have no other routes. Use [`Builder::pair`] for other values, such as delay and loss.
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
        let handlers = recipe.services.counters.clone();
        let (engine, control) = EngineThread::start(recipe, linger)?;
        let mut shared = SharedStack::new(engine, control, place, origin)?;
        shared.handlers = handlers;
        let shared = Arc::new(shared);
        exit::register(&shared);
        Ok(Self { shared })
    }

    /// Returns the stack's addresses on its link. Without [`Builder::address`], the IPv4 address is
    /// first. 127.0.0.1 and ::1 are not listed, so a stack without a link returns none.
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

    /// Returns the ports of this machine that are forwarded to the stack: see [`Builder::publish`].
    /// Ports that the kernel chose come last.
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

    /// Makes this the default stack of the process. Functions that do not name a stack, such as
    /// `towpath::net::TcpListener::bind`, use it on threads that have not [entered](Self::enter)
    /// another stack.
    ///
    /// The process then keeps the stack alive, even if all other handles are dropped, until [the
    /// process ends](crate#lifetime-of-a-stack). To release it earlier, set another default or call
    /// [`Self::clear_default`].
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

    /// Clears the default stack of the process. The stack continues to run while it has other
    /// handles.
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

    /// Makes this the current stack of this thread until the result is dropped. Then the previous
    /// stack is current again.
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

    /// Ends the stack: sends all written data, for at most [`Builder::linger`], and then ends its
    /// thread.
    ///
    /// Remaining sockets fail from now on with [`std::io::ErrorKind::NetworkDown`], including calls
    /// that wait on other threads. A second call does nothing and succeeds.
    ///
    /// # Errors
    /// [`ShutdownError::Unsent`]: peers did not acknowledge all data within that time, and were
    /// reset. [`ShutdownError::Failed`]: the stack's thread had already ended, and unsent data is
    /// lost. [`ShutdownError::Forked`]: the stack belongs to the parent process.
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
