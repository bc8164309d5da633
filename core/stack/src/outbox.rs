//! Events that arise in calls of the owner, where no [`Host`] is at hand.

use std::collections::VecDeque;

use crate::host::{DatagramError, Host, SocketEvent};

/// Events and reports for the owner, in their order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    events: VecDeque<(u32, SocketEvent)>,
    /// Reports about datagrams ([`Host::datagram_error`]).
    reports: VecDeque<(u32, DatagramError)>,
    /// The previous turn put off visits of connections, so that bits of [`BufferEvents`] may still
    /// be set for bytes that the owner has read since.
    ///
    /// [`BufferEvents`]: crate::tcp::stream::BufferEvents
    pub visits_put_off: bool,
}

impl Outbox {
    /// Adds an event of the socket of `user`.
    pub fn push(&mut self, user: u32, event: SocketEvent) {
        self.events.push_back((user, event));
    }

    /// Adds a report about a datagram of the socket of `user`.
    pub fn report(&mut self, user: u32, report: DatagramError) {
        self.reports.push_back((user, report));
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.reports.is_empty()
    }

    /// Delivers all of them.
    pub fn deliver(&mut self, host: &mut impl Host) {
        while let Some((user, report)) = self.reports.pop_front() {
            host.datagram_error(user, report);
        }
        while let Some((user, event)) = self.events.pop_front() {
            host.event(user, event);
        }
    }
}
