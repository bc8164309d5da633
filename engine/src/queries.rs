//! Queries about sockets, counters and the net.

use towpath_stack::net::Traffic;

use crate::net::NetState;
use crate::query::{ListingProgress, Portion, Query, QueryTarget};
use crate::report::{Counters, SocketEntry};

/// Query of [`crate::Remote::sockets`].
#[derive(Debug, Clone, Default)]
pub(crate) struct SocketsQuery {
    progress: ListingProgress,
}

impl Query for SocketsQuery {
    type Part = Vec<SocketEntry>;
    type Answer = Vec<SocketEntry>;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        let entries = shard.list_sockets(&mut self.progress);
        if self.progress.is_done { Portion::Last(entries) } else { Portion::More(entries) }
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        parts.into_iter().flatten().collect()
    }
}

/// Query of [`crate::Remote::counters`], for the part of the shards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountersQuery;

impl Query for CountersQuery {
    type Part = Counters;
    type Answer = Counters;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        Portion::Last(shard.counters())
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        let mut all = Counters::default();
        parts.into_iter().for_each(|part| all.add(part));
        all
    }
}

/// Query for the number of unsent bytes and packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnsentQuery;

impl Query for UnsentQuery {
    type Part = u64;
    type Answer = u64;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        Portion::Last(shard.unsent())
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        parts.iter().sum()
    }
}

/// Query of [`crate::Remote::net`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct NetQuery;

/// Part of the net's state from one shard.
#[derive(Debug)]
pub(crate) enum NetPart {
    /// The full state, with the traffic of the first shard.
    First(Box<NetState>),
    /// Traffic of a further shard.
    Traffic(Vec<Traffic>),
}

impl Query for NetQuery {
    type Part = NetPart;
    /// `None` if the first shard has not answered.
    type Answer = Option<NetState>;

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        let now = shard.now();
        Portion::Last(match shard.number() {
            0 => NetPart::First(Box::new(NetState::of(shard.net(), now))),
            _ => NetPart::Traffic(shard.net().traffic().to_vec()),
        })
    }

    fn join(parts: Vec<Self::Part>) -> Self::Answer {
        let (mut state, mut others) = (None, Vec::new());
        for part in parts {
            match part {
                NetPart::First(first) => state = Some(*first),
                NetPart::Traffic(traffic) => others.push(traffic),
            }
        }
        let mut state = state?;
        others.iter().for_each(|traffic| state.add(traffic));
        Some(state)
    }
}

/// Waits until every shard has executed all earlier commands, and uses the latest changes of the
/// net.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SettleQuery;

impl Query for SettleQuery {
    type Part = ();
    type Answer = ();

    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part> {
        shard.net().catch_up();
        Portion::Last(())
    }

    fn join(_: Vec<Self::Part>) -> Self::Answer {}
}
