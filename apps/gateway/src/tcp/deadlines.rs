//! Deadlines of TCP flows.

use std::collections::BTreeSet;

use crate::flow::{Flow, FlowPhase};
use crate::limits::FAILED_WAIT_NS;
use crate::slab::SlabKey;

/// Deadlines of TCP flows, sorted by time. A flow has a deadline in these states:
///
/// - open, but the host connection has failed: for the program to read the remaining bytes;
/// - connecting a client of a published port: for the program to answer the SYN;
/// - negotiating: for the upstream server to answer;
/// - connecting to a nameserver: for this nameserver to answer, unless it is the last one;
/// - connecting, while host addresses change: for the next check of the source address.
///
/// Removing a flow removes its deadline, so the set is never larger than the flow table.
#[derive(Debug, Default)]
pub(super) struct FlowDeadlines(BTreeSet<(u64, SlabKey)>);

impl FlowDeadlines {
    /// Sets or clears the deadline of a flow, in ns.
    pub(super) fn set(&mut self, key: SlabKey, flow: &mut Flow, due: Option<u64>) {
        self.remove(key, flow);
        flow.expires_ns = due;
        self.0.extend(due.map(|due| (due, key)));
    }

    /// Starts the deadline for the program to read remaining bytes after the host connection has
    /// failed. Applies only to open flows, because flows in other phases end at once.
    pub(super) fn note_failure(&mut self, now_ns: u64, key: SlabKey, flow: &mut Flow) {
        let is_open = matches!(flow.phase, FlowPhase::Open(_));
        if flow.has_failed() && flow.expires_ns.is_none() && is_open {
            self.set(key, flow, Some(now_ns + FAILED_WAIT_NS));
        }
    }

    /// Removes the deadline of a flow.
    pub(super) fn remove(&mut self, key: SlabKey, flow: &Flow) {
        if let Some(due) = flow.expires_ns {
            self.0.remove(&(due, key));
        }
    }

    /// Removes and returns a flow whose deadline has passed.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<SlabKey> {
        self.0.first().filter(|(due, _)| *due <= now_ns)?;
        self.0.pop_first().map(|(_, key)| key)
    }

    /// Returns the earliest deadline in ns.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.0.first().map(|(due, _)| *due)
    }
}
