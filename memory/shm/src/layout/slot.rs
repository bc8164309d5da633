//! A socket's shared state, and what its words mean.

use super::SharedAddr;
use crate::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// A socket, as both sides see it: 256 bytes, four cache lines.
///
/// ```text
///            rx_head          rx_tail                    tx_head          tx_tail
///  free ------|===== unread ===|--- free      sent+acked --|== to be sent ==|--- free
///         program reads    engine writes           engine releases    program writes
/// ```
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot {
    // Line 0, engine: changes rarely.
    /// Even: free; odd: in use. Goes up by one at each change, so a stale handle never matches. A
    /// thread that has locked an end, and then found the generation that it knows, has the slot
    /// until it unlocks. Before that the engine gives neither the slot nor its FIFOs' memory to
    /// another socket.
    pub generation: AtomicU32,
    /// [`Kind`] as u32.
    pub kind: AtomicU32,
    /// Address family, AF_INET or AF_INET6.
    pub family: AtomicU32,
    /// TCP state, as Linux numbers them (TCP_ESTABLISHED = 1 ...). 7 (CLOSE) for others.
    pub state: AtomicU32,
    /// [`flags`].
    pub flags: AtomicU32,
    /// Pending error (errno, 0: none), taken by the program with swap 0 (SO_ERROR, or the next
    /// call). Swap.
    pub error: AtomicI32,
    /// Receive FIFO: capacity (0: no memory attached), and offset in the region.
    pub rx_cap: AtomicU32,
    /// Transmit FIFO capacity. Written by the engine only while it holds `tx_lock`, or before the
    /// socket is connected. 0: the program asks for memory with
    /// [`op::TX_WINDOW`](super::op::TX_WINDOW) and waits.
    pub tx_cap: AtomicU32,
    /// See `rx_cap`. Changes only while the FIFO is empty.
    pub rx_base: AtomicU64,
    /// See `tx_cap`.
    pub tx_base: AtomicU64,
    /// Rotation of the FIFO: byte `p` of the stream lies at `tx_base + ((p + tx_shift) & (tx_cap -
    /// 1))`. Otherwise a FIFO that moves or grows would have to copy its bytes to where `p` alone
    /// puts them.
    pub tx_shift: AtomicU32,
    /// The same for `rx_cap`.
    pub rx_shift: AtomicU32,
    /// F_SETOWN of the open file, as fcntl(2) gives it: a process, or minus a group; 0: nobody.
    /// Program, in a line of the engine's because it is hardly ever used.
    pub owner: AtomicI32,
    /// IPV6_TCLASS as set. Program, as `owner`.
    pub tclass: AtomicU32,

    // Line 1, engine: hot.
    /// End of the unread bytes.
    pub rx_tail: AtomicU32,
    /// Start of the bytes still needed for (re)transmission, or that a packet on its way to a
    /// device still points to.
    pub tx_head: AtomicU32,
    /// Changes whenever something happened; programs blocked on this socket alone sleep on it.
    pub event_seq: AtomicU32,
    /// Set to 1 by the engine when it wants [`op::RX_SPACE`](super::op::RX_SPACE) after the next
    /// read, because a window update may depend on it. The program swaps it to 0 when it sends the
    /// command. Swap.
    pub rx_wanted: AtomicU32,
    /// Bytes in the transmit FIFO that were sent and are still in it (for SIOCOUTQ users).
    pub tx_unacked: AtomicU32,
    /// Most bytes the program should queue (SO_SNDBUF, autotuned); at most `tx_cap`.
    pub tx_limit: AtomicU32,
    /// Local address; written before the state that makes it interesting.
    pub local: SharedAddr,
    /// Upper bound to which [`op::TX_WINDOW`](super::op::TX_WINDOW) may raise `tx_limit`; at or
    /// below `tx_limit` there is no offer.
    pub tx_goal: AtomicU32,
    /// 1: the engine was told that more bytes follow (MSG_MORE), and is told otherwise with the
    /// next. Program, under `tx_lock`: the next sender may be another process.
    pub more: AtomicU32,
    /// Unix time in ns of the turn in which the newest unread bytes came (streams); 0: never.
    /// Written before the `rx_tail` that shows them.
    pub rx_time_ns: AtomicU64,

    // Line 2, program: hot.
    /// Start of the unread bytes.
    pub rx_head: AtomicU32,
    /// End of the bytes to be sent.
    pub tx_tail: AtomicU32,
    /// 1 when the engine was told (or is about to be told) of new bytes. Swap by both.
    pub tx_dirty: AtomicU32,
    /// Set by the program before it gives up for lack of room. The engine swaps it to 0 and reports
    /// [`event::TX`] when there is room again. Swap by both.
    pub tx_wanted: AtomicU32,
    /// Not 0: threads sleep on `event_seq`, or are about to. The engine swaps it to 0 when
    /// something happens, and wakes all of them; each says so again before it sleeps on. The word
    /// outlives the socket, as those threads may. Swap.
    pub asleep: AtomicU32,
    /// Program-side lock of the read end: 0 free, else the owner | [`LOCK_CONTENDED`]. The owner is
    /// the number of a channel, from [`LOCK_CHANNEL_SHIFT`] on, and bits of a thread id. The engine
    /// frees it when the channel's process is gone. The engine only ever tries the lock itself
    /// ([`LOCK_ENGINE`]).
    pub rx_lock: AtomicU32,
    /// The same for the write end.
    pub tx_lock: AtomicU32,
    /// O_NONBLOCK and O_ASYNC of the open file: shared by dup and fork, as in the kernel.
    pub file_flags: AtomicU32,
    /// [`shut`] bits: what the program has shut down.
    pub shut: AtomicU32,
    /// SO_RCVLOWAT.
    pub rcvlowat: AtomicU32,
    /// SO_RCVTIMEO in microseconds, 0: none.
    pub rcvtimeo_us: AtomicU32,
    /// SO_SNDTIMEO in microseconds, 0: none.
    pub sndtimeo_us: AtomicU32,
    /// Boolean options as last set ([`option_bit`]), for getsockopt.
    pub option_bits: AtomicU32,
    /// SO_RCVBUF as last set (0: never).
    pub rcvbuf: AtomicU32,
    /// SO_SNDBUF as last set (0: never).
    pub sndbuf: AtomicU32,
    /// SCM_RIGHTS messages under way with it: up when sent, down when adopted. Program; the engine
    /// looks at it when nobody holds the socket any more.
    pub in_flight: AtomicU32,

    // Line 3: engine: rarely.
    /// Remote address (connected sockets).
    pub remote: SharedAddr,
    /// TCP keepalive idle, interval (s), probes; user timeout (ms); program, for getsockopt.
    pub keepidle: AtomicU32,
    /// See `keepidle`.
    pub keepintvl: AtomicU32,
    /// See `keepidle`.
    pub user_timeout_ms: AtomicU32,
    /// SO_LINGER: 0 off, else seconds + 1. Program.
    pub linger: AtomicU32,
    /// IP_TOS and IP_TTL as set (0: default). Program.
    pub tos: AtomicU8,
    /// See `tos`.
    pub ttl: AtomicU8,
    /// IPV6_UNICAST_HOPS: 0 default, else hops + 1. Program.
    pub hops: AtomicU16,
    /// See `keepidle`.
    pub keepcnt: AtomicU16,
    /// Protocol of the socket (6, 17, 1, 58). Engine.
    pub protocol: AtomicU8,
    /// A value of [`connect_asked`]. Program.
    pub connect_asked: AtomicU8,
    /// TCP_NOTSENT_LOWAT, 0: none. Looked at where [`option_bit::NOTSENT_LOWAT`] is set. Program.
    pub notsent_lowat: AtomicU32,
    /// SO_PEEK_OFF + 1, 0: off. Looked at where [`option_bit::PEEK_OFF`] is set. Program.
    pub peek_off: AtomicU32,
    /// Urgent data that came, as [`urgent`] divides the word; 0: none. Looked at where
    /// [`flags::URGENT`] is set. The engine writes a new mark, the program that it was read, or
    /// passed. Swap.
    pub urgent: AtomicU64,
}

/// Kinds of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing yet.
    Free = 0,
    /// A TCP socket: unconnected, connecting or connected.
    Stream = 1,
    /// A TCP listener: the receive FIFO holds [`AcceptRecord`](super::AcceptRecord)s.
    Listener = 2,
    /// A UDP socket: both FIFOs hold [`DatagramHeader`](super::DatagramHeader)s with their
    /// payloads.
    Datagram = 3,
    /// An ICMP echo ("ping") socket: like UDP; the payload is the ICMP message.
    Echo = 4,
}

impl Kind {
    /// From its number; None for one that is no kind's, which a program may have written.
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

/// [`Slot::flags`], written by the engine.
pub mod flags {
    /// The handshake is done (TCP), or a remote address is set (UDP).
    pub const CONNECTED: u32 = 1;
    /// A connect is under way.
    pub const CONNECTING: u32 = 2;
    /// The peer's FIN came: reads return 0 after the unread bytes, whatever happens later.
    pub const RX_EOF: u32 = 4;
    /// Nothing can be sent any more (reset, timed out, or shut and finished).
    pub const TX_CLOSED: u32 = 8;
    /// Bound to a local address.
    pub const BOUND: u32 = 16;
    /// The stack's socket is gone; what is left in the slot is the error and the bytes that were
    /// not read.
    pub const DEAD: u32 = 32;
    /// The engine has no transmit memory for this socket now; [`super::event::TX`] tells when it
    /// has attached some.
    pub const TX_AWAITS_MEMORY: u32 = 64;
    /// Beside CONNECTED: the handshake is not done, and its SYN takes bytes along (RFC 7413).
    pub const OPENING: u32 = 256;
    /// There are reports in the error queue ([`crate::control::call::ERROR_QUEUE`]).
    pub const ERRORS: u32 = 128;
    /// Urgent data came once: [`Slot::urgent`](super::Slot::urgent) says where. Set before bytes
    /// behind the mark are published.
    pub const URGENT: u32 = 512;
    /// The remote address is one of the stack's own: the peer is a program of the run.
    pub const NEAR: u32 = 1024;

    /// Each is a bit of its own.
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

/// Values of [`Slot::connect_asked`], which is what Linux keeps as SS_CONNECTING.
pub mod connect_asked {
    /// A call has told how each connect ended.
    pub const TOLD: u8 = 0;
    /// A connect was started, and no call has told yet how it ended.
    pub const STARTED: u8 = 1;
    /// The same, and its SYN waits for the first write: Linux's `defer_connect`.
    pub const DEFERRED: u8 = 2;
}

/// Parts of [`Slot::urgent`], which is what Linux keeps in `urg_seq` and `urg_data`.
///
/// ```text
///    63 ─ 44           43          42        41         40      39 ─ 32    31 ─ 0
///   distance of the  GAP: the   READ: by  VALID: it  PRESENT    the byte   position in
///   gap              gap is     MSG_OOB   has come                         the receive FIFO
/// ```
pub mod urgent {
    /// There is a mark.
    pub const PRESENT: u64 = 1 << 40;
    /// The byte has arrived.
    pub const VALID: u64 = 1 << 41;
    /// The byte was read with MSG_OOB.
    pub const READ: u64 = 1 << 42;
    /// A byte before the mark is left out (`tcp_check_urg`). The gap was the mark before, and
    /// the reader stood in front of it when this one came.
    pub const GAP: u64 = 1 << 43;
    /// Where the distance from the gap to the mark begins.
    pub const DISTANCE_SHIFT: u32 = 44;
    /// Largest distance that fits. A byte further back is read like any other.
    pub const DISTANCE_MAX: u32 = (1 << 20) - 1;

    /// A mark at a position, with its byte if that has come.
    pub const fn mark(position: u32, byte: Option<u8>) -> u64 {
        let byte = match byte {
            Some(byte) => VALID | (byte as u64) << 32,
            None => 0,
        };
        PRESENT | byte | position as u64
    }

    /// Position of the mark.
    pub const fn position(word: u64) -> u32 {
        word as u32
    }

    /// The byte at the mark.
    pub const fn byte(word: u64) -> u8 {
        (word >> 32) as u8
    }

    /// Position of the byte that is left out.
    pub const fn gap(word: u64) -> Option<u32> {
        if word & GAP == 0 {
            return None;
        }
        Some(position(word).wrapping_sub((word >> DISTANCE_SHIFT) as u32))
    }

    /// A mark in front of which the byte at `gap` is left out.
    pub const fn with_gap(word: u64, gap: u32) -> u64 {
        let distance = position(word).wrapping_sub(gap);
        if distance == 0 || distance > DISTANCE_MAX {
            return word;
        }
        word | GAP | (distance as u64) << DISTANCE_SHIFT
    }

    /// The mark without its gap.
    pub const fn without_gap(word: u64) -> u64 {
        word & (GAP - 1)
    }
}

/// [`Slot::shut`], written by the program.
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
    /// IP_RECVERR as set.
    pub const RECVERR: u32 = 4096;
    /// SO_OOBINLINE.
    pub const OOBINLINE: u32 = 8192;
    /// SO_TIMESTAMPNS.
    pub const TIMESTAMPNS: u32 = 16384;
    /// TCP_DEFER_ACCEPT was set.
    pub const DEFER_ACCEPT: u32 = 32768;
    /// IPV6_RECVPKTINFO; on an IPv6 socket the IP_ ones are for the IPv4 datagrams that it takes.
    pub const PKTINFO_V6: u32 = 65536;
    /// IPV6_RECVHOPLIMIT.
    pub const RECVHOPLIMIT: u32 = 131_072;
    /// IPV6_RECVTCLASS.
    pub const RECVTCLASS: u32 = 262_144;
    /// UDP_CORK.
    pub const UDP_CORK: u32 = 524_288;
    /// IPV6_RECVERR as set.
    pub const RECVERR_V6: u32 = 1_048_576;
    /// SO_PEEK_OFF is not negative.
    pub const PEEK_OFF: u32 = 1 << 21;
    /// SO_RXQ_OVFL.
    pub const RXQ_OVFL: u32 = 1 << 22;
    /// UDP_GRO.
    pub const UDP_GRO: u32 = 1 << 23;
    /// SO_ZEROCOPY.
    pub const ZERO_COPY: u32 = 1 << 24;
    /// IPV6_MTU is set: datagrams may be too long that every link takes.
    pub const FRAGMENT_SIZE: u32 = 1 << 25;
    /// IPV6_MTU_DISCOVER refuses datagrams that are too long, as [`REFUSE_LONG`].
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

/// Set in a lock word when somebody sleeps on it.
pub const LOCK_CONTENDED: u32 = 1 << 31;
/// In a lock word. Alone: the engine has the lock. With an owner: the engine waits for it, and the
/// thread that gives it back sends [`op::UNLOCKED`](super::op::UNLOCKED).
pub const LOCK_ENGINE: u32 = 1 << 30;
/// In a lock word: below it the lowest bits of the owner's thread id, above it the channel's
/// number.
pub const LOCK_CHANNEL_SHIFT: u32 = 18;
/// Most channels, and so processes, that a run can have: their numbers, from 1, fit a lock word.
pub const CHANNELS_MAX: u32 = (1 << (30 - LOCK_CHANNEL_SHIFT)) - 1;

/// Events of a socket: bits of an entry of the event ring, above the slot's index. Further events
/// are added to the entry until the program takes it, so that a ring has one for each socket. 0: it
/// was taken.
pub mod event {
    /// Where the bits begin: below them is the slot's index.
    pub const SHIFT: u32 = 24;
    const _: () = assert!(super::super::SLOTS_MAX <= 1 << SHIFT);

    /// An entry of the ring.
    #[inline]
    pub const fn entry(slot: u32, bits: u8) -> u32 {
        (bits as u32) << SHIFT | slot
    }

    /// The slot and the bits of an entry. The entry may be any number: programs can write to the
    /// ring.
    #[inline]
    pub const fn parts(entry: u32) -> (u32, u8) {
        (entry & (super::super::SLOTS_MAX - 1), (entry >> SHIFT) as u8)
    }

    /// Bytes, a datagram, a connection to accept, or end of file arrived.
    pub const RX: u8 = 1;
    /// There is room to send, or a connect finished.
    pub const TX: u8 = 2;
    /// The peer closed its side (EPOLLRDHUP).
    pub const RDHUP: u8 = 4;
    /// Reset, refused, timed out: see [`super::Slot::error`].
    pub const ERROR: u8 = 8;
    /// Both sides are closed (EPOLLHUP).
    pub const HUP: u8 = 16;
    /// Urgent data (EPOLLPRI).
    pub const PRI: u8 = 32;
}
