//! How processes are known.

/// Names a channel while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChannelId(pub u32);

impl ChannelId {
    /// As lock words and programs have it, where 0 is nobody's.
    pub fn number(self) -> u32 {
        self.0 + 1
    }

    /// The channel of a [number](Self::number). None: 0.
    pub fn of_number(number: u32) -> Option<Self> {
        number.checked_sub(1).map(Self)
    }
}

/// A process that was made by an attached, uncloned one (a shell, say, that the run began with),
/// and all its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Family(pub u64);
