//! A program that writes frames directly to a real device, as fast as the device accepts them.

use towpath_pool::Pool;
use towpath_qdisc::{Device, QueueLimitsConfig, TransmitQueue};

use super::frames::FrameRecorder;
use crate::clock::monotonic_ns;
use crate::exit::{PortRing, wake_room};
use crate::realtime::{RealPort, RealPorts};
use crate::result::RunResult;

/// Program that writes frames for a time.
#[derive(Debug, Clone)]
pub(super) struct DeviceWriting {
    pub variant: &'static str,
    /// Device in the notation of scenarios.
    pub device: String,
    /// Maximum number of frames in the device.
    pub ring: usize,
    pub limits: Option<QueueLimitsConfig>,
    /// Length of a frame in bytes.
    pub bytes: usize,
    pub duration_ns: u64,
    /// Time in ns between two attempts while the queue is stopped.
    pub poll_ns: u64,
    pub sample_ns: u64,
}

/// Maximum number of frames passed to the device in one call.
const BATCH: usize = 64;

/// Ethernet header of the frames. The addresses are locally administered unicast addresses, and the
/// EtherType is that of IEEE 802 for experiments, so that no host interprets the frames.
const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];

impl DeviceWriting {
    /// Runs for the duration. `progress` is called with the completed fraction.
    ///
    /// # Errors
    /// Fails if the device is not open, or was removed.
    pub fn run(
        &self,
        ports: &mut RealPorts,
        progress: &mut dyn FnMut(f64),
    ) -> Result<RunResult, String> {
        let missing = || format!("the device `{}` is not open", self.device);
        let RealPort { port, shared_mac } = ports.remove(&self.device).ok_or_else(missing)?;
        let mut ring = PortRing::new(self.ring);
        ring.port = Some(port);
        let mut queue = TransmitQueue::new(wake_room(self.ring), self.limits);
        let mut recorder = FrameRecorder::default();
        let mut pool = Pool::default();
        let start_ns = monotonic_ns();
        let (mut next_sample, mut events, mut retry_ns) = (self.sample_ns, 0, 0);
        loop {
            let now = monotonic_ns() - start_ns;
            events += 1;
            let completed = ring.poll_completed(now);
            if completed.packets > 0 {
                queue.on_completed(now, completed, ring.room());
            }
            if now >= next_sample {
                recorder.sample(now, &queue, [self.ring as u64, 0], self.bytes as u64);
                next_sample += self.sample_ns;
                progress(now as f64 / self.duration_ns as f64);
                if ring.port.as_ref().is_some_and(|port| port.is_gone()) {
                    return Err(format!("the device `{}` was removed", self.device));
                }
            }
            if now >= self.duration_ns {
                break;
            }
            if now < retry_ns {
                std::hint::spin_loop();
                continue;
            }
            if queue.is_stopped() {
                recorder.fail();
                retry_ns = now + self.poll_ns;
            }
            self.write(&mut ring, &mut queue, &mut pool);
        }
        if let Some(port) = ring.port.take() {
            ports.insert(self.device.clone(), RealPort { port, shared_mac });
        }
        let packets = queue.stats().queued_packets;
        Ok(RunResult { events, ..recorder.result(self.variant, packets, self.bytes as u64) })
    }

    /// Writes frames until the queue is stopped, up to [`BATCH`].
    fn write(&self, ring: &mut PortRing, queue: &mut TransmitQueue, pool: &mut Pool) {
        for _ in 0..BATCH {
            if queue.is_stopped() {
                break;
            }
            let mut packet = pool.take(self.bytes);
            let bytes = packet.push_back(self.bytes).expect("taken with room");
            let (header, payload) = bytes.split_at_mut(HEADER.len());
            header.copy_from_slice(&HEADER);
            payload.fill(0);
            ring.offer(packet);
            queue.on_queued(self.bytes as u64, ring.room());
        }
        ring.flush(pool);
    }
}
