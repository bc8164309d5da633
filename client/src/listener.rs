//! Finished connections waiting at a listener.

use std::sync::atomic::Ordering::Acquire;

use towpath_ring::{lock_rx, program_fifo};
use towpath_shm::layout::{AcceptRecord, Kind, Plain, op};

use crate::socket::take_error;
use crate::{Client, Error, Socket};

/// Takes the next connection. `open` makes the descriptor for it; when it cannot, the connection
/// stays in the queue. One attempt.
pub fn accept<T>(
    client: &Client,
    listener: Socket,
    open: impl FnOnce(Socket) -> Result<T, Error>,
) -> Result<(T, AcceptRecord), Error> {
    const RECORD: usize = size_of::<AcceptRecord>();
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(listener).ok_or(Error::Dead)?;
    if Kind::from_u32(slot.kind.load(Acquire)) != Some(Kind::Listener) {
        return Err(Error::NotListening);
    }
    let guard = lock_rx(slot, || client.check_alive()).ok_or(Error::Dead)?;
    let mut bytes = [0; RECORD];
    if program_fifo::peek(client.region(), slot, 0, &mut bytes) < RECORD {
        drop(guard);
        take_error(slot)?;
        return Err(Error::WouldBlock);
    }
    let record = AcceptRecord::from_bytes(&bytes);
    let socket = Socket { slot: record.slot, generation: record.generation };
    let opened = open(socket)?;
    let tell = program_fifo::consume(slot, RECORD as u32);
    drop(guard);
    crate::stream::opened(socket);
    client.socket_command(socket, op::ACCEPTED, 0, 0);
    if tell {
        client.socket_command(listener, op::RX_SPACE, 0, 0);
    }
    Ok((opened, record))
}
