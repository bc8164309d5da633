//! Leaks of hostile programs in an engine that goes on: there are none. A test of its own, because
//! it looks at what the whole process has.

use towpath_fuzz::engine::{Case, Reach};

/// Attacks before the first look: memory that is kept for the next process has been made by then.
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

/// Mappings of the region, of the status page and of channels.
fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}
