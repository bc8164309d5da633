//! Read and write halves that borrow a [`TcpStream`].

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use super::{TcpStream, methods};

/// Half of a [`TcpStream`] for reading, created by [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a> {
    stream: &'a TcpStream,
}

/// Half of a [`TcpStream`] for writing, created by [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a> {
    stream: &'a TcpStream,
}

impl<'a> ReadHalf<'a> {
    pub(super) fn of(stream: &'a TcpStream) -> Self {
        Self { stream }
    }

    methods::any_half!();
    methods::read_half!();
}

impl<'a> WriteHalf<'a> {
    pub(super) fn of(stream: &'a TcpStream) -> Self {
        Self { stream }
    }

    methods::any_half!();
    methods::write_half!();
}

impl AsyncRead for ReadHalf<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.poll_recv(cx, buf, false).map_ok(drop)
    }
}

impl AsyncWrite for WriteHalf<'_> {
    methods::write!(|half| half.stream);
}

impl AsRef<TcpStream> for ReadHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.stream
    }
}

impl AsRef<TcpStream> for WriteHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.stream
    }
}
