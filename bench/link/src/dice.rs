//! Numbers that look random, and are the same for the same seed.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub struct Dice(u64);

impl Dice {
    /// Those of one of several streams, of which none says anything about another.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(mix(seed).wrapping_add(stream)))
    }

    /// Whether what happens with this probability happens now. Never for 0, always for 1.
    pub fn falls(&mut self, probability: f64) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The 53 bits that a double has.
        let number = (mix(self.0) >> 11) as f64 / (1u64 << 53) as f64;
        number < probability
    }
}

fn mix(mut z: u64) -> u64 {
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
    fn as_many_fall_as_are_asked_for() {
        for seed in 0..20 {
            for (probability, expected) in [(0.001, 200.), (0.01, 2000.), (0.5, 100_000.)] {
                let found = count(&falls(seed, seed % 2, probability, 200_000)) as f64;
                // Five standard deviations: one of three million seeds is out of that by chance.
                let tolerance = 5. * f64::sqrt(expected * (1. - probability));
                assert!((found - expected).abs() < tolerance, "{seed}: {found} of {expected}");
            }
        }
        assert_eq!(count(&falls(1, 0, 0., 100_000)), 0);
        assert_eq!(count(&falls(1, 0, 1., 100_000)), 100_000);
    }

    #[test]
    fn seeds_and_streams_are_throws_of_their_own() {
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
}
