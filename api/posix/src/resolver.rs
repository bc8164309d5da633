//! Replaces /etc/resolv.conf for programs that open the file.
//!
//! On a host with a local resolver such as systemd-resolved, the file names a nameserver on a
//! loopback address. No nameserver listens at the stack's loopback address. Programs with their own
//! resolver (c-ares in Node.js, dig; nginx and haproxy if configured to read the file) could not
//! resolve names. For these programs, and for [`crate::dns`], this library replaces the nameserver
//! in the file by the stack's. libc opens the file internally, so it reads the original.
//! [`crate::dns::Substitution`] determines which nameservers found by libc are replaced.

use std::ffi::CStr;

use towpath_client::syscall::{self, syscall};
use towpath_shm::control::{Request, call};
use towpath_shm::layout::RawAddr;

use crate::{Errno, Posix, Result};

/// The file resolv.conf(5), with the nameservers.
pub(crate) const PATH: &CStr = c"/etc/resolv.conf";
/// Maximum length in bytes of a resolv.conf file that is replaced. Three nameservers and six
/// domains of maximum length take half of it.
pub(crate) const FILE_MAX: usize = 4096;

/// Returns whether open(2) of `path` with `flags` opens /etc/resolv.conf for reading. The file must
/// then be replaced.
pub fn is_wanted(posix: &'static Posix, path: &CStr, flags: i32) -> bool {
    path == PATH && posix.is_active() && reads(flags)
}

/// Returns whether open(2) with `flags` opens an existing file for reading only.
pub(crate) fn reads(flags: i32) -> bool {
    let others = libc::O_PATH | libc::O_DIRECTORY | libc::O_CREAT;
    flags & libc::O_ACCMODE == libc::O_RDONLY && flags & others == 0
}

/// Replaces the file that the program has just opened as `fd` by a memory file, if /etc/resolv.conf
/// names a nameserver that the program cannot reach.
///
/// # Errors
/// Errors of memfd_create(2), after which `fd` is closed.
pub fn put_in_place(posix: &'static Posix, fd: i32) -> Result<()> {
    file(posix).map_or(Ok(()), |file| replace(fd, file))
}

/// Replaces the file that is open as `fd` by the memory file in `file`. If `file` is an error,
/// closes `fd` and returns the error.
pub(crate) fn replace(fd: i32, file: Result<i32>) -> Result<()> {
    match file {
        Ok(file) => {
            let kept = syscall::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0);
            let cloexec = kept & libc::FD_CLOEXEC as usize != 0;
            let done = syscall::dup3(file, fd, if cloexec { libc::O_CLOEXEC } else { 0 });
            syscall::close(file);
            done.map_err(Errno)
        }
        Err(errno) => {
            syscall::close(fd);
            Err(errno)
        }
    }
}

/// Returns the text that programs of the run read in /etc/resolv.conf. Returns `None` if the engine
/// has ended, or the run has no nameserver of its own (a TAP device without `--dns`, or `--dns
/// none`).
pub(crate) fn text(posix: &'static Posix) -> Option<String> {
    let request = Request { call: call::RESOLVER, ..Request::default() };
    let reply = posix.call(&request).ok().filter(|reply| reply.addr.family != 0)?;
    let mut file = [0; FILE_MAX];
    // Treat a file that cannot be read as empty.
    let len = read(PATH, &mut file).ok().flatten().unwrap_or(0);
    let mut text = ResolverText::new();
    let changed = rewrite(&file[..len], &reply.addr, reply.a != 0, &mut text);
    let bytes = if changed { &text.bytes[..text.len] } else { &file[..len] };
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// Creates the memory file that replaces /etc/resolv.conf. None: the host's file needs no change.
fn file(posix: &'static Posix) -> Option<Result<i32>> {
    let request = Request { call: call::RESOLVER, ..Request::default() };
    // Keep the host's file if the engine has ended, because then no nameserver can be reached.
    let reply = posix.call(&request).ok()?;
    let mut file = [0; FILE_MAX];
    let len = read(PATH, &mut file).ok()??;
    let mut text = ResolverText::new();
    rewrite(&file[..len], &reply.addr, reply.a != 0, &mut text).then(|| text.into_file())
}

/// Copies `text`, the content of resolv.conf, to `to` and replaces nameservers by that of the run.
/// Returns false if the text needs no change, or does not fit.
fn rewrite(text: &[u8], nameserver: &RawAddr, only_loopback: bool, to: &mut ResolverText) -> bool {
    if nameserver.family == 0 {
        return false;
    }
    let (mut named, mut put) = (false, false);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let address = address_in(line);
        named |= address.is_some();
        let replaced = address.is_some_and(|address| !only_loopback || is_loopback(address));
        if !replaced {
            to.put(line);
        } else if !put {
            put = true;
            to.put_nameserver(nameserver);
        }
    }
    // Add the run's nameserver if the file has none, because resolvers would use the local machine
    // (resolv.conf(5)).
    if !named {
        put = true;
        to.put(b"\n");
        to.put_nameserver(nameserver);
    }
    put && !to.overflowed
}

/// Returns the address in a `nameserver` line of resolv.conf. None: the line is a different one.
pub(crate) fn address_in(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"nameserver")?;
    rest.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')).then(|| rest.trim_ascii())
}

pub(crate) fn is_loopback(address: &[u8]) -> bool {
    let text = std::str::from_utf8(address).unwrap_or_default();
    match text.parse() {
        // The unspecified address (0.0.0.0 or `::`) counts as loopback, because packets to it are
        // delivered to this host.
        Ok(ip) => {
            let ip: std::net::IpAddr = ip;
            ip.is_loopback() || ip.is_unspecified()
        }
        Err(_) => false,
    }
}

/// Text of the memory file. The buffer has a fixed size, because a signal handler that interrupted
/// malloc may call open(2).
struct ResolverText {
    bytes: [u8; FILE_MAX + 64],
    len: usize,
    overflowed: bool,
}

impl ResolverText {
    fn new() -> Self {
        Self { bytes: [0; FILE_MAX + 64], len: 0, overflowed: false }
    }

    fn put(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.len..).and_then(|rest| rest.get_mut(..bytes.len())) {
            Some(to) => {
                to.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.overflowed = true,
        }
    }

    fn put_nameserver(&mut self, nameserver: &RawAddr) {
        use std::io::Write;
        let mut line = [0; 64];
        let mut rest = &mut line[..];
        // Ignore the result, because the buffer has room for `nameserver` and the longest address.
        let _ = match nameserver.ip.first_chunk::<4>() {
            Some(v4) if i32::from(nameserver.family) == libc::AF_INET => {
                writeln!(rest, "nameserver {}", std::net::Ipv4Addr::from(*v4))
            }
            _ => writeln!(rest, "nameserver {}", std::net::Ipv6Addr::from(nameserver.ip)),
        };
        let left = rest.len();
        self.put(&line[..line.len() - left]);
    }

    fn into_file(self) -> Result<i32> {
        let fd = crate::memory_file::create(c"resolv.conf")?;
        let args = [fd as usize, self.bytes.as_ptr() as usize, self.len, 0, 0, 0];
        // SAFETY: the first `len` bytes of `bytes` are initialized. pwrite leaves the position at
        // 0, where the program begins to read.
        if let Err(errno) = unsafe { syscall(libc::SYS_pwrite64 as usize, args) } {
            syscall::close(fd);
            return Err(Errno(errno));
        }
        Ok(fd)
    }
}

/// Reads a file into the buffer `into`. Returns its length in bytes; `None` if it does not fit or
/// cannot be read to its end.
///
/// # Errors
/// Errors of open(2).
pub(crate) fn read(path: &CStr, into: &mut [u8]) -> Result<Option<usize>> {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0];
    // SAFETY: `path` is NUL-terminated, and outlives the call.
    let fd = unsafe { syscall(libc::SYS_openat as usize, args) }.map_err(Errno)?;
    let mut len = 0;
    let whole = loop {
        let room = &mut into[len..];
        let args = [fd, room.as_mut_ptr() as usize, room.len(), 0, 0, 0];
        // SAFETY: the address and length are those of `room`.
        match unsafe { syscall(libc::SYS_read as usize, args) } {
            Ok(0) => break !room.is_empty(),
            Ok(n) => len += n,
            Err(libc::EINTR) => {}
            Err(_) => break false,
        }
    };
    syscall::close(fd as i32);
    Ok(whole.then_some(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str, nameserver: &str, only_loopback: bool) -> Option<String> {
        let at = RawAddr::new(std::net::SocketAddr::new(nameserver.parse().unwrap(), 0));
        let mut to = ResolverText::new();
        let changed = rewrite(text.as_bytes(), &at, only_loopback, &mut to);
        changed.then(|| String::from_utf8(to.bytes[..to.len].to_vec()).unwrap())
    }

    #[test]
    fn nameservers_of_the_hosts_loopback_are_replaced() {
        let stub =
            "# by systemd-resolved\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch lan\n";
        let wanted =
            "# by systemd-resolved\nnameserver 10.0.2.3\noptions edns0 trust-ad\nsearch lan\n";
        assert_eq!(rewritten(stub, "10.0.2.3", true).as_deref(), Some(wanted));
        // Nameservers at other addresses than loopback stay, and the stack's nameserver appears
        // only once.
        let mixed = "nameserver ::1\nnameserver\t192.0.2.1\nnameserver 127.0.0.1";
        let wanted = "nameserver fd00:2::3\nnameserver\t192.0.2.1\n";
        assert_eq!(rewritten(mixed, "fd00:2::3", true).as_deref(), Some(wanted));
        assert_eq!(rewritten("nameserver 192.0.2.1\n", "10.0.2.3", true), None);
        assert_eq!(
            rewritten("search lan", "10.0.2.3", true).as_deref(),
            Some("search lan\nnameserver 10.0.2.3\n")
        );
    }

    #[test]
    fn all_are_replaced_when_the_user_named_one() {
        let text = "nameserver 192.0.2.1\nnameserver 192.0.2.2\noptions edns0\n";
        let wanted = "nameserver 10.0.2.3\noptions edns0\n";
        assert_eq!(rewritten(text, "10.0.2.3", false).as_deref(), Some(wanted));
    }

    #[test]
    fn a_file_is_as_long_as_it_may_be() {
        let long = "# 34567\n".repeat(FILE_MAX / 8);
        let wanted = format!("{long}\nnameserver 10.0.2.3\n");
        assert_eq!(rewritten(&long, "10.0.2.3", true), Some(wanted));
    }
}
