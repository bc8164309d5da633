//! Read and write halves that share ownership of a [`TcpStream`].

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use super::{TcpStream, methods};

/// Half of a [`TcpStream`] for reading, created by [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf {
    stream: Arc<TcpStream>,
}

/// Half of a [`TcpStream`] for writing, created by [`TcpStream::into_split`]. Dropping it shuts
/// down writing.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<TcpStream>,
    shuts_down: bool,
}

/// Error of `reunite`: the two halves belong to different streams. Contains the halves.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

pub(super) fn halves(stream: TcpStream) -> (OwnedReadHalf, OwnedWriteHalf) {
    let stream = Arc::new(stream);
    let reader = OwnedReadHalf { stream: Arc::clone(&stream) };
    (reader, OwnedWriteHalf { stream, shuts_down: true })
}

fn reunite(reader: OwnedReadHalf, writer: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
    if !Arc::ptr_eq(&reader.stream, &writer.stream) {
        return Err(ReuniteError(reader, writer));
    }
    writer.forget();
    Ok(Arc::into_inner(reader.stream).expect("the halves are the only owners"))
}

impl OwnedReadHalf {
    /// Combines both halves of a stream again.
    ///
    /// # Errors
    /// Returns the halves if they belong to different streams.
    pub fn reunite(self, writer: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        reunite(self, writer)
    }

    methods::any_half!();
    methods::read_half!();
}

impl OwnedWriteHalf {
    /// Combines both halves of a stream again.
    ///
    /// # Errors
    /// Returns the halves if they belong to different streams.
    pub fn reunite(self, reader: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        reunite(reader, self)
    }

    /// Drops the write half without shutting down writing.
    pub fn forget(mut self) {
        self.shuts_down = false;
    }

    methods::any_half!();
    methods::write_half!();
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shuts_down {
            // Ignore errors: this fails only if the stack has ended, and the connection with it.
            let _ = self.stream.shut_down_write();
        }
    }
}

impl AsyncRead for OwnedReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.poll_recv(cx, buf, false).map_ok(drop)
    }
}

impl AsyncWrite for OwnedWriteHalf {
    methods::write!(|half| half.stream);
}

impl AsRef<TcpStream> for OwnedReadHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

impl AsRef<TcpStream> for OwnedWriteHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are not of one stream")
    }
}

impl std::error::Error for ReuniteError {}
