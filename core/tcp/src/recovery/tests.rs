//! Tests of the scoreboard with SACK, losses and timeouts.

use super::*;

const MSS: u32 = 1000;

fn seq(n: u32) -> SeqNum {
    SeqNum(0xffff_f000) + n
}

fn blocks(list: &[(u32, u32)]) -> SackBlocks {
    let mut blocks = SackBlocks::new();
    for &(left, right) in list {
        blocks.push(seq(left), seq(right));
    }
    blocks
}

#[test]
fn three_segments_beyond_a_hole_mean_loss() {
    let mut recovery = Recovery::new(seq(0) - 1);
    recovery.set_sack(true);
    assert!(recovery.on_sack(Instant(0), &blocks(&[(1000, 3000)]), seq(0), seq(10_000)));
    recovery.detect(MSS, seq(0), seq(10_000));
    assert!(!recovery.should_enter(seq(0)));
    assert_eq!(recovery.pipe(seq(0), seq(10_000)), 8000);
    recovery.on_sack(Instant(0), &blocks(&[(1000, 4000)]), seq(0), seq(10_000));
    recovery.detect(MSS, seq(0), seq(10_000));
    assert!(recovery.should_enter(seq(0)));
    recovery.enter(seq(0), seq(10_000));
    assert_eq!(recovery.pipe(seq(0), seq(10_000)), 6000);
    assert_eq!(recovery.next_hole(seq(0)), Some(Hole { left: seq(0), right: seq(1000) }));
    recovery.on_retransmit(seq(0), seq(1000), seq(0), seq(10_000));
    assert_eq!(recovery.next_hole(seq(0)), None);
    assert_eq!(recovery.pipe(seq(0), seq(10_000)), 7000);
}

#[test]
fn retransmissions_that_later_bytes_overtook_are_lost_together() {
    let mut recovery = Recovery::new(seq(0));
    recovery.set_sack(true);
    // Segments 0 and 2 are missing; they are retransmitted after 10,000 bytes were sent.
    recovery.on_sack(Instant(0), &blocks(&[(1000, 2000), (3000, 10_000)]), seq(0), seq(10_000));
    assert!(!recovery.detect(MSS, seq(0), seq(10_000)));
    recovery.enter(seq(0), seq(10_000));
    recovery.on_retransmit(seq(0), seq(1000), seq(0), seq(10_000));
    recovery.on_retransmit(seq(2000), seq(3000), seq(0), seq(10_000));
    assert_eq!(recovery.next_hole(seq(0)), None);
    // Two later segments may have overtaken the retransmissions; three indicate a loss.
    recovery.on_sack(Instant(0), &blocks(&[(3000, 12_000)]), seq(0), seq(13_000));
    assert!(!recovery.detect(MSS, seq(0), seq(13_000)));
    assert_eq!(recovery.pipe(seq(0), seq(13_000)), 3000);
    recovery.on_sack(Instant(0), &blocks(&[(3000, 13_000)]), seq(0), seq(13_000));
    assert!(recovery.detect(MSS, seq(0), seq(13_000)));
    assert_eq!((recovery.pipe(seq(0), seq(13_000)), recovery.point), (0, seq(13_000)));
    for (left, right) in [(0, 1000), (2000, 3000)] {
        let hole = recovery.next_hole(seq(0)).expect("lost once more");
        assert_eq!(hole, Hole { left: seq(left), right: seq(right) });
        recovery.on_retransmit(hole.left, hole.right, seq(0), seq(13_000));
    }
    // The same SACK again does not mark the new retransmissions as lost.
    assert!(!recovery.detect(MSS, seq(0), seq(13_000)));
    assert_eq!(recovery.next_hole(seq(0)), None);
}

#[test]
fn a_timeout_loses_all_but_what_the_peer_has() {
    let mut recovery = Recovery::new(seq(0) - 1);
    recovery.set_sack(true);
    recovery.on_sack(Instant(0), &blocks(&[(2000, 4000)]), seq(0), seq(6000));
    recovery.enter_loss(seq(0), seq(6000), false);
    assert_eq!(recovery.pipe(seq(0), seq(6000)), 0);
    assert_eq!(recovery.next_hole(seq(0)), Some(Hole { left: seq(0), right: seq(2000) }));
    recovery.on_retransmit(seq(0), seq(2000), seq(0), seq(6000));
    assert_eq!(recovery.next_hole(seq(0)), Some(Hole { left: seq(4000), right: seq(6000) }));
    recovery.enter_loss(seq(0), seq(6000), true);
    assert_eq!(recovery.next_hole(seq(0)), Some(Hole { left: seq(0), right: seq(6000) }));
}

#[test]
fn the_scoreboard_goes_when_all_is_acknowledged() {
    let mut recovery = Recovery::new(seq(0) - 1);
    recovery.set_sack(true);
    assert!(!recovery.on_advance(seq(0) - 1, seq(0), seq(6000), MSS));
    assert!(recovery.outstanding.is_none());
    recovery.on_sack(Instant(0), &blocks(&[(1000, 6000)]), seq(0), seq(6000));
    recovery.detect(MSS, seq(0), seq(6000));
    recovery.enter(seq(0), seq(6000));
    recovery.on_retransmit(seq(0), seq(1000), seq(0), seq(6000));
    assert!(recovery.on_advance(seq(0), seq(6000), seq(7000), MSS));
    assert!(recovery.outstanding.is_none());
    assert_eq!(recovery.pipe(seq(6000), seq(7000)), 1000);
}

#[test]
fn blocks_from_outside_are_ignored() {
    let mut recovery = Recovery::new(seq(0) - 1);
    recovery.set_sack(true);
    let odd = [(5000, 4000), (9000, 20_000), (0, 1000), (5000, 5000)];
    assert!(!recovery.on_sack(Instant(0), &blocks(&odd), seq(0), seq(10_000)));
    const HALF: u32 = 1 << 31;
    for edge in [HALF - 1, HALF, HALF + 1, u32::MAX - 5000] {
        let odd = [
            (edge, edge + 4000),
            (edge, edge.wrapping_add(14_000)),
            (edge, 4000),
            (4000, edge.wrapping_add(4000)),
        ];
        assert!(!recovery.on_sack(Instant(0), &blocks(&odd), seq(0), seq(10_000)), "{edge:#x}");
    }
    assert_eq!(recovery.sacked_bytes(), 0);
    assert!(recovery.on_sack(Instant(0), &blocks(&[(1, 10_000)]), seq(0), seq(10_000)));
}
