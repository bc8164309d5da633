//! Commands that a program sends to the engine without waiting for a reply.

use super::Plain;

/// A command of a program to the engine. The engine copies its 32 bytes before it validates them.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Command {
    /// Number of the operation, see [`op`].
    pub op: u32,
    /// Index of the socket's slot in the shared memory.
    pub slot: u32,
    /// Generation of the slot. The generation ensures that a late command does not affect a new
    /// socket in the same slot.
    pub generation: u32,
    /// First argument of the command, whose meaning depends on `op`; see [`op`].
    pub a: u32,
    /// Second argument of the command, whose meaning depends on `op`; see [`op`].
    pub b: u64,
    /// Third argument of the command, whose meaning depends on `op`; see [`op`].
    pub c: u64,
}

numbered! {
/// Values of [`Command::op`]: operations without a reply. Operations that can fail use
/// [`crate::control`].
pub mod op {
    /// TX: the socket's transmit FIFO has new bytes or datagrams.
    pub const TX: u32 = 1;
    /// RX_SPACE: the program has read bytes while the slot's `rx_wanted` was set, so the engine may
    /// have to send a window update.
    pub const RX_SPACE: u32 = 2;
    /// ACCEPTED: the process has accepted this connection from a listener, so it has the
    /// connection's socket open.
    pub const ACCEPTED: u32 = 3;
    /// CLOSE: the process has closed its last descriptor of the socket. The socket is closed when
    /// no process has it open.
    pub const CLOSE: u32 = 4;
    /// SHUTDOWN: shutdown(2) was called. `a` = bits of [`crate::layout::shut`].
    pub const SHUTDOWN: u32 = 5;
    /// SETTING: sets a socket option whose value the program has checked. `a` = [`super::setting`],
    /// `b` = value.
    pub const SETTING: u32 = 6;
    /// TX_WINDOW: the program needs memory for the transmit FIFO (`tx_cap` is 0), or more of it
    /// (`tx_limit` is below `tx_goal`). The engine provides the memory and reports `event::TX`.
    pub const TX_WINDOW: u32 = 7;
    /// LIST: before a CLONE request, it lists a socket that the program to be executed inherits.
    /// Before SETTLED, it lists a socket of this process.
    pub const LIST: u32 = 8;
    /// SPAWNED: the programs that this process has spawned are running, or will never run. The
    /// command concerns no socket.
    pub const SPAWNED: u32 = 9;
    /// SETTLED: sent by a child process after fork(2), after it has listed its sockets by LIST.
    /// Until then, the child counts as having every socket of its parent, including those that the
    /// parent opens after fork. `a` = process id of the child. The command concerns no socket.
    pub const SETTLED: u32 = 10;
    /// UNLOCKED: a thread has released a lock of the slot on which the engine waits; the lock word
    /// had the flag [`crate::layout::LOCK_ENGINE`]. The slot's generation is not checked.
    pub const UNLOCKED: u32 = 11;
}
}

numbered! {
/// Values of `a` in [`op::SETTING`]: which option is set to `b`.
pub mod setting {
    /// TCP_NODELAY: b = 0 or 1.
    pub const NODELAY: u32 = 1;
    /// TCP_CORK: b = 0 or 1.
    pub const CORK: u32 = 2;
    /// SO_KEEPALIVE: b = 0 or 1. The keepalive times are in the socket's slot.
    pub const KEEPALIVE: u32 = 3;
    /// TCP_QUICKACK: b = 0 or 1.
    pub const QUICKACK: u32 = 4;
    /// TCP_USER_TIMEOUT: b = timeout in milliseconds.
    pub const USER_TIMEOUT: u32 = 5;
    /// SO_LINGER: b is encoded as in [`crate::layout::Slot::linger`].
    pub const LINGER: u32 = 6;
    /// IP_TOS: b = type of service.
    pub const TOS: u32 = 7;
    /// IP_TTL: b is encoded as in [`crate::layout::Slot::ttl`].
    pub const TTL: u32 = 8;
    /// SO_RCVBUF: b = bytes.
    pub const RCVBUF: u32 = 9;
    /// SO_SNDBUF: b = bytes.
    pub const SNDBUF: u32 = 10;
    /// SO_REUSEADDR: b = 0 or 1; takes effect at bind(2).
    pub const REUSEADDR: u32 = 11;
    /// SO_REUSEPORT: b = 0 or 1.
    pub const REUSEPORT: u32 = 12;
    /// IPV6_V6ONLY: b = 0 or 1; only before bind(2).
    pub const V6ONLY: u32 = 13;
    /// SO_BROADCAST: b = 0 or 1.
    pub const BROADCAST: u32 = 14;
    /// TCP_MAXSEG: b = bytes.
    pub const MAXSEG: u32 = 15;
    /// TCP_DEFER_ACCEPT: b = seconds.
    pub const DEFER_ACCEPT: u32 = 16;
    /// TCP_SYNCNT: b = maximum number of SYN retransmissions.
    pub const SYNCNT: u32 = 17;
    /// TCP_LINGER2: b = seconds.
    pub const LINGER2: u32 = 18;
    /// MSG_MORE of the last write: b = 0 or 1.
    pub const MORE: u32 = 19;
    /// IP_MTU_DISCOVER: b = mode (IP_PMTUDISC_*).
    pub const MTU_DISCOVER: u32 = 20;
    /// IP_MULTICAST_TTL: b = TTL.
    pub const MULTICAST_TTL: u32 = 21;
    /// IP_MULTICAST_LOOP: b = 0 or 1.
    pub const MULTICAST_LOOP: u32 = 22;
    /// IP_RECVERR: b = 0 or 1.
    pub const RECVERR: u32 = 23;
    /// IPV6_UNICAST_HOPS: b is encoded as in [`crate::layout::Slot::hops`].
    pub const HOPS: u32 = 24;
    /// IPV6_MULTICAST_HOPS: b = hop limit.
    pub const MULTICAST_HOPS: u32 = 25;
    /// IPV6_TCLASS: b = traffic class.
    pub const TRAFFIC_CLASS: u32 = 26;
    /// IPV6_MULTICAST_LOOP: b = 0 or 1.
    pub const MULTICAST_LOOP_V6: u32 = 27;
    /// IPV6_RECVERR: b = 0 or 1.
    pub const RECVERR_V6: u32 = 28;
    /// IPV6_MTU_DISCOVER: b = mode (IPV6_PMTUDISC_*).
    pub const MTU_DISCOVER_V6: u32 = 29;
    /// IPV6_MTU: b = bytes; 0 removes the setting.
    pub const FRAGMENT_SIZE: u32 = 30;
    /// TCP_WINDOW_CLAMP: b = bytes; 0 removes the limit.
    pub const WINDOW_CLAMP: u32 = 40;
    /// SO_NO_CHECK: b = 0 or 1.
    pub const NO_CHECK: u32 = 41;
    /// SO_TIMESTAMPING: b = the flags for transmit timestamps.
    pub const TIMESTAMPING: u32 = 42;
    /// SO_RCVLOWAT was lowered to b bytes (also stored in the socket's slot). A waiting reader may
    /// now have enough bytes.
    pub const RCVLOWAT: u32 = 43;
    /// TCP_NOTSENT_LOWAT: b = bytes, 0 for none (also stored in the slot).
    pub const NOTSENT_LOWAT: u32 = 44;
    /// IP_MINTTL: b = minimum TTL of received packets.
    pub const MIN_TTL: u32 = 45;
    /// IPV6_MINHOPCOUNT: b = minimum hop limit of received packets.
    pub const MIN_HOPS: u32 = 46;
    /// MSG_OOB: the byte before position b of the transmit FIFO is urgent. The program publishes
    /// the byte only after the engine has processed this command.
    pub const URGENT: u32 = 47;
    /// MSG_ZEROCOPY: the bytes of one send call were copied. The engine reports the completion to
    /// the program.
    pub const ZERO_COPY: u32 = 48;
    /// TCP Fast Open: the program has called send(2) without bytes, so the engine sends the delayed
    /// SYN without data.
    pub const OPEN: u32 = 49;
    /// SO_TIMESTAMPING: a send call wrote bytes up to position b of the transmit FIFO. The engine
    /// reports when the last of them is sent and acknowledged.
    pub const STAMP: u32 = 50;
    /// MSG_EOR: no segment contains bytes from before and after position b of the transmit FIFO.
    pub const RECORD_END: u32 = 51;
}
}

// SAFETY: the struct consists of integers; its size, asserted in `mod.rs`, shows that there is no
// padding.
unsafe impl Plain for Command {}
