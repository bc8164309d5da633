//! Opens sockets, which are requested from the engine one by one or in advance.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use towpath_shm::control::{ControlReply, Request};
use towpath_shm::layout::{Command, op};

use super::{Client, ShardLink};
use crate::{Error, Socket};

impl Client {
    /// Opens a socket on one of the shards. The shards are not chosen in a recurring order, because
    /// programs may open sockets in recurring patterns. If a shard is full, the next one opens the
    /// socket.
    pub(super) fn open(&self, request: &Request) -> Result<ControlReply, Error> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        // Choose the shard by multiples of the golden ratio (Knuth, "The Art of Computer
        // Programming" 6.4), which distributes successive sockets evenly.
        let place = u64::from(turn.wrapping_mul(0x9e37_79b9));
        let first = ((place * self.links.len() as u64) >> 32) as usize;
        let shards = self.links.len();
        let mut answer = self.open_at(&self.links[first % shards], request);
        for next in 1..shards {
            const FULL: i32 = Errno::NOBUFS.raw_os_error();
            if !matches!(answer, Err(Error::Refused(errno)) if errno == FULL) {
                break;
            }
            answer = self.open_at(&self.links[(first + next) % shards], request);
        }
        answer
    }

    fn open_at(&self, end: &ShardLink, request: &Request) -> Result<ControlReply, Error> {
        let (family, protocol) = (request.a, request.b);
        if let Some(Socket { slot, generation }) = end.ahead.take(family, protocol) {
            // Do not return the socket if the engine has ended, or if this is a forked child, whose
            // parent owns the socket.
            return match self.is_abandoned() {
                true => Err(Error::Forked),
                false if self.is_dead() => Err(Error::Dead),
                false => Ok(ControlReply { slot, generation, ..ControlReply::default() }),
            };
        }
        let slot = end.ahead.wanted(family, protocol);
        let spawned = self.spawned.load(Ordering::Acquire);
        let reply = self.call_at(end, &Request { slot, ..*request })?;
        for pair in reply.payload().chunks_exact(8) {
            let word =
                |at: usize| pair[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
            let further = Socket { slot: word(0), generation: word(4) };
            if let Err(socket) = end.ahead.put(family, protocol, further) {
                self.socket_command(socket, op::CLOSE, 0, 0);
            }
        }
        if self.spawned.load(Ordering::Acquire) != spawned {
            self.give_back_ahead();
        }
        Ok(reply)
    }

    /// Tells the engine that all programs being spawned have started or failed. Programs that have
    /// started do not inherit sockets that this process opens from now on.
    pub fn spawned(&self) {
        self.command_to_all(&Command { op: op::SPAWNED, ..Command::default() });
        // The spawned programs may have inherited the sockets that were opened in advance, so close
        // them. The counter makes concurrent calls close the sockets that they have requested but
        // not received.
        self.spawned.fetch_add(1, Ordering::AcqRel);
        self.give_back_ahead();
    }

    fn give_back_ahead(&self) {
        for socket in self.links.iter().flat_map(|end| end.ahead.take_all()) {
            self.socket_command(socket, op::CLOSE, 0, 0);
        }
    }
}
