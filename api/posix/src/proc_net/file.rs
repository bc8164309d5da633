//! [`Text`], with which a memory file is written line by line.

use std::ffi::CStr;
use std::fmt;

use towpath_client::syscall::{self, syscall};

use crate::{Errno, Result, memory_file};

/// Maximum length in bytes of a line. Header lines are the longest.
const LINE_MAX: usize = 512;

/// Prefix of the memory files' names, which links in /proc/self/fd show.
pub(super) const PREFIX: &[u8] = b"proc/net/";
/// Maximum length in bytes of a memory file's name, including the NUL.
const NAME_MAX: usize = 32;

/// Buffer for text that is written to a memory file, which replaces a file in /proc.
pub(super) struct Text {
    fd: i32,
    /// Whether this value created the file, and closes it when it is dropped.
    is_new: bool,
    bytes: [u8; 4096],
    len: usize,
    /// Number of bytes already written to the file.
    written: usize,
    /// Offset in `bytes` at which the current line begins.
    line: usize,
}

impl Text {
    /// Creates a memory file that replaces the file `name` of /proc/net.
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

    /// Creates the writer for an existing memory file, and truncates the file.
    pub fn over(fd: i32) -> Result<Self> {
        let args = [fd as usize, 0, 0, 0, 0, 0];
        // SAFETY: ftruncate takes integers only.
        unsafe { syscall(libc::SYS_ftruncate as usize, args) }.map_err(Errno)?;
        Ok(Self::of(fd, false))
    }

    fn of(fd: i32, is_new: bool) -> Self {
        Self { fd, is_new, bytes: [0; 4096], len: 0, written: 0, line: 0 }
    }

    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Ends a line, padded with blanks to `width` bytes, as the kernel's seq_pad does.
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

    /// Writes one line, padded with blanks to `width` bytes.
    pub fn line(&mut self, what: fmt::Arguments<'_>, width: usize) -> Result<()> {
        // Ignore the result, because `push` cannot fail.
        let _ = fmt::write(self, what);
        self.end(width)
    }

    /// Writes the buffered bytes to the file with pwrite. The position of the file stays at 0,
    /// where the program begins to read.
    pub fn flush(&mut self) -> Result<()> {
        let mut done = 0;
        while done < self.len {
            let rest = &self.bytes[done..self.len];
            let args = [self.fd as usize, rest.as_ptr() as usize, rest.len(), self.written, 0, 0];
            // SAFETY: the address and length are those of the unwritten part of `bytes`.
            let n = unsafe { syscall(libc::SYS_pwrite64 as usize, args) }.map_err(Errno)?;
            (done, self.written) = (done + n, self.written + n);
        }
        (self.len, self.line) = (0, 0);
        Ok(())
    }

    /// Appends bytes to the current line. A line longer than [`LINE_MAX`] would be truncated, but
    /// no caller writes one.
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
