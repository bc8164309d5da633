//! Implements the socket calls from socket(2) to shutdown(2), except those that send or receive
//! bytes.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use towpath_client::{Error, Socket, WaitLimit, listener};
use towpath_shm::control::{FAST_OPEN, IF_FAILED, Request, call};
use towpath_shm::layout::{Kind, RawAddr, Slot, connect_asked, flags, op, option_bit, shut};

use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::{Errno, Posix, Result, address, descriptor};

const TYPE_MASK: i32 = 0xf;
/// The IPv4-mapped address ::ffff:127.0.0.1.
const V4_MAPPED_LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];

/// Returns whether sockets of this address family are opened by the stack, and not by the kernel.
pub fn is_ours(posix: &'static Posix, domain: i32) -> bool {
    matches!(domain, libc::AF_INET | libc::AF_INET6) && posix.is_active()
}

/// Implements socket(2) for AF_INET and AF_INET6: streams (TCP), datagrams (UDP) and echo sockets
/// (ICMP, ICMPv6 as datagrams).
///
/// # Errors
/// EPERM for SOCK_RAW, as on Linux without CAP_NET_RAW. ESOCKTNOSUPPORT for other types,
/// EPROTONOSUPPORT for other protocols of a type, EINVAL for unknown flags.
pub fn socket(posix: &'static Posix, domain: i32, kind: i32, protocol: i32) -> Result<i32> {
    let file_flags = kind & !TYPE_MASK;
    if file_flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return fail(libc::EINVAL);
    }
    let v6 = domain == libc::AF_INET6;
    let protocol = match (kind & TYPE_MASK, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => libc::IPPROTO_TCP,
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => libc::IPPROTO_UDP,
        (libc::SOCK_DGRAM, libc::IPPROTO_ICMP) if !v6 => libc::IPPROTO_ICMP,
        (libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6) if v6 => libc::IPPROTO_ICMPV6,
        (libc::SOCK_STREAM | libc::SOCK_DGRAM, _) => return fail(libc::EPROTONOSUPPORT),
        (libc::SOCK_RAW, _) => return fail(libc::EPERM),
        _ => return fail(libc::ESOCKTNOSUPPORT),
    };
    let request =
        Request { call: call::SOCKET, a: domain as u32, b: protocol as u32, ..Request::default() };
    let reply = posix.call(&request)?;
    let client = posix.client()?;
    let socket = Socket { slot: reply.slot, generation: reply.generation };
    match descriptor::open(posix, client, socket, file_flags) {
        Ok(fd) => Ok(fd),
        Err(errno) => {
            client.socket_command(socket, op::CLOSE, 0, 0);
            Err(errno)
        }
    }
}

/// Implements bind(2).
///
/// # Safety
/// `addr` must point to `len` readable bytes.
pub unsafe fn bind(
    posix: &'static Posix,
    fd: i32,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<()> {
    let handle = OpenSocket::new(posix, fd)?;
    // SAFETY: `addr` points to `len` readable bytes, or is null, which `read` checks.
    let mut addr = unsafe { address::read(addr, len) }?;
    let family = handle.slot.family.load(Relaxed);
    if !address::is_long_enough(len, family) {
        return fail(libc::EINVAL);
    }
    if addr.family == 0 && family == address::INET {
        // As Linux does, treat AF_UNSPEC with the unspecified address as AF_INET.
        addr.family = address::INET as u16;
    }
    if u32::from(addr.family) != family {
        return fail(libc::EAFNOSUPPORT);
    }
    // Let the engine decide whether the socket is bound already (EINVAL). The shared state may be
    // out of date, because a refused connect frees the port.
    handle.call(call::BIND, |request| request.addr = addr)?;
    if address::is_v6_host(&addr) {
        // As on Linux, a socket bound to an IPv6 address accepts only IPv6 from now on.
        handle.change(|slot| slot.option_bits.fetch_or(option_bit::V6ONLY, Relaxed))?;
    }
    Ok(())
}

/// Binds a datagram socket that has no port to a free one. Linux does so at the beginning of every
/// connect and send (inet_autobind), even if these fail. If the socket was bound earlier and its
/// port was freed, the address stays the same.
///
/// # Errors
/// EAGAIN when no port is free.
pub(crate) fn bind_any(handle: &OpenSocket) -> Result<()> {
    if handle.is_tcp() || handle.slot.flags.load(Acquire) & flags::BOUND != 0 {
        return Ok(());
    }
    let addr = RawAddr { port: 0, ..address::local(handle.slot) };
    match handle.call(call::BIND, |request| request.addr = addr) {
        // EINVAL: a concurrent call has bound the socket meanwhile.
        Err(Errno(libc::EINVAL)) => Ok(()),
        Err(Errno(libc::EADDRINUSE)) => fail(libc::EAGAIN),
        result => result.map(drop),
    }
}

/// Implements listen(2). The backlog is the maximum number of established connections that wait for
/// accept(2), at most 4096 (Linux's somaxconn). A negative backlog selects the maximum.
///
/// # Errors
/// EOPNOTSUPP if the socket is not a TCP socket, EINVAL if it is connected or connecting.
pub fn listen(posix: &'static Posix, fd: i32, backlog: i32) -> Result<()> {
    let handle = OpenSocket::new(posix, fd)?;
    if !handle.is_tcp() {
        return fail(libc::EOPNOTSUPP);
    }
    if handle.slot.flags.load(Acquire) & (flags::CONNECTED | flags::CONNECTING) != 0 {
        return fail(libc::EINVAL);
    }
    // As in the kernel, which treats the backlog as unsigned, a negative one selects the maximum.
    let backlog = if backlog < 0 { u32::MAX } else { backlog as u32 };
    handle.call(call::LISTEN, |request| request.a = backlog.min(4096)).map(drop)
}

/// Implements accept4(2). `file_flags` are SOCK_NONBLOCK and SOCK_CLOEXEC.
///
/// # Errors
/// EINVAL for a socket that does not listen and for unknown flags, EOPNOTSUPP for a datagram
/// socket. If no descriptor is free (EMFILE, ENFILE), the connection stays in the queue.
///
/// # Safety
/// `addr` must point to `*len` writable bytes; both may be null.
pub unsafe fn accept4(
    posix: &'static Posix,
    fd: i32,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    file_flags: i32,
) -> Result<i32> {
    if file_flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return fail(libc::EINVAL);
    }
    let handle = OpenSocket::new(posix, fd)?;
    match handle.kind() {
        Kind::Listener => {}
        Kind::Stream => return fail(libc::EINVAL),
        _ => return fail(libc::EOPNOTSUPP),
    }
    let client = handle.client;
    let open = |socket| {
        posix.remembered.inherit(handle.socket, socket);
        inherit_shut(&handle, socket);
        descriptor::open(posix, client, socket, file_flags).map_err(|errno| Error::Refused(errno.0))
    };
    // Ignore an error of close, because the descriptor is closed in any case.
    let undo = |fd| {
        let _ = descriptor::close(posix, fd);
    };
    let attempt = || listener::accept(client, handle.socket, open, undo);
    let (new, record) = handle.blocking(handle.recv_limit(false), attempt)?;
    let remote = address::shown(record.remote, handle.slot.family.load(Relaxed));
    // SAFETY: `addr` points to `*len` writable bytes, or a pointer is null, which `write` checks.
    let written = unsafe { address::write(&remote, addr, len) };
    if written.is_err() {
        // As on Linux, close the accepted connection, because the program does not get its
        // descriptor.
        undo(new);
    }
    written.map(|()| new)
}

/// Shuts an accepted connection in the directions in which the listener was shut down before
/// listen(2). On Linux, a connection begins as a copy of its listener.
fn inherit_shut(listener: &OpenSocket, accepted: Socket) {
    let shut = listener.slot.shut.load(Relaxed);
    if shut != 0
        && let Some(slot) = listener.client.slot(accepted)
    {
        slot.shut.store(shut, Relaxed);
    }
}

/// Implements connect(2). AF_UNSPEC removes the peer of a datagram socket, and makes a stream
/// unconnected.
///
/// # Errors
/// EINPROGRESS for a nonblocking stream, and when SO_SNDTIMEO has passed. EALREADY while a connect
/// is in progress; EISCONN if the socket is connected or listens. EAFNOSUPPORT or ENETUNREACH if
/// the socket cannot reach addresses of that family. The error of a failed connect, such as
/// ECONNREFUSED, is returned once.
///
/// # Safety
/// `addr` must point to `len` readable bytes.
pub unsafe fn connect(
    posix: &'static Posix,
    fd: i32,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<()> {
    let handle = OpenSocket::new(posix, fd)?;
    // SAFETY: `addr` points to `len` readable bytes, or is null, which `read` checks.
    let read = unsafe { address::read(addr, len) };
    if address::has_family(addr, len) && read != Ok(RawAddr::default()) {
        bind_any(&handle)?;
    }
    let addr = read?;
    let family = handle.slot.family.load(Relaxed);
    if addr.family != 0 && !address::is_long_enough(len, family) && handle.is_tcp() {
        return fail(libc::EINVAL);
    }
    let v6_only = handle.slot.option_bits.load(Relaxed) & option_bit::V6ONLY != 0;
    let takes_v4 = family == address::INET6 && !handle.is_tcp() && !v6_only;
    let is_v4 = u32::from(addr.family) == address::INET;
    if addr.family != 0 && u32::from(addr.family) != family && !(is_v4 && takes_v4) {
        return fail(libc::EAFNOSUPPORT);
    }
    let to_datagrams = matches!(handle.kind(), Kind::Datagram | Kind::Echo);
    let addr = if addr.family == 0 { addr } else { peer(handle.slot, addr, to_datagrams)? };
    match handle.kind() {
        Kind::Stream | Kind::Listener if addr.family == 0 => disconnect(&handle, 0),
        Kind::Stream => {
            let wanted = handle.remembered(libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT);
            connect_stream(&handle, addr, wanted == Some(1), handle.send_limit(false))
        }
        Kind::Listener => fail(libc::EISCONN),
        _ => handle.call(call::CONNECT, |request| request.addr = addr).map(drop),
    }
}

/// Key under which [`OpenSocket::remember`] stores how many bytes a TCP Fast Open SYN can carry.
const SYN_ROOM: i32 = -1;

/// Returns how many bytes the SYN of a TCP Fast Open connection can carry.
pub(crate) fn syn_room(handle: &OpenSocket) -> usize {
    let room = handle.remembered(libc::IPPROTO_TCP, SYN_ROOM);
    room.and_then(|room| usize::try_from(room).ok()).unwrap_or(usize::MAX)
}

/// Converts the address of a peer to the one with which a socket reaches it.
///
/// # Errors
/// ENETUNREACH if the socket is IPv6-only and the peer has an IPv4 address. EAFNOSUPPORT if the
/// socket is bound to an IPv4 address and the peer has an IPv6 address.
pub(crate) fn peer(slot: &Slot, addr: RawAddr, datagrams: bool) -> Result<RawAddr> {
    let family = slot.family.load(Relaxed);
    if family != address::INET6 {
        return Ok(address::shown(addr, family));
    }
    let is_v4 = u32::from(addr.family) == address::INET || address::is_mapped(&addr);
    let from_v4 = address::is_mapped(&address::local(slot));
    if is_v4 && slot.option_bits.load(Relaxed) & option_bit::V6ONLY != 0 {
        fail(libc::ENETUNREACH)
    } else if from_v4 && address::is_v6_host(&addr) {
        fail(libc::EAFNOSUPPORT)
    } else if from_v4 && !is_v4 {
        // As a destination, `::` means this host. Use its IPv4 loopback address, because the socket
        // is bound to an IPv4 address.
        Ok(RawAddr { ip: V4_MAPPED_LOOPBACK, ..addr })
    } else if datagrams {
        Ok(address::sent_to(addr, family))
    } else {
        Ok(address::shown(addr, family))
    }
}

/// Connects a stream for a send with the flag MSG_FASTOPEN.
///
/// # Errors
/// As for [`connect`]; EINVAL without an address.
pub(crate) fn connect_to_send(
    handle: &OpenSocket,
    to: Option<RawAddr>,
    limit: WaitLimit,
) -> Result<()> {
    match handle.slot.connect_asked.load(Acquire) {
        // connect(2) was called with TCP_FASTOPEN_CONNECT, so it has delayed the SYN. The following
        // send sends it.
        connect_asked::DEFERRED => Ok(()),
        _ => connect_stream(handle, to.unwrap_or_default(), true, limit),
    }
}

fn connect_stream(
    handle: &OpenSocket,
    addr: RawAddr,
    fast_open: bool,
    limit: WaitLimit,
) -> Result<()> {
    let asked = handle.slot.connect_asked.load(Acquire);
    let under_way = flags::CONNECTING | flags::OPENING;
    if asked == connect_asked::TOLD {
        if handle.slot.flags.load(Acquire) & flags::CONNECTED != 0 {
            return fail(libc::EISCONN);
        }
        if addr.family == 0 {
            return fail(libc::EINVAL);
        }
        let reply = handle.call(call::CONNECT, |request| {
            request.addr = addr;
            request.b = if fast_open { FAST_OPEN } else { 0 };
        })?;
        if reply.a == FAST_OPEN {
            // With TCP_FASTOPEN_CONNECT, connect(2) sends nothing. The first write sends the SYN.
            handle.remember(libc::IPPROTO_TCP, SYN_ROOM, reply.slot as i32);
            note_connect(handle, connect_asked::DEFERRED);
            return Ok(());
        }
        note_connect(handle, connect_asked::STARTED);
        if limit.nonblocking {
            // A nonblocking connect fails with EINPROGRESS. On Linux, too, connect(2) returns
            // before the peer's answer can arrive.
            return fail(libc::EINPROGRESS);
        }
    } else if asked == connect_asked::DEFERRED {
        // connect(2) was already called with TCP_FASTOPEN_CONNECT. Fail like a nonblocking connect
        // on Linux. A blocking connect on Linux would wait for a SYN that is never sent.
        return fail(libc::EISCONN);
    } else if limit.nonblocking && handle.slot.flags.load(Acquire) & under_way != 0 {
        return fail(libc::EALREADY);
    }
    match handle.blocking(limit, || handle.connected()) {
        Err(Errno(libc::EAGAIN)) => fail(libc::EINPROGRESS),
        Err(Errno(errno @ (libc::EINTR | libc::ERESTART))) => fail(errno),
        ended => conclude_connect(handle, ended),
    }
}

/// Records that the result of a connect is returned to the program, so that the next call starts a
/// new one. After a failure, resets the socket to unconnected, like Linux's
/// `__inet_stream_connect`.
pub(crate) fn conclude_connect(handle: &OpenSocket, ended: Result<()>) -> Result<()> {
    match ended {
        Ok(()) => note_connect(handle, connect_asked::TOLD),
        // Ignore an error: `disconnect` fails only if the socket was closed meanwhile, or the
        // engine has ended.
        Err(_) => _ = disconnect(handle, IF_FAILED),
    }
    ended
}

/// Stores the progress of a connect in the socket's shared state, unless a concurrent call has
/// closed the socket.
pub(crate) fn note_connect(handle: &OpenSocket, asked: u8) {
    let _ = handle.change(|slot| slot.connect_asked.store(asked, Release));
}

/// Makes a stream socket unconnected, so that it can connect or listen again. If `when` is
/// [`IF_FAILED`], this happens only if the last connect has failed; 0 means always.
fn disconnect(handle: &OpenSocket, when: u32) -> Result<()> {
    handle.call(call::CONNECT, |request| {
        (request.addr, request.a) = (RawAddr::default(), when);
    })?;
    handle.change(|slot| {
        slot.shut.store(0, Relaxed);
        slot.connect_asked.store(connect_asked::TOLD, Release);
    })
}

/// Implements shutdown(2). A listener that is shut down for reading stops listening. A connect in
/// progress is aborted, and leaves the socket unconnected.
///
/// # Errors
/// ENOTCONN if there is no peer; the socket is shut down nevertheless, as on Linux. EINVAL for an
/// unknown `how`.
pub fn shutdown(posix: &'static Posix, fd: i32, how: i32) -> Result<()> {
    let handle = OpenSocket::new(posix, fd)?;
    let bits = match how {
        libc::SHUT_RD => shut::READ,
        libc::SHUT_WR => shut::WRITE,
        libc::SHUT_RDWR => shut::READ | shut::WRITE,
        _ => return fail(libc::EINVAL),
    };
    let seen = handle.slot.flags.load(Acquire);
    let connected = match handle.kind() {
        // shutdown(2) of a listener for writing has no effect. For reading, the listener stops
        // listening.
        Kind::Listener if bits & shut::READ == 0 => return Ok(()),
        Kind::Listener => return disconnect(&handle, 0),
        Kind::Stream if seen & (flags::CONNECTING | flags::OPENING) != 0 => {
            return disconnect(&handle, 0);
        }
        Kind::Stream => handle.is_open_stream(),
        _ => seen & flags::CONNECTED != 0,
    };
    // If the socket has no peer, record the shutdown although the call fails, as Linux's
    // `inet_shutdown` does. Waiting threads wake up, and a later connection begins with this
    // direction shut down.
    handle.change(|slot| slot.shut.fetch_or(bits, Relaxed))?;
    // Do not notify the engine if a stream has no peer, because there is no connection to shut
    // down. No thread waits for such a stream, because poll(2) returns POLLHUP at once.
    if connected || !handle.is_tcp() {
        handle.client.tell_end(handle.socket, op::SHUTDOWN, bits);
    }
    if connected { Ok(()) } else { fail(libc::ENOTCONN) }
}

/// Implements getsockname(2).
///
/// # Safety
/// `addr` must point to `*len` writable bytes.
pub unsafe fn getsockname(
    posix: &'static Posix,
    fd: i32,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<()> {
    let handle = OpenSocket::new(posix, fd)?;
    if addr.is_null() || len.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: `addr` points to `*len` writable bytes, by the contract of this function.
    unsafe { address::write(&address::local(handle.slot), addr, len) }
}

/// Implements getpeername(2).
///
/// # Safety
/// `addr` must point to `*len` writable bytes.
pub unsafe fn getpeername(
    posix: &'static Posix,
    fd: i32,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<()> {
    let handle = OpenSocket::new(posix, fd)?;
    let seen = handle.slot.flags.load(Acquire) & (flags::CONNECTED | flags::OPENING);
    if seen != flags::CONNECTED || handle.kind() == Kind::Stream && !handle.is_open_stream() {
        return fail(libc::ENOTCONN);
    }
    let remote = address::remote(handle.slot);
    if remote.port == 0 {
        // As on Linux, getpeername fails if the peer has port 0, although datagrams are sent to it.
        return fail(libc::ENOTCONN);
    }
    if addr.is_null() || len.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: `addr` points to `*len` writable bytes, by the contract of this function.
    unsafe { address::write(&remote, addr, len) }
}

/// Closes a socket, after its last descriptor in this process was closed.
pub(crate) fn close_last(posix: &'static Posix, socket: Socket) {
    let Ok(client) = posix.client() else {
        return;
    };
    posix.remembered.forget(socket);
    posix.cork.forget(socket);
    // Linger even if O_NONBLOCK is set, because `inet_release` of Linux ignores that flag.
    towpath_client::Handle { client, socket }.close(true);
}
