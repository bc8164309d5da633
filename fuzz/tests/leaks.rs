//! Tests that hostile programs leak no resources of an engine that continues to run. In a separate
//! binary, because the test measures resources of the whole process.

use towpath_fuzz::engine::{Case, Reach};

/// Number of attacks before the first measurement, after which memory kept for later processes
/// exists.
const WARM: u64 = 5;
const ATTACKS: u64 = 40;

#[test]
fn nothing_is_left_of_hostile_programs_that_were_killed() {
    let mut case = Case::new(Reach::Own);
    let mut before = None;
    for seed in 0..ATTACKS {
        case.attack(&towpath_fuzz::random::bytes(seed));
        case.kill_all();
        if seed >= WARM {
            let now = (descriptors(), shared_mappings());
            assert_eq!(*before.get_or_insert(now), now, "descriptors and mappings, after {seed}");
        }
    }
    case.end();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Returns the number of mappings of the region, of status pages and of channels.
fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}
