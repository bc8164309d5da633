//! Queue of events that occur in calls without access to the [`Host`].

use std::collections::VecDeque;

use crate::host::{DatagramError, Host, SocketEvent};

/// Events and reports that wait to be delivered to the owner of the stack.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    events: VecDeque<(u32, SocketEvent)>,
    /// Reports about datagrams, for [`Host::datagram_error`].
    reports: VecDeque<(u32, DatagramError)>,
    /// Whether the previous turn of the event loop postponed some connections to the current turn.
    /// If so, bits of [`BufferEvents`] may still be set for bytes that the owner has read since.
    ///
    /// [`BufferEvents`]: crate::tcp::stream::BufferEvents
    pub visits_put_off: bool,
}

impl Outbox {
    /// Queues an event of the socket `user`.
    pub fn push(&mut self, user: u32, event: SocketEvent) {
        self.events.push_back((user, event));
    }

    /// Queues a report about a datagram of the socket `user`.
    pub fn report(&mut self, user: u32, report: DatagramError) {
        self.reports.push_back((user, report));
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.reports.is_empty()
    }

    /// Delivers all queued reports and events to the owner.
    pub fn deliver(&mut self, host: &mut impl Host) {
        while let Some((user, report)) = self.reports.pop_front() {
            host.datagram_error(user, report);
        }
        while let Some((user, event)) = self.events.pop_front() {
            host.event(user, event);
        }
    }
}
