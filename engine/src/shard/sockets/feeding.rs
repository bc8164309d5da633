//! Provides send buffer memory to sockets whose programs wait for it, in the order of their
//! requests. Tries a limited number of sockets per iteration of the event loop.

use std::time::Duration;

use towpath_ring::{Attach, SocketSend};
use towpath_shm::layout::{event, flags};

use crate::shard::net::Net;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::awaiting_memory::LOCK_AGAIN;

/// Maximum time until the next sweep, which frees memory of idle sockets, while a program waits for
/// memory.
const SWEEP_WITHIN: Duration = Duration::from_millis(20);
/// Interval between attempts to provide memory while none is free. Memory becomes free when a
/// program reads, or by the sweep of idle sockets.
const MEMORY_AGAIN: Duration = Duration::from_millis(5);
/// Maximum interval between attempts to take a lock whose holder is stopped. The interval doubles
/// after each attempt, so that a program waits at most twice as long as the lock is held.
const LOCK_AGAIN_MAX: Duration = Duration::from_millis(100);
/// Maximum number of sockets for which memory is tried per iteration of the event loop, for each of
/// the two queues.
const TRIES_A_TURN: usize = 64;
/// Number of sockets without success after which a turn stops trying to provide memory. The number
/// is above one, because the next socket may need less memory.
const REFUSALS_A_TURN: usize = 8;

impl Sockets {
    /// Provides send buffer memory to a socket. Queues the socket if no memory is free, or if a
    /// thread holds its lock.
    pub(crate) fn attach_memory(&mut self, net: &mut Net, slot: u32) {
        if self.starved.queued.contains(slot) {
            return;
        }
        let attached = self.try_memory(net, slot);
        if attached == Attach::Busy {
            self.starved.try_locked_soon(self.now);
        }
        if attached != Attach::Done {
            self.counters.starved += 1;
            self.sweep.at = self.sweep.at.min(self.now + SWEEP_WITHIN);
        }
    }

    /// Tries to provide send buffer memory to a socket. If that fails, adds the socket to the queue
    /// for the cause.
    fn try_memory(&mut self, net: &mut Net, slot: u32) -> Attach {
        self.counters.memory_tries += 1;
        self.counters.work(1);
        let attached = self.attach_send(net, slot);
        let queue = match attached {
            Attach::Done => return attached,
            Attach::Busy => &mut self.starved.locked,
            Attach::NoMemory => &mut self.starved.memory,
        };
        queue.push_back(slot);
        self.starved.queued.insert(slot);
        attached
    }

    fn try_again(&mut self, net: &mut Net, slot: u32) -> Attach {
        self.starved.queued.remove(slot);
        self.try_memory(net, slot)
    }

    /// Provides send buffer memory to the queued sockets whose programs wait for it.
    pub(crate) fn give_memory(&mut self, net: &mut Net) {
        let now = self.now;
        if now >= self.starved.locked_at {
            let all = self.starved.locked.len();
            for _ in 0..all.min(TRIES_A_TURN) {
                let Some(slot) = self.starved.locked.pop_front() else { break };
                self.try_again(net, slot);
            }
            self.starved.locked_at = now + self.starved.locked_pause;
            // If more sockets wait than were tried, try the next ones soon. Otherwise locked ones
            // at the front of the queue would delay them.
            let longer = (self.starved.locked_pause * 2).min(LOCK_AGAIN_MAX);
            self.starved.locked_pause = if all <= TRIES_A_TURN { longer } else { LOCK_AGAIN };
        }
        if now >= self.starved.memory_at {
            let more = self.feed_hungry(net);
            self.starved.memory_at = if more { now } else { now + MEMORY_AGAIN };
        }
    }

    /// Provides memory to sockets in the queue `memory`. Returns true if more memory is free and
    /// some sockets were not tried yet.
    fn feed_hungry(&mut self, net: &mut Net) -> bool {
        let tries = self.starved.memory.len();
        let mut refusals = 0;
        for _ in 0..tries.min(TRIES_A_TURN) {
            let Some(slot) = self.starved.memory.pop_front() else { return false };
            match self.try_again(net, slot) {
                Attach::Done => {}
                Attach::Busy => self.starved.try_locked_soon(self.now),
                Attach::NoMemory => refusals += 1,
            }
            if refusals == REFUSALS_A_TURN {
                return false;
            }
        }
        tries > TRIES_A_TURN
    }
}

impl Sockets {
    /// Attaches memory to a socket's send buffer, or enlarges the buffer.
    pub(crate) fn attach_send(&mut self, net: &mut Net, slot: u32) -> Attach {
        let default = self.buffers.datagram;
        let windows = self.windows.clone();
        let Some(entry) = self.slots.get_mut(slot) else {
            return Attach::Done;
        };
        let send = if entry.is_datagram() {
            let limit = match entry.rare().sndbuf {
                0 => default,
                sndbuf => sndbuf,
            };
            let make = || towpath_ring::EngineSend::new(&windows, slot, limit, limit).for_records();
            Some(entry.owned().tx.get_or_insert_with(make))
        } else {
            entry.id.and_then(|id| net.stack.send_buffer(id).and_then(SocketSend::slot))
        };
        // A socket without a send FIFO is not connected, so it needs no memory.
        let Some(send) = send else { return Attach::Done };
        let had = send.is_attached();
        let attached = match send.attach() {
            Attach::Done if had => match send.enlarge() {
                // The socket already has memory, so a failure to enlarge it is not an error.
                Attach::NoMemory => Attach::Done,
                enlarged => enlarged,
            },
            attached => attached,
        };
        let was_starved =
            self.slots.get(slot).is_some_and(|entry| entry.flags & flags::TX_AWAITS_MEMORY != 0);
        match attached {
            Attach::Done => {
                self.slots.set_flags(slot, 0, flags::TX_AWAITS_MEMORY);
                self.watch_memory(slot);
                self.slots.post(slot, event::TX);
            }
            // Set the flag, so that nonblocking writes return EAGAIN and poll(2) reports the socket
            // as not writable.
            Attach::NoMemory if !was_starved => {
                self.slots.set_flags(slot, flags::TX_AWAITS_MEMORY, 0);
                self.slots.post(slot, event::TX);
            }
            Attach::NoMemory | Attach::Busy => {}
        }
        attached
    }
}
