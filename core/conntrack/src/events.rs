//! Counters of a connection tracker, and a log of the latest added and removed flows.

use std::collections::VecDeque;

use crate::flow::FlowInfo;
use crate::table::FlowRemoval;

/// Maximum number of events (added and removed flows) that are kept in memory for readers.
pub const EVENTS_MAX: usize = 1024;

/// Counters of a connection tracker since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrackerCounters {
    /// Flows added to the table.
    pub created: u64,
    /// Flows removed because no packet arrived within their timeout.
    pub expired: u64,
    /// Flows that were removed because the table was full, to make room for a new flow. No source
    /// had a large part of the table.
    pub evicted: u64,
    /// Flows that were removed for the same reason, and whose source had a large part of the table.
    pub source_evicted: u64,
    /// Flows removed by the operator, or because the router lost the address that they were
    /// translated to.
    pub deleted: u64,
    /// Packets that belong to no known flow and cannot open a new one.
    pub invalid: u64,
    /// Packets dropped because a rule requires that their source is translated, but they belong to
    /// no flow.
    pub untranslatable: u64,
    /// Packets dropped because they would open a flow, the table is full, and no flow in it may be
    /// evicted.
    pub table_full: u64,
    /// Packets dropped because they would open a flow, and their source address may have no more
    /// flows. The bound is the maximum, or seven times as many as new flows can obtain.
    pub source_full: u64,
    /// Packets dropped because no free port was found for their translated source.
    pub ports_exhausted: u64,
    /// Packets dropped because masquerading needs an address of their outgoing interface, which has
    /// none.
    pub no_address: u64,
    /// ICMP errors about a packet of a flow, passed on to the sender of that packet.
    pub errors_related: u64,
    /// Fragments without a transport header that arrived before the first fragment of their packet.
    /// Their flow was unknown.
    pub fragments_unknown: u64,
}

impl TrackerCounters {
    /// Returns all counters as pairs of name and value.
    #[must_use]
    pub fn list(&self) -> [(&'static str, u64); 13] {
        let &Self {
            created,
            expired,
            evicted,
            source_evicted,
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
            ("source_evicted", source_evicted),
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

/// Change of the flow table that an event reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEventKind {
    /// A flow was added to the table.
    New,
    /// A flow was removed from the table, for this reason.
    Destroyed(FlowRemoval),
}

/// Event: a flow was added to the table or removed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEvent {
    /// Sequence number of the event, one higher than that of the previous event.
    pub number: u64,
    /// Whether the flow was added or removed.
    pub kind: FlowEventKind,
    /// Description of the flow at the time of the event.
    pub flow: FlowInfo,
}

/// The latest events, at most [`EVENTS_MAX`].
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

    /// Returns the stored events with number `from` or higher.
    pub(crate) fn since(&self, from: u64) -> impl Iterator<Item = &FlowEvent> {
        self.kept.iter().filter(move |event| event.number >= from)
    }

    /// Returns the number that the next event will get.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }
}
