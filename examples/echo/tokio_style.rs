//! A task of Tokio for each connection.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::Place;

#[tokio::main]
pub async fn serve(place: Place) -> io::Result<()> {
    match place {
        Place::Kernel(at) => {
            let listener = tokio::net::TcpListener::bind(at).await?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::spawn(echo(stream));
            }
        }
        Place::Towpath(builder, at) => {
            let stack = builder.start()?;
            let listener = towpath::tokio::TcpListener::bind_on(&stack, at).await?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::spawn(echo(stream));
            }
        }
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
