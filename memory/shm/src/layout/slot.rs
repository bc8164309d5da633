//! A socket's shared state: the meaning and the writer of each word.

use super::SharedAddr;
use crate::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// The shared state of a socket: 256 bytes, four cache lines.
///
/// ```text
///            rx_head          rx_tail                    tx_head          tx_tail
///  free ------|===== unread ===|--- free      sent+acked --|== to be sent ==|--- free
///         program reads    engine writes           engine releases    program writes
/// ```
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot {
    // Cache line 0: written by the engine, rarely.
    /// Even if free, odd if in use; incremented at each change, so a stale handle never matches. A
    /// thread that has locked an end, and then found the expected generation, may use the slot
    /// until it unlocks. Until then the engine does not reuse the slot, nor the memory of its
    /// FIFOs.
    pub generation: AtomicU32,
    /// Kind of the socket: a [`Kind`] as u32.
    pub kind: AtomicU32,
    /// Address family, AF_INET or AF_INET6.
    pub family: AtomicU32,
    /// TCP state with Linux's numbers (TCP_ESTABLISHED = 1 ...); 7 (CLOSE) for other protocols.
    pub state: AtomicU32,
    /// Flags of the socket's state, see [`flags`].
    pub flags: AtomicU32,
    /// Pending error (errno, or 0). The program takes it by an atomic swap with 0, for SO_ERROR or
    /// the next call.
    pub error: AtomicI32,
    /// Capacity of the receive FIFO in bytes; 0 if no memory is attached.
    pub rx_cap: AtomicU32,
    /// Capacity of the transmit FIFO in bytes. Written by the engine only while it holds `tx_lock`,
    /// or before the socket is connected. If 0, the program requests memory by
    /// [`op::TX_WINDOW`](super::op::TX_WINDOW) and waits.
    pub tx_cap: AtomicU32,
    /// Offset of the receive FIFO in the region. Changes only while the FIFO is empty.
    pub rx_base: AtomicU64,
    /// Offset of the transmit FIFO in the region; see `tx_cap`.
    pub tx_base: AtomicU64,
    /// Rotation of the transmit FIFO: byte `p` of the stream is at `tx_base + ((p + tx_shift) &
    /// (tx_cap - 1))`. Without the rotation, a FIFO that moves or grows could not keep its
    /// positions.
    pub tx_shift: AtomicU32,
    /// Rotation of the receive FIFO, like `tx_shift` with `rx_base` and `rx_cap`.
    pub rx_shift: AtomicU32,
    /// F_SETOWN of the open file, as for fcntl(2): a process, or a negated group; 0 if none.
    /// Written by the program, but in a line of the engine because it is rarely used.
    pub owner: AtomicI32,
    /// IPV6_TCLASS as set by the program, which writes this word like `owner`.
    pub tclass: AtomicU32,

    // Cache line 1: written by the engine, often.
    /// End of the unread bytes.
    pub rx_tail: AtomicU32,
    /// Start of the bytes that are needed for (re)transmission, or that packets still reference.
    pub tx_head: AtomicU32,
    /// Changes with every event; futex word of programs that are blocked on this socket.
    pub event_seq: AtomicU32,
    /// Set to 1 by the engine if it needs [`op::RX_SPACE`](super::op::RX_SPACE) after the next
    /// read, because a window update may depend on it. The program sets it to 0 by an atomic swap
    /// when it sends the command.
    pub rx_wanted: AtomicU32,
    /// Number of sent bytes in the transmit FIFO that are not released yet (for SIOCOUTQ).
    pub tx_unacked: AtomicU32,
    /// Maximum bytes that the program should queue (SO_SNDBUF, autotuned); at most `tx_cap`.
    pub tx_limit: AtomicU32,
    /// Local address, written before the socket enters a state in which the address matters.
    pub local: SharedAddr,
    /// Maximum to which [`op::TX_WINDOW`](super::op::TX_WINDOW) may raise `tx_limit`. Without
    /// effect unless it is above `tx_limit`.
    pub tx_goal: AtomicU32,
    /// 1 if the last write had MSG_MORE, so that the next one has to notify the engine of the
    /// change. Written by the program under `tx_lock`, because the next sender may be another
    /// process.
    pub more: AtomicU32,
    /// Unix time in ns of the turn in which the newest unread bytes arrived (streams); 0 if none.
    /// Written before the corresponding `rx_tail`.
    pub rx_time_ns: AtomicU64,

    // Cache line 2: written by the program, often.
    /// Start of the unread bytes.
    pub rx_head: AtomicU32,
    /// End of the bytes to be sent.
    pub tx_tail: AtomicU32,
    /// 1 if the engine was notified (or is about to be) of new bytes. Both sides modify it by
    /// atomic swaps.
    pub tx_dirty: AtomicU32,
    /// Set by the program before it fails or waits for lack of space. The engine swaps it to 0 and
    /// reports [`event::TX`] when there is space again. Both sides modify it by atomic swaps.
    pub tx_wanted: AtomicU32,
    /// Nonzero if threads sleep on `event_seq`, or are about to. At an event, the engine sets it to
    /// 0 by an atomic swap and wakes all of them. Each thread sets it again before it continues to
    /// sleep. The word is not reset with the socket, because the threads may outlive it.
    pub asleep: AtomicU32,
    /// Lock of the read end: 0 if free, otherwise the owner | [`LOCK_CONTENDED`]. The owner is a
    /// channel number, from [`LOCK_CHANNEL_SHIFT`] on, and bits of a thread id. The engine releases
    /// it if the channel's process is gone. For itself the engine only tries to take it
    /// ([`LOCK_ENGINE`]).
    pub rx_lock: AtomicU32,
    /// Lock of the write end, see `rx_lock`.
    pub tx_lock: AtomicU32,
    /// O_NONBLOCK and O_ASYNC of the open file: shared by dup and fork, as in the kernel.
    pub file_flags: AtomicU32,
    /// [`shut`] bits of the directions that the program has shut down.
    pub shut: AtomicU32,
    /// SO_RCVLOWAT in bytes.
    pub rcvlowat: AtomicU32,
    /// SO_RCVTIMEO in microseconds; 0 if unlimited.
    pub rcvtimeo_us: AtomicU32,
    /// SO_SNDTIMEO in microseconds; 0 if unlimited.
    pub sndtimeo_us: AtomicU32,
    /// Boolean options as set by the program ([`option_bit`]), for getsockopt.
    pub option_bits: AtomicU32,
    /// SO_RCVBUF in bytes as set by the program; 0 if it was never set.
    pub rcvbuf: AtomicU32,
    /// SO_SNDBUF in bytes as set by the program; 0 if it was never set.
    pub sndbuf: AtomicU32,
    /// Number of SCM_RIGHTS messages in flight with this socket: incremented when sent, decremented
    /// when adopted. Written by programs; the engine checks it when no process holds the socket any
    /// more.
    pub in_flight: AtomicU32,

    // Cache line 3: written by the engine, rarely.
    /// Remote address of a connected socket.
    pub remote: SharedAddr,
    /// TCP_KEEPIDLE in seconds, as set by the program, for getsockopt.
    pub keepidle: AtomicU32,
    /// TCP_KEEPINTVL in seconds, as set by the program, for getsockopt.
    pub keepintvl: AtomicU32,
    /// TCP_USER_TIMEOUT in milliseconds, as set by the program, for getsockopt.
    pub user_timeout_ms: AtomicU32,
    /// SO_LINGER: 0 if off, otherwise seconds + 1. Written by the program.
    pub linger: AtomicU32,
    /// IP_TOS as set by the program; 0 for the default.
    pub tos: AtomicU8,
    /// IP_TTL as set by the program; 0 for the default.
    pub ttl: AtomicU8,
    /// IPV6_UNICAST_HOPS: 0 for the default, otherwise hops + 1. Written by the program.
    pub hops: AtomicU16,
    /// TCP_KEEPCNT as set by the program, for getsockopt.
    pub keepcnt: AtomicU16,
    /// Protocol of the socket (6, 17, 1, 58). Written by the engine.
    pub protocol: AtomicU8,
    /// State of the last connect, see [`connect_asked`]. Written by the program.
    pub connect_asked: AtomicU8,
    /// TCP_NOTSENT_LOWAT; 0 if none. Valid if [`option_bit::NOTSENT_LOWAT`] is set. Written by the
    /// program.
    pub notsent_lowat: AtomicU32,
    /// SO_PEEK_OFF + 1; 0 if off. Valid if [`option_bit::PEEK_OFF`] is set. Written by the program.
    pub peek_off: AtomicU32,
    /// Received urgent data, see [`urgent`]; 0 if none. Valid if [`flags::URGENT`] is set. The
    /// engine writes a new mark; the program records that it was read or skipped. Swap.
    pub urgent: AtomicU64,
}

/// Kinds of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The slot is not in use.
    Free = 0,
    /// A TCP socket: unconnected, connecting or connected.
    Stream = 1,
    /// A TCP listener; the receive FIFO contains [`AcceptRecord`](super::AcceptRecord)s.
    Listener = 2,
    /// A UDP socket; both FIFOs contain [`DatagramHeader`](super::DatagramHeader)s with their
    /// payloads.
    Datagram = 3,
    /// An ICMP echo ("ping") socket, like UDP; the payload is the ICMP message.
    Echo = 4,
}

impl Kind {
    /// Converts a number; `None` if it is no kind, because programs can write the word.
    pub fn from_u32(n: u32) -> Option<Self> {
        Some(match n {
            0 => Self::Free,
            1 => Self::Stream,
            2 => Self::Listener,
            3 => Self::Datagram,
            4 => Self::Echo,
            _ => return None,
        })
    }
}

/// Bits of [`Slot::flags`], written by the engine.
pub mod flags {
    /// The handshake is complete (TCP), or a remote address is set (UDP).
    pub const CONNECTED: u32 = 1;
    /// A connect is in progress, and has neither succeeded nor failed.
    pub const CONNECTING: u32 = 2;
    /// The peer's FIN arrived: reads return 0 after the unread bytes, whatever happens later.
    pub const RX_EOF: u32 = 4;
    /// No more data can be sent (reset, timed out, or shut down and finished).
    pub const TX_CLOSED: u32 = 8;
    /// The socket is bound to a local address.
    pub const BOUND: u32 = 16;
    /// The stack's socket is gone; the slot only keeps the error and the unread bytes.
    pub const DEAD: u32 = 32;
    /// The engine has no transmit memory for this socket; [`super::event::TX`] follows when it has
    /// attached some.
    pub const TX_AWAITS_MEMORY: u32 = 64;
    /// Set in addition to CONNECTED: the handshake is not complete, and the SYN carries data (RFC
    /// 7413).
    pub const OPENING: u32 = 256;
    /// The error queue contains reports ([`crate::control::call::ERROR_QUEUE`]).
    pub const ERRORS: u32 = 128;
    /// Urgent data has arrived at least once; [`Slot::urgent`](super::Slot::urgent) has its
    /// position. Set before bytes after the mark are published.
    pub const URGENT: u32 = 512;
    /// The remote address is one of the stack's own, so the peer is a program of the run.
    pub const NEAR: u32 = 1024;

    /// All flags are distinct bits.
    const _: () = {
        let all = [
            CONNECTED,
            CONNECTING,
            RX_EOF,
            TX_CLOSED,
            BOUND,
            DEAD,
            TX_AWAITS_MEMORY,
            ERRORS,
            OPENING,
            URGENT,
            NEAR,
        ];
        let (mut n, mut seen) = (0, 0);
        while n < all.len() {
            assert!(all[n].is_power_of_two() && seen & all[n] == 0);
            seen |= all[n];
            n += 1;
        }
    };
}

/// Values of [`Slot::connect_asked`], which correspond to Linux's SS_CONNECTING.
pub mod connect_asked {
    /// The result of every connect was returned to the program.
    pub const TOLD: u8 = 0;
    /// A connect was started, and its result was not returned yet.
    pub const STARTED: u8 = 1;
    /// Like STARTED, and the SYN waits for the first write: Linux's `defer_connect`.
    pub const DEFERRED: u8 = 2;
}

/// Parts of [`Slot::urgent`], which correspond to Linux's `urg_seq` and `urg_data`.
///
/// ```text
///    63 ─ 44           43      42        41         40        39 ─ 32     31 ─ 0
///   distance from the  GAP     READ      VALID      PRESENT   value of    position in
///   gap to the mark                                           the byte    the receive FIFO
/// ```
pub mod urgent {
    /// Whether there is a mark.
    pub const PRESENT: u64 = 1 << 40;
    /// Whether the byte has arrived.
    pub const VALID: u64 = 1 << 41;
    /// Whether the byte was read with MSG_OOB.
    pub const READ: u64 = 1 << 42;
    /// Whether a byte before the mark, the gap, is skipped (`tcp_check_urg`). The gap was the
    /// previous mark, and the reader was in front of it when the new mark arrived.
    pub const GAP: u64 = 1 << 43;
    /// Position of the bits that hold the distance from the gap to the mark.
    pub const DISTANCE_SHIFT: u32 = 44;
    /// Maximum distance from the gap to the mark. A byte further back is read like any other byte.
    pub const DISTANCE_MAX: u32 = (1 << 20) - 1;

    /// Creates a mark at a position, with its byte if that has arrived.
    pub const fn mark(position: u32, byte: Option<u8>) -> u64 {
        let byte = match byte {
            Some(byte) => VALID | (byte as u64) << 32,
            None => 0,
        };
        PRESENT | byte | position as u64
    }

    /// Returns the position of the mark.
    pub const fn position(word: u64) -> u32 {
        word as u32
    }

    /// Returns the byte at the mark.
    pub const fn byte(word: u64) -> u8 {
        (word >> 32) as u8
    }

    /// Returns the position of the skipped byte.
    pub const fn gap(word: u64) -> Option<u32> {
        if word & GAP == 0 {
            return None;
        }
        Some(position(word).wrapping_sub((word >> DISTANCE_SHIFT) as u32))
    }

    /// Adds a gap at position `gap`, before the mark.
    pub const fn with_gap(word: u64, gap: u32) -> u64 {
        let distance = position(word).wrapping_sub(gap);
        if distance == 0 || distance > DISTANCE_MAX {
            return word;
        }
        word | GAP | (distance as u64) << DISTANCE_SHIFT
    }

    /// Removes the gap.
    pub const fn without_gap(word: u64) -> u64 {
        word & (GAP - 1)
    }
}

/// Bits of [`Slot::shut`], written by the program.
pub mod shut {
    /// SHUT_RD.
    pub const READ: u32 = 1;
    /// SHUT_WR.
    pub const WRITE: u32 = 2;
}

/// Bits of [`Slot::option_bits`].
pub mod option_bit {
    /// TCP_NODELAY.
    pub const NODELAY: u32 = 1;
    /// TCP_CORK.
    pub const CORK: u32 = 2;
    /// SO_KEEPALIVE.
    pub const KEEPALIVE: u32 = 4;
    /// SO_REUSEADDR.
    pub const REUSEADDR: u32 = 8;
    /// SO_REUSEPORT.
    pub const REUSEPORT: u32 = 16;
    /// IPV6_V6ONLY.
    pub const V6ONLY: u32 = 32;
    /// SO_BROADCAST.
    pub const BROADCAST: u32 = 64;
    /// IP_PKTINFO.
    pub const PKTINFO: u32 = 128;
    /// IP_RECVTTL.
    pub const RECVTTL: u32 = 256;
    /// IP_RECVTOS.
    pub const RECVTOS: u32 = 512;
    /// SO_TIMESTAMP.
    pub const TIMESTAMP: u32 = 1024;
    /// TCP_NOTSENT_LOWAT is not 0.
    pub const NOTSENT_LOWAT: u32 = 2048;
    /// IP_RECVERR is set.
    pub const RECVERR: u32 = 4096;
    /// SO_OOBINLINE.
    pub const OOBINLINE: u32 = 8192;
    /// SO_TIMESTAMPNS.
    pub const TIMESTAMPNS: u32 = 16384;
    /// TCP_DEFER_ACCEPT is set.
    pub const DEFER_ACCEPT: u32 = 32768;
    /// IPV6_RECVPKTINFO. On an IPv6 socket, the IP_ options apply to the IPv4 datagrams that it
    /// receives.
    pub const PKTINFO_V6: u32 = 65536;
    /// IPV6_RECVHOPLIMIT.
    pub const RECVHOPLIMIT: u32 = 131_072;
    /// IPV6_RECVTCLASS.
    pub const RECVTCLASS: u32 = 262_144;
    /// UDP_CORK.
    pub const UDP_CORK: u32 = 524_288;
    /// IPV6_RECVERR is set.
    pub const RECVERR_V6: u32 = 1_048_576;
    /// SO_PEEK_OFF is not negative.
    pub const PEEK_OFF: u32 = 1 << 21;
    /// SO_RXQ_OVFL.
    pub const RXQ_OVFL: u32 = 1 << 22;
    /// UDP_GRO.
    pub const UDP_GRO: u32 = 1 << 23;
    /// Streams, which have no UDP_GRO: SO_TIMESTAMPING reports sent bytes.
    pub const STAMPED_STREAM: u32 = 1 << 23;
    /// SO_ZEROCOPY.
    pub const ZERO_COPY: u32 = 1 << 24;
    /// IPV6_MTU is set: even datagrams that fit every link may be too long.
    pub const FRAGMENT_SIZE: u32 = 1 << 25;
    /// IPV6_MTU_DISCOVER refuses datagrams that are too long, like [`REFUSE_LONG`].
    pub const REFUSE_LONG_V6: u32 = 1 << 26;
    /// IP_MTU_DISCOVER refuses datagrams that are too long (IP_PMTUDISC_DO, _PROBE and _INTERFACE).
    pub const REFUSE_LONG: u32 = 1 << 31;
    /// SO_NO_CHECK.
    pub const NO_CHECK: u32 = 1 << 27;
    /// IP_RECVORIGDSTADDR.
    pub const ORIGDSTADDR: u32 = 1 << 28;
    /// IPV6_RECVORIGDSTADDR.
    pub const ORIGDSTADDR_V6: u32 = 1 << 29;
    /// SO_TIMESTAMPING with SOF_TIMESTAMPING_RX_SOFTWARE and SOF_TIMESTAMPING_SOFTWARE.
    pub const TIMESTAMPING_RX: u32 = 1 << 30;
}

/// Flag of a lock word: a thread sleeps until the lock is released.
pub const LOCK_CONTENDED: u32 = 1 << 31;
/// Flag of a lock word. Without an owner, it means that the engine holds the lock. With an owner,
/// the engine waits for the lock, and the thread that releases it sends
/// [`op::UNLOCKED`](super::op::UNLOCKED).
pub const LOCK_ENGINE: u32 = 1 << 30;
/// Position of the channel number in a lock word. The bits below are the lowest bits of the owner's
/// thread id.
pub const LOCK_CHANNEL_SHIFT: u32 = 18;
/// Maximum channels of a run, and so processes: channel numbers start at 1 and must fit in a lock
/// word.
pub const CHANNELS_MAX: u32 = (1 << (30 - LOCK_CHANNEL_SHIFT)) - 1;

/// Events of a socket: bits of an entry of the event ring, above the slot's index. Further events
/// are added to the entry until the program takes it, so the ring has one entry per socket. An
/// entry of 0 was taken.
pub mod event {
    /// Position of the bits; the slot's index is below.
    pub const SHIFT: u32 = 24;
    const _: () = assert!(super::super::SLOTS_MAX <= 1 << SHIFT);

    /// Creates an entry of the ring.
    #[inline]
    pub const fn entry(slot: u32, bits: u8) -> u32 {
        (bits as u32) << SHIFT | slot
    }

    /// Returns slot and bits of an entry. Accepts any number, because programs can write to the
    /// ring.
    #[inline]
    pub const fn parts(entry: u32) -> (u32, u8) {
        (entry & (super::super::SLOTS_MAX - 1), (entry >> SHIFT) as u8)
    }

    /// Bytes, a datagram or a connection to accept arrived, or the stream ended.
    pub const RX: u8 = 1;
    /// There is space to send, or a connect has completed.
    pub const TX: u8 = 2;
    /// The peer closed its send direction (EPOLLRDHUP).
    pub const RDHUP: u8 = 4;
    /// The connection was reset, refused or timed out; see [`super::Slot::error`].
    pub const ERROR: u8 = 8;
    /// Both sides are closed (EPOLLHUP).
    pub const HUP: u8 = 16;
    /// Urgent data arrived (EPOLLPRI).
    pub const PRI: u8 = 32;
}
