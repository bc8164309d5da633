//! Methods that add event handlers to a stack.

use super::counters::HandlerCounters;
use super::handler_trait::Handler;
use super::options::{HandlerSpec, ServeOptions};
use super::services::HandlerServices;
use crate::builder::{Builder, wrong};
use crate::error::StartError;
use crate::stack::Stack;

impl Builder {
    /// Adds an event handler, which runs on the stack's thread: see [`handler`](crate::handler).
    ///
    /// `at` is an address to listen on, as `0.0.0.0:7`, or [`ServeOptions`]. `make` is called once
    /// for each thread, with the thread's number, and returns its handler. May be called several
    /// times.
    ///
    /// ```
    /// use towpath::handler::{Conn, ConnAction, Handler};
    ///
    /// struct Discard;
    ///
    /// impl Handler for Discard {
    ///     type State = ();
    ///
    ///     fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
    ///         conn.reader().skip(usize::MAX);
    ///         ConnAction::Continue
    ///     }
    /// }
    ///
    /// let stack = towpath::Stack::builder().loopback().serve("0.0.0.0:9", |_| Discard).start()?;
    /// let connection = stack.connect("127.0.0.1:9")?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn serve<H: Handler>(
        mut self,
        at: impl Into<ServeOptions>,
        make: impl Fn(usize) -> H + Send + Sync + 'static,
    ) -> Self {
        self.handlers.push(HandlerSpec::new(at.into(), make));
        self
    }

    /// Creates the services that run the handlers, for each shard.
    pub(crate) fn services(&self) -> Result<HandlerServices, StartError> {
        let mut services = HandlerServices::default();
        for spec in &self.handlers {
            spec.check().map_err(|(text, why)| wrong("serve", &text, &why))?;
            let on_shards = (0..self.shards).map(|shard| spec.service(shard));
            services.add(on_shards).map_err(StartError::System)?;
        }
        Ok(services)
    }
}

impl Stack {
    /// Returns the counters of the stack's [handlers](crate::handler), one for each handler and
    /// thread, also after the end of the stack.
    ///
    /// ```
    /// # use towpath::handler::{Conn, ConnAction, Handler};
    /// # struct Discard;
    /// # impl Handler for Discard {
    /// #     type State = ();
    /// #     fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
    /// #         conn.reader().skip(usize::MAX);
    /// #         ConnAction::Continue
    /// #     }
    /// # }
    /// let stack = towpath::Stack::builder().loopback().serve("0.0.0.0:9", |_| Discard).start()?;
    /// let counters = stack.handlers();
    /// assert_eq!((counters.len(), counters[0].panics), (1, 0));
    /// assert!(counters[0].name.ends_with("Discard"));
    /// # Ok::<(), towpath::StartError>(())
    /// ```
    pub fn handlers(&self) -> Vec<HandlerCounters> {
        self.shared.handlers.iter().map(|counters| counters.snapshot()).collect()
    }
}
