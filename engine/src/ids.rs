//! Identifiers of processes.

/// Id of a channel. Reused after the channel is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChannelId(pub u32);

impl ChannelId {
    /// Returns the number that lock words and programs use, where 0 means unlocked.
    pub fn number(self) -> u32 {
        self.0 + 1
    }

    /// Returns the channel of a [number](Self::number), or `None` for 0.
    pub fn of_number(number: u32) -> Option<Self> {
        number.checked_sub(1).map(Self)
    }
}

/// A process that an attached process has created, with all its descendants. An attached process
/// itself is in no family, such as the shell with which the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Family(pub u64);
