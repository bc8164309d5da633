//! Datagrams: a header and a payload in a FIFO, padded to eight bytes.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_ring::{lock_rx, lock_tx, program_fifo};
use towpath_shm::layout::{DatagramHeader, Plain, op, shut};

use crate::socket::take_error;
use crate::{Buffer, Client, Error, Socket};

const HEADER: u32 = size_of::<DatagramHeader>() as u32;

/// One datagram as received.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// Its header; `len` is the whole length.
    pub header: DatagramHeader,
    /// Bytes that found room in the buffers.
    pub copied: usize,
}

/// Takes the next datagram (with `keep`: looks at it). What does not fit `buffers` is lost, as ever.
/// None: shut down for reading. One attempt.
///
/// # Safety
/// The buffers must be valid for writes.
pub unsafe fn recv(
    client: &Client,
    socket: Socket,
    buffers: &[Buffer],
    keep: bool,
) -> Result<Option<Received>, Error> {
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(socket).ok_or(Error::Dead)?;
    take_error(slot)?;
    let guard = lock_rx(slot, || client.check_alive()).ok_or(Error::Dead)?;
    let Some(header) = next_header(client, slot) else {
        drop(guard);
        if slot.shut.load(Relaxed) & shut::READ != 0 {
            return Ok(None);
        }
        return Err(Error::WouldBlock);
    };
    let mut copied = 0;
    for buffer in buffers {
        // SAFETY: the caller's promise.
        let to = unsafe { buffer.room() };
        let most = to.len().min(header.len as usize - copied);
        let n = program_fifo::peek(client.region(), slot, HEADER + copied as u32, &mut to[..most]);
        copied += n;
        if n < most || copied == header.len as usize {
            break;
        }
    }
    let tell = !keep && program_fifo::consume(slot, footprint(header.len));
    drop(guard);
    if tell {
        client.socket_command(socket, op::RX_SPACE, 0, 0);
    }
    Ok(Some(Received { header, copied }))
}

/// Length of the next datagram, 0 when there is none (FIONREAD).
pub fn next_len(client: &Client, socket: Socket) -> usize {
    let Some(slot) = client.slot(socket) else {
        return 0;
    };
    let _guard = lock_rx(slot, || client.check_alive());
    next_header(client, slot).map_or(0, |header| header.len as usize)
}

/// Queues one datagram (or, with `header.segment_size`, several in one). One attempt.
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
    take_error(slot)?;
    if slot.shut.load(Relaxed) & shut::WRITE != 0 {
        return Err(Error::Closed);
    }
    let guard = lock_tx(slot, || client.check_alive()).ok_or(Error::Dead)?;
    let needed = footprint(header.len);
    if program_fifo::room(slot) < needed {
        program_fifo::want_room(slot);
    }
    if program_fifo::room(slot) < needed {
        let cap = slot.tx_cap.load(Acquire);
        drop(guard);
        if cap == 0 {
            client.socket_command(socket, op::TX_WINDOW, needed, 0);
        } else if cap.min(slot.tx_limit.load(Relaxed)) < needed {
            return Err(Error::TooLong);
        }
        return Err(Error::WouldBlock);
    }
    let mut at = program_fifo::write(client.region(), slot, 0, header.as_bytes()) as u32;
    let mut left = header.len as usize;
    for buffer in buffers {
        // SAFETY: the caller's promise.
        let from = unsafe { buffer.bytes(0) };
        let from = &from[..from.len().min(left)];
        at += program_fifo::write(client.region(), slot, at, from) as u32;
        left -= from.len();
    }
    let tell = program_fifo::publish(slot, needed);
    drop(guard);
    if tell {
        client.socket_command(socket, op::TX, 0, 0);
    }
    Ok(header.len as usize)
}

fn next_header(client: &Client, slot: &towpath_shm::layout::Slot) -> Option<DatagramHeader> {
    let unread = program_fifo::unread(slot);
    if unread < HEADER {
        return None;
    }
    let mut bytes = [0; HEADER as usize];
    program_fifo::peek(client.region(), slot, 0, &mut bytes);
    let mut header = DatagramHeader::from_bytes(&bytes);
    header.len = header.len.min(unread - HEADER);
    Some(header)
}

fn footprint(len: u32) -> u32 {
    (HEADER + len).next_multiple_of(8)
}
