//! Cases of a seeded generator.

/// Steps take up to some forty bytes each.
const LEN_MAX: u64 = 4096;

/// Random bytes, up to 4 KiB, the same for the same seed (SplitMix64).
pub fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95);
    let mut roll = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let len = roll() % LEN_MAX;
    (0..len.div_ceil(8)).flat_map(|_| roll().to_le_bytes()).collect()
}
