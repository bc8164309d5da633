//! Replaces files of /proc/net by tables of the stack in the same formats.
//!
//! open(2) of such a file returns a memory file with the current state of the stack, as
//! [`crate::resolver`] does for /etc/resolv.conf. A program that keeps the file open gets new
//! content when it reads from the beginning ([`reread`]). Other files of /proc/net remain those of
//! the kernel.

mod counters;
mod file;
mod links;
mod tables;

use std::ffi::CStr;
use std::io::Write;

use towpath_client::syscall::{self, syscall};

use crate::{Errno, Posix, Result, netlink};
use file::{PREFIX, Text};

/// Replaced files of /proc/net, each with the function that writes its text.
const FILES: &[(&CStr, Writer)] = &[
    (c"tcp", tables::tcp4),
    (c"tcp6", tables::tcp6),
    (c"udp", tables::udp4),
    (c"udp6", tables::udp6),
    (c"icmp", tables::icmp4),
    (c"icmp6", tables::icmp6),
    (c"raw", tables::raw4),
    (c"raw6", tables::raw6),
    (c"dev", links::dev),
    (c"route", links::route),
    (c"ipv6_route", links::ipv6_route),
    (c"if_inet6", links::if_inet6),
    (c"arp", links::arp),
    (c"snmp", counters::snmp),
    (c"netstat", counters::netstat),
    (c"sockstat", counters::sockstat),
    (c"sockstat6", counters::sockstat6),
];

type Writer = fn(&'static Posix, &mut Text) -> Result<()>;

/// A replaced file of /proc/net: its name, and the function that writes its text.
#[derive(Clone, Copy)]
pub struct ProcFile(&'static CStr, Writer);

/// Returns the file to use instead, if open(2) of `path` with `flags` opens a replaced file of
/// /proc/net. `dir` is the directory of a relative path.
pub fn wanted(posix: &'static Posix, dir: i32, path: &CStr, flags: i32) -> Option<ProcFile> {
    let path = path.to_bytes();
    let reads = flags & libc::O_ACCMODE == libc::O_RDONLY;
    let others = libc::O_PATH | libc::O_DIRECTORY | libc::O_CREAT;
    // Check the last component of the path first, because it rules out most paths.
    let at = path.iter().rposition(|&byte| byte == b'/');
    let (folder, name) = path.split_at(at.map_or(0, |at| at + 1));
    let (name, writer) = FILES.iter().find(|(known, _)| known.to_bytes() == name)?;
    if !posix.is_active() || !reads || flags & others != 0 {
        return None;
    }
    is_own_net(dir, folder).then_some(ProcFile(name, *writer))
}

/// Returns whether `folder` is /proc/net, or /proc/PID/net of this process. `dir` is the directory
/// of a relative path.
fn is_own_net(dir: i32, folder: &[u8]) -> bool {
    if folder.first() == Some(&b'/') {
        return names_net(folder);
    }
    let mut whole = [0; 128];
    let Some(len) = folder_of(dir, &mut whole) else { return false };
    let Some(rest) = whole.get_mut(len..) else { return false };
    let Some(room) = rest.get_mut(..folder.len() + 1) else { return false };
    room[0] = b'/';
    room[1..].copy_from_slice(folder);
    names_net(&whole[..len + 1 + folder.len()])
}

fn names_net(folder: &[u8]) -> bool {
    let mut parts =
        folder.split(|byte| *byte == b'/').filter(|part| ![&b""[..], b"."].contains(part));
    let own = |part: &[u8]| {
        let id = std::str::from_utf8(part).ok().and_then(|text| text.parse().ok());
        matches!(part, b"self" | b"thread-self") || id == Some(std::process::id())
    };
    if parts.next() != Some(b"proc") {
        return false;
    }
    let mut next = parts.next();
    if next.is_some_and(own) {
        next = parts.next();
        if next == Some(b"task") {
            next = parts.nth(1);
        }
    }
    next == Some(b"net") && parts.next().is_none()
}

/// Writes the path of the directory `dir`, or of the working directory, to `to`. Returns its
/// length.
fn folder_of(dir: i32, to: &mut [u8]) -> Option<usize> {
    if dir != libc::AT_FDCWD {
        return link_of(dir, to);
    }
    read_link(c"/proc/self/cwd".to_bytes_with_nul(), to)
}

/// Writes the path of an open file, as in /proc/self/fd, to `to`. Returns its length.
fn link_of(fd: i32, to: &mut [u8]) -> Option<usize> {
    let mut link = [0u8; 32];
    // The write does not fail, because the buffer has room for the longest number and the NUL.
    write!(&mut link[..], "/proc/self/fd/{fd}").ok()?;
    read_link(&link, to)
}

/// Calls readlink(2) for a NUL-terminated path. Returns the length of the target.
fn read_link(link: &[u8], to: &mut [u8]) -> Option<usize> {
    let (at, len) = (to.as_mut_ptr() as usize, to.len());
    let args = [libc::AT_FDCWD as usize, link.as_ptr() as usize, at, len, 0, 0];
    // SAFETY: `link` is NUL-terminated, and the address and length are those of `to`.
    unsafe { syscall(libc::SYS_readlinkat as usize, args) }.ok()
}

/// Replaces the file that the program has just opened as `fd` by a memory file with the stack's
/// table. Keeps the kernel's file if this process is in a different network namespace than the run.
///
/// # Errors
/// Errors of memfd_create(2) and of the engine, after which `fd` is closed.
pub fn put_in_place(posix: &'static Posix, fd: i32, file: ProcFile) -> Result<()> {
    if netlink::is_elsewhere(posix) {
        return Ok(());
    }
    let done = Text::new(file.0).and_then(|mut text| {
        file.1(posix, &mut text)?;
        text.flush()?;
        let kept = syscall::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0);
        let cloexec = kept & libc::FD_CLOEXEC as usize != 0;
        syscall::dup3(text.fd(), fd, if cloexec { libc::O_CLOEXEC } else { 0 }).map_err(Errno)
    });
    match done {
        Ok(()) => drop(posix.shown.add(fd)),
        Err(_) => syscall::close(fd),
    }
    done
}

/// Returns whether `fd` may be a file of /proc/net that describes the stack. Duplicated descriptors
/// are not recognized.
#[inline]
pub fn is_shown(posix: &'static Posix, fd: i32) -> bool {
    posix.shown.has(fd)
}

/// Updates a memory file that replaces a file of /proc/net. Called when the program reads an open
/// file from the beginning. Does nothing for other files.
///
/// # Errors
/// Errors of the engine (the network stack).
#[cold]
pub fn reread(posix: &'static Posix, fd: i32) -> Result<()> {
    let mut link = [0; 64];
    let Some(len) = link_of(fd, &mut link) else { return Ok(()) };
    let name = link[..len].strip_prefix(b"/memfd:").and_then(|rest| rest.strip_prefix(PREFIX));
    let name = name.and_then(|rest| rest.strip_suffix(b" (deleted)"));
    let file = FILES.iter().find(|(known, _)| Some(known.to_bytes()) == name);
    // The number belongs to another file now. Remove it: this library does not see every close.
    let Some((_, writer)) = file else {
        posix.shown.remove(fd);
        return Ok(());
    };
    let mut text = Text::over(fd)?;
    writer(posix, &mut text)?;
    text.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_this_process_are_known() {
        let own = format!("/proc/{}/net/", std::process::id());
        let thread = format!("/proc/{}/task/7/net", std::process::id());
        for folder in ["/proc/net/", "/proc/self/net/", "/proc//thread-self/net", &own, &thread] {
            assert!(names_net(folder.as_bytes()), "{folder}");
        }
        for folder in ["/proc/1/net/", "/proc/self/", "/net/", "/proc/net/stat/", "/proc/net/net"] {
            assert!(!names_net(folder.as_bytes()), "{folder}");
        }
        assert!(!is_own_net(libc::AT_FDCWD, b""));
    }
}
