//! Commands, which the engine does not answer.

use std::time::Duration;

use towpath_shm::control::{Request, call};
use towpath_shm::layout::{Command, Plain, op};

use super::{Client, ShardLink};
use crate::Socket;
use crate::driver::Who;

/// Pause between two attempts to put a command into a full ring.
const RING_FULL_PAUSE: Duration = Duration::from_micros(50);
/// Number of attempts between two checks that the engine is alive.
const RING_FULL_TRIES: u32 = 1000;

impl Client {
    /// Puts a command about a socket into the ring, and wakes the engine if it sleeps. Returns
    /// no error, since the next call notices that the engine has ended. Waits while the ring is
    /// full. In a signal handler that interrupted a command, makes a request instead.
    pub fn command(&self, command: &Command) {
        self.command_at(self.end(command.slot), command);
    }

    /// Sends a command about the process to every shard.
    pub fn command_to_all(&self, command: &Command) {
        self.links.iter().for_each(|end| self.command_at(end, command));
    }

    /// Sends a command as [`Self::command`], but returns after the engine has executed it.
    pub(crate) fn command_answered(&self, command: &Command) {
        self.command_by_call(self.end(command.slot), command);
    }

    /// Sends a command about a socket. `op` is one of [`towpath_shm::layout::op`], where the
    /// meaning of `a` and `b` is described.
    pub fn socket_command(&self, socket: Socket, op: u32, a: u32, b: u64) {
        self.command(&Command { op, slot: socket.slot, generation: socket.generation, a, b, c: 0 });
    }

    /// Sets an option of a socket, a [`towpath_shm::layout::setting`]. The caller has validated the
    /// value.
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
                // In a forked child the ring is the parent's, and the parent sends the command
                // itself. No handler forks while the lock is held.
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
            // If a signal interrupts the pause, the next attempt is made earlier.
            let _ = rustix::thread::nanosleep(&pause);
        }
    }

    /// Sends a command as a request. Used by a signal handler that interrupted a call with the
    /// ring's lock.
    #[cold]
    fn command_by_call(&self, end: &ShardLink, command: &Command) {
        let bytes = command.as_bytes();
        let mut request =
            Request { call: call::COMMAND, len: bytes.len() as u32, ..Request::default() };
        request.data[..bytes.len()].copy_from_slice(bytes);
        // Commands have no answer. The caller's next wait or request notices that the engine has
        // ended.
        let _ = self.call_at(end, &request);
    }
}
