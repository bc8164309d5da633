//! Reads and writes option values that are stored in bits of the socket's shared state or in the
//! engine.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_shm::control::{ControlReply, call};
use towpath_shm::layout::flags;

use crate::Result;
use crate::handle::OpenSocket;

pub(super) fn set_bit(handle: &OpenSocket, bit: u32, on: bool) {
    if on {
        handle.slot.option_bits.fetch_or(bit, Relaxed);
    } else {
        handle.slot.option_bits.fetch_and(!bit, Relaxed);
    }
}

pub(super) fn is_bound(handle: &OpenSocket) -> bool {
    handle.slot.flags.load(Acquire) & flags::BOUND != 0
}

pub(super) fn engine_get(handle: &OpenSocket, level: i32, name: i32) -> Result<Vec<u8>> {
    let reply = handle.call(call::GET_OPTION, |request| {
        request.a = level as u32;
        request.b = name as u32;
    })?;
    Ok(reply.payload().to_vec())
}

/// Reads an option from the engine. The request contains a number on which the answer depends: the
/// offset of a part, or the size of the buffer.
pub(super) fn engine_get_part(
    handle: &OpenSocket,
    level: i32,
    name: i32,
    n: u32,
) -> Result<ControlReply> {
    handle.call(call::GET_OPTION, |request| {
        request.a = level as u32;
        request.b = name as u32;
        request.len = 4;
        request.data[..4].copy_from_slice(&n.to_ne_bytes());
    })
}

pub(super) fn engine_set(handle: &OpenSocket, level: i32, name: i32, bytes: &[u8]) -> Result<()> {
    handle
        .call(call::SET_OPTION, |request| {
            request.a = level as u32;
            request.b = name as u32;
            request.len = bytes.len() as u32;
            request.data[..bytes.len()].copy_from_slice(bytes);
        })
        .map(drop)
}
