//! Urgent data in a TCP socket's receive FIFO, on the side of the reading program. Corresponds to
//! Linux's `tcp_recvmsg_locked`, `tcp_recv_urg`, `tcp_inq` and `tcp_poll`, based on the shared word
//! [`Slot::urgent`].
//!
//! ```text
//!   rx_head ─── next read stops here ────┬ urgent byte ┬─── rest ─── rx_tail
//!                                        mark
//! ```
//!
//! Readers change the word by compare-and-swap, under [`crate::lock_rx`]. At any time, the engine
//! may store the position of newer urgent data, which takes precedence.

use towpath_shm::atomic::Ordering;
use towpath_shm::layout::{Slot, flags, option_bit, urgent};

use crate::program_fifo::unread;

/// How far a read may extend, because reads stop at the urgent byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Number of bytes to skip before the read: an urgent byte that is not delivered in-line.
    pub passed: u32,
    /// Maximum number of bytes to read after the skipped ones, up to the urgent byte.
    pub most: u32,
}

/// Position of the urgent byte, relative to the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UrgentView {
    /// 1 if an earlier urgent byte at `rx_head` has to be skipped, otherwise 0.
    gap: u32,
    /// Number of bytes from `rx_head` to the urgent byte, including `gap`.
    ahead: u32,
}

/// Result of a search for the urgent byte (MSG_OOB).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrgentByte {
    /// There is no urgent byte to return: it was already read or skipped, or is delivered in-line.
    None,
    /// The urgent byte was announced by the peer, but has not arrived.
    NotYet,
    /// The urgent byte has arrived and has this value.
    Byte(u8),
    /// The urgent byte has arrived, and is at this offset from `rx_head`.
    At(u32),
}

/// Returns whether the socket ever had urgent data. Check this after [`unread`], because the engine
/// sets the flag before it publishes bytes that follow urgent data.
#[inline]
pub fn is_marked(slot: &Slot) -> bool {
    slot.flags.load(Ordering::Acquire) & flags::URGENT != 0
}

fn is_in_line(slot: &Slot) -> bool {
    slot.option_bits.load(Ordering::Relaxed) & option_bit::OOBINLINE != 0
}

/// Returns the urgent byte's state and its position relative to `head`. `None` if there is no
/// urgent byte, or the reader has passed it.
fn view(slot: &Slot, word: u64, head: u32) -> Option<UrgentView> {
    let ahead = urgent::position(word).wrapping_sub(head);
    if word & urgent::PRESENT == 0 || ahead > i32::MAX as u32 {
        return None;
    }
    let gap = u32::from(urgent::gap(word) == Some(head) && unread(slot) > 0);
    Some(UrgentView { gap, ahead })
}

/// Returns how far a read may extend that starts `skip` bytes after `head`, the value of `rx_head`.
pub fn reach(slot: &Slot, head: u32, skip: u32) -> Reach {
    let word = slot.urgent.load(Ordering::Acquire);
    let Some(UrgentView { gap, ahead }) = view(slot, word, head) else {
        return Reach { passed: 0, most: u32::MAX };
    };
    let Some(left) = ahead.checked_sub(skip.saturating_add(gap)) else {
        return Reach { passed: gap, most: u32::MAX };
    };
    if left > 0 {
        return Reach { passed: gap, most: left };
    }
    let is_there = unread(slot) > ahead;
    let hidden = u32::from(is_there && !is_in_line(slot));
    Reach { passed: gap + hidden, most: u32::MAX }
}

/// Clears the urgent mark if it is before `rx_head`. Call it after the reader has advanced. The
/// caller must hold the socket's read lock.
pub fn settle(slot: &Slot) {
    let word = slot.urgent.load(Ordering::Acquire);
    let head = slot.rx_head.load(Ordering::Relaxed);
    let left = match view(slot, word, head) {
        None => 0,
        Some(_) if urgent::gap(word).is_some_and(|gap| gap != head) => urgent::without_gap(word),
        Some(_) => word,
    };
    if left != word {
        // Ignore a failed exchange: the engine has stored newer urgent data, which must be kept.
        let _ = slot.urgent.compare_exchange(word, left, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Returns whether the byte at `skip` bytes after `rx_head` is the urgent byte, at which reads
/// stop.
pub fn is_mark(slot: &Slot, skip: u32) -> bool {
    let word = slot.urgent.load(Ordering::Acquire);
    let head = slot.rx_head.load(Ordering::Acquire);
    is_marked(slot)
        && view(slot, word, head).is_some_and(|view| view.ahead == skip.saturating_add(view.gap))
}

/// Returns the result of FIONREAD: the number of unread bytes up to the urgent byte.
pub fn readable(slot: &Slot) -> u32 {
    let all = unread(slot);
    let word = slot.urgent.load(Ordering::Acquire);
    match view(slot, word, slot.rx_head.load(Ordering::Acquire)) {
        Some(view) if view.ahead < all && !is_in_line(slot) => view.ahead.saturating_sub(view.gap),
        Some(view) => all - view.gap.min(all),
        None => all,
    }
}

/// Returns the number of unread bytes that normal reads skip: urgent bytes that are not delivered
/// in-line.
pub fn hidden(slot: &Slot) -> u32 {
    let word = slot.urgent.load(Ordering::Acquire);
    let head = slot.rx_head.load(Ordering::Acquire);
    view(slot, word, head)
        .map_or(0, |view| view.gap + u32::from(view.ahead == view.gap && !is_in_line(slot)))
}

/// Returns whether to report POLLPRI: the urgent byte has arrived, and was neither read with
/// MSG_OOB nor skipped.
pub fn is_pending(slot: &Slot) -> bool {
    matches!(look(slot), UrgentByte::Byte(_) | UrgentByte::At(_))
}

/// Returns the state of the urgent byte: its value, or its offset if it is delivered in-line.
fn look(slot: &Slot) -> UrgentByte {
    let word = slot.urgent.load(Ordering::Acquire);
    let head = slot.rx_head.load(Ordering::Acquire);
    match view(slot, word, head) {
        None => UrgentByte::None,
        Some(_) if word & urgent::READ != 0 => UrgentByte::None,
        Some(_) if word & urgent::VALID != 0 => UrgentByte::Byte(urgent::byte(word)),
        Some(view) if view.ahead < unread(slot) => UrgentByte::At(view.ahead),
        Some(_) => UrgentByte::NotYet,
    }
}

/// Returns the urgent byte for a read with MSG_OOB. Marks it as read, unless `keep` is set
/// (MSG_PEEK). The caller must hold the socket's read lock.
pub fn take(slot: &Slot, keep: bool) -> UrgentByte {
    loop {
        let word = slot.urgent.load(Ordering::Acquire);
        let found = if is_in_line(slot) { UrgentByte::None } else { look(slot) };
        if keep || !matches!(found, UrgentByte::Byte(_) | UrgentByte::At(_)) {
            return found;
        }
        let read = word | urgent::READ;
        // Retry if the engine has stored newer urgent data in the meantime.
        if slot.urgent.compare_exchange(word, read, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return found;
        }
    }
}

/// Returns the word for urgent data at the position in `mark`, to replace the word `old`. The
/// reader is at position `head`, and the received bytes end at `tail`.
pub(crate) fn renewed(slot: &Slot, old: u64, mark: (u32, Option<u8>), head: u32, tail: u32) -> u64 {
    let (position, byte) = mark;
    let new = urgent::mark(position, byte);
    if old & urgent::PRESENT == 0 {
        return new;
    }
    if urgent::position(old) == position {
        // The same urgent byte is already recorded. Store its value, which may have arrived since,
        // and keep the gap.
        return urgent::gap(old).map_or(new, |gap| urgent::with_gap(new, gap));
    }
    // As in Linux's `tcp_check_urg`, a reader that has reached the old urgent byte cannot read it
    // any more.
    let stands_before = urgent::position(old) == head && head != tail && !is_in_line(slot);
    if stands_before { urgent::with_gap(new, head) } else { new }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lock::lock_rx;
    use crate::program_fifo::{consume, peek, start};
    use crate::{EngineRecv, Payload, RecvBuffer, Region, WINDOW_MIN, Windows};
    use towpath_shm::Fragments;

    struct Fifo {
        region: Region,
        recv: EngineRecv,
    }

    impl Fifo {
        fn new() -> Self {
            let region = Region::create().unwrap();
            let windows = Windows::new(&region, 1 << 30);
            let recv = EngineRecv::new(&windows, 1, WINDOW_MIN, WINDOW_MIN);
            Self { region, recv }
        }

        fn slot(&self) -> &Slot {
            self.region.slot(1).unwrap()
        }

        /// Simulates the arrival of bytes, of which the one at index `mark` is urgent.
        fn come(&mut self, bytes: &[u8], mark: Option<usize>) {
            if let Some(at) = mark {
                self.recv.mark_urgent(at as u32, bytes.get(at).copied());
            }
            assert!(self.recv.write_at(0, &Payload::new(bytes, Fragments::empty())));
            self.recv.commit(bytes.len() as u32);
        }

        /// Reads up to `room` bytes of the stream.
        fn read(&self, room: usize) -> Vec<u8> {
            let slot = self.slot();
            let _guard = lock_rx(slot, 0, || true);
            let Reach { passed, most } = reach(slot, start(slot), 0);
            let mut out = vec![0; room.min(most as usize)];
            let n = peek(&self.region, slot, passed, &mut out);
            let _ = consume(slot, passed + n as u32);
            settle(slot);
            out.truncate(n);
            out
        }
    }

    #[test]
    fn reads_stop_at_the_mark_and_pass_the_byte() {
        let mut fifo = Fifo::new();
        fifo.come(b"abcXdef", Some(3));
        assert_eq!((readable(fifo.slot()), is_mark(fifo.slot(), 0)), (3, false));
        assert!(is_pending(fifo.slot()) && is_mark(fifo.slot(), 3));
        assert_eq!(fifo.read(99), b"abc");
        assert!(is_mark(fifo.slot(), 0));
        assert_eq!(take(fifo.slot(), true), UrgentByte::Byte(b'X'));
        assert_eq!(take(fifo.slot(), false), UrgentByte::Byte(b'X'));
        assert_eq!(take(fifo.slot(), false), UrgentByte::None);
        assert!(!is_pending(fifo.slot()) && is_mark(fifo.slot(), 0));
        assert_eq!(fifo.read(99), b"def");
        assert_eq!(fifo.slot().urgent.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn in_line_the_byte_is_read_behind_the_mark() {
        let mut fifo = Fifo::new();
        fifo.slot().option_bits.store(option_bit::OOBINLINE, Ordering::Relaxed);
        fifo.come(b"abXc", Some(2));
        assert_eq!(take(fifo.slot(), false), UrgentByte::None);
        assert!(is_pending(fifo.slot()));
        assert_eq!((readable(fifo.slot()), fifo.read(99)), (4, b"ab".to_vec()));
        assert_eq!(fifo.read(99), b"Xc");
        assert!(!is_pending(fifo.slot()));
    }

    #[test]
    fn a_second_urgent_byte_makes_the_first_a_normal_one() {
        let mut fifo = Fifo::new();
        fifo.come(b"abX", Some(2));
        fifo.come(b"cdY", Some(2));
        assert_eq!(fifo.read(99), b"abXcd");
        assert_eq!(take(fifo.slot(), false), UrgentByte::Byte(b'Y'));
    }

    /// Tests that a reader at an urgent byte loses it when another urgent byte arrives.
    #[test]
    fn a_reader_in_front_of_the_first_mark_does_not_get_it() {
        let mut fifo = Fifo::new();
        fifo.come(b"X", Some(0));
        fifo.come(b"cdY", Some(2));
        assert_eq!((readable(fifo.slot()), hidden(fifo.slot())), (2, 1));
        assert!(is_mark(fifo.slot(), 2) && !is_mark(fifo.slot(), 0));
        assert_eq!(fifo.read(99), b"cd");
        assert_eq!(take(fifo.slot(), false), UrgentByte::Byte(b'Y'));
        assert_eq!(fifo.read(99), b"");
    }

    #[test]
    fn a_mark_that_never_comes_holds_nothing_up() {
        let mut fifo = Fifo::new();
        fifo.recv.mark_urgent(u32::MAX / 4, None);
        fifo.come(b"abc", None);
        assert_eq!(
            (take(fifo.slot(), false), fifo.read(99)),
            (UrgentByte::NotYet, b"abc".to_vec())
        );
        // The urgent byte arrives later, in a segment without URG.
        let mut fifo = Fifo::new();
        fifo.recv.mark_urgent(1, None);
        fifo.come(b"a", None);
        assert!(!is_pending(fifo.slot()));
        fifo.come(b"X", None);
        assert_eq!(take(fifo.slot(), false), UrgentByte::At(1));
    }

    /// Tests that invalid values of the shared word, written by a program, do not cause an
    /// arithmetic overflow.
    #[test]
    fn nonsense_in_the_word_is_survived() {
        let mut fifo = Fifo::new();
        fifo.come(b"abcdef", Some(1));
        for word in (0..64).map(|bit| 1u64 << bit).chain([u64::MAX, !0 << 40, u64::MAX >> 1]) {
            for head in [0, 1, 6, 7, u32::MAX] {
                fifo.slot().urgent.store(word, Ordering::Relaxed);
                let slot = fifo.slot();
                slot.rx_head.store(head, Ordering::Relaxed);
                let _ = (reach(slot, head, 3), readable(slot), hidden(slot), is_mark(slot, 1));
                let _ = (is_pending(slot), take(slot, true));
                settle(slot);
            }
        }
    }
}
