//! Streams of users: transfers their bytes in turns, and ends them.

use super::{State, UserCrowd};
use crate::plan::Shape;

impl UserCrowd<'_> {
    /// Transfers bytes of the stream whose turn it is. Returns whether more bytes can be
    /// transferred.
    pub fn stream_some(&mut self) -> bool {
        let Some(user) = self.streams.next_turn(&mut self.users) else { return false };
        let now = self.clock.now();
        let it = &mut self.users[user as usize];
        if it.state == State::Open && now >= self.window.traffic {
            let is_over = now >= self.window.end;
            let moved = self.streams.turn(it, user, is_over, &mut self.buffer);
            if self.window.has(now) {
                self.tally.sent += moved.datagrams;
                self.tally.bytes_sent += moved.sent;
                self.tally.bytes_received += moved.received;
            }
            match moved.result {
                Ok(()) => {}
                Err(_) if is_over => self.end_stream(user),
                Err(trouble) => self.fail(user, &trouble),
            }
        }
        self.streams.has_turns()
    }

    /// Queues all streams for their first transfer when the traffic starts.
    pub fn begin_streams(&mut self) {
        for (user, it) in self.users.iter_mut().enumerate() {
            self.streams.take_turn(it, user as u32);
        }
    }

    /// Shuts down the sending direction of upload streams. The server closes the connection after
    /// it has read all bytes.
    pub fn finish_streams(&mut self) {
        if self.plan.shape != Shape::StreamUp || self.is_udp() {
            return;
        }
        for user in 0..self.users.len() as u32 {
            let it = &mut self.users[user as usize];
            if it.state == State::Open && it.finish_sending().is_ok() {
                self.streams.closing += 1;
                self.streams.take_turn(it, user);
            }
        }
    }

    fn end_stream(&mut self, user: u32) {
        self.drop_connection(user);
        self.streams.closing = self.streams.closing.saturating_sub(1);
        self.streams.last_end = self.clock.now();
    }
}
