//! Counts the free descriptors that a request needs, and decides which requests have to wait for
//! free ones.
//!
//! A process can execute another program at any time, whose sockets need descriptors. So no process
//! may attach that would take the last ones. Descriptors queued to be closed by another thread
//! ([`crate::registry::closer`]) count as free. A request that needs them waits until they are
//! closed.

use rustix::io::fcntl_dupfd_cloexec;
use towpath_shm::control::{Request, call};
use towpath_shm::{Fd, opened};

use crate::registry::Registry;

/// Returns the number of descriptors of a process image: its memory, both ends of the notification
/// to the process, and one notification to each shard.
fn image(shards: usize) -> usize {
    3 + shards
}

/// Returns the number of descriptors of a new channel: both ends of its control socket, and two
/// images. During exec the old image is kept until the new one exists.
fn channel(shards: usize) -> usize {
    2 + 2 * image(shards)
}

impl Registry {
    /// Returns whether this process can open `descriptors` more. We test this by opening that many.
    /// The limit alone does not say how many are open already, for example by devices.
    pub(crate) fn has_room(&self, descriptors: usize) -> bool {
        let take = |_| opened(|| fcntl_dupfd_cloexec(&self.blank, 0)).map(Fd::from);
        (0..descriptors).map(take).collect::<Result<Vec<_>, _>>().is_ok()
    }

    /// Returns whether a new channel leaves enough descriptors for existing processes.
    pub(crate) fn has_room_for_a_channel(&self) -> bool {
        self.has_room(channel(self.orders.len()))
    }

    /// Returns the number of descriptors that a reply needs.
    pub(crate) fn needed(&self, request: &Request) -> usize {
        match request.call {
            // A HELLO in several parts receives its descriptors with the last part.
            call::HELLO if request.b != 0 => 0,
            call::HELLO => image(self.orders.len()),
            call::CLONE => channel(self.orders.len()),
            // Tokens are closed after they are sent. A single free descriptor is enough, because
            // the process requests the remaining ones again.
            call::TOKENS => 1,
            _ => 0,
        }
    }
}
