//! Implements ioctl(2) for sockets of the stack.

use std::sync::atomic::Ordering::Relaxed;

use towpath_client::{datagram, stream, urgent};
use towpath_shm::control::Interface;
use towpath_shm::layout::{Kind, RawAddr};

use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::{Errno, Posix, Result, address, descriptor, interface};

const SIOCOUTQNSD: u64 = 0x894b;
const SIOCGIFNAME: u64 = 0x8910;
const SIOCGIFCONF: u64 = 0x8912;
const SIOCGIFFLAGS: u64 = 0x8913;
const SIOCGIFADDR: u64 = 0x8915;
const SIOCGIFDSTADDR: u64 = 0x8917;
const SIOCGIFBRDADDR: u64 = 0x8919;
const SIOCGIFNETMASK: u64 = 0x891b;
const SIOCGIFMETRIC: u64 = 0x891d;
const SIOCGIFMTU: u64 = 0x8921;
const SIOCGIFHWADDR: u64 = 0x8927;
const SIOCGIFINDEX: u64 = 0x8933;
const SIOCGIFTXQLEN: u64 = 0x8942;
const SIOCETHTOOL: u64 = 0x8946;
const SIOCGIFMAP: u64 = 0x8970;
const SIOCATMARK: u64 = 0x8905;
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
const FIOGETOWN: u64 = 0x8903;
const SIOCGPGRP: u64 = 0x8904;
const FIOASYNC: u64 = 0x5452;
/// Requests that would change an interface (SIOCSIF...) or a route (SIOCADDRT, SIOCDELRT).
const CHANGES: [u64; 13] = [
    0x890b, 0x890c, 0x8914, 0x8916, 0x8918, 0x891a, 0x891c, 0x8922, 0x8923, 0x8924, 0x8934, 0x8936,
    0x8943,
];
/// Default length of a device's transmit queue, in packets (DEFAULT_TX_QUEUE_LEN of Linux).
const TX_QUEUE_LEN: i32 = 1000;
/// Length in bytes of a `struct ifreq`: a name of 16 bytes and a union of 24 bytes.
const IFREQ: usize = 40;
const NAME: usize = 16;

/// Implements ioctl(2) for a socket of the stack.
///
/// # Safety
/// `arg` must be valid for the request: an integer, or a pointer to the type that it requires.
pub unsafe fn ioctl(posix: &'static Posix, fd: i32, request: u64, arg: usize) -> Result<i32> {
    let handle = OpenSocket::new(posix, fd)?;
    // Use the low 32 bits only: the kernel reads the request as an int, although libc passes an
    // unsigned long.
    let request = request & 0xffff_ffff;
    // SAFETY: this closure is called only for requests whose `arg` is null or points to an int.
    let put = |value: i32| unsafe {
        if arg == 0 {
            return fail(libc::EFAULT);
        }
        (arg as *mut i32).write_unaligned(value);
        Ok(0)
    };
    match request {
        libc::FIONREAD => put(unread(&handle)?),
        libc::TIOCOUTQ => put(queued(&handle)?.0),
        SIOCOUTQNSD if handle.is_tcp() => put(queued(&handle)?.1),
        // SAFETY: F_GETOWN and F_SETOWN take integers.
        FIOGETOWN | SIOCGPGRP => put(unsafe { descriptor::fcntl(posix, fd, libc::F_GETOWN, 0) }?),
        FIOSETOWN | SIOCSPGRP => {
            // SAFETY: for FIOSETOWN and SIOCSPGRP, `arg` points to an int. F_SETOWN takes an
            // integer.
            unsafe {
                let owner = (arg as *const i32).read_unaligned();
                descriptor::fcntl(posix, fd, libc::F_SETOWN, owner as usize)
            }
        }
        SIOCATMARK if handle.is_tcp() => {
            put(urgent::is_at_mark(handle.client, handle.socket).into())
        }
        libc::FIONBIO => {
            // SAFETY: for FIONBIO, `arg` points to an int.
            let on = unsafe { (arg as *const i32).read_unaligned() } != 0;
            const BIT: u32 = libc::O_NONBLOCK as u32;
            handle.change(|slot| match on {
                true => slot.file_flags.fetch_or(BIT, Relaxed),
                false => slot.file_flags.fetch_and(!BIT, Relaxed),
            })?;
            Ok(0)
        }
        // SAFETY: for FIOASYNC, `arg` points to an int. Only the value 0 succeeds, because the
        // stack has no signal-driven I/O.
        FIOASYNC if unsafe { (arg as *const i32).read_unaligned() } == 0 => Ok(0),
        libc::FIOCLEX => set_cloexec(posix, fd, true),
        libc::FIONCLEX => set_cloexec(posix, fd, false),
        // SAFETY: for SIOCGIFCONF, `arg` is null or points to a `struct ifconf`.
        SIOCGIFCONF => unsafe { configuration(posix, arg) },
        // SAFETY: for requests about an interface, `arg` is null or points to a `struct ifreq`.
        _ if (SIOCGIFNAME..=SIOCGIFINDEX).contains(&request) && !CHANGES.contains(&request) => unsafe {
            about_interface(&handle, request, arg)
        },
        // SAFETY: for requests about an interface, `arg` is null or points to a `struct ifreq`.
        SIOCGIFTXQLEN | SIOCETHTOOL | SIOCGIFMAP => unsafe {
            about_interface(&handle, request, arg)
        },
        _ if CHANGES.contains(&request) => fail(libc::EPERM),
        _ => fail(libc::ENOTTY),
    }
}

fn set_cloexec(posix: &'static Posix, fd: i32, on: bool) -> Result<i32> {
    let flag = if on { libc::FD_CLOEXEC as usize } else { 0 };
    // SAFETY: F_SETFD takes an integer.
    unsafe { descriptor::fcntl(posix, fd, libc::F_SETFD, flag) }
}

fn unread(handle: &OpenSocket) -> Result<i32> {
    let unread = || match handle.kind() {
        Kind::Stream => stream::unread(handle.client, handle.socket) as i32,
        _ => datagram::next_len(handle.client, handle.socket) as i32,
    };
    Ok(match unread() {
        _ if handle.kind() == Kind::Listener => return fail(libc::EINVAL),
        0 if handle.client.await_senders(handle.socket) => unread(),
        unread => unread,
    })
}

fn queued(handle: &OpenSocket) -> Result<(i32, i32)> {
    if handle.kind() == Kind::Listener {
        return fail(libc::EINVAL);
    }
    let (all, unsent) = stream::queued(handle.client, handle.socket);
    Ok((all as i32, unsent as i32))
}

/// Answers SIOCGIFCONF: lists the interfaces with IPv4 addresses.
///
/// # Safety
/// `arg` must be null, or point to a `struct ifconf`. As in the kernel, any alignment is valid.
unsafe fn configuration(posix: &'static Posix, arg: usize) -> Result<i32> {
    if arg == 0 {
        return fail(libc::EFAULT);
    }
    let at = arg as *mut libc::ifconf;
    let interfaces = interface::list(posix)?;
    let rows = interfaces.iter().filter(|entry| entry.addr.family == libc::AF_INET as u16);
    // SAFETY: `at` points to a `struct ifconf`, whose buffer is null or has `ifc_len` bytes.
    unsafe {
        let mut conf = at.read_unaligned();
        let buffer = conf.ifc_ifcu.ifcu_buf.cast::<u8>();
        let mut count = 0;
        if buffer.is_null() {
            count = rows.count();
        } else {
            let fits = conf.ifc_len.max(0) as usize / IFREQ;
            for entry in rows.take(fits) {
                let row = std::slice::from_raw_parts_mut(buffer.add(count * IFREQ), IFREQ);
                row.fill(0);
                row[..NAME].copy_from_slice(&entry.name);
                put_address(row, &entry.addr);
                count += 1;
            }
        }
        conf.ifc_len = (count * IFREQ) as i32;
        at.write_unaligned(conf);
    }
    Ok(0)
}

fn put_address(row: &mut [u8], addr: &RawAddr) {
    let plain = RawAddr { port: 0, ..*addr };
    row[NAME..NAME + 16].copy_from_slice(&address::encode(&plain).0[..16]);
}

/// Answers a request about one interface.
///
/// # Safety
/// `arg` must be null, or point to a `struct ifreq`.
unsafe fn about_interface(handle: &OpenSocket, request: u64, arg: usize) -> Result<i32> {
    if arg == 0 {
        return fail(libc::EFAULT);
    }
    // SAFETY: `arg` is not null, and points to a `struct ifreq`.
    let row = unsafe { std::slice::from_raw_parts_mut(arg as *mut u8, IFREQ) };
    let interfaces = interface::list(handle.posix)?;
    if request == SIOCGIFNAME {
        let index = u32::from_ne_bytes([row[NAME], row[NAME + 1], row[NAME + 2], row[NAME + 3]]);
        let found =
            interfaces.iter().find(|entry| entry.index == index).ok_or(Errno(libc::ENODEV))?;
        row[..NAME].copy_from_slice(&found.name);
        return Ok(0);
    }
    let len = row[..NAME].iter().position(|&byte| byte == 0).unwrap_or(NAME);
    // As on Linux, a name such as lo:1 selects the interface lo, but no address of lo, because no
    // address has this label.
    let alias = row[..len].iter().position(|&byte| byte == b':');
    let name = &row[..alias.unwrap_or(len)];
    let named = || interfaces.iter().filter(|entry| interface::name(entry) == name);
    let first: Interface = *named().next().ok_or(Errno(libc::ENODEV))?;
    let v4 = named().find(|entry| entry.addr.family == libc::AF_INET as u16).copied();
    let v4 = v4.filter(|_| alias.is_none()).ok_or(Errno(libc::EADDRNOTAVAIL));
    match request {
        SIOCGIFFLAGS => row[NAME..NAME + 2].copy_from_slice(&(first.flags as u16).to_ne_bytes()),
        SIOCGIFMETRIC => row[NAME..NAME + 4].fill(0),
        SIOCGIFTXQLEN => row[NAME..NAME + 4].copy_from_slice(&TX_QUEUE_LEN.to_ne_bytes()),
        // Return zeros: the interface is not hardware, so it has no memory range and no interrupt.
        SIOCGIFMAP => row[NAME..].fill(0),
        // Fail as Linux does for a device whose driver supports no ethtool requests.
        SIOCETHTOOL => return fail(libc::EOPNOTSUPP),
        SIOCGIFMTU => row[NAME..NAME + 4].copy_from_slice(&first.mtu.to_ne_bytes()),
        SIOCGIFINDEX => row[NAME..NAME + 4].copy_from_slice(&first.index.to_ne_bytes()),
        SIOCGIFHWADDR => {
            let kind = interface::hardware_type(&first);
            row[NAME..NAME + 2].copy_from_slice(&kind.to_ne_bytes());
            row[NAME + 2..NAME + 8].copy_from_slice(&first.mac);
        }
        // The stack's addresses have no peer, so SIOCGIFDSTADDR returns the address itself, as on
        // Linux.
        SIOCGIFADDR | SIOCGIFDSTADDR => put_address(row, &v4?.addr),
        SIOCGIFNETMASK => put_address(row, &interface::netmask(&v4?)),
        SIOCGIFBRDADDR => {
            let none = RawAddr { family: libc::AF_INET as u16, ..RawAddr::default() };
            put_address(row, &interface::broadcast_address(&v4?).unwrap_or(none));
        }
        _ => return fail(if handle.is_tcp() { libc::ENOTTY } else { libc::EINVAL }),
    }
    Ok(0)
}
