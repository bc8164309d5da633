//! Implements sendfile(2) and splice(2) if one end is a socket of the stack. Bytes are copied
//! through a buffer of limited size.

use towpath_client::stream::{OnError, SendHints};
use towpath_client::syscall::syscall;
use towpath_client::{Buffer, WaitLimit, stream};
use towpath_shm::layout::Kind;

use crate::control::SendControl;
use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::{Errno, Posix, Result, descriptor, netlink, transfer};

/// Maximum number of bytes copied at a time. Smaller than the size for which malloc(3) would map
/// memory separately.
const CHUNK: usize = 64 << 10;
const SPLICE_F_NONBLOCK: u32 = 2;
const SPLICE_F_MORE: u32 = 4;
/// All flags of splice(2): SPLICE_F_MOVE, SPLICE_F_NONBLOCK, SPLICE_F_MORE and SPLICE_F_GIFT.
const SPLICE_F_ALL: u32 = 15;

/// sendfile(2) to a socket of the stack. Without `offset` it uses and moves the file's own
/// position. Returns the number of bytes sent: fewer than `count` at the end of the file, or if the
/// socket's send buffer is full.
///
/// # Errors
/// EINVAL if `from` is a socket of the stack or a directory. If no byte was sent before the error,
/// the errors of lseek(2), pread(2) and send(2).
pub fn sendfile(
    posix: &'static Posix,
    to: i32,
    from: i32,
    offset: Option<&mut i64>,
    count: usize,
) -> Result<usize> {
    if posix.process.descriptors.socket(from).is_some() {
        return fail(libc::EINVAL);
    }
    if netlink::is_ours(posix, to) {
        return sendfile_to_netlink(posix, to, from, offset, count);
    }
    let handle = OpenSocket::new(posix, to)?;
    if handle.kind() == Kind::Listener {
        return fail(libc::EPIPE);
    }
    let start = match &offset {
        Some(offset) => **offset,
        None => seek(from, 0, libc::SEEK_CUR)?,
    };
    if start < 0 {
        return fail(libc::EINVAL);
    }
    let mut chunk = vec![0u8; CHUNK.min(count.max(1))];
    let mut done = 0;
    let result = loop {
        let wanted = chunk.len().min(count - done);
        if wanted == 0 {
            break Ok(());
        }
        let read = match pread(from, &mut chunk[..wanted], start + done as i64) {
            Ok(0) => break Ok(()),
            Ok(read) => read,
            Err(Errno(libc::EISDIR)) => break fail(libc::EINVAL),
            Err(errno) => break Err(errno),
        };
        let buffer = Buffer { at: chunk.as_mut_ptr(), len: read };
        // SAFETY: `chunk` has at least `read` bytes.
        match unsafe { transfer::send(posix, to, &[buffer], 0, None, &SendControl::default()) } {
            Ok(sent) => {
                done += sent;
                if sent < read {
                    break Ok(());
                }
            }
            Err(errno) => break Err(errno),
        }
    };
    match offset {
        Some(offset) => *offset = start + done as i64,
        None => {
            seek(from, start + done as i64, libc::SEEK_SET)?;
        }
    }
    if done == 0 { result.map(|()| 0) } else { Ok(done) }
}

/// Sends the netlink requests that a file contains, beginning at `offset` or at the file's
/// position.
fn sendfile_to_netlink(
    posix: &'static Posix,
    to: i32,
    from: i32,
    offset: Option<&mut i64>,
    count: usize,
) -> Result<usize> {
    let start = match &offset {
        Some(offset) => **offset,
        None => seek(from, 0, libc::SEEK_CUR)?,
    };
    let sent = netlink::send_from(posix, to, count, |room| pread(from, room, start))?;
    match offset {
        Some(offset) => *offset = start + sent as i64,
        None => drop(seek(from, start + sent as i64, libc::SEEK_SET)?),
    }
    Ok(sent)
}

/// splice(2) between a pipe and a socket of the stack. The two elements of `offsets` tell whether
/// the program passed an offset for `from` and for `to`. Returns the number of bytes moved.
/// SPLICE_F_NONBLOCK affects only the pipe.
///
/// # Errors
/// EINVAL for unknown flags, if the other descriptor is not a pipe, or if an offset is given for
/// the socket. ESPIPE if an offset is given for the pipe.
pub fn splice(
    posix: &'static Posix,
    from: i32,
    to: i32,
    offsets: (bool, bool),
    count: usize,
    flags: u32,
) -> Result<usize> {
    if count == 0 {
        return Ok(0);
    }
    let inward = posix.process.descriptors.socket(from).is_some();
    let (pipe, pipe_offset, offset) =
        if inward { (to, offsets.1, offsets.0) } else { (from, offsets.0, offsets.1) };
    if flags & !SPLICE_F_ALL != 0 || !is_pipe(posix, pipe) {
        return fail(libc::EINVAL);
    }
    if pipe_offset || offset {
        return fail(if pipe_offset { libc::ESPIPE } else { libc::EINVAL });
    }
    if netlink::is_ours(posix, to) {
        return netlink::send_from(posix, to, count, |room| pipe_read(from, room, flags));
    }
    if inward {
        from_socket(posix, from, to, count, flags)
    } else {
        to_socket(posix, from, to, count, flags)
    }
}

fn is_pipe(posix: &'static Posix, fd: i32) -> bool {
    !descriptor::is_ours(posix, fd)
        && towpath_client::syscall::fcntl(fd, libc::F_GETPIPE_SZ, 0).is_ok()
}

/// Moves one datagram from a socket to a pipe. Bytes beyond the length of `chunk` are lost, as with
/// recv(2).
fn from_datagrams(
    posix: &'static Posix,
    from: i32,
    to: i32,
    chunk: &mut [u8],
    flags: u32,
) -> Result<usize> {
    // Wait until the pipe can take bytes first, because bytes cannot be returned to the socket.
    wait_for_pipe(to, libc::POLLOUT, flags)?;
    let buffer = Buffer { at: chunk.as_mut_ptr(), len: chunk.len() };
    // SAFETY: `buffer` describes `chunk`, which is writable.
    let len = unsafe { transfer::recv(posix, from, &[buffer], 0) }?.len;
    pipe_write(to, &chunk[..len], flags)
}

fn from_socket(
    posix: &'static Posix,
    from: i32,
    to: i32,
    count: usize,
    flags: u32,
) -> Result<usize> {
    let handle = OpenSocket::new(posix, from)?;
    let mut chunk = vec![0u8; CHUNK.min(count)];
    match handle.kind() {
        Kind::Stream => {}
        Kind::Listener => return fail(libc::ENOTCONN),
        _ => return from_datagrams(posix, from, to, &mut chunk, flags),
    }
    let buffer = Buffer { at: chunk.as_mut_ptr(), len: chunk.len() };
    // SPLICE_F_NONBLOCK affects only the pipe. The socket blocks unless it has O_NONBLOCK.
    let limit = handle.recv_limit(false);
    // Peek at the bytes, and remove them from the socket only after the write to the pipe.
    // Otherwise a full pipe would lose them. SAFETY: `buffer` describes `chunk`, which is writable.
    let attempt =
        || unsafe { stream::recv(handle.client, handle.socket, &[buffer], Some(0), OnError::Tell) };
    let len = handle.blocking(limit, attempt)?;
    if len == 0 {
        return Ok(0);
    }
    let written = pipe_write(to, &chunk[..len], flags)?;
    Ok(stream::discard(handle.client, handle.socket, written, OnError::Tell)?)
}

fn to_socket(posix: &'static Posix, from: i32, to: i32, count: usize, flags: u32) -> Result<usize> {
    let handle = OpenSocket::new(posix, to)?;
    let limit = handle.send_limit(false);
    // Wait for free send buffer space first, because bytes read from the pipe cannot be returned to
    // it.
    let has_room = || handle.socket.readiness(handle.client) & towpath_client::ready::OUT != 0;
    let writable = || {
        if has_room() {
            return Ok(());
        }
        handle.socket.want_room(handle.client);
        // Check again: if the send buffer became free before the request for an event, no event
        // follows.
        if has_room() { Ok(()) } else { Err(towpath_client::Error::WouldBlock) }
    };
    handle.blocking(limit, writable)?;
    let room = if handle.kind() == Kind::Stream { room_to_send(&handle)? } else { CHUNK };
    let mut chunk = vec![0u8; CHUNK.min(count).min(room)];
    let len = pipe_read(from, &mut chunk, flags)?;
    let buffer = Buffer { at: chunk.as_mut_ptr(), len };
    let more = if flags & SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
    let mut done = 0;
    while done < len {
        let rest = Buffer { at: buffer.at.wrapping_add(done), len: len - done };
        // SAFETY: `rest` is the part of `chunk` after `done` bytes. The send blocks only if another
        // thread has filled the send buffer meanwhile.
        match unsafe { transfer::send(posix, to, &[rest], more, None, &SendControl::default()) } {
            Ok(sent) => done += sent,
            Err(Errno(libc::EAGAIN)) => handle.blocking(WaitLimit::until(None), writable)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(len)
}

/// Returns the free space in the send buffer in bytes. Returns 4096 if the buffer does not exist
/// yet, because the first write allocates it. A write of this length waits only if a concurrent
/// call fills the buffer.
///
/// # Errors
/// The error that prevents sends on this connection. poll(2) reports such a socket as writable.
fn room_to_send(handle: &OpenSocket) -> Result<usize> {
    const FIRST: usize = 4096;
    match towpath_ring::program_fifo::room(handle.slot) as usize {
        0 => {
            // SAFETY: the list of buffers is empty.
            unsafe { stream::send(handle.client, handle.socket, &[], 0, SendHints::default()) }?;
            Ok(FIRST)
        }
        room => Ok(room),
    }
}

fn pipe_read(fd: i32, to: &mut [u8], flags: u32) -> Result<usize> {
    wait_for_pipe(fd, libc::POLLIN, flags)?;
    // SAFETY: `to` is a valid slice, which the kernel fills.
    unsafe {
        syscall(libc::SYS_read as usize, [fd as usize, to.as_mut_ptr() as usize, to.len(), 0, 0, 0])
    }
    .map_err(Errno)
}

fn pipe_write(fd: i32, from: &[u8], flags: u32) -> Result<usize> {
    wait_for_pipe(fd, libc::POLLOUT, flags)?;
    // A writable pipe accepts a page (PIPE_BUF, 4096 bytes) without blocking, but may block for a
    // longer write.
    const ATOMIC: usize = 4096;
    let most = if flags & SPLICE_F_NONBLOCK != 0 { from.len().min(ATOMIC) } else { from.len() };
    // SAFETY: `from` is a valid slice, and the kernel reads at most its length.
    unsafe {
        syscall(libc::SYS_write as usize, [fd as usize, from.as_ptr() as usize, most, 0, 0, 0])
    }
    .map_err(Errno)
}

/// With SPLICE_F_NONBLOCK, fails with EAGAIN unless a pipe is ready for `events`. The pipe may have
/// been opened without O_NONBLOCK, so a transfer could block otherwise.
fn wait_for_pipe(fd: i32, events: i16, flags: u32) -> Result<()> {
    if flags & SPLICE_F_NONBLOCK == 0 {
        return Ok(());
    }
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [&raw mut entry as usize, 1, &raw const zero as usize, 0, 8, 0];
    // SAFETY: the pollfd and the time limit outlive the call; the null mask changes nothing.
    match unsafe { syscall(libc::SYS_ppoll as usize, args) }.map_err(Errno)? {
        0 => fail(libc::EAGAIN),
        _ => Ok(()),
    }
}

fn pread(fd: i32, to: &mut [u8], at: i64) -> Result<usize> {
    let args = [fd as usize, to.as_mut_ptr() as usize, to.len(), at as usize, 0, 0];
    // SAFETY: `to` is a valid slice, which the kernel fills.
    unsafe { syscall(libc::SYS_pread64 as usize, args) }.map_err(Errno)
}

fn seek(fd: i32, to: i64, whence: i32) -> Result<i64> {
    let args = [fd as usize, to as usize, whence as usize, 0, 0, 0];
    // SAFETY: lseek takes integers only.
    let at = unsafe { syscall(libc::SYS_lseek as usize, args) };
    // Return EINVAL for a pipe (ESPIPE), because sendfile(2) from a pipe fails with EINVAL on
    // Linux.
    at.map(|at| at as i64)
        .map_err(|errno| Errno(if errno == libc::ESPIPE { libc::EINVAL } else { errno }))
}
