//! Deterministic pseudo-random numbers: [`Dice`] for simulated links, queueing disciplines and
//! tests, and [`mix`] for hashes.
//!
//! Equal seeds result in equal sequences on every machine. The crate has no dependencies, so that
//! every crate of the workspace can use it.

#![forbid(unsafe_code)]

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
///
/// All random numbers of simulated links and queueing disciplines come from this generator. Do not
/// use it for secrets, because an attacker can compute the seed from a few numbers.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator. Each `stream` is an independent sequence of numbers for the same seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(mix(seed).wrapping_add(stream)))
    }

    /// Creates an independent generator, for example for each link of a network.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(mix(self.next_u64()))
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns the next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Returns a random number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        // Use 53 bits, the precision of an `f64`.
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a random number below `bound`, or 0 for a bound of 0. Uses Lemire's multiplication;
    /// the probabilities differ by less than `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a random index into a list of `len` entries; 0 for an empty list.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns true with the given probability: never for 0, always for 1.
    pub fn falls(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

/// Mixes 64 bits so that each bit of the result depends on each bit of `z` (the finalizer of
/// SplitMix64). The function is not keyed: do not use it for hash tables whose keys an attacker can
/// choose.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn falls(seed: u64, stream: u64, probability: f64, throws: usize) -> Vec<bool> {
        let mut dice = Dice::new(seed, stream);
        (0..throws).map(|_| dice.falls(probability)).collect()
    }

    fn count(falls: &[bool]) -> usize {
        falls.iter().filter(|&&it| it).count()
    }

    #[test]
    fn events_happen_as_often_as_their_probability_says() {
        for seed in 0..10 {
            for (probability, expected) in [(0.001, 200.), (0.01, 2000.), (0.5, 100_000.)] {
                let found = count(&falls(seed, seed % 2, probability, 200_000)) as f64;
                let tolerance = 5. * f64::sqrt(expected * (1. - probability));
                assert!((found - expected).abs() < tolerance, "{seed}: {found} of {expected}");
            }
        }
        assert_eq!(count(&falls(1, 0, 0., 100_000)), 0);
        assert_eq!(count(&falls(1, 0, 1., 100_000)), 100_000);
    }

    #[test]
    fn seeds_and_streams_are_independent() {
        let first = falls(1, 0, 0.5, 1000);
        assert_eq!(first, falls(1, 0, 0.5, 1000));
        for (seed, stream) in [(1, 1), (2, 0), (2, 1), (0, 0), (0, 1)] {
            let other = falls(seed, stream, 0.5, 1000);
            let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!((400..600).contains(&same), "{seed} {stream}: {same}");
        }
    }

    #[test]
    fn a_loss_does_not_bring_another_one() {
        let falls = falls(3, 0, 0.1, 200_000);
        let pairs = falls.windows(2).filter(|it| it[0] && it[1]).count();
        assert!((1800..2200).contains(&pairs), "{pairs} of about 2000");
    }

    #[test]
    fn numbers_below_a_bound_cover_it_evenly() {
        let mut dice = Dice::new(4, 0);
        let mut counts = [0; 7];
        for _ in 0..70_000 {
            counts[dice.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_eq!(dice.below(0), 0);
    }
}
