//! Intercepted traffic: of a client in memory over channels, and of the kernel over TUN devices.

mod bad_input;
mod cancel;
mod client;
mod examples;
mod limits;
mod stream_sink;
mod tcp;
mod tun;
mod udp;

use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use towpath::intercept::{InterceptBuilder, Intercepted, Interceptor};

use client::Client;

/// Limit on every wait.
const PATIENCE: Duration = Duration::from_secs(60);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Runs a test on both kinds of runtimes.
fn on_both<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for runtime in [current_thread(), multi_thread()] {
        let limited = async { tokio::time::timeout(PATIENCE, test()).await.expect("in time") };
        runtime.block_on(limited);
    }
}

/// Creates a client on a pair of channels, and an interceptor whose runner is spawned.
fn pair(configure: impl FnOnce(InterceptBuilder) -> InterceptBuilder) -> (Client, Spawned) {
    let (client, receiver, sender) = Client::new();
    let builder = configure(Interceptor::builder().channels(receiver, sender));
    let Intercepted { runner, tcp, udp, echo, interceptor, .. } = builder.build().expect("built");
    let runner = tokio::spawn(runner);
    (client, Spawned { runner, tcp, udp, echo, interceptor })
}

/// Parts of an interceptor.
struct Spawned {
    runner: tokio::task::JoinHandle<std::io::Result<()>>,
    tcp: towpath::intercept::TcpListener,
    udp: towpath::intercept::UdpSocket,
    echo: Option<towpath::intercept::EchoSocket>,
    interceptor: Interceptor,
}

/// Bytes that show a loss, a repetition or a wrong order.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}
