//! Messages between the shards of an engine. The stacks of the shards are one host and exchange
//! packets, ports and accept queues themselves ([`Stack::shards`](towpath_stack::Stack::shards)).
//! So each message is about a connection in another shard than its listener, or about a round
//! (`ordering.rs`).
//!
//! ```text
//!  shard of the connection                shard of the listener
//!  unclaimed: (listener, generation)      children: the connection, and the end of its record
//!  a process claims it  ─── Claimed ────► its place in the backlog is free
//!  it is gone           ─── Forgotten ──► nothing to be reset any more
//!  it is reset          ◄── End ───────── the listener is closed, no process popped it
//!  is it unclaimed?     ◄── EndUnclaimed  a process popped it and did not claim it in time
//! ```

/// Message from one shard to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerMessage {
    /// A process has claimed the connection `child` of that listener, or none will.
    Claimed { listener: (u32, u32), child: (u32, u32) },
    /// The slot `child` is free. The place in the backlog is not: it is counted elsewhere, or the
    /// listener is closed.
    Forgotten { listener: (u32, u32), child: (u32, u32) },
    /// No process will accept the connection of that slot and generation.
    End(u32, u32),
    /// Resets the connection unless a process has claimed it by now.
    EndUnclaimed(u32, u32),
    /// Confirms that a connection has ended which [`PeerMessage::End`] named before.
    Ended,
    /// Asks for `Done` with this number when all earlier commands are dealt with (`ordering.rs`).
    AskRound(u64),
    /// Asks for `Done` when the sender's earlier messages to this shard are dealt with.
    Echo(u64),
    /// See `AskRound` and `Echo`.
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
