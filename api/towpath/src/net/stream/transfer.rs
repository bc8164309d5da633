//! Reading from and writing to TCP connections.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use towpath_client::stream::{self, OnError, SendHints};
use towpath_client::{Buffer, Error};

use super::TcpStream;
use crate::error::io_error;
use crate::net::buffers::{all_bytes, bytes, room, rooms};

/// Maximum number of bytes that one read or write transfers, as in Linux (MAX_RW_COUNT).
const COUNT_MAX: usize = 0x7fff_f000;

impl TcpStream {
    /// Reads data without removing it, so the next read returns the same bytes. Waits until data
    /// has arrived.
    ///
    /// # Errors
    /// As for reading: `WouldBlock`, `ConnectionReset`, `TimedOut`.
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read, Write};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stack = towpath::Stack::builder().loopback().start()?;
    /// let listener = stack.listen("127.0.0.1:0")?;
    /// let mut client = stack.connect(listener.local_addr()?)?;
    /// let (mut server, _) = listener.accept()?;
    /// client.write_all(b"GET")?;
    /// let mut first = [0; 1];
    /// assert_eq!(server.peek(&mut first)?, 1);
    /// let mut all = [0; 3];
    /// server.read_exact(&mut all)?;
    /// assert_eq!((first[0], &all), (b'G', b"GET"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the call.
        unsafe { self.recv(&room(buf), true) }
    }

    /// # Safety
    /// The buffers must be valid for writes.
    unsafe fn recv(&self, buffers: &[Buffer], keep: bool) -> io::Result<usize> {
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        let attempt = || unsafe { self.attempt_recv(buffers, keep) };
        self.handle.blocking(self.handle.recv_limit(), attempt).map_err(io_error)
    }

    /// Reads received data. Returns `WouldBlock` if there is none.
    ///
    /// # Safety
    /// The buffers must be valid for writes.
    pub(crate) unsafe fn attempt_recv(
        &self,
        buffers: &[Buffer],
        keep: bool,
    ) -> Result<usize, Error> {
        let (client, socket) = (self.handle.client(), self.handle.socket);
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        unsafe { stream::recv(client, socket, buffers, keep.then_some(0), OnError::Tell) }
    }

    /// Copies data into the send buffer. Returns `WouldBlock` if the buffer is full.
    ///
    /// # Safety
    /// The buffers must be valid for reads.
    #[cfg(feature = "tokio")]
    pub(crate) unsafe fn attempt_send(&self, buffers: &[Buffer]) -> Result<usize, Error> {
        let (client, socket) = (self.handle.client(), self.handle.socket);
        // SAFETY: the buffers are valid for reads, by the contract of this function.
        unsafe { stream::send(client, socket, buffers, 0, SendHints::default()) }
    }

    /// # Safety
    /// The buffers must be valid for reads.
    unsafe fn send(&self, buffers: &[Buffer]) -> io::Result<usize> {
        let handle = &*self.handle;
        let (client, socket) = (handle.client(), handle.socket);
        let wanted = Buffer::total(buffers).min(COUNT_MAX);
        // As in send(2), a blocking call returns only after all data is in the send buffer. Make at
        // least one attempt even if there is no data, so that errors of the connection are
        // returned.
        let patience = handle.send_limit();
        let mut done = 0;
        loop {
            // SAFETY: the buffers are valid for reads, by the contract of this function.
            let attempt =
                || unsafe { stream::send(client, socket, buffers, done, SendHints::default()) };
            match handle.sending(patience, attempt) {
                Ok(n) => done += n,
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(io_error(error)),
            }
            if done >= wanted {
                return Ok(done);
            }
        }
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer refers to `buf`, which is mutably borrowed during the call.
        unsafe { self.recv(&room(buf), false) }
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        // SAFETY: the buffers refer to `bufs`, which are mutably borrowed during the call.
        unsafe { self.recv(rooms(bufs), false) }
    }
}

impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        // SAFETY: the buffer refers to `buf`, which is borrowed during the call.
        unsafe { self.send(&bytes(buf)) }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: the buffers refer to `bufs`, which are borrowed during the call.
        unsafe { self.send(all_bytes(bufs)) }
    }

    /// Does nothing, because a write puts its data into the send buffer directly.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}
