//! Commands that a program sends to the engine without waiting for a reply.

use super::Plain;

/// A command of a program: 32 bytes, which the engine copies before validation.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Command {
    /// Number of the command, see [`op`].
    pub op: u32,
    /// Slot index.
    pub slot: u32,
    /// Generation of the slot, so that a late command never affects a new socket.
    pub generation: u32,
    /// First argument, whose meaning depends on `op`; see [`op`].
    pub a: u32,
    /// Second argument, whose meaning depends on `op`; see [`op`].
    pub b: u64,
    /// Third argument, whose meaning depends on `op`; see [`op`].
    pub c: u64,
}

numbered! {
/// Numbers for [`Command::op`]. Commands have no reply; calls that can fail use [`crate::control`].
pub mod op {
    /// The transmit FIFO has new bytes or datagrams.
    pub const TX: u32 = 1;
    /// The program has read bytes while `rx_wanted` was set, so a window update may be due.
    pub const RX_SPACE: u32 = 2;
    /// The process took the connection off an accept queue, and now holds the slot, too.
    pub const ACCEPTED: u32 = 3;
    /// The process no longer holds the socket. The socket is closed when its last holder closes it.
    pub const CLOSE: u32 = 4;
    /// shutdown(2): `a` is [`crate::layout::shut`] bits.
    pub const SHUTDOWN: u32 = 5;
    /// An option that cannot fail any more: `a` = [`super::setting`], `b` = value.
    pub const SETTING: u32 = 6;
    /// The program needs transmit memory (`tx_cap` is 0) or more of it (`tx_limit` is below
    /// `tx_goal`). The engine attaches it and reports `event::TX`.
    pub const TX_WINDOW: u32 = 7;
    /// Sent before CLONE: the program to be executed inherits this socket. Sent before SETTLED:
    /// this process holds this socket.
    pub const LIST: u32 = 8;
    /// The programs that this process has spawned are running, or will never run. Concerns no
    /// socket.
    pub const SPAWNED: u32 = 9;
    /// Sent by a child of fork: it holds exactly the sockets listed by LIST. Before SETTLED the
    /// child also holds every socket of its parent, including those that the parent opens
    /// meanwhile. `a` = process id of the child. Concerns no socket.
    pub const SETTLED: u32 = 10;
    /// A thread has released a lock of the slot whose word had [`crate::layout::LOCK_ENGINE`],
    /// because the engine waits for it. The slot may be of any generation.
    pub const UNLOCKED: u32 = 11;
}
}

numbered! {
/// Values of `a` for [`op::SETTING`].
pub mod setting {
    /// TCP_NODELAY, b = 0/1.
    pub const NODELAY: u32 = 1;
    /// TCP_CORK, b = 0/1.
    pub const CORK: u32 = 2;
    /// SO_KEEPALIVE, b = 0/1; the times are in the slot.
    pub const KEEPALIVE: u32 = 3;
    /// TCP_QUICKACK, b = 0/1.
    pub const QUICKACK: u32 = 4;
    /// TCP_USER_TIMEOUT, b = ms.
    pub const USER_TIMEOUT: u32 = 5;
    /// SO_LINGER, b encoded as [`crate::layout::Slot::linger`].
    pub const LINGER: u32 = 6;
    /// IP_TOS, b = TOS.
    pub const TOS: u32 = 7;
    /// IP_TTL, b encoded as [`crate::layout::Slot::ttl`].
    pub const TTL: u32 = 8;
    /// SO_RCVBUF, b = bytes.
    pub const RCVBUF: u32 = 9;
    /// SO_SNDBUF, b = bytes.
    pub const SNDBUF: u32 = 10;
    /// SO_REUSEADDR, b = 0/1; takes effect at bind.
    pub const REUSEADDR: u32 = 11;
    /// SO_REUSEPORT, b = 0/1.
    pub const REUSEPORT: u32 = 12;
    /// IPV6_V6ONLY, b = 0/1; only before bind.
    pub const V6ONLY: u32 = 13;
    /// SO_BROADCAST, b = 0/1.
    pub const BROADCAST: u32 = 14;
    /// TCP_MAXSEG, b = bytes.
    pub const MAXSEG: u32 = 15;
    /// TCP_DEFER_ACCEPT, b = seconds.
    pub const DEFER_ACCEPT: u32 = 16;
    /// TCP_SYNCNT, b = count.
    pub const SYNCNT: u32 = 17;
    /// TCP_LINGER2, b = seconds.
    pub const LINGER2: u32 = 18;
    /// MSG_MORE of the last write: b = 0/1.
    pub const MORE: u32 = 19;
    /// IP_MTU_DISCOVER, b = mode.
    pub const MTU_DISCOVER: u32 = 20;
    /// IP_MULTICAST_TTL, b = TTL.
    pub const MULTICAST_TTL: u32 = 21;
    /// IP_MULTICAST_LOOP, b = 0/1.
    pub const MULTICAST_LOOP: u32 = 22;
    /// IP_RECVERR, b = 0/1.
    pub const RECVERR: u32 = 23;
    /// IPV6_UNICAST_HOPS, b encoded as [`crate::layout::Slot::hops`].
    pub const HOPS: u32 = 24;
    /// IPV6_MULTICAST_HOPS, b = hops.
    pub const MULTICAST_HOPS: u32 = 25;
    /// IPV6_TCLASS, b = traffic class.
    pub const TRAFFIC_CLASS: u32 = 26;
    /// IPV6_MULTICAST_LOOP, b = 0/1.
    pub const MULTICAST_LOOP_V6: u32 = 27;
    /// IPV6_RECVERR, b = 0/1.
    pub const RECVERR_V6: u32 = 28;
    /// IPV6_MTU_DISCOVER, b = mode.
    pub const MTU_DISCOVER_V6: u32 = 29;
    /// IPV6_MTU, b = bytes; 0 to unset.
    pub const FRAGMENT_SIZE: u32 = 30;
    /// TCP_WINDOW_CLAMP, b = bytes; 0 for none.
    pub const WINDOW_CLAMP: u32 = 40;
    /// SO_NO_CHECK, b = 0/1.
    pub const NO_CHECK: u32 = 41;
    /// SO_TIMESTAMPING, b = the flags for sending.
    pub const TIMESTAMPING: u32 = 42;
    /// SO_RCVLOWAT was lowered to b bytes (also in the slot), so a waiting reader may have enough.
    pub const RCVLOWAT: u32 = 43;
    /// TCP_NOTSENT_LOWAT, b = bytes, 0 for none; also in the slot.
    pub const NOTSENT_LOWAT: u32 = 44;
    /// IP_MINTTL, b = minimum TTL.
    pub const MIN_TTL: u32 = 45;
    /// IPV6_MINHOPCOUNT, b = minimum hop limit.
    pub const MIN_HOPS: u32 = 46;
    /// MSG_OOB: the byte before position b of the transmit FIFO is urgent. The program publishes
    /// the byte only after the engine has processed this command.
    pub const URGENT: u32 = 47;
    /// MSG_ZEROCOPY: the bytes of one call were copied; report the completion to the program.
    pub const ZERO_COPY: u32 = 48;
    /// The program has written without bytes: send the SYN that waits for data.
    pub const OPEN: u32 = 49;
    /// SO_TIMESTAMPING: a call queued bytes up to position b of the transmit FIFO; report when the
    /// last of them is sent and acknowledged.
    pub const STAMP: u32 = 50;
    /// MSG_EOR: bytes before and after position b of the transmit FIFO share no segment.
    pub const RECORD_END: u32 = 51;
}
}

// SAFETY: integers only; the size of the struct, asserted in `mod.rs`, leaves no padding.
unsafe impl Plain for Command {}
