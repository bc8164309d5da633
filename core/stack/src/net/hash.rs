//! Hash functions of tables. Keys that a peer can choose are hashed with a secret key. Addresses of
//! this host, of which other hosts can choose only few, are hashed by a faster function.

use core::hash::{BuildHasher, Hasher};
use core::time::Duration;

use siphasher::sip::SipHasher13;

/// Secret key of hashes that a peer cannot predict (SipHash-1-3). Otherwise a peer could choose
/// addresses and ports that all fall into one bucket, or infer one hash from another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keyed(pub [u64; 2]);

/// Derives one half of a [`Keyed`] key from the seed of the host. Results for different `purpose`
/// or `label` are independent of each other.
pub(crate) fn derive(seed: &[u8; 32], purpose: &[u8], label: u64) -> u64 {
    let (words, _) = seed.as_chunks::<8>();
    let word = |n: usize| u64::from_le_bytes(words[n]);
    let mut hasher = Keyed([word(0), word(1)]).build_hasher();
    hasher.write_u64(word(2));
    hasher.write_u64(word(3));
    hasher.write(purpose);
    hasher.write_u64(label);
    hasher.finish()
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    #[inline]
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0[0], self.0[1])
    }
}

/// Multiplicative hash function with a secret initial value.
///
/// Only for tables whose entries an attacker cannot choose freely. In the table of addresses, the
/// operator, routers on the link and programs add entries, within `limits`. Other hosts can only
/// cause lookups. Use key 0 for tables whose entries and lookups are chosen only by this host.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cheap(pub u64);

impl BuildHasher for Cheap {
    type Hasher = CheapHasher;

    fn build_hasher(&self) -> CheapHasher {
        CheapHasher(self.0)
    }
}

/// Hasher of [`Cheap`].
#[derive(Debug)]
pub(super) struct CheapHasher(u64);

impl CheapHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        // Multiplier from the finalizer of MurmurHash3. Any other odd number with well distributed
        // bits could be used.
        let x = (self.0.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 = x ^ (x >> 32);
    }
}

impl Hasher for CheapHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.mix(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.mix(u64::from(n));
    }

    fn write_u16(&mut self, n: u16) {
        self.mix(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.mix(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }

    fn write_u128(&mut self, n: u128) {
        self.mix(n as u64);
        self.mix((n >> 64) as u64);
    }

    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Pseudo-random number generator for jitter and identifiers (xoshiro256++ by Blackman and Vigna).
/// The caller provides the seed; equal seeds produce equal numbers.
#[derive(Debug, Clone)]
pub(super) struct Random([u64; 4]);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Expand the seed using SplitMix64, so that even the seed 0 produces a good state.
        let mut z = seed;
        Self(core::array::from_fn(|_| {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = z;
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        }))
    }

    pub(super) fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a random number below `n`. The distribution is not exactly uniform, but good enough
    /// for jitter.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a random duration below `max`.
    pub(super) fn time_below(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(self.below(max.as_nanos() as u64))
    }
}
