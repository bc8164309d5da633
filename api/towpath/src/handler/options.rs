//! Addresses and limits of a handler, and the creation of its service.

use std::any::type_name;
use std::net::SocketAddr;
use std::sync::Arc;
use std::{fmt, io};

use towpath_direct::{BufferSizes, DirectConfig, StreamOptions};
use towpath_engine::Service;

use super::counters::SharedCounters;
use super::handler_trait::Handler;
use super::service::HandlerService;

/// Default backlog of a listener, equal to Linux's default `somaxconn`. Connections are accepted in
/// the iteration of the event loop that completes their handshake, so only a flood fills the
/// backlog.
const BACKLOG: u32 = 4096;

/// Addresses and limits of a handler: see [`Builder::serve`](crate::Builder::serve).
///
/// ```
/// use towpath::handler::ServeOptions;
///
/// let web = ServeOptions::new().listen("0.0.0.0:80").listen("0.0.0.0:8080").sockets_max(10_000);
/// let dns = ServeOptions::new().udp("0.0.0.0:53");
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until they are passed to `Builder::serve`"]
pub struct ServeOptions {
    pub(super) listen: Vec<String>,
    pub(super) udp: Vec<String>,
    pub(super) limits: DirectConfig,
    backlog: u32,
}

/// Listeners and UDP sockets that a handler has from the beginning.
#[derive(Debug, Clone)]
pub(super) struct FirstSockets {
    pub listen: Vec<SocketAddr>,
    pub udp: Vec<SocketAddr>,
    pub backlog: u32,
    pub streams: StreamOptions,
    pub limits: DirectConfig,
}

impl ServeOptions {
    /// Creates options without an address, for a handler that only initiates connections.
    pub fn new() -> Self {
        let limits = DirectConfig::default();
        Self { listen: Vec::new(), udp: Vec::new(), limits, backlog: BACKLOG }
    }

    /// Adds an address on which the handler accepts connections, such as `0.0.0.0:80` or `[::]:80`.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen.push(address.into());
        self
    }

    /// Adds an address at which the handler receives datagrams.
    pub fn udp(mut self, address: impl Into<String>) -> Self {
        self.udp.push(address.into());
        self
    }

    /// Sets the maximum number of connections and other sockets of each thread. The default is
    /// 1,048,576. Further connections are not accepted until existing ones have ended.
    pub fn sockets_max(mut self, count: usize) -> Self {
        self.limits.sockets_max = count;
        self
    }

    /// Sets the initial and maximum size of each connection's receive buffer in bytes. The default
    /// is 128 KiB and 6 MiB.
    pub fn recv_buffer(mut self, initial: u32, max: u32) -> Self {
        self.limits.buffers = BufferSizes { recv: initial, recv_max: max, ..self.limits.buffers };
        self
    }

    /// Sets the initial and maximum size of each connection's send buffer in bytes. The default is
    /// 64 KiB and 4 MiB.
    pub fn send_buffer(mut self, initial: u32, max: u32) -> Self {
        self.limits.buffers = BufferSizes { send: initial, send_max: max, ..self.limits.buffers };
        self
    }

    /// Sets the maximum number of connections that may wait to be accepted. Connections are
    /// accepted once per iteration of the event loop. The default is 4096.
    pub fn backlog(mut self, count: u32) -> Self {
        self.backlog = count;
        self
    }

    /// Parses the addresses. An error contains the invalid text and the reason.
    fn sockets(&self) -> Result<FirstSockets, (String, String)> {
        let parse = |text: &String| {
            text.parse::<SocketAddr>().map_err(|_| {
                let expected = "expected an address and a port, as 0.0.0.0:80 or [::]:80";
                (text.clone(), expected.into())
            })
        };
        let buffers = Some(self.limits.buffers);
        Ok(FirstSockets {
            listen: self.listen.iter().map(parse).collect::<Result<_, _>>()?,
            udp: self.udp.iter().map(parse).collect::<Result<_, _>>()?,
            backlog: self.backlog,
            streams: StreamOptions { buffers, ..stream_options() },
            limits: self.limits,
        })
    }
}

/// Returns the socket options of all connections. Nagle's algorithm is disabled: the stack sends
/// all bytes of a handler call together, so the algorithm would only delay the last segment.
fn stream_options() -> StreamOptions {
    StreamOptions { nodelay: true, ..StreamOptions::default() }
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Converts an address to options that listen on it.
impl From<&str> for ServeOptions {
    fn from(address: &str) -> Self {
        Self::new().listen(address)
    }
}

/// Converts an address to options that listen on it.
impl From<String> for ServeOptions {
    fn from(address: String) -> Self {
        Self::new().listen(address)
    }
}

/// Converts an address to options that listen on it.
impl From<SocketAddr> for ServeOptions {
    fn from(address: SocketAddr) -> Self {
        Self::new().listen(address.to_string())
    }
}

/// Result of creating a handler on one shard of the engine: its engine service and its counters.
pub(super) type MadeService = io::Result<(Box<dyn Service>, Arc<SharedCounters>)>;
type MakeService = dyn Fn(usize, FirstSockets) -> MadeService + Send + Sync;

/// A handler that was added to a builder, and its options.
#[derive(Clone)]
pub(crate) struct HandlerSpec {
    options: ServeOptions,
    make: Arc<MakeService>,
}

impl HandlerSpec {
    pub fn new<H: Handler>(
        options: ServeOptions,
        make: impl Fn(usize) -> H + Send + Sync + 'static,
    ) -> Self {
        let make = move |shard, sockets| {
            let counters = Arc::new(SharedCounters::new(type_name::<H>(), shard));
            let service = HandlerService::new(make(shard), shard, sockets, counters.clone())?;
            Ok((Box::new(service) as Box<dyn Service>, counters))
        };
        Self { options, make: Arc::new(make) }
    }

    /// Validates the addresses. An error contains the invalid text and the reason.
    pub fn check(&self) -> Result<(), (String, String)> {
        self.options.sockets().map(drop)
    }

    /// Creates the service that runs the handler on a shard.
    pub fn service(&self, shard: usize) -> MadeService {
        let sockets = self.options.sockets();
        let sockets = sockets.map_err(|(text, why)| io::Error::other(format!("{text}: {why}")))?;
        (self.make)(shard, sockets)
    }
}

impl fmt::Debug for HandlerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerSpec").field("options", &self.options).finish_non_exhaustive()
    }
}
