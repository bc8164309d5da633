//! A connected memif device: one ring in each direction.

use std::sync::Arc;

use rustix::fd::OwnedFd;
use towpath_pool::{Batch, Pool};
use towpath_shm::Mapping;

use crate::layout::{COOKIE, ring_len};
use crate::memory::SharedMemory;
use crate::receive::RingReader;
use crate::ring::{BufferExtent, OwnBuffers, RingEnd, RingFault, RingSpec, RingUse};
use crate::send::RingWriter;

/// Maximum number of buffers of a frame. The smallest buffers that DPDK accepts for a frame of 64
/// KiB are those of 64 bytes.
pub(crate) const BUFFERS_A_FRAME: usize = 1024;

/// Name of the memfd in /proc/PID/maps.
const REGION_NAME: &str = "towpath-memif";

towpath_pool::counters! {
    /// Frame counters of a memif device since it was opened.
    #[non_exhaustive]
    pub struct MemifCounters {
        /// Frames received from the peer.
        rx_frames,
        /// Total length of received frames in bytes.
        rx_bytes,
        /// Frames dropped because they are empty, or exceed a packet buffer.
        rx_malformed,
        /// Frames sent to the peer.
        tx_frames,
        /// Total length of sent frames in bytes.
        tx_bytes,
        /// Frames dropped because no peer was connected.
        tx_no_peer,
        /// Frames dropped because they exceed the buffers of a whole ring.
        tx_too_long,
        /// Number of times that the ring had too few free buffers. The sender keeps the frames.
        tx_blocked,
        /// Number of times that the peer was notified.
        interrupts,
        /// Connections closed because the peer has written invalid data to the shared memory.
        broken_rings,
        /// Number of peers that have connected.
        peers,
        /// Changes of the connection of which the user was not told, because there were too many.
        events_untold,
    }
}

/// Reason why no more frames were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingSpace {
    /// The ring has taken every frame.
    Done,
    /// The ring has too few free buffers for the next frame.
    Full,
}

/// Positions of the rings of a link in the memory of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingPair {
    /// Ring with frames to the server.
    pub to_server: RingSpec,
    /// Ring with frames to the client.
    pub to_client: RingSpec,
}

/// Memory that a client creates: the rings, and behind them one buffer for each descriptor.
#[derive(Debug)]
pub struct ClientMemory {
    region: Arc<Mapping>,
    log2_size: u8,
    buffer_len: u32,
}

/// A connected device, which exchanges frames with the peer without system calls.
#[derive(Debug)]
pub struct MemifDevice {
    memory: SharedMemory,
    receive: RingEnd,
    send: RingEnd,
    /// Buffers of the current frame.
    extents: Vec<BufferExtent>,
}

impl ClientMemory {
    /// Creates rings of `1 << log2_size` descriptors, and buffers of `buffer_len` bytes.
    ///
    /// # Errors
    /// Returns the errors of [`Mapping::shared`].
    pub fn new(log2_size: u8, buffer_len: u16) -> std::io::Result<Self> {
        let buffers = usize::from(buffer_len) << log2_size;
        let len = 2 * (ring_len(log2_size) + buffers);
        let region = Arc::new(Mapping::shared(REGION_NAME, len)?);
        let memory = Self { region, log2_size, buffer_len: buffer_len.into() };
        let RingPair { to_server, to_client } = memory.rings();
        for ring in [to_server, to_client] {
            memory
                .region
                .u32(ring.offset as usize)
                .store(COOKIE, std::sync::atomic::Ordering::Release);
        }
        Ok(memory)
    }

    /// Returns the length of the region in bytes.
    pub fn region_len(&self) -> u64 {
        self.region.len() as u64
    }

    /// Returns the file of the region.
    ///
    /// # Panics
    /// Never panics, because the region is a shared mapping of this process.
    pub fn file(&self) -> &OwnedFd {
        self.region.file().expect("a mapping of this process")
    }

    /// Returns the positions of the rings.
    pub fn rings(&self) -> RingPair {
        let ring = |offset| RingSpec { region: 0, offset, log2_size: self.log2_size };
        RingPair { to_server: ring(0), to_client: ring(ring_len(self.log2_size) as u32) }
    }

    /// Returns the buffers of the ring to the server, or to the client.
    fn buffers(&self, place: u32) -> OwnBuffers {
        let rings = 2 * ring_len(self.log2_size) as u32;
        let offset = rings + place * (self.buffer_len << self.log2_size);
        OwnBuffers { offset, len: self.buffer_len }
    }
}

impl MemifDevice {
    /// Creates the device of a client, after the server has mapped the memory.
    ///
    /// # Errors
    /// Returns [`RingFault`] if the server has overwritten the rings.
    pub fn client(own: &ClientMemory) -> Result<Self, RingFault> {
        let memory = SharedMemory::of_client(Arc::clone(&own.region));
        let RingPair { to_server, to_client } = own.rings();
        let (sent, received) = (Some(own.buffers(0)), Some(own.buffers(1)));
        let send = RingEnd::start(&memory, to_server, RingUse::Send, sent)?;
        let receive = RingEnd::start(&memory, to_client, RingUse::Receive, received)?;
        Ok(Self::new(memory, receive, send))
    }

    /// Creates the device of a server, with rings in the memory of the client.
    ///
    /// # Errors
    /// Returns [`RingFault`] if a ring is invalid or outside of the memory.
    pub fn server(memory: SharedMemory, rings: RingPair) -> Result<Self, RingFault> {
        let receive = RingEnd::start(&memory, rings.to_server, RingUse::Receive, None)?;
        let send = RingEnd::start(&memory, rings.to_client, RingUse::Send, None)?;
        Ok(Self::new(memory, receive, send))
    }

    fn new(memory: SharedMemory, receive: RingEnd, send: RingEnd) -> Self {
        Self { memory, receive, send, extents: Vec::with_capacity(BUFFERS_A_FRAME) }
    }

    /// Returns whether [`Self::receive`] should be called again although the peer will not notify
    /// this process.
    pub fn has_more(&self) -> bool {
        !self.receive.is_awaiting()
    }

    /// Receives up to `max` frames, and appends them to `out`. Returns their number.
    ///
    /// # Errors
    /// Returns [`RingFault`] if the peer has written invalid data. The frames before are in `out`.
    pub fn receive(
        &mut self,
        counters: &mut MemifCounters,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> Result<usize, RingFault> {
        let Self { memory, receive: ring, extents, .. } = self;
        let mut source = RingReader { memory, ring, extents };
        let received = source.receive(counters, pool, out, max);
        // The peer may use the buffers of received frames again, also before an invalid one.
        self.receive.publish();
        received
    }

    /// Sends frames from the front of `batch`. Returns the number of frames taken, and why there
    /// are not more. The peer sees the frames after [`Self::publish`].
    ///
    /// # Errors
    /// Returns [`RingFault`] if the peer has written invalid data.
    pub fn send(
        &mut self,
        counters: &mut MemifCounters,
        pool: &mut Pool,
        batch: &mut Batch,
    ) -> Result<(usize, RingSpace), RingFault> {
        let Self { memory, send: ring, extents, .. } = self;
        let mut sink = RingWriter { memory, ring, extents };
        let mut taken = 0;
        while let Some(packet) = batch.pop_front() {
            let end = sink.put(&packet, counters);
            if end != Ok(RingSpace::Done) {
                batch.push_front(packet);
                return end.map(|end| (taken, end));
            }
            taken += 1;
            pool.give(packet);
        }
        Ok((taken, RingSpace::Done))
    }

    /// Makes the sent frames visible to the peer. Returns whether the peer wants to be notified.
    pub fn publish(&mut self) -> bool {
        self.send.publish()
    }
}
