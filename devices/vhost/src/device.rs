//! A virtio network device: its two virtqueues in the guest's memory.

use towpath_pool::{Batch, Meta, Pool};

use crate::chain::ChainBuffer;
use crate::features::NetFeatures;
use crate::memory::GuestMemory;
use crate::receive::FrameSource;
use crate::ring::{RingError, RingSetup, SIZE_MAX, SplitRing};
use crate::send::{FrameSink, SendEnd};

/// Number of virtqueues of the device: one pair.
pub const QUEUES: usize = 2;
/// Index of the virtqueue with frames to the guest (virtio 1.2 §5.1.2: receiveq).
pub const RX: usize = 0;
/// Index of the virtqueue with frames of the guest (transmitq).
pub const TX: usize = 1;

towpath_pool::counters! {
    /// Frame counters of a device since its creation.
    #[non_exhaustive]
    pub struct VhostCounters {
        /// Frames received from the guest. A frame that is to be segmented counts as one.
        rx_frames,
        /// Total length of received frames in bytes.
        rx_bytes,
        /// Frames dropped because their length or their virtio header is invalid.
        rx_malformed,
        /// Frames sent to the guest. A frame that is to be segmented counts as one.
        tx_frames,
        /// Total length of sent frames in bytes.
        tx_bytes,
        /// Frames dropped because no guest was running.
        tx_no_guest,
        /// Frames dropped because they exceed the buffers of the guest.
        tx_too_long,
        /// Frames dropped because their metadata contradicts itself.
        tx_malformed,
        /// Frames that were segmented or whose checksum was computed here, because the guest's
        /// driver does not support it.
        tx_finished,
        /// Number of times that the guest had no buffers. The sender keeps the frames.
        tx_blocked,
        /// Number of times that the guest was notified.
        interrupts,
        /// Virtqueues stopped because the driver has written invalid data to them.
        broken_queues,
        /// Number of front ends that have connected.
        front_ends,
    }
}

/// A virtio network device. Frames are exchanged with the guest while its virtqueues run.
#[derive(Debug)]
pub struct NetDevice {
    features: NetFeatures,
    memory: GuestMemory,
    rings: [Option<SplitRing>; QUEUES],
    /// Errors that have stopped a virtqueue and were not taken yet.
    faults: [Option<RingError>; QUEUES],
    /// Memory of the chains of the current frame.
    chains: ChainBuffer,
    /// Heads and lengths of these chains.
    heads: Vec<(u16, usize)>,
    /// Whether [`Self::send`] has stopped because the guest has too few buffers.
    is_full: bool,
}

impl NetDevice {
    /// Creates a device without running virtqueues.
    pub fn new(features: u64, memory: GuestMemory) -> Self {
        Self {
            features: NetFeatures(features),
            memory,
            rings: [None, None],
            faults: [None, None],
            chains: ChainBuffer::new(),
            heads: Vec::with_capacity(SIZE_MAX.into()),
            is_full: false,
        }
    }

    /// Sets the negotiated features. Event indices take effect when a virtqueue starts.
    pub fn set_features(&mut self, features: u64) {
        self.features = NetFeatures(features);
    }

    /// Starts a virtqueue, or starts it again with other parameters.
    ///
    /// # Errors
    /// Returns [`RingError`] if the size is invalid, or a part is outside of the guest's memory.
    pub fn start(&mut self, queue: usize, setup: RingSetup) -> Result<(), RingError> {
        let setup = RingSetup { has_event_index: self.features.has_event_index(), ..setup };
        self.rings[queue] = None;
        self.rings[queue] = Some(SplitRing::start(setup, &self.memory)?);
        Ok(())
    }

    /// Stops a virtqueue. Returns the index of the next available entry, `None` if it did not run.
    pub fn stop(&mut self, queue: usize) -> Option<u16> {
        if queue == RX {
            self.is_full = false;
        }
        self.rings[queue].take().map(|ring| ring.next_available())
    }

    /// Changes the guest's memory. A virtqueue that is outside of the new memory stops.
    ///
    /// # Errors
    /// Returns the errors of `change`, after which the memory may have changed in part.
    pub fn change_memory<E>(
        &mut self,
        change: impl FnOnce(&mut GuestMemory) -> Result<(), E>,
    ) -> Result<(), E> {
        let result = change(&mut self.memory);
        for queue in 0..QUEUES {
            let moved = self.rings[queue].as_mut().map(|ring| ring.move_to(&self.memory));
            if let Some(Err(error)) = moved {
                self.fail(queue, error);
            }
        }
        result
    }

    /// Returns whether a virtqueue runs.
    pub fn is_running(&self, queue: usize) -> bool {
        self.rings[queue].is_some()
    }

    /// Returns whether [`Self::receive`] should be called again although the driver will not notify
    /// the device.
    pub fn has_more(&self) -> bool {
        self.rings[TX].as_ref().is_some_and(|ring| !ring.is_awaiting())
    }

    /// Returns whether the guest has too few buffers for the next frame. The driver notifies the
    /// device of further ones.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns whether the guest accepts a packet with the work that is left to its receiver.
    pub(crate) fn accepts(&self, meta: &Meta) -> bool {
        self.features.accepts(meta)
    }

    /// Takes the error that has stopped a virtqueue since the last call.
    pub fn take_fault(&mut self, queue: usize) -> Option<RingError> {
        self.faults[queue].take()
    }

    /// Receives up to `max` frames of the guest, and appends them to `out`. Returns their number.
    pub fn receive(
        &mut self,
        counters: &mut VhostCounters,
        pool: &mut Pool,
        out: &mut Batch,
        max: usize,
    ) -> usize {
        let Some(ring) = &mut self.rings[TX] else { return 0 };
        let source = FrameSource {
            features: self.features,
            memory: &self.memory,
            ring,
            chains: &mut self.chains,
        };
        let (received, result) = source.receive(counters, pool, out, max);
        if let Err(error) = result {
            self.fail(TX, error);
            counters.broken_queues += 1;
        }
        received
    }

    /// Sends frames from the front of `batch`. Returns the number of frames taken, and why there
    /// are not more. Frames are dropped while the virtqueue does not run.
    pub fn send(
        &mut self,
        counters: &mut VhostCounters,
        pool: &mut Pool,
        batch: &mut Batch,
    ) -> (usize, SendEnd) {
        let offered = batch.len();
        if let Some(ring) = &mut self.rings[RX] {
            let mut sink = FrameSink {
                features: self.features,
                memory: &self.memory,
                ring,
                chains: &mut self.chains,
                heads: &mut self.heads,
            };
            let (taken, end) = sink.send(counters, pool, batch);
            self.is_full = end == Ok(SendEnd::Full);
            match end {
                Ok(end) => return (taken, end),
                Err(error) => self.fail(RX, error),
            }
            counters.broken_queues += 1;
        }
        counters.tx_no_guest += batch.len() as u64;
        batch.drain(..).for_each(|packet| pool.give(packet));
        (offered, SendEnd::Done)
    }

    /// Makes the frames of a virtqueue visible to the driver: received ones as free, sent ones as
    /// arrived. Returns whether the driver wants to be notified.
    pub fn publish(&mut self, queue: usize) -> bool {
        self.rings[queue].as_mut().is_some_and(SplitRing::publish)
    }

    fn fail(&mut self, queue: usize, error: RingError) {
        self.stop(queue);
        self.faults[queue] = Some(error);
    }
}
