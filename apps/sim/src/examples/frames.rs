//! A program that writes frames directly to a device, without a stack, queueing discipline or link.

use std::collections::BTreeMap;

use towpath_link::RingDevice;
use towpath_qdisc::{Device, Queueable, TransmitQueue};

use super::load::{NO_QDISC, SAMPLES_OF_LINE};
use crate::exit::wake_room;
use crate::result::{
    DeviceResult, FlowResult, FlowSeries, LinkResult, LinkSeries, RunResult, TimeDistribution,
};
use crate::scenario::DevicePlan;
use crate::units::Time;

/// Maximum duration of a run: one day of virtual time.
const DURATION_MAX_NS: u64 = 86_400_000_000_000;
/// Maximum number of samples of a run.
const SAMPLES_MAX: u64 = 200_000;

/// Program that writes `packets` frames.
#[derive(Debug, Clone)]
pub(super) struct Writing {
    pub variant: &'static str,
    pub device: DevicePlan,
    pub packets: u64,
    pub bytes: u64,
    /// Time in ns between two attempts while the queue is stopped.
    pub poll_ns: u64,
    pub sample_ns: u64,
}

/// Frame, represented by its length in bytes.
#[derive(Debug)]
struct Frame(usize);

impl Queueable for Frame {
    fn bytes(&self) -> usize {
        self.0
    }
}

/// Returns the time in ns that the frames take on the wire at the device's rate.
pub(super) fn wire_ns(device: &DevicePlan, packets: u64, bytes: u64) -> u128 {
    let ring = &device.ring;
    let bits = u128::from(bytes + ring.overhead) * 8 * u128::from(packets);
    bits * 1_000_000_000 / u128::from(ring.rate)
}

impl Writing {
    /// Checks that the device's parameters are valid and the run is not too long.
    pub fn check(&self) -> Result<(), String> {
        let ring = self.device.ring;
        if !(1..=65_536).contains(&ring.descriptors) {
            return Err(format!("`ring` is {}; expected 1 to 65536 descriptors", ring.descriptors));
        }
        if self.packets == 0 {
            return Err("`packets` is 0; expected more".into());
        }
        if !(1..=ring.descriptors).contains(&ring.frames) {
            return Err(format!(
                "`tx-frames` is {}; expected 1 to {}, the descriptors of the ring",
                ring.frames, ring.descriptors
            ));
        }
        if !(14..=1514).contains(&self.bytes) {
            return Err(format!("`size` is {}; expected 14 to 1514 bytes", self.bytes));
        }
        let wire_ns = wire_ns(&self.device, self.packets, self.bytes);
        if wire_ns > u128::from(DURATION_MAX_NS) {
            return Err(format!("{} packets take more than a day at this rate", self.packets));
        }
        let samples = wire_ns / u128::from(self.sample_ns);
        if samples > u128::from(SAMPLES_MAX) {
            return Err(format!(
                "`every` is {}, for {samples} samples; expected fewer than {SAMPLES_MAX}",
                Time(self.sample_ns * SAMPLES_OF_LINE)
            ));
        }
        Ok(())
    }

    /// Runs until the completion of the last frame. `progress` is called with the completed
    /// fraction.
    pub fn run(&self, progress: &mut dyn FnMut(f64)) -> Result<RunResult, String> {
        let DevicePlan { ring, limits } = self.device;
        let mut device = RingDevice::new(ring);
        let mut queue = TransmitQueue::new(wake_room(ring.descriptors), limits);
        let mut recorder = FrameRecorder::default();
        let (mut now, mut next_sample) = (0, self.sample_ns);
        let (mut left, mut write_ns, mut events) = (self.packets, 0, 0_u64);
        loop {
            events += 1;
            while device.poll_sent(now).is_some() {}
            let completed = device.poll_completed(now);
            if completed.packets > 0 {
                queue.on_completed(now, completed, device.room());
            }
            if write_ns <= now {
                while left > 0 && !queue.is_stopped() {
                    let is_taken = device.transmit(now, Frame(self.bytes as usize)).is_ok();
                    debug_assert!(is_taken, "a queue that runs has a device with room");
                    queue.on_queued(self.bytes, device.room());
                    left -= 1;
                }
                write_ns = if left > 0 { now + self.poll_ns } else { u64::MAX };
            }
            let is_over = left == 0 && device.held() == 0;
            if next_sample <= now || is_over {
                recorder.sample(
                    now,
                    &queue,
                    [ring.descriptors as u64, device.interrupts()],
                    self.bytes,
                );
                next_sample = now - now % self.sample_ns + self.sample_ns;
                progress(queue.stats().completed_packets as f64 / self.packets as f64);
            }
            if is_over {
                break;
            }
            let due = device.next_timeout_ns().unwrap_or(u64::MAX);
            now = due.min(write_ns).min(next_sample).max(now);
        }
        Ok(self.result(recorder, events))
    }

    fn result(&self, recorder: FrameRecorder, events: u64) -> RunResult {
        let ring = self.device.ring;
        let wire_bits = self.packets as f64 * (self.bytes + ring.overhead) as f64 * 8.;
        let end_s = recorder.end_s();
        let used = if end_s > 0. { (wire_bits / end_s).round() / ring.rate as f64 } else { 0. };
        let mut result = recorder.result(self.variant, self.packets, self.bytes);
        (result.events, result.links[0].rate_bps) = (events, Some(ring.rate));
        result.links[0].utilization = Some(used);
        result
    }
}

/// Samples of a program that writes frames into a device.
#[derive(Debug, Default)]
pub(super) struct FrameRecorder {
    sample_s: Vec<f64>,
    sent_bps: Vec<f64>,
    failed: Vec<u64>,
    failures: u64,
    device: DeviceResult,
}

impl FrameRecorder {
    /// Records a sample of a device with `descriptors`, which has raised `interrupts`.
    pub fn sample(
        &mut self,
        now: u64,
        queue: &TransmitQueue,
        [descriptors, interrupts]: [u64; 2],
        bytes: u64,
    ) {
        let now_s = now as f64 / 1e9;
        let passed_s = now_s - self.sample_s.last().copied().unwrap_or(0.);
        let sent = queue.stats().completed_packets - self.device.sent;
        self.device.sample(queue, descriptors as usize, interrupts);
        let bits = (sent * bytes) as f64 * 8.;
        self.sent_bps.push(if passed_s > 0. { (bits / passed_s).round() } else { 0. });
        self.sample_s.push(now_s);
        self.failed.push(std::mem::take(&mut self.failures));
    }

    /// Records an attempt to write while the queue was stopped.
    pub fn fail(&mut self) {
        self.failures += 1;
    }

    /// Returns the time of the last sample in seconds.
    pub fn end_s(&self) -> f64 {
        self.sample_s.last().copied().unwrap_or(0.)
    }

    /// Creates the result of a run that wrote `packets` frames.
    pub fn result(self, variant: &str, packets: u64, bytes: u64) -> RunResult {
        let (end_s, none) = (self.end_s(), self.sample_s.len());
        let per_s = |amount: f64| if end_s > 0. { (amount / end_s).round() } else { 0. };
        let flow = FlowResult {
            name: "frames".into(),
            kind: "frames",
            from: "program".into(),
            to: "device".into(),
            is_to_real: false,
            congestion: None,
            start_s: 0.,
            bytes: packets * bytes,
            goodput_bps: per_s((packets * bytes) as f64 * 8.),
            completion_s: Some(end_s),
            sent: packets,
            received: self.device.sent,
            latency: None,
            retransmitted_bytes: None,
            failure: None,
            series: FlowSeries {
                goodput_bps: self.sent_bps.clone(),
                cwnd_bytes: vec![None; none],
                flight_bytes: vec![None; none],
                srtt_s: vec![None; none],
            },
            points: Vec::new(),
        };
        let link = LinkResult {
            name: "device".into(),
            from: "program".into(),
            to: "wire".into(),
            rate_bps: None,
            qdisc: NO_QDISC.into(),
            entered: packets,
            delivered: self.device.sent,
            delivered_bytes: self.device.sent * bytes,
            queue_dropped: 0,
            lost: 0,
            marked: 0,
            utilization: None,
            sojourn: TimeDistribution::default(),
            series: LinkSeries {
                backlog_packets: vec![0; none],
                backlog_bytes: vec![0; none],
                sojourn_max_s: vec![0.; none],
                delivered_bps: self.sent_bps,
                dropped: self.failed,
            },
            device: Some(self.device),
        };
        RunResult {
            variant: variant.to_owned(),
            set: BTreeMap::new(),
            seed: 0,
            events: 0,
            goodput_bps: flow.goodput_bps,
            flows: vec![flow],
            links: vec![link],
            fairness: None,
            realtime: None,
            sample_s: self.sample_s,
            traces: Vec::new(),
        }
    }
}
