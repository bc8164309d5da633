//! Device and inode number of each socket, for fstat(2) and similar calls. The kernel would return
//! the same numbers for all of the stack's sockets, because their descriptors refer to the same
//! kernel object.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use towpath_client::Socket;
use towpath_client::syscall::syscall;
use towpath_shm::layout::SLOTS_MAX;

use crate::{Posix, descriptor};

/// First inode number of the stack's sockets: 2³¹, half of the 32-bit range in /proc/net and
/// NETLINK_SOCK_DIAG. The kernel's own inode numbers begin at 1. Numbers of 2³¹ are reached only
/// after two thousand million pipes and sockets.
const FIRST_INODE: u32 = 1 << 31;
/// Number of low bits of an inode number that contain the index of the socket's slot. The slot's
/// generation is in the bits above them.
const SLOT_BITS: u32 = SLOTS_MAX.trailing_zeros();

/// Device and inode number, by which stat(2) identifies a file. A socket has the same numbers in
/// all processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Device number, which is the same for all sockets.
    pub device: u64,
    /// Inode number, which differs for each socket of the run.
    pub inode: u64,
}

/// Returns the device and inode number of the stack's socket with descriptor `fd`. None: `fd` is no
/// socket of the stack.
pub fn of(posix: &'static Posix, fd: i32) -> Option<Identity> {
    Identity::new(posix, posix.process.descriptors.socket(fd)?)
}

/// Returns the inode number of a socket, which is unique among the open sockets of the stack. The
/// lowest bit of `generation` is omitted, because it is always 1 while a socket uses the slot.
pub(crate) fn inode(slot: u32, generation: u32) -> u32 {
    FIRST_INODE | (generation >> 1) << SLOT_BITS & !FIRST_INODE | slot
}

/// A descriptor to which a path of /proc or /dev/fd refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// A descriptor of this process. The value is its number.
    Own(i32),
    /// A descriptor of another process. Contains the process ID and the number of the descriptor.
    Other(u32, i32),
}

/// Parses a path such as /proc/PID/fd/N or /dev/fd/N. Returns the descriptor to which it refers.
pub fn descriptor(path: &CStr) -> Option<Named> {
    let path = path.to_bytes();
    if let Some(number) = path.strip_prefix(b"/dev/fd/") {
        return Some(Named::Own(number_of(number)?));
    }
    let rest = path.strip_prefix(b"/proc/")?;
    let slash = rest.iter().position(|&byte| byte == b'/')?;
    let (who, rest) = rest.split_at(slash);
    let fd = number_of(rest.strip_prefix(b"/fd/")?)?;
    match who {
        b"self" | b"thread-self" => Some(Named::Own(fd)),
        _ => decimal(who).map(|pid| match pid == std::process::id() {
            true => Named::Own(fd),
            false => Named::Other(pid, fd),
        }),
    }
}

fn number_of(digits: &[u8]) -> Option<i32> {
    i32::try_from(decimal(digits)?).ok()
}

/// Returns whether a directory entry such as /proc/self/fd/N must be hidden from the program.
/// `name` is N; it is hidden if it is an internal descriptor of this library.
pub fn is_hidden(posix: &'static Posix, name: &[u8]) -> bool {
    decimal(name).is_some_and(|number| descriptor::is_hidden(posix, number as i32))
}

/// Returns whether an open directory is one that lists this process's descriptors, such as
/// /proc/self/fd. Reads its path by readlink(2).
pub fn lists_descriptors(folder: i32) -> bool {
    // Do not allocate memory: after fork(2) in a process with several threads, the child must not
    // use malloc until exec.
    let (mut path, mut link) = ([0u8; 32], [0u8; 64]);
    // The write cannot fail: `path` has room for the longest number and the NUL.
    let _ = write!(&mut path[..], "/proc/self/fd/{folder}");
    let args = [
        libc::AT_FDCWD as usize,
        path.as_ptr() as usize,
        link.as_mut_ptr() as usize,
        link.len(),
        0,
        0,
    ];
    // SAFETY: `path` is NUL-terminated, and the length passed is that of `link`.
    let Ok(len) = (unsafe { syscall(libc::SYS_readlinkat as usize, args) }) else { return false };
    names_list(&link[..len])
}

/// Returns whether a path is a directory of this process's descriptors: fd or fdinfo, in /proc/PID
/// or /proc/PID/task/TID.
fn names_list(folder: &[u8]) -> bool {
    let mut parts = folder.split(|byte| *byte == b'/').skip(1);
    if parts.next() != Some(b"proc") || parts.next().and_then(decimal) != Some(std::process::id()) {
        return false;
    }
    let mut last = parts.next();
    if last == Some(b"task") {
        last = parts.nth(1);
    }
    matches!(last, Some(b"fd" | b"fdinfo")) && parts.next().is_none()
}

impl Identity {
    pub(crate) fn new(posix: &'static Posix, socket: Socket) -> Option<Self> {
        let inode = inode(socket.slot, socket.generation).into();
        Some(Self { device: device(posix)?, inode })
    }

    /// Writes `socket:[INODE]`, the text that readlink(2) returns for the socket's descriptor,
    /// truncated to the length of `to`. Returns the number of bytes written.
    pub fn link(&self, to: &mut [u8]) -> Option<usize> {
        let mut text = [0u8; 32];
        let mut rest = &mut text[..];
        write!(rest, "socket:[{}]", self.inode).ok()?;
        let len = 32 - rest.len();
        let n = len.min(to.len());
        to[..n].copy_from_slice(&text[..n]);
        Some(n)
    }
}

fn decimal(digits: &[u8]) -> Option<u32> {
    let plain = digits.iter().all(u8::is_ascii_digit) && (1..=10).contains(&digits.len());
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

/// Returns the device number of kernel sockets, read from the control socket, which is one.
fn device(posix: &'static Posix) -> Option<u64> {
    let known = posix.device.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known);
    }
    let control = posix.client().ok()?.control().borrow().as_raw_fd();
    let device = stat_of(control, c"", libc::AT_EMPTY_PATH)?.st_dev;
    posix.device.store(device, Ordering::Relaxed);
    Some(device)
}

/// Executes the system call fstatat(2). libc's function cannot be used, because this library may
/// have replaced it.
pub(crate) fn stat_of(dir: i32, path: &CStr, flags: i32) -> Option<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    let (path, to) = (path.as_ptr() as usize, stat.as_mut_ptr() as usize);
    let args = [dir as usize, path, to, flags as usize, 0, 0];
    // SAFETY: the path is NUL-terminated, and both pointers outlive the call.
    unsafe { syscall(libc::SYS_newfstatat as usize, args) }.ok()?;
    // SAFETY: zeroed memory is a valid `stat`, and the kernel has filled it in.
    Some(unsafe { stat.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_descriptors_are_recognised() {
        let own = std::process::id();
        for path in ["fd", "fdinfo", "task/7/fd", "task/7/fdinfo"] {
            assert!(names_list(format!("/proc/{own}/{path}").as_bytes()), "{path}");
        }
        for path in ["", "fd/3", "task/fd", "task/7/net", "map_files"] {
            assert!(!names_list(format!("/proc/{own}/{path}").as_bytes()), "{path}");
        }
        assert!(!names_list(format!("/proc/{}/fd", own + 1).as_bytes()));
        assert!(!names_list(b"/tmp/fd"));
    }

    #[test]
    fn paths_name_descriptors() {
        let own = format!("/proc/{}/fd/12\0", std::process::id());
        let own = CStr::from_bytes_with_nul(own.as_bytes()).unwrap();
        for path in [c"/proc/self/fd/12", c"/proc/thread-self/fd/12", c"/dev/fd/12", own] {
            assert_eq!(descriptor(path), Some(Named::Own(12)), "{path:?}");
        }
        assert_eq!(descriptor(c"/proc/1/fd/0"), Some(Named::Other(1, 0)));
        for path in [
            c"/proc/self/fd/",
            c"/proc/self/fd/+1",
            c"/proc/1x/fd/1",
            c"/proc/self/fdinfo/1",
            c"",
            c"/dev/fd",
        ] {
            assert_eq!(descriptor(path), None, "{path:?}");
        }
    }
}
