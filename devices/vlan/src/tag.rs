//! Tags of frames: read, taken off, put in.

use towpath_pool::{Checksum, Packet};

use crate::VlanError;

/// Frames of a trunk that are a port's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vlan {
    /// Frames without a tag, and those whose tag says a priority alone.
    Untagged,
    /// Frames with this VLAN identifier.
    Tagged(u16),
}

/// The least VLAN identifier, and the greatest: 0 means no VLAN, and 4095 is reserved
/// (IEEE 802.1Q-2018 table 9-2).
const ID_MIN: u16 = 1;
const ID_MAX: u16 = 4094;
/// Bits of a tag that are the identifier.
const ID_MASK: u16 = 0x0fff;
/// Both addresses of a frame: the tag follows them.
const ADDRESSES_LEN: usize = 12;
/// The EtherType of a tag, and the identifier behind it.
const TAG_LEN: usize = 4;
/// The EtherType of an 802.1Q tag.
const TPID: [u8; 2] = [0x81, 0x00];
/// EtherTypes of tags: 802.1Q, 802.1ad, and those that switches used before the latter.
const TAGS: [[u8; 2]; 4] = [TPID, [0x88, 0xa8], [0x91, 0x00], [0x92, 0x00]];

/// Reason why a frame is no port's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnfitFrame {
    /// The frame ends in its tag.
    Malformed,
    /// The frame has a tag that is no 802.1Q one, or one more behind its tag.
    Foreign,
}

impl Vlan {
    /// The VLAN of an identifier.
    ///
    /// # Errors
    /// [`VlanError::Id`] unless it lies between 1 and 4094.
    pub fn tagged(id: u16) -> Result<Self, VlanError> {
        match id {
            ID_MIN..=ID_MAX => Ok(Self::Tagged(id)),
            _ => Err(VlanError::Id(id)),
        }
    }

    /// The VLAN that a tag names.
    fn of_tag(tci: u16) -> Self {
        match tci & ID_MASK {
            0 => Self::Untagged,
            id => Self::Tagged(id),
        }
    }
}

/// Takes the tag off a frame, and returns the VLAN that it is of. A frame that has a tag left is
/// refused: otherwise a bridge would carry it into that VLAN.
pub(crate) fn strip(packet: &mut Packet) -> Result<Vlan, UnfitFrame> {
    let vlan = strip_first(packet).ok_or(UnfitFrame::Malformed)?;
    match packet.linear().get(ADDRESSES_LEN..ADDRESSES_LEN + 2) {
        Some(ethertype) if TAGS.iter().any(|tag| tag == ethertype) => Err(UnfitFrame::Foreign),
        _ => Ok(vlan),
    }
}

/// Takes an 802.1Q tag off a frame. None: the frame ends in its tag.
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

/// Puts a tag into a frame. None: the frame is shorter than its addresses, or has no room in front.
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

/// Moves the places of headers that a frame's offload metadata names.
fn shift(packet: &mut Packet, moved: impl Fn(u16) -> Option<u16>) -> Option<()> {
    if let Checksum::Partial { start, .. } = &mut packet.meta.checksum {
        *start = moved(*start)?;
    }
    if let Some(segmentation) = &mut packet.meta.segmentation {
        segmentation.header_len = moved(segmentation.header_len)?;
    }
    Some(())
}
