//! The layout of the memory shared by a program and the engine.
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
//! The number of shards of an engine is a power of two, from 1 to [`SHARDS_MAX`]. The upper bits of
//! a slot's number identify its shard ([`shard_of`]); all messages about a socket use the channel
//! of that shard.
//!
//! A region is one trust domain: the programs that descend from one `towpath run`, which could
//! ptrace each other anyway. Fork, exec and SCM_RIGHTS can therefore pass sockets between them. The
//! engine does not trust the region: it keeps its own copy of everything it writes, and validates
//! every position that it reads. Words on which all programs rely are in the status page, which no
//! program can write. A word of a slot affects only its socket.
//!
//! Each field documents its writer; no other side writes it, except where "swap" is noted. All
//! positions of FIFOs and rings are free-running and wrap at 2^32; capacities are powers of two.
//!
//! Reading order: this file has all offsets, the status page and the header of a channel. `slot`
//! has a socket's words, `command` the entries of the rings, and `record` the content of FIFOs and
//! requests.

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

/// First word of the status page and of a channel.
pub const MAGIC: u64 = u64::from_le_bytes(*b"towpath\x01");
/// Increases with every change in this folder or in `control.rs`. Program and engine must be of the
/// same build.
pub const VERSION: u32 = 16;

/// Maximum sockets of a run. The table is sparse, so an unused slot costs no memory.
pub const SLOTS_MAX: u32 = 1 << 20;
/// Maximum shards of an engine.
pub const SHARDS_MAX: u32 = 16;

/// Returns the shard that owns a slot (below [`SLOTS_MAX`]); `shards` is a power of two.
#[inline]
pub const fn shard_of(slot: u32, shards: u32) -> u32 {
    (slot as u64 * shards as u64 / SLOTS_MAX as u64) as u32
}

/// Returns the first slot of a shard.
pub const fn first_slot(shard: u32, shards: u32) -> u32 {
    SLOTS_MAX / shards * shard
}

/// Length of a status page in bytes.
pub const STATUS_LEN: usize = 4096;
/// Offset of the slots in the region. The offset is not 0, so that an offset that was never set
/// refers to no slot.
pub const SLOTS_OFFSET: usize = 4096;
/// Offset of the marks, [`MARKS`] per shard.
pub const MARKS_OFFSET: usize = 1 << 29;
/// Number of marks per shard, a power of two. A socket's mark depends on its ports; sockets may
/// share one.
pub const MARKS: u32 = 4096;
/// Offset of the byte FIFOs.
pub const FIFO_OFFSET: usize = 1 << 30;
/// Address space for FIFOs in bytes. Only touched pages cost memory. valgrind refuses mappings of
/// tens of GiB.
pub const FIFO_LEN: usize = if cfg!(feature = "small-region") { 4 << 30 } else { 64 << 30 };
/// Length of a region in bytes.
pub const REGION_LEN: usize = FIFO_OFFSET + FIFO_LEN;

/// Maximum commands in the ring of a program: some 100 µs of the engine's time, for which a request
/// of another program has to wait. If the ring is full, the program waits for the engine.
pub const COMMANDS_MAX: u32 = 1024;
/// Offset of the commands in a channel.
pub const COMMANDS_OFFSET: usize = 4096;
/// Maximum events in the ring of a program. If the ring is full, the engine sets
/// [`ChannelHeader::events_lost`], and the program checks all its sockets.
pub const EVENTS_MAX: u32 = 1 << 16;
/// Offset of the events in a channel.
pub const EVENTS_OFFSET: usize = COMMANDS_OFFSET + COMMANDS_MAX as usize * size_of::<Command>();
/// Length of a channel in bytes, in whole pages.
pub const CHANNEL_LEN: usize =
    (EVENTS_OFFSET + EVENTS_MAX as usize * size_of::<u32>()).next_multiple_of(4096);

/// The status page. Programs cannot map it for writing, because the memfd is sealed.
#[repr(C)]
#[derive(Debug)]
pub struct StatusPage {
    /// [`MAGIC`].
    pub magic: atomic::AtomicU64,
    /// [`VERSION`].
    pub version: atomic::AtomicU32,
    /// Maximum length in bytes of an IP packet that no datagram socket refuses, whatever its route.
    /// Before sending a longer one, a program asks the engine
    /// ([`crate::control::call::CHECK_LENGTH`]). 0 until known.
    pub datagram_mtu: atomic::AtomicU32,
    /// Incremented when the engine is about to sleep, and when it wakes: odd while it sleeps. A
    /// program pushes a command, executes a SeqCst fence, and reads this number. If the number is
    /// odd, and the program has not sent a notification for it, it writes to the engine's eventfd.
    /// A 64-bit number never recurs.
    pub sleep_epoch: atomic::AtomicU64,
    // Padding to separate words that change at each sleep from those that change at each turn.
    _pad0: [atomic::AtomicU64; 5],
    /// Incremented when a turn begins and when it ends: odd in between. A final check of the rings
    /// before a sleep counts as a turn. A program that has pushed a command executes a SeqCst
    /// fence, and reads this number. The next turn that begins processes the command.
    pub beat: atomic::AtomicU64,
    _pad1: [atomic::AtomicU64; 7],
    /// Whether the engine lives: a [`LifeWord`] per channel, indexed by its number modulo
    /// [`LIVES`].
    pub lives: [LifeWord; LIVES],
}

/// The last sender to a peer of the same run, for the sockets that share this mark. Only programs
/// read and write it.
#[repr(C)]
#[derive(Debug)]
pub struct Mark {
    /// Slot and generation of the sender, and whether it has closed its send direction; 0 if there
    /// was none. Written by the sender.
    pub sender: atomic::AtomicU64,
    /// The newest sender, and the end of its bytes, for which a reader has waited without receiving
    /// bytes. Written by the reader.
    pub vain: atomic::AtomicU64,
}

/// Number of [`LifeWord`]s: as many as fit in the page. When the engine is killed, the kernel
/// processes them as a robust list, which is limited to 2048 entries (ROBUST_LIST_LIMIT).
pub const LIVES: usize = (STATUS_LEN - 128) / size_of::<LifeWord>();

/// A futex word of the engine's thread, in the format of robust mutexes (linux/futex.h). 0 before
/// the engine runs, or if the kernel has no robust lists. While the engine runs, the thread's id
/// with FUTEX_WAITERS; afterwards it has [`ENGINE_ENDED`].
#[repr(C)]
#[derive(Debug)]
pub struct LifeWord {
    /// The futex word.
    pub word: atomic::AtomicU32,
    // Padding: entries of a robust list are pointers, and all have the same distance to their
    // words.
    _pad: atomic::AtomicU32,
}

/// Flag in a [`LifeWord`]: FUTEX_OWNER_DIED.
pub const ENGINE_ENDED: u32 = 0x4000_0000;

/// The header of a channel.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ChannelHeader {
    /// [`MAGIC`].
    pub magic: atomic::AtomicU64,
    /// [`VERSION`].
    pub version: atomic::AtomicU32,
    /// 1 if the engine no longer serves this channel, because its process violated the protocol or
    /// was considered dead. Written by the engine.
    pub ended: atomic::AtomicU32,
    /// Address of the program's descriptor table, a word per descriptor, in its own address space.
    /// Other programs of the run may read the table there. Written by the program.
    pub descriptors: atomic::AtomicU64,
    _pad0: [atomic::AtomicU32; 10],
    /// End of the commands; written by the program.
    pub command_tail: atomic::AtomicU32,
    /// Start of the unread events; written by the program.
    pub event_head: atomic::AtomicU32,
    /// 1 if the program sleeps (or is about to) and needs a notification; the engine swaps it to 0
    /// when it sends one. Swap.
    pub sleeping: atomic::AtomicU32,
    /// Number of the program's last request in the [`RequestSlot`](crate::control::RequestSlot),
    /// stored after the request was written. Written by the program.
    pub asked: atomic::AtomicU32,
    _pad1: [atomic::AtomicU32; 12],
    /// Start of the unread commands; written by the engine.
    pub command_head: atomic::AtomicU32,
    /// End of the events; written by the engine.
    pub event_tail: atomic::AtomicU32,
    /// 1 if events were lost, so that all sockets have to be checked. Set by the engine, swapped to
    /// 0 by the program.
    pub events_lost: atomic::AtomicU32,
    _pad2: [atomic::AtomicU32; 13],
}

// Loom's atomics are larger; a model's slots are not in shared memory.
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
