//! SYNs that the program has not yet accepted, refused or ignored.

use std::collections::{HashMap, VecDeque};

use towpath_direct::PendingSyn;
use towpath_stack::PendingId;

use super::client::{ClientKey, ClientShares};
use super::wakers::Wakers;

/// SYNs that await the program's decision. The stack limits their number.
#[derive(Debug, Default)]
pub(super) struct SynTable {
    /// Source addresses of all SYNs that await a decision, by SYN.
    sources: HashMap<PendingId, ClientKey>,
    /// SYNs that the listener has not yet returned to the program, the oldest first.
    queue: VecDeque<PendingSyn>,
    per_client: ClientShares,
    /// Tasks that wait for the listener to return a SYN.
    pub(super) acceptors: Wakers,
}

impl SynTable {
    pub(super) fn len(&self) -> usize {
        self.sources.len()
    }

    pub(super) fn count_of(&self, client: ClientKey) -> usize {
        self.per_client.used(client)
    }

    pub(super) fn push(&mut self, syn: PendingSyn) {
        let client = ClientKey::of(syn.remote.ip());
        self.sources.insert(syn.id, client);
        self.per_client.add(client, 1);
        self.queue.push_back(syn);
    }

    /// Returns the oldest SYN that the listener has not yet returned to the program.
    pub(super) fn pop(&mut self) -> Option<PendingSyn> {
        self.queue.pop_front()
    }

    /// Removes a SYN for which the program has decided. Returns false if the stack has already
    /// dropped the SYN.
    pub(super) fn decide(&mut self, id: PendingId) -> bool {
        let client = self.sources.remove(&id);
        if let Some(client) = client {
            self.per_client.sub(client, 1);
        }
        client.is_some()
    }

    /// Removes a SYN that the stack has dropped before the program's decision.
    pub(super) fn forget(&mut self, id: PendingId) -> bool {
        // The stack drops the oldest SYN first, so it is found near the front of the queue.
        if let Some(at) = self.queue.iter().position(|syn| syn.id == id) {
            self.queue.remove(at);
        }
        self.decide(id)
    }
}
