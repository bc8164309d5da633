//! A direction of the link, using `core/link`. Time is in ns of any monotonic clock.

use serde_json::{Value, json};
use towpath_link::{Carried, Dice, Dropped, Link, LinkConfig, Queueable};

/// Queue of the frames of one direction: [`Way::on_frame`] adds frames, and [`Way::poll_frame`]
/// returns those that are due in order.
pub struct Way {
    link: Link<Frame>,
    drops: Vec<Dropped<Frame>>,
    /// Buffers of delivered or dropped frames, for reuse.
    spare: Vec<Vec<u8>>,
    /// Last frame returned by [`Way::poll_frame`].
    out: Vec<u8>,
    /// Time of the last call to the link.
    link_ns: u64,
    late_ns_sum: u64,
    late_ns_max: u64,
}

#[derive(Debug, Clone)]
struct Frame(Vec<u8>);

impl Queueable for Frame {
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl Carried for Frame {
    fn duplicate(&self) -> Self {
        self.clone()
    }

    fn flip_bit(&mut self, bit: u64) {
        self.0[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

impl Way {
    pub fn new(config: LinkConfig, dice: Dice) -> Self {
        Self {
            link: Link::new(config, dice),
            drops: Vec::new(),
            spare: Vec::new(),
            out: Vec::new(),
            link_ns: 0,
            late_ns_sum: 0,
            late_ns_max: 0,
        }
    }

    /// Adds a frame, which may be lost.
    pub fn on_frame(&mut self, now: u64, frame: &[u8]) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        self.link_ns = now;
        self.link.on_packet(now, Frame(bytes), &mut self.drops);
        self.take_drops();
    }

    /// Returns the next frame that is due.
    pub fn poll_frame(&mut self, now: u64) -> Option<&[u8]> {
        // Call the link at each of its times, because it then reports how late each frame is. Time
        // never decreases.
        while let Some(due) = self.next_timeout().filter(|due| *due <= now) {
            self.link_ns = self.link_ns.max(due);
            let frame = self.link.poll_packet(self.link_ns, &mut self.drops);
            self.take_drops();
            let Some(Frame(bytes)) = frame else { continue };
            self.late_ns_sum += now - due;
            self.late_ns_max = self.late_ns_max.max(now - due);
            self.spare.push(std::mem::replace(&mut self.out, bytes));
            return Some(&self.out);
        }
        None
    }

    /// Returns the time at which a frame is due, or the transmission of the current frame ends.
    pub fn next_timeout(&self) -> Option<u64> {
        self.link.next_timeout_ns()
    }

    /// Returns the counts of frames: delivered, lost at random, dropped because the queue was full,
    /// and held. Also returns the mean and maximum lateness of delivered frames in µs.
    pub fn counts(&self) -> Value {
        let stats = self.link.stats();
        let late_us = self.late_ns_sum as f64 / stats.delivered.max(1) as f64 / 1e3;
        json!({
            "carried": stats.delivered,
            "lost": stats.lost,
            "full": stats.overlimit,
            "held": self.link.held(),
            "late_us": late_us,
            "late_us_max": self.late_ns_max as f64 / 1e3,
        })
    }

    fn take_drops(&mut self) {
        self.spare.extend(self.drops.drain(..).map(|dropped| dropped.item.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_link::{Chance, Loss, Probability};

    fn config() -> LinkConfig {
        LinkConfig { delay_ns: 10_000, limit: Some(100), ..LinkConfig::default() }
    }

    fn way(config: LinkConfig) -> Way {
        Way::new(config, Dice::new(7, 0))
    }

    fn count(way: &Way, name: &str) -> u64 {
        way.counts()[name].as_u64().expect(name)
    }

    #[test]
    fn a_frame_comes_out_when_its_delay_is_over() {
        let mut way = way(config());
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
        let mut way = way(config());
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
        // Buffers are reused, so that only the frames held at once need memory.
        assert!(way.spare.len() <= 10_000 / 300 + 2, "{}", way.spare.len());
    }

    #[test]
    fn each_frame_is_carried_or_lost_and_the_seed_says_which() {
        let one_percent = Probability::new(0.01).expect("a probability");
        let loss = Loss::Random(Chance::independent(one_percent));
        let run = |seed: u64| {
            let mut way = Way::new(LinkConfig { loss, ..config() }, Dice::new(seed, 0));
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
        let mut way = way(LinkConfig { limit: Some(3), ..config() });
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
        // At 8 Mbit/s a byte takes a microsecond.
        let mut way = way(LinkConfig { rate: Some(8_000_000), ..config() });
        way.on_frame(0, &[1; 100]);
        way.on_frame(0, &[2; 50]);
        // The transmission of the second frame begins when that of the first one ends.
        assert_eq!(way.next_timeout(), Some(100_000));
        assert_eq!(way.poll_frame(109_999), None);
        assert_eq!(way.poll_frame(159_999).map(<[u8]>::len), Some(100));
        assert_eq!(way.poll_frame(159_999), None);
        assert_eq!(way.poll_frame(160_000).map(<[u8]>::len), Some(50));
        // An idle link does not accumulate credit for later frames.
        way.on_frame(1_000_000, &[3; 100]);
        assert_eq!(way.next_timeout(), Some(1_110_000));
    }
}
