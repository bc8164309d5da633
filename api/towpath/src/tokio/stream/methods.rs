//! Methods that the borrowed and the owned halves of a stream have in common.

/// Expands to the methods of `AsyncWrite`. `$stream` is an expression for the stream of `$half`.
macro_rules! write {
    (|$half:ident| $stream:expr) => {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            let $half = &*self;
            $stream.poll_send(cx, buf)
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let $half = &*self;
            $stream.poll_send_vectored(cx, bufs)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        /// Does nothing, because a write puts its data into the send buffer directly.
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            let $half = &*self;
            Poll::Ready($stream.shut_down_write())
        }
    };
}

/// Expands to the methods of a read half. Each calls the method of [`TcpStream`] with the same
/// name.
macro_rules! read_half {
    () => {
        /// See [`TcpStream::poll_peek`].
        ///
        /// # Errors
        /// As for [`TcpStream::peek`].
        pub fn poll_peek(
            &mut self,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<usize>> {
            self.stream.poll_peek(cx, buf)
        }

        /// See [`TcpStream::peek`].
        ///
        /// # Errors
        /// As for [`TcpStream::peek`].
        pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.stream.peek(buf).await
        }

        /// See [`TcpStream::readable`].
        ///
        /// # Errors
        /// As for [`TcpStream::ready`].
        pub async fn readable(&self) -> io::Result<()> {
            self.stream.readable().await
        }

        /// See [`TcpStream::try_read`].
        ///
        /// # Errors
        /// As for [`TcpStream::try_read`].
        pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
            self.stream.try_read(buf)
        }

        /// See [`TcpStream::try_read_vectored`].
        ///
        /// # Errors
        /// As for [`TcpStream::try_read`].
        pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            self.stream.try_read_vectored(bufs)
        }
    };
}

/// Expands to the methods of a write half. Each calls the method of [`TcpStream`] with the same
/// name.
macro_rules! write_half {
    () => {
        /// See [`TcpStream::writable`].
        ///
        /// # Errors
        /// As for [`TcpStream::ready`].
        pub async fn writable(&self) -> io::Result<()> {
            self.stream.writable().await
        }

        /// See [`TcpStream::try_write`].
        ///
        /// # Errors
        /// As for [`TcpStream::try_write`].
        pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
            self.stream.try_write(buf)
        }

        /// See [`TcpStream::try_write_vectored`].
        ///
        /// # Errors
        /// As for [`TcpStream::try_write`].
        pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
            self.stream.try_write_vectored(bufs)
        }
    };
}

/// Expands to the methods that both read and write halves have.
macro_rules! any_half {
    () => {
        /// See [`TcpStream::ready`].
        ///
        /// # Errors
        /// As for [`TcpStream::ready`].
        pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
            self.stream.ready(interest).await
        }

        /// Returns the local address.
        ///
        /// # Errors
        /// As for [`TcpStream::local_addr`].
        pub fn local_addr(&self) -> io::Result<SocketAddr> {
            self.stream.local_addr()
        }

        /// Returns the address of the peer.
        ///
        /// # Errors
        /// As for [`TcpStream::peer_addr`].
        pub fn peer_addr(&self) -> io::Result<SocketAddr> {
            self.stream.peer_addr()
        }
    };
}

pub(super) use {any_half, read_half, write, write_half};
