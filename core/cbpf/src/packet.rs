//! The interface through which a BPF program reads a packet.

/// A packet that a BPF program can read.
pub trait FilterPacket {
    /// Returns the length of the packet data in bytes; Linux's BPF_LEN.
    fn len(&self) -> u32;

    /// Returns whether the packet has no data.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from the packet into `bytes`, beginning `at` bytes after `origin` (start of the
    /// data, IP or link-layer header). Returns false if the packet ends before `bytes` is full.
    fn read(&self, origin: Origin, at: u32, bytes: &mut [u8]) -> bool;

    /// Returns one word of the packet's metadata, such as its protocol or interface.
    fn about(&self, what: Ancillary) -> u32;
}

/// Lets programs run on plain bytes, which have neither lower-layer headers nor metadata.
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

/// The position in a packet to which an offset is relative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The start of the packet data; on a UDP socket, this is the UDP header.
    Data,
    /// The IP header (Linux's SKF_NET_OFF).
    Network,
    /// The link-layer header (Linux's SKF_LL_OFF).
    Link,
}

impl Origin {
    /// Encoded offsets from this value on are relative to the IP header (SKF_NET_OFF).
    const NETWORK: u32 = (-0x10_0000_i32) as u32;
    /// Encoded offsets from this value on are relative to the link-layer header (SKF_LL_OFF).
    const LINK: u32 = (-0x20_0000_i32) as u32;

    /// Splits the offset encoded in an instruction into its origin (such as the IP header) and the
    /// distance from the origin. Returns `None` if the encoded offset is invalid.
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

/// A metadata word of a packet: Linux's SKF_AD_ words. The words for netlink messages are missing,
/// because there are no netlink sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ancillary {
    /// Ethernet type of the packet's network protocol, for example 0x0800 for IPv4.
    Protocol,
    /// Packet type: PACKET_HOST, PACKET_BROADCAST or PACKET_MULTICAST.
    PacketType,
    /// Index of the interface that received the packet.
    InterfaceIndex,
    /// Mark of the packet (SO_MARK).
    Mark,
    /// Number of the device's receive queue on which the packet arrived.
    Queue,
    /// Hardware type of the interface: an ARPHRD_ number.
    HardwareType,
    /// Hash of the packet's flow.
    FlowHash,
    /// Number of the processor that runs the program.
    Processor,
    /// VLAN tag.
    VlanTag,
    /// 1 if the packet has a VLAN tag, otherwise 0.
    HasVlanTag,
    /// Ethernet type of the packet's VLAN tag.
    VlanProtocol,
    /// Offset in bytes of the payload that follows the transport header.
    PayloadOffset,
    /// A random number.
    Random,
    /// SKF_AD_ALU_XOR_X: computes A xor X, independent of the packet.
    XorX,
}

impl Ancillary {
    /// First encoded offset of the metadata words (SKF_AD_OFF).
    pub(crate) const OFFSET: u32 = (-0x1000_i32) as u32;

    /// Returns the metadata word whose encoded offset is `number` above SKF_AD_OFF.
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
