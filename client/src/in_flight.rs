//! Sockets on their way to another process, in a message of an AF_UNIX socket.
//!
//! The kernel keeps a socket that lies in a message. Our engine does not see the message: without
//! help, the sender's close after the send would be the last. So the sender's close waits until the
//! receiver has adopted the socket, or long enough.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Duration;

use towpath_shm::layout::op;

use crate::wait::Deadline;
use crate::{Client, Lock, Socket};

/// How long a close waits for the receiver.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long of that it blocks: most receivers are waiting for the message.
const AT_ONCE: Duration = Duration::from_millis(20);
/// Between two looks.
const PAUSE_NS: i64 = 200_000;

static SENT: Lock<Vec<InFlight>> = Lock::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Clone, Copy)]
struct InFlight {
    socket: Socket,
    until: Deadline,
    /// This process has closed it since.
    closed: bool,
}

/// This process has sent a socket away.
pub fn sent(client: &Client, socket: Socket) {
    let Some(slot) = client.slot(socket) else {
        return;
    };
    slot.in_flight.fetch_add(1, AcqRel);
    let mut sent = SENT.lock();
    sent.retain(|entry| entry.socket != socket);
    sent.push(InFlight { socket, until: Deadline::after(PATIENCE), closed: false });
    ANY.store(true, Relaxed);
}

/// This process has received a socket and adopted it.
pub fn landed(client: &Client, socket: Socket) {
    if let Some(slot) = client.slot(socket) {
        // A message may have been sent before the slot was counted anew: not below zero.
        let _ = slot.in_flight.fetch_update(AcqRel, Acquire, |count| count.checked_sub(1));
    }
}

/// A fresh socket is not under way, whatever its slot was before.
pub(crate) fn opened(client: &Client, socket: Socket) {
    if let Some(slot) = client.slot(socket) {
        slot.in_flight.store(0, Relaxed);
    }
}

/// Tells the engine that this process holds a socket no longer, now or when it has landed.
pub fn close(client: &Client, socket: Socket) {
    if !defer(client, socket) {
        client.socket_command(socket, op::CLOSE, 0, 0);
    }
}

fn defer(client: &Client, socket: Socket) -> bool {
    close_landed(client);
    if !ANY.load(Relaxed) || !SENT.lock().iter().any(|entry| entry.socket == socket) {
        return false;
    }
    let until = Deadline::after(AT_ONCE);
    while has_landed(client, socket) == Some(false) && !until.left().is_zero() {
        let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: PAUSE_NS };
        let _ = rustix::thread::nanosleep(&pause);
    }
    let mut sent = SENT.lock();
    let Some(at) = sent.iter().position(|entry| entry.socket == socket) else {
        return false;
    };
    if has_landed(client, socket) == Some(false) {
        sent[at].closed = true;
        return true;
    }
    sent.swap_remove(at);
    false
}

/// None: the socket is gone altogether.
fn has_landed(client: &Client, socket: Socket) -> Option<bool> {
    client.slot(socket).map(|slot| slot.in_flight.load(Acquire) == 0)
}

/// Closes what has landed since its close. Called wherever sockets are made and waited for.
pub fn close_landed(client: &Client) {
    if !ANY.load(Relaxed) {
        return;
    }
    let mut sent = SENT.lock();
    sent.retain(|entry| {
        let over = entry.until.left().is_zero() || has_landed(client, entry.socket) != Some(false);
        if over && entry.closed {
            client.socket_command(entry.socket, op::CLOSE, 0, 0);
        }
        !over
    });
    ANY.store(!sent.is_empty(), Relaxed);
}
