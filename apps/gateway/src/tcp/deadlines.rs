//! Times at which flows have waited for long enough.

use std::collections::BTreeSet;

use crate::flow::{Flow, FlowPhase};
use crate::limits::FAILED_WAIT_NS;
use crate::slab::SlabKey;

/// Flows that wait for something, by the time at which they have waited for long enough:
///
/// - open flows whose host failed, for the program to take the earlier bytes;
/// - clients, for an answer to their SYN;
/// - negotiations with an upstream server;
/// - connections to a nameserver, unless it is the last to be tried;
/// - connections that the host makes while its addresses change.
///
/// A flow that is removed is taken out, so that there are never more entries than flows.
#[derive(Debug, Default)]
pub(super) struct FlowDeadlines(BTreeSet<(u64, SlabKey)>);

impl FlowDeadlines {
    /// Replaces the deadline of a flow.
    pub(super) fn set(&mut self, key: SlabKey, flow: &mut Flow, due: Option<u64>) {
        self.remove(key, flow);
        flow.expires_ns = due;
        self.0.extend(due.map(|due| (due, key)));
    }

    /// Starts the program's time to take what is left of an open flow whose host failed. In other
    /// phases the flow ends at once.
    pub(super) fn note_failure(&mut self, now_ns: u64, key: SlabKey, flow: &mut Flow) {
        let is_open = matches!(flow.phase, FlowPhase::Open(_));
        if flow.has_failed() && flow.expires_ns.is_none() && is_open {
            self.set(key, flow, Some(now_ns + FAILED_WAIT_NS));
        }
    }

    /// Removes a flow that goes.
    pub(super) fn remove(&mut self, key: SlabKey, flow: &Flow) {
        if let Some(due) = flow.expires_ns {
            self.0.remove(&(due, key));
        }
    }

    /// Takes a flow that is due.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<SlabKey> {
        self.0.first().filter(|(due, _)| *due <= now_ns)?;
        self.0.pop_first().map(|(_, key)| key)
    }

    /// Time at which the next flow is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.0.first().map(|(due, _)| *due)
    }
}
