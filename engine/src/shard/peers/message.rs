//! Messages between the shards of an engine. The shards' stacks exchange packets, ports and accept
//! queues themselves ([`Stack::shards`](towpath_stack::Stack::shards)). The messages of this module
//! are about connections whose listener is in another shard, and about the order of requests
//! (`ordering.rs`).
//!
//! ```text
//!  shard of the connection                shard of the listener
//!  unclaimed: (listener, generation)      children: the connection, and its record's end
//!  a process claims it  ─── Claimed ────► frees its place in the backlog
//!  it has ended         ─── Forgotten ──► removes it from the children
//!  resets it            ◄── End ───────── the listener closed before a process popped it
//!  unless claimed       ◄── EndUnclaimed  popped, and not claimed in time
//! ```

/// A message between two shards (event loops) of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerMessage {
    /// A process has accepted the connection `child` of `listener`, or no process will ever accept
    /// it. Connection and listener are given by slot and generation.
    Claimed { listener: (u32, u32), child: (u32, u32) },
    /// The slot of the connection `child` is free. Its place in the backlog of `listener` is
    /// already free, or will be freed by another message.
    Forgotten { listener: (u32, u32), child: (u32, u32) },
    /// Close the connection in this slot and with this generation, because no process will accept
    /// it.
    End(u32, u32),
    /// Reset the connection in this slot and with this generation, unless a process has reported
    /// that it has accepted it.
    EndUnclaimed(u32, u32),
    /// A connection has been closed, as requested by [`PeerMessage::End`].
    Ended,
    /// Reply with `Done` and this number after all earlier commands were executed (`ordering.rs`).
    AskRound(u64),
    /// Reply with `Done` and this number after all earlier messages of the sender to this shard
    /// (event loop) were handled.
    Echo(u64),
    /// Reply to [`PeerMessage::AskRound`] or [`PeerMessage::Echo`] with this number.
    Done(u64),
}

impl From<PeerMessage> for [u64; 3] {
    fn from(message: PeerMessage) -> Self {
        let both = |(one, other): (u32, u32)| u64::from(one) << 32 | u64::from(other);
        match message {
            PeerMessage::Claimed { listener, child } => [0, both(listener), both(child)],
            PeerMessage::Forgotten { listener, child } => [1, both(listener), both(child)],
            PeerMessage::End(slot, generation) => [2, both((slot, generation)), 0],
            PeerMessage::EndUnclaimed(slot, generation) => [3, both((slot, generation)), 0],
            PeerMessage::Ended => [4, 0, 0],
            PeerMessage::AskRound(number) => [5, number, 0],
            PeerMessage::Echo(number) => [6, number, 0],
            PeerMessage::Done(number) => [7, number, 0],
        }
    }
}

impl From<[u64; 3]> for PeerMessage {
    fn from([kind, pair, child]: [u64; 3]) -> Self {
        let (one, other) = ((pair >> 32) as u32, pair as u32);
        let (listener, child) = ((one, other), ((child >> 32) as u32, child as u32));
        match kind {
            0 => PeerMessage::Claimed { listener, child },
            1 => PeerMessage::Forgotten { listener, child },
            2 => PeerMessage::End(one, other),
            3 => PeerMessage::EndUnclaimed(one, other),
            4 => PeerMessage::Ended,
            5 => PeerMessage::AskRound(pair),
            6 => PeerMessage::Echo(pair),
            _ => PeerMessage::Done(pair),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_they_were() {
        let listener = (u32::MAX, 7);
        for word in [
            PeerMessage::Claimed { listener, child: (u32::MAX - 1, 4) },
            PeerMessage::Forgotten { listener, child: (3, u32::MAX) },
            PeerMessage::End(1, u32::MAX),
            PeerMessage::EndUnclaimed(u32::MAX, 2),
            PeerMessage::Ended,
            PeerMessage::AskRound(1 << 40),
            PeerMessage::Echo(u64::MAX),
            PeerMessage::Done(7),
        ] {
            assert_eq!(PeerMessage::from(<[u64; 3]>::from(word)), word);
        }
    }
}
