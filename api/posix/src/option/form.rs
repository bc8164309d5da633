//! Forms of values: ints as programs pass them, and answers in the room that a program has.

use crate::Result;
use crate::errno::fail;

/// An int option's value; the IP level takes a single byte too, and nothing for 0, as Linux does.
pub(super) fn int_of(level: i32, bytes: &[u8]) -> Result<i32> {
    match *bytes {
        [a, b, c, d, ..] => Ok(i32::from_ne_bytes([a, b, c, d])),
        [a, ..] if level == libc::IPPROTO_IP => Ok(i32::from(a)),
        [] if level == libc::IPPROTO_IP => Ok(0),
        _ => fail(libc::EINVAL),
    }
}

/// Options of the IP level that do not take nothing for 0.
pub(super) fn wants_a_byte(level: i32, name: i32) -> bool {
    level == libc::IPPROTO_IP
        && matches!(
            name,
            libc::IP_TTL
                | libc::IP_MULTICAST_TTL
                | libc::IP_MULTICAST_LOOP
                | libc::IP_MULTICAST_ALL
                | libc::IP_FREEBIND
                | libc::IP_TRANSPARENT
                | libc::IP_MINTTL
        )
}

pub(super) fn check_range(value: i32, least: i32, most: i32) -> Result<()> {
    if (least..=most).contains(&value) { Ok(()) } else { fail(libc::EINVAL) }
}

/// The value of an int option.
pub(super) fn int(n: i32) -> Vec<u8> {
    n.to_ne_bytes().to_vec()
}

/// Value of a word of the slot; 0: the default.
pub(super) fn or(word: u32, default: u32) -> Vec<u8> {
    match word {
        0 => int(default as i32),
        set => int(set as i32),
    }
}

/// A value in the form that getsockopt gives it where a program has `room` bytes. `getsockopt` cuts
/// the end off where more are left.
pub(super) fn fit(level: i32, name: i32, bytes: Vec<u8>, room: libc::socklen_t) -> Result<Vec<u8>> {
    if name == libc::SO_BINDTODEVICE && level == libc::SOL_SOCKET && too_short(&bytes, room) {
        return fail(libc::EINVAL);
    }
    let bytes = match <[u8; 8]>::try_from(&bytes[..]).map(u64::from_ne_bytes) {
        // Into less room than a long's, as an unsigned int.
        Ok(rate) if (level, name) == (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) && room < 8 => {
            u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes().to_vec()
        }
        _ => bytes,
    };
    Ok(match <[u8; 4]>::try_from(&bytes[..]).map(i32::from_ne_bytes) {
        // ip_getsockopt: into less room than an int's, a byte that says it all.
        Ok(value @ 0..=255) if is_byte_enough(level, name) && (1..4).contains(&room) => {
            vec![value as u8]
        }
        _ => bytes,
    })
}

/// SO_BINDTODEVICE is EINVAL where the longest name would not fit, whatever name it is.
fn too_short(name: &[u8], room: libc::socklen_t) -> bool {
    !name.is_empty() && (room as usize) < libc::IFNAMSIZ
}

/// Whether getsockopt gives a byte where there is no room for an int: at the IP level, but for an
/// address.
fn is_byte_enough(level: i32, name: i32) -> bool {
    level == libc::IPPROTO_IP && name != libc::IP_MULTICAST_IF
}
