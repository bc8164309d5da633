//! Cases of a seeded generator.

use towpath_qdisc::Dice;

/// Maximum length in bytes; a step uses up to about 40 bytes.
const LEN_MAX: u64 = 4096;

/// Returns up to 4 KiB of random bytes, which depend only on the seed.
pub fn bytes(seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed, 0);
    let len = dice.below(LEN_MAX);
    (0..len.div_ceil(8)).flat_map(|_| dice.next_u64().to_le_bytes()).collect()
}
