//! Counters of a tracker, and its latest events.

use std::collections::VecDeque;

use crate::flow::FlowInfo;
use crate::table::FlowRemoval;

/// Maximum number of events that are kept for readers.
pub const EVENTS_MAX: usize = 1024;

/// Counters of a tracker since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrackerCounters {
    /// Flows added.
    pub created: u64,
    /// Flows removed because no packet arrived within their timeout.
    pub expired: u64,
    /// Flows removed because a new one needed their place.
    pub evicted: u64,
    /// Flows removed by the operator, or because their address is gone.
    pub deleted: u64,
    /// Packets that belong to no flow and open none.
    pub invalid: u64,
    /// Invalid packets dropped because they cannot be translated.
    pub untranslatable: u64,
    /// Packets dropped because the table is full of flows that are not evicted.
    pub table_full: u64,
    /// Packets dropped because their source has the maximum number of flows.
    pub source_full: u64,
    /// Packets dropped because no port was free for their translation.
    pub ports_exhausted: u64,
    /// Packets dropped because their outgoing interface has no address to translate to.
    pub no_address: u64,
    /// ICMP errors passed on to the sender of a flow.
    pub errors_related: u64,
    /// Later fragments that arrived before the first fragment of their packet.
    pub fragments_unknown: u64,
}

impl TrackerCounters {
    /// Returns all counters with their names.
    #[must_use]
    pub fn list(&self) -> [(&'static str, u64); 12] {
        let &Self {
            created,
            expired,
            evicted,
            deleted,
            invalid,
            untranslatable,
            table_full,
            source_full,
            ports_exhausted,
            no_address,
            errors_related,
            fragments_unknown,
        } = self;
        [
            ("created", created),
            ("expired", expired),
            ("evicted", evicted),
            ("deleted", deleted),
            ("invalid", invalid),
            ("untranslatable", untranslatable),
            ("table_full", table_full),
            ("source_full", source_full),
            ("ports_exhausted", ports_exhausted),
            ("no_address", no_address),
            ("errors_related", errors_related),
            ("fragments_unknown", fragments_unknown),
        ]
    }
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEventKind {
    /// A flow was added.
    New,
    /// A flow was removed.
    Destroyed(FlowRemoval),
}

/// Beginning or end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEvent {
    /// Number of the event, one more than that of the event before.
    pub number: u64,
    /// Kind.
    pub kind: FlowEventKind,
    /// The flow at this time.
    pub flow: FlowInfo,
}

/// The latest events.
#[derive(Debug)]
pub(crate) struct FlowEvents {
    kept: VecDeque<FlowEvent>,
    next: u64,
}

impl FlowEvents {
    pub(crate) fn new() -> Self {
        Self { kept: VecDeque::with_capacity(EVENTS_MAX), next: 1 }
    }

    pub(crate) fn push(&mut self, kind: FlowEventKind, flow: FlowInfo) {
        if self.kept.len() == EVENTS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(FlowEvent { number: self.next, kind, flow });
        self.next += 1;
    }

    /// Returns the kept events from number `from` on.
    pub(crate) fn since(&self, from: u64) -> impl Iterator<Item = &FlowEvent> {
        self.kept.iter().filter(move |event| event.number >= from)
    }

    /// Returns the number of the next event.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }
}
