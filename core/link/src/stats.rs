//! Counters of a link.

/// Fate of the packets of a link.
///
/// Each packet that went in, and each copy, came out, was dropped once or is held:
/// `entered + duplicated == delivered + dropped() + held`, with [`Link::held`](crate::Link::held).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkStats {
    /// Packets that went in.
    pub entered: u64,
    /// Bytes that went in.
    pub entered_bytes: u64,
    /// Packets that came out.
    pub delivered: u64,
    /// Bytes that came out.
    pub delivered_bytes: u64,
    /// Copies that were made.
    pub duplicated: u64,
    /// Packets that the dice lost.
    pub lost: u64,
    /// Packets that got CE in the place of a loss.
    pub marked: u64,
    /// Packets of which a bit was turned over.
    pub corrupted: u64,
    /// Packets that were not delayed, so that they overtook others.
    pub reordered: u64,
    /// Packets that were longer than the MTU.
    pub too_long: u64,
    /// Packets that came when the link held as many as its limit.
    pub overlimit: u64,
    /// Packets that the discipline of the queue dropped.
    pub queue_dropped: u64,
}

impl LinkStats {
    /// Packets that were dropped, for any reason.
    pub fn dropped(&self) -> u64 {
        self.lost + self.too_long + self.overlimit + self.queue_dropped
    }

    /// Names and values, in the order of a packet's way.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let &Self {
            entered,
            entered_bytes,
            delivered,
            delivered_bytes,
            duplicated,
            lost,
            marked,
            corrupted,
            reordered,
            too_long,
            overlimit,
            queue_dropped,
        } = self;
        [
            ("entered", entered),
            ("entered_bytes", entered_bytes),
            ("too_long", too_long),
            ("overlimit", overlimit),
            ("queue_dropped", queue_dropped),
            ("duplicated", duplicated),
            ("lost", lost),
            ("marked", marked),
            ("corrupted", corrupted),
            ("reordered", reordered),
            ("delivered", delivered),
            ("delivered_bytes", delivered_bytes),
        ]
        .into_iter()
    }
}
