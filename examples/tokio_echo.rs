//! An echo server on Tokio, on the kernel's TCP/IP stack or on one in this process:
//!
//! ```text
//! cargo run -p towpath --features tokio --example tokio_echo kernel 127.0.0.1:7007
//! cargo run -p towpath --features tokio --example tokio_echo rootless 127.0.0.1:7007 7
//! cargo run -p towpath --features tokio --example tokio_echo tap tw0 7
//! ```

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use towpath::Stack;

#[tokio::main]
async fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["kernel", addr] => on_kernel(addr).await,
        ["rootless", host, port] => {
            let publish = format!("{host}:{port}");
            on_stack(Stack::builder().rootless().publish(&publish).start()?, port).await
        }
        ["tap", name, port] => {
            let stack = Stack::builder().tap(name).address("10.77.0.2/24").start()?;
            on_stack(stack, port).await
        }
        _ => {
            let message = "usage: kernel ADDR:PORT, rootless ADDR:PORT PORT, or tap NAME PORT";
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}

async fn on_kernel(addr: &str) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(addr).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(echo(stream));
    }
}

/// Serves port `port` of a stack until accepting fails.
pub async fn on_stack(stack: Stack, port: &str) -> io::Result<()> {
    let addr = format!("0.0.0.0:{port}");
    let listener = towpath::tokio::TcpListener::bind_on(&stack, addr).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(echo(stream));
    }
}

/// Sends back what arrives, until the peer shuts down writing.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut buf = vec![0; 4096];
    loop {
        match stream.read(&mut buf).await? {
            0 => return stream.shutdown().await,
            n => stream.write_all(&buf[..n]).await?,
        }
    }
}
