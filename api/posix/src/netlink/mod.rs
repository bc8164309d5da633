//! Netlink sockets whose answers describe the user-space stack. NETLINK_ROUTE (rtnetlink(7))
//! answers `ip`, libnl and similar programs about interfaces, addresses and routes.
//! NETLINK_SOCK_DIAG (sock_diag(7)) answers `ss` about sockets.
//!
//! The program's socket is a kernel socket with the protocol NETLINK_USERSOCK, with which processes
//! can send messages to each other. Therefore the kernel implements waiting, flags, buffers and
//! addresses. `answer` answers a request before the call that sends the request returns:
//!
//! ```text
//!   program ── sendmsg ──► this library ─ answer ─► a socket of the library
//!   program ◄─ recvmsg ─── the program's socket ◄────── datagrams ──┘
//! ```
//!
//! A connected netlink socket receives datagrams only from its peer. The program's socket is
//! connected to the answering socket during the call, and otherwise to itself. Therefore no other
//! process can send to it. The answering socket is created together with the first netlink socket
//! of the program, in the network namespace of the run. If the process enters another namespace
//! later, the socket still works.
//!
//! A process that has entered a network namespace of its own (`unshare -n`, bubblewrap) configures
//! that namespace over netlink. There, the program's netlink sockets are the kernel's, as those of
//! other netlink protocols always are.

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

/// Maximum length in bytes of a netlink request. Valid requests are at most a tenth as long.
const REQUEST_MAX: usize = codec::DATAGRAM_MAX;
/// Maximum number of routes in an answer; further routes are left out.
const ROUTES_MAX: usize = 64;
/// Maximum number of neighbours in an answer; further neighbours are left out.
const NEIGHBORS_MAX: usize = 256;
/// Socket option that returns the cookie of a socket's network namespace (Linux 5.14).
const SO_NETNS_COOKIE: i32 = 71;
const SOL_NETLINK: i32 = 270;
const NETLINK_GET_STRICT_CHK: i32 = 12;

/// Returns whether socket(2) with these arguments must create a netlink socket that describes the
/// stack instead of the kernel.
pub fn is_wanted(posix: &'static Posix, domain: i32, protocol: i32) -> bool {
    let shown = matches!(protocol, libc::NETLINK_ROUTE | libc::NETLINK_SOCK_DIAG);
    domain == libc::AF_NETLINK && shown && posix.is_active()
}

/// Implements socket(2) for netlink sockets that describe the stack. `None` means that this process
/// is in a different network namespace than the engine; the caller must open the kernel's netlink
/// socket.
pub fn socket(posix: &'static Posix, kind: i32, protocol: i32) -> Result<Option<i32>> {
    let client = posix.client()?;
    let args = [libc::AF_NETLINK as usize, kind as usize, libc::NETLINK_USERSOCK as usize, 0, 0, 0];
    // SAFETY: socket(2) takes integers only.
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

/// Returns whether this process is in a different network namespace than the run.
pub(crate) fn is_elsewhere(posix: &'static Posix) -> bool {
    let Ok(client) = posix.client() else { return false };
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: socket(2) takes integers only.
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

/// Returns whether `fd` is a netlink socket that describes the stack. Duplicated descriptors are
/// not recognized.
#[inline]
pub fn is_ours(posix: &'static Posix, fd: i32) -> bool {
    posix.netlink.has(fd) && is_still_ours(posix, fd)
}

/// Checks that the number is still that of the netlink socket. The program may have closed it by a
/// system call that bypasses this library.
#[cold]
fn is_still_ours(posix: &'static Posix, fd: i32) -> bool {
    // SAFETY: the number is borrowed for this call, which only reads options of the file.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let ours = sockopt::socket_domain(socket) == Ok(AddressFamily::NETLINK)
        && sockopt::socket_protocol(socket) == Ok(Some(netlink::USERSOCK));
    if !ours {
        posix.netlink.remove(fd);
    }
    ours
}

/// Implements bind(2) for a netlink socket. As in the kernel, the socket may join multicast groups,
/// but the stack never announces changes to them.
///
/// # Errors
/// Errors of bind(2), and ENOMEM if too many sockets have joined groups.
///
/// # Safety
/// As bind(2).
pub unsafe fn bind(
    posix: &'static Posix,
    fd: i32,
    addr: *const libc::sockaddr,
    len: u32,
) -> Result<()> {
    // SAFETY: `addr` points to `len` readable bytes, by the contract of this function.
    let name = unsafe { read_addr(addr, len) }?;
    rustix::net::bind(borrow(fd), &SocketAddrNetlink::new(name.nl_pid, 0))?;
    posix.groups.bind(fd, name.nl_groups)
}

/// Implements connect(2) for a netlink socket, which can only connect to the kernel. Assigns a port
/// ID if the socket has none.
///
/// # Safety
/// As connect(2).
pub unsafe fn connect(fd: i32, addr: *const libc::sockaddr, len: u32) -> Result<()> {
    // SAFETY: `addr` points to `len` readable bytes, by the contract of this function.
    check_destination(&unsafe { read_addr(addr, len) }?)?;
    bind_unbound(borrow(fd));
    Ok(())
}

/// Checks a destination address like Linux's `netlink_sendmsg` and `netlink_connect`: groups and
/// other processes require privileges. A send to another process always fails, because the socket
/// cannot reach it.
fn check_destination(name: &libc::sockaddr_nl) -> Result<()> {
    if name.nl_pid != 0 || name.nl_groups != 0 && !may(CAP_NET_ADMIN) {
        return fail(libc::EPERM);
    }
    Ok(())
}

/// Assigns a port ID to a socket that has none: the process ID if it is free, as Linux's
/// `netlink_autobind` does.
fn bind_unbound(socket: BorrowedFd<'_>) {
    // Ignore an error: bind fails with EINVAL if the socket already has a port ID.
    let _ = rustix::net::bind(socket, &SocketAddrNetlink::new(0, 0));
}

/// Implements setsockopt(2) for a netlink socket. None: the kernel must handle the option.
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
    // SAFETY: the caller passes a pointer to at least 4 bytes, which may be unaligned.
    let group = unsafe { value.cast::<u32>().read_unaligned() };
    Some(posix.groups.change(fd, group, joins))
}

/// Implements getsockopt(2) for a netlink socket. None: the kernel must handle the option.
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
    // SAFETY: `len` is not null, and `value` has room for `*len` bytes.
    unsafe {
        let room = *len as usize;
        if room > i32::MAX as usize {
            return Some(fail(libc::EINVAL));
        }
        // Return an empty list for a socket that has never joined a group. As the kernel, write
        // only whole 32-bit words.
        let list = known.map(u64::to_ne_bytes).unwrap_or_default();
        let fits = (room & !3).min(list.len());
        if known.is_some() && fits > 0 {
            value.cast::<u8>().copy_from(list.as_ptr(), fits);
        }
        *len = if known.is_some() { list.len() as u32 } else { 0 };
    }
    Some(Ok(()))
}

/// Returns the netlink protocol that SO_PROTOCOL must report for this socket.
pub fn protocol(posix: &'static Posix, fd: i32) -> i32 {
    if posix.diag.has(fd) { libc::NETLINK_SOCK_DIAG } else { libc::NETLINK_ROUTE }
}

/// Sets the port ID and groups in a netlink address to 0, the address of the kernel. The address of
/// a received message contains those of this library's answering socket.
///
/// # Safety
/// `len` bytes at `addr` may be written.
pub unsafe fn show_kernel(addr: *mut libc::c_void, len: usize) {
    // SAFETY: `len` bytes at `addr` may be written, by the contract of this function.
    unsafe {
        change_name(addr, len, |name| (name.nl_pid, name.nl_groups) = (0, 0));
    }
}

/// Adds the groups that a netlink socket has joined to an address returned by getsockname(2).
///
/// # Safety
/// As for [`show_kernel`].
pub unsafe fn show_groups(posix: &'static Posix, fd: i32, addr: *mut libc::c_void, len: usize) {
    // SAFETY: `len` bytes at `addr` may be written, by the contract of this function.
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
        // SAFETY: the caller passes a pointer to a whole `sockaddr_nl`, which may be unaligned.
        unsafe {
            let mut name = addr.cast::<libc::sockaddr_nl>().read_unaligned();
            change(&mut name);
            addr.cast::<libc::sockaddr_nl>().write_unaligned(name);
        }
    }
}

/// Replaces the sender in the credentials of a received message (SO_PASSCRED) by the kernel:
/// process ID 0 and user root.
///
/// # Safety
/// The kernel has just filled in this header.
pub unsafe fn show_kernel_in(message: *const libc::msghdr) {
    // SAFETY: the header and its control messages are valid, by the contract of this function.
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

/// Implements send(2) and its variants for a netlink socket: answers the requests in `from`.
///
/// # Safety
/// The buffers and the destination address must be valid for reads.
pub unsafe fn send(
    posix: &'static Posix,
    fd: i32,
    from: &[Buffer],
    to: *const libc::sockaddr,
    to_len: u32,
) -> Result<usize> {
    if !to.is_null() && to_len > 0 {
        // SAFETY: `addr` points to `len` readable bytes, by the contract of this function.
        check_destination(&unsafe { read_addr(to, to_len) }?)?;
    }
    let mut bytes = [0; REQUEST_MAX];
    let mut len = 0;
    for buffer in from {
        let Some(room) = bytes.get_mut(len..).and_then(|rest| rest.get_mut(..buffer.len)) else {
            return fail(libc::EMSGSIZE);
        };
        // SAFETY: `buffer` is valid for reads of this length, by the contract of this function.
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

/// Answers netlink requests that a program sends by splice(2) or sendfile(2). `read` reads up to
/// `len` bytes of these requests.
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

/// Requests the tables that the rtnetlink(7) requests read from the engine, and answers the
/// requests.
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

/// Appends an entry to an array if it has space; otherwise drops the entry.
fn keep<T: Copy>(all: &mut [T], count: &mut usize, one: &T) -> Result<()> {
    if let Some(to) = all.get_mut(*count) {
        *to = *one;
        *count += 1;
    }
    Ok(())
}

/// Calls a function that answers netlink requests. The function gets the port ID of the requesting
/// socket, and a function that sends datagrams to this socket.
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
            // The program's receive buffer is full. Fail with ENOBUFS, as the kernel does to report
            // lost messages.
            Err(rustix::io::Errno::AGAIN) => fail(libc::ENOBUFS),
            Err(errno) => Err(errno.into()),
        }
    });
    rustix::net::connect(socket, &own)?;
    result
}

/// Creates this library's socket that sends answers, when it is first needed. The socket gets
/// a port ID that the kernel assigns to none of the program's sockets.
fn prepare_answers(posix: &'static Posix) -> Result<()> {
    /// Maximum number of attempts to find a free port ID.
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
        // The kernel assigns port IDs from process IDs, which are below 2²². A port ID of at least
        // 2³¹ does not conflict with them.
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
    // SAFETY: the program must not close its descriptor during a call. If it does, the kernel
    // returns EBADF or uses the file that now has the number, as for any call of the program.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Returns the cookie (unique number) of a socket's network namespace. None: this kernel does not
/// support the option.
fn cookie(fd: i32) -> Option<u64> {
    option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

/// Returns whether NETLINK_GET_STRICT_CHK is set. The option is stored in the kernel's socket.
fn is_strict(fd: i32) -> bool {
    option(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK).is_some_and(|value| value != 0)
}

/// Reads a socket option of at most eight bytes from the kernel.
fn option(fd: i32, level: i32, name: i32) -> Option<u64> {
    let (mut value, mut len) = (0u64, size_of::<u64>() as u32);
    let (at, at_len) = (&raw mut value as usize, &raw mut len as usize);
    let args = [fd as usize, level as usize, name as usize, at, at_len, 0];
    // SAFETY: getsockopt(2) writes at most eight bytes to `value`, as `len` says.
    unsafe { syscall::syscall(libc::SYS_getsockopt as usize, args) }.ok().map(|_| value)
}

/// Reads a netlink address that the program has passed.
///
/// # Safety
/// `len` bytes at `addr` can be read.
unsafe fn read_addr(addr: *const libc::sockaddr, len: u32) -> Result<libc::sockaddr_nl> {
    if addr.is_null() || (len as usize) < size_of::<libc::sockaddr_nl>() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a pointer to a whole `sockaddr_nl`, which may be unaligned.
    let name = unsafe { addr.cast::<libc::sockaddr_nl>().read_unaligned() };
    if i32::from(name.nl_family) != libc::AF_NETLINK {
        return fail(libc::EINVAL);
    }
    Ok(name)
}
