//! Accepts connections from the queue of a listener.

use std::sync::atomic::Ordering::Acquire;

use towpath_ring::program_fifo;
use towpath_shm::layout::{AcceptRecord, Kind, Plain, op};

use crate::access::lock_input;
use crate::state::take_error;
use crate::{Client, Error, Socket};

/// Accepts the next connection in a listener's queue without waiting. `open` creates the
/// connection's descriptor; if it fails, the connection stays in the queue. `undo` closes the
/// descriptor if a signal handler has accepted the connection first.
///
/// # Errors
/// - `WouldBlock`: no connection waits;
/// - `NotListening`: the socket does not listen;
/// - `Refused`: the listener's error, which the call clears;
/// - `Dead`: the engine (the network stack) has ended, or another thread has closed the listener;
/// - errors of `open`.
pub fn accept<T>(
    client: &Client,
    listener: Socket,
    open: impl Fn(Socket) -> Result<T, Error>,
    undo: impl Fn(T),
) -> Result<(T, AcceptRecord), Error> {
    const RECORD: usize = size_of::<AcceptRecord>();
    if client.is_dead() {
        return Err(Error::Dead);
    }
    let slot = client.slot(listener).ok_or(Error::Dead)?;
    if Kind::from_u32(slot.kind.load(Acquire)) != Some(Kind::Listener) {
        return Err(Error::NotListening);
    }
    let guard = lock_input(client, listener, slot).ok_or(Error::Dead)?;
    let (opened, record, tell) = loop {
        let start = program_fifo::start(slot);
        let mut bytes = [0; RECORD];
        if program_fifo::peek(client.region(), slot, 0, &mut bytes) < RECORD {
            take_error(slot)?;
            return Err(Error::WouldBlock);
        }
        let record = AcceptRecord::from_bytes(&bytes);
        let socket = Socket { slot: record.slot, generation: record.generation };
        let opened = open(socket)?;
        match program_fifo::consume_from(slot, start, RECORD as u32) {
            Some(tell) => break (opened, record, tell),
            None => undo(opened),
        }
    };
    drop(guard);
    let socket = Socket { slot: record.slot, generation: record.generation };
    client.socket_command(socket, op::ACCEPTED, 0, 0);
    if tell {
        client.socket_command(listener, op::RX_SPACE, 0, 0);
    }
    Ok((opened, record))
}
