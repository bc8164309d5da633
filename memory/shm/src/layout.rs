//! The contract between a program and the engine, as it lies in memory.
//!
//! There are three kinds of shared memory:
//!
//! ```text
//! status (one per run, written by the engine; the programs of that run can only read it)
//!   0                Status[shards]           what each shard of the engine tells all of them
//!
//! region (one per run, mapped by the engine and by every program of that run)
//!   0                nothing
//!   SLOTS_OFFSET     Slot[slots_max]          a socket's shared state, 256 bytes each
//!   FIFO_OFFSET      byte FIFOs               windows handed out by the engine
//!
//! channel (one per process and shard, mapped by the engine and that process; those of a process lie behind each other)
//!   0                ChannelHeader            ring positions and sleep flags
//!   CELL_OFFSET      CallCell                 a request and its answer (control.rs)
//!   COMMANDS_OFFSET  Command[COMMANDS_MAX]    program -> engine
//!   EVENTS_OFFSET    u64[EVENTS_MAX]          engine -> program: slot indexes
//!   PENDING_OFFSET   u8[slots_max]            which event bits of a slot are in the ring
//! ```
//!
//! An engine has one shard, or a power of two of them up to [`SHARDS_MAX`]. The upper bits of a slot's number say
//! whose the slot is ([`shard_of`]); everything about a socket goes through the channel of that shard.
//!
//! A region is one trust domain: the programs that descend from one `towpath run`, which can
//! ptrace each other anyway. That is what lets fork, exec and SCM_RIGHTS hand sockets around. The
//! engine trusts none of it: it keeps its own copy of everything it wrote, and validates every
//! position it reads. What all programs rely on, whichever sockets they have, lies in the status page,
//! where none can destroy it for the others: a word of a slot is its socket's alone.
//!
//! Who writes a field is said at each field; nobody else ever does, except where "swap" is said.
//! All positions of FIFOs and rings run freely and wrap at 2^32; capacities are powers of two.

use std::sync::atomic;

use crate::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// First word of the status page and of a channel.
pub const MAGIC: u64 = u64::from_le_bytes(*b"towpath\x01");
/// Changes whenever anything in this file or in `control.rs` does. Both sides come from one build: they must agree.
pub const VERSION: u32 = 10;

/// Most sockets a run can have; the table is sparse, an unused slot costs no memory.
pub const SLOTS_MAX: u32 = 1 << 20;
/// Most shards an engine can have.
pub const SHARDS_MAX: u32 = 16;

/// Which of `shards` shards, a power of two, has a slot (below [`SLOTS_MAX`]).
#[inline]
pub const fn shard_of(slot: u32, shards: u32) -> u32 {
    (slot as u64 * shards as u64 / SLOTS_MAX as u64) as u32
}

/// The first slot of a shard, of `shards` shards.
pub const fn first_slot(shard: u32, shards: u32) -> u32 {
    SLOTS_MAX / shards * shard
}

/// Length of a status page's memory.
pub const STATUS_LEN: usize = 4096;
/// Where the slots begin, in bytes from the region's start: not at 0, so that an offset that was never set is no socket's.
pub const SLOTS_OFFSET: usize = 4096;
/// Where the byte FIFOs begin.
pub const FIFO_OFFSET: usize = 1 << 30;
/// Address space for FIFOs. Only touched pages cost memory.
pub const FIFO_LEN: usize = 64 << 30;
/// Length of a region.
pub const REGION_LEN: usize = FIFO_OFFSET + FIFO_LEN;

/// Commands a program can have in flight: some 100 µs of the engine's time, which another program's request
/// waits for. A full ring makes the program wait for the engine.
pub const COMMANDS_MAX: u32 = 1024;
/// Where the commands begin.
pub const COMMANDS_OFFSET: usize = 4096;
/// Events in flight. When full the engine sets [`ChannelHeader::events_lost`] and the program
/// looks at every socket it has.
pub const EVENTS_MAX: u32 = 1 << 16;
/// Where the events begin.
pub const EVENTS_OFFSET: usize = COMMANDS_OFFSET + COMMANDS_MAX as usize * size_of::<Command>();
/// Where the pending event bits begin.
pub const PENDING_OFFSET: usize = EVENTS_OFFSET + EVENTS_MAX as usize * 8;
/// Length of a channel's memory: whole pages.
pub const CHANNEL_LEN: usize = (PENDING_OFFSET + SLOTS_MAX as usize).next_multiple_of(4096);

/// The status page. Programs cannot map it for writing: the memfd is sealed against that.
#[repr(C)]
#[derive(Debug)]
pub struct Status {
    /// [`MAGIC`].
    pub magic: atomic::AtomicU64,
    /// [`VERSION`].
    pub version: atomic::AtomicU32,
    /// Longest IP packet in bytes that is refused to no datagram socket for its length, whatever its way; of
    /// longer ones the engine has to be asked ([`crate::control::call::CHECK_LENGTH`]). 0 until it is known.
    pub datagram_mtu: atomic::AtomicU32,
    /// Up by one when the engine is about to sleep and when it is awake again: odd while it sleeps. A
    /// program that pushed a command (and ran a SeqCst fence) and reads an odd number that it has not
    /// rung for writes its engine doorbell. 64 bits: a number never comes again.
    pub sleep_epoch: atomic::AtomicU64,
    // The words below hardly ever change: not in a cache line with what changes at each sleep.
    _pad: [atomic::AtomicU64; 5],
    /// Whether the engine lives: one [`Life`] for each channel, by its number modulo [`LIVES`].
    pub lives: [Life; LIVES],
}

/// How many [`Life`] words there are: what fits in the page beside the rest of it. When the engine is killed the
/// kernel goes through them as a robust list, of which it sees no more than 2048 entries (ROBUST_LIST_LIMIT).
pub const LIVES: usize = (STATUS_LEN - 64) / size_of::<Life>();

/// A futex word of the engine's thread, as the kernel knows it from robust mutexes (linux/futex.h): 0 before the
/// engine runs, or where the kernel has no robust lists; the thread's id with FUTEX_WAITERS while the engine runs;
/// a word with [`ENGINE_ENDED`] afterwards.
#[repr(C)]
#[derive(Debug)]
pub struct Life {
    /// The word.
    pub word: atomic::AtomicU32,
    // The entries of a robust list are pointers, and all lie at the same distance from their words.
    _pad: atomic::AtomicU32,
}

/// In a [`Life`] word: FUTEX_OWNER_DIED.
pub const ENGINE_ENDED: u32 = 0x4000_0000;

/// An address and port as it lies in shared memory. Family 0: not set.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RawAddr {
    /// AF_INET (2), AF_INET6 (10), or 0.
    pub family: u16,
    /// Host byte order.
    pub port: u16,
    /// IPv6 scope (interface index).
    pub scope: u32,
    /// Network byte order; IPv4 in the first four.
    pub ip: [u8; 16],
}

/// A [`RawAddr`] that may be written while it is read: three words.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SharedAddr {
    words: [AtomicU64; 3],
}

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
    /// Even: free; odd: in use. Goes up by one at each change, so a stale handle never matches. A thread that has
    /// locked an end, and then found the generation that it knows, has the slot until it unlocks: until then the
    /// engine gives neither the slot nor its FIFOs' memory to another socket.
    pub generation: AtomicU32,
    /// [`Kind`] as u32.
    pub kind: AtomicU32,
    /// Address family, AF_INET or AF_INET6.
    pub family: AtomicU32,
    /// TCP state, as Linux numbers them (TCP_ESTABLISHED = 1 ...). 7 (CLOSE) for others.
    pub state: AtomicU32,
    /// [`flags`].
    pub flags: AtomicU32,
    /// Pending error (errno, 0: none), taken by the program with swap 0 (SO_ERROR, or the next call). Swap.
    pub error: AtomicI32,
    /// Receive FIFO: capacity (0: no memory attached), and offset in the region.
    pub rx_cap: AtomicU32,
    /// Transmit FIFO capacity. Written by the engine only while it holds `tx_lock`, or before the
    /// socket is connected. 0: the program asks for memory with [`op::TX_WINDOW`] and waits.
    pub tx_cap: AtomicU32,
    /// See `rx_cap`. Changes only while the FIFO is empty.
    pub rx_base: AtomicU64,
    /// See `tx_cap`.
    pub tx_base: AtomicU64,
    /// Rotation of the FIFO: byte `p` of the stream lies at `tx_base + ((p + tx_shift) & (tx_cap - 1))`, so
    /// that a FIFO that moves or grows need not copy what it holds to where `p` alone would put it.
    pub tx_shift: AtomicU32,
    /// The same for `rx_cap`.
    pub rx_shift: AtomicU32,
    /// F_SETOWN of the open file, as fcntl(2) gives it: a process, or minus a group; 0: nobody. Program,
    /// in a line of the engine's because it is hardly ever used.
    pub owner: AtomicI32,
    /// IPV6_TCLASS as set. Program, as `owner`.
    pub tclass: AtomicU32,

    // Line 1, engine: hot.
    /// End of the unread bytes.
    pub rx_tail: AtomicU32,
    /// Start of the bytes still needed for (re)transmission, or that a packet on its way to a device still points to.
    pub tx_head: AtomicU32,
    /// Changes whenever something happened; programs blocked on this socket alone sleep on it.
    pub event_seq: AtomicU32,
    /// Set to 1 by the engine when it wants [`op::RX_SPACE`] after the next read, because a window update may depend
    /// on it; the program swaps it to 0 when it sends the command. Swap.
    pub rx_wanted: AtomicU32,
    /// Bytes in the transmit FIFO that were sent and are still in it (for SIOCOUTQ users).
    pub tx_unacked: AtomicU32,
    /// Most bytes the program should queue (SO_SNDBUF, autotuned); at most `tx_cap`.
    pub tx_limit: AtomicU32,
    /// Local address; written before the state that makes it interesting.
    pub local: SharedAddr,
    /// Upper bound to which [`op::TX_WINDOW`] may raise `tx_limit`; at or below `tx_limit` there is no offer.
    pub tx_goal: AtomicU32,
    /// 1: the engine was told that more bytes follow (MSG_MORE), and is told otherwise with the next. Program,
    /// under `tx_lock`: the next sender may be another process.
    pub more: AtomicU32,
    /// Unix time in ns of the turn in which the newest unread bytes came (streams); 0: never. Written before
    /// the `rx_tail` that shows them.
    pub rx_time_ns: AtomicU64,

    // Line 2, program: hot.
    /// Start of the unread bytes.
    pub rx_head: AtomicU32,
    /// End of the bytes to be sent.
    pub tx_tail: AtomicU32,
    /// 1 when the engine was told (or is about to be told) of new bytes. Swap by both.
    pub tx_dirty: AtomicU32,
    /// Set by the program before it gives up for lack of room; the engine swaps it to 0 and
    /// reports [`event::TX`] when there is room again. Swap by both.
    pub tx_wanted: AtomicU32,
    /// Not 0: threads sleep on `event_seq`, or are about to. The engine swaps it to 0 when something happens,
    /// and wakes all of them; each says so again before it sleeps on. It outlives the socket, as those
    /// threads may. Swap.
    pub asleep: AtomicU32,
    /// Program-side lock of the read end: 0 free, else the owner | [`LOCK_CONTENDED`]. The owner is the
    /// number of a channel, from [`LOCK_CHANNEL_SHIFT`] on, and bits of a thread id. The engine frees it
    /// when the channel's process is gone. It only ever tries it itself ([`LOCK_ENGINE`]).
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
    pub keepcnt: AtomicU32,
    /// See `keepidle`.
    pub user_timeout_ms: AtomicU32,
    /// SO_LINGER: 0 off, else seconds + 1. Program.
    pub linger: AtomicU32,
    /// IP_TOS and IP_TTL as set (0: default). Program.
    pub tos: AtomicU32,
    /// See `tos`.
    pub ttl: AtomicU32,
    /// Protocol of the socket (6, 17, 1, 58). Engine.
    pub protocol: AtomicU32,
    /// 1: connect(2) has not told how the connect ended that it started. Program.
    pub connect_asked: AtomicU32,
    /// IPV6_UNICAST_HOPS: 0 default, else hops + 1. Program.
    pub hops: AtomicU32,
}

/// What a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Nothing yet.
    Free = 0,
    /// A TCP socket: unconnected, connecting or connected.
    Stream = 1,
    /// A TCP listener: the receive FIFO holds [`AcceptRecord`]s.
    Listener = 2,
    /// A UDP socket: both FIFOs hold [`DatagramHeader`]s with their payloads.
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
    /// The stack's socket is gone; what is left in the slot is the error and the bytes that were not read.
    pub const DEAD: u32 = 32;
    /// The engine has no transmit memory for this socket now; [`super::event::TX`] tells when it has attached some.
    pub const TX_STARVED: u32 = 64;
    /// There are reports in the error queue ([`crate::control::call::ERROR_QUEUE`]).
    pub const ERRORS: u32 = 128;
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
/// In a lock word. Alone: the engine has the lock. With an owner: the engine waits for it, and the thread that gives
/// it back sends [`op::UNLOCKED`].
pub const LOCK_ENGINE: u32 = 1 << 30;
/// In a lock word: below it the lowest bits of the owner's thread id, above it the channel's number.
pub const LOCK_CHANNEL_SHIFT: u32 = 18;
/// Most channels, and so processes, that a run can have: their numbers, from 1, fit a lock word.
pub const CHANNELS_MAX: u32 = (1 << (30 - LOCK_CHANNEL_SHIFT)) - 1;

/// What happened to a socket: bits of its pending byte. The entry in the event ring is the slot's index alone.
pub mod event {
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
}

/// What a program tells the engine: 32 bytes, copied out before it is looked at.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Command {
    /// [`op`].
    pub op: u32,
    /// Slot index.
    pub slot: u32,
    /// Slot generation, so that a late command never hits a new socket.
    pub generation: u32,
    /// Depends on `op`.
    pub a: u32,
    /// Depends on `op`.
    pub b: u64,
    /// Depends on `op`.
    pub c: u64,
}

numbered! {
/// [`Command::op`]. None of them is answered; what can fail goes over [`crate::control`].
pub mod op {
    /// New bytes (or datagrams) in the transmit FIFO.
    pub const TX: u32 = 1;
    /// The program read, and `rx_wanted` was set.
    pub const RX_SPACE: u32 = 2;
    /// This process took the connection off an accept queue: the slot is now its own too.
    pub const ACCEPTED: u32 = 3;
    /// This process holds the socket no longer. The last holder's close is the socket's close.
    pub const CLOSE: u32 = 4;
    /// shutdown(2): `a` is [`super::shut`] bits.
    pub const SHUTDOWN: u32 = 5;
    /// An option that cannot fail any more: `a` = [`super::setting`], `b` = value.
    pub const SETTING: u32 = 6;
    /// The program wants transmit memory (`tx_cap` is 0), or more of it (`tx_limit` is below `tx_goal`):
    /// attach it and report `event::TX`.
    pub const TX_WINDOW: u32 = 7;
    /// Before CLONE: the program to be executed inherits this socket. Before SETTLED: this process has
    /// it.
    pub const LIST: u32 = 8;
    /// The programs that this process has spawned run, or never will. About no socket.
    pub const SPAWNED: u32 = 9;
    /// From a child of fork: what was told by LIST is what it has. Until then it also holds every socket
    /// that its parent holds, and those that its parent opens meanwhile. `a` = its process id. About no socket.
    pub const SETTLED: u32 = 10;
    /// A lock of the slot was given back with [`super::LOCK_ENGINE`] in its word. Of any generation.
    pub const UNLOCKED: u32 = 11;
}
}

numbered! {
/// `a` of [`op::SETTING`].
pub mod setting {
    /// TCP_NODELAY, b = 0/1.
    pub const NODELAY: u32 = 1;
    /// TCP_CORK, b = 0/1.
    pub const CORK: u32 = 2;
    /// SO_KEEPALIVE, b = 0/1 (times in the slot).
    pub const KEEPALIVE: u32 = 3;
    /// TCP_QUICKACK, b = 0/1.
    pub const QUICKACK: u32 = 4;
    /// TCP_USER_TIMEOUT, b = ms.
    pub const USER_TIMEOUT: u32 = 5;
    /// SO_LINGER, b as [`super::Slot::linger`].
    pub const LINGER: u32 = 6;
    /// IP_TOS.
    pub const TOS: u32 = 7;
    /// IP_TTL, b as [`super::Slot::ttl`].
    pub const TTL: u32 = 8;
    /// SO_RCVBUF in bytes.
    pub const RCVBUF: u32 = 9;
    /// SO_SNDBUF in bytes.
    pub const SNDBUF: u32 = 10;
    /// SO_REUSEADDR, b = 0/1 (matters at bind).
    pub const REUSEADDR: u32 = 11;
    /// SO_REUSEPORT, b = 0/1.
    pub const REUSEPORT: u32 = 12;
    /// IPV6_V6ONLY, b = 0/1 (before bind).
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
    /// MSG_MORE was given with the bytes just written: b = 0/1.
    pub const MORE: u32 = 19;
    /// IP_MTU_DISCOVER, b = mode.
    pub const MTU_DISCOVER: u32 = 20;
    /// IP_MULTICAST_TTL, b = TTL.
    pub const MULTICAST_TTL: u32 = 21;
    /// IP_MULTICAST_LOOP, b = 0/1.
    pub const MULTICAST_LOOP: u32 = 22;
    /// IP_RECVERR, b = 0/1.
    pub const RECVERR: u32 = 23;
    /// IPV6_UNICAST_HOPS, b as [`super::Slot::hops`].
    pub const HOPS: u32 = 24;
    /// IPV6_MULTICAST_HOPS, b = hops.
    pub const MULTICAST_HOPS: u32 = 25;
    /// IPV6_TCLASS.
    pub const TRAFFIC_CLASS: u32 = 26;
    /// IPV6_MULTICAST_LOOP, b = 0/1.
    pub const MULTICAST_LOOP_V6: u32 = 27;
    /// IPV6_RECVERR, b = 0/1.
    pub const RECVERR_V6: u32 = 28;
    /// IPV6_MTU_DISCOVER, b = mode.
    pub const MTU_DISCOVER_V6: u32 = 29;
    /// IPV6_MTU, b = bytes, 0: not set.
    pub const FRAGMENT_SIZE: u32 = 30;
    /// TCP_WINDOW_CLAMP, b = bytes, 0: none.
    pub const WINDOW_CLAMP: u32 = 40;
    /// SO_NO_CHECK, b = 0/1.
    pub const NO_CHECK: u32 = 41;
    /// SO_TIMESTAMPING, b = its flags as far as sending is concerned.
    pub const TIMESTAMPING: u32 = 42;
    /// SO_RCVLOWAT was lowered to b bytes (in the slot): a reader that waits for more may have enough.
    pub const RCVLOWAT: u32 = 43;
}
}

/// One finished connection, as it lies in a listener's receive FIFO: 64 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AcceptRecord {
    /// Slot of the new connection.
    pub slot: u32,
    /// Its generation.
    pub generation: u32,
    /// Who connected.
    pub remote: RawAddr,
    /// To which address.
    pub local: RawAddr,
    /// 0; it fills the record up to 64 bytes.
    pub reserved: u64,
}

/// A datagram in a FIFO: this header, `len` bytes, padded to a multiple of 8.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramHeader {
    /// Payload bytes that follow. At most 65535.
    pub len: u32,
    /// Received on / to be sent through this interface; 0: any.
    pub ifindex: u32,
    /// Received from / to be sent to (family 0: the connected address).
    pub remote: RawAddr,
    /// Received at / to be sent from (family 0: the socket's).
    pub local: RawAddr,
    /// Unix time of arrival in ns.
    pub time_ns: u64,
    /// TOS or traffic class; [`Self::DEFAULT`] in transmission: the socket's.
    pub tos: u16,
    /// TTL or hop limit; [`Self::DEFAULT`] in transmission: the socket's.
    pub ttl: u16,
    /// UDP_SEGMENT: the payload is several datagrams of this size (the last may be shorter);
    /// 0: one datagram.
    pub segment_size: u16,
    /// 0.
    pub reserved: u16,
}

impl DatagramHeader {
    /// Of `tos` and `ttl`: nothing is asked for.
    pub const DEFAULT: u16 = 0xffff;
}

/// The start of a channel.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ChannelHeader {
    /// [`MAGIC`].
    pub magic: atomic::AtomicU64,
    /// [`VERSION`].
    pub version: atomic::AtomicU32,
    /// 1: the engine hears this channel no more, because its process broke the rules or was taken for dead. Engine.
    pub ended: atomic::AtomicU32,
    _pad0: [atomic::AtomicU32; 12],
    /// End of the commands: program.
    pub command_tail: atomic::AtomicU32,
    /// Start of the unread events: program.
    pub event_head: atomic::AtomicU32,
    /// 1 when the program sleeps (or is about to) and wants its doorbell rung; the engine swaps it
    /// to 0 when it rings. Swap.
    pub sleeping: atomic::AtomicU32,
    /// Number of the program's last request in the [`CallCell`](crate::control::CallCell). It is written when the
    /// request is there. Program.
    pub asked: atomic::AtomicU32,
    _pad1: [atomic::AtomicU32; 12],
    /// Start of the unread commands: engine.
    pub command_head: atomic::AtomicU32,
    /// End of the events: engine.
    pub event_tail: atomic::AtomicU32,
    /// 1: events did not fit; look at everything. Set by the engine, swapped to 0 by the program.
    pub events_lost: atomic::AtomicU32,
    _pad2: [atomic::AtomicU32; 13],
}

// Loom's atomics are larger; a model's slots lie in no shared memory.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot>() == 256);
    assert!(std::mem::offset_of!(Slot, rx_tail) == 64);
    assert!(std::mem::offset_of!(Slot, rx_head) == 128);
    assert!(std::mem::offset_of!(Slot, remote) == 192);
    assert!(size_of::<Command>() == 32);
    assert!(size_of::<RawAddr>() == 24);
    assert!(size_of::<AcceptRecord>() == 64);
    assert!(size_of::<DatagramHeader>() == 72);
    assert!(size_of::<ChannelHeader>() == 192);
    assert!(size_of::<Status>() == STATUS_LEN && std::mem::offset_of!(Status, sleep_epoch) == 16);
    assert!(std::mem::offset_of!(Status, lives) == 64 && size_of::<Life>() == size_of::<usize>());
    assert!(LIVES < 2048);
    assert!(SLOTS_OFFSET + SLOTS_MAX as usize * size_of::<Slot>() <= FIFO_OFFSET);
    assert!(COMMANDS_MAX.is_power_of_two() && EVENTS_MAX.is_power_of_two());
};

impl SharedAddr {
    /// Reads it. A torn read is possible only while the engine writes, which it does before the
    /// socket reaches the state that makes the address interesting.
    pub fn load(&self) -> RawAddr {
        let mut bytes = [0; 24];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&self.words) {
            chunk.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        RawAddr::from_bytes(&bytes)
    }

    /// Writes it.
    pub fn store(&self, addr: &RawAddr) {
        let bytes = addr.to_bytes();
        for (chunk, word) in bytes.chunks_exact(8).zip(&self.words) {
            let value = u64::from_ne_bytes(chunk.try_into().expect("chunks of eight"));
            word.store(value, Ordering::Release);
        }
    }
}

impl RawAddr {
    /// From a socket address. IPv4-mapped IPv6 stays IPv6: the socket's family decides elsewhere.
    pub fn new(addr: std::net::SocketAddr) -> Self {
        let mut ip = [0; 16];
        match addr {
            std::net::SocketAddr::V4(a) => {
                ip[..4].copy_from_slice(&a.ip().octets());
                Self { family: 2, port: a.port(), scope: 0, ip }
            }
            std::net::SocketAddr::V6(a) => {
                Self { family: 10, port: a.port(), scope: a.scope_id(), ip: a.ip().octets() }
            }
        }
    }

    /// As a socket address; None when the family is neither.
    pub fn to_socket_addr(&self) -> Option<std::net::SocketAddr> {
        use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
        match self.family {
            2 => {
                let [a, b, c, d, ..] = self.ip;
                Some(SocketAddr::from((Ipv4Addr::new(a, b, c, d), self.port)))
            }
            10 => Some(SocketAddrV6::new(Ipv6Addr::from(self.ip), self.port, 0, self.scope).into()),
            _ => None,
        }
    }

    fn to_bytes(self) -> [u8; 24] {
        let mut out = [0; 24];
        out[..2].copy_from_slice(&self.family.to_ne_bytes());
        out[2..4].copy_from_slice(&self.port.to_ne_bytes());
        out[4..8].copy_from_slice(&self.scope.to_ne_bytes());
        out[8..].copy_from_slice(&self.ip);
        out
    }

    fn from_bytes(b: &[u8; 24]) -> Self {
        let mut ip = [0; 16];
        ip.copy_from_slice(&b[8..]);
        Self {
            family: u16::from_ne_bytes([b[0], b[1]]),
            port: u16::from_ne_bytes([b[2], b[3]]),
            scope: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
            ip,
        }
    }
}

/// Plain structs of shared memory: `repr(C)`, no padding, every bit pattern valid.
///
/// # Safety
/// As said: integers (or structs of them) only, no padding, `repr(C)`.
pub unsafe trait Plain: Copy + Default {
    /// Its bytes.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: no padding (the trait's contract), so every byte is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// From bytes; shorter input leaves the rest zero, longer input is ignored.
    fn from_bytes(bytes: &[u8]) -> Self {
        let mut out = Self::default();
        let n = bytes.len().min(size_of::<Self>());
        // SAFETY: every bit pattern is valid (the trait's contract); n fits both.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut out).cast(), n);
        }
        out
    }
}

// SAFETY: integers only, sizes asserted above to leave no padding.
unsafe impl Plain for Command {}
// SAFETY: as above.
unsafe impl Plain for AcceptRecord {}
// SAFETY: as above.
unsafe impl Plain for DatagramHeader {}
// SAFETY: as above.
unsafe impl Plain for RawAddr {}
