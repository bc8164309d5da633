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
    /// Those for whom a round has been asked.
    pub now: VecDeque<Asker>,
    /// It is over in all shards: they are answered.
    pub is_over: bool,
    /// Those that came later.
    pub next: VecDeque<Asker>,
    /// A round is to begin here, before which the descriptors have to be looked at.
    pub is_called: bool,
    /// It has begun here.
    pub has_begun: bool,
    /// What [`Ends::begun`](crate::shard::ends::Ends::begun) was then: the number of ends that have to be done before it is
    /// over here.
    pub ends: u64,
    /// Where the rounds of all shards are called: the first has it to do.
    pub caller: Caller,
}

/// Which shards a round is for, a bit each. One at a time goes on in all of them.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    /// They want the next one.
    pub wanting: u16,
    /// They wanted the one that goes on.
    pub waiting: u16,
    /// In these it is not over.
    pub busy: u16,
}

impl Rounds {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.heard.is_empty() && self.now.is_empty() && self.next.is_empty()
    }

    /// There is something to do for it here, other shards apart.
    pub fn has_work(&self) -> bool {
        let answers = self.is_over && !self.now.is_empty();
        !self.heard.is_empty() || answers || self.has_begun || self.is_due()
    }

    /// A round is to begin, or to be asked for, before which the descriptors have to be looked at.
    pub fn is_due(&self) -> bool {
        let asks = self.now.is_empty() && !self.next.is_empty();
        asks || (self.is_called && !self.has_begun)
    }

    /// The descriptors are about to be looked at: a round may begin afterwards for those who have asked by now. Who has
    /// ended before they asked is found then. True: one is to be asked for.
    pub fn gather(&mut self) -> bool {
        if !self.now.is_empty() || self.next.is_empty() {
            return false;
        }
        self.now.append(&mut self.next);
        self.is_over = false;
        true
    }
}
