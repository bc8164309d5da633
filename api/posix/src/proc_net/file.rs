//! A file in memory that is written line by line.

use std::ffi::CStr;
use std::fmt;

use towpath_client::syscall::{self, syscall};

use crate::{Errno, Result, memory_file};

/// Longest line: that of a header.
const LINE_MAX: usize = 512;

/// Beginning of the names of the files, as /proc/self/fd shows them.
pub(super) const PREFIX: &[u8] = b"proc/net/";
/// Longest name, with the zero behind it.
const NAME_MAX: usize = 32;

/// The text of a file, on its way there.
pub(super) struct Text {
    fd: i32,
    /// The file is a new one, and closed in the end.
    is_new: bool,
    bytes: [u8; 4096],
    len: usize,
    /// Bytes in the file.
    written: usize,
    /// Start of the line that is being written.
    line: usize,
}

impl Text {
    /// A new file with this name in /proc/net.
    pub fn new(name: &CStr) -> Result<Self> {
        let mut whole = [0; NAME_MAX];
        let name = name.to_bytes();
        debug_assert!(PREFIX.len() + name.len() < NAME_MAX);
        for (to, from) in whole[..NAME_MAX - 1].iter_mut().zip(PREFIX.iter().chain(name)) {
            *to = *from;
        }
        let whole = CStr::from_bytes_until_nul(&whole).unwrap_or_default();
        Ok(Self::of(memory_file::create(whole)?, true))
    }

    /// The new text of a file that is open.
    pub fn over(fd: i32) -> Result<Self> {
        let args = [fd as usize, 0, 0, 0, 0, 0];
        // SAFETY: a descriptor and a length.
        unsafe { syscall(libc::SYS_ftruncate as usize, args) }.map_err(Errno)?;
        Ok(Self::of(fd, false))
    }

    fn of(fd: i32, is_new: bool) -> Self {
        Self { fd, is_new, bytes: [0; 4096], len: 0, written: 0, line: 0 }
    }

    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Ends a line, after blanks up to a width, as seq_pad of the kernel does it.
    pub fn end(&mut self, width: usize) -> Result<()> {
        while self.len - self.line < width && self.len < self.bytes.len() {
            self.push(b" ");
        }
        self.push(b"\n");
        if self.len + LINE_MAX > self.bytes.len() {
            self.flush()?;
        }
        self.line = self.len;
        Ok(())
    }

    /// Writes one line.
    pub fn line(&mut self, what: fmt::Arguments<'_>, width: usize) -> Result<()> {
        // `push` refuses nothing.
        let _ = fmt::write(self, what);
        self.end(width)
    }

    /// At positions, so that reading begins at the first byte.
    pub fn flush(&mut self) -> Result<()> {
        let mut done = 0;
        while done < self.len {
            let rest = &self.bytes[done..self.len];
            let args = [self.fd as usize, rest.as_ptr() as usize, rest.len(), self.written, 0, 0];
            // SAFETY: that many bytes are there.
            let n = unsafe { syscall(libc::SYS_pwrite64 as usize, args) }.map_err(Errno)?;
            (done, self.written) = (done + n, self.written + n);
        }
        (self.len, self.line) = (0, 0);
        Ok(())
    }

    /// A line longer than [`LINE_MAX`] would be cut; none is.
    fn push(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[self.len..];
        let n = bytes.len().min(room.len());
        debug_assert_eq!(n, bytes.len());
        room[..n].copy_from_slice(&bytes[..n]);
        self.len += n;
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        if self.is_new {
            syscall::close(self.fd);
        }
    }
}
