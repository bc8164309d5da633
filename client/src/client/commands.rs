//! Commands to the engine, which it does not answer.

use std::time::Duration;

use towpath_shm::control::{Request, call};
use towpath_shm::layout::{Command, Plain, op};

use super::{Client, ShardLink};
use crate::Socket;
use crate::driver::Who;

/// Pause between two attempts to put a command into a ring that is full.
const RING_FULL_PAUSE: Duration = Duration::from_micros(50);
/// Number of attempts to put a command into a full ring between two checks that the engine is
/// alive.
const RING_FULL_TRIES: u32 = 1000;

impl Client {
    /// Puts a command about a socket into the ring to the engine, and wakes the engine if it
    /// sleeps. Waits while the ring is full. A signal handler that interrupted a command sends a
    /// request instead. Returns no error, because the next call notices if the engine has ended.
    pub fn command(&self, command: &Command) {
        self.command_at(self.end(command.slot), command);
    }

    /// Sends a command about this process to every shard of the engine.
    pub fn command_to_all(&self, command: &Command) {
        self.links.iter().for_each(|end| self.command_at(end, command));
    }

    /// Sends a command like [`Self::command`], but returns only after the engine has executed it.
    pub(crate) fn command_answered(&self, command: &Command) {
        self.command_by_call(self.end(command.slot), command);
    }

    /// Sends a command about a socket. `op` is one of [`towpath_shm::layout::op`], where the
    /// meanings of `a` and `b` are documented.
    pub fn socket_command(&self, socket: Socket, op: u32, a: u32, b: u64) {
        self.command(&Command { op, slot: socket.slot, generation: socket.generation, a, b, c: 0 });
    }

    /// Notifies the engine of an option's value. `setting` is one of
    /// [`towpath_shm::layout::setting`]. The caller has validated the value.
    pub fn setting(&self, socket: Socket, setting: u32, value: u64) {
        self.socket_command(socket, op::SETTING, setting, value);
    }

    fn command_at(&self, end: &ShardLink, command: &Command) {
        let mut tries = 0;
        loop {
            let full = {
                let Some(_commands) = end.commands.lock_unless_mine() else {
                    return self.command_by_call(end, command);
                };
                // In a forked child, do nothing: the ring belongs to the parent, which sends the
                // command itself. No signal handler can fork below, because the lock is held.
                if self.is_abandoned() {
                    return;
                }
                towpath_ring::push_command(&end.channel, command).is_err()
            };
            self.ring(end);
            if !full || self.is_dead() {
                return;
            }
            tries += 1;
            if tries % RING_FULL_TRIES == 0 && !self.check_alive() {
                return;
            }
            if let Some(mut driver_lock) = self.driver().and_then(|driver| driver.take(Who::Waits))
            {
                driver_lock.turn(None, || true);
                continue;
            }
            let pause =
                rustix::time::Timespec { tv_sec: 0, tv_nsec: RING_FULL_PAUSE.as_nanos() as i64 };
            // Ignore an interruption by a signal, after which the next attempt is made earlier.
            let _ = rustix::thread::nanosleep(&pause);
        }
    }

    /// Sends a command as a request, which the engine answers. Used by a signal handler that
    /// interrupted a holder of the ring's lock.
    #[cold]
    fn command_by_call(&self, end: &ShardLink, command: &Command) {
        let bytes = command.as_bytes();
        let mut request =
            Request { call: call::COMMAND, len: bytes.len() as u32, ..Request::default() };
        request.data[..bytes.len()].copy_from_slice(bytes);
        // Ignore an error: commands have no answer, and the caller's next wait or request notices
        // that the engine has ended.
        let _ = self.call_at(end, &request);
    }
}
