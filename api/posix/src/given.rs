//! Names configured by the user: the host name (`--hostname`) and names of other hosts
//! (`--add-host`).
//!
//! The engine returns these names as a text, see [`call::NAMES`]. libc's lookups find the names
//! through [`crate::names`]. Some programs read /etc/hosts themselves. For them, this library opens
//! a memory file that contains these names, followed by the lines of the real file.
//! [`crate::resolver`] does the same for /etc/resolv.conf.

use std::ffi::CStr;
use std::net::IpAddr;

use towpath_client::syscall::{self, syscall};
use towpath_shm::control::{ControlReply, Request, call};

pub use crate::machine_name::Hostname;
use crate::{Errno, Posix, Result, memory_file, resolver};

/// Maximum number of bytes copied by one call of sendfile(2).
const COPIED_MAX: usize = 1 << 30;

/// Returns the host name configured for this run. None: the kernel's host name applies.
pub fn hostname(posix: &'static Posix) -> Option<Hostname> {
    known(posix).filter(|name| !name.bytes().is_empty())
}

/// Returns the host name configured for this run, or an empty one if only `--add-host` was used.
/// None: the run has no configured names.
fn known(posix: &'static Posix) -> Option<Hostname> {
    if !posix.is_active() {
        return None;
    }
    posix.machine_name.get_or_ask(|| {
        // If the engine does not answer, return `None`, and do not cache it, so that the next call
        // asks again.
        let reply = part(posix, 0)?;
        let payload = reply.payload();
        let line = payload.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Some((!payload.is_empty()).then(|| Hostname::new(line)))
    })
}

fn part(posix: &'static Posix, from: u32) -> Option<ControlReply> {
    posix.call(&Request { call: call::NAMES, a: from, ..Request::default() }).ok()
}

/// Returns the addresses that `--add-host` has for a name: IPv4 before IPv6, otherwise in the order
/// of the options.
pub fn addresses(posix: &'static Posix, name: &CStr) -> Vec<IpAddr> {
    towpath_dns::hosts::addresses(&lines(posix), name.to_bytes())
}

/// Returns the first name that `--add-host` assigns to an address.
pub fn name_of(posix: &'static Posix, ip: IpAddr) -> Option<String> {
    towpath_dns::hosts::name(&lines(posix), ip)
}

/// Returns the hosts of `--add-host` as lines in the format of hosts(5).
fn lines(posix: &'static Posix) -> String {
    let mut text = Vec::new();
    if known(posix).is_some() {
        each_part(posix, |part| text.extend_from_slice(part));
    }
    let text = String::from_utf8(text).unwrap_or_default();
    text.split_once('\n').map(|(_, lines)| lines.to_owned()).unwrap_or_default()
}

fn each_part(posix: &'static Posix, mut take: impl FnMut(&[u8])) {
    let mut from = 0;
    while let Some(reply) = part(posix, from) {
        take(reply.payload());
        // Stop if the position does not increase, because a wrong answer of the engine could cause
        // an endless loop.
        if reply.a <= from {
            break;
        }
        from = reply.a;
    }
}

/// A file of the host that this library replaces, so that it contains the names configured by the
/// user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamesFile {
    /// /etc/hosts, in the format of hosts(5).
    Hosts,
    /// /etc/hostname or /proc/sys/kernel/hostname, which contains the host name.
    Hostname,
}

/// Returns which file a call opens with `path` and `flags`, if it must be replaced by one with the
/// run's names.
pub fn wanted(posix: &'static Posix, path: &CStr, flags: i32) -> Option<NamesFile> {
    let file = match path.to_bytes() {
        b"/etc/hosts" => NamesFile::Hosts,
        b"/etc/hostname" | b"/proc/sys/kernel/hostname" => NamesFile::Hostname,
        _ => return None,
    };
    let given = resolver::reads(flags) && known(posix).is_some();
    (given && (file == NamesFile::Hosts || hostname(posix).is_some())).then_some(file)
}

/// Replaces the file that the program has just opened as `fd` by a memory file with the run's
/// names.
///
/// # Errors
/// Errors of memfd_create(2) and write(2). On an error, `fd` is closed.
pub fn put_in_place(posix: &'static Posix, fd: i32, file: NamesFile) -> Result<()> {
    let made = match file {
        NamesFile::Hosts => hosts(posix, fd),
        NamesFile::Hostname => in_memory(|to| {
            let name = hostname(posix);
            write(to, name.as_ref().map_or(&[][..], Hostname::bytes))?;
            write(to, b"\n")
        }),
    };
    resolver::replace(fd, made)
}

/// Creates a memory file with the `--add-host` lines of the run, followed by the content of the
/// host's file `fd`.
fn hosts(posix: &'static Posix, fd: i32) -> Result<i32> {
    in_memory(|to| {
        let (mut first, mut result) = (true, Ok(()));
        each_part(posix, |part| {
            let end = part.iter().position(|byte| *byte == b'\n').filter(|_| first);
            first = false;
            let lines = end.map_or(part, |at| &part[at + 1..]);
            if result.is_ok() {
                result = write(to, lines);
            }
        });
        result?;
        loop {
            let args = [to as usize, fd as usize, 0, COPIED_MAX, 0, 0];
            // SAFETY: sendfile takes two descriptors, a null offset and a length.
            match unsafe { syscall(libc::SYS_sendfile as usize, args) } {
                Ok(0) => return Ok(()),
                Ok(_) | Err(libc::EINTR) => {}
                Err(errno) => return Err(Errno(errno)),
            }
        }
    })
}

/// Creates a memory file, calls `fill` to write its content, and seeks to position 0.
fn in_memory(fill: impl FnOnce(i32) -> Result<()>) -> Result<i32> {
    let file = memory_file::create(c"hosts")?;
    let filled = fill(file).and_then(|()| {
        let args = [file as usize, 0, libc::SEEK_SET as usize, 0, 0, 0];
        // SAFETY: lseek takes integers only.
        unsafe { syscall(libc::SYS_lseek as usize, args) }.map_err(Errno)
    });
    match filled {
        Ok(_) => Ok(file),
        Err(errno) => {
            syscall::close(file);
            Err(errno)
        }
    }
}

fn write(file: i32, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let args = [file as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
        // SAFETY: the address and the length are those of `bytes`.
        match unsafe { syscall(libc::SYS_write as usize, args) } {
            Ok(n) => bytes = &bytes[n..],
            Err(libc::EINTR) => {}
            Err(errno) => return Err(Errno(errno)),
        }
    }
    Ok(())
}
