//! Counts sockets in flight: sent to another process in a message of an AF_UNIX socket, and not
//! received yet.
//!
//! The kernel keeps the descriptors in a message, but the engine does not see such messages. If the
//! sender closed its descriptor after the send, the engine would close the socket. Therefore the
//! socket's shared state counts the messages that contain it. The engine keeps a counted socket for
//! a while even if no process holds it.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::{Client, Socket};

/// Increments the in-flight count of a socket that this process is about to send. Call it before
/// the send, because the receiver may be faster than this thread.
pub fn sent(client: &Client, socket: Socket) {
    // Ignore an error: the slot of a closed socket counts no messages.
    let _ = socket.change(client, |slot| slot.in_flight.fetch_add(1, AcqRel));
}

/// Decrements the in-flight count of a socket that this process has received and adopted, or failed
/// to send.
pub fn landed(client: &Client, socket: Socket) {
    // Do not decrement below zero: with MSG_PEEK, one message may be received twice.
    let down = |slot: &towpath_shm::layout::Slot| {
        slot.in_flight.fetch_update(AcqRel, Acquire, |count| count.checked_sub(1))
    };
    // Ignore an error: the slot of a closed socket counts no messages.
    let _ = socket.change(client, down);
}
