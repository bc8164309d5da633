//! Tracks SYNs of the program that are not answered yet.

use std::collections::VecDeque;
use std::net::SocketAddr;

use towpath_stack::PendingId;

use crate::client::Client;
use crate::idle::{Class, Evicted, IdleTable};
use crate::slab::SlabKey;

/// SYNs of the program that are not answered yet. If a host socket is connecting for a SYN, its
/// flow is stored with the SYN.
#[derive(Debug)]
pub(super) struct PendingSyns {
    /// Unanswered SYNs in the order of their last transmission.
    connecting: IdleTable<PendingId, Option<SlabKey>>,
    /// SYNs for which no flow was created yet, in order of arrival.
    waiting: VecDeque<Syn>,
}

/// SYN of the program, with its source and destination.
#[derive(Debug)]
pub(super) struct Syn {
    pub(super) pending: PendingId,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// Index of the only class of entries in the idle table.
const CONNECTING: usize = 0;

impl PendingSyns {
    /// Creates a table for at most `max` unanswered SYNs. The inner stack has the same limit.
    pub(super) fn new(max: usize) -> Self {
        // Use an infinite timeout. Entries are removed when the inner stack reports that it has
        // dropped a SYN.
        let class = Class { idle_ns: u64::MAX, owner: 0, max, worth: 0 };
        Self { connecting: IdleTable::new(&[class]), waiting: VecDeque::new() }
    }

    pub(super) fn enqueue(&mut self, now_ns: u64, client: Client, syn: Syn) {
        self.connecting.insert(now_ns, CONNECTING, client, syn.pending, None);
        self.waiting.push_back(syn);
    }

    /// Returns the number of SYNs for which no flow was created yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn pop(&mut self) -> Option<Syn> {
        self.waiting.pop_front()
    }

    /// Stores the flow that was created for a SYN.
    pub(super) fn attach(&mut self, pending: PendingId, key: SlabKey) {
        if let Some(id) = self.connecting.find(&pending)
            && let Some((_, connecting)) = self.connecting.get_mut(id)
        {
            *connecting = Some(key);
        }
    }

    /// Returns the flows that were created for unanswered SYNs.
    pub(super) fn flows(&self) -> Vec<SlabKey> {
        self.connecting.iter().filter_map(|(_, key)| *key).collect()
    }

    /// Records that the program has retransmitted a SYN.
    pub(super) fn touch(&mut self, now_ns: u64, pending: PendingId) {
        if let Some(id) = self.connecting.find(&pending) {
            self.connecting.touch(now_ns, id);
        }
    }

    /// Removes a SYN that was answered or refused, and returns its flow.
    pub(super) fn remove(&mut self, pending: PendingId) -> Option<Option<SlabKey>> {
        let id = self.connecting.find(&pending)?;
        self.connecting.remove(id).map(|(_, key)| key)
    }

    /// Evicts an unanswered SYN to make room for a SYN of `client`.
    pub(super) fn evict(&mut self, client: Client) -> Option<(PendingId, Option<SlabKey>)> {
        let Evicted { key, value, .. } = self.connecting.evict(CONNECTING, client)?;
        Some((key, value))
    }
}
