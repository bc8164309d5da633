//! Walks the records of a DNS message (RFC 1035 §4.1).

/// Length in bytes of the header of a message.
pub const HEADER_LEN: usize = 12;
/// Maximum length in bytes of an encoded name (RFC 1035 §2.3.4).
pub const NAME_MAX: usize = 255;
/// Maximum number of compression pointers in a name. A name has at most 127 labels, so it needs no
/// more. A message of 64 KiB can contain thousands of names with thousands of pointers each.
const POINTERS_MAX: u32 = 127;
/// Length in bytes of a record after its owner and before its data.
const FIXED_LEN: usize = 10;

/// Record types whose records the forwarder reads.
pub mod kind {
    /// IPv4 address.
    pub const A: u16 = 1;
    /// Alias of a name.
    pub const CNAME: u16 = 5;
    /// IPv6 address (RFC 3596).
    pub const AAAA: u16 = 28;
    /// Alias of all names below a name (RFC 6672).
    pub const DNAME: u16 = 39;
    /// Start of a zone of authority, with the lifetime of negative answers.
    pub const SOA: u16 = 6;
    /// Delegation signer (RFC 4034).
    pub const DS: u16 = 43;
    /// EDNS(0) (RFC 6891).
    pub const OPT: u16 = 41;
    /// Incremental zone transfer (RFC 1995).
    pub const IXFR: u16 = 251;
    /// Zone transfer.
    pub const AXFR: u16 = 252;
    /// Records of all types.
    pub const ANY: u16 = 255;
}

/// Positions of a record's fields in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    /// Offset of the record, at which its owner begins.
    pub at: usize,
    /// Type of the record.
    pub kind: u16,
    /// Class of the record; for OPT, the UDP payload size.
    pub class: u16,
    /// Time to live in seconds; for OPT, the extended response code, version and flags.
    pub ttl: u32,
    /// Offset of the time to live.
    pub ttl_at: usize,
    /// Offset of the data.
    pub data_at: usize,
    /// Offset after the record.
    pub end: usize,
}

/// Returns the number at offset `at` of a message.
pub fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?))
}

fn u32_at(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*message.get(at..)?.first_chunk()?))
}

/// Returns the offset after the uncompressed name at `at`.
pub fn plain_name_end(message: &[u8], at: usize) -> Option<usize> {
    let mut end = at;
    loop {
        let len = usize::from(*message.get(end)?);
        end += 1 + len;
        // The upper bits mark compression pointers, and obsolete types of labels (RFC 6891 §5).
        if len > 63 || end - at > NAME_MAX {
            return None;
        }
        if len == 0 {
            return Some(end);
        }
    }
}

/// Returns the offset after the name at `at`, whose compression pointers are followed.
///
/// Each pointer must refer to an earlier position than the label sequence that contains it
/// (RFC 1035 §4.1.4: "a prior occurance of the same name"). So names with loops are invalid.
pub fn name_end(message: &[u8], at: usize) -> Option<usize> {
    let (mut place, mut start, mut len, mut end) = (at, at, 0, None);
    let mut pointers = 0;
    loop {
        let first = *message.get(place)?;
        match first >> 6 {
            0 => {
                len += 1 + usize::from(first);
                place += 1 + usize::from(first);
                if len > NAME_MAX {
                    return None;
                }
                if first == 0 {
                    return Some(end.unwrap_or(place));
                }
            }
            3 => {
                let target = usize::from(u16_at(message, place)? & 0x3fff);
                end.get_or_insert(place + 2);
                pointers += 1;
                if target >= start || target < HEADER_LEN || pointers > POINTERS_MAX {
                    return None;
                }
                (place, start) = (target, target);
            }
            _ => return None,
        }
    }
}

/// Appends the name at `at` to `to`, without compression. Returns `None` if the name is invalid.
pub fn expand_name(message: &[u8], at: usize, to: &mut Vec<u8>) -> Option<()> {
    // Validate the name first, so that following its compression pointers reaches the end.
    name_end(message, at)?;
    let mut place = at;
    loop {
        let len = *message.get(place)?;
        if len >> 6 == 3 {
            place = usize::from(u16_at(message, place)? & 0x3fff);
            continue;
        }
        let end = place + 1 + usize::from(len);
        to.extend(message.get(place..end)?);
        if len == 0 {
            return Some(());
        }
        place = end;
    }
}

/// Returns the record at offset `at`.
pub fn record(message: &[u8], at: usize) -> Option<RecordPlace> {
    let (owner_at, at) = (at, name_end(message, at)?);
    let data_at = at + FIXED_LEN;
    let end = data_at + usize::from(u16_at(message, at + 8)?);
    let ttl = u32_at(message, at + 4)?;
    let (kind, class) = (u16_at(message, at)?, u16_at(message, at + 2)?);
    let place = RecordPlace { at: owner_at, kind, class, ttl, ttl_at: at + 4, data_at, end };
    (end <= message.len()).then_some(place)
}

/// Returns the number of records of a message by section: answers, authority, additional.
pub fn section_counts(message: &[u8]) -> Option<[u16; 3]> {
    Some([u16_at(message, 6)?, u16_at(message, 8)?, u16_at(message, 10)?])
}

/// Returns the negative lifetime in the data of an SOA record: its last field (RFC 1035 §3.3.13).
pub fn soa_minimum(message: &[u8], soa: &RecordPlace) -> Option<u32> {
    let names_end = name_end(message, name_end(message, soa.data_at)?)?;
    let minimum_at = names_end + 16;
    (minimum_at + 4 == soa.end).then(|| u32_at(message, minimum_at))?
}
