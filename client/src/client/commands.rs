//! Commands, which the engine does not answer.

use std::time::Duration;

use towpath_shm::control::{Request, call};
use towpath_shm::layout::{Command, Plain, op};

use super::{Client, ShardLink};
use crate::Socket;
use crate::driver::Who;

/// Pause between two tries to put a command into a full ring.
const RING_FULL_PAUSE: Duration = Duration::from_micros(50);
/// Number of tries between two checks that the engine is alive.
const RING_FULL_TRIES: u32 = 1000;

impl Client {
    /// Puts a command about a socket into the ring, and wakes the engine if it sleeps. Has no
    /// answer and no error, since the next call notices that the engine has ended. Waits for the
    /// engine while the ring is full. A signal handler that interrupts a command makes a request
    /// instead.
    pub fn command(&self, command: &Command) {
        self.command_at(self.end(command.slot), command);
    }

    /// Sends a command about the process to every shard.
    pub fn command_to_all(&self, command: &Command) {
        self.links.iter().for_each(|end| self.command_at(end, command));
    }

    /// As [`Self::command`], but returns after the engine has carried out the command.
    pub(crate) fn command_answered(&self, command: &Command) {
        self.command_by_call(self.end(command.slot), command);
    }

    /// [`Self::command`] about a socket. `op` is one of [`towpath_shm::layout::op`], which gives
    /// the meaning of `a` and `b`.
    pub fn socket_command(&self, socket: Socket, op: u32, a: u32, b: u64) {
        self.command(&Command { op, slot: socket.slot, generation: socket.generation, a, b, c: 0 });
    }

    /// Sends the engine an option whose value has been checked: a [`towpath_shm::layout::setting`].
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
                // The ring is the parent's, and the parent sends the command, too. No handler on
                // top of the lock forks.
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
            // An interrupted pause only tries the ring earlier.
            let _ = rustix::thread::nanosleep(&pause);
        }
    }

    /// Sends a command by a request, for a signal handler that interrupted a call at the ring.
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
