//! sendfile and splice with a socket of the stack at one end, through a bounded buffer.

use towpath_client::stream::OnError;
use towpath_client::syscall::syscall;
use towpath_client::{Buffer, WaitLimit, stream};
use towpath_shm::layout::Kind;

use crate::control::SendControl;
use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::{Errno, Posix, Result, descriptor, netlink, transfer};

/// Bytes copied at a time: below malloc's threshold for a mapping of its own.
const CHUNK: usize = 64 << 10;
const SPLICE_F_NONBLOCK: u32 = 2;
const SPLICE_F_MORE: u32 = 4;
/// With SPLICE_F_MOVE and SPLICE_F_GIFT.
const SPLICE_F_ALL: u32 = 15;

/// sendfile(2) to a socket of the stack. Without `offset` it uses and moves the file's own
/// position. Returns the number of bytes sent: fewer than `count` at the end of the file, or if the
/// socket takes no more.
///
/// # Errors
/// EINVAL if `from` is a socket of the stack or a folder; errors of lseek(2), pread(2) and send(2),
/// if no byte was sent before.
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
        // SAFETY: the chunk is ours. More follows unless this is the last.
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

/// Sends the netlink requests of a file, from a position on.
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

/// splice(2) between a pipe and a socket of the stack. `offsets`: whether the program passed
/// offsets of both ends. Returns the number of bytes moved. SPLICE_F_NONBLOCK affects only the
/// pipe.
///
/// # Errors
/// EINVAL when the other end is no pipe, for unknown flags, and for an offset of the socket; ESPIPE
/// for one of the pipe.
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

/// Moves a datagram to a pipe, as much of it as fits `chunk`.
fn from_datagrams(
    posix: &'static Posix,
    from: i32,
    to: i32,
    chunk: &mut [u8],
    flags: u32,
) -> Result<usize> {
    // Wait for room in the pipe first, because bytes cannot be returned to the socket.
    wait_for_pipe(to, libc::POLLOUT, flags)?;
    let buffer = Buffer { at: chunk.as_mut_ptr(), len: chunk.len() };
    // SAFETY: the chunk is ours.
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
    // SPLICE_F_NONBLOCK affects only the pipe. The socket has O_NONBLOCK of its own.
    let limit = handle.recv_limit(false);
    // Take the bytes only after the pipe has them, so that a full pipe loses none.
    // SAFETY: the chunk is ours.
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
    // Wait for room in the socket first, because bytes cannot be returned to the pipe.
    let has_room = || handle.socket.readiness(handle.client) & towpath_client::ready::OUT != 0;
    let writable = || {
        if has_room() {
            return Ok(());
        }
        handle.socket.want_room(handle.client);
        // Look again, because room from before the request brings no event.
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
        // SAFETY: the chunk is ours. Blocking in effect only when another thread filled the socket.
        match unsafe { transfer::send(posix, to, &[rest], more, None, &SendControl::default()) } {
            Ok(sent) => done += sent,
            Err(Errno(libc::EAGAIN)) => handle.blocking(WaitLimit::until(None), writable)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(len)
}

/// Returns the room to send, or a little if there is none now, because the first write allocates
/// the FIFO. A write waits if a concurrent call has used the room.
///
/// # Errors
/// The error that prevents sends, which also makes a socket writable.
fn room_to_send(handle: &OpenSocket) -> Result<usize> {
    const FIRST: usize = 4096;
    match towpath_ring::program_fifo::room(handle.slot) as usize {
        0 => {
            // SAFETY: no buffers.
            unsafe { stream::send(handle.client, handle.socket, &[], 0, false) }?;
            Ok(FIRST)
        }
        room => Ok(room),
    }
}

fn pipe_read(fd: i32, to: &mut [u8], flags: u32) -> Result<usize> {
    wait_for_pipe(fd, libc::POLLIN, flags)?;
    // SAFETY: the buffer is as long as it says.
    unsafe {
        syscall(libc::SYS_read as usize, [fd as usize, to.as_mut_ptr() as usize, to.len(), 0, 0, 0])
    }
    .map_err(Errno)
}

fn pipe_write(fd: i32, from: &[u8], flags: u32) -> Result<usize> {
    wait_for_pipe(fd, libc::POLLOUT, flags)?;
    // A writable pipe takes a full page without blocking, but may block for more.
    const ATOMIC: usize = 4096;
    let most = if flags & SPLICE_F_NONBLOCK != 0 { from.len().min(ATOMIC) } else { from.len() };
    // SAFETY: the buffer is as long as it says.
    unsafe {
        syscall(libc::SYS_write as usize, [fd as usize, from.as_ptr() as usize, most, 0, 0, 0])
    }
    .map_err(Errno)
}

/// Ensures that a pipe does not block with SPLICE_F_NONBLOCK, even if it was opened without
/// O_NONBLOCK.
fn wait_for_pipe(fd: i32, events: i16, flags: u32) -> Result<()> {
    if flags & SPLICE_F_NONBLOCK == 0 {
        return Ok(());
    }
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [&raw mut entry as usize, 1, &raw const zero as usize, 0, 8, 0];
    // SAFETY: the entry and the limit outlive the call; no mask.
    match unsafe { syscall(libc::SYS_ppoll as usize, args) }.map_err(Errno)? {
        0 => fail(libc::EAGAIN),
        _ => Ok(()),
    }
}

fn pread(fd: i32, to: &mut [u8], at: i64) -> Result<usize> {
    let args = [fd as usize, to.as_mut_ptr() as usize, to.len(), at as usize, 0, 0];
    // SAFETY: the buffer is as long as it says.
    unsafe { syscall(libc::SYS_pread64 as usize, args) }.map_err(Errno)
}

fn seek(fd: i32, to: i64, whence: i32) -> Result<i64> {
    let args = [fd as usize, to as usize, whence as usize, 0, 0, 0];
    // SAFETY: integers only.
    let at = unsafe { syscall(libc::SYS_lseek as usize, args) };
    // sendfile from a pipe is EINVAL.
    at.map(|at| at as i64)
        .map_err(|errno| Errno(if errno == libc::ESPIPE { libc::EINVAL } else { errno }))
}
