//! Identifiers of processes: [`ChannelId`] and [`Family`].

/// ID of a process's channel, reused after the channel was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChannelId(pub u32);

impl ChannelId {
    /// Returns the channel number for programs and lock words. Numbers begin at 1, because 0 in a
    /// lock word means unlocked.
    pub fn number(self) -> u32 {
        self.0 + 1
    }

    /// Returns the channel with a [number](Self::number), or `None` for 0.
    pub fn of_number(number: u32) -> Option<Self> {
        number.checked_sub(1).map(Self)
    }
}

/// Number of a family: a process started by an attached process, with all its descendants. An
/// attached process itself, such as the shell that `towpath run` started, is in no family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Family(pub u64);
