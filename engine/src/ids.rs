//! Identifiers of processes: [`ChannelId`] and [`Family`].

/// ID of a process's channel, reused after the channel was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChannelId(pub u32);

impl ChannelId {
    /// Returns the channel number that programs and lock words use. There, 0 means unlocked, so
    /// numbers begin at 1.
    pub fn number(self) -> u32 {
        self.0 + 1
    }

    /// Returns the channel with a [number](Self::number), or `None` for 0.
    pub fn of_number(number: u32) -> Option<Self> {
        number.checked_sub(1).map(Self)
    }
}

/// Number of a family: a process that an attached process has created, with all its descendants. An
/// attached process itself, such as the shell that began the run, is in no family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Family(pub u64);
