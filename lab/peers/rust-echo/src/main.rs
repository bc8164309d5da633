//! Echo servers in Rust with typical designs:
//!
//! ```text
//! rust-echo std ADDRESS:PORT      std::net, a thread for each connection
//! rust-echo tokio ADDRESS:PORT    tokio, a task for each connection
//! ```

use std::error::Error;
use std::io::{self, Read, Write};
use std::thread;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bytes per read, the maximum message length of a load test.
const CHUNK: usize = 4096;
/// Stack size of a thread in bytes. A thousand connections have a thousand threads.
const STACK: usize = 128 * 1024;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["std", address] => with_std(address),
        ["tokio", address] => with_tokio(address),
        _ => Err("usage: rust-echo std|tokio ADDRESS:PORT".into()),
    }
}

fn with_std(address: &str) -> Result<()> {
    for connection in std::net::TcpListener::bind(address)?.incoming() {
        let connection = connection?;
        connection.set_nodelay(true)?;
        serve(connection)?;
    }
    Ok(())
}

/// Starts a thread that echoes a connection's bytes.
fn serve(mut connection: std::net::TcpStream) -> io::Result<()> {
    let echo = move || {
        let mut bytes = [0; CHUNK];
        while let Ok(len @ 1..) = connection.read(&mut bytes) {
            if connection.write_all(&bytes[..len]).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().stack_size(STACK).spawn(echo).map(drop)
}

fn with_tokio(address: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await?;
        loop {
            let (mut connection, _) = listener.accept().await?;
            connection.set_nodelay(true)?;
            tokio::spawn(async move {
                let mut bytes = [0; CHUNK];
                while let Ok(len @ 1..) = connection.read(&mut bytes).await {
                    if connection.write_all(&bytes[..len]).await.is_err() {
                        return;
                    }
                }
            });
        }
    })
}
