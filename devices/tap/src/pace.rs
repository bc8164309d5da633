//! When to ask a device for another frame, which is a system call also where there is none.
//!
//! Frames that come alone, each after a pause, as requests on one connection do, cost two such
//! calls that find nothing. The first follows the frame, and the second the answer. Both are left
//! out as long as frames come alone, and so is the call right after the kernel said that there is
//! none. Nothing is lost by that. Before the stack sleeps, the kernel says whether there are any
//! frames. While the stack does not sleep, it asks again in its next turn but one.

/// How frames have come lately.
#[derive(Debug, Default)]
pub(crate) struct TapPace {
    /// Number of consecutive polls that found exactly one frame, up to [`ALONE`].
    alone: u8,
    /// Number of frames since a second read was last attempted.
    unasked: u8,
    /// Arrival time of the last frame in ns.
    last_ns: u64,
    /// Whether to skip the next poll.
    pausing: bool,
    /// Whether the last poll was skipped, and readiness has not been checked since.
    left_out: bool,
    /// Whether a readiness check found the device empty.
    empty: bool,
}

/// So many frames in a row that came alone make another one likely.
const ALONE: u8 = 8;
/// Frames after which a second one is asked for nevertheless.
const ASK_EVERY: u8 = 16;
/// Frames that come closer than this, in ns, may be of several at once.
const CLOSE_NS: u64 = 15_000;

impl TapPace {
    /// Before the first read of a look: whether to leave it out.
    pub fn pauses(&mut self) -> bool {
        let pauses = std::mem::take(&mut self.pausing);
        self.left_out |= pauses;
        pauses || std::mem::take(&mut self.empty)
    }

    /// The device was just seen to have something, or nothing.
    pub fn looked(&mut self, ready: bool) {
        *self = Self { pausing: false, left_out: false, empty: !ready, ..*self };
    }

    /// After the first frame of a look, which is a long one or not: whether to ask for a second
    /// one.
    pub fn asks_on(&mut self, now_ns: u64, is_long: bool) -> bool {
        let is_close =
            now_ns.saturating_sub(std::mem::replace(&mut self.last_ns, now_ns)) < CLOSE_NS;
        // A long frame is usually one of several. After a skipped poll, several frames may be
        // queued. In both cases reset the assumption that frames arrive alone.
        if is_long || std::mem::take(&mut self.left_out) {
            self.alone = 0;
        }
        if self.alone < ALONE || is_close || self.unasked >= ASK_EVERY {
            self.unasked = 0;
            return true;
        }
        self.unasked += 1;
        self.pausing = true;
        false
    }

    /// After a look that asked on: how many frames there were.
    pub fn found(&mut self, frames: usize) {
        match frames {
            0 => {}
            1 => self.alone = (self.alone + 1).min(ALONE),
            _ => self.alone = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that come alone, 50 µs apart from `ns` on: after how many of them another one was
    /// asked for.
    fn asked_after(pace: &mut TapPace, ns: u64, count: u64) -> usize {
        let asked = (1..=count).filter(|n| {
            pace.looked(true);
            let asks = !pace.pauses() && pace.asks_on(ns + n * 50_000, false);
            if asks {
                pace.found(1);
            }
            asks
        });
        asked.count()
    }

    #[test]
    fn of_frames_that_come_alone_few_are_asked_after() {
        let mut pace = TapPace::default();
        assert_eq!(asked_after(&mut pace, 0, ALONE.into()), ALONE.into());
        assert_eq!(asked_after(&mut pace, 1 << 30, 17 * 10), 10);
        // Two at once.
        while !pace.asks_on(1 << 40, false) {}
        pace.found(2);
        assert_eq!(asked_after(&mut pace, 1 << 41, ALONE.into()), ALONE.into());
    }

    #[test]
    fn one_look_is_left_out_unless_the_device_has_something() {
        let mut pace = TapPace::default();
        asked_after(&mut pace, 0, 20);
        assert!(!pace.asks_on(1 << 40, false));
        pace.looked(true);
        assert!(!pace.pauses());
        assert!(!pace.asks_on(1 << 41, false));
        assert!(pace.pauses());
        assert!(!pace.pauses(), "not for ever");
        assert!(
            pace.asks_on(1 << 42, false),
            "it has come while nobody looked, and others may have"
        );
    }

    #[test]
    fn a_device_that_was_seen_to_have_nothing_is_not_asked_at_once() {
        let mut pace = TapPace::default();
        pace.looked(false);
        assert_eq!([pace.pauses(), pace.pauses()], [true, false]);
        pace.looked(false);
        pace.looked(true);
        assert!(!pace.pauses());
        // Nothing has come while nobody looked.
        asked_after(&mut pace, 0, 20);
        assert!(!pace.asks_on(1 << 40, false));
        pace.looked(false);
        assert_eq!([pace.pauses(), pace.pauses()], [true, false]);
        assert!(!pace.asks_on(1 << 41, false));
    }

    #[test]
    fn long_frames_are_followed_by_others() {
        let mut pace = TapPace::default();
        asked_after(&mut pace, 0, 20);
        assert!(pace.asks_on(1 << 40, true));
        pace.found(1);
        assert!(pace.asks_on(1 << 41, false));
    }

    #[test]
    fn frames_that_follow_each_other_are_asked_for() {
        let mut pace = TapPace::default();
        asked_after(&mut pace, 0, 20);
        assert!(!pace.asks_on(1 << 40, false));
        assert!(pace.asks_on((1 << 40) + CLOSE_NS - 1, false));
    }
}
