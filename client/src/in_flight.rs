//! Sockets on their way to another process, in a message of an AF_UNIX socket.
//!
//! The kernel keeps what lies in a message. Our engine does not see messages: without help, the
//! sender's close after the send would be the last. So the slot counts the messages that it is in,
//! and the engine keeps a socket that nobody holds for a while when there are any.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::{Client, Socket};

/// This process is about to send a socket away. Before the message: the receiver may be quick.
pub fn sent(client: &Client, socket: Socket) {
    // A socket that is gone has nothing to be counted.
    let _ = socket.change(client, |slot| slot.in_flight.fetch_add(1, AcqRel));
}

/// This process has received a socket and adopted it, or has not sent it after all.
pub fn landed(client: &Client, socket: Socket) {
    // A message may be looked at twice (MSG_PEEK): not below zero.
    let down = |slot: &towpath_shm::layout::Slot| {
        slot.in_flight.fetch_update(AcqRel, Acquire, |count| count.checked_sub(1))
    };
    let _ = socket.change(client, down);
}
