//! Computes when to look at a ring again of which the peer does not notify this process. Limits the
//! number of messages to the user.

/// Time in nanoseconds after which an empty ring is looked at once more.
///
/// The sender stores its index, and then reads whether it shall notify the receiver. DPDK has no
/// barrier in between, so that it may read before the store is visible. The notification is then
/// missing. A processor makes a store visible within this time. Peers that have the barrier need no
/// second look.
const RECHECK_NS: u64 = 20_000;
/// Minimum and maximum time in nanoseconds until a full ring is looked at again. Memif has no
/// notification of free buffers.
const FULL_MIN_NS: u64 = 10_000;
const FULL_MAX_NS: u64 = 1_000_000;

/// State of the ring with received frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum IdleCheck {
    /// The ring had frames.
    Busy,
    /// The ring is empty, and is looked at again at this time.
    Until(u64),
    /// The ring is empty, and the peer notifies this process of frames.
    #[default]
    Idle,
}

/// Result of a look at the ring with received frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingState {
    /// Whether the ring had frames.
    pub(crate) has_frames: bool,
    /// Whether the ring is empty now.
    pub(crate) is_empty: bool,
    /// Whether the peer never misses that this process begins to wait.
    pub(crate) is_certain: bool,
}

impl IdleCheck {
    /// Returns the state after a look at the ring at the time `now_ns`.
    pub(crate) fn after(self, now_ns: u64, ring: RingState) -> Self {
        match self {
            _ if !ring.is_empty => Self::Busy,
            _ if ring.is_certain => Self::Idle,
            Self::Until(due_ns) if !ring.has_frames && now_ns < due_ns => self,
            Self::Busy => Self::Until(now_ns.saturating_add(RECHECK_NS)),
            _ if ring.has_frames => Self::Until(now_ns.saturating_add(RECHECK_NS)),
            Self::Until(_) | Self::Idle => Self::Idle,
        }
    }

    /// Returns the time of the next look at the ring; `None` without one.
    pub(crate) fn due_ns(self) -> Option<u64> {
        match self {
            Self::Busy => Some(0),
            Self::Until(due_ns) => Some(due_ns),
            Self::Idle => None,
        }
    }
}

/// Pauses between attempts to send to a full ring.
///
/// The pauses grow while the ring stays full, so that a peer that has stopped does not keep this
/// process busy.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FullPause {
    len_ns: u64,
    due_ns: Option<u64>,
}

impl FullPause {
    /// Records that the ring was full at the time `now_ns`, after it has taken frames or not.
    pub(crate) fn full(&mut self, now_ns: u64, has_taken: bool) {
        self.len_ns = match has_taken {
            true => FULL_MIN_NS,
            false => (self.len_ns * 2).clamp(FULL_MIN_NS, FULL_MAX_NS),
        };
        self.due_ns = Some(now_ns.saturating_add(self.len_ns));
    }

    /// Records that the ring has taken all frames.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// Ends the current pause if it is over. The next attempt to send may begin a longer one.
    pub(crate) fn pass(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.filter(|due_ns| *due_ns > now_ns);
    }

    /// Returns the time of the next attempt; `None` if the ring is not known to be full.
    pub(crate) fn due_ns(self) -> Option<u64> {
        self.due_ns
    }
}

/// Maximum number of events that the user is told in a second. A peer that connects and leaves in a
/// loop would otherwise flood the terminal. A client of this program connects twice in a second.
const EVENTS_A_SECOND: u32 = 16;
const SECOND_NS: u64 = 1_000_000_000;

/// Limit on the number of events that the user is told.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EventLimit {
    begin_ns: u64,
    count: u32,
}

impl EventLimit {
    /// Counts an event at the time `now_ns`. Returns whether the user is told.
    pub(crate) fn allows(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.begin_ns.saturating_add(SECOND_NS) {
            *self = Self { begin_ns: now_ns, count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count <= EVENTS_A_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_ring_is_looked_at_once_more() {
        let empty = RingState { has_frames: false, is_empty: true, is_certain: false };
        let drained = RingState { has_frames: true, ..empty };
        let more = RingState { is_empty: false, ..drained };
        let idle = IdleCheck::default();
        assert_eq!((idle.due_ns(), idle.after(9, empty)), (None, IdleCheck::Idle));
        assert_eq!(idle.after(9, more).due_ns(), Some(0));
        let until = IdleCheck::Until(9 + RECHECK_NS);
        assert_eq!([idle.after(9, drained), idle.after(5, more).after(9, empty)], [until; 2]);
        assert_eq!(until.after(10, empty), until);
        assert_eq!(until.after(9 + RECHECK_NS, empty), IdleCheck::Idle);
        assert_eq!(until.after(10, drained), IdleCheck::Until(10 + RECHECK_NS));
        let certain = RingState { is_certain: true, ..drained };
        assert_eq!(IdleCheck::Busy.after(9, certain), IdleCheck::Idle);
    }

    #[test]
    fn events_of_a_second_are_limited() {
        let mut limit = EventLimit::default();
        for now_ns in [0, 5, SECOND_NS, 2 * SECOND_NS + 7] {
            let allowed = (0..100).filter(|_| limit.allows(now_ns)).count();
            assert_eq!(allowed, if now_ns == 5 { 0 } else { EVENTS_A_SECOND as usize });
        }
        assert!(!limit.allows(3 * SECOND_NS + 6) && limit.allows(3 * SECOND_NS + 7));
    }

    #[test]
    fn pauses_grow_while_the_ring_stays_full() {
        let mut pause = FullPause::default();
        let mut lens = Vec::new();
        for _ in 0..9 {
            pause.full(5, false);
            lens.push(pause.due_ns().expect("a pause") - 5);
        }
        assert_eq!((lens[0], lens[1], lens[8]), (FULL_MIN_NS, 2 * FULL_MIN_NS, FULL_MAX_NS));
        pause.pass(5);
        assert!(pause.due_ns().is_some());
        pause.pass(5 + FULL_MAX_NS);
        assert_eq!(pause.due_ns(), None);
        pause.full(7, true);
        assert_eq!(pause.due_ns(), Some(7 + FULL_MIN_NS));
        pause.end();
        assert_eq!(pause.due_ns(), None);
    }
}
