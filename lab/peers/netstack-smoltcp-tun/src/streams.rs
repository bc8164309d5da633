//! TCP connections of the server, with a task for each.

use std::io::Result;

use futures::StreamExt;
use netstack_smoltcp::{TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bytes per read or write, the same as iperf3's.
pub const CHUNK: usize = 128 * 1024;
/// Initial buffer length of an echo connection in bytes, because most connections transfer little.
const LITTLE: usize = 4096;

/// Serves connections to the three ports, and closes connections to other ports.
pub async fn serve(mut listener: TcpListener, port: u16) {
    while let Some((stream, _, to)) = listener.next().await {
        match to.port().wrapping_sub(port) {
            0 => drop(tokio::spawn(echo(stream))),
            1 => drop(tokio::spawn(swallow(stream))),
            2 => drop(tokio::spawn(pour(stream))),
            _ => {}
        }
    }
}

async fn echo(mut stream: TcpStream) -> Result<()> {
    let mut bytes = vec![0; LITTLE];
    loop {
        let len = stream.read(&mut bytes).await?;
        if len == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..len]).await?;
        if len == bytes.len() && len < CHUNK {
            bytes.resize(2 * len, 0);
        }
    }
}

async fn swallow(mut stream: TcpStream) -> Result<()> {
    let mut bytes = vec![0; CHUNK];
    while stream.read(&mut bytes).await? > 0 {}
    Ok(())
}

/// Sends bytes until a write fails, because the client has closed.
async fn pour(mut stream: TcpStream) -> Result<()> {
    let bytes = vec![0; CHUNK];
    loop {
        stream.write_all(&bytes).await?;
    }
}
