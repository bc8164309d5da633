//! Counters of a link.

/// Counters of a link.
///
/// Each packet that entered the link, and each copy, was delivered, was dropped, or is still on the
/// link. Therefore `entered + duplicated == delivered + dropped() + held`, with
/// [`Link::held`](crate::Link::held).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkStats {
    /// Packets that entered the link.
    pub entered: u64,
    /// Bytes that entered the link.
    pub entered_bytes: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Bytes delivered.
    pub delivered_bytes: u64,
    /// Copies of packets that the link created by duplication.
    pub duplicated: u64,
    /// Packets lost by the loss model.
    pub lost: u64,
    /// Packets marked with CE instead of being lost.
    pub marked: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets that were not delayed, so that they overtook earlier packets.
    pub reordered: u64,
    /// Packets dropped because they exceed the MTU.
    pub too_long: u64,
    /// Packets dropped because the queue and the link together contained
    /// [`LinkConfig::limit`](crate::LinkConfig::limit) packets.
    pub overlimit: u64,
    /// Packets dropped by the queueing discipline in front of the link.
    pub queue_dropped: u64,
}

impl LinkStats {
    /// Returns the total number of packets that were lost or dropped.
    pub fn dropped(&self) -> u64 {
        self.lost + self.too_long + self.overlimit + self.queue_dropped
    }

    /// Returns the names and values of all counters, in the order in which a packet passes them.
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
