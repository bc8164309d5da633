//! Requests to the engine in shared memory, and the wait for their answers.

use towpath_shm::control::{ControlReply, Request, call};

use super::{Client, ShardLink};
use crate::driver::Who;
use crate::syscall::SignalsBlocked;
use crate::{Error, wait};

impl Client {
    /// Sends the engine a request that passes no descriptors, and waits for the answer.
    ///
    /// # Errors
    /// `Refused` with the errno of the engine; `Dead` if the engine has ended.
    pub fn call(&self, request: &Request) -> Result<ControlReply, Error> {
        let end = self.end(match request.call {
            // A request for a socket may go to any shard, because sockets are distributed among the
            // shards.
            call::SOCKET => return self.open(request),
            call::SOCKETS | call::SOCKET_ROWS | call::SOCKET_FIGURES | call::TALLY => request.a,
            _ => request.slot,
        });
        self.call_at(end, request)
    }

    pub(super) fn call_at(
        &self,
        end: &ShardLink,
        request: &Request,
    ) -> Result<ControlReply, Error> {
        self.exclusively(end, || {
            let number = towpath_ring::ask(&end.channel, request);
            // An engine in this process need not be woken: this thread runs it while it waits.
            if self.driver().is_none() {
                self.ring(end);
                let answered = || towpath_ring::answer_to(&end.channel, number);
                if let Some(reply) = wait::look_for_answer(self, answered) {
                    return Ok(reply);
                }
            }
            self.wait_for_answer(end, number)
        })
    }

    /// Makes a request to a shard (engine thread) while no other thread of this process can do so.
    /// Signals are blocked.
    pub(super) fn exclusively(
        &self,
        end: &ShardLink,
        ask: impl FnOnce() -> Result<ControlReply, Error>,
    ) -> Result<ControlReply, Error> {
        if self.is_dead() {
            return Err(Error::Dead);
        }
        let _signals = SignalsBlocked::new();
        if self.is_abandoned() {
            return Err(Error::Forked);
        }
        let _calls = end.calls.lock();
        match ask() {
            Ok(reply) if reply.errno == 0 => Ok(reply),
            Ok(reply) => Err(Error::Refused(reply.errno)),
            Err(error) => {
                if error == Error::Dead {
                    self.set_dead();
                }
                Err(error)
            }
        }
    }

    fn wait_for_answer(&self, end: &ShardLink, number: u32) -> Result<ControlReply, Error> {
        loop {
            let turns = self.driver().is_some_and(|driver| driver.is_free_for(Who::Asks));
            let (word, expected) = if turns {
                towpath_ring::answer_word(&end.channel)
            } else {
                towpath_ring::await_answer(&end.channel)
            };
            if let Some(reply) = towpath_ring::answer_to(&end.channel, number) {
                // Check whether the engine has ended, and ignore the result. The end may have woken
                // only this thread; `is_dead` then wakes all others.
                self.is_dead();
                return Ok(reply);
            }
            if self.is_dead() {
                return Err(Error::Dead);
            }
            if !turns && self.driver().is_some() {
                // Another thread runs the engine. Wake that thread, because it may sleep.
                self.ring(end);
            }
            if wait::sleep_on(self, word, expected, !turns) && !self.check_alive() {
                return Err(Error::Dead);
            }
        }
    }
}
