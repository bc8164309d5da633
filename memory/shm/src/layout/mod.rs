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
//!   MARKS_OFFSET     Mark[SHARDS_MAX][MARKS]  who has sent to programs of the run
//!   FIFO_OFFSET      byte FIFOs               windows handed out by the engine
//!
//! channel (one per process and shard, mapped by the engine and that process;
//!          those of a process lie behind each other)
//!   0                ChannelHeader            ring positions and sleep flags
//!   CELL_OFFSET      CallCell                 a request and its answer (control.rs)
//!   COMMANDS_OFFSET  Command[COMMANDS_MAX]    program -> engine
//!   EVENTS_OFFSET    u32[EVENTS_MAX]          engine -> program: slot and bits of `event`
//! ```
//!
//! An engine has one shard, or a power of two of them up to [`SHARDS_MAX`]. The upper bits of a
//! slot's number say whose the slot is ([`shard_of`]); everything about a socket goes through the
//! channel of that shard.
//!
//! A region is one trust domain: the programs that descend from one `towpath run`, which can ptrace
//! each other anyway. Fork, exec and SCM_RIGHTS can hand sockets around for that reason. The engine
//! trusts none of it: it keeps its own copy of everything it wrote, and validates every position it
//! reads. Words that all programs rely on, whichever sockets they have, lie in the status page,
//! where none can destroy them. A word of a slot is its socket's alone.
//!
//! Each field names its writer; no other side ever writes it, except where "swap" is said. All
//! positions of FIFOs and rings run freely and wrap at 2^32; capacities are powers of two.
//!
//! Reading order: this file has the places of everything, the status page and the start of a
//! channel. `slot` has a socket's words, `command` the entries of the rings, and `record` the
//! content of FIFOs and requests.

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
/// Changes whenever anything in this folder or in `control.rs` does. Both sides come from one
/// build: they must agree.
pub const VERSION: u32 = 16;

/// Most sockets a run can have; the table is sparse, an unused slot costs no memory.
pub const SLOTS_MAX: u32 = 1 << 20;
/// Most shards an engine can have.
pub const SHARDS_MAX: u32 = 16;

/// Number of the shard, of `shards`, a power of two, that has a slot (below [`SLOTS_MAX`]).
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
/// Where the slots begin, in bytes from the region's start: not at 0, so that an offset that was
/// never set is no socket's.
pub const SLOTS_OFFSET: usize = 4096;
/// Where the marks begin, [`MARKS`] for the sockets of each shard.
pub const MARKS_OFFSET: usize = 1 << 29;
/// Marks of a shard, a power of two. A socket finds its own by its ports; two may have the same.
pub const MARKS: u32 = 4096;
/// Where the byte FIFOs begin.
pub const FIFO_OFFSET: usize = 1 << 30;
/// Address space for FIFOs. Only touched pages cost memory.
pub const FIFO_LEN: usize = 64 << 30;
/// Length of a region.
pub const REGION_LEN: usize = FIFO_OFFSET + FIFO_LEN;

/// Commands a program can have in flight: some 100 µs of the engine's time, which another program's
/// request waits for. A full ring makes the program wait for the engine.
pub const COMMANDS_MAX: u32 = 1024;
/// Where the commands begin.
pub const COMMANDS_OFFSET: usize = 4096;
/// Events in flight. When full the engine sets [`ChannelHeader::events_lost`] and the program
/// looks at every socket it has.
pub const EVENTS_MAX: u32 = 1 << 16;
/// Where the events begin.
pub const EVENTS_OFFSET: usize = COMMANDS_OFFSET + COMMANDS_MAX as usize * size_of::<Command>();
/// Length of a channel's memory: whole pages.
pub const CHANNEL_LEN: usize =
    (EVENTS_OFFSET + EVENTS_MAX as usize * size_of::<u32>()).next_multiple_of(4096);

/// The status page. Programs cannot map it for writing: the memfd is sealed against that.
#[repr(C)]
#[derive(Debug)]
pub struct StatusPage {
    /// [`MAGIC`].
    pub magic: atomic::AtomicU64,
    /// [`VERSION`].
    pub version: atomic::AtomicU32,
    /// Length in bytes up to which an IP packet is refused to no datagram socket, whatever its way.
    /// Before sending longer ones a program asks the engine
    /// ([`crate::control::call::CHECK_LENGTH`]). 0 until it is known.
    pub datagram_mtu: atomic::AtomicU32,
    /// Up by one when the engine is about to sleep and when it is awake again: odd while it sleeps.
    /// A program pushes a command, runs a SeqCst fence, and reads this number. If the number is odd
    /// and the program has not rung for it, it writes its engine notification descriptor. 64 bits:
    /// a number never comes again.
    pub sleep_epoch: atomic::AtomicU64,
    // Not in a cache line with what changes at each sleep, or at each turn.
    _pad0: [atomic::AtomicU64; 5],
    /// Up by one when a turn begins and when it ends: odd meanwhile. A last look at the rings in
    /// vain, as before a sleep, is a turn of its own. A program that knows of a command in a ring
    /// runs a SeqCst fence, and reads this number. The next turn that begins takes the command.
    pub beat: atomic::AtomicU64,
    _pad1: [atomic::AtomicU64; 7],
    /// Whether the engine lives: one [`LifeWord`] for each channel, by its number modulo [`LIVES`].
    pub lives: [LifeWord; LIVES],
}

/// The last sender to a peer in the run, of those that have this mark. Programs write and read it,
/// and the engine does neither.
#[repr(C)]
#[derive(Debug)]
pub struct Mark {
    /// Slot and generation of the sender, and whether that has ended what it sends; 0: nobody.
    /// Sender.
    pub sender: atomic::AtomicU64,
    /// The sender and the end of its bytes for which a reader last waited in vain. Reader.
    pub vain: atomic::AtomicU64,
}

/// How many [`LifeWord`] words there are: what fits in the page beside the rest of it. When the
/// engine is killed the kernel goes through them as a robust list, of which it sees no more than
/// 2048 entries (ROBUST_LIST_LIMIT).
pub const LIVES: usize = (STATUS_LEN - 128) / size_of::<LifeWord>();

/// A futex word of the engine's thread, as the kernel knows it from robust mutexes (linux/futex.h).
/// 0 before the engine runs, or where the kernel has no robust lists. While the engine runs, the
/// thread's id with FUTEX_WAITERS; afterwards a word with [`ENGINE_ENDED`].
#[repr(C)]
#[derive(Debug)]
pub struct LifeWord {
    /// The word.
    pub word: atomic::AtomicU32,
    // The entries of a robust list are pointers, and all lie at the same distance from their words.
    _pad: atomic::AtomicU32,
}

/// In a [`LifeWord`] word: FUTEX_OWNER_DIED.
pub const ENGINE_ENDED: u32 = 0x4000_0000;

/// The start of a channel.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ChannelHeader {
    /// [`MAGIC`].
    pub magic: atomic::AtomicU64,
    /// [`VERSION`].
    pub version: atomic::AtomicU32,
    /// 1: the engine hears this channel no more, because its process broke the rules or was taken
    /// for dead. Engine.
    pub ended: atomic::AtomicU32,
    /// Address of the program's table of descriptors, a word for each number, in its own memory.
    /// Other programs of the run may read the table there. Program.
    pub descriptors: atomic::AtomicU64,
    _pad0: [atomic::AtomicU32; 10],
    /// End of the commands: program.
    pub command_tail: atomic::AtomicU32,
    /// Start of the unread events: program.
    pub event_head: atomic::AtomicU32,
    /// 1 when the program sleeps (or is about to) and wants its notification descriptor rung; the
    /// engine swaps it to 0 when it rings. Swap.
    pub sleeping: atomic::AtomicU32,
    /// Number of the program's last request in the [`RequestSlot`](crate::control::RequestSlot).
    /// The number is written when the request is there. Program.
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
