//! Decides when to read from a device again. A read is a system call even if there is no frame.
//!
//! A single frame, for example a request, would cost two reads without result: one after the frame,
//! and one after the reply is sent. Both reads are skipped as long as frames arrive one at a time.
//! A read is also skipped right after epoll has reported that the device is empty. No frame is
//! missed, because the stack waits with epoll before it sleeps. A stack that does not sleep skips
//! at most every second poll.

/// Recent arrivals of frames at a device, from which the need for further reads is estimated.
#[derive(Debug, Default)]
pub(crate) struct TapPace {
    /// Number of consecutive polls that found exactly one frame, up to [`ALONE`].
    alone: u8,
    /// Number of frames since a poll last tried to read a second frame.
    unasked: u8,
    /// Arrival time of the last frame in nanoseconds.
    last_ns: u64,
    /// Whether to skip the next poll of the device.
    pausing: bool,
    /// Whether the last poll was skipped, and epoll has not reported since then whether there are
    /// frames.
    left_out: bool,
    /// Whether the kernel has reported that the device is empty.
    empty: bool,
}

/// Number of consecutive polls with a single frame after which the next frame is assumed to be
/// single, too.
const ALONE: u8 = 8;
/// Number of frames after which a poll tries to read a second frame even if frames arrive alone.
const ASK_EVERY: u8 = 16;
/// Interval in nanoseconds below which successive frames may belong to a burst.
const CLOSE_NS: u64 = 15_000;

impl TapPace {
    /// Returns whether to skip a poll of the device. Call it before the first read.
    pub fn pauses(&mut self) -> bool {
        let pauses = std::mem::take(&mut self.pausing);
        self.left_out |= pauses;
        pauses || std::mem::take(&mut self.empty)
    }

    /// Records whether the kernel has reported that the device has frames.
    pub fn looked(&mut self, ready: bool) {
        *self = Self { pausing: false, left_out: false, empty: !ready, ..*self };
    }

    /// Returns whether this poll should try to read a second frame. Call it after the first frame;
    /// `is_long` is true if that frame is large.
    pub fn asks_on(&mut self, now_ns: u64, is_long: bool) -> bool {
        let is_close =
            now_ns.saturating_sub(std::mem::replace(&mut self.last_ns, now_ns)) < CLOSE_NS;
        // Assume that more frames follow. A long frame is usually one of several, and after a
        // skipped poll several frames may be queued.
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

    /// Records the number of frames that a poll has read, if it tried to read a second one.
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

    /// Simulates `count` single frames at intervals of 50 µs from time `ns` on. Returns the number
    /// of polls that tried to read a second frame.
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
        // After two frames arrive together, polls read a second time again.
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
        // The device was not polled for a while, but no frame has arrived.
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
