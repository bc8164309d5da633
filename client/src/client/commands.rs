//! Commands, which the engine does not answer.

use std::time::Duration;

use towpath_shm::control::{Request, call};
use towpath_shm::layout::{Command, Plain, op};

use super::{Client, ShardLink};
use crate::Socket;
use crate::driver::Who;

/// Between two tries to put a command into a full ring.
const RING_FULL_PAUSE: Duration = Duration::from_micros(50);
/// Tries between two looks whether the engine still lives.
const RING_FULL_TRIES: u32 = 1000;

impl Client {
    /// Puts a command about a socket into the ring and rings the engine if it sleeps. No answer
    /// comes, and there is no error: when the engine is gone, the next call finds that out. When
    /// the ring is full it waits for the engine. In a signal handler that interrupts a command it
    /// is a request.
    pub fn command(&self, command: &Command) {
        self.command_at(self.end(command.slot), command);
    }

    /// The same for a command that is about the process: every shard gets it.
    pub fn command_to_all(&self, command: &Command) {
        self.links.iter().for_each(|end| self.command_at(end, command));
    }

    /// [`Self::command`], which the engine has carried out when this returns.
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
                // The ring is the parent's, who sends the command, too. No handler on top of the
                // lock forks.
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
            // Interrupted or not, the ring is tried again.
            let _ = rustix::thread::nanosleep(&pause);
        }
    }

    /// From a signal handler, on top of a call that is at the ring.
    #[cold]
    fn command_by_call(&self, end: &ShardLink, command: &Command) {
        let bytes = command.as_bytes();
        let mut request =
            Request { call: call::COMMAND, len: bytes.len() as u32, ..Request::default() };
        request.data[..bytes.len()].copy_from_slice(bytes);
        // Commands have no answer: if the engine is gone, the caller's next wait or request finds
        // that.
        let _ = self.call_at(end, &request);
    }
}
