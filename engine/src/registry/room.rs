//! Computes how many descriptor numbers a request needs, and decides which requests must wait for
//! free ones.
//!
//! A process can execute another program at any time, whose connection to the engine needs
//! descriptors. Therefore a process is not attached if it would take the last free numbers.
//! Descriptors that another thread is about to close ([`crate::registry::closer`]) count as free. A
//! request that needs them waits until they are closed.

use rustix::io::fcntl_dupfd_cloexec;
use towpath_shm::control::{Request, call};
use towpath_shm::{Fd, opened};

use crate::registry::Registry;

/// Returns the number of descriptors that the engine needs for a program. The number includes its
/// memory, both ends of the notification socket, and one notification descriptor per shard.
fn image(shards: usize) -> usize {
    3 + shards
}

/// Returns the number of descriptors that the engine needs for a channel (connection of a process).
/// The number includes both ends of the control socket, and descriptors of two programs. During
/// exec, the old program is kept until the new one has attached.
fn channel(shards: usize) -> usize {
    2 + 2 * image(shards)
}

impl Registry {
    /// Returns whether this process can open `descriptors` more descriptors. Tries to open them,
    /// because it is unknown how many are already open, for example by devices.
    pub(crate) fn has_room(&self, descriptors: usize) -> bool {
        let take = |_| opened(|| fcntl_dupfd_cloexec(&self.blank, 0)).map(Fd::from);
        (0..descriptors).map(take).collect::<Result<Vec<_>, _>>().is_ok()
    }

    /// Returns whether enough descriptors for existing processes remain after a new channel was
    /// created.
    pub(crate) fn has_room_for_a_channel(&self) -> bool {
        self.has_room(channel(self.orders.len()))
    }

    /// Returns the number of descriptors that the engine needs to handle a request.
    pub(crate) fn needed(&self, request: &Request) -> usize {
        match request.call {
            // If this HELLO (first request of a program) is not the last part, no descriptor is
            // needed. The process receives its descriptors with the last one.
            call::HELLO if request.b != 0 => 0,
            call::HELLO => image(self.orders.len()),
            call::CLONE => channel(self.orders.len()),
            // A single free descriptor is enough, because each token is closed after sending. If
            // descriptors run out, the process requests the remaining tokens again.
            call::TOKENS => 1,
            _ => 0,
        }
    }
}
