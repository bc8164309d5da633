//! Parses, removes and inserts IEEE 802.1Q VLAN tags.

use towpath_pool::{Checksum, Packet};

use crate::VlanError;

/// Selects the frames of a trunk that belong to one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vlan {
    /// Frames without a VLAN tag, or with a tag whose identifier is 0 (priority only).
    Untagged,
    /// Frames with this VLAN identifier in their tag.
    Tagged(u16),
}

/// Minimum and maximum VLAN identifier: 0 means no VLAN, and 4095 is reserved (IEEE 802.1Q-2018
/// table 9-2).
const ID_MIN: u16 = 1;
const ID_MAX: u16 = 4094;
/// Mask of the VLAN identifier in a tag.
const ID_MASK: u16 = 0x0fff;
/// Length in bytes of destination and source address, which precede the VLAN tag.
const ADDRESSES_LEN: usize = 12;
/// Length of a VLAN tag in bytes, including its EtherType.
const TAG_LEN: usize = 4;
/// EtherType of an 802.1Q tag.
const TPID: [u8; 2] = [0x81, 0x00];
/// EtherTypes of VLAN tags: 802.1Q, 802.1ad, and two older values of 802.1ad.
const TAGS: [[u8; 2]; 4] = [TPID, [0x88, 0xa8], [0x91, 0x00], [0x92, 0x00]];

/// Reason why a received frame is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnfitFrame {
    /// The frame ends before the end of its VLAN tag.
    Malformed,
    /// The frame has a VLAN tag other than 802.1Q, or a second tag.
    Foreign,
}

impl Vlan {
    /// Creates the selection of the VLAN with identifier `id`.
    ///
    /// # Errors
    /// Returns [`VlanError::Id`] unless `id` is between 1 and 4094.
    pub fn tagged(id: u16) -> Result<Self, VlanError> {
        match id {
            ID_MIN..=ID_MAX => Ok(Self::Tagged(id)),
            _ => Err(VlanError::Id(id)),
        }
    }

    /// Returns the VLAN of a frame from its tag control information.
    fn of_tag(tci: u16) -> Self {
        match tci & ID_MASK {
            0 => Self::Untagged,
            id => Self::Tagged(id),
        }
    }
}

/// Removes the VLAN tag of a frame, and returns its VLAN. Rejects frames with a second tag: a
/// bridge would forward them into the VLAN of that tag.
pub(crate) fn strip(packet: &mut Packet) -> Result<Vlan, UnfitFrame> {
    let vlan = strip_first(packet).ok_or(UnfitFrame::Malformed)?;
    match packet.linear().get(ADDRESSES_LEN..ADDRESSES_LEN + 2) {
        Some(ethertype) if TAGS.iter().any(|tag| tag == ethertype) => Err(UnfitFrame::Foreign),
        _ => Ok(vlan),
    }
}

/// Removes the frame's first 802.1Q tag, if any. Returns `None` if the frame ends within the tag.
fn strip_first(packet: &mut Packet) -> Option<Vlan> {
    if let Some(tci) = packet.meta.vlan.take() {
        return Some(Vlan::of_tag(tci));
    }
    let bytes = packet.linear_mut();
    if bytes.get(ADDRESSES_LEN..ADDRESSES_LEN + 2) != Some(&TPID) {
        return Some(Vlan::Untagged);
    }
    let tci = bytes.get(ADDRESSES_LEN + 2..ADDRESSES_LEN + TAG_LEN)?;
    let vlan = Vlan::of_tag(u16::from_be_bytes([tci[0], tci[1]]));
    bytes.copy_within(..ADDRESSES_LEN, TAG_LEN);
    packet.pull_front(TAG_LEN)?;
    shift(packet, |place| place.checked_sub(TAG_LEN as u16))?;
    Some(vlan)
}

/// Inserts a VLAN tag. Returns `None` if the frame is shorter than its addresses, or has no
/// headroom.
pub(crate) fn insert(packet: &mut Packet, vlan: Vlan) -> Option<()> {
    let Vlan::Tagged(id) = vlan else { return Some(()) };
    if packet.linear().len() < ADDRESSES_LEN || packet.headroom() < TAG_LEN {
        return None;
    }
    packet.push_front(TAG_LEN);
    let bytes = packet.linear_mut();
    bytes.copy_within(TAG_LEN..TAG_LEN + ADDRESSES_LEN, 0);
    bytes[ADDRESSES_LEN..ADDRESSES_LEN + 2].copy_from_slice(&TPID);
    bytes[ADDRESSES_LEN + 2..ADDRESSES_LEN + TAG_LEN].copy_from_slice(&id.to_be_bytes());
    shift(packet, |place| place.checked_add(TAG_LEN as u16))
}

/// Adjusts the header offsets in a packet's offload metadata, because a tag was inserted or
/// removed.
fn shift(packet: &mut Packet, moved: impl Fn(u16) -> Option<u16>) -> Option<()> {
    if let Checksum::Partial { start, .. } = &mut packet.meta.checksum {
        *start = moved(*start)?;
    }
    if let Some(segmentation) = &mut packet.meta.segmentation {
        segmentation.header_len = moved(segmentation.header_len)?;
    }
    Some(())
}
