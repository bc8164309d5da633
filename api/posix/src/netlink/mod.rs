//! Netlink sockets that show the stack. NETLINK_ROUTE (rtnetlink(7)) answers `ip`, libnl and others
//! about interfaces, addresses and routes; NETLINK_SOCK_DIAG (sock_diag(7)) answers `ss` about
//! sockets.
//!
//! The program's socket is the kernel's, of NETLINK_USERSOCK, the netlink protocol between
//! processes: the kernel does its waiting, flags, buffers and names. `answer` answers a request at
//! once, before the call that sends it returns:
//!
//! ```text
//!   program ── sendmsg ──► this library ─ answer ─► a socket of the library
//!   program ◄─ recvmsg ─── the program's socket ◄────── datagrams ──┘
//! ```
//!
//! A netlink socket that is connected takes datagrams of its peer alone. So the program's socket is
//! connected to the answering one during the call, and to itself otherwise: no other process can
//! write to it. The answering one is made with the first socket of the program, in the network
//! namespace of the run. The process may leave that namespace later, and its sockets stay.
//!
//! A process that has entered a network namespace of its own (`unshare -n`, bubblewrap) sets that
//! one up by netlink. There the kernel answers these sockets, as it does those of other netlink
//! protocols everywhere.

mod answer;
mod bytecode;
mod codec;
mod diag;
pub(crate) mod groups;
mod out;
mod rules;

use std::mem::size_of;
use std::os::fd::BorrowedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use towpath_client::syscall::{self, SignalsBlocked};
use towpath_client::{Buffer, HighFd};
use towpath_shm::Fd;
use towpath_shm::control::{Interface, NeighborRecord, Route};

use crate::dns::random;
use crate::errno::fail;
use crate::listing::{self, ListedCounters};
use crate::privilege::{CAP_NET_ADMIN, may};
use crate::{Errno, Posix, Result, interface};
use answer::StackTables;

/// Longest request that is looked at; those that have an answer are a tenth of it.
const REQUEST_MAX: usize = codec::DATAGRAM_MAX;
/// Routes told; the rest is left out.
const ROUTES_MAX: usize = 64;
/// Neighbours told; the rest is left out.
const NEIGHBORS_MAX: usize = 256;
/// getsockopt(2): which network namespace a socket is of (Linux 5.14).
const SO_NETNS_COOKIE: i32 = 71;
const SOL_NETLINK: i32 = 270;
const NETLINK_GET_STRICT_CHK: i32 = 12;

/// Whether socket(2) is asked for one of these.
pub fn is_wanted(posix: &'static Posix, domain: i32, protocol: i32) -> bool {
    let shown = matches!(protocol, libc::NETLINK_ROUTE | libc::NETLINK_SOCK_DIAG);
    domain == libc::AF_NETLINK && shown && posix.is_active()
}

/// socket(2); None: the kernel's own is wanted, because this process is in another network
/// namespace than the run.
pub fn socket(posix: &'static Posix, kind: i32, protocol: i32) -> Result<Option<i32>> {
    let client = posix.client()?;
    let args = [libc::AF_NETLINK as usize, kind as usize, libc::NETLINK_USERSOCK as usize, 0, 0, 0];
    // SAFETY: socket(2) takes numbers.
    let fd = unsafe { syscall::syscall(libc::SYS_socket as usize, args) }.map_err(Errno)? as i32;
    if is_of_another_namespace(fd, client.control().get()) {
        syscall::close(fd);
        return Ok(None);
    }
    if !posix.netlink.add(fd) {
        syscall::close(fd);
        return fail(libc::EMFILE);
    }
    if let Err(errno) = prepare_answers(posix) {
        posix.netlink.remove(fd);
        syscall::close(fd);
        return Err(errno);
    }
    posix.groups.forget(fd);
    match protocol {
        libc::NETLINK_SOCK_DIAG => drop(posix.diag.add(fd)),
        _ => posix.diag.remove(fd),
    }
    Ok(Some(fd))
}

/// Whether this process is in another network namespace than the run.
pub(crate) fn is_elsewhere(posix: &'static Posix) -> bool {
    let Ok(client) = posix.client() else { return false };
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: socket(2) takes numbers.
    let made = unsafe {
        syscall::syscall(libc::SYS_socket as usize, [libc::AF_UNIX as usize, kind, 0, 0, 0, 0])
    };
    let Ok(fd) = made else { return false };
    let elsewhere = is_of_another_namespace(fd as i32, client.control().get());
    syscall::close(fd as i32);
    elsewhere
}

fn is_of_another_namespace(fd: i32, of_run: i32) -> bool {
    let namespaces = (cookie(fd), cookie(of_run));
    matches!(namespaces, (Some(here), Some(of_run)) if here != of_run)
}

/// Whether `fd` is such a socket. A duplicate of one is not known.
#[inline]
pub fn is_ours(posix: &'static Posix, fd: i32) -> bool {
    posix.netlink.has(fd) && is_still_ours(posix, fd)
}

/// The number may be another file's by now: its close is not looked at.
#[cold]
fn is_still_ours(posix: &'static Posix, fd: i32) -> bool {
    // SAFETY: the number is used in this call only; whatever it names, it is just asked what it is.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let ours = sockopt::socket_domain(socket) == Ok(AddressFamily::NETLINK)
        && sockopt::socket_protocol(socket) == Ok(Some(netlink::USERSOCK));
    if !ours {
        posix.netlink.remove(fd);
    }
    ours
}

/// bind(2). Groups may be joined as on the kernel, which announces changes in them: here nothing
/// changes.
///
/// # Errors
/// As bind(2), and ENOMEM where the groups of too many sockets are kept.
///
/// # Safety
/// As bind(2).
pub unsafe fn bind(
    posix: &'static Posix,
    fd: i32,
    addr: *const libc::sockaddr,
    len: u32,
) -> Result<()> {
    // SAFETY: as called.
    let name = unsafe { read_addr(addr, len) }?;
    rustix::net::bind(borrow(fd), &SocketAddrNetlink::new(name.nl_pid, 0))?;
    posix.groups.bind(fd, name.nl_groups)
}

/// connect(2): to the kernel, which is where everything goes. A socket without a port id gets one.
///
/// # Safety
/// As connect(2).
pub unsafe fn connect(fd: i32, addr: *const libc::sockaddr, len: u32) -> Result<()> {
    // SAFETY: as called.
    check_destination(&unsafe { read_addr(addr, len) }?)?;
    bind_unbound(borrow(fd));
    Ok(())
}

/// As `netlink_sendmsg` and `netlink_connect`: groups are for the privileged. So are other
/// processes; there is none to which this socket could send.
fn check_destination(name: &libc::sockaddr_nl) -> Result<()> {
    if name.nl_pid != 0 || name.nl_groups != 0 && !may(CAP_NET_ADMIN) {
        return fail(libc::EPERM);
    }
    Ok(())
}

/// Gives a socket a port id, unless it has one: that of the process, if that is free
/// (`netlink_autobind`).
fn bind_unbound(socket: BorrowedFd<'_>) {
    // EINVAL of a socket that has one.
    let _ = rustix::net::bind(socket, &SocketAddrNetlink::new(0, 0));
}

/// Answer of setsockopt(2); None: the kernel's.
///
/// # Safety
/// As setsockopt(2).
pub unsafe fn set_option(
    posix: &'static Posix,
    fd: i32,
    (level, name): (i32, i32),
    value: *const libc::c_void,
    len: u32,
) -> Option<Result<()>> {
    let joins = match (level, name) {
        (SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP) => true,
        (SOL_NETLINK, libc::NETLINK_DROP_MEMBERSHIP) => false,
        _ => return None,
    };
    if value.is_null() || (len as usize) < size_of::<u32>() {
        return Some(fail(libc::EINVAL));
    }
    // SAFETY: the caller's; it may not be aligned.
    let group = unsafe { value.cast::<u32>().read_unaligned() };
    Some(posix.groups.change(fd, group, joins))
}

/// Answer of getsockopt(2); None: the kernel's.
///
/// # Safety
/// As getsockopt(2).
pub unsafe fn get_option(
    posix: &'static Posix,
    fd: i32,
    (level, name): (i32, i32),
    value: *mut libc::c_void,
    len: *mut u32,
) -> Option<Result<()>> {
    if (level, name) != (SOL_NETLINK, libc::NETLINK_LIST_MEMBERSHIPS) {
        return None;
    }
    if len.is_null() {
        return Some(fail(libc::EFAULT));
    }
    let known = posix.groups.of(fd);
    // SAFETY: the caller's number of bytes are there.
    unsafe {
        let room = *len as usize;
        if room > i32::MAX as usize {
            return Some(fail(libc::EINVAL));
        }
        // A socket that has never joined a group has no list. The kernel writes whole words.
        let list = known.map(u64::to_ne_bytes).unwrap_or_default();
        let fits = (room & !3).min(list.len());
        if known.is_some() && fits > 0 {
            value.cast::<u8>().copy_from(list.as_ptr(), fits);
        }
        *len = if known.is_some() { list.len() as u32 } else { 0 };
    }
    Some(Ok(()))
}

/// The number that getsockopt(2) gives for SO_PROTOCOL.
pub fn protocol(posix: &'static Posix, fd: i32) -> i32 {
    if posix.diag.has(fd) { libc::NETLINK_SOCK_DIAG } else { libc::NETLINK_ROUTE }
}

/// Shows the kernel, whose port is 0, in a name that the kernel has just filled in.
///
/// # Safety
/// `len` bytes at `addr` may be written.
pub unsafe fn show_kernel(addr: *mut libc::c_void, len: usize) {
    // SAFETY: the caller's.
    unsafe {
        change_name(addr, len, |name| (name.nl_pid, name.nl_groups) = (0, 0));
    }
}

/// Shows the groups that a socket is in, in its own name.
///
/// # Safety
/// As [`show_kernel`].
pub unsafe fn show_groups(posix: &'static Posix, fd: i32, addr: *mut libc::c_void, len: usize) {
    // SAFETY: the caller's.
    unsafe {
        change_name(addr, len, |name| name.nl_groups = posix.groups.of(fd).unwrap_or(0) as u32);
    }
}

unsafe fn change_name(
    addr: *mut libc::c_void,
    len: usize,
    change: impl FnOnce(&mut libc::sockaddr_nl),
) {
    if !addr.is_null() && len >= size_of::<libc::sockaddr_nl>() {
        // SAFETY: the caller's; it may not be aligned.
        unsafe {
            let mut name = addr.cast::<libc::sockaddr_nl>().read_unaligned();
            change(&mut name);
            addr.cast::<libc::sockaddr_nl>().write_unaligned(name);
        }
    }
}

/// Shows the kernel in the credentials of a message (SO_PASSCRED): no process, and root.
///
/// # Safety
/// The kernel has just filled in this header.
pub unsafe fn show_kernel_in(message: *const libc::msghdr) {
    // SAFETY: as called; data of control messages may not be aligned.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            let len = libc::CMSG_LEN(size_of::<libc::ucred>() as u32) as usize;
            let kind = ((*at).cmsg_level, (*at).cmsg_type);
            if kind == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) && (*at).cmsg_len as usize >= len {
                let kernel = libc::ucred { pid: 0, uid: 0, gid: 0 };
                libc::CMSG_DATA(at).cast::<libc::ucred>().write_unaligned(kernel);
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
}

/// send(2) and its kin: takes the requests in `from` and answers them.
///
/// # Safety
/// The buffers, and the name, are the program's, as it passed them.
pub unsafe fn send(
    posix: &'static Posix,
    fd: i32,
    from: &[Buffer],
    to: *const libc::sockaddr,
    to_len: u32,
) -> Result<usize> {
    if !to.is_null() && to_len > 0 {
        // SAFETY: as called.
        check_destination(&unsafe { read_addr(to, to_len) }?)?;
    }
    let mut bytes = [0; REQUEST_MAX];
    let mut len = 0;
    for buffer in from {
        let Some(room) = bytes.get_mut(len..).and_then(|rest| rest.get_mut(..buffer.len)) else {
            return fail(libc::EMSGSIZE);
        };
        // SAFETY: the program's buffer, of that length.
        unsafe { room.as_mut_ptr().copy_from(buffer.at, room.len()) };
        len += room.len();
    }
    answer_all(posix, fd, &bytes[..len])
}

fn answer_all(posix: &'static Posix, fd: i32, requests: &[u8]) -> Result<usize> {
    match protocol(posix, fd) {
        libc::NETLINK_SOCK_DIAG => {
            respond(posix, fd, |port, send| diag::answer(posix, requests, port, send))?
        }
        _ => answer_routing(posix, fd, requests)?,
    }
    Ok(requests.len())
}

/// splice(2) and sendfile(2) into such a socket: answers the requests that `read` gets, `len` bytes
/// at most.
pub fn send_from(
    posix: &'static Posix,
    fd: i32,
    len: usize,
    read: impl FnOnce(&mut [u8]) -> Result<usize>,
) -> Result<usize> {
    let mut bytes = [0; REQUEST_MAX];
    let room = len.min(REQUEST_MAX);
    match read(&mut bytes[..room])? {
        0 => Ok(0),
        len => answer_all(posix, fd, &bytes[..len]),
    }
}

/// Asks the engine for the parts of the stack that the requests are about, and answers them.
fn answer_routing(posix: &'static Posix, fd: i32, requests: &[u8]) -> Result<()> {
    let asks = |kind: u16| codec::requests(requests).any(|request| request.kind == kind);
    let interfaces = interface::ask(posix)?;
    let mut listed = [Interface::default(); listing::INTERFACES];
    let mut count = 0;
    for (to, from) in listed.iter_mut().zip(interface::entries(&interfaces)) {
        *to = from;
        count += 1;
    }
    let mut routes = [Route::default(); ROUTES_MAX];
    let mut routed = 0;
    if asks(libc::RTM_GETROUTE) {
        listing::routes(posix, |route| keep(&mut routes, &mut routed, route))?;
    }
    let mut neighbors = [NeighborRecord::default(); NEIGHBORS_MAX];
    let mut known = 0;
    let is_strict = asks(libc::RTM_GETADDR) && is_strict(fd);
    if asks(libc::RTM_GETNEIGH) {
        listing::neighbors(posix, |neighbor| keep(&mut neighbors, &mut known, neighbor))?;
    }
    let counted = match asks(libc::RTM_GETLINK) {
        true => listing::counted(posix)?,
        false => ListedCounters::default(),
    };
    let stack = StackTables {
        interfaces: &listed[..count],
        routes: &routes[..routed],
        neighbors: &neighbors[..known],
        counted: &counted,
    };
    respond(posix, fd, |port, send| answer::answer(requests, port, is_strict, stack, send))
}

/// Keeps an entry while there is room.
fn keep<T: Copy>(all: &mut [T], count: &mut usize, one: &T) -> Result<()> {
    if let Some(to) = all.get_mut(*count) {
        *to = *one;
        *count += 1;
    }
    Ok(())
}

/// Answers requests with a function that gets the port id of the asking socket, and sends
/// datagrams there.
fn respond(
    posix: &'static Posix,
    fd: i32,
    answer: impl FnOnce(u32, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let socket = borrow(fd);
    let _signals = SignalsBlocked::new();
    let answering = posix.answering.lock();
    let Some(helper) = answering.as_ref().map(|socket| borrow(socket.get())) else {
        return fail(libc::ENOBUFS);
    };
    bind_unbound(socket);
    rustix::net::connect(socket, &port_of(helper)?)?;
    let own = port_of(socket)?;
    let result = answer(own.pid(), &mut |datagram| {
        match rustix::net::sendto(helper, datagram, SendFlags::DONTWAIT, &own) {
            Ok(_) => Ok(()),
            // The program does not read: as the kernel says of messages that it could not queue.
            Err(rustix::io::Errno::AGAIN) => fail(libc::ENOBUFS),
            Err(errno) => Err(errno.into()),
        }
    });
    rustix::net::connect(socket, &own)?;
    result
}

/// Creates the socket for answers on first use. The port id differs from those that the kernel
/// would give to the program's sockets.
fn prepare_answers(posix: &'static Posix) -> Result<()> {
    /// Attempts to find a port id that is free.
    const ATTEMPTS: usize = 16;
    let _signals = SignalsBlocked::new();
    let mut answering = posix.answering.lock();
    if answering.is_some() {
        return Ok(());
    }
    let kind = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
    let socket: Fd =
        rustix::net::socket_with(kind.0, kind.1, kind.2, Some(netlink::USERSOCK))?.into();
    let mut bound = Err(rustix::io::Errno::ADDRINUSE);
    for _ in 0..ATTEMPTS {
        // Process ids are below 2^22.
        let port = u32::from(random()) << 8 | 1 << 31;
        bound = rustix::net::bind(&*socket, &SocketAddrNetlink::new(port, 0));
        if bound != Err(rustix::io::Errno::ADDRINUSE) {
            break;
        }
    }
    bound?;
    *answering = Some(HighFd::new(socket, &posix.process.descriptors));
    Ok(())
}

fn port_of(socket: BorrowedFd<'_>) -> Result<SocketAddrNetlink> {
    let name = rustix::net::getsockname(socket)?;
    SocketAddrNetlink::try_from(name).map_err(Errno::from)
}

fn borrow(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: the descriptor is the program's, which must not close it during a call. Otherwise the
    // kernel says EBADF or acts on the file that took the number, as in the program's own calls.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The network namespace that a socket is of; None: this kernel does not say.
fn cookie(fd: i32) -> Option<u64> {
    option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

/// Whether NETLINK_GET_STRICT_CHK is set: the kernel keeps it for its own socket.
fn is_strict(fd: i32) -> bool {
    option(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK).is_some_and(|value| value != 0)
}

/// An option of eight bytes or fewer.
fn option(fd: i32, level: i32, name: i32) -> Option<u64> {
    let (mut value, mut len) = (0u64, size_of::<u64>() as u32);
    let (at, at_len) = (&raw mut value as usize, &raw mut len as usize);
    let args = [fd as usize, level as usize, name as usize, at, at_len, 0];
    // SAFETY: getsockopt(2) writes at most eight bytes, which are there.
    unsafe { syscall::syscall(libc::SYS_getsockopt as usize, args) }.ok().map(|_| value)
}

/// # Safety
/// `len` bytes at `addr` can be read.
unsafe fn read_addr(addr: *const libc::sockaddr, len: u32) -> Result<libc::sockaddr_nl> {
    if addr.is_null() || (len as usize) < size_of::<libc::sockaddr_nl>() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's; it may not be aligned.
    let name = unsafe { addr.cast::<libc::sockaddr_nl>().read_unaligned() };
    if i32::from(name.nl_family) != libc::AF_NETLINK {
        return fail(libc::EINVAL);
    }
    Ok(name)
}
