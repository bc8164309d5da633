//! Converts option values: parses the ints that programs pass, and adapts returned values to the
//! program's buffer.

use crate::Result;
use crate::errno::fail;

/// Parses the value of an int option. As on Linux, options of the IP level may also be a single
/// byte, or empty, which means 0.
pub(super) fn int_of(level: i32, bytes: &[u8]) -> Result<i32> {
    match *bytes {
        [a, b, c, d, ..] => Ok(i32::from_ne_bytes([a, b, c, d])),
        [a, ..] if level == libc::IPPROTO_IP => Ok(i32::from(a)),
        [] if level == libc::IPPROTO_IP => Ok(0),
        _ => fail(libc::EINVAL),
    }
}

/// Returns whether an option of the IP level rejects an empty value.
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

/// Encodes the value of an int option as bytes.
pub(super) fn int(n: i32) -> Vec<u8> {
    n.to_ne_bytes().to_vec()
}

/// Encodes `word`, an option value stored in the socket's shared state, as an int. Encodes
/// `default` if `word` is 0.
pub(super) fn or(word: u32, default: u32) -> Vec<u8> {
    match word {
        0 => int(default as i32),
        set => int(set as i32),
    }
}

/// Converts an option value to the form that fits a buffer of `room` bytes, such as a byte instead
/// of an int. `getsockopt` truncates a result that is longer than the buffer.
pub(super) fn fit(level: i32, name: i32, bytes: Vec<u8>, room: libc::socklen_t) -> Result<Vec<u8>> {
    if name == libc::SO_BINDTODEVICE && level == libc::SOL_SOCKET && too_short(&bytes, room) {
        return fail(libc::EINVAL);
    }
    let bytes = match <[u8; 8]>::try_from(&bytes[..]).map(u64::from_ne_bytes) {
        // If the buffer is smaller than a long, return the pacing rate as an unsigned int.
        Ok(rate) if (level, name) == (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) && room < 8 => {
            u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes().to_vec()
        }
        _ => bytes,
    };
    Ok(match <[u8; 4]>::try_from(&bytes[..]).map(i32::from_ne_bytes) {
        // As Linux's `ip_getsockopt` does, write a single byte if the buffer is smaller than an int
        // and the value fits.
        Ok(value @ 0..=255) if is_byte_enough(level, name) && (1..4).contains(&room) => {
            vec![value as u8]
        }
        _ => bytes,
    })
}

/// Returns whether the buffer is too small for SO_BINDTODEVICE (EINVAL). The buffer must have space
/// for the longest interface name.
fn too_short(name: &[u8], room: libc::socklen_t) -> bool {
    !name.is_empty() && (room as usize) < libc::IFNAMSIZ
}

/// Returns whether getsockopt writes a single byte into a buffer that is smaller than an int.
/// Options at the IP level do so, except addresses.
fn is_byte_enough(level: i32, name: i32) -> bool {
    level == libc::IPPROTO_IP && name != libc::IP_MULTICAST_IF
}
