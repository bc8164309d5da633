//! Sends and receives the bytes of a connection.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_ring::urgent::is_marked;
use towpath_ring::{Appended, Wanted, append, program_fifo};
use towpath_shm::layout::{Slot, flags, op, setting};

use crate::access::{Entrance, lock_input};
use crate::buffer::{fill, peek};
use crate::state::{may_have_more, no_more_input, no_more_output, take_error};
use crate::under_way::ByteFlow;
use crate::urgent::{ReadTarget, recv_marked};
use crate::{Buffer, Client, Error, Socket, ready};

/// Whether a read that finds no bytes returns the connection's error (SO_ERROR).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The read returns the error and clears it.
    Tell,
    /// The read returns 0, as at the end of file, and keeps the error for the next call. Used if
    /// the program's call has already read bytes.
    Leave,
}

/// Reads unread bytes into `buffers` without waiting, and returns their number. 0 means end of
/// file, or that `buffers` are empty. If `keep` is set, the bytes stay unread, and the first `keep`
/// bytes are skipped.
///
/// # Errors
/// - `WouldBlock`: no bytes are unread, and more may arrive;
/// - `NotConnected`: the socket is neither connected nor connecting;
/// - `Refused`: the connection's error, such as ECONNRESET, which the call clears. Bytes that
///   arrived before the error are read first;
/// - `Dead`: the engine (the network stack) has ended, or another thread has closed the socket.
///
/// # Safety
/// The buffers must be valid for writes.
pub unsafe fn recv(
    client: &Client,
    socket: Socket,
    buffers: &[Buffer],
    keep: Option<u32>,
    on_error: OnError,
) -> Result<usize, Error> {
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(socket).ok_or(Error::Dead)?;
    let guard = lock_input(client, socket, slot).ok_or(Error::Dead)?;
    // Read the end-of-file flag before the number of unread bytes. In this order, a read that sees
    // the end of file has seen all bytes.
    let end = StreamEnd::of(slot);
    loop {
        let start = program_fifo::start(slot);
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        let done = unsafe { peek(client, slot, keep.unwrap_or(0), usize::MAX, buffers) };
        if done == 0 {
            break;
        }
        // Check for an urgent mark after counting the unread bytes, because the engine publishes a
        // mark before the bytes that follow it.
        if is_marked(slot) {
            // SAFETY: the buffers are valid for writes, by the contract of this function.
            let (done, tell) =
                unsafe { recv_marked(client, slot, ReadTarget::Buffers(buffers), keep) };
            if tell {
                client.socket_command(socket, op::RX_SPACE, 0, 0);
            }
            if done == 0 {
                break;
            }
            return Ok(done);
        }
        let taken = if keep.is_some() {
            program_fifo::peeked_from(slot, start)
        } else {
            program_fifo::consume_from(slot, start, done as u32)
        };
        // `None`: a signal handler has read these bytes after they were copied, so try again.
        let Some(tell) = taken else { continue };
        drop(guard);
        if tell {
            client.socket_command(socket, op::RX_SPACE, 0, 0);
        }
        return Ok(done);
    }
    // Read the reason while the lock is held, because the slot cannot be reused until then.
    match why_nothing(slot, end, on_error) {
        Err(Error::WouldBlock) if Buffer::total(buffers) == 0 => Ok(0),
        why => why,
    }
}

/// Whether further bytes can arrive on a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// The peer may send more bytes.
    Open,
    /// No more bytes arrive: the connection failed, or the program has shut down reading.
    Cut,
    /// No more bytes arrive: the peer has sent its FIN.
    Finished,
}

impl StreamEnd {
    fn of(slot: &Slot) -> Self {
        if slot.flags.load(Acquire) & flags::RX_EOF != 0 {
            Self::Finished
        } else if no_more_input(slot) {
            Self::Cut
        } else {
            Self::Open
        }
    }
}

/// Returns the result of a read that finds no unread bytes: end of file (0), an error, or
/// `WouldBlock`.
fn why_nothing(slot: &Slot, end: StreamEnd, on_error: OnError) -> Result<usize, Error> {
    // After the peer's FIN, only writes return an error of the connection, as on Linux.
    if end != StreamEnd::Finished {
        match on_error {
            OnError::Tell => take_error(slot)?,
            OnError::Leave if slot.error.load(Acquire) != 0 => return Ok(0),
            OnError::Leave => {}
        }
    }
    if end != StreamEnd::Open {
        return Ok(0);
    }
    if slot.flags.load(Acquire) & (flags::CONNECTED | flags::CONNECTING) == 0 {
        return Err(Error::NotConnected);
    }
    Err(Error::WouldBlock)
}

/// Discards up to `n` unread bytes (MSG_TRUNC on a stream, tcp(7)) without waiting. Returns the
/// number of bytes discarded; 0 means end of file.
///
/// # Errors
/// As for [`recv`].
pub fn discard(
    client: &Client,
    socket: Socket,
    n: usize,
    on_error: OnError,
) -> Result<usize, Error> {
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(socket).ok_or(Error::Dead)?;
    let guard = lock_input(client, socket, slot).ok_or(Error::Dead)?;
    let end = StreamEnd::of(slot);
    let (n, tell) = loop {
        if program_fifo::unread(slot) > 0 && is_marked(slot) {
            // SAFETY: `ReadTarget::Nowhere` has no buffers.
            break unsafe { recv_marked(client, slot, ReadTarget::Nowhere(n), None) };
        }
        let start = program_fifo::start(slot);
        let n = u32::try_from(n).unwrap_or(u32::MAX).min(program_fifo::unread(slot));
        if n == 0 {
            return why_nothing(slot, end, on_error);
        }
        if let Some(tell) = program_fifo::consume_from(slot, start, n) {
            break (n as usize, tell);
        }
    };
    let nothing = (n == 0).then(|| why_nothing(slot, end, on_error));
    drop(guard);
    if tell {
        client.socket_command(socket, op::RX_SPACE, 0, 0);
    }
    nothing.unwrap_or(Ok(n))
}

/// Returns the number of unread bytes after the first `skip`, at most `n`. The bytes stay unread
/// (MSG_PEEK with MSG_TRUNC on a stream). 0 means end of file.
///
/// # Errors
/// As for [`recv`].
pub fn measure(client: &Client, socket: Socket, skip: u32, n: usize) -> Result<usize, Error> {
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(socket).ok_or(Error::Dead)?;
    let _guard = lock_input(client, socket, slot).ok_or(Error::Dead)?;
    let end = StreamEnd::of(slot);
    let there = match program_fifo::unread(slot).saturating_sub(skip) {
        1.. if is_marked(slot) => {
            // SAFETY: `ReadTarget::Nowhere` has no buffers.
            unsafe { recv_marked(client, slot, ReadTarget::Nowhere(n), Some(skip)) }.0
        }
        there => there as usize,
    };
    match n.min(there) {
        0 => why_nothing(slot, end, OnError::Tell),
        n => Ok(n),
    }
}

/// Returns the number of unread bytes of a stream (FIONREAD). Returns 0 if the socket is closed.
pub fn unread(client: &Client, socket: Socket) -> usize {
    client.slot(socket).map_or(0, |slot| match program_fifo::unread(slot) {
        1.. if is_marked(slot) => towpath_ring::urgent::readable(slot) as usize,
        unread => unread as usize,
    })
}

/// Flags of a send call that concern the bytes that follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendHints {
    /// Whether further bytes will follow soon, so that these should not be sent in a short segment
    /// (MSG_MORE).
    pub more: bool,
    /// Whether the last byte ends a record and must not share a segment with later bytes (MSG_EOR).
    pub ends_record: bool,
}

/// Queues the bytes of `buffers`, except the first `skip`, for sending. Queues as many as fit in
/// the send buffer, without waiting. Returns their number, which is 0 only if no bytes were given.
///
/// # Errors
/// - `WouldBlock`: the send buffer is full, or a connect is in progress. An event reports when the
///   socket becomes writable;
/// - `Closed`: the socket is shut down for writing or not connected (EPIPE; the caller sends
///   SIGPIPE);
/// - `Refused`: the connection's error, such as ECONNRESET, which the call clears;
/// - `Interrupting`: the caller is a signal handler that interrupted a call which is filling the
///   FIFO of this socket;
/// - `Dead`: the engine (the network stack) has ended, or another thread has closed the socket.
///
/// # Safety
/// The buffers must be valid for reads.
pub unsafe fn send(
    client: &Client,
    socket: Socket,
    buffers: &[Buffer],
    skip: usize,
    hints: SendHints,
) -> Result<usize, Error> {
    let SendHints { more, ends_record } = hints;
    let note = |slot: &Slot, at: u32, n: u32| {
        if more != (slot.more.load(Relaxed) != 0) {
            slot.more.store(u32::from(more), Relaxed);
            client.setting(socket, setting::MORE, u64::from(more));
        }
        if ends_record && skip + n as usize == Buffer::total(buffers) {
            client.setting(socket, setting::RECORD_END, at.wrapping_add(n).into());
        }
    };
    // SAFETY: the buffers are valid for reads, by the contract of this function.
    unsafe { queue(client, socket, buffers, skip, note) }
}

/// Queues bytes as [`send`] does. Before the engine sees the bytes, calls `note` with their
/// position in the send FIFO and their number.
///
/// # Errors
/// As for [`send`].
///
/// # Safety
/// The buffers must be valid for reads.
#[inline]
pub(crate) unsafe fn queue(
    client: &Client,
    socket: Socket,
    buffers: &[Buffer],
    skip: usize,
    note: impl Fn(&Slot, u32, u32),
) -> Result<usize, Error> {
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(socket).ok_or(Error::Dead)?;
    check_sendable(client, socket, slot)?;
    let wanted = Buffer::total(buffers).saturating_sub(skip);
    if wanted == 0 {
        return Ok(0);
    }
    let most = Wanted::UpTo(u32::try_from(wanted).unwrap_or(u32::MAX));
    let write = |at, n| {
        // SAFETY: the buffers are valid for reads, by the contract of this function.
        unsafe { fill(client, slot, at, buffers, skip, n) };
        note(slot, at, n);
    };
    match append(slot, socket.generation, Entrance { client, socket }, most, write) {
        Appended::Bytes { n, tell } => {
            client.tell_bytes(socket, tell, ByteFlow::out_of(slot));
            Ok(n as usize)
        }
        Appended::NoRoom => Err(no_room(client, socket, slot)),
        Appended::Interrupting => Err(Error::Interrupting),
        Appended::Dead => Err(Error::Dead),
    }
}

/// Returns whether the socket needs send buffer memory from the engine. After a request, the engine
/// provides it in the next iteration of its event loop, or reports that there is none.
pub fn lacks_memory(client: &Client, socket: Socket) -> bool {
    client.slot(socket).is_some_and(crate::state::lacks_memory)
}

/// Requests send buffer memory from the engine for a connected socket that has none, or has filled
/// it and may get more. An event reports the reply.
pub fn request_memory(client: &Client, socket: Socket) {
    if lacks_memory(client, socket) && socket.readiness(client) & ready::OUT != 0 {
        client.socket_command(socket, op::TX_WINDOW, 0, 0);
    }
}

/// Returns the number of queued bytes that the peer has not acknowledged (SIOCOUTQ). Also returns
/// how many of these were not sent yet (SIOCOUTQNSD).
pub fn queued(client: &Client, socket: Socket) -> (u32, u32) {
    client.slot(socket).map_or((0, 0), |slot| {
        let queued = program_fifo::queued(slot);
        (queued, program_fifo::unsent_of(slot, queued))
    })
}

/// Handles a full send buffer: requests more memory from the engine if the socket may get some.
/// Returns the error that the send must return.
fn no_room(client: &Client, socket: Socket, slot: &Slot) -> Error {
    if slot.tx_cap.load(Acquire) == 0 || may_have_more(slot) {
        client.socket_command(socket, op::TX_WINDOW, 0, 0);
    }
    // Check the socket again: if it was closed since the first check, no event will arrive.
    check_sendable(client, socket, slot).err().unwrap_or(Error::WouldBlock)
}

fn check_sendable(client: &Client, socket: Socket, slot: &Slot) -> Result<(), Error> {
    let seen = slot.flags.load(Acquire);
    if seen & flags::CONNECTING != 0 {
        return Err(Error::WouldBlock);
    }
    if no_more_output(slot) || slot.error.load(Acquire) != 0 {
        socket.take_error(client)?;
    } else if seen & flags::CONNECTED != 0 {
        return Ok(());
    }
    // Check the generation again. Without a lock, the state read above may belong to a new socket
    // in the slot. A closed socket must not fail with EPIPE.
    client.slot(socket).ok_or(Error::Dead)?;
    Err(Error::Closed)
}
