//! The layout of the memory shared by programs and the engine (the process with the network stack).
//!
//! There are three kinds of shared memory:
//!
//! ```text
//! status (one per run, written by the engine; the programs of that run can only read it)
//!   0                Status[shards]           status of each shard of the engine
//!
//! region (one per run, mapped by the engine and by every program of that run)
//!   0                unused
//!   SLOTS_OFFSET     Slot[slots_max]          a socket's shared state, 256 bytes each
//!   MARKS_OFFSET     Mark[SHARDS_MAX][MARKS]  peers that sent to programs of the run
//!   FIFO_OFFSET      byte FIFOs               extents assigned by the engine
//!
//! channel (one per process and shard, mapped by the engine and that process;
//!          the channels of a process are contiguous)
//!   0                ChannelHeader            ring positions and sleep flags
//!   (after it)       RequestSlot              a request and its reply (control.rs)
//!   COMMANDS_OFFSET  Command[COMMANDS_MAX]    program -> engine
//!   EVENTS_OFFSET    u32[EVENTS_MAX]          engine -> program: slot and bits of `event`
//! ```
//!
//! The engine has 1 to [`SHARDS_MAX`] shards (threads); their number is a power of two. The upper
//! bits of a slot's number identify the shard that owns it ([`shard_of`]). All messages about a
//! socket use the channel of that shard.
//!
//! The programs that share a region trust each other. The programs descend from one `towpath run`,
//! and could ptrace each other in any case. Fork, exec and SCM_RIGHTS can therefore pass sockets
//! between them. The engine does not trust the region. The engine has private copies of everything
//! that it writes, and validates every position that it reads. Words on which all programs rely are
//! in the status page, which programs cannot write. An invalid word in a slot affects only the
//! slot's socket.
//!
//! The documentation of each field says which side writes it. The other side never writes it,
//! except where "swap" is noted. All positions of FIFOs and rings only grow and wrap at 2^32;
//! capacities are powers of two.
//!
//! Reading order: this file has all offsets, the status page and the header of a channel. Module
//! `slot` has the words of a socket, `command` the entries of the rings, and `record` the content
//! of FIFOs and requests.

mod command;
mod record;
mod slot;

pub use command::{Command, op, setting};
pub use record::{AcceptRecord, DatagramHeader, Plain, RawAddr, SharedAddr};
pub use slot::{
    CHANNELS_MAX, Kind, LOCK_CHANNEL_SHIFT, LOCK_CONTENDED, LOCK_ENGINE, Slot, connect_asked,
    event, flags, option_bit, shut, urgent,
};

use std::sync::atomic;

/// Value of the first word of the status page and of each channel, by which a program recognizes
/// them.
pub const MAGIC: u64 = u64::from_le_bytes(*b"towpath\x01");
/// Version of the shared memory layout, incremented with every change in this folder or in
/// `control.rs`. Program and engine must have the same version.
pub const VERSION: u32 = 16;

/// Maximum number of sockets of an engine and its programs. An unused slot takes no memory, because
/// its page is allocated when it is first written.
pub const SLOTS_MAX: u32 = 1 << 20;
/// Maximum number of shards (threads) of an engine.
pub const SHARDS_MAX: u32 = 16;

/// Returns the number of the shard (thread of the engine) that owns slot `slot` (below
/// [`SLOTS_MAX`]). `shards` is a power of two.
#[inline]
pub const fn shard_of(slot: u32, shards: u32) -> u32 {
    (slot as u64 * shards as u64 / SLOTS_MAX as u64) as u32
}

/// Returns the first slot that a shard (thread of the engine) owns.
pub const fn first_slot(shard: u32, shards: u32) -> u32 {
    SLOTS_MAX / shards * shard
}

/// Size of a status page in bytes.
pub const STATUS_LEN: usize = 4096;
/// Offset of the slots in the region, in bytes. The offset is not 0, so that an uninitialized
/// offset does not refer to a slot.
pub const SLOTS_OFFSET: usize = 4096;
/// Offset in the region of the [`Mark`]s, of which each shard has [`MARKS`].
pub const MARKS_OFFSET: usize = 1 << 29;
/// Number of [`Mark`]s per shard, a power of two. A socket's mark is determined by its ports;
/// several sockets may share one.
pub const MARKS: u32 = 4096;
/// Offset in the region of the memory for byte FIFOs.
pub const FIFO_OFFSET: usize = 1 << 30;
/// Size in bytes of the address space for FIFOs. Only pages that were written take memory. The
/// feature reduces the size, because valgrind rejects mappings of tens of GiB.
pub const FIFO_LEN: usize = if cfg!(feature = "small-region") { 4 << 30 } else { 64 << 30 };
/// Size of a region in bytes.
pub const REGION_LEN: usize = FIFO_OFFSET + FIFO_LEN;

/// Maximum number of commands in the ring of a program. The engine processes that many in about 100
/// µs, for which a request of another program has to wait. If the ring is full, the program waits
/// for the engine.
pub const COMMANDS_MAX: u32 = 1024;
/// Offset of the command ring in a channel, in bytes.
pub const COMMANDS_OFFSET: usize = 4096;
/// Maximum number of events in the ring of a program. If the ring is full, the engine sets
/// [`ChannelHeader::events_lost`], and the program checks all of its sockets.
pub const EVENTS_MAX: u32 = 1 << 16;
/// Offset of the event ring in a channel, in bytes.
pub const EVENTS_OFFSET: usize = COMMANDS_OFFSET + COMMANDS_MAX as usize * size_of::<Command>();
/// Size of a channel in bytes, in whole pages.
pub const CHANNEL_LEN: usize =
    (EVENTS_OFFSET + EVENTS_MAX as usize * size_of::<u32>()).next_multiple_of(4096);

/// The status page of an engine's shard. Programs cannot map it for writing, because the memfd is
/// sealed.
#[repr(C)]
#[derive(Debug)]
pub struct StatusPage {
    /// The value [`MAGIC`], which identifies a status page.
    pub magic: atomic::AtomicU64,
    /// The engine's value of [`VERSION`].
    pub version: atomic::AtomicU32,
    /// Maximum length in bytes of an IP packet that is valid for every datagram socket, whatever
    /// its route. Before sending a longer one, a program asks the engine
    /// ([`crate::control::call::CHECK_LENGTH`]). 0 until the engine has determined it.
    pub datagram_mtu: atomic::AtomicU32,
    /// Number that is odd while the engine sleeps; incremented before and after each sleep. A
    /// program adds a command to its ring, executes a SeqCst fence, and reads this number. If it is
    /// odd, and the program has not sent a notification for it, the program writes to the engine's
    /// eventfd. The number has 64 bits, so it never wraps.
    pub sleep_epoch: atomic::AtomicU64,
    // Separates words that change at each sleep from words that change at each pass over the rings.
    _pad0: [atomic::AtomicU64; 5],
    /// Number that is odd while the engine processes the rings; incremented before and after each
    /// pass. A final check of the rings before a sleep counts as a pass. A program that has added a
    /// command executes a SeqCst fence, and reads this number. The command is processed in the pass
    /// that begins at the next odd number.
    pub beat: atomic::AtomicU64,
    _pad1: [atomic::AtomicU64; 7],
    /// Whether the engine is alive: a [`LifeWord`] for each channel, indexed by the channel's
    /// number modulo [`LIVES`].
    pub lives: [LifeWord; LIVES],
}

/// Record of the last sender to a peer that uses the same engine. Sockets may share a record. Only
/// programs read and write it.
#[repr(C)]
#[derive(Debug)]
pub struct Mark {
    /// Slot and generation of the last sender, and whether it has shut down its send direction; 0
    /// if there was none. Written by the sender.
    pub sender: atomic::AtomicU64,
    /// The newest sender for which a reader has waited without receiving bytes, and the end of that
    /// sender's bytes. Written by the reader.
    pub vain: atomic::AtomicU64,
}

/// Number of [`LifeWord`]s in a status page: as many as fit. When the engine is killed, the kernel
/// processes them as a robust list, which is limited to 2048 entries (ROBUST_LIST_LIMIT).
pub const LIVES: usize = (STATUS_LEN - 128) / size_of::<LifeWord>();

/// A futex word that shows whether the engine's thread is alive, in the format of robust mutexes
/// (linux/futex.h). While the thread runs, the word contains its thread id and FUTEX_WAITERS. When
/// the thread ends, the kernel sets [`ENGINE_ENDED`]. The word is 0 before the engine runs, or if
/// the kernel does not support robust lists.
#[repr(C)]
#[derive(Debug)]
pub struct LifeWord {
    /// The futex word: thread id and flags.
    pub word: atomic::AtomicU32,
    // Padding: the entries of a robust list are pointers, and all have the same distance to their
    // futex words.
    _pad: atomic::AtomicU32,
}

/// Flag in a [`LifeWord`]: the engine's thread has ended (FUTEX_OWNER_DIED).
pub const ENGINE_ENDED: u32 = 0x4000_0000;

/// The header of a channel: ring positions and flags of one process and one shard.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ChannelHeader {
    /// The value [`MAGIC`], which identifies a channel.
    pub magic: atomic::AtomicU64,
    /// The value [`VERSION`] of the engine.
    pub version: atomic::AtomicU32,
    /// 1 if the engine no longer serves this channel, because the process violated the protocol or
    /// was considered dead. Written by the engine.
    pub ended: atomic::AtomicU32,
    /// Address of the program's descriptor table, with one word per descriptor, in the program's
    /// address space. Other programs of the run may read the table. Written by the program.
    pub descriptors: atomic::AtomicU64,
    _pad0: [atomic::AtomicU32; 10],
    /// End of the commands in the command ring. Written by the program.
    pub command_tail: atomic::AtomicU32,
    /// Position in the event ring of the first event that the program has not taken. Written by the
    /// program.
    pub event_head: atomic::AtomicU32,
    /// 1 if the program sleeps or is about to, and needs a notification. The engine swaps it to 0
    /// when it sends the notification. Swap: both the program and the engine write it.
    pub sleeping: atomic::AtomicU32,
    /// Number of the program's last request in the [`RequestSlot`](crate::control::RequestSlot).
    /// Written by the program after the request.
    pub asked: atomic::AtomicU32,
    _pad1: [atomic::AtomicU32; 12],
    /// Position in the command ring of the first command that the engine has not taken. Written by
    /// the engine.
    pub command_head: atomic::AtomicU32,
    /// End of the events in the ring. Written by the engine.
    pub event_tail: atomic::AtomicU32,
    /// 1 if events were lost because the ring was full, so that the program has to check all
    /// sockets. Set by the engine, swapped to 0 by the program.
    pub events_lost: atomic::AtomicU32,
    _pad2: [atomic::AtomicU32; 13],
}

// Check the size without loom only: loom's atomics are larger, and slots of models are not in
// shared memory.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot>() == 256);
    assert!(std::mem::offset_of!(Slot, rx_tail) == 64);
    assert!(std::mem::offset_of!(Slot, rx_head) == 128);
    assert!(std::mem::offset_of!(Slot, remote) == 192);
    assert!(size_of::<Command>() == 32);
    assert!(size_of::<RawAddr>() == 24);
    assert!(size_of::<AcceptRecord>() == 64);
    assert!(size_of::<DatagramHeader>() == 80);
    assert!(size_of::<ChannelHeader>() == 192);
    assert!(
        size_of::<StatusPage>() == STATUS_LEN
            && std::mem::offset_of!(StatusPage, sleep_epoch) == 16
    );
    assert!(std::mem::offset_of!(StatusPage, beat) == 64);
    assert!(
        std::mem::offset_of!(StatusPage, lives) == 128
            && size_of::<LifeWord>() == size_of::<usize>()
    );
    assert!(LIVES < 2048);
    assert!(SLOTS_OFFSET + SLOTS_MAX as usize * size_of::<Slot>() <= MARKS_OFFSET);
    assert!(MARKS.is_power_of_two());
    assert!(MARKS_OFFSET + size_of::<Mark>() * (SHARDS_MAX * MARKS) as usize <= FIFO_OFFSET);
    assert!(COMMANDS_MAX.is_power_of_two() && EVENTS_MAX.is_power_of_two());
};
