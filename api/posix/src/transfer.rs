//! read, write, recv, send and their vector forms.

use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_client::stream::OnError;
use towpath_client::{Buffer, Error, datagram, stream, urgent};
use towpath_shm::control::call;
use towpath_shm::layout::{DatagramHeader, Kind, Plain, RawAddr, flags, option_bit, setting};

use crate::control::Control;
use crate::errno::fail;
use crate::handle::{Handle, Patience};
use crate::report::Report;
use crate::socket::{bind_any, connect_to_send, peer};
use crate::{Errno, Posix, Result, address, interface};

/// How long a first write on a fresh connection waits for memory to write into, even with
/// O_NONBLOCK: the engine provides it within a turn. Longer means that memory is short everywhere.
const MEMORY_PATIENCE: std::time::Duration = std::time::Duration::from_millis(100);
/// A patience that is at its end before the engine has had its turn.
const BRIEF: std::time::Duration = std::time::Duration::from_millis(1);
/// As many buffers as readv(2) takes (UIO_MAXIOV).
pub const BUFFERS_MAX: usize = 1024;
/// UDP_MAX_SEGMENTS: how many datagrams one call makes with UDP_SEGMENT.
const SEGMENTS_MAX: usize = 128;
/// Longest payload of UDP over IPv4: what the packet's length can say (RFC 791 §3.1), without both
/// headers.
const PAYLOAD_MAX_V4: usize = 65535 - 20 - 8;
/// The same over IPv6, of which the length says what follows the header (RFC 8200 §3).
const PAYLOAD_MAX_V6: usize = 65535 - 8;
/// What UDP's length field can say: udp_sendmsg refuses more before it looks for a route.
/// udpv6_sendmsg does not.
const LENGTH_MAX: usize = 65535;
/// The least that IPV6_MTU can bound the packets of datagrams to (RFC 8200 §5).
const FRAGMENT_SIZE_MIN: u32 = 1280;
/// MAX_RW_COUNT: what one call moves at most.
const COUNT_MAX: usize = 0x7fff_f000;

/// What a receive call gave besides bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Arrival {
    /// The call's result.
    pub len: usize,
    /// Who sent it; None on a stream.
    pub header: Option<DatagramHeader>,
    /// MSG_TRUNC and the like.
    pub flags: i32,
    /// From the error queue.
    pub report: Option<Report>,
}

/// Buffers from an iovec array as a program passes it.
///
/// # Errors
/// EMSGSIZE (as sendmsg) or EINVAL (as readv) is for the caller to choose: `too_many`.
///
/// # Safety
/// `at` must point to `count` iovecs, which outlive the result.
pub unsafe fn buffers<'a>(
    at: *const libc::iovec,
    count: usize,
    too_many: i32,
) -> Result<&'a [Buffer]> {
    if count > BUFFERS_MAX {
        return fail(too_many);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: Buffer is laid out as iovec; the caller's promise.
    let buffers = unsafe { std::slice::from_raw_parts(at.cast::<Buffer>(), count) };
    if buffers.iter().any(|buffer| buffer.len > isize::MAX as usize)
        || Buffer::total(buffers) > isize::MAX as usize
    {
        return fail(libc::EINVAL);
    }
    Ok(buffers)
}

/// As much of EFAULT as costs nothing: no program has memory in the first page.
fn check_pointers(buffers: &[Buffer]) -> Result<()> {
    const PAGE: usize = 4096;
    if buffers.iter().any(|buffer| buffer.len > 0 && buffer.at.addr() < PAGE) {
        return fail(libc::EFAULT);
    }
    Ok(())
}

/// recv(2) and all that is like it.
///
/// # Safety
/// The buffers must be valid for writes.
pub unsafe fn recv(
    posix: &'static Posix,
    fd: i32,
    buffers: &[Buffer],
    flags: i32,
) -> Result<Arrival> {
    let handle = Handle::new(posix, fd)?;
    if flags & libc::MSG_ERRQUEUE != 0 {
        // SAFETY: the caller's promise.
        return unsafe { crate::report::recv(&handle, buffers) };
    }
    // A stream is cut off (MSG_TRUNC) without a look at the buffer.
    if flags & libc::MSG_TRUNC == 0 || !handle.is_tcp() {
        check_pointers(buffers)?;
    }
    let patience = handle.recv_patience(flags & libc::MSG_DONTWAIT != 0);
    match handle.kind() {
        // SAFETY: the caller's promise.
        Kind::Stream if flags & libc::MSG_OOB != 0 => unsafe {
            recv_urgent(&handle, buffers, flags)
        },
        // SAFETY: the caller's promise.
        Kind::Stream => unsafe { recv_stream(&handle, buffers, flags, patience) },
        Kind::Listener => fail(libc::ENOTCONN),
        Kind::Free => fail(libc::ENETDOWN),
        Kind::Echo if flags & libc::MSG_OOB != 0 => fail(libc::EOPNOTSUPP),
        // SAFETY: as above.
        _ => unsafe { recv_datagram(&handle, buffers, flags, patience) },
    }
}

/// The urgent byte of a stream, as `tcp_recv_urg`. Never waits, whether the socket does or not.
///
/// # Safety
/// As for [`recv`].
unsafe fn recv_urgent(handle: &Handle, buffers: &[Buffer], flags: i32) -> Result<Arrival> {
    let keep = flags & libc::MSG_PEEK != 0;
    let Some(byte) = urgent::recv(handle.client, handle.socket, keep)? else {
        return Ok(Arrival::default());
    };
    let Some(place) = buffers.iter().find(|buffer| buffer.len > 0) else {
        return Ok(Arrival { flags: libc::MSG_OOB | libc::MSG_TRUNC, ..Arrival::default() });
    };
    if flags & libc::MSG_TRUNC == 0 {
        // SAFETY: the caller's promise.
        unsafe { place.at.write(byte) };
    }
    Ok(Arrival { len: 1, flags: libc::MSG_OOB, ..Arrival::default() })
}

/// # Safety
/// As for [`recv`].
unsafe fn recv_stream(
    handle: &Handle,
    buffers: &[Buffer],
    flags: i32,
    patience: Patience,
) -> Result<Arrival> {
    let (client, socket) = (handle.client, handle.socket);
    let keep = flags & libc::MSG_PEEK != 0;
    let truncate = flags & libc::MSG_TRUNC != 0;
    let wanted = Buffer::total(buffers);
    // As sock_rcvlowat: a call that may wait does so until it has these.
    let enough = match flags & libc::MSG_WAITALL {
        0 => wanted.min(handle.slot.rcvlowat.load(Relaxed) as usize),
        _ => wanted,
    };
    // Nor does it go on behind the mark of urgent data.
    let stops = |n: usize| urgent::stops_at(client, socket, u32::try_from(n).unwrap_or(u32::MAX));
    if keep {
        let look = || {
            let skip = peek_offset(handle);
            match truncate {
                true => stream::measure(client, socket, skip, wanted),
                // SAFETY: as for this function.
                false => unsafe {
                    stream::recv(client, socket, buffers, Some(skip), OnError::Tell)
                },
            }
        };
        let len = handle.blocking(patience, || match look() {
            Ok(n) if n > 0 && n < enough && !ended(handle) && !stops(n) => Err(Error::WouldBlock),
            result => result,
        });
        let len = len.or_else(|why| match why {
            // Time is up, or a signal came: what there is, be it an error that came meanwhile.
            Errno(libc::EAGAIN | libc::EINTR) => match look() {
                Err(Error::WouldBlock) => Err(why),
                found => Ok(found?),
            },
            // The connection's error: the look that found it has taken it.
            told => Err(told),
        })?;
        move_peek_offset(handle, keep, len);
        return Ok(Arrival { len, ..Arrival::default() });
    }
    let take = |parts: &[Buffer], n, on_error| match truncate {
        true => stream::discard(client, socket, n, on_error),
        // SAFETY: as for this function; parts of the same buffers.
        false => unsafe { stream::recv(client, socket, parts, None, on_error) },
    };
    let mut len = handle.blocking(patience, || take(buffers, wanted, OnError::Tell))?;
    let mut rest: Vec<Buffer> = Vec::new();
    while len > 0 && len < enough && !stops(0) {
        rest.clear();
        skip_into(buffers, len, &mut rest);
        match handle.blocking(patience, || take(&rest, wanted - len, OnError::Leave)) {
            Ok(0) | Err(_) => break,
            Ok(n) => len += n,
        }
    }
    move_peek_offset(handle, keep, len);
    Ok(Arrival { len, ..Arrival::default() })
}

/// SO_PEEK_OFF: where a look at what is unread begins.
fn peek_offset(handle: &Handle) -> u32 {
    match handle.slot.option_bits.load(Relaxed) & option_bit::PEEK_OFF {
        0 => 0,
        _ => handle.slot.peek_off.load(Relaxed).saturating_sub(1),
    }
}

/// As sk_peek_offset_fwd and sk_peek_offset_bwd: looks move it on, and reads back.
fn move_peek_offset(handle: &Handle, keep: bool, len: usize) {
    let slot = handle.slot;
    if slot.option_bits.load(Relaxed) & option_bit::PEEK_OFF == 0 {
        return;
    }
    let by = u32::try_from(len).unwrap_or(u32::MAX);
    let moved = |offset: u32| match keep {
        true => offset.saturating_add(by).min(i32::MAX as u32),
        false => offset.saturating_sub(by),
    };
    // Switched off meanwhile: it stays so.
    let _ = slot.peek_off.fetch_update(Relaxed, Relaxed, |word| {
        (1..=1 << 31).contains(&word).then(|| moved(word - 1) + 1)
    });
}

fn ended(handle: &Handle) -> bool {
    handle.socket.readiness(handle.client) & towpath_client::ready::RDHUP != 0
}

/// # Safety
/// As for [`recv`].
unsafe fn recv_datagram(
    handle: &Handle,
    buffers: &[Buffer],
    flags: i32,
    patience: Patience,
) -> Result<Arrival> {
    let keep = flags & libc::MSG_PEEK != 0;
    let attempt = || {
        // ping_recvmsg knows no SO_PEEK_OFF.
        let skip = if handle.kind() == Kind::Datagram { peek_offset(handle) } else { 0 };
        let skip = keep.then_some(skip);
        // SAFETY: the caller's promise.
        unsafe { datagram::recv(handle.client, handle.socket, buffers, skip) }
    };
    let Some(received) = handle.blocking(patience, attempt)? else {
        // Shut down for reading: 0 for a call that would wait, as on Linux, and EAGAIN for one that
        // would not.
        return if patience.nonblocking { fail(libc::EAGAIN) } else { Ok(Arrival::default()) };
    };
    let whole = received.header.len as usize;
    // As udp_recvmsg: behind an offset, too, the whole datagram is what would have to fit.
    let room = Buffer::total(buffers);
    let truncated = room <= whole - received.skipped && room < whole;
    let len = if flags & libc::MSG_TRUNC != 0 { whole } else { received.copied };
    let flags = if truncated { libc::MSG_TRUNC } else { 0 };
    move_peek_offset(handle, keep, len);
    Ok(Arrival { len, header: Some(received.header), flags, report: None })
}

/// Where a message is to go, as sendto(2) and sendmsg(2) are told. A stream knows.
///
/// # Errors
/// EINVAL for what is too short or too long for the socket, EAFNOSUPPORT for another family than
/// its own.
///
/// # Safety
/// `at` must point to `len` readable bytes (or be null: there is no address).
pub unsafe fn destination(
    posix: &'static Posix,
    fd: i32,
    at: *const libc::sockaddr,
    len: libc::socklen_t,
    flags: i32,
) -> Result<Option<RawAddr>> {
    if at.is_null() {
        return Ok(None);
    }
    let handle = Handle::new(posix, fd)?;
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return fail(libc::EINVAL);
    }
    if handle.is_tcp() {
        let opens = flags & libc::MSG_FASTOPEN != 0;
        // SAFETY: the caller's promise.
        return if opens { unsafe { peer_to_open(&handle, at, len) } } else { Ok(None) };
    }
    bind_any(&handle)?;
    let family = handle.slot.family.load(Relaxed);
    // An IPv6 socket looks at the family first, which may be that of a shorter address.
    if family == address::INET && !address::is_long_enough(len, family) {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    match unsafe { address::read(at, len) } {
        // udpv6_sendmsg has one word for what it does not know.
        Err(Errno(libc::EAFNOSUPPORT))
            if family == address::INET6 && handle.kind() == Kind::Datagram =>
        {
            fail(libc::EINVAL)
        }
        to => to.map(Some),
    }
}

/// send(2) and all that is like it. `to` is None without an address.
///
/// # Safety
/// The buffers must be valid for reads.
pub unsafe fn send(
    posix: &'static Posix,
    fd: i32,
    buffers: &[Buffer],
    flags: i32,
    to: Option<RawAddr>,
    control: &Control,
) -> Result<usize> {
    let handle = Handle::new(posix, fd)?;
    bind_any(&handle)?;
    check_pointers(buffers)?;
    let patience = handle.send_patience(flags & libc::MSG_DONTWAIT != 0);
    if flags & libc::MSG_OOB != 0 && !takes_urgent(&handle, to) {
        return fail(libc::EOPNOTSUPP);
    }
    let more = flags & libc::MSG_MORE != 0 || is_corked(&handle);
    let result = match handle.kind() {
        // SAFETY: the caller's promise.
        Kind::Stream if flags & libc::MSG_FASTOPEN != 0 => unsafe {
            open_and_send(&handle, buffers, flags, to, patience)
        },
        // SAFETY: as above.
        Kind::Stream => unsafe { send_stream(&handle, buffers, flags, patience) },
        Kind::Listener if flags & libc::MSG_FASTOPEN != 0 => fail(libc::EISCONN),
        Kind::Listener => fail(libc::EPIPE),
        Kind::Free => fail(libc::ENETDOWN),
        Kind::Echo if flags & libc::MSG_MORE != 0 => fail(libc::EOPNOTSUPP),
        // SAFETY: as above.
        _ if more || handle.posix.cork.is_begun(handle.socket) => unsafe {
            send_part(&handle, buffers, more, to, control, patience)
        },
        // SAFETY: as above.
        _ => unsafe { send_datagram(&handle, buffers, to, control, patience) },
    };
    if flags & libc::MSG_ZEROCOPY != 0 {
        note_zero_copy(&handle, result);
    }
    if result == Err(Errno(libc::EPIPE)) && flags & libc::MSG_NOSIGNAL == 0 && handle.is_tcp() {
        raise_sigpipe();
    }
    result
}

/// MSG_ZEROCOPY with SO_ZEROCOPY: each call that sends has a number, and is reported. On a stream
/// one without bytes has none.
fn note_zero_copy(handle: &Handle, sent: Result<usize>) {
    let is_on = handle.slot.option_bits.load(Relaxed) & option_bit::ZERO_COPY != 0;
    if is_on && sent.is_ok_and(|len| len > 0 || !handle.is_tcp()) {
        handle.client.setting(handle.socket, setting::ZERO_COPY, 1);
    }
}

/// The address of a connection that MSG_FASTOPEN opens.
///
/// # Safety
/// As for [`destination`].
unsafe fn peer_to_open(
    handle: &Handle,
    at: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<Option<RawAddr>> {
    let family = handle.slot.family.load(Relaxed);
    // SAFETY: the caller's promise.
    let to = unsafe { address::read(at, len) }?;
    match u32::from(to.family) {
        0 => fail(libc::EOPNOTSUPP),
        _ if !address::is_long_enough(len, family) => fail(libc::EINVAL),
        theirs if theirs != family => fail(libc::EAFNOSUPPORT),
        _ => peer(handle.slot, to, false).map(Some),
    }
}

/// MSG_FASTOPEN: connects, with the first bytes in the SYN if there is a cookie of the peer.
///
/// # Safety
/// As for [`send`].
unsafe fn open_and_send(
    handle: &Handle,
    buffers: &[Buffer],
    flags: i32,
    to: Option<RawAddr>,
    patience: Patience,
) -> Result<usize> {
    connect_to_send(handle, to, patience)?;
    // SAFETY: the caller's promise.
    unsafe { send_stream(handle, buffers, flags, patience) }
}

/// MSG_OOB is refused by udp_sendmsg, which udpv6_sendmsg calls for IPv4 peers, and by ping
/// sockets; over IPv6 udpv6_sendmsg does not look at it.
fn takes_urgent(handle: &Handle, to: Option<RawAddr>) -> bool {
    let over_v4 = || matches!(towards(handle, &to.unwrap_or_default()), Some(IpAddr::V4(_)));
    let family = handle.slot.family.load(Relaxed);
    handle.is_tcp() || handle.kind() == Kind::Datagram && family == address::INET6 && !over_v4()
}

/// # Safety
/// As for [`send`].
unsafe fn send_stream(
    handle: &Handle,
    buffers: &[Buffer],
    how: i32,
    patience: Patience,
) -> Result<usize> {
    let (client, socket) = (handle.client, handle.socket);
    let wanted = Buffer::total(buffers).min(COUNT_MAX);
    let more = how & libc::MSG_MORE != 0;
    let opening = handle.slot.flags.load(Relaxed) & flags::OPENING != 0;
    let mut done = 0;
    loop {
        // SAFETY: the caller's promise.
        let attempt = || unsafe {
            match how & libc::MSG_OOB {
                0 => stream::send(client, socket, buffers, done, more),
                _ => urgent::send(client, socket, buffers, done),
            }
        };
        // Looked at before: the engine may give memory right after an attempt that lacked it.
        let lacked = stream::lacks_memory(client, socket);
        let result = match attempt() {
            Err(Error::WouldBlock)
                if is_brief(patience) && (lacked || stream::lacks_memory(client, socket)) =>
            {
                wait_for_memory(handle, attempt)
            }
            Err(Error::WouldBlock) if patience.nonblocking => fail(libc::EAGAIN),
            Err(Error::WouldBlock) => handle.blocking(patience, attempt),
            result => result.map_err(Errno::from),
        };
        match result {
            Ok(n) => done += n,
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
        if done >= wanted {
            if opening && !patience.nonblocking {
                await_handshake(handle, patience)?;
            }
            return Ok(done);
        }
    }
}

/// As tcp_sendmsg_fastopen: a call that may wait returns when the handshake is over, and tells how
/// it ended.
fn await_handshake(handle: &Handle, patience: Patience) -> Result<()> {
    let attempt = || match handle.slot.flags.load(Acquire) {
        seen if seen & flags::OPENING != 0 => Err(Error::WouldBlock),
        seen if seen & flags::DEAD != 0 => handle.socket.take_error(handle.client),
        _ => Ok(()),
    };
    match handle.blocking(patience, attempt) {
        // The bytes are taken, and leave all the same.
        Err(Errno(libc::EAGAIN | libc::EINTR | libc::ERESTART)) => Ok(()),
        result => result,
    }
}

/// Whether a write may not wait for the engine's turn. A first one does so for memory all the same,
/// which is no room in the sense of SO_SNDTIMEO.
fn is_brief(patience: Patience) -> bool {
    patience.nonblocking || patience.deadline.is_some_and(|deadline| deadline.left() < BRIEF)
}

fn wait_for_memory<T>(
    handle: &Handle,
    mut attempt: impl FnMut() -> std::result::Result<T, Error>,
) -> Result<T> {
    use towpath_client::{Deadline, interrupt::Handled};
    let connecting = handle.slot.flags.load(std::sync::atomic::Ordering::Acquire);
    if connecting & towpath_shm::layout::flags::CONNECTING != 0 {
        return fail(libc::EAGAIN);
    }
    let deadline = Some(Deadline::after(MEMORY_PATIENCE));
    let patience = Patience { nonblocking: false, deadline, since: Handled::so_far() };
    // The engine answers with memory, or says that there is none: then the socket lacks none, and
    // the attempt was the last. Memory that comes after an attempt that lacked it is for the next
    // attempt.
    let mut once = || {
        let lacked = stream::lacks_memory(handle.client, handle.socket);
        match attempt() {
            Err(Error::WouldBlock) if !lacked => Err(Error::Refused(libc::EAGAIN)),
            result => result,
        }
    };
    match handle.blocking(patience, &mut once) {
        Err(Errno(libc::EINTR)) => Ok(once()?),
        result => result,
    }
}

/// # Safety
/// As for [`send`].
unsafe fn send_datagram(
    handle: &Handle,
    buffers: &[Buffer],
    to: Option<RawAddr>,
    control: &Control,
    patience: Patience,
) -> Result<usize> {
    let len = Buffer::total(buffers);
    let header = datagram_header(handle, to, control)?;
    if len > LENGTH_MAX && handle.slot.family.load(Relaxed) == address::INET || len > COUNT_MAX {
        return fail(libc::EMSGSIZE);
    }
    let header = with_len(header, len)?;
    // SAFETY: the caller's promise.
    unsafe { send_whole(handle, &header, buffers, patience) }
}

/// A part of a datagram: the last one, without MSG_MORE, sends it.
///
/// # Safety
/// As for [`send`].
unsafe fn send_part(
    handle: &Handle,
    buffers: &[Buffer],
    more: bool,
    to: Option<RawAddr>,
    control: &Control,
    patience: Patience,
) -> Result<usize> {
    let begin = || datagram_header(handle, to, control);
    let most = |header: &DatagramHeader| match towards(handle, &header.remote) {
        Some(IpAddr::V6(_)) => PAYLOAD_MAX_V6,
        _ => PAYLOAD_MAX_V4,
    };
    // SAFETY: the caller's promise.
    let whole = unsafe { handle.posix.cork.append(handle.socket, begin, buffers, more, most) }?;
    if let Some(whole) = whole {
        let header = with_len(whole.header, whole.bytes.len())?;
        let buffer = Buffer { at: whole.bytes.as_ptr().cast_mut(), len: whole.bytes.len() };
        // SAFETY: bytes of ours.
        unsafe { send_whole(handle, &header, &[buffer], patience) }?;
    }
    Ok(Buffer::total(buffers))
}

/// # Safety
/// As for [`send`].
unsafe fn send_whole(
    handle: &Handle,
    header: &DatagramHeader,
    buffers: &[Buffer],
    patience: Patience,
) -> Result<usize> {
    let (client, socket) = (handle.client, handle.socket);
    bind_any(handle)?;
    check_length(handle, header)?;
    // SAFETY: the caller's promise.
    let attempt = || unsafe { datagram::send(client, socket, header, buffers) };
    // Before the attempt: see `send_stream`.
    let lacked = stream::lacks_memory(client, socket);
    match attempt() {
        Err(Error::WouldBlock)
            if is_brief(patience) && (lacked || stream::lacks_memory(client, socket)) =>
        {
            wait_for_memory(handle, attempt)
        }
        Err(Error::WouldBlock) if !patience.nonblocking => handle.blocking(patience, attempt),
        result => Ok(result?),
    }
}

/// Whether a datagram is too long is told by the call that sends it. Most are too short for the
/// question, and the engine alone knows what each way carries.
fn check_length(handle: &Handle, header: &DatagramHeader) -> Result<()> {
    let longest = match header.segment_size {
        0 => header.len,
        size => header.len.min(size.into()),
    };
    let bits = handle.slot.option_bits.load(Relaxed);
    let refuses = bits & (option_bit::REFUSE_LONG | option_bit::REFUSE_LONG_V6) != 0;
    let least = match bits & option_bit::FRAGMENT_SIZE {
        0 => handle.client.datagram_mtu(),
        _ => handle.client.datagram_mtu().min(FRAGMENT_SIZE_MIN),
    };
    let long = longest + headers_len(handle, header) > least;
    // udp_send_skb cuts no datagram into parts that are too long.
    let asks = refuses || header.segment_size != 0;
    if header.len as usize <= PAYLOAD_MAX_V4 && !(asks && long) {
        return Ok(());
    }
    handle
        .call(call::CHECK_LENGTH, |request| {
            let bytes = header.as_bytes();
            request.len = bytes.len() as u32;
            request.data[..bytes.len()].copy_from_slice(bytes);
        })
        .map(drop)
}

/// Bytes of the headers that a datagram is sent behind: of IP without options (RFC 791 §3.1, RFC
/// 8200 §3), and of UDP; a ping brings that of ICMP along.
fn headers_len(handle: &Handle, header: &DatagramHeader) -> u32 {
    let ip = match towards(handle, &header.remote) {
        Some(IpAddr::V4(_)) => 20,
        // Without an address it is not sent.
        Some(IpAddr::V6(_)) | None => 40,
    };
    ip + if handle.kind() == Kind::Echo { 0 } else { 8 }
}

/// UDP_CORK.
fn is_corked(handle: &Handle) -> bool {
    let bits = handle.slot.option_bits.load(std::sync::atomic::Ordering::Relaxed);
    bits & option_bit::UDP_CORK != 0
}

/// UDP_CORK is taken off: what was begun goes out. As on Linux, nobody hears whether it could.
pub(crate) fn uncork(handle: &Handle) {
    if handle.posix.cork.is_begun(handle.socket) {
        let patience = handle.send_patience(false);
        // SAFETY: no buffers.
        let _ = unsafe { send_part(handle, &[], false, None, &Control::default(), patience) };
    }
}

/// All but the length.
fn datagram_header(
    handle: &Handle,
    to: Option<RawAddr>,
    control: &Control,
) -> Result<DatagramHeader> {
    use std::sync::atomic::Ordering::Acquire;
    let family = handle.slot.family.load(Relaxed);
    let bits = handle.slot.option_bits.load(Relaxed);
    let remote = match to {
        None | Some(RawAddr { family: 0, .. }) => {
            if handle.slot.flags.load(Acquire) & towpath_shm::layout::flags::CONNECTED == 0 {
                return fail(libc::EDESTADDRREQ);
            }
            RawAddr::default()
        }
        Some(addr) if u32::from(addr.family) == address::INET6 && family == address::INET => {
            return fail(libc::EAFNOSUPPORT);
        }
        Some(RawAddr { port: 0, .. }) if handle.kind() == Kind::Datagram => {
            return fail(libc::EINVAL);
        }
        Some(addr)
            if bits & option_bit::BROADCAST == 0
                && interface::is_broadcast(handle.posix, &addr) =>
        {
            return fail(libc::EACCES);
        }
        Some(addr) => peer(handle.slot, addr, true)?,
    };
    let named = control.local.family != 0 || control.ifindex != 0;
    if named && !handle.posix.remembered.may_use_any_address(handle.socket) {
        interface::check_source(handle.posix, &control.local, control.ifindex)?;
    }
    let segment_size =
        control.segment_size.unwrap_or_else(|| handle.posix.remembered.segment_size(handle.socket));
    if segment_size != 0 && bits & option_bit::NO_CHECK != 0 {
        // As udp_send_skb: what cuts a datagram makes checksums.
        return fail(libc::EINVAL);
    }
    // What is set now goes with the datagram: the engine may hear of a later setting before it
    // sends this one.
    let tos = match control.tos {
        DatagramHeader::DEFAULT => class_towards(handle, &remote),
        tos => tos,
    };
    let ttl = match control.ttl {
        DatagramHeader::DEFAULT => ttl_towards(handle, &remote),
        ttl => ttl,
    };
    Ok(DatagramHeader {
        len: 0,
        ifindex: control.ifindex,
        remote,
        local: control.local,
        time_ns: 0,
        tos,
        ttl,
        segment_size,
        reserved: 0,
        drops: 0,
    })
}

/// IP_TTL or IPV6_UNICAST_HOPS, as the address's family has it. Not to groups: the engine alone
/// knows what counts for them.
fn ttl_towards(handle: &Handle, remote: &RawAddr) -> u16 {
    let set = match towards(handle, remote) {
        Some(ip) if ip.is_multicast() => None,
        Some(IpAddr::V4(_)) => Some(handle.slot.ttl.load(Relaxed).into()).filter(|ttl| *ttl != 0),
        Some(IpAddr::V6(_)) => handle.slot.hops.load(Relaxed).checked_sub(1),
        None => None,
    };
    set.unwrap_or(DatagramHeader::DEFAULT)
}

/// IP_TOS or IPV6_TCLASS, as the address's family has it.
fn class_towards(handle: &Handle, remote: &RawAddr) -> u16 {
    match towards(handle, remote) {
        Some(IpAddr::V6(_)) => handle.slot.tclass.load(Relaxed) as u16,
        _ => handle.slot.tos.load(Relaxed).into(),
    }
}

/// Where a datagram goes: to the address that it names, or to the peer.
fn towards(handle: &Handle, remote: &RawAddr) -> Option<IpAddr> {
    let remote = if remote.family == 0 { handle.slot.remote.load() } else { *remote };
    remote.to_socket_addr().map(|addr| addr.ip().to_canonical())
}

fn with_len(header: DatagramHeader, len: usize) -> Result<DatagramHeader> {
    let size = usize::from(header.segment_size);
    if size > 0 && len > size * SEGMENTS_MAX {
        return fail(libc::EINVAL);
    }
    // One segment needs no cutting.
    let segment_size = if size < len { header.segment_size } else { 0 };
    Ok(DatagramHeader { len: len as u32, segment_size, ..header })
}

/// What of `buffers` lies behind the first `skip` bytes.
pub(crate) fn skip_into(buffers: &[Buffer], mut skip: usize, rest: &mut Vec<Buffer>) {
    for buffer in buffers {
        let from = skip.min(buffer.len);
        skip -= from;
        if from < buffer.len {
            rest.push(Buffer { at: buffer.at.wrapping_add(from), len: buffer.len - from });
        }
    }
}

fn raise_sigpipe() {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as usize;
    let args = [std::process::id() as usize, tid, libc::SIGPIPE as usize, 0, 0, 0];
    // SAFETY: integers only; the signal goes to this thread, as write(2) sends it.
    let _ = unsafe { towpath_client::syscall::syscall(libc::SYS_tgkill as usize, args) };
}
