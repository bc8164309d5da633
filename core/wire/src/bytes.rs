//! Fixed-size views of slices: one length check, after which the compiler can elide bounds checks.

use crate::ParseError;
use core::net::{Ipv4Addr, Ipv6Addr};

/// Returns the first `N` bytes, or [`ParseError::Truncated`].
#[inline]
pub(crate) fn head<const N: usize>(data: &[u8]) -> Result<&[u8; N], ParseError> {
    data.first_chunk::<N>().ok_or(ParseError::Truncated)
}

/// Returns the `N` bytes at offset `at`, or [`ParseError::Truncated`].
#[inline]
pub(crate) fn at<const N: usize>(data: &[u8], at: usize) -> Result<&[u8; N], ParseError> {
    head(data.get(at..).ok_or(ParseError::Truncated)?)
}

/// Returns the first `N` bytes of a buffer to emit into; panics if the buffer is shorter.
#[inline]
#[track_caller]
pub(crate) fn head_mut<const N: usize>(buf: &mut [u8]) -> &mut [u8; N] {
    buf.first_chunk_mut::<N>().expect("the buffer to emit into is shorter than the header")
}

/// Combines two bytes to a big-endian `u16`.
#[inline]
pub(crate) const fn be16(hi: u8, lo: u8) -> u16 {
    u16::from_be_bytes([hi, lo])
}

/// Returns four `u16` as big-endian bytes, in the order of the argument.
#[inline]
pub(crate) const fn be64_of([a, b, c, d]: [u16; 4]) -> [u8; 8] {
    ((a as u64) << 48 | (b as u64) << 32 | (c as u64) << 16 | d as u64).to_be_bytes()
}

/// Returns the IPv4 address at `offset`.
#[inline]
pub(crate) fn ipv4_at(data: &[u8], offset: usize) -> Result<Ipv4Addr, ParseError> {
    at::<4>(data, offset).map(|b| Ipv4Addr::from(*b))
}

/// Returns the IPv6 address at `offset`.
#[inline]
pub(crate) fn ipv6_at(data: &[u8], offset: usize) -> Result<Ipv6Addr, ParseError> {
    at::<16>(data, offset).map(|b| Ipv6Addr::from(*b))
}
