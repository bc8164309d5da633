//! Tests of the scoreboard with SACK, losses and timeouts.

use super::*;
use crate::congestion::PriorWindow;
use crate::flight::RecordBegin;
use core::time::Duration;

const MSS: u32 = 1000;

fn seq(n: u32) -> SeqNum {
    SeqNum(0xffff_f000) + n
}

fn at(ms: u64) -> Instant {
    Instant(1_000_000_000 + ms * 1_000_000)
}

/// A sender without a connection. Segments are sent one per millisecond; the RTT is 100 ms.
struct Sender {
    recovery: Recovery,
    una: u32,
    nxt: u32,
    now: u64,
    window: u64,
}

impl Sender {
    /// Creates a sender with this number of segments in flight, sent from time 0 on.
    fn new(segments: u32) -> Sender {
        let mut recovery = Recovery::new(seq(0) - 1);
        recovery.set_sack(true);
        let begin = RecordBegin {
            delivered: 0,
            at: at(0),
            is_app_limited: true,
            rate: DeliveryRate::default(),
        };
        let mut record = FlightRecord::new(VecDeque::new(), seq(0), begin);
        record.push_unrecorded(seq(MSS), at(0), true);
        recovery.set_record(record);
        let mut sender = Sender { recovery, una: 0, nxt: MSS, now: 0, window: 0 };
        (1..segments).for_each(|_| sender.send());
        sender
    }

    fn send(&mut self) {
        self.now += 1;
        self.nxt += MSS;
        let (now, nxt) = (at(self.now), seq(self.nxt));
        self.recovery.record_mut().expect("in flight").on_sent(now, nxt, 0);
        self.recovery.on_bytes_sent(MSS);
    }

    fn delivery(&self) -> AckTiming {
        AckTiming { now: at(self.now), echo: None, rtt_min: Duration::from_millis(100) }
    }

    fn timing(&self) -> LossTiming {
        let window = Duration::from_millis(self.window);
        LossTiming { now: at(self.now), window, srtt: Duration::from_millis(100) }
    }

    /// Receives a SACK block at time `now`.
    fn sack(&mut self, now: u64, left: u32, right: u32) -> Detected {
        self.now = now;
        let (ack, una) = (self.delivery(), seq(self.una));
        self.recovery.on_sack(ack, seq(left), seq(right), una);
        self.detect()
    }

    fn detect(&mut self) -> Detected {
        self.recovery.detect(self.timing(), MSS, seq(self.una), seq(self.nxt))
    }

    fn enter(&mut self) {
        let (now, una, nxt) = (at(self.now), seq(self.una), seq(self.nxt));
        assert!(self.recovery.should_enter(una));
        self.recovery.enter(now, una, nxt, self.nxt - self.una);
        self.recovery.set_prior(una, nxt, PriorWindow::default());
    }

    fn retransmit(&mut self, left: u32, right: u32) {
        self.now += 1;
        let (now, una) = (at(self.now), seq(self.una));
        self.recovery.on_retransmit(now, seq(left), seq(right), una);
    }

    fn advance(&mut self, now: u64, una: u32) -> bool {
        self.now = now;
        let (ack, old) = (self.delivery(), seq(self.una));
        self.una = una;
        self.recovery.on_advance(ack, old, seq(una), seq(self.nxt), MSS)
    }

    /// Expires the retransmission timer, and retransmits the first segment.
    fn time_out(&mut self, now: u64) {
        self.now = now;
        let (una, nxt, timing) = (seq(self.una), seq(self.nxt), self.timing());
        self.recovery.enter_loss(timing, una, nxt, Some(una + MSS));
        self.retransmit(self.una, self.una + MSS);
    }

    /// Ends the ACK that advanced SND.UNA or, with `has_news`, reported new bytes by SACK. Returns
    /// whether the last timeout was spurious.
    fn is_timeout_spurious(&mut self, is_advance: bool, has_news: bool) -> bool {
        let record = self.recovery.record_mut().expect("in flight");
        let has_original = record.rack.take_arrivals().has_original;
        let ack = ForwardAck { is_advance, has_news, has_original };
        self.recovery.check_timeout(ack, seq(self.nxt))
    }

    fn hole(&self) -> Option<(u32, u32)> {
        let hole = self.recovery.next_hole()?;
        Some((hole.left - seq(0), hole.right - seq(0)))
    }

    fn pipe(&self) -> u32 {
        assert!(self.recovery.is_in_order(seq(self.una), seq(self.nxt)));
        self.recovery.pipe(seq(self.una), seq(self.nxt))
    }
}

#[test]
fn segments_sent_before_a_delivered_one_are_lost() {
    let mut sender = Sender::new(10);
    assert_eq!(sender.sack(103, 3000, 4000).lost, 3000);
    assert_eq!((sender.hole(), sender.pipe()), (Some((0, 3000)), 6000));
    sender.enter();
    sender.retransmit(0, 1000);
    assert_eq!((sender.hole(), sender.pipe()), (Some((1000, 3000)), 7000));
}

#[test]
fn waits_for_reordered_segments() {
    let mut sender = Sender::new(10);
    sender.window = 25;
    assert_eq!(sender.sack(103, 3000, 4000).lost, 0);
    assert_eq!(sender.recovery.reorder_deadline(), at(125), "100 ms after its send time");
    sender.now = 126;
    // Two segments are overdue; the third one is due a millisecond later.
    assert_eq!(sender.detect().lost, 2000);
    assert_eq!(sender.recovery.reorder_deadline(), at(127));
    sender.sack(127, 2000, 3000);
    assert_eq!(sender.recovery.reorder_deadline(), Instant::FAR);
}

#[test]
fn loss_is_certain_after_three_segments() {
    let mut sender = Sender::new(10);
    sender.window = 25;
    sender.sack(103, 1000, 3000);
    assert!(!sender.recovery.is_loss_certain(MSS));
    sender.sack(104, 3000, 3001);
    assert!(sender.recovery.is_loss_certain(MSS));
}

#[test]
fn lost_retransmissions_are_found_without_a_timer() {
    let mut sender = Sender::new(10);
    sender.sack(103, 1000, 2000);
    sender.sack(109, 3000, 10_000);
    sender.enter();
    sender.retransmit(0, 1000);
    sender.retransmit(2000, 3000);
    assert_eq!((sender.hole(), sender.pipe()), (None, 2000));
    // A segment sent after both retransmissions arrives.
    sender.send();
    let detected = sender.sack(212, 10_000, 11_000);
    assert_eq!((detected.lost, detected.again, sender.pipe()), (2000, true, 0));
    // The second copies were sent before the next reduction only if that comes later.
    let (una, nxt) = (seq(sender.una), seq(sender.nxt));
    sender.recovery.enter_again(at(sender.now), una, nxt, 3000);
    sender.retransmit(0, 1000);
    assert_eq!(sender.sack(213, 10_000, 11_000).lost, 0, "the same SACK again");
}

#[test]
fn a_lost_part_of_a_retransmitted_burst_is_found_by_the_rest() {
    let mut sender = Sender::new(10);
    sender.sack(109, 4000, 10_000);
    sender.enter();
    sender.retransmit(0, 4000);
    let detected = sender.sack(211, 1000, 2000);
    assert_eq!((detected.lost, sender.hole()), (1000, Some((0, 1000))));
    // The rest of the burst is still in flight.
    assert_eq!(sender.pipe(), 2000);
}

#[test]
fn retransmission_acknowledged_too_early_is_of_the_first_copy() {
    let mut sender = Sender::new(3);
    sender.sack(102, 2000, 3000);
    sender.enter();
    sender.retransmit(0, 2000);
    // Sooner than any round trip: the first copy arrived, so the second one says nothing about
    // transmissions before it.
    sender.send();
    sender.advance(110, 1000);
    assert_eq!(sender.detect().lost, 0);
}

#[test]
fn a_timeout_loses_overdue_bytes() {
    let mut sender = Sender::new(6);
    sender.sack(104, 2000, 4000);
    sender.now = 300;
    sender.send();
    let (una, nxt, timing) = (seq(0), seq(sender.nxt), sender.timing());
    assert_eq!(sender.recovery.enter_loss(timing, una, nxt, Some(seq(MSS))), 2000);
    // The SACK had revealed 2000 bytes before. The last segment was sent just now.
    assert_eq!((sender.hole(), sender.pipe()), (Some((0, 2000)), 1000));
    sender.retransmit(0, 2000);
    assert_eq!(sender.hole(), Some((4000, 6000)));
    assert_eq!(sender.recovery.enter_loss(timing, una, nxt, None), 5000);
    assert_eq!(sender.hole(), Some((0, 7000)), "the peer may have discarded bytes");
}

#[test]
fn the_scoreboard_is_freed_when_all_is_acknowledged() {
    let mut sender = Sender::new(6);
    sender.sack(105, 1000, 6000);
    sender.enter();
    sender.retransmit(0, 1000);
    sender.send();
    assert!(sender.advance(210, 6000));
    assert!(sender.recovery.board().is_none());
    assert_eq!(sender.pipe(), 1000);
    sender.advance(211, 7000);
    sender.recovery.end_record();
    sender.recovery.release_idle_memory();
    assert!(sender.recovery.outstanding.is_none());
}

#[test]
fn a_receiver_that_reneges_loses_its_claims() {
    let mut sender = Sender::new(6);
    sender.sack(105, 2000, 6000);
    sender.enter();
    sender.retransmit(0, 2000);
    sender.advance(210, 2000);
    assert_eq!(sender.recovery.sacked_bytes(), 0);
    assert_eq!(sender.pipe(), 4000);
    // The first timeout finds all discarded bytes.
    sender.now = 500;
    let (una, nxt, timing) = (seq(2000), seq(sender.nxt), sender.timing());
    sender.recovery.enter_loss(timing, una, nxt, Some(seq(2000 + MSS)));
    assert_eq!((sender.hole(), sender.pipe()), (Some((2000, 6000)), 0));
}

#[test]
fn each_transmission_is_judged_once() {
    // A peer that acknowledges one segment of two at a time causes work for new bytes only.
    let mut sender = Sender::new(2000);
    let sacks = 200;
    for n in 1..=sacks {
        sender.sack(2100, n * 2 * MSS, (n * 2 + 1) * MSS);
    }
    // A judgement finds the segment before the SACK lost, and a further one nothing.
    let judgements = sender.recovery.board().expect("a scoreboard").judgements;
    assert_eq!(judgements, 2 * sacks as usize + 1);
}

#[test]
fn the_number_of_ranges_is_limited() {
    let mut sender = Sender::new(2000);
    for n in (1..500).rev() {
        sender.sack(2100, n * 2 * MSS, (n * 2 + 1) * MSS);
    }
    assert!(sender.recovery.sacked_bytes() <= 256 * MSS);
    // The first SACK reveals the loss of each segment before it, the later ones nothing.
    let judgements = sender.recovery.board().expect("a scoreboard").judgements;
    assert!(judgements <= 998 + 499, "{judgements}");
}

#[test]
fn a_probe_that_repairs_a_loss_counts_as_congestion() {
    let ack = |ack, dsack: Option<u32>, is_plain_duplicate| ProbeAck {
        ack: seq(ack),
        dsack: dsack.map(seq),
        is_plain_duplicate,
    };
    let mut probe = TailProbe::default();
    probe.on_sent(seq(1000), true);
    assert!(!probe.may_schedule());
    assert!(!probe.on_ack(ack(500, None, false)) && !probe.on_ack(ack(1000, None, false)));
    assert!(probe.on_ack(ack(1001, None, false)), "repaired");
    assert!(!probe.may_schedule(), "no RTT was measured");
    probe.on_rtt_sample();
    for unneeded in [ack(1000, Some(1000), false), ack(1000, None, true)] {
        probe.on_sent(seq(1000), true);
        assert!(!probe.on_ack(unneeded) && !probe.on_ack(ack(2000, None, false)));
    }
    probe.on_sent(seq(1000), false);
    assert!(!probe.on_ack(ack(2000, None, false)), "new bytes repair nothing");
}

#[test]
fn undoes_when_all_retransmissions_were_duplicates() {
    let mut sender = Sender::new(10);
    sender.sack(109, 2000, 10_000);
    sender.enter();
    sender.retransmit(0, 1000);
    sender.retransmit(1000, 2000);
    assert!(!sender.recovery.on_dsack(seq(0), seq(1000)));
    assert!(!sender.recovery.on_dsack(seq(0) - 1000, seq(0)), "before the recovery");
    assert!(sender.recovery.on_dsack(seq(1000), seq(2000)));
    assert!(sender.recovery.undo(seq(0)).is_some());
    assert_eq!(sender.recovery.phase, Phase::Open);
}

#[test]
fn an_old_echo_refutes_the_loss() {
    let mut sender = Sender::new(10);
    sender.sack(109, 2000, 10_000);
    sender.enter();
    sender.retransmit(0, 1000);
    let resent = at(110).millis();
    assert!(!sender.recovery.is_refuted_by_echo(resent));
    assert!(sender.recovery.is_refuted_by_echo(resent - 1));
}

#[test]
fn an_undo_keeps_segments_that_the_path_mtu_made_too_long() {
    let mut sender = Sender::new(10);
    sender.sack(109, 2000, 10_000);
    sender.enter();
    sender.retransmit(0, 2000);
    sender.advance(210, 10_000);
    sender.send();
    let (una, nxt) = (seq(10_000), seq(11_000));
    sender.recovery.resend(una, nxt, nxt);
    assert!(sender.recovery.on_dsack(seq(0), seq(2000)));
    assert!(sender.recovery.undo(una).is_some());
    assert_eq!((sender.recovery.phase, sender.hole()), (Phase::Resend, Some((10_000, 11_000))));
}

#[test]
fn bytes_sent_after_a_retransmission_at_the_same_time_reveal_its_loss() {
    for is_before in [false, true] {
        let mut sender = Sender::new(10);
        sender.sack(109, 1000, 10_000);
        sender.enter();
        if is_before {
            sender.send();
            sender.now -= 1;
        }
        sender.retransmit(0, 1000);
        if !is_before {
            sender.now -= 1;
            sender.send();
        }
        let detected = sender.sack(210, 10_000, 11_000);
        assert_eq!(detected.lost, if is_before { 0 } else { 1000 });
    }
}

#[test]
fn without_sack_duplicate_acks_deliver_no_more_than_was_in_flight() {
    let mut sender = Sender::new(10);
    sender.recovery.set_sack(false);
    let dup_ack = |sender: &mut Sender| {
        let before = sender.recovery.sacked_bytes();
        sender.recovery.on_dup_ack(1, MSS, seq(0), seq(sender.nxt));
        sender.recovery.sacked_bytes() - before
    };
    for _ in 0..3 {
        dup_ack(&mut sender);
    }
    assert_eq!(sender.detect().lost, MSS);
    sender.enter();
    let in_flight = sender.nxt;
    for _ in 0..1000 {
        let (delivered, pipe) = (dup_ack(&mut sender), sender.pipe());
        let ack = RecoveryAck { delivered, pipe, is_safe: false, ssthresh: 20 * MSS, mss: MSS };
        let window = sender.recovery.window(ack).unwrap_or(0);
        while sender.pipe() + MSS <= window {
            sender.send();
        }
    }
    assert!(sender.nxt <= 2 * in_flight, "{} bytes sent", sender.nxt);
}

/// Returns how many transmissions the peer's ACKs and our timeouts have visited.
fn visits(sender: &Sender) -> usize {
    sender.recovery.record().expect("a flight").visits.get()
}

const FLIGHT: u32 = 3000;

#[test]
fn ranges_beyond_the_limit_visit_nothing() {
    let mut sender = Sender::new(FLIGHT);
    for n in 1..=256 {
        sender.sack(3100, n * 2 * MSS, n * 2 * MSS + 10);
    }
    let before = visits(&sender);
    for _ in 0..1000 {
        sender.sack(3100, 600 * MSS, FLIGHT * MSS);
    }
    assert_eq!(sender.recovery.sacked_bytes(), 2560);
    assert!(visits(&sender) - before <= 1000, "{}", visits(&sender) - before);
}

#[test]
fn a_peer_that_reneges_repeatedly_is_believed_once() {
    let mut sender = Sender::new(FLIGHT);
    for n in 1..=1000 {
        sender.sack(3100, n, FLIGHT * MSS);
        sender.advance(3100, n);
    }
    let limit = 2 * FLIGHT as usize + 5000;
    assert!(visits(&sender) < limit, "{}", visits(&sender));
    // SACK counts again once the flight is acknowledged.
    let end = FLIGHT * MSS;
    (0..4).for_each(|_| sender.send());
    sender.advance(3200, end);
    sender.sack(3210, end + MSS, end + 2 * MSS);
    assert_eq!(sender.recovery.sacked_bytes(), MSS);
}

#[test]
fn at_most_one_reduction_per_round_trip_is_undone() {
    let mut sender = Sender::new(FLIGHT);
    let end = FLIGHT * MSS;
    let mut undone = 0;
    for n in 0..1000 {
        sender.sack(3100, end - 1000 + n, end - 999 + n);
        if sender.recovery.should_enter(seq(sender.una)) {
            sender.enter();
        }
        let (left, right) = sender.hole().expect("the flight is lost");
        let right = right.min(left + MSS);
        sender.retransmit(left, right);
        if sender.recovery.on_dsack(seq(left), seq(right)) {
            undone += usize::from(sender.recovery.undo(seq(sender.una)).is_some());
        }
    }
    assert_eq!(undone, 1);
    assert!(visits(&sender) < 2 * FLIGHT as usize + 4000, "{}", visits(&sender));
}

/// Arbitrary SACK blocks, partial acknowledgements and timeouts.
#[test]
fn work_grows_with_transmissions_and_acks_only() {
    for seed in 1..=20u32 {
        let mut sender = Sender::new(FLIGHT);
        let mut state = seed;
        let mut below = |limit: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % limit
        };
        let (acks, mut timeouts) = (3000, 0);
        for _ in 0..acks {
            let flight = sender.nxt - sender.una;
            let left = sender.una + 1 + below(flight - 2);
            let len = 1 + below(sender.nxt - left).min(1 << below(22));
            let now = sender.now;
            sender.sack(now, left, left + len);
            match below(20) {
                0 => {
                    let una = sender.una + 1 + below(5 * MSS);
                    sender.advance(now, una);
                }
                1 if timeouts < 3 => {
                    timeouts += 1;
                    let (una, nxt, timing) = (seq(sender.una), seq(sender.nxt), sender.timing());
                    sender.recovery.enter_loss(timing, una, nxt, Some(una + MSS));
                }
                2..8 => {
                    if let Some((left, right)) = sender.hole() {
                        sender.retransmit(left, right.min(left + MSS));
                    }
                }
                8..12 => sender.send(),
                _ => sender.now += 1,
            }
        }
        let sent = (sender.nxt / MSS) as usize;
        let limit = (3 + 2 * timeouts) * sent + 8 * acks as usize;
        assert!(visits(&sender) < limit, "seed {seed}: {} of {limit}", visits(&sender));
    }
}

#[test]
fn the_second_ack_after_a_timeout_reveals_late_originals() {
    for timeouts in 1..3 {
        let mut sender = Sender::new(6);
        (1..=timeouts).for_each(|n| sender.time_out(300 * n));
        sender.advance(1000, 1000);
        assert!(!sender.is_timeout_spurious(true, false), "may answer the retransmission");
        assert_eq!(sender.recovery.forward_room(seq(sender.nxt), MSS), Some(2 * MSS));
        sender.send();
        assert_eq!(sender.recovery.forward_room(seq(sender.nxt), MSS), Some(MSS));
        assert!(!sender.is_timeout_spurious(false, false), "no duplicate");
        sender.sack(1001, 2000, 3000);
        assert!(sender.is_timeout_spurious(false, true), "{timeouts} timeouts");
    }
}

#[test]
fn acks_of_new_or_repeated_bytes_do_not_refute_a_timeout() {
    let mut sender = Sender::new(6);
    sender.time_out(300);
    sender.advance(400, 1000);
    sender.is_timeout_spurious(true, false);
    sender.send();
    sender.sack(500, 6000, 7000);
    assert!(!sender.is_timeout_spurious(false, true), "only new bytes arrived");
    sender.sack(501, 2000, 3000);
    assert!(!sender.is_timeout_spurious(false, true), "the check is over");

    let mut sender = Sender::new(6);
    sender.retransmit(5000, 6000);
    sender.time_out(300);
    sender.advance(400, 1000);
    sender.is_timeout_spurious(true, false);
    sender.sack(500, 5000, 6000);
    assert!(!sender.is_timeout_spurious(false, true), "the probe may have arrived");

    let mut sender = Sender::new(6);
    sender.time_out(300);
    sender.send();
    sender.advance(400, 1000);
    sender.is_timeout_spurious(true, false);
    sender.sack(500, 6000, 7000);
    assert!(!sender.is_timeout_spurious(false, true), "sent after the timeout");
}

#[test]
fn recoveries_and_retransmissions_end_the_check_of_a_timeout() {
    let mut sender = Sender::new(10);
    sender.sack(103, 3000, 4000);
    sender.enter();
    sender.retransmit(0, 3000);
    sender.time_out(300);
    sender.advance(400, 1000);
    sender.is_timeout_spurious(true, false);
    assert_eq!(sender.recovery.forward_room(seq(sender.nxt), MSS), None, "losses were known");

    let mut sender = Sender::new(10);
    sender.time_out(300);
    sender.advance(400, 1000);
    sender.is_timeout_spurious(true, false);
    sender.retransmit(1000, 2000);
    assert_eq!(sender.recovery.forward_room(seq(sender.nxt), MSS), None);
}
