//! Datagrams in a socket's FIFO. Each consists of a header and a payload, padded to eight bytes.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_ring::{Appended, Wanted, append, program_fifo};
use towpath_shm::layout::{DatagramHeader, Plain, Slot, op, shut};

use crate::access::{Entrance, lock_input};
use crate::buffer::{fill, peek};
use crate::state::take_error;
use crate::under_way::ByteFlow;
use crate::{Buffer, Client, Error, Socket};

const HEADER: u32 = size_of::<DatagramHeader>() as u32;

/// Result of receiving a datagram.
#[derive(Debug, Clone, Copy)]
pub struct DatagramRead {
    /// Header of the datagram. Its field `len` is the length of the whole payload.
    pub header: DatagramHeader,
    /// Number of payload bytes copied to the program's buffers.
    pub copied: usize,
    /// Number of payload bytes that precede the first copied byte, if the read began at an offset
    /// (SO_PEEK_OFF).
    pub skipped: usize,
}

/// Receives the next datagram without waiting. Bytes that do not fit `buffers` are lost, as with
/// recv(2); [`DatagramRead::header`] contains the whole length. If `keep` is set, the datagram
/// stays queued, and the read skips the first `keep` bytes of the queued payloads (SO_PEEK_OFF).
/// Returns `None` if the socket is shut down for reading.
///
/// # Errors
/// - `WouldBlock`: no datagram has arrived;
/// - `Refused`: the socket's error, such as ECONNREFUSED after an ICMP message, which the call
///   clears;
/// - `Dead`: the engine (the network stack) has ended, or another thread has closed the socket.
///
/// # Safety
/// The buffers must be valid for writes.
pub unsafe fn recv(
    client: &Client,
    socket: Socket,
    buffers: &[Buffer],
    keep: Option<u32>,
) -> Result<Option<DatagramRead>, Error> {
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(socket).ok_or(Error::Dead)?;
    let guard = lock_input(client, socket, slot).ok_or(Error::Dead)?;
    take_error(slot)?;
    let (received, tell) = loop {
        let start = program_fifo::start(slot);
        let Some((at, skip, header)) = seek(client, slot, keep.unwrap_or(0)) else {
            if slot.shut.load(Relaxed) & shut::READ != 0 {
                return Ok(None);
            }
            return Err(Error::WouldBlock);
        };
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        let copied = unsafe {
            peek(client, slot, at + HEADER + skip, (header.len - skip) as usize, buffers)
        };
        let taken = if keep.is_some() {
            program_fifo::peeked_from(slot, start)
        } else {
            program_fifo::consume_from(slot, start, footprint(header.len))
        };
        // `None`: a signal handler has received this datagram after it was copied, so try again.
        if let Some(tell) = taken {
            break (DatagramRead { header, copied, skipped: skip as usize }, tell);
        }
    };
    drop(guard);
    if tell {
        client.socket_command(socket, op::RX_SPACE, 0, 0);
    }
    Ok(Some(received))
}

/// Returns the length in bytes of the next datagram, for FIONREAD. 0 if there is none.
pub fn next_len(client: &Client, socket: Socket) -> usize {
    let Some(slot) = client.slot(socket) else {
        return 0;
    };
    let Some(_guard) = lock_input(client, socket, slot) else {
        return 0;
    };
    next_header(client, slot).map_or(0, |header| header.len as usize)
}

/// Queues one datagram (or, with `header.segment_size`, several of that size) completely or not at
/// all, without waiting. The first `header.len` bytes of `buffers` are the payload. Returns
/// `header.len`.
///
/// # Errors
/// - `WouldBlock`: the send buffer is full. An event reports when it has free space;
/// - `TooLong`: the datagram exceeds the send buffer size (SO_SNDBUF);
/// - `Closed`: the socket is shut down for writing;
/// - `Refused`: the socket's error, which the call clears;
/// - `Interrupting`: the caller is a signal handler that interrupted a call which is filling the
///   FIFO of this socket;
/// - `Dead`: the engine (the network stack) has ended, or another thread has closed the socket.
///
/// # Safety
/// The buffers must be valid for reads.
pub unsafe fn send(
    client: &Client,
    socket: Socket,
    header: &DatagramHeader,
    buffers: &[Buffer],
) -> Result<usize, Error> {
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(socket).ok_or(Error::Dead)?;
    socket.take_error(client)?;
    if slot.shut.load(Relaxed) & shut::WRITE != 0 {
        // If the socket was closed and its slot is reused, the shutdown flag is that of the new
        // socket. Return `Dead` in this case.
        client.slot(socket).ok_or(Error::Dead)?;
        return Err(Error::Closed);
    }
    let needed = footprint(header.len);
    let write = |at: u32, _| {
        program_fifo::write_at(client.region(), slot, at, header.as_bytes());
        // SAFETY: the buffers are valid for reads, by the contract of this function.
        unsafe { fill(client, slot, at.wrapping_add(HEADER), buffers, 0, header.len) };
    };
    match append(slot, socket.generation, Entrance { client, socket }, Wanted::All(needed), write) {
        Appended::Bytes { tell, .. } => {
            client.tell_bytes(socket, tell, ByteFlow::of_datagram(slot, &header.remote));
            Ok(header.len as usize)
        }
        Appended::NoRoom => {
            let cap = slot.tx_cap.load(Acquire);
            if cap == 0 {
                client.socket_command(socket, op::TX_WINDOW, needed, 0);
            } else if cap.min(slot.tx_limit.load(Relaxed)) < needed {
                return Err(Error::TooLong);
            }
            Err(Error::WouldBlock)
        }
        Appended::Interrupting => Err(Error::Interrupting),
        Appended::Dead => Err(Error::Dead),
    }
}

fn next_header(client: &Client, slot: &Slot) -> Option<DatagramHeader> {
    header_at(client, slot, 0)
}

/// Returns the header of the datagram that begins `at` bytes after the start of the unread bytes.
fn header_at(client: &Client, slot: &Slot, at: u32) -> Option<DatagramHeader> {
    let unread = program_fifo::unread(slot).checked_sub(at)?;
    if unread < HEADER {
        return None;
    }
    let mut bytes = [0; HEADER as usize];
    program_fifo::peek(client.region(), slot, at, &mut bytes);
    let mut header = DatagramHeader::from_bytes(&bytes);
    header.len = header.len.min(unread - HEADER);
    Some(header)
}

/// Finds the datagram that contains byte number `skip` of all unread payloads. Returns the
/// datagram's offset in the unread bytes, the byte's offset in the payload, and the datagram's
/// header.
fn seek(client: &Client, slot: &Slot, mut skip: u32) -> Option<(u32, u32, DatagramHeader)> {
    let mut at = 0;
    loop {
        let header = header_at(client, slot, at)?;
        if skip == 0 || skip < header.len {
            return Some((at, skip, header));
        }
        skip -= header.len;
        at += footprint(header.len);
    }
}

fn footprint(len: u32) -> u32 {
    (HEADER + len).next_multiple_of(8)
}
