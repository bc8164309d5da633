//! Feature bits of a virtio network device (virtio 1.2 §5.1.3 and §6) and of vhost-user.

use towpath_pool::{Checksum, Meta, Protocol};
use towpath_virtio::{HEADER_LEN, HEADER_LEN_LEGACY};

const CSUM: u64 = 1 << 0;
const GUEST_CSUM: u64 = 1 << 1;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const GUEST_ECN: u64 = 1 << 9;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const HOST_ECN: u64 = 1 << 13;
const MERGEABLE: u64 = 1 << 15;
const ANY_LAYOUT: u64 = 1 << 27;
const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;

/// Features that the device offers. VHOST_F_LOG_ALL is missing, because of which QEMU refuses live
/// migration with a reason.
pub const OFFERED: u64 = CSUM
    | GUEST_CSUM
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MERGEABLE
    | ANY_LAYOUT
    | INDIRECT_DESCRIPTORS
    | EVENT_INDEX
    | PROTOCOL_FEATURES
    | VERSION_1;

/// Protocol features of vhost-user: the number of queues, acknowledged requests, and single memory
/// regions.
const QUEUE_NUM: u64 = 1 << 0;
const REPLY_ACK: u64 = 1 << 3;
const MEM_SLOTS: u64 = 1 << 15;
pub(crate) const PROTOCOL_OFFERED: u64 = QUEUE_NUM | REPLY_ACK | MEM_SLOTS;

/// Bit of the segmentation type for packets with CWR.
const GSO_ECN: u8 = 0x80;

/// Negotiated features.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NetFeatures(pub(crate) u64);

impl NetFeatures {
    fn has(self, all: u64) -> bool {
        self.0 & all == all
    }

    pub(crate) fn has_event_index(self) -> bool {
        self.has(EVENT_INDEX)
    }

    /// Returns whether the front end enables virtqueues by messages. Otherwise they are always
    /// enabled.
    pub(crate) fn has_protocol_features(self) -> bool {
        self.has(PROTOCOL_FEATURES)
    }

    /// Returns whether a frame may extend over several chains of the driver.
    pub(crate) fn is_mergeable(self) -> bool {
        self.has(MERGEABLE)
    }

    /// Returns the length of the header before each frame.
    pub(crate) fn header_len(self) -> usize {
        if self.0 & (VERSION_1 | MERGEABLE) != 0 { HEADER_LEN } else { HEADER_LEN_LEGACY }
    }

    /// Returns whether the guest accepts a packet with the work that is left to its receiver.
    pub(crate) fn accepts(self, meta: &Meta) -> bool {
        let is_cut_by_guest = meta.segmentation.is_none_or(|how| match how.protocol {
            Protocol::Tcp4 => self.has(GUEST_TSO4),
            Protocol::Tcp6 => self.has(GUEST_TSO6),
            Protocol::Udp => false,
        });
        let is_partial = matches!(meta.checksum, Checksum::Partial { .. });
        is_cut_by_guest && (!is_partial || self.has(GUEST_CSUM))
    }

    /// Removes the mark of packets with CWR from the header if the guest does not know it.
    pub(crate) fn adapt(self, header: &mut [u8; HEADER_LEN]) {
        if !self.has(GUEST_ECN) {
            header[1] &= !GSO_ECN;
        }
    }
}

/// Returns whether requests are acknowledged on demand.
pub(crate) fn has_reply_ack(protocol: u64) -> bool {
    protocol & REPLY_ACK != 0
}
