//! SYNs of the program that are not decided about.

use std::collections::VecDeque;
use std::net::SocketAddr;

use towpath_stack::PendingId;

use crate::client::Client;
use crate::idle::{Class, Evicted, IdleTable};
use crate::slab::SlabKey;

/// SYNs of the program that are not decided about, each with the flow whose host is connecting for
/// it.
#[derive(Debug)]
pub(super) struct PendingSyns {
    /// In the order of their last repetition.
    connecting: IdleTable<PendingId, Option<SlabKey>>,
    /// SYNs that have no flow yet.
    waiting: VecDeque<Syn>,
}

/// A connection that the program asks for.
#[derive(Debug)]
pub(super) struct Syn {
    pub(super) pending: PendingId,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// All SYNs are of one class.
const CONNECTING: usize = 0;

impl PendingSyns {
    /// At most `max` of them, as the inner stack has.
    pub(super) fn new(max: usize) -> Self {
        // The inner stack says when a SYN was not repeated for too long.
        let class = Class { idle_ns: u64::MAX, owner: 0, max, worth: 0 };
        Self { connecting: IdleTable::new(&[class]), waiting: VecDeque::new() }
    }

    pub(super) fn enqueue(&mut self, now_ns: u64, client: Client, syn: Syn) {
        self.connecting.insert(now_ns, CONNECTING, client, syn.pending, None);
        self.waiting.push_back(syn);
    }

    /// Number of SYNs that wait for a flow.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn pop(&mut self) -> Option<Syn> {
        self.waiting.pop_front()
    }

    /// Notes the flow of a SYN.
    pub(super) fn attach(&mut self, pending: PendingId, key: SlabKey) {
        if let Some(id) = self.connecting.find(&pending)
            && let Some((_, connecting)) = self.connecting.get_mut(id)
        {
            *connecting = Some(key);
        }
    }

    /// Flows of the SYNs.
    pub(super) fn flows(&self) -> Vec<SlabKey> {
        self.connecting.iter().filter_map(|(_, key)| *key).collect()
    }

    /// The program repeats a SYN.
    pub(super) fn touch(&mut self, now_ns: u64, pending: PendingId) {
        if let Some(id) = self.connecting.find(&pending) {
            self.connecting.touch(now_ns, id);
        }
    }

    /// Removes a SYN that is decided about, and returns its flow.
    pub(super) fn remove(&mut self, pending: PendingId) -> Option<Option<SlabKey>> {
        let id = self.connecting.find(&pending)?;
        self.connecting.remove(id).map(|(_, key)| key)
    }

    /// Removes a SYN in favour of one of `client`.
    pub(super) fn evict(&mut self, client: Client) -> Option<(PendingId, Option<SlabKey>)> {
        let Evicted { key, value, .. } = self.connecting.evict(CONNECTING, client)?;
        Some((key, value))
    }
}
