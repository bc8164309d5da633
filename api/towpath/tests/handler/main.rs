//! Event handlers of a stack.

mod allocations;
mod bad_input;
mod behaviour;
mod examples;
mod handlers;
mod threads;

use std::io::Read;
use std::time::Duration;

use towpath::Stack;
use towpath::handler::{Handler, ServeOptions};
use towpath::net::TcpStream;

/// Limit of each wait of a test, which passes much earlier.
const LIMIT: Duration = Duration::from_secs(30);

/// Two hosts, the first of which has a handler at port 7.
pub struct Hosts {
    pub server: Stack,
    pub client: Stack,
}

impl Hosts {
    pub fn new<H: Handler>(make: impl Fn(usize) -> H + Send + Sync + 'static) -> Self {
        Self::with(ServeOptions::new().listen("0.0.0.0:7"), make)
    }

    pub fn with<H: Handler>(
        options: ServeOptions,
        make: impl Fn(usize) -> H + Send + Sync + 'static,
    ) -> Self {
        let builder = Stack::builder().linger(Duration::ZERO);
        let (server, client) = builder.serve(options, make).pair().expect("two hosts");
        Self { server, client }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = self.client.connect("10.0.0.1:7").expect("the handler listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a valid timeout");
        stream.set_write_timeout(Some(LIMIT)).expect("a valid timeout");
        stream
    }

    /// Waits until the counters of the handler fulfil a condition.
    pub fn until(&self, condition: impl Fn(&towpath::handler::HandlerCounters) -> bool) {
        let begin = std::time::Instant::now();
        while !condition(&self.server.handlers()[0]) {
            assert!(begin.elapsed() < LIMIT, "{:?}", self.server.handlers());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads `n` bytes.
pub fn read(stream: &mut TcpStream, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    stream.read_exact(&mut bytes).expect("the handler answers");
    bytes
}
