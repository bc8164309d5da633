//! Access to a fixed number of bytes in a slice. The length is checked once, so that the compiler
//! can omit further bounds checks.

use crate::ParseError;
use core::net::{Ipv4Addr, Ipv6Addr};

/// Returns the first `N` bytes of `data`. Returns [`ParseError::Truncated`] if there are fewer.
#[inline]
pub(crate) fn head<const N: usize>(data: &[u8]) -> Result<&[u8; N], ParseError> {
    data.first_chunk::<N>().ok_or(ParseError::Truncated)
}

/// Returns the `N` bytes of `data` at offset `at`. Returns [`ParseError::Truncated`] if there are
/// fewer.
#[inline]
pub(crate) fn at<const N: usize>(data: &[u8], at: usize) -> Result<&[u8; N], ParseError> {
    head(data.get(at..).ok_or(ParseError::Truncated)?)
}

/// Returns the first `N` bytes of a buffer, to write a header to them.
///
/// # Panics
/// Panics if the buffer is shorter.
#[inline]
#[track_caller]
pub(crate) fn head_mut<const N: usize>(buf: &mut [u8]) -> &mut [u8; N] {
    buf.first_chunk_mut::<N>().expect("the buffer to emit into is shorter than the header")
}

/// Converts two bytes in network byte order to a `u16`.
#[inline]
pub(crate) const fn be16(hi: u8, lo: u8) -> u16 {
    u16::from_be_bytes([hi, lo])
}

/// Converts four `u16` numbers to bytes in network byte order.
#[inline]
pub(crate) const fn be64_of([a, b, c, d]: [u16; 4]) -> [u8; 8] {
    ((a as u64) << 48 | (b as u64) << 32 | (c as u64) << 16 | d as u64).to_be_bytes()
}

/// Returns the IPv4 address at offset `offset` of `data`.
#[inline]
pub(crate) fn ipv4_at(data: &[u8], offset: usize) -> Result<Ipv4Addr, ParseError> {
    at::<4>(data, offset).map(|b| Ipv4Addr::from(*b))
}

/// Returns the IPv6 address at offset `offset` of `data`.
#[inline]
pub(crate) fn ipv6_at(data: &[u8], offset: usize) -> Result<Ipv6Addr, ParseError> {
    at::<16>(data, offset).map(|b| Ipv6Addr::from(*b))
}
