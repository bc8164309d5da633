//! Sums up bytes with SIMD instructions, for the Internet checksum (RFC 1071). The CPU's
//! instructions are only known at run time, and calling code that uses them is unsafe. The crates
//! that compute checksums forbid unsafe code, so this is a separate crate.
//!
//! ```
//! let data: Vec<u8> = (0..=255).collect();
//! if let Some((acc, rest)) = towpath_sum::wide(&data) {
//!     assert!(rest.is_empty());
//!     let words = data.chunks(4).map(|it| u32::from_ne_bytes([it[0], it[1], it[2], it[3]]));
//!     assert_eq!(acc, words.map(u64::from).sum());
//! }
//! ```
#![warn(missing_docs)]

/// Size of a SIMD register in bytes.
#[cfg(any(target_arch = "x86_64", test))]
const BLOCK: usize = 32;

/// Returns the sum of `data` as 32-bit numbers in native byte order, over whole blocks of 32 bytes,
/// and the remaining bytes. The sum is exact for less than 16 GiB. Returns `None` if the processor
/// has no such registers.
#[inline]
#[must_use]
pub fn wide(data: &[u8]) -> Option<(u64, &[u8])> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        let (blocks, rest) = data.as_chunks::<BLOCK>();
        // SAFETY: the processor has AVX2.
        return Some((unsafe { avx2::sum(blocks) }, rest));
    }
    let _ = data;
    None
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use core::arch::x86_64::*;

    use super::BLOCK;

    /// Adds the two 32-bit halves of each 64-bit word to separate sums, so that no carry is lost.
    #[target_feature(enable = "avx2")]
    pub(super) fn sum(blocks: &[[u8; BLOCK]]) -> u64 {
        let mut sums = [_mm256_setzero_si256(); 4];
        let (pairs, last) = blocks.as_chunks::<2>();
        for [one, other] in pairs {
            sums = add(add(sums, one, 0), other, 2);
        }
        for block in last {
            sums = add(sums, block, 0);
        }
        let [a, b, c, d] = sums;
        let all = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
        let half = _mm_add_epi64(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
        let sum = _mm_add_epi64(half, _mm_unpackhi_epi64(half, half));
        _mm_cvtsi128_si64(sum).cast_unsigned()
    }

    /// Adds the lower halves of the block's 64-bit words to `sums[to]`, and the upper halves to
    /// `sums[to + 1]`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(mut sums: [__m256i; 4], block: &[u8; BLOCK], to: usize) -> [__m256i; 4] {
        // SAFETY: the block has as many bytes as are read; unaligned loads are allowed.
        let words = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        let lower = _mm256_blend_epi32::<0b1010_1010>(words, _mm256_setzero_si256());
        sums[to] = _mm256_add_epi64(sums[to], lower);
        sums[to + 1] = _mm256_add_epi64(sums[to + 1], _mm256_srli_epi64::<32>(words));
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn by_hand(data: &[u8]) -> u64 {
        let (words, _) = data.as_chunks::<4>();
        words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
    }

    proptest! {
        #[test]
        fn is_the_sum_wherever_the_bytes_lie(
            data in prop::collection::vec(any::<u8>(), 0..2000),
            from in 0usize..64
        ) {
            let data = &data[from.min(data.len())..];
            if let Some((acc, rest)) = wide(data) {
                let (summed, left) = data.split_at(data.len() - data.len() % BLOCK);
                prop_assert_eq!(acc, by_hand(summed));
                prop_assert_eq!(rest, left);
            }
        }
    }

    #[test]
    fn the_largest_words_lose_no_carry() {
        let data = vec![0xff; 1 << 20];
        if let Some((acc, _)) = wide(&data) {
            assert_eq!(acc, u64::from(u32::MAX) << 18);
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn is_there_where_the_processor_says_so() {
        let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        assert_eq!(wide(&[]).is_some(), flags.contains(" avx2"));
    }
}
