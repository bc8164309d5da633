//! Fixed-size views of slices: one length check, then indices the compiler knows to be in bounds.

use crate::ParseError;
use core::net::{Ipv4Addr, Ipv6Addr};

/// The first `N` bytes, or [`ParseError::Truncated`].
#[inline]
pub(crate) fn head<const N: usize>(data: &[u8]) -> Result<&[u8; N], ParseError> {
    data.first_chunk::<N>().ok_or(ParseError::Truncated)
}

/// The `N` bytes at `at`, or [`ParseError::Truncated`].
#[inline]
pub(crate) fn at<const N: usize>(data: &[u8], at: usize) -> Result<&[u8; N], ParseError> {
    head(data.get(at..).ok_or(ParseError::Truncated)?)
}

/// The first `N` bytes of a buffer to emit into; a shorter buffer is the caller's mistake.
#[inline]
#[track_caller]
pub(crate) fn head_mut<const N: usize>(buf: &mut [u8]) -> &mut [u8; N] {
    buf.first_chunk_mut::<N>().expect("the buffer to emit into is shorter than the header")
}

/// Big-endian `u16` from two bytes.
#[inline]
pub(crate) const fn be16(hi: u8, lo: u8) -> u16 {
    u16::from_be_bytes([hi, lo])
}

/// Four big-endian `u16` as they stand in a header.
#[inline]
pub(crate) const fn be64_of([a, b, c, d]: [u16; 4]) -> [u8; 8] {
    ((a as u64) << 48 | (b as u64) << 32 | (c as u64) << 16 | d as u64).to_be_bytes()
}

/// The IPv4 address at `at`.
#[inline]
pub(crate) fn ipv4_at(data: &[u8], offset: usize) -> Result<Ipv4Addr, ParseError> {
    at::<4>(data, offset).map(|b| Ipv4Addr::from(*b))
}

/// The IPv6 address at `at`.
#[inline]
pub(crate) fn ipv6_at(data: &[u8], offset: usize) -> Result<Ipv6Addr, ParseError> {
    at::<16>(data, offset).map(|b| Ipv6Addr::from(*b))
}
