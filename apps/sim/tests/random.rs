//! Tests with random worlds, with worlds that violated a rule in the past, and of the shrinker.

use towpath_sim::explore::{ExtraRules, Outcome, RandomWorld, check_text, shrink};
use towpath_sim::{BatchOptions, read, run_all};

/// Runs the world of a seed. Panics with the rule and the scenario on a violation.
fn check(seed: u64) -> Outcome {
    let text = RandomWorld::draw(seed).to_toml();
    check_text(&text, ExtraRules::default()).unwrap_or_else(|fault| {
        panic!("{fault}\ncargo lab sim --seed {seed} --scenarios 1\n{text}")
    })
}

/// Number of worlds in the normal test run: some seconds without optimization.
const WORLDS: u64 = 60;

#[test]
fn random_worlds_keep_the_rules() {
    let outcomes: Vec<Outcome> = (1..=WORLDS).map(check).collect();
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    // Ensure that the worlds are useful: bytes arrive, exchanges complete, and some fail.
    assert!(sum(|outcome| outcome.bytes) > 1_000_000, "{outcomes:?}");
    assert!(sum(|outcome| outcome.whole) > WORLDS, "{outcomes:?}");
    assert!(sum(|outcome| outcome.failed) > 0, "{outcomes:?}");
}

#[test]
fn a_seed_gives_the_same_world_each_time() {
    for seed in 1..=5 {
        assert_eq!(RandomWorld::draw(seed), RandomWorld::draw(seed));
        assert_eq!(check(seed), check(seed));
    }
    assert_ne!(RandomWorld::draw(1), RandomWorld::draw(2));
}

#[test]
fn a_random_world_is_a_scenario_of_towpath_sim() {
    let text = RandomWorld::draw(3).to_toml();
    let plans = read(&text).expect("a scenario");
    let options = BatchOptions { seed: None, runs: 1, captures: None, traces: false, threads: 1 };
    let report = run_all(&plans, options, &|_| {}).expect("a run");
    assert_eq!(report.runs[0].flows.len(), plans[0].flows.len());
}

#[test]
fn a_world_that_breaks_a_rule_is_made_small() {
    // An artificial rule that most worlds violate: at most 5000 bytes may arrive.
    let rules = ExtraRules { bytes_max: Some(5_000) };
    let mut tried = 0;
    for seed in 1..=6 {
        let scene = RandomWorld::draw(seed);
        let Err(fault) = check_text(&scene.to_toml(), rules) else { continue };
        assert_eq!(fault.rule, "no more than 5000 bytes arrive");
        let shrunk = shrink(&scene, &fault, rules, 300);
        let (before, after) = (scene.to_toml(), shrunk.scene.to_toml());
        assert!(after.len() < before.len(), "{before}\n{after}");
        assert_eq!(check_text(&after, rules).expect_err("still broken").rule, fault.rule);
        // The minimal world has one flow between two hosts on a plain link.
        let plan = &read(&after).expect("a scenario")[0];
        assert_eq!((plan.flows.len(), plan.hosts.len(), plan.links.len()), (1, 2, 1), "{after}");
        assert!(plan.links[0].ways.iter().all(|way| way.outages.is_empty()), "{after}");
        assert!(shrunk.tried <= 300);
        tried += 1;
    }
    assert!(tried >= 2, "{tried} worlds were tried");
}

#[test]
fn a_shrinker_ends_when_its_tries_are_used_up() {
    let rules = ExtraRules { bytes_max: Some(0) };
    let (scene, fault) = (1..)
        .map(RandomWorld::draw)
        .find_map(|scene| Some((scene.clone(), check_text(&scene.to_toml(), rules).err()?)))
        .expect("bytes arrive in some world");
    assert_eq!(shrink(&scene, &fault, rules, 3).tried, 3);
}

/// Returns a transfer over a link without loss, with additional keys for the hosts and the flow.
fn clean_pair(from: &str, to: &str, flow: &str) -> String {
    format!(
        "title = \"t\"\nduration = \"1h\"\nsample = \"1min\"\n[[host]]\nname = \"a\"\n{from}\n\
         [[host]]\nname = \"b\"\n{to}\n[[link]]\nbetween = [\"a\", \"b\"]\ndelay = \"5ms\"\n\
         [[flow]]\nkind = \"exchange\"\nfrom = \"a\"\nto = \"b\"\n{flow}\n"
    )
}

/// Seeds 282, 1061 and 1909: the peer's initial window is very small, so that segments and the
/// congestion window are small, too. When the peer's window grew, segments grew beyond the
/// congestion window, and no data was sent again.
#[test]
fn a_window_that_grows_leaves_room_for_a_segment() {
    let from = "initial_window = 1";
    let to = "recv_buffer = 512\nrecv_buffer_max = \"6MiB\"";
    let outcome = check_text(&clean_pair(from, to, "bytes = 9000"), ExtraRules::default());
    let outcome = outcome.unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!((outcome.bytes, outcome.whole), (9_000, 1));
}

/// Seed 68055: a listener drops a handshake after 63 s, and a duplicate of its SYN starts another
/// one. The acknowledgement of the first handshake is reset, and the second one continues.
#[test]
fn a_reset_of_an_older_handshake_does_not_end_a_newer_one() {
    check(68_055);
}

/// Seed 1266: losses reduce the congestion window to two short segments. Then the peer announces a
/// larger window, and the segments become longer than the congestion window.
#[test]
fn longer_segments_do_not_stop_a_connection() {
    check(1266);
}

mod nightly {
    use super::*;

    #[test]
    fn many_random_worlds_keep_the_rules() {
        (1_000..4_000).for_each(|seed| {
            check(seed);
        });
    }
}
