//! Room for descriptors: what the answers to requests need, and which requests wait for some.
//!
//! A process in the engine can become another program at any time, which is not to be left without
//! sockets. So no process is let in that would take the last descriptors. Descriptors that were
//! given up are closed by another thread (see [`crate::registry::closer`]), and count as room. A
//! request that needs them is answered when they are closed.

use rustix::io::fcntl_dupfd_cloexec;
use towpath_shm::control::{Request, call};
use towpath_shm::{Fd, opened};

use crate::registry::Registry;

/// Descriptors of a process image: its memory, both ends of the bell that we ring, those that it
/// rings, one for each shard.
fn image(shards: usize) -> usize {
    3 + shards
}

/// Descriptors of a new channel: both ends of its control socket, and two images. The process may
/// become another image at any time, and its old one goes only after the new one is there.
fn channel(shards: usize) -> usize {
    2 + 2 * image(shards)
}

impl Registry {
    /// Whether this process can open `descriptors` more. Found by opening them: the limit alone
    /// does not tell how many are open already, by the devices for instance.
    pub(crate) fn has_room(&self, descriptors: usize) -> bool {
        let take = |_| opened(|| fcntl_dupfd_cloexec(&self.blank, 0)).map(Fd::from);
        (0..descriptors).map(take).collect::<Result<Vec<_>, _>>().is_ok()
    }

    /// Whether another channel leaves room for what those that are there may need.
    pub(crate) fn has_room_for_a_channel(&self) -> bool {
        self.has_room(channel(self.orders.len()))
    }

    /// Descriptors that an answer takes, beyond those that are there.
    pub(crate) fn needed(&self, request: &Request) -> usize {
        match request.call {
            // A HELLO in several parts gets its descriptors with the last.
            call::HELLO if request.b != 0 => 0,
            call::HELLO => image(self.orders.len()),
            call::CLONE => channel(self.orders.len()),
            // The tokens are closed when they are sent. Room for one is enough: the process asks
            // again for the others.
            call::TOKENS => 1,
            _ => 0,
        }
    }
}
