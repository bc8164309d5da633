//! Requests that are not answered yet: what they wait for.

use std::collections::VecDeque;

use crate::ids::ChannelId;
use crate::mail::Query;

/// The source of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A process that has a [request](crate::shard::channels::Attached::request), by its channel and that one's
    /// [serial number](crate::shard::channels::Attached::serial).
    Process(ChannelId, u64),
    /// The same for what it [wants](crate::shard::channels::Attached::want).
    Want(ChannelId, u64),
    /// Another thread, for which the registry asks: `towpath ss`, for one. With the query's number.
    Query(u64, Query),
}

/// Sources of requests that have not been answered, each of them once.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Processes that may have asked, each of them once.
    pub heard: VecDeque<ChannelId>,
    /// Those of this round.
    pub now: VecDeque<Asker>,
    /// It has begun; it does not before the descriptors were looked at.
    pub has_begun: bool,
    /// Those that came later.
    pub next: VecDeque<Asker>,
    /// What [`Ends::begun`](crate::shard::ends::Ends::begun) was when this round began: the number of ends that have to be
    /// done before it is answered.
    pub ends: u64,
}

impl Rounds {
    pub fn is_empty(&self) -> bool {
        self.heard.is_empty() && self.now.is_empty() && self.next.is_empty()
    }

    /// A round is to begin, before which the descriptors have to be looked at.
    pub fn is_due(&self) -> bool {
        let asks = !self.now.is_empty() || !self.next.is_empty();
        asks && !self.has_begun
    }

    /// The descriptors are about to be looked at: a round of those who have asked by now may begin afterwards. Who has
    /// ended before they asked is found then.
    pub fn gather(&mut self) {
        if !self.has_begun {
            self.now.append(&mut self.next);
        }
    }
}
