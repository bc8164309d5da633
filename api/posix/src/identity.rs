//! Who a socket is, for programs that ask the file system: to the kernel they all are one socket.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use towpath_client::descriptors;
use towpath_client::syscall::syscall;

use crate::process;

/// Above the inode numbers that the kernel gives its own sockets (they are 32 bits long).
const FIRST_INODE: u64 = 1 << 32;

/// What makes one socket another one than the next: the same in all processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The device of all sockets.
    pub device: u64,
    /// A number of its own.
    pub inode: u64,
}

/// The socket of ours behind a descriptor.
pub fn of(fd: i32) -> Option<Identity> {
    let socket = descriptors::socket(fd)?;
    let inode = FIRST_INODE | u64::from(socket.generation) << 20 | u64::from(socket.slot);
    Some(Identity { device: device()?, inode })
}

/// The descriptor that a path of this process's /proc directory names.
pub fn descriptor(path: &CStr) -> Option<i32> {
    let path = path.to_bytes();
    let rest = path.strip_prefix(b"/proc/").or(path.strip_prefix(b"/dev/fd/"))?;
    let number = if path.starts_with(b"/dev/") {
        rest
    } else {
        let slash = rest.iter().position(|&byte| byte == b'/')?;
        let (who, rest) = rest.split_at(slash);
        let own =
            who == b"self" || who == b"thread-self" || decimal(who) == Some(std::process::id());
        rest.strip_prefix(b"/fd/").filter(|_| own)?
    };
    i32::try_from(decimal(number)?).ok()
}

/// What readlink(2) says about it: `socket:[inode]`. Bytes written to `to`, which may cut it.
pub fn link(fd: i32, to: &mut [u8]) -> Option<usize> {
    let identity = of(fd)?;
    let mut text = [0u8; 32];
    let mut rest = &mut text[..];
    write!(rest, "socket:[{}]", identity.inode).ok()?;
    let len = 32 - rest.len();
    let n = len.min(to.len());
    to[..n].copy_from_slice(&text[..n]);
    Some(n)
}

fn decimal(digits: &[u8]) -> Option<u32> {
    let plain = digits.iter().all(u8::is_ascii_digit) && (1..=10).contains(&digits.len());
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

/// That of the control socket, which is the kernel's.
fn device() -> Option<u64> {
    static DEVICE: AtomicU64 = AtomicU64::new(0);
    let known = DEVICE.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known);
    }
    let control = process::client().ok()?.control().borrow().as_raw_fd();
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    let empty = c"";
    let args = [
        control as usize,
        empty.as_ptr() as usize,
        stat.as_mut_ptr() as usize,
        libc::AT_EMPTY_PATH as usize,
        0,
        0,
    ];
    // SAFETY: an empty path and room for the answer, which outlive the call.
    unsafe { syscall(libc::SYS_newfstatat as usize, args) }.ok()?;
    // SAFETY: zeroed, and filled in.
    let device = unsafe { stat.assume_init() }.st_dev;
    DEVICE.store(device, Ordering::Relaxed);
    Some(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_descriptors() {
        let own = format!("/proc/{}/fd/12\0", std::process::id());
        let own = CStr::from_bytes_with_nul(own.as_bytes()).unwrap();
        for path in [c"/proc/self/fd/12", c"/proc/thread-self/fd/12", c"/dev/fd/12", own] {
            assert_eq!(descriptor(path), Some(12), "{path:?}");
        }
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
