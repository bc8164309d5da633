//! Sockets on their way to another process, in a message of an AF_UNIX socket.
//!
//! The kernel keeps descriptors that lie in a message, but our engine does not see messages.
//! Without help, the sender's close after the send would be the last. So the slot counts the
//! messages that it is in; the engine then keeps an unheld socket for a while.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::{Client, Socket};

/// Counts a socket that this process is about to send away. Call before the send: the receiver may
/// be quick.
pub fn sent(client: &Client, socket: Socket) {
    // A socket that is gone has nothing to be counted.
    let _ = socket.change(client, |slot| slot.in_flight.fetch_add(1, AcqRel));
}

/// Uncounts a socket that this process received and adopted, or did not send after all.
pub fn landed(client: &Client, socket: Socket) {
    // A message may be looked at twice (MSG_PEEK): not below zero.
    let down = |slot: &towpath_shm::layout::Slot| {
        slot.in_flight.fetch_update(AcqRel, Acquire, |count| count.checked_sub(1))
    };
    // A socket that is gone counts no messages.
    let _ = socket.change(client, down);
}
