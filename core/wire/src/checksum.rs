//! The Internet checksum (RFC 1071), its pseudo-headers and its incremental update (RFC 1624).
//!
//! A running sum is the sum of 16-bit words in network byte order, as a `u64`. Running sums may be
//! added to each other and to header fields; [`finish`] converts one to the checksum on the wire.
//! Use [`sum_at`] for data that begin at an odd offset in the bytes that the checksum covers.
//!
//! Budget: 16 bytes per nanosecond for data in the cache, 5 ns for an IPv4 header. Without checksum
//! offload, summing the payload once is most of the stack's work per byte.

use crate::IpProtocol;
use core::net::{Ipv4Addr, Ipv6Addr};

/// Adds `data` to the running sum `acc`. `data` must begin at an even offset of the summed bytes.
///
/// ```
/// use towpath_wire::checksum::{finish, sum};
/// // The example of RFC 1071 section 3.
/// let acc = sum(&[0x00, 0x01, 0xf2, 0x03], 0);
/// let acc = sum(&[0xf4, 0xf5, 0xf6, 0xf7], acc);
/// assert_eq!(finish(acc), !0xddf2);
/// ```
#[inline]
#[must_use]
pub fn sum(data: &[u8], acc: u64) -> u64 {
    acc + u64::from(sum_words(data))
}

/// Adds `data`, which starts at byte `offset` of the summed bytes, to the running sum `acc`.
//= https://www.rfc-editor.org/rfc/rfc1071#section-2
//# The sum of 16-bit integers can be computed in either byte order.
#[inline]
#[must_use]
pub fn sum_at(data: &[u8], offset: usize, acc: u64) -> u64 {
    let words = sum_words(data);
    let words = if offset.is_multiple_of(2) { words } else { words.swap_bytes() };
    acc + u64::from(words)
}

/// Folds a running sum to 16 bits, using end-around carry.
#[inline]
#[must_use]
pub const fn fold(acc: u64) -> u16 {
    // Add the number to itself with its halves swapped. The upper half of the result is the sum of
    // both halves, with the carry of the lower half added.
    let acc = (acc.wrapping_add(acc.rotate_left(32)) >> 32) as u32;
    (acc.wrapping_add(acc.rotate_left(16)) >> 16) as u16
}

/// Returns the checksum for a running sum: the complement of the folded sum. If the summed bytes
/// include a correct checksum, the result is 0.
#[inline]
#[must_use]
pub const fn finish(acc: u64) -> u16 {
    !fold(acc)
}

/// Returns the running sum of the IPv4 pseudo-header of TCP and UDP (RFC 9293 §3.1). `len` is the
/// length of the transport header and its payload in bytes.
#[inline]
#[must_use]
pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: IpProtocol, len: u16) -> u64 {
    u64::from(u32::from(src)) + u64::from(u32::from(dst)) + u64::from(protocol.0) + u64::from(len)
}

/// Returns the running sum of the IPv6 pseudo-header (RFC 8200 §8.1). `len` is the length of the
/// upper-layer header and its payload in bytes.
#[inline]
#[must_use]
pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: IpProtocol, len: u32) -> u64 {
    address_v6(src) + address_v6(dst) + u64::from(protocol.0) + u64::from(len)
}

/// Updates a checksum after a 16-bit word changed from `old` to `new`.
//= https://www.rfc-editor.org/rfc/rfc1624#section-3
//# HC' = ~(C + (-m) + m')    --    [Eqn. 3]
//# = ~(~HC + ~m + m')
#[inline]
#[must_use]
pub const fn update16(checksum: u16, old: u16, new: u16) -> u16 {
    finish(!checksum as u64 + !old as u64 + new as u64)
}

/// Updates a checksum after a 32-bit field at an even offset changed from `old` to `new`.
#[inline]
#[must_use]
pub const fn update32(checksum: u16, old: u32, new: u32) -> u16 {
    finish(!checksum as u64 + !old as u64 + new as u64)
}

/// Updates a checksum after an IPv6 address in the summed bytes or the pseudo-header changed.
#[inline]
#[must_use]
pub fn update_v6(checksum: u16, old: Ipv6Addr, new: Ipv6Addr) -> u16 {
    finish(u64::from(!checksum) + u64::from(!fold(address_v6(old))) + address_v6(new))
}

#[inline]
fn address_v6(addr: Ipv6Addr) -> u64 {
    let bits = addr.to_bits();
    let (hi, lo) = ((bits >> 64) as u64, bits as u64);
    (hi >> 32) + (hi & 0xffff_ffff) + (lo >> 32) + (lo & 0xffff_ffff)
}

/// Returns the one's complement sum of `data` as 16-bit words in network byte order. The last word
/// is padded with a zero byte.
#[inline]
fn sum_words(data: &[u8]) -> u16 {
    if data.len() < WIDE_MIN { sum_narrow(data) } else { sum_wide(data) }
}

#[inline(always)]
fn sum_narrow(data: &[u8]) -> u16 {
    // Sum whole machine words in native byte order, and convert only the folded result to network
    // byte order.
    let (blocks, rest) = data.as_chunks::<BLOCK>();
    let acc = if blocks.is_empty() { 0 } else { sum_blocks(blocks) };
    let (words, tail) = rest.as_chunks::<8>();
    let acc = words.iter().fold(acc, |acc, w| add_carry(acc, u64::from_ne_bytes(*w)));
    let acc = add_carry(acc, sum_tail(tail));
    u16::from_be(fold(acc))
}

/// Computes the same as [`sum_words`], using SIMD registers if available.
#[inline(never)]
fn sum_wide(data: &[u8]) -> u16 {
    let Some((acc, rest)) = towpath_sum::wide(data) else { return sum_narrow(data) };
    let rest = sum_narrow(rest).to_be();
    u16::from_be(fold(add_carry(acc, u64::from(rest))))
}

/// Minimum length in bytes for which SIMD registers are used. Shorter data are summed as fast
/// without them.
const WIDE_MIN: usize = 128;

/// Sums up to 7 bytes in pieces of decreasing size. Copying them to a padded word instead would
/// cause a store-forwarding stall.
#[inline]
fn sum_tail(mut tail: &[u8]) -> u64 {
    let mut acc = 0;
    if let Some((word, rest)) = tail.split_first_chunk::<4>() {
        acc += u64::from(u32::from_ne_bytes(*word));
        tail = rest;
    }
    if let Some((word, rest)) = tail.split_first_chunk::<2>() {
        acc += u64::from(u16::from_ne_bytes(*word));
        tail = rest;
    }
    if let [last, ..] = tail {
        acc += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    acc
}

/// Number of bytes per block. The compiler converts the additions of such a block to one chain with
/// carry.
const BLOCK: usize = 64;

/// Sums the blocks as numbers of four 64-bit words. The carry of a word is added to the next word,
/// and the carries of the last word are counted. The sum is correct because 2⁶⁴ is 1 modulo 2¹⁶ -
/// 1, so that all words have the same weight.
fn sum_blocks(blocks: &[[u8; BLOCK]]) -> u64 {
    let (mut a, mut b, mut c, mut d, mut carries) = (0u64, 0u64, 0u64, 0u64, 0u64);
    let mut carry;
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        let word = |n: usize| u64::from_ne_bytes(words[n]);
        (a, carry) = a.overflowing_add(word(0));
        (b, carry) = b.carrying_add(word(1), carry);
        (c, carry) = c.carrying_add(word(2), carry);
        (d, carry) = d.carrying_add(word(3), carry);
        (a, carry) = a.carrying_add(word(4), carry);
        (b, carry) = b.carrying_add(word(5), carry);
        (c, carry) = c.carrying_add(word(6), carry);
        (d, carry) = d.carrying_add(word(7), carry);
        carries += u64::from(carry);
    }
    add_carry(add_carry(add_carry(a, b), add_carry(c, d)), carries)
}

#[inline]
const fn add_carry(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    // After a carry, the sum is at most u64::MAX - 1, so adding the carry does not overflow.
    sum + carry as u64
}
