//! The memory that both programs and the engine (the network stack) write: mapping and validation.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::area::PAGE;
use towpath_shm::Mapping;
use towpath_shm::control::{
    ControlReply, REPLY_OFFSET, REQUEST_OFFSET, REQUEST_SLOT_OFFSET, Request, RequestSlot,
};
use towpath_shm::layout::{
    CHANNEL_LEN, COMMANDS_MAX, COMMANDS_OFFSET, ChannelHeader, Command, EVENTS_MAX, EVENTS_OFFSET,
    MAGIC, MARKS, MARKS_OFFSET, Mark, Plain, REGION_LEN, SHARDS_MAX, SLOTS_MAX, Slot, VERSION,
};

/// The memory shared by the engine (the network stack) and the programs of one `towpath run`. The
/// memory contains their sockets' slots and FIFOs (decision 1,
/// `docs/decisions/0001-one-region-per-run.md`). Clones share the memory, which stays mapped until
/// the last clone is dropped.
///
/// Reserves [`REGION_LEN`] bytes of address space, but uses memory only for pages that are written.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use towpath_ring::Region;
/// use towpath_shm::layout::SLOTS_MAX;
///
/// let engines = Region::create()?;
/// // The program receives the memfd over its control socket.
/// let programs = Region::map(engines.mapping().file().expect("shared").try_clone()?)?;
/// engines.slot(7).expect("a slot").generation.store(1, Ordering::Release);
/// assert_eq!(programs.slot(7).expect("a slot").generation.load(Ordering::Acquire), 1);
/// assert!(programs.slot(SLOTS_MAX).is_none());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Region {
    mapping: Arc<Mapping>,
    /// Slots for loom models. Loom's atomics cannot be placed in shared memory.
    #[cfg(loom)]
    slots: Arc<[Slot; 2]>,
}

impl Region {
    /// Creates the shared memory of a run, in which all slots are free. Called by the engine.
    ///
    /// # Errors
    /// Returns `OutOfMemory`, with advice for the user, if the limit of address space (RLIMIT_AS)
    /// is too low. Also returns the errors of [`Mapping::shared`].
    pub fn create() -> io::Result<Self> {
        Ok(Self::over(Mapping::shared("towpath-region", REGION_LEN).map_err(explain)?))
    }

    /// Creates a region without usable slots, for an engine that serves no programs. The region
    /// takes one page of private memory instead of [`REGION_LEN`] bytes of address space.
    ///
    /// # Errors
    /// Returns the errors of [`Mapping::private`].
    pub fn without_slots() -> io::Result<Self> {
        Ok(Self::over(Mapping::private(PAGE as usize)?))
    }

    /// Maps the shared memory whose file was received from an engine. Programs can write to this
    /// memory. Therefore the version of the engine is in the status page, which only the engine can
    /// write.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the file is too short, and `OutOfMemory` in the case described at
    /// [`Region::create`].
    pub fn map(file: OwnedFd) -> io::Result<Self> {
        Ok(Self::over(Mapping::from_file(file, REGION_LEN).map_err(explain)?))
    }

    fn over(mapping: Mapping) -> Self {
        Self {
            mapping: Arc::new(mapping),
            #[cfg(loom)]
            slots: Arc::default(),
        }
    }

    /// Returns the slot (shared state of a socket) with this index; `None` if it is not below
    /// [`SLOTS_MAX`].
    #[inline]
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        if index >= SLOTS_MAX {
            return None;
        }
        #[cfg(loom)]
        return self.slots.get(index as usize);
        // SAFETY: `Slot` consists of atomics.
        #[cfg(not(loom))]
        Some(unsafe {
            self.mapping
                .view(towpath_shm::layout::SLOTS_OFFSET + index as usize * size_of::<Slot>())
        })
    }

    /// Returns record `number` of the last sender to a local peer ([`Mark`]) in the part of a
    /// shard. `shard` and `number` are taken modulo their maximum.
    #[inline]
    pub fn mark(&self, shard: u32, number: u32) -> &Mark {
        let at = shard % SHARDS_MAX * MARKS + number % MARKS;
        // SAFETY: `Mark` consists of atomics.
        unsafe { self.mapping.view(MARKS_OFFSET + at as usize * size_of::<Mark>()) }
    }

    /// Returns the mapping of the shared memory, to which the offsets in [`towpath_shm::layout`]
    /// refer. If this engine created it, [`Mapping::file`] returns the memfd, which can be passed
    /// to [`Region::map`].
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

/// Adds an explanation to ENOMEM, which the kernel also returns if the limit of address space is
/// exceeded.
fn explain(error: io::Error) -> io::Error {
    explain_with(error, rustix::process::getrlimit(rustix::process::Resource::As).current)
}

/// Adds an explanation to an error. `limit` is the limit of address space in bytes, if there is
/// one.
fn explain_with(error: io::Error, limit: Option<u64>) -> io::Error {
    const GIB: usize = 1 << 30;
    match limit {
        Some(limit) if error.kind() == io::ErrorKind::OutOfMemory => io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!(
                "{} GiB of address space are needed (not of memory), and the limit is {} KiB: \
                 \"ulimit -v unlimited\" lifts it",
                REGION_LEN.div_ceil(GIB),
                limit / 1024
            ),
        ),
        _ => error,
    }
}

/// The shared memory with the rings between one process and one shard (thread) of the engine.
/// Clones share the memory.
///
/// A `Channel` has no locks. Programs use [`crate::push_command`] and [`crate::pop_event`] under
/// locks of their process. The engine uses [`crate::EngineChannel`].
#[derive(Debug, Clone)]
pub struct Channel {
    mapping: Arc<Mapping>,
    /// Offset of the channel in the mapping, in bytes.
    at: usize,
}

impl Channel {
    /// Creates a channel with empty rings. Called by the engine.
    ///
    /// # Errors
    /// Returns the errors of [`Mapping::shared`].
    pub fn create() -> io::Result<Self> {
        Ok(Self::create_all(1)?.swap_remove(0))
    }

    /// Creates `count` channels for one process in one mapping, one per shard. Called by the
    /// engine.
    ///
    /// # Errors
    /// Returns the errors of [`Mapping::shared`].
    pub fn create_all(count: u32) -> io::Result<Vec<Self>> {
        let channels = Self::all(Mapping::shared("towpath-channel", len(count))?, count);
        for channel in &channels {
            channel.header().version.store(VERSION, Ordering::Relaxed);
            channel.header().magic.store(MAGIC, Ordering::Release);
        }
        Ok(channels)
    }

    /// Maps the channel whose file was received from an engine with one shard.
    ///
    /// # Errors
    /// Returns the errors of [`Channel::map_all`].
    pub fn map(file: OwnedFd) -> io::Result<Self> {
        Ok(Self::map_all(file, 1)?.swap_remove(0))
    }

    /// Maps the `count` channels whose file was received from an engine.
    ///
    /// # Errors
    /// Returns `InvalidData` if the file contains no channels, or those of a different build.
    /// Returns `InvalidInput` if the file is too short.
    pub fn map_all(file: OwnedFd, count: u32) -> io::Result<Vec<Self>> {
        let channels = Self::all(Mapping::from_file(file, len(count))?, count);
        for channel in &channels {
            let header = channel.header();
            check(header.magic.load(Ordering::Acquire), header.version.load(Ordering::Relaxed))?;
        }
        Ok(channels)
    }

    fn all(mapping: Mapping, count: u32) -> Vec<Self> {
        let mapping = Arc::new(mapping);
        (0..count).map(|shard| Self { mapping: Arc::clone(&mapping), at: len(shard) }).collect()
    }

    /// Returns the channel's ring positions and sleep flags. The other process may change them at
    /// any time.
    #[inline]
    pub fn header(&self) -> &ChannelHeader {
        // SAFETY: `ChannelHeader` consists of atomics.
        unsafe { self.mapping.view(self.at) }
    }

    /// Returns the mapping with all channels of a program. In the engine that created it,
    /// [`Mapping::file`] returns the memfd for [`Channel::map_all`].
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the memory of a request and its reply. The other process may change it at any time.
    #[inline]
    pub fn request_slot(&self) -> &RequestSlot {
        // SAFETY: `RequestSlot` consists of atomics.
        unsafe { self.mapping.view(self.at + REQUEST_SLOT_OFFSET) }
    }

    /// Writes the bytes of a request, at most the size of [`Request`].
    pub(crate) fn write_request(&self, wire: &[u8]) {
        debug_assert!(wire.len() <= size_of::<Request>());
        self.mapping.write(self.at + REQUEST_OFFSET, wire);
    }

    /// Returns a copy of the request. Bytes beyond its length are zeroed, because they may belong
    /// to an older request.
    pub(crate) fn read_request(&self) -> Box<Request> {
        let mut bytes = [0; size_of::<Request>()];
        self.mapping.read(self.at + REQUEST_OFFSET, &mut bytes);
        let request = Request::from_bytes(&bytes);
        Box::new(Request::from_bytes(request.wire()))
    }

    /// Writes the bytes of a reply, at most the size of [`ControlReply`].
    pub(crate) fn write_reply(&self, wire: &[u8]) {
        debug_assert!(wire.len() <= size_of::<ControlReply>());
        self.mapping.write(self.at + REPLY_OFFSET, wire);
    }

    /// Returns a copy of the reply. Bytes beyond its length are zeroed, because they may belong to
    /// an older reply.
    pub(crate) fn read_reply(&self) -> ControlReply {
        let mut bytes = [0; size_of::<ControlReply>()];
        self.mapping.read(self.at + REPLY_OFFSET, &mut bytes);
        let reply = ControlReply::from_bytes(&bytes);
        ControlReply::from_bytes(reply.wire())
    }

    #[inline]
    pub(crate) fn read_command(&self, index: u32) -> Command {
        debug_assert!(index < COMMANDS_MAX);
        let mut bytes = [0; size_of::<Command>()];
        self.mapping
            .read(self.at + COMMANDS_OFFSET + index as usize * size_of::<Command>(), &mut bytes);
        Command::from_bytes(&bytes)
    }

    #[inline]
    pub(crate) fn write_command(&self, index: u32, command: &Command) {
        debug_assert!(index < COMMANDS_MAX);
        self.mapping.write(
            self.at + COMMANDS_OFFSET + index as usize * size_of::<Command>(),
            command.as_bytes(),
        );
    }

    #[inline]
    pub(crate) fn event(&self, index: u32) -> &AtomicU32 {
        debug_assert!(index < EVENTS_MAX);
        self.mapping.u32(self.at + EVENTS_OFFSET + index as usize * size_of::<AtomicU32>())
    }
}

/// Returns the size of `count` channels in bytes.
fn len(count: u32) -> usize {
    count as usize * CHANNEL_LEN
}

pub(crate) fn check(magic: u64, version: u32) -> io::Result<()> {
    if magic != MAGIC || version != VERSION {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "program and engine are of different builds",
        ));
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_limit_of_address_space_is_named() {
        let told = |errno: Errno, limit| explain_with(errno.into(), limit).to_string();
        let limited = told(Errno::NOMEM, Some(4 << 30));
        assert!(limited.contains("65 GiB") && limited.contains("4194304 KiB"), "{limited}");
        assert!(limited.contains("ulimit -v unlimited"), "{limited}");
        assert_eq!(told(Errno::NOMEM, None), io::Error::from(Errno::NOMEM).to_string());
        let other = io::Error::from(Errno::INVAL).to_string();
        assert_eq!(told(Errno::INVAL, Some(4 << 30)), other);
    }
}
