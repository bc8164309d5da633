//! Sends and receives on streams.

use std::sync::atomic::Ordering::Relaxed;

use towpath_client::stream::{OnError, SendHints};
use towpath_client::{Buffer, Error, WaitLimit, stream, urgent};
use towpath_shm::layout::{RawAddr, connect_asked, flags};

use super::arrival::Arrival;
use super::opening::open;
use super::peek::{move_peek_offset, peek_offset};
use crate::handle::OpenSocket;
use crate::socket::{connect_to_send, note_connect, syn_room};
use crate::{Errno, Result};

/// Maximum number of bytes that one call transfers (MAX_RW_COUNT of Linux).
pub(super) const COUNT_MAX: usize = 0x7fff_f000;

/// Receives bytes of a stream.
///
/// # Safety
/// As for [`recv`](super::recv).
pub(super) unsafe fn recv_stream(
    handle: &OpenSocket,
    buffers: &[Buffer],
    flags: i32,
    limit: WaitLimit,
) -> Result<Arrival> {
    let (client, socket) = (handle.client, handle.socket);
    let keep = flags & libc::MSG_PEEK != 0;
    let truncate = flags & libc::MSG_TRUNC != 0;
    let wanted = Buffer::total(buffers);
    // Number of bytes that must arrive before a blocking call returns (`sock_rcvlowat` of Linux).
    let enough = match flags & libc::MSG_WAITALL {
        0 => wanted.min(handle.slot.rcvlowat.load(Relaxed) as usize),
        _ => wanted,
    };
    // A read stops before the urgent byte. Do not wait for bytes after it.
    let stops = |n: usize| urgent::stops_at(client, socket, u32::try_from(n).unwrap_or(u32::MAX));
    if keep {
        let look = || {
            let skip = peek_offset(handle);
            match truncate {
                true => stream::measure(client, socket, skip, wanted),
                // SAFETY: the buffers are valid for writes, by the contract of this function.
                false => unsafe {
                    stream::recv(client, socket, buffers, Some(skip), OnError::Tell)
                },
            }
        };
        let len = handle.blocking(limit, || match look() {
            Ok(n) if n > 0 && n < enough && !ended(handle) && !stops(n) => Err(Error::WouldBlock),
            result => result,
        });
        let len = len.or_else(|why| match why {
            // After a timeout or a signal, return the bytes that have arrived, or the error if
            // there are none.
            Errno(libc::EAGAIN | libc::EINTR) => match look() {
                Err(Error::WouldBlock) => Err(why),
                found => Ok(found?),
            },
            // The read has consumed the connection's pending error (SO_ERROR), so it must return
            // this error.
            told => Err(told),
        })?;
        move_peek_offset(handle, keep, len);
        return Ok(Arrival { len, ..Arrival::default() });
    }
    let take = |parts: &[Buffer], n, on_error| match truncate {
        true => stream::discard(client, socket, n, on_error),
        // SAFETY: `parts` are parts of `buffers`, which are valid for writes by the contract of
        // this function.
        false => unsafe { stream::recv(client, socket, parts, None, on_error) },
    };
    let mut len = handle.blocking(limit, || take(buffers, wanted, OnError::Tell))?;
    let mut rest: Vec<Buffer> = Vec::new();
    while len > 0 && len < enough && !stops(0) {
        rest.clear();
        skip_into(buffers, len, &mut rest);
        match handle.blocking(limit, || take(&rest, wanted - len, OnError::Leave)) {
            Ok(0) | Err(_) => break,
            Ok(n) => len += n,
        }
    }
    move_peek_offset(handle, keep, len);
    Ok(Arrival { len, ..Arrival::default() })
}

fn ended(handle: &OpenSocket) -> bool {
    handle.socket.readiness(handle.client) & towpath_client::ready::RDHUP != 0
}

/// Connects a stream for a send with MSG_FASTOPEN. The SYN contains the first bytes if a Fast Open
/// cookie of the peer is known.
///
/// # Safety
/// As for [`send`](super::send).
pub(super) unsafe fn open_and_send(
    handle: &OpenSocket,
    buffers: &[Buffer],
    flags: i32,
    to: Option<RawAddr>,
    limit: WaitLimit,
) -> Result<usize> {
    connect_to_send(handle, to, limit)?;
    // SAFETY: the buffers are valid for reads, by the contract of this function.
    unsafe { send_stream(handle, buffers, flags, limit) }
}

/// Sends bytes on a stream.
///
/// # Safety
/// As for [`send`](super::send).
pub(super) unsafe fn send_stream(
    handle: &OpenSocket,
    buffers: &[Buffer],
    how: i32,
    limit: WaitLimit,
) -> Result<usize> {
    let (client, socket) = (handle.client, handle.socket);
    let hints =
        SendHints { more: how & libc::MSG_MORE != 0, ends_record: how & libc::MSG_EOR != 0 };
    let opening = handle.slot.flags.load(Relaxed) & flags::OPENING != 0;
    let mut in_syn = Vec::new();
    let buffers = if opening && limit.nonblocking {
        // If the call must not wait, it sends only the bytes that fit in the SYN, as Linux's
        // `tcp_sendmsg_fastopen`.
        take_into(buffers, syn_room(handle), &mut in_syn);
        &in_syn
    } else {
        buffers
    };
    let wanted = Buffer::total(buffers).min(COUNT_MAX);
    if opening {
        note_connect(handle, connect_asked::STARTED);
    }
    let mut done = 0;
    loop {
        // SAFETY: the buffers are valid for reads, by the contract of this function.
        let attempt = || unsafe {
            match how & libc::MSG_OOB {
                0 => stream::send(client, socket, buffers, done, hints),
                _ => urgent::send(client, socket, buffers, done),
            }
        };
        match handle.sending(limit, attempt) {
            Ok(n) => done += n,
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
        if done >= wanted {
            if opening {
                open(handle, done, limit)?;
            }
            return Ok(done);
        }
    }
}

/// Fills `first` with buffers that cover the first `n` bytes of `buffers`.
fn take_into(buffers: &[Buffer], mut n: usize, first: &mut Vec<Buffer>) {
    for buffer in buffers {
        let len = n.min(buffer.len);
        n -= len;
        first.push(Buffer { at: buffer.at, len });
    }
}

/// Fills `rest` with buffers that cover the bytes of `buffers` after the first `skip`.
fn skip_into(buffers: &[Buffer], mut skip: usize, rest: &mut Vec<Buffer>) {
    for buffer in buffers {
        let from = skip.min(buffer.len);
        skip -= from;
        if from < buffer.len {
            rest.push(Buffer { at: buffer.at.wrapping_add(from), len: buffer.len - from });
        }
    }
}
