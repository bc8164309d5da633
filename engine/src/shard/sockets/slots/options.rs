//! Options in the part of a slot that is shared with programs. Sets the defaults of a new socket,
//! and copies options from a listener to its connections.

use std::sync::atomic::Ordering::Relaxed;

use towpath_shm::layout::{RawAddr, Slot, option_bit};

use crate::shard::sockets::linux::state;

/// Sets all words of a slot to Linux's defaults, except FIFO positions, locks and `asleep`. FIFO
/// positions are set when a FIFO is created. Threads that use the previous socket may still hold
/// the locks or sleep, until they notice the new generation.
pub(super) fn reset(slot: &Slot) {
    for word in [
        &slot.flags,
        &slot.rx_cap,
        &slot.tx_cap,
        &slot.tx_shift,
        &slot.rx_shift,
        &slot.rx_tail,
        &slot.tx_head,
        &slot.rx_wanted,
        &slot.tx_unacked,
        &slot.tx_limit,
        &slot.tx_goal,
        &slot.more,
        &slot.rx_head,
        &slot.tx_tail,
        &slot.tx_dirty,
        &slot.tx_wanted,
        &slot.file_flags,
        &slot.shut,
        &slot.rcvtimeo_us,
        &slot.sndtimeo_us,
        &slot.option_bits,
        &slot.rcvbuf,
        &slot.sndbuf,
        &slot.user_timeout_ms,
        &slot.linger,
        &slot.tclass,
        &slot.in_flight,
        &slot.notsent_lowat,
        &slot.peek_off,
    ] {
        word.store(0, Relaxed);
    }
    slot.connect_asked.store(0, Relaxed);
    slot.urgent.store(0, Relaxed);
    slot.tos.store(0, Relaxed);
    slot.ttl.store(0, Relaxed);
    slot.hops.store(0, Relaxed);
    slot.error.store(0, Relaxed);
    slot.owner.store(0, Relaxed);
    slot.state.store(state::CLOSE, Relaxed);
    slot.rcvlowat.store(1, Relaxed);
    slot.keepidle.store(7200, Relaxed);
    slot.keepintvl.store(75, Relaxed);
    slot.keepcnt.store(9, Relaxed);
    slot.local.store(&RawAddr::default());
    slot.remote.store(&RawAddr::default());
}

/// Copies the options that a connection inherits from its listener, as on Linux.
pub(crate) fn inherit(child: &Slot, listener: &Slot) {
    for (to, from) in [
        (&child.option_bits, &listener.option_bits),
        (&child.rcvlowat, &listener.rcvlowat),
        (&child.rcvtimeo_us, &listener.rcvtimeo_us),
        (&child.sndtimeo_us, &listener.sndtimeo_us),
        (&child.rcvbuf, &listener.rcvbuf),
        (&child.sndbuf, &listener.sndbuf),
        (&child.keepidle, &listener.keepidle),
        (&child.keepintvl, &listener.keepintvl),
        (&child.user_timeout_ms, &listener.user_timeout_ms),
        (&child.linger, &listener.linger),
        (&child.tclass, &listener.tclass),
        (&child.notsent_lowat, &listener.notsent_lowat),
        (&child.peek_off, &listener.peek_off),
    ] {
        to.store(from.load(Relaxed), Relaxed);
    }
    // Timestamps of sent bytes are not inherited, so the program's library need not request them
    // for each send.
    child.option_bits.fetch_and(!option_bit::STAMPED_STREAM, Relaxed);
    child.keepcnt.store(listener.keepcnt.load(Relaxed), Relaxed);
    for (to, from) in [(&child.tos, &listener.tos), (&child.ttl, &listener.ttl)] {
        to.store(from.load(Relaxed), Relaxed);
    }
    child.hops.store(listener.hops.load(Relaxed), Relaxed);
}
