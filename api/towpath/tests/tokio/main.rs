//! Sockets for the Tokio runtime, on the loopback interface of a stack.

mod bad_input;
mod both_ends;
mod cancel;
mod echo;
mod exit;
mod names;
mod options;
mod runtimes;
mod stream;
mod udp;

use std::future::Future;

use tokio::runtime::{Builder, Runtime};
use towpath::Stack;
use towpath::tokio::{TcpListener, TcpStream, UdpSocket};

fn stack() -> Stack {
    Stack::builder().loopback().start().expect("a stack")
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Runs a test on both kinds of runtimes, each with a stack of its own.
fn on_both<F: Future<Output = ()>>(test: impl Fn(Stack) -> F) {
    current_thread().block_on(test(stack()));
    multi_thread().block_on(test(stack()));
}

async fn listener(stack: &Stack) -> TcpListener {
    TcpListener::bind_on(stack, "127.0.0.1:0").await.expect("a port")
}

async fn connection(stack: &Stack) -> (TcpStream, TcpStream) {
    let listener = listener(stack).await;
    let addr = listener.local_addr().expect("bound");
    let client = TcpStream::connect_on(stack, addr).await.expect("connected");
    (client, listener.accept().await.expect("accepted").0)
}

async fn udp_pair(stack: &Stack) -> (UdpSocket, UdpSocket) {
    let a = UdpSocket::bind_on(stack, "127.0.0.1:0").await.expect("a port");
    let b = UdpSocket::bind_on(stack, "127.0.0.1:0").await.expect("a port");
    a.connect(b.local_addr().expect("bound")).await.expect("a peer");
    b.connect(a.local_addr().expect("bound")).await.expect("a peer");
    (a, b)
}

/// Bytes that show a loss, a repetition or a wrong order.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}
