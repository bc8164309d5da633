//! Finds the sockets behind descriptors of other processes that use the stack. Programs need this
//! to find the process that owns a socket: `ss -p`, `lsof -i`, `netstat -p`, psutil.
//!
//! To the kernel, all sockets of the stack look alike ([`towpath_shm::token`]). A process has a
//! table in its memory that maps descriptors to the stack's sockets. The header of its channel
//! (memory shared with the engine) contains the table's address. The table is read from
//! /proc/PID/mem. Only processes that may trace the process can read it: root, and those of the
//! same user unless kernel.yama.ptrace_scope forbids it.
//!
//! The functions do not allocate memory, because they implement readlink(2), which a signal handler
//! that has interrupted malloc may call.

use std::ffi::CStr;
use std::fmt;
use std::mem::offset_of;

use towpath_client::Socket;
use towpath_client::descriptors::{self, Descriptors};
use towpath_client::syscall::{self, syscall};
use towpath_shm::layout::{ChannelHeader, MAGIC};

use crate::identity::{self, Identity};
use crate::{Errno, Posix, Result};

/// Returns the socket of a descriptor in another process. `None` means that it is not a socket of
/// the stack, or that the memory of the process cannot be read.
pub fn of(posix: &'static Posix, pid: u32, fd: i32) -> Option<Identity> {
    let client = posix.client().ok()?;
    let blank = client.blank().get();
    let blank = identity::stat_of(blank, c"", libc::AT_EMPTY_PATH)?;
    let path = Path::new(format_args!("/proc/{pid}/fd/{fd}"));
    let there = identity::stat_of(libc::AT_FDCWD, path.as_c_str(), 0)?;
    if (there.st_dev, there.st_ino) != (blank.st_dev, blank.st_ino) {
        return None;
    }
    let memory = ProcessFile::open(format_args!("/proc/{pid}/mem")).ok()?;
    let place = u64::try_from(fd).ok()?.checked_mul(8).filter(|_| descriptors::fits(fd))?;
    let mut found = None;
    each_channel(pid, |at| {
        let socket = word_at(&memory, at, place).and_then(Descriptors::socket_of);
        // Check that the socket exists. If the memory is not a descriptor table, the word is
        // unlikely to name an existing socket.
        let there_is = |socket: &Socket| client.slot(*socket).is_some();
        found = socket.filter(there_is).and_then(|socket| Identity::new(posix, socket));
        found.is_some()
    })?;
    found
}

/// Reads the word at byte offset `place` of a descriptor table in another process. `channel` is the
/// address of the channel header that contains the address of the table.
fn word_at(memory: &ProcessFile, channel: u64, place: u64) -> Option<u64> {
    let magic = memory.word(channel + offset_of!(ChannelHeader, magic) as u64)?;
    let table = memory.word(channel + offset_of!(ChannelHeader, descriptors) as u64)?;
    // The table's address in the header is 0 until the engine has admitted the process.
    let known = magic == MAGIC && table != 0;
    memory.word(table.checked_add(place).filter(|_| known)?)
}

/// Calls `see` with the address of each channel header in the memory of process `pid`, until `see`
/// returns true. A forked child also has the header of its parent, with the same table address. A
/// process that contains the engine (`--inline`) has the headers of all programs. Their table
/// addresses are not valid in its memory.
fn each_channel(pid: u32, mut see: impl FnMut(u64) -> bool) -> Option<()> {
    each_mapping(format_args!("/proc/{pid}/maps"), |mapping| {
        mapping.is_channel && mapping.offset == 0 && see(mapping.start)
    })
}

/// A memory mapping: one line of /proc/PID/maps.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    offset: u64,
    is_channel: bool,
}

impl Mapping {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (start, _) = words.next()?.split_once('-')?;
        let [start, offset] = [start, words.nth(1)?].map(|hex| u64::from_str_radix(hex, 16));
        // Skip the fields device and inode, which precede the name of the mapping.
        let is_channel = words.nth(2).is_some_and(|name| name == CHANNEL);
        Some(Self { start: start.ok()?, offset: offset.ok()?, is_channel })
    }
}

/// Name of the shared memory of a channel (`towpath_ring::Channel`) in /proc/PID/maps.
const CHANNEL: &str = "/memfd:towpath-channel";

/// Calls `see` with each memory mapping of a process, until `see` returns true. None: the file
/// `maps` cannot be read.
fn each_mapping(maps: fmt::Arguments<'_>, mut see: impl FnMut(Mapping) -> bool) -> Option<()> {
    let file = ProcessFile::open(maps).ok()?;
    let mut bytes = [0; 4096];
    let (mut len, mut skips) = (0, false);
    loop {
        let got = file.read(&mut bytes[len..]).ok()?;
        if got == 0 {
            return Some(());
        }
        len += got;
        let mut start = 0;
        while let Some(at) = bytes[start..len].iter().position(|&byte| byte == b'\n') {
            let line = &bytes[start..start + at];
            let is_rest = std::mem::take(&mut skips);
            if !is_rest && Mapping::parse(line).is_some_and(&mut see) {
                return Some(());
            }
            start += at + 1;
        }
        bytes.copy_within(start..len, 0);
        len -= start;
        // A line that does not fit the buffer has a long path, and is no channel. Skip the rest of
        // the line.
        if len == bytes.len() {
            (len, skips) = (0, true);
        }
    }
}

/// A path in /proc, stored in a buffer of fixed size.
struct Path {
    bytes: [u8; 48],
    len: usize,
}

impl Path {
    /// Formats a path. A path with two numbers always fits the buffer. A longer path would be
    /// truncated to one that does not exist.
    fn new(text: fmt::Arguments<'_>) -> Self {
        let mut path = Self { bytes: [0; 48], len: 0 };
        let _ = fmt::write(&mut path, text);
        path
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl fmt::Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte of the buffer stays 0, because it is the NUL of the C string.
        let end = self.len + text.len();
        let room = self.bytes[..47].get_mut(self.len..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// An open file in /proc, which is closed on drop.
struct ProcessFile(i32);

impl ProcessFile {
    fn open(path: fmt::Arguments<'_>) -> Result<Self> {
        let path = Path::new(path);
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let name = path.bytes.as_ptr() as usize;
        let args = [libc::AT_FDCWD as usize, name, flags, 0, 0, 0];
        // SAFETY: `path` is NUL-terminated, and outlives the call.
        let opened = unsafe { syscall(libc::SYS_openat as usize, args) };
        opened.map(|fd| Self(fd as i32)).map_err(Errno)
    }

    fn read(&self, to: &mut [u8]) -> Result<usize> {
        let args = [self.0 as usize, to.as_mut_ptr() as usize, to.len(), 0, 0, 0];
        // SAFETY: the address and length are those of `to`.
        unsafe { syscall(libc::SYS_read as usize, args) }.map_err(Errno)
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut word = [0; 8];
        let args = [self.0 as usize, word.as_mut_ptr() as usize, word.len(), at as usize, 0, 0];
        // SAFETY: the address and length are those of `word`.
        let n = unsafe { syscall(libc::SYS_pread64 as usize, args) }.ok()?;
        (n == word.len()).then(|| u64::from_ne_bytes(word))
    }
}

impl Drop for ProcessFile {
    fn drop(&mut self) {
        syscall::close(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_recognised_among_mappings() {
        let of = |name: &str| {
            Mapping::parse(format!("7f0a1000-7f0a3000 rw-s 00001000 00:01 47    {name}").as_bytes())
        };
        let wanted = Mapping { start: 0x7f0a_1000, offset: 0x1000, is_channel: true };
        assert_eq!(of("/memfd:towpath-channel (deleted)"), Some(wanted));
        for other in ["", "[stack]", "/a/memfd:towpath-channel", "/memfd:towpath-region (deleted)"]
        {
            assert!(!of(other).expect("a mapping").is_channel, "{other}");
        }
        for line in ["", "7f0a1000", "7f0a1000-7f0a3000", "7f0a1000-7f0a3000 rw-s", "x-y r 0"] {
            assert_eq!(Mapping::parse(line.as_bytes()), None, "{line}");
        }
    }

    /// Reads the memory of the test process itself over /proc/PID/mem. Without the preload library,
    /// the process has no channel.
    #[test]
    fn words_of_a_process_are_read() {
        let pid = std::process::id();
        let mut channels = 0;
        let count = |_| {
            channels += 1;
            false
        };
        assert_eq!((each_channel(pid, count), channels), (Some(()), 0));
        assert_eq!(each_channel(0, |_| true), None);
        let word = 0x1234_5678_9abc_def0_u64;
        let memory = ProcessFile::open(format_args!("/proc/{pid}/mem")).unwrap();
        assert_eq!(memory.word((&raw const word) as u64), Some(word));
        assert_eq!(memory.word(0), None);
    }
}
