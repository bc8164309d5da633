//! The neighbour that the transport confirmed last: what is said with each acknowledgement is heeded once a second.

use core::time::Duration;

use towpath_tcp::Instant;

use super::neighbor::Key;

/// A neighbour counts as reachable for half a minute (RFC 4861 §10), so that this is often enough to say so again.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(1);

/// The neighbour that was confirmed last, and when.
#[derive(Debug)]
pub(super) struct Confirmed {
    key: Key,
    at: Instant,
}

impl Confirmed {
    pub(super) fn new(now: Instant, key: Key) -> Self {
        Self { key, at: now }
    }

    /// Whether it was `key`, and not long ago.
    #[inline]
    pub(super) fn is_recent(&self, now: Instant, key: Key) -> bool {
        self.key == key && now.since(self.at) < CONFIRM_INTERVAL
    }
}
