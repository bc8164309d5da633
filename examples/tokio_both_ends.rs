//! Clients and an echo server in one program, over the kernel's loopback interface or over that of
//! a stack in this process. Prints the echoes of 64 bytes per second.
//!
//! ```text
//! cargo run --release -p towpath --features tokio --example tokio_both_ends kernel 100 3
//! cargo run --release -p towpath --features tokio --example tokio_both_ends stack 100 3
//! ```

use std::future::Future;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use towpath::Stack;

/// Bytes of a message.
const LEN: usize = 64;

#[tokio::main]
async fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage =
        || io::Error::new(io::ErrorKind::InvalidInput, "usage: kernel|stack CONNECTIONS SECONDS");
    let [side, connections, seconds] = &words[..] else { return Err(usage()) };
    let connections: usize = connections.parse().map_err(|_| usage())?;
    let time = Duration::from_secs(seconds.parse().map_err(|_| usage())?);
    let echoes = match &**side {
        "kernel" => on_kernel(connections, time).await?,
        "stack" => on_stack(connections, time).await?,
        _ => return Err(usage()),
    };
    writeln!(io::stdout(), "{:.0} echoes/s", echoes as f64 / time.as_secs_f64())
}

async fn on_kernel(connections: usize, time: Duration) -> io::Result<u64> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true)?;
            tokio::spawn(echo(stream));
        }
        io::Result::Ok(())
    });
    let connect = || async move {
        let stream = tokio::net::TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let echoes = ask_by(connections, time, connect).await;
    server.abort();
    echoes
}

/// Returns the number of echoes on `connections` connections of one stack.
pub async fn on_stack(connections: usize, time: Duration) -> io::Result<u64> {
    let stack = Stack::builder().loopback().start().map_err(io::Error::other)?;
    let listener = towpath::tokio::TcpListener::bind_on(&stack, "127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true)?;
            tokio::spawn(echo(stream));
        }
        io::Result::Ok(())
    });
    let connect = || {
        let stack = stack.clone();
        async move {
            let stream = towpath::tokio::TcpStream::connect_on(&stack, addr).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        }
    };
    let echoes = ask_by(connections, time, connect).await;
    server.abort();
    echoes
}

/// Sends back what arrives, until the peer shuts down writing.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut buf = [0; 4096];
    loop {
        match stream.read(&mut buf).await? {
            0 => return stream.shutdown().await,
            n => stream.write_all(&buf[..n]).await?,
        }
    }
}

/// Exchanges messages on all connections at the same time, and returns their number.
async fn ask_by<S, F>(
    connections: usize,
    time: Duration,
    connect: impl Fn() -> F,
) -> io::Result<u64>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<S>>,
{
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(connect().await?);
    }
    let (end, mut tasks, mut echoes) = (Instant::now() + time, JoinSet::new(), 0);
    for stream in streams {
        tasks.spawn(ask(stream, end));
    }
    while let Some(count) = tasks.join_next().await {
        echoes += count.map_err(io::Error::other)??;
    }
    Ok(echoes)
}

/// Sends messages, and waits for the echo of each, until the time has come.
async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, end: Instant) -> io::Result<u64> {
    let (message, mut answer, mut echoes) = ([7; LEN], [0; LEN], 0);
    loop {
        stream.write_all(&message).await?;
        stream.read_exact(&mut answer).await?;
        if answer != message {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "another echo"));
        }
        echoes += 1;
        if Instant::now() >= end {
            return Ok(echoes);
        }
    }
}
