//! A shard among those of its engine: which it is, how it wakes the others, and what they tell each
//! other. Their stacks are one host and deal with packets, ports and accept queues themselves
//! ([`Stack::shards`](towpath_stack::Stack::shards)). Each [`Word`] is about the slot of a
//! connection in another shard than its listener, or about a round (`ordering.rs`).
//!
//! ```text
//!  shard of the connection                shard of the listener
//!  unclaimed: (listener, generation)      children: the connection, behind what record
//!  a process claims it  ─── Claimed ────► its place in the backlog is free
//!  it is gone           ─── Forgotten ──► nothing to be reset any more
//!  it is reset          ◄── End ───────── the listener is closed, nobody has popped it
//!  nobody claimed it?   ◄── EndUnclaimed  somebody popped it and told nobody in time
//! ```

/// Message from one shard to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// A process has the connection `child` of that listener, or nobody will.
    Claimed { listener: (u32, u32), child: (u32, u32) },
    /// The slot `child` is free. The place in the backlog is not: it is counted elsewhere, or the
    /// listener is closed.
    Forgotten { listener: (u32, u32), child: (u32, u32) },
    /// No process will accept the connection of that slot and generation.
    End(u32, u32),
    /// The same if no process has said by now that it has it.
    EndUnclaimed(u32, u32),
    /// As many connections are gone as there were words [`End`](Word::End) before.
    Ended,
    /// Asks for `Done` with this number when all earlier commands are dealt with (`ordering.rs`).
    AskRound(u64),
    /// Asks for `Done` when the sender's earlier words to this shard are dealt with.
    Echo(u64),
    /// See `AskRound` and `Echo`.
    Done(u64),
}

impl From<Word> for [u64; 3] {
    fn from(word: Word) -> Self {
        let both = |(one, other): (u32, u32)| u64::from(one) << 32 | u64::from(other);
        match word {
            Word::Claimed { listener, child } => [0, both(listener), both(child)],
            Word::Forgotten { listener, child } => [1, both(listener), both(child)],
            Word::End(slot, generation) => [2, both((slot, generation)), 0],
            Word::EndUnclaimed(slot, generation) => [3, both((slot, generation)), 0],
            Word::Ended => [4, 0, 0],
            Word::AskRound(number) => [5, number, 0],
            Word::Echo(number) => [6, number, 0],
            Word::Done(number) => [7, number, 0],
        }
    }
}

impl From<[u64; 3]> for Word {
    fn from([kind, pair, child]: [u64; 3]) -> Self {
        let (one, other) = ((pair >> 32) as u32, pair as u32);
        let (listener, child) = ((one, other), ((child >> 32) as u32, child as u32));
        match kind {
            0 => Word::Claimed { listener, child },
            1 => Word::Forgotten { listener, child },
            2 => Word::End(one, other),
            3 => Word::EndUnclaimed(one, other),
            4 => Word::Ended,
            5 => Word::AskRound(pair),
            6 => Word::Echo(pair),
            _ => Word::Done(pair),
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
            Word::Claimed { listener, child: (u32::MAX - 1, 4) },
            Word::Forgotten { listener, child: (3, u32::MAX) },
            Word::End(1, u32::MAX),
            Word::EndUnclaimed(u32::MAX, 2),
            Word::Ended,
            Word::AskRound(1 << 40),
            Word::Echo(u64::MAX),
            Word::Done(7),
        ] {
            assert_eq!(Word::from(<[u64; 3]>::from(word)), word);
        }
    }
}
