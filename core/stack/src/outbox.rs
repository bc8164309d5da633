//! Queue for events that arise in calls without access to the [`Host`].

use std::collections::VecDeque;

use crate::host::{DatagramError, Host, SocketEvent};

/// Queued events and reports for the owner.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    events: VecDeque<(u32, SocketEvent)>,
    /// Reports about datagrams ([`Host::datagram_error`]).
    reports: VecDeque<(u32, DatagramError)>,
    /// Set if the previous turn deferred visits of connections. Then bits of [`BufferEvents`] may
    /// still be set for bytes that the owner has read since.
    ///
    /// [`BufferEvents`]: crate::tcp::stream::BufferEvents
    pub visits_put_off: bool,
}

impl Outbox {
    /// Queues an event of the socket of `user`.
    pub fn push(&mut self, user: u32, event: SocketEvent) {
        self.events.push_back((user, event));
    }

    /// Queues a report about a datagram of the socket of `user`.
    pub fn report(&mut self, user: u32, report: DatagramError) {
        self.reports.push_back((user, report));
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.reports.is_empty()
    }

    /// Delivers all queued reports and events.
    pub fn deliver(&mut self, host: &mut impl Host) {
        while let Some((user, report)) = self.reports.pop_front() {
            host.datagram_error(user, report);
        }
        while let Some((user, event)) = self.events.pop_front() {
            host.event(user, event);
        }
    }
}
