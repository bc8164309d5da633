//! State and readiness of a socket, read from shared memory without a lock.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use towpath_ring::{program_fifo, urgent};
use towpath_shm::layout::{DatagramHeader, Slot, connect_asked, flags, shut};

use crate::Error;
use crate::socket::ready;

/// Clears and returns the pending error (SO_ERROR) of a socket. The caller must hold the socket's
/// receive or send lock.
pub(crate) fn take_error(slot: &Slot) -> Result<(), Error> {
    if slot.error.load(Acquire) != 0 {
        let errno = slot.error.swap(0, std::sync::atomic::Ordering::AcqRel);
        if errno != 0 {
            return Err(Error::Refused(errno));
        }
    }
    Ok(())
}

/// Returns whether no more bytes will arrive after the unread ones.
pub(crate) fn no_more_input(slot: &Slot) -> bool {
    slot.flags.load(Acquire) & (flags::RX_EOF | flags::DEAD) != 0
        || slot.shut.load(Relaxed) & shut::READ != 0
}

/// Returns whether the program can send no more bytes on the socket.
pub(crate) fn no_more_output(slot: &Slot) -> bool {
    slot.flags.load(Acquire) & (flags::TX_CLOSED | flags::DEAD) != 0
        || slot.shut.load(Relaxed) & shut::WRITE != 0
}

/// Returns the readiness of a stream socket, as bits of [`ready`].
pub(crate) fn stream_readiness(slot: &Slot) -> u32 {
    use ready::{ERR, HUP, IN, OUT, PRI, RDHUP};
    let seen = slot.flags.load(Acquire);
    let mut mask = 0;
    if slot.error.load(Acquire) != 0 || seen & flags::ERRORS != 0 {
        mask |= ERR;
    }
    if seen & flags::CONNECTING != 0 {
        return mask;
    }
    if seen & (flags::CONNECTED | flags::DEAD | flags::RX_EOF | flags::TX_CLOSED) == 0 {
        // Report the shutdown of an unconnected socket, too, as Linux does (`tcp_poll`).
        let shut_input = slot.shut.load(Relaxed) & shut::READ != 0;
        return mask | OUT | HUP | if shut_input { IN | RDHUP } else { 0 };
    }
    let (no_input, no_output) = (no_more_input(slot), no_more_output(slot));
    if no_input && no_output || seen & flags::DEAD != 0 {
        mask |= HUP;
    }
    if no_input {
        mask |= IN | RDHUP;
    } else if readable(slot) {
        mask |= IN;
    }
    if seen & flags::URGENT != 0 && urgent::is_pending(slot) {
        mask |= PRI;
    }
    if no_output || writable(slot) && !has_sent_syn(slot) {
        mask |= OUT;
    }
    mask
}

/// Returns whether a write has sent the SYN (TCP Fast Open, RFC 7413) and the handshake is not yet
/// complete. Linux reports such a socket as writable only after the peer has answered.
fn has_sent_syn(slot: &Slot) -> bool {
    slot.flags.load(Acquire) & flags::OPENING != 0
        && slot.connect_asked.load(Acquire) == connect_asked::STARTED
}

/// Number of bytes that a datagram of maximum length takes in a FIFO, including its header.
const DATAGRAM_FOOTPRINT_MAX: u32 =
    (size_of::<DatagramHeader>() as u32 + 65_535).next_multiple_of(8);

/// Returns the readiness of a datagram or ping socket, as bits of [`ready`].
pub(crate) fn datagram_readiness(slot: &Slot) -> u32 {
    use ready::{ERR, HUP, IN, OUT, RDHUP};
    let mut mask = 0;
    if slot.error.load(Acquire) != 0 || slot.flags.load(Acquire) & flags::ERRORS != 0 {
        mask |= ERR;
    }
    let shut_down = slot.shut.load(Relaxed);
    if shut_down & shut::READ != 0 {
        mask |= IN | RDHUP;
    }
    if shut_down & (shut::READ | shut::WRITE) == shut::READ | shut::WRITE {
        mask |= HUP;
    }
    if program_fifo::unread(slot) as usize >= size_of::<DatagramHeader>() {
        mask |= IN;
    }
    // The socket is writable if a datagram of maximum length fits. Unlike on Linux, a datagram must
    // fit completely in the send buffer. With less space, poll could report the socket repeatedly
    // although the program's datagram does not fit.
    let queued = program_fifo::queued(slot);
    let any_fits = program_fifo::room(slot) >= DATAGRAM_FOOTPRINT_MAX;
    if lacks_memory(slot) || slot.tx_cap.load(Acquire) != 0 && (queued == 0 || any_fits) {
        mask |= OUT | ready::WRBAND;
    }
    mask
}

fn readable(slot: &Slot) -> bool {
    let unread = program_fifo::unread(slot);
    let low_water = slot.rcvlowat.load(Relaxed).max(1);
    if unread > 0 && urgent::is_marked(slot) {
        return unread >= low_water.saturating_add(urgent::hidden(slot));
    }
    // A half-full FIFO is readable as well. Otherwise a FIFO smaller than SO_RCVLOWAT would never
    // be readable.
    unread >= low_water || unread > 0 && unread >= slot.rx_cap.load(Acquire) / 2
}

/// Returns whether a stream is writable, by the rules of Linux's `sk_stream_is_writeable`. Free
/// send buffer space must be at least half of the queued bytes, and the unsent bytes below
/// TCP_NOTSENT_LOWAT. A socket without send buffer memory is writable, too, because the write
/// requests memory.
fn writable(slot: &Slot) -> bool {
    let (room, queued) = (program_fifo::space(slot), program_fifo::queued(slot));
    // `tx_goal` is the size to which a send buffer may grow. Ignore it if there is no buffer,
    // because the socket must first request one.
    let goal = if slot.tx_cap.load(Acquire) == 0 { 0 } else { slot.tx_goal.load(Relaxed) };
    let more = goal.saturating_sub(queued);
    let has_room = room > 0 && room >= queued / 2 || more > 0 && more >= queued / 2;
    (lacks_memory(slot) || has_room) && program_fifo::is_below_lowat(slot)
}

/// Returns whether the socket should request send buffer memory (TX_WINDOW). The socket should if
/// it has none and the engine has not reported a shortage, or if the engine offers more.
pub(crate) fn lacks_memory(slot: &Slot) -> bool {
    let starved = slot.flags.load(Acquire) & flags::TX_AWAITS_MEMORY != 0;
    !starved && slot.tx_cap.load(Acquire) == 0 || may_have_more(slot)
}

/// Returns whether the engine offers the socket more send buffer memory (`tx_goal`) than it has.
pub(crate) fn may_have_more(slot: &Slot) -> bool {
    slot.tx_cap.load(Acquire) != 0
        && slot.tx_goal.load(Acquire) > slot.tx_limit.load(Acquire)
        && program_fifo::space(slot) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_ring::Region;

    #[test]
    fn a_syn_with_bytes_is_answered_before_more_can_be_written() {
        let region = Region::create().unwrap();
        let slot = region.slot(1).unwrap();
        slot.flags.store(flags::CONNECTED | flags::OPENING, Relaxed);
        slot.connect_asked.store(connect_asked::DEFERRED, Relaxed);
        assert_eq!(stream_readiness(slot), ready::OUT, "the first write sends the SYN");
        slot.connect_asked.store(connect_asked::STARTED, Relaxed);
        assert_eq!(stream_readiness(slot), 0, "the handshake is under way");
        slot.flags.store(flags::CONNECTED, Relaxed);
        assert_eq!(stream_readiness(slot), ready::OUT);
    }

    /// Tests a socket that cannot get send buffer memory. If it were reported as writable, a
    /// program would call poll(2) in a loop.
    #[test]
    fn without_memory_to_be_had_nothing_can_be_written() {
        let region = Region::create().unwrap();
        let slot = region.slot(1).unwrap();
        slot.flags.store(flags::CONNECTED, Relaxed);
        slot.tx_limit.store(1 << 16, Relaxed);
        for goal in [0, 1 << 22] {
            slot.tx_goal.store(goal, Relaxed);
            assert_eq!(stream_readiness(slot), ready::OUT, "the write asks for memory");
            slot.flags.store(flags::CONNECTED | flags::TX_AWAITS_MEMORY, Relaxed);
            assert_eq!((stream_readiness(slot), lacks_memory(slot)), (0, false), "{goal}");
            slot.flags.store(flags::CONNECTED, Relaxed);
        }
        // The send buffer is full and the engine offers more memory (`tx_goal`). A write requests
        // it, so the socket is writable.
        slot.tx_cap.store(1 << 16, Relaxed);
        slot.tx_tail.store(1 << 16, Relaxed);
        assert_eq!((stream_readiness(slot), lacks_memory(slot)), (ready::OUT, true));
        slot.tx_goal.store(0, Relaxed);
        assert_eq!((stream_readiness(slot), lacks_memory(slot)), (0, false));
    }
}
