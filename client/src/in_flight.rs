//! Counts sockets in flight: they were sent to another process in a message of an AF_UNIX socket,
//! which has not been received.
//!
//! The kernel keeps the descriptors in a message open, but the engine (the network stack) does not
//! see such messages. If the sender closed its descriptor after the send, the engine would close
//! the socket. Therefore the socket's shared state counts the messages that contain it. The engine
//! keeps such a socket for some time even if no process has it open.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::{Client, Socket};

/// Increments the in-flight count of a socket that this process is about to send. Call it before
/// the send. Otherwise the receiver could decrement the count first.
pub fn sent(client: &Client, socket: Socket) {
    // Ignore an error: the slot of a closed socket counts no messages.
    let _ = socket.change(client, |slot| slot.in_flight.fetch_add(1, AcqRel));
}

/// Decrements the in-flight count of a socket, which this process has received, or has failed to
/// send.
pub fn landed(client: &Client, socket: Socket) {
    // Do not decrement below zero: with MSG_PEEK, one message may be received twice.
    let down = |slot: &towpath_shm::layout::Slot| {
        slot.in_flight.fetch_update(AcqRel, Acquire, |count| count.checked_sub(1))
    };
    // Ignore an error: the slot of a closed socket counts no messages.
    let _ = socket.change(client, down);
}
