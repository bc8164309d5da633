//! The state of a socket in shared memory: the meaning of each word, and which process writes it.

use super::SharedAddr;
use crate::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// The state of a socket in shared memory: 256 bytes, four cache lines.
///
/// ```text
///            rx_head          rx_tail                    tx_head          tx_tail
///  free ------|===== unread ===|--- free      sent+acked --|== to be sent ==|--- free
///         program reads    engine writes           engine releases    program writes
/// ```
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot {
    // Cache line 0: rarely written, by the engine.
    /// Generation of the slot: even if the slot is free, and odd if it is in use. The number is
    /// incremented at each change, so that handles to an earlier socket do not match. A thread may
    /// use the slot if it has locked one end of the socket, and then found the expected generation.
    /// Until the thread unlocks it, the engine does not reuse the slot and its memory.
    pub generation: AtomicU32,
    /// Kind of the socket: the number of a [`Kind`].
    pub kind: AtomicU32,
    /// Address family of the socket: AF_INET or AF_INET6.
    pub family: AtomicU32,
    /// State of a TCP socket with Linux's numbers (TCP_ESTABLISHED = 1 ...); 7 (CLOSE) for other
    /// protocols.
    pub state: AtomicU32,
    /// State flags of the socket: bits of [`flags`].
    pub flags: AtomicU32,
    /// Pending error of the socket: an errno, or 0. The program takes it by an atomic swap with 0,
    /// for SO_ERROR or as the result of the next call.
    pub error: AtomicI32,
    /// Capacity of the receive FIFO in bytes; 0 if it has no buffer.
    pub rx_cap: AtomicU32,
    /// Capacity of the transmit FIFO in bytes. The engine writes it only while it holds `tx_lock`,
    /// or before the socket is connected. If it is 0, the program requests a buffer by
    /// [`op::TX_WINDOW`](super::op::TX_WINDOW) and waits.
    pub tx_cap: AtomicU32,
    /// Offset of the receive FIFO's memory in the region. The offset changes only while the FIFO is
    /// empty.
    pub rx_base: AtomicU64,
    /// Offset of the transmit FIFO's memory in the region. Written in the same cases as `tx_cap`.
    pub tx_base: AtomicU64,
    /// Rotation of the transmit FIFO: the byte at position `p` is at `tx_base + ((p + tx_shift) &
    /// (tx_cap - 1))`. With it, a FIFO can move to another buffer without changing its positions.
    pub tx_shift: AtomicU32,
    /// Rotation of the receive FIFO: the byte at position `p` is at `rx_base + ((p + rx_shift) &
    /// (rx_cap - 1))`.
    pub rx_shift: AtomicU32,
    /// Owner of the socket, which receives SIGURG (F_SETOWN of fcntl(2)): a process, or a negative
    /// process group; 0 if there is none. Written by the program. The cache line belongs to the
    /// engine, but the program rarely writes here.
    pub owner: AtomicI32,
    /// IPV6_TCLASS as set by the program, which writes this word.
    pub tclass: AtomicU32,

    // Cache line 1: often written, by the engine.
    /// End of the unread bytes.
    pub rx_tail: AtomicU32,
    /// Position of the first byte in the transmit FIFO that may not be overwritten. The byte is
    /// needed for a transmission, a retransmission or an existing packet.
    pub tx_head: AtomicU32,
    /// Futex word of threads that wait for this socket. Every event changes it.
    pub event_seq: AtomicU32,
    /// Set to 1 by the engine to request the command [`op::RX_SPACE`](super::op::RX_SPACE) after
    /// the next read, because a window update may be needed then. The program swaps it to 0 when it
    /// sends the command.
    pub rx_wanted: AtomicU32,
    /// Number of bytes in the transmit FIFO that were sent but not released (for SIOCOUTQ).
    pub tx_unacked: AtomicU32,
    /// Maximum number of bytes that the program should keep in the transmit FIFO (SO_SNDBUF,
    /// autotuned); at most `tx_cap`.
    pub tx_limit: AtomicU32,
    /// Local address of the socket. Written before the socket enters a state in which it is used.
    pub local: SharedAddr,
    /// Maximum to which [`op::TX_WINDOW`](super::op::TX_WINDOW) may raise `tx_limit`. Ignored if it
    /// is not above `tx_limit`.
    pub tx_goal: AtomicU32,
    /// 1 if the last write had MSG_MORE, so that a write without it must notify the engine. Written
    /// by the program under `tx_lock`. The word is shared, because another process may make the
    /// next write.
    pub more: AtomicU32,
    /// Unix time in nanoseconds at which the newest unread bytes of a stream arrived; 0 if there
    /// are none. Written before the corresponding `rx_tail`.
    pub rx_time_ns: AtomicU64,

    // Cache line 2: often written, by the program.
    /// Start of the unread bytes.
    pub rx_head: AtomicU32,
    /// End of the bytes in the transmit FIFO: the position for the next byte.
    pub tx_tail: AtomicU32,
    /// 1 if the engine was notified of new bytes, or is about to be. Both the program and the
    /// engine change it by atomic swaps.
    pub tx_dirty: AtomicU32,
    /// 1 if the program requests a notification of free space. The program sets it before a write
    /// fails or waits. When there is space, the engine swaps it to 0 and reports [`event::TX`].
    pub tx_wanted: AtomicU32,
    /// Nonzero if threads sleep on `event_seq`, or are about to. At an event, the engine swaps it
    /// to 0 and wakes all of them. A thread that continues to sleep sets it again. The word is not
    /// cleared when the slot gets a new socket, because threads may still be sleeping.
    pub asleep: AtomicU32,
    /// Lock of the read end: 0 if free, otherwise its owner | [`LOCK_CONTENDED`]. The owner
    /// consists of a process's channel number, from bit [`LOCK_CHANNEL_SHIFT`] on, and bits of a
    /// thread id. If that process has died, the engine releases the lock. The engine itself tries
    /// to take the lock ([`LOCK_ENGINE`]), but never waits for it.
    pub rx_lock: AtomicU32,
    /// Lock of the write end, in the format of `rx_lock`.
    pub tx_lock: AtomicU32,
    /// O_NONBLOCK and O_ASYNC of the open file description, which dup(2) and fork(2) share as in
    /// the kernel.
    pub file_flags: AtomicU32,
    /// Directions that the program has shut down: bits of [`shut`].
    pub shut: AtomicU32,
    /// SO_RCVLOWAT of the socket in bytes.
    pub rcvlowat: AtomicU32,
    /// SO_RCVTIMEO of the socket in microseconds; 0 if unlimited.
    pub rcvtimeo_us: AtomicU32,
    /// SO_SNDTIMEO of the socket in microseconds; 0 if unlimited.
    pub sndtimeo_us: AtomicU32,
    /// Boolean socket options as set by the program, for getsockopt(2): bits of [`option_bit`].
    pub option_bits: AtomicU32,
    /// SO_RCVBUF in bytes as set by the program; 0 if it was never set.
    pub rcvbuf: AtomicU32,
    /// SO_SNDBUF in bytes as set by the program; 0 if it was never set.
    pub sndbuf: AtomicU32,
    /// Number of messages with SCM_RIGHTS that contain this socket and were not received yet.
    /// Written by programs. The engine checks it before it closes a socket that no process has
    /// open.
    pub in_flight: AtomicU32,

    // Cache line 3: rarely written, by the engine.
    /// Remote address of a connected socket.
    pub remote: SharedAddr,
    /// TCP_KEEPIDLE in seconds, as set by the program, for getsockopt(2).
    pub keepidle: AtomicU32,
    /// TCP_KEEPINTVL in seconds, as set by the program, for getsockopt(2).
    pub keepintvl: AtomicU32,
    /// TCP_USER_TIMEOUT in milliseconds, as set by the program, for getsockopt(2).
    pub user_timeout_ms: AtomicU32,
    /// SO_LINGER in seconds, plus 1; 0 if it is off. Written by the program.
    pub linger: AtomicU32,
    /// IP_TOS as set by the program; 0 for the default.
    pub tos: AtomicU8,
    /// IP_TTL as set by the program; 0 for the default.
    pub ttl: AtomicU8,
    /// IPV6_UNICAST_HOPS: 0 for the default, otherwise hops + 1. Written by the program.
    pub hops: AtomicU16,
    /// TCP_KEEPCNT as set by the program, for getsockopt(2).
    pub keepcnt: AtomicU16,
    /// IP protocol number of the socket (6, 17, 1, 58). Written by the engine.
    pub protocol: AtomicU8,
    /// State of the last call of connect(2), see [`connect_asked`]. Written by the program.
    pub connect_asked: AtomicU8,
    /// TCP_NOTSENT_LOWAT in bytes; 0 if not set. Valid if [`option_bit::NOTSENT_LOWAT`] is set.
    /// Written by the program.
    pub notsent_lowat: AtomicU32,
    /// Value of SO_PEEK_OFF plus 1; 0 if the option is off. Valid if [`option_bit::PEEK_OFF`] is
    /// set. Written by the program.
    pub peek_off: AtomicU32,
    /// Position and value of received urgent data, see [`urgent`]; 0 if there is none. Valid if
    /// [`flags::URGENT`] is set. The engine writes it for new urgent data; the program records that
    /// the data was read or skipped. Swap: both the program and the engine write it.
    pub urgent: AtomicU64,
}

/// Kind of the socket that uses a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The slot has no socket.
    Free = 0,
    /// A TCP socket that is unconnected, connecting or connected, but not listening.
    Stream = 1,
    /// A TCP listener, whose receive FIFO contains [`AcceptRecord`](super::AcceptRecord)s.
    Listener = 2,
    /// A UDP socket, whose FIFOs contain [`DatagramHeader`](super::DatagramHeader)s with their
    /// payloads.
    Datagram = 3,
    /// An ICMP echo ("ping") socket. Its FIFOs are like those of UDP; the payload is the ICMP
    /// message.
    Echo = 4,
}

impl Kind {
    /// Converts a number from shared memory. Returns `None` for an invalid one, because programs
    /// can write the word.
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

/// Bits of [`Slot::flags`], the state of a socket. Written by the engine.
pub mod flags {
    /// TCP: the handshake is complete. UDP: a remote address is set.
    pub const CONNECTED: u32 = 1;
    /// A call of connect(2) is in progress: it has neither succeeded nor failed.
    pub const CONNECTING: u32 = 2;
    /// The peer's FIN has arrived. Reads return 0 after the unread bytes, whatever happens later.
    pub const RX_EOF: u32 = 4;
    /// No more data can be sent, because of a reset, a timeout, or a completed shutdown.
    pub const TX_CLOSED: u32 = 8;
    /// The socket is bound to a local address.
    pub const BOUND: u32 = 16;
    /// The engine's connection has ended. The slot contains only the error and the unread bytes.
    pub const DEAD: u32 = 32;
    /// The engine has no memory for the socket's transmit FIFO. The engine reports
    /// [`super::event::TX`] when it has attached some.
    pub const TX_AWAITS_MEMORY: u32 = 64;
    /// Set in addition to CONNECTED: the SYN carries data, but the handshake is not complete (RFC
    /// 7413).
    pub const OPENING: u32 = 256;
    /// The socket's error queue contains reports ([`crate::control::call::ERROR_QUEUE`]).
    pub const ERRORS: u32 = 128;
    /// The socket has received urgent data; [`Slot::urgent`](super::Slot::urgent) contains its
    /// position. The engine sets this flag before it publishes bytes after the urgent byte.
    pub const URGENT: u32 = 512;
    /// The remote address is one of the stack's own addresses, so the peer is a program that uses
    /// the same engine.
    pub const NEAR: u32 = 1024;

    /// Assert that all flags are distinct bits.
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

/// Values of [`Slot::connect_asked`], the state of the last connect(2); like Linux's SS_CONNECTING.
pub mod connect_asked {
    /// The program knows the result of every connect(2).
    pub const TOLD: u8 = 0;
    /// A connect(2) was started, and its result was not returned to the program yet.
    pub const STARTED: u8 = 1;
    /// Like STARTED, but the SYN waits for the first write (TCP Fast Open): Linux's
    /// `defer_connect`.
    pub const DEFERRED: u8 = 2;
}

/// Bit fields of [`Slot::urgent`], which describes urgent data. The fields correspond to Linux's
/// `urg_seq` and `urg_data`. The gap is an earlier urgent byte that reads skip.
///
/// ```text
///    63 ─ 44           43      42        41         40        39 ─ 32     31 ─ 0
///   distance from the  GAP     READ      VALID      PRESENT   value of    position in
///   gap to the mark                                           the byte    the receive FIFO
/// ```
pub mod urgent {
    /// Flag: there is urgent data. Its position is in the lower 32 bits.
    pub const PRESENT: u64 = 1 << 40;
    /// Flag: the urgent byte has arrived.
    pub const VALID: u64 = 1 << 41;
    /// Flag: the urgent byte was read with MSG_OOB.
    pub const READ: u64 = 1 << 42;
    /// Flag: reads skip an earlier byte, called the gap (`tcp_check_urg`). The gap was the previous
    /// urgent byte, and the reader was just before it when newer urgent data arrived.
    pub const GAP: u64 = 1 << 43;
    /// Shift of the bits that contain the distance in bytes from the gap to the urgent byte. The
    /// gap is an earlier urgent byte that reads skip.
    pub const DISTANCE_SHIFT: u32 = 44;
    /// Maximum distance in bytes from the gap (an earlier urgent byte that reads skip) to the
    /// urgent byte. If the distance is larger, the earlier byte is not skipped.
    pub const DISTANCE_MAX: u32 = (1 << 20) - 1;

    /// Creates the word for an urgent byte at `position`, with the value of the byte if it has
    /// arrived.
    pub const fn mark(position: u32, byte: Option<u8>) -> u64 {
        let byte = match byte {
            Some(byte) => VALID | (byte as u64) << 32,
            None => 0,
        };
        PRESENT | byte | position as u64
    }

    /// Returns the position of the urgent byte.
    pub const fn position(word: u64) -> u32 {
        word as u32
    }

    /// Returns the value of the urgent byte.
    pub const fn byte(word: u64) -> u8 {
        (word >> 32) as u8
    }

    /// Returns the position of an earlier urgent byte that reads skip (the gap), if there is one.
    pub const fn gap(word: u64) -> Option<u32> {
        if word & GAP == 0 {
            return None;
        }
        Some(position(word).wrapping_sub((word >> DISTANCE_SHIFT) as u32))
    }

    /// Returns the word with a gap (a byte that reads skip) at position `gap`, before the urgent
    /// byte.
    pub const fn with_gap(word: u64, gap: u32) -> u64 {
        let distance = position(word).wrapping_sub(gap);
        if distance == 0 || distance > DISTANCE_MAX {
            return word;
        }
        word | GAP | (distance as u64) << DISTANCE_SHIFT
    }

    /// Returns the word without the gap (the byte that reads skip).
    pub const fn without_gap(word: u64) -> u64 {
        word & (GAP - 1)
    }
}

/// Bits of [`Slot::shut`]: directions that were shut down. Written by the program.
pub mod shut {
    /// The program has shut down reading (SHUT_RD).
    pub const READ: u32 = 1;
    /// The program has shut down writing (SHUT_WR).
    pub const WRITE: u32 = 2;
}

/// Bits of [`Slot::option_bits`]: boolean socket options.
pub mod option_bit {
    /// The socket option TCP_NODELAY is set.
    pub const NODELAY: u32 = 1;
    /// The socket option TCP_CORK is set.
    pub const CORK: u32 = 2;
    /// The socket option SO_KEEPALIVE is set.
    pub const KEEPALIVE: u32 = 4;
    /// The socket option SO_REUSEADDR is set.
    pub const REUSEADDR: u32 = 8;
    /// The socket option SO_REUSEPORT is set.
    pub const REUSEPORT: u32 = 16;
    /// The socket option IPV6_V6ONLY is set.
    pub const V6ONLY: u32 = 32;
    /// The socket option SO_BROADCAST is set.
    pub const BROADCAST: u32 = 64;
    /// The socket option IP_PKTINFO is set.
    pub const PKTINFO: u32 = 128;
    /// The socket option IP_RECVTTL is set.
    pub const RECVTTL: u32 = 256;
    /// The socket option IP_RECVTOS is set.
    pub const RECVTOS: u32 = 512;
    /// The socket option SO_TIMESTAMP is set.
    pub const TIMESTAMP: u32 = 1024;
    /// The socket option TCP_NOTSENT_LOWAT is not 0.
    pub const NOTSENT_LOWAT: u32 = 2048;
    /// The socket option IP_RECVERR is set.
    pub const RECVERR: u32 = 4096;
    /// The socket option SO_OOBINLINE is set.
    pub const OOBINLINE: u32 = 8192;
    /// The socket option SO_TIMESTAMPNS is set.
    pub const TIMESTAMPNS: u32 = 16384;
    /// The socket option TCP_DEFER_ACCEPT is set.
    pub const DEFER_ACCEPT: u32 = 32768;
    /// The socket option IPV6_RECVPKTINFO is set. For an IPv4 datagram received on an IPv6 socket,
    /// IP_PKTINFO applies instead.
    pub const PKTINFO_V6: u32 = 65536;
    /// The socket option IPV6_RECVHOPLIMIT is set.
    pub const RECVHOPLIMIT: u32 = 131_072;
    /// The socket option IPV6_RECVTCLASS is set.
    pub const RECVTCLASS: u32 = 262_144;
    /// The socket option UDP_CORK is set.
    pub const UDP_CORK: u32 = 524_288;
    /// The socket option IPV6_RECVERR is set.
    pub const RECVERR_V6: u32 = 1_048_576;
    /// The socket option SO_PEEK_OFF is not negative.
    pub const PEEK_OFF: u32 = 1 << 21;
    /// The socket option SO_RXQ_OVFL is set.
    pub const RXQ_OVFL: u32 = 1 << 22;
    /// The socket option UDP_GRO is set.
    pub const UDP_GRO: u32 = 1 << 23;
    /// SO_TIMESTAMPING is set so that sent bytes of a stream are reported. The bit is the same as
    /// that of UDP_GRO, which streams do not have.
    pub const STAMPED_STREAM: u32 = 1 << 23;
    /// The socket option SO_ZEROCOPY is set.
    pub const ZERO_COPY: u32 = 1 << 24;
    /// IPV6_MTU is set, so that a datagram may be too long although it fits the MTU of every link.
    pub const FRAGMENT_SIZE: u32 = 1 << 25;
    /// IPV6_MTU_DISCOVER is set so that datagrams are rejected if they are too long, as for
    /// [`REFUSE_LONG`].
    pub const REFUSE_LONG_V6: u32 = 1 << 26;
    /// IP_MTU_DISCOVER is set so that datagrams are rejected if they are too long (IP_PMTUDISC_DO,
    /// _PROBE and _INTERFACE).
    pub const REFUSE_LONG: u32 = 1 << 31;
    /// The socket option SO_NO_CHECK is set.
    pub const NO_CHECK: u32 = 1 << 27;
    /// The socket option IP_RECVORIGDSTADDR is set.
    pub const ORIGDSTADDR: u32 = 1 << 28;
    /// The socket option IPV6_RECVORIGDSTADDR is set.
    pub const ORIGDSTADDR_V6: u32 = 1 << 29;
    /// SO_TIMESTAMPING is set with SOF_TIMESTAMPING_RX_SOFTWARE and SOF_TIMESTAMPING_SOFTWARE.
    pub const TIMESTAMPING_RX: u32 = 1 << 30;
}

/// Flag of a lock word: a thread sleeps until the lock is released, so the owner must wake it.
pub const LOCK_CONTENDED: u32 = 1 << 31;
/// Flag of a lock word. Without an owner in the word: the engine holds the lock. With an owner: the
/// engine waits for the lock, and the owner sends [`op::UNLOCKED`](super::op::UNLOCKED) when it
/// releases the lock.
pub const LOCK_ENGINE: u32 = 1 << 30;
/// Position of the channel number in a lock word. Below it are the lowest bits of the owner's
/// thread id.
pub const LOCK_CHANNEL_SHIFT: u32 = 18;
/// Maximum number of channels, and so of processes, of a run. Channel numbers start at 1 and must
/// fit in a lock word.
pub const CHANNELS_MAX: u32 = (1 << (30 - LOCK_CHANNEL_SHIFT)) - 1;

/// Events of a socket in an entry of the event ring. The event bits are above the index of the
/// socket's slot. Until the program takes the entry, further events are added to it, so the ring
/// has one entry per socket. Taking sets the entry to 0.
pub mod event {
    /// Position of the event bits in an entry; below is the index of the slot.
    pub const SHIFT: u32 = 24;
    const _: () = assert!(super::super::SLOTS_MAX <= 1 << SHIFT);

    /// Creates an entry of the event ring.
    #[inline]
    pub const fn entry(slot: u32, bits: u8) -> u32 {
        (bits as u32) << SHIFT | slot
    }

    /// Returns the index of the slot and the event bits of an entry. Accepts any number, because
    /// programs can write to the ring.
    #[inline]
    pub const fn parts(entry: u32) -> (u32, u8) {
        (entry & (super::super::SLOTS_MAX - 1), (entry >> SHIFT) as u8)
    }

    /// Bytes, a datagram or a connection to accept has arrived, or the stream has ended.
    pub const RX: u8 = 1;
    /// The socket may have space to send, or a connect(2) has completed.
    pub const TX: u8 = 2;
    /// The peer has shut down its send direction (EPOLLRDHUP).
    pub const RDHUP: u8 = 4;
    /// The connection was reset, was refused or has timed out; see [`super::Slot::error`].
    pub const ERROR: u8 = 8;
    /// Both directions are closed (EPOLLHUP).
    pub const HUP: u8 = 16;
    /// Urgent data has arrived (EPOLLPRI).
    pub const PRI: u8 = 32;
}
