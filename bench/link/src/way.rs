//! What happens to frames on one way of the link. Time is in ns of any clock that does not go back.

use std::collections::VecDeque;

use serde_json::{Value, json};

use towpath_qdisc::Dice;

/// How a link treats frames.
#[derive(Clone, Copy)]
pub struct Rules {
    /// From the moment at which a frame has been sent whole to the one at which it comes out.
    pub delay_ns: u64,
    /// From 0 to 1.
    pub loss: f64,
    /// How fast frames are sent, one after the other; None: at once.
    pub bits_per_second: Option<u64>,
    /// Frames that are held at a time, by rate and delay together.
    pub held_max: usize,
}

/// Frames of one direction, from [`Way::on_frame`] to [`Way::poll_frame`], which gives them in the same order.
pub struct Way {
    rules: Rules,
    dice: Dice,
    /// The front is due first: the delay is the same for all.
    held: VecDeque<Held>,
    /// When the frame before has been sent whole.
    sent_at: u64,
    /// Memory of frames that have come out, to be used again.
    spare: Vec<Vec<u8>>,
    /// The frame that came out last.
    out: Vec<u8>,
    counts: Counts,
}

struct Held {
    due: u64,
    bytes: Vec<u8>,
}

/// What became of frames.
#[derive(Default)]
struct Counts {
    carried: u64,
    lost: u64,
    full: u64,
    late_ns_sum: u64,
    late_ns_max: u64,
}

impl Way {
    pub fn new(rules: Rules, dice: Dice) -> Self {
        Self {
            rules,
            dice,
            held: VecDeque::new(),
            sent_at: 0,
            spare: Vec::new(),
            out: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// A frame goes in, and may be lost.
    pub fn on_frame(&mut self, now: u64, frame: &[u8]) {
        if self.dice.falls(self.rules.loss) {
            self.counts.lost += 1;
            return;
        }
        if self.held.len() >= self.rules.held_max {
            self.counts.full += 1;
            return;
        }
        self.sent_at = self.sent_at.max(now) + self.send_ns(frame.len());
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        self.held.push_back(Held { due: self.sent_at + self.rules.delay_ns, bytes });
    }

    /// The next frame that comes out by now.
    pub fn poll_frame(&mut self, now: u64) -> Option<&[u8]> {
        let held = self.held.pop_front_if(|held| held.due <= now)?;
        let late_ns = now - held.due;
        self.counts.carried += 1;
        self.counts.late_ns_sum += late_ns;
        self.counts.late_ns_max = self.counts.late_ns_max.max(late_ns);
        self.spare.push(std::mem::replace(&mut self.out, held.bytes));
        Some(&self.out)
    }

    /// When the next frame comes out.
    pub fn next_timeout(&self) -> Option<u64> {
        self.held.front().map(|held| held.due)
    }

    /// What became of the frames so far: those that came out, were lost by dice, and were dropped because too many were
    /// held; those that are held; and by how much frames came out late, in µs.
    pub fn counts(&self) -> Value {
        let Counts { carried, lost, full, late_ns_sum, late_ns_max } = self.counts;
        let late_us = late_ns_sum as f64 / carried.max(1) as f64 / 1e3;
        json!({
            "carried": carried,
            "lost": lost,
            "full": full,
            "held": self.held.len(),
            "late_us": late_us,
            "late_us_max": late_ns_max as f64 / 1e3,
        })
    }

    fn send_ns(&self, len: usize) -> u64 {
        self.rules.bits_per_second.map_or(0, |rate| len as u64 * 8 * 1_000_000_000 / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { delay_ns: 10_000, loss: 0., bits_per_second: None, held_max: 100 };

    fn way(rules: Rules) -> Way {
        Way::new(rules, Dice::new(7, 0))
    }

    fn count(way: &Way, name: &str) -> u64 {
        way.counts()[name].as_u64().expect(name)
    }

    #[test]
    fn a_frame_comes_out_when_its_delay_is_over() {
        let mut way = way(RULES);
        assert_eq!(way.next_timeout(), None);
        way.on_frame(500, b"a");
        way.on_frame(700, b"b");
        assert_eq!(way.next_timeout(), Some(10_500));
        assert_eq!(way.poll_frame(10_499), None);
        assert_eq!(way.poll_frame(10_500), Some(&b"a"[..]));
        assert_eq!(way.poll_frame(10_500), None);
        assert_eq!(way.next_timeout(), Some(10_700));
        assert_eq!(way.poll_frame(12_700), Some(&b"b"[..]));
        assert_eq!(way.next_timeout(), None);
        assert_eq!((count(&way, "carried"), count(&way, "held")), (2, 0));
        let counts = way.counts();
        assert_eq!(
            (counts["late_us"].as_f64(), counts["late_us_max"].as_f64()),
            (Some(1.), Some(2.))
        );
    }

    #[test]
    fn frames_keep_their_order_and_their_bytes_whatever_their_length() {
        let mut way = way(RULES);
        let frame = |n: u64| vec![n as u8; 1 + (n * 37 % 1500) as usize];
        let mut next = 0;
        for n in 0..5000 {
            let now = n * 300;
            way.on_frame(now, &frame(n));
            while let Some(bytes) = way.poll_frame(now) {
                assert_eq!(bytes, frame(next));
                next += 1;
            }
        }
        while let Some(bytes) = way.poll_frame(10_000_000) {
            assert_eq!(bytes, frame(next));
            next += 1;
        }
        assert_eq!(next, 5000);
        // As many as were held at once, and no more.
        assert!(way.spare.len() <= 10_000 / 300 + 2, "{}", way.spare.len());
    }

    #[test]
    fn each_frame_is_carried_or_lost_and_the_seed_says_which() {
        let run = |seed: u64| {
            let mut way = Way::new(Rules { loss: 0.01, ..RULES }, Dice::new(seed, 0));
            let mut out = Vec::new();
            for n in 0..100_000u32 {
                let now = u64::from(n) * 1000;
                way.on_frame(now, &n.to_le_bytes());
                while let Some(bytes) = way.poll_frame(now) {
                    out.push(u32::from_le_bytes(bytes.try_into().expect("four bytes")));
                }
            }
            assert!(out.is_sorted() && out.len() as u64 == count(&way, "carried"));
            let all = ["carried", "lost", "full", "held"].map(|name| count(&way, name));
            assert_eq!((all.iter().sum::<u64>(), all[2]), (100_000, 0));
            assert!((850..1150).contains(&all[1]), "{} of about 1000", all[1]);
            out
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn what_is_too_much_is_dropped_and_counted_until_there_is_room() {
        let mut way = way(Rules { held_max: 3, ..RULES });
        for n in 0..5 {
            way.on_frame(n, &[n as u8]);
        }
        assert_eq!((count(&way, "held"), count(&way, "full")), (3, 2));
        assert_eq!(way.poll_frame(10_000), Some(&[0][..]));
        way.on_frame(10_000, &[5]);
        way.on_frame(10_000, &[6]);
        let left: Vec<u8> = std::iter::from_fn(|| way.poll_frame(20_000).map(|it| it[0])).collect();
        assert_eq!(left, [1, 2, 5]);
        assert_eq!((count(&way, "carried"), count(&way, "full"), count(&way, "lost")), (4, 3, 0));
    }

    #[test]
    fn a_rate_sends_frames_one_after_the_other() {
        // A byte takes a microsecond.
        let mut way = way(Rules { bits_per_second: Some(8_000_000), ..RULES });
        way.on_frame(0, &[1; 100]);
        way.on_frame(0, &[2; 50]);
        assert_eq!(way.next_timeout(), Some(110_000));
        assert_eq!(way.poll_frame(159_999).map(<[u8]>::len), Some(100));
        assert_eq!(way.poll_frame(159_999), None);
        assert_eq!(way.poll_frame(160_000).map(<[u8]>::len), Some(50));
        // A way that was idle has saved nothing up.
        way.on_frame(1_000_000, &[3; 100]);
        assert_eq!(way.next_timeout(), Some(1_110_000));
    }
}
