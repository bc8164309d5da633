//! Counts the free descriptors that a request needs, and decides which requests have to wait for
//! free ones.
//!
//! A process can execute another program at any time, whose sockets need descriptors. So no process
//! may attach if it would take the last free descriptors. Descriptors queued to be closed by
//! another thread ([`crate::registry::closer`]) count as free. A request that needs them waits
//! until they are closed.

use rustix::io::fcntl_dupfd_cloexec;
use towpath_shm::control::{Request, call};
use towpath_shm::{Fd, opened};

use crate::registry::Registry;

/// Returns the number of descriptors that a process image needs in the engine. The number includes
/// its memory, both ends of the notification socket to the process, and one notification descriptor
/// for each shard.
fn image(shards: usize) -> usize {
    3 + shards
}

/// Returns the number of descriptors that a new channel needs: both ends of its control socket, and
/// two process images. During exec, the old image is kept until the new one exists.
fn channel(shards: usize) -> usize {
    2 + 2 * image(shards)
}

impl Registry {
    /// Returns whether the engine can open `descriptors` more descriptors. Tests this by opening
    /// that many, because it is unknown how many are already open, for example by devices.
    pub(crate) fn has_room(&self, descriptors: usize) -> bool {
        let take = |_| opened(|| fcntl_dupfd_cloexec(&self.blank, 0)).map(Fd::from);
        (0..descriptors).map(take).collect::<Result<Vec<_>, _>>().is_ok()
    }

    /// Returns whether enough descriptors for existing processes remain after a new channel was
    /// created.
    pub(crate) fn has_room_for_a_channel(&self) -> bool {
        self.has_room(channel(self.orders.len()))
    }

    /// Returns the number of descriptors that the reply to a request needs.
    pub(crate) fn needed(&self, request: &Request) -> usize {
        match request.call {
            // If a HELLO has several parts, the process receives its descriptors with the last one.
            call::HELLO if request.b != 0 => 0,
            call::HELLO => image(self.orders.len()),
            call::CLONE => channel(self.orders.len()),
            // A single free descriptor is enough, because each token is closed after it was sent.
            // If there are fewer than requested, the process requests the remaining ones again.
            call::TOKENS => 1,
            _ => 0,
        }
    }
}
