//! Cases of a seeded generator.

use towpath_qdisc::Dice;

/// Steps take up to some forty bytes each.
const LEN_MAX: u64 = 4096;

/// Random bytes, up to 4 KiB, the same for the same seed.
pub fn bytes(seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed, 0);
    let len = dice.below(LEN_MAX);
    (0..len.div_ceil(8)).flat_map(|_| dice.next_u64().to_le_bytes()).collect()
}
