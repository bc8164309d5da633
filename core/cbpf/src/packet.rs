//! The packet interface of a program.

/// A packet on which a program runs.
pub trait FilterPacket {
    /// Returns the length of the data in bytes: BPF_LEN.
    fn len(&self) -> u32;

    /// Returns whether there is no data.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `bytes` from offset `at` relative to `origin`. Returns false if the packet is too
    /// short.
    fn read(&self, origin: Origin, at: u32, bytes: &mut [u8]) -> bool;

    /// Returns metadata of the packet.
    fn about(&self, what: Ancillary) -> u32;
}

/// Plain bytes without headers and metadata.
impl FilterPacket for [u8] {
    fn len(&self) -> u32 {
        u32::try_from(<[u8]>::len(self)).unwrap_or(u32::MAX)
    }

    fn read(&self, origin: Origin, at: u32, bytes: &mut [u8]) -> bool {
        let found = self.get(at as usize..).and_then(|rest| rest.get(..bytes.len()));
        let Some(found) = found.filter(|_| origin == Origin::Data) else { return false };
        bytes.copy_from_slice(found);
        true
    }

    fn about(&self, _: Ancillary) -> u32 {
        0
    }
}

/// Base of an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The data; for a UDP socket it begins with the UDP header.
    Data,
    /// SKF_NET_OFF: the IP header.
    Network,
    /// SKF_LL_OFF: the link header.
    Link,
}

impl Origin {
    /// Start of the offsets relative to the IP header (SKF_NET_OFF).
    const NETWORK: u32 = (-0x10_0000_i32) as u32;
    /// Start of the offsets relative to the link header (SKF_LL_OFF).
    const LINK: u32 = (-0x20_0000_i32) as u32;

    /// Splits a program's offset into its origin and the distance from that origin. Returns `None`
    /// if the offset is before all origins.
    pub(crate) fn of(offset: u32) -> Option<(Self, u32)> {
        if offset as i32 >= 0 {
            Some((Self::Data, offset))
        } else if let Some(at) = offset.checked_sub(Self::NETWORK) {
            Some((Self::Network, at))
        } else {
            offset.checked_sub(Self::LINK).map(|at| (Self::Link, at))
        }
    }
}

/// Metadata: Linux's SKF_AD_ words, except those for netlink messages, because there are no netlink
/// sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ancillary {
    /// Ethernet type of the network protocol.
    Protocol,
    /// PACKET_HOST, PACKET_BROADCAST or PACKET_MULTICAST.
    PacketType,
    /// Index of the interface.
    InterfaceIndex,
    /// SO_MARK of the packet.
    Mark,
    /// Receive queue of the device.
    Queue,
    /// ARPHRD_ number of the interface.
    HardwareType,
    /// Flow hash.
    FlowHash,
    /// Number of the processor that runs the program.
    Processor,
    /// VLAN tag.
    VlanTag,
    /// Whether there is a VLAN tag.
    HasVlanTag,
    /// Protocol of the VLAN tag.
    VlanProtocol,
    /// Offset of the payload after the transport header.
    PayloadOffset,
    /// A random number.
    Random,
    /// SKF_AD_ALU_XOR_X: computes A xor X, independent of the packet.
    XorX,
}

impl Ancillary {
    /// Offset of the first metadata word (SKF_AD_OFF).
    pub(crate) const OFFSET: u32 = (-0x1000_i32) as u32;

    /// Returns the word with this offset from SKF_AD_OFF.
    pub(crate) fn numbered(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Protocol,
            4 => Self::PacketType,
            8 => Self::InterfaceIndex,
            20 => Self::Mark,
            24 => Self::Queue,
            28 => Self::HardwareType,
            32 => Self::FlowHash,
            36 => Self::Processor,
            40 => Self::XorX,
            44 => Self::VlanTag,
            48 => Self::HasVlanTag,
            52 => Self::PayloadOffset,
            56 => Self::Random,
            60 => Self::VlanProtocol,
            _ => return None,
        })
    }
}
