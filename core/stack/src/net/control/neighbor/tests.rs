//! Tests neighbours that answer, move, stop answering and are evicted.

use super::*;
use crate::net::limits::NEIGHBORS_MAX;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const ANSWER: Advert = Advert { mac: Some(MAC), solicited: true, override_: true, router: None };

fn at(millis: u64) -> Instant {
    Instant(millis * 1_000_000)
}

fn key() -> HopKey {
    (IfaceId(1), "10.0.0.2".parse().unwrap())
}

fn state(neighbors: &Neighbors) -> Option<NeighborState> {
    neighbors.iter().find(|n| n.addr == key().1).map(|n| n.state)
}

fn solicits(events: &[Event]) -> Vec<Option<MacAddr>> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Solicit(solicit) => Some(solicit.to),
            Event::Failed(_) => None,
        })
        .collect()
}

/// Returns the last update of the neighbour.
fn told(neighbors: &mut Neighbors) -> Option<NeighborUpdate> {
    std::iter::from_fn(|| neighbors.take_update()).last().map(|(_, news)| news)
}

fn known(mac: MacAddr, tell_at: Instant) -> Option<NeighborUpdate> {
    Some(NeighborUpdate::Known { key: key(), mac, tell_at })
}

#[test]
fn asks_three_times_a_second_apart_and_then_fails() {
    let mut neighbors = Neighbors::new(Keyed([1, 2]), NEIGHBORS_MAX);
    assert!(neighbors.on_used(at(0), key(), Parts::FIRST));
    assert!(!neighbors.on_used(at(1), key(), Parts::FIRST));
    assert!(neighbors.on_timeout(at(999)).is_empty());
    assert_eq!(solicits(&neighbors.on_timeout(at(1000))), [None]);
    assert!(neighbors.on_timeout(at(1500)).is_empty());
    assert_eq!(neighbors.next_timeout(), at(2000));
    assert_eq!(solicits(&neighbors.on_timeout(at(2000))), [None]);
    assert_eq!(told(&mut neighbors), None);
    assert_eq!(neighbors.on_timeout(at(3000)), [Event::Failed(key())]);
    assert_eq!(told(&mut neighbors), Some(NeighborUpdate::Failed(key())));
    assert_eq!(neighbors.next_timeout(), Instant::FAR);
    assert_eq!(state(&neighbors), None);
}

#[test]
fn an_answer_is_told_and_use_after_its_time_probes() {
    let mut neighbors = Neighbors::new(Keyed([1, 2]), NEIGHBORS_MAX);
    neighbors.on_used(at(0), key(), Parts::FIRST);
    assert!(neighbors.is_asked(&key()));
    assert!(!neighbors.on_advert(at(10), key(), ANSWER, at(30_000)));
    assert_eq!(told(&mut neighbors), known(MAC, at(1010)));
    assert!(!neighbors.on_used(at(29_500), key(), Parts::FIRST));
    assert_eq!(told(&mut neighbors), known(MAC, at(30_000)), "no later than its time ends");
    assert_eq!(state(&neighbors), Some(NeighborState::Reachable));

    neighbors.on_used(at(30_000), key(), Parts::FIRST);
    assert_eq!(told(&mut neighbors), known(MAC, at(31_000)));
    assert_eq!(state(&neighbors), Some(NeighborState::Delay));
    assert!(neighbors.on_timeout(at(34_999)).is_empty());
    assert_eq!(solicits(&neighbors.on_timeout(at(35_000))), [Some(MAC)]);
    assert_eq!(state(&neighbors), Some(NeighborState::Probe));
    assert_eq!(solicits(&neighbors.on_timeout(at(36_000))), [Some(MAC)]);
    neighbors.on_used(at(36_500), key(), Parts::FIRST);
    assert_eq!(state(&neighbors), Some(NeighborState::Probe));
    neighbors.on_advert(at(36_600), key(), ANSWER, at(60_000));
    assert_eq!(state(&neighbors), Some(NeighborState::Reachable));
}

#[test]
fn an_unanswered_probe_forgets_the_neighbour() {
    let mut neighbors = Neighbors::new(Keyed([1, 2]), NEIGHBORS_MAX);
    neighbors.on_question(at(0), key(), MAC, true);
    assert_eq!(state(&neighbors), Some(NeighborState::Stale));
    assert!(!neighbors.on_used(at(0), key(), Parts::FIRST));
    for seconds in 5..8 {
        assert_eq!(solicits(&neighbors.on_timeout(at(seconds * 1000))), [Some(MAC)]);
    }
    assert_eq!(neighbors.on_timeout(at(8000)), [Event::Failed(key())]);
    assert_eq!(told(&mut neighbors), Some(NeighborUpdate::Failed(key())));
    assert!(neighbors.on_used(at(8000), key(), Parts::FIRST));
}

#[test]
fn the_transport_confirms_instead_of_a_probe() {
    let mut neighbors = Neighbors::new(Keyed([1, 2]), NEIGHBORS_MAX);
    neighbors.on_question(at(0), key(), MAC, true);
    neighbors.on_used(at(0), key(), Parts::FIRST);
    neighbors.confirm(at(0), Parts::FIRST, key(), OTHER, at(20_000));
    assert_eq!(state(&neighbors), Some(NeighborState::Delay), "it said nothing of this address");
    neighbors.confirm(at(0), Parts::FIRST, key(), MAC, at(20_000));
    assert!(neighbors.on_timeout(at(5000)).is_empty());
    assert_eq!(state(&neighbors), Some(NeighborState::Reachable));
}

#[test]
fn unasked_answers_make_no_entry_and_only_override_changes_one() {
    let mut neighbors = Neighbors::new(Keyed([1, 2]), NEIGHBORS_MAX);
    neighbors.on_advert(at(0), key(), ANSWER, at(1));
    neighbors.on_question(at(0), key(), MAC, false);
    assert_eq!(state(&neighbors), None);

    neighbors.on_question(at(0), key(), MAC, true);
    neighbors.on_used(at(0), key(), Parts::FIRST);
    neighbors.confirm(at(0), Parts::FIRST, key(), MAC, at(20_000));
    let gentle = Advert { mac: Some(OTHER), solicited: false, override_: false, router: None };
    neighbors.on_advert(at(0), key(), gentle, at(30_000));
    assert_eq!(state(&neighbors), Some(NeighborState::Stale));
    assert_eq!(told(&mut neighbors), known(MAC, at(0)));
    neighbors.on_advert(at(0), key(), Advert { override_: true, ..gentle }, at(30_000));
    assert_eq!(state(&neighbors), Some(NeighborState::Stale));
    assert_eq!(told(&mut neighbors), known(OTHER, at(0)));
}

/// All four data parts that use the neighbour receive its changes. Only the sender of a use report
/// receives the answer.
#[test]
fn users_hear_what_has_changed_and_who_asks_is_answered() {
    let mut neighbors = Neighbors::new(Keyed([1, 2]), NEIGHBORS_MAX);
    let part = |n| Parts::FIRST.and(Parts::one(n));
    let all = (1..4).fold(Parts::FIRST, |all, n| all.and(part(n)));
    let to = |neighbors: &mut Neighbors| {
        std::iter::from_fn(|| neighbors.take_update()).map(|(to, _)| to).collect::<Vec<_>>()
    };
    for n in 0..4 {
        neighbors.on_used(at(0), key(), part(n));
    }
    neighbors.on_advert(at(10), key(), ANSWER, at(30_000));
    assert_eq!(to(&mut neighbors), [all]);
    for (solicited, override_) in [(true, true), (false, true), (false, false)] {
        let again = Advert { solicited, override_, ..ANSWER };
        neighbors.on_advert(at(20), key(), again, at(30_000));
        neighbors.on_question(at(20), key(), MAC, true);
    }
    assert_eq!(to(&mut neighbors), []);
    neighbors.on_used(at(40_000), key(), part(2));
    neighbors.confirm(at(40_001), part(3), key(), MAC, at(60_000));
    assert_eq!(to(&mut neighbors), [part(2), part(3)]);
    neighbors.on_question(at(40_002), key(), OTHER, true);
    assert_eq!(to(&mut neighbors), [all]);
    neighbors.on_used(at(40_003), key(), part(1));
    for seconds in 45..49 {
        neighbors.on_timeout(at(seconds * 1000 + 3));
    }
    assert_eq!(to(&mut neighbors), [part(1), all], "it failed");
}

#[test]
fn the_table_is_bounded() {
    let mut neighbors = Neighbors::new(Keyed([1, 2]), NEIGHBORS_MAX);
    let nth = |n: u32| (IfaceId(1), IpAddr::V4((0x0a00_0000 + n).into()));
    for n in 0..NEIGHBORS_MAX as u32 * 2 {
        assert!(neighbors.on_used(at(0), nth(n), Parts::FIRST));
    }
    assert_eq!(neighbors.iter().count(), NEIGHBORS_ASKED_MAX);
    assert_eq!(neighbors.take_displaced(), (2 * NEIGHBORS_MAX - NEIGHBORS_ASKED_MAX) as u64);
    assert_eq!(neighbors.take_update(), Some((Parts::FIRST, NeighborUpdate::Forgotten(nth(0)))));
    assert!(neighbors.on_used(at(0), nth(0), Parts::FIRST));
}
