//! The example `send`: frames or datagrams, as fast as the device accepts them.

use std::net::Ipv4Addr;

use towpath_link::RingConfig;
use towpath_qdisc::QueueLimitsConfig;

use super::device_frames::DeviceWriting;
use super::example::{Example, ExampleWork};
use super::frames::{Writing, wire_ns};
use super::load::{Load, SAMPLES_OF_LINE, sample_of};
use super::options::{CardOptions, ETHERNET_OVERHEAD, RealCard, head, pair, variant};
use crate::scenario::DevicePlan;
use crate::units::{Rate, Time, bits_per_second};

/// Method by which `towpath sim send` sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendMode {
    /// Writes frames directly to the device.
    Write,
    /// Sends datagrams on a UDP socket, through the stack and the queueing discipline.
    Sendto,
}

/// Options of `towpath sim send`.
#[derive(Debug, Clone)]
pub struct SendOptions {
    /// Method of sending.
    pub mode: SendMode,
    /// Number of packets to send. With a real device, `duration` limits the run instead.
    pub packets: u64,
    /// Length of a frame in bytes, including its Ethernet header.
    pub size: u64,
    /// Pause of a writer that finds the queue stopped.
    pub poll: Time,
    /// Destination of datagrams.
    pub server: Ipv4Addr,
    /// Rate of the datagrams' payload. None: twice the rate of the simulated device.
    pub data_rate: Option<Rate>,
    /// Duration of a run with a real device.
    pub duration: Time,
    /// Device of the sender.
    pub card: CardOptions,
}

/// Load of `send --mode sendto` as a multiple of the line rate, so that the device is never idle.
const OVERLOAD: u64 = 2;
/// Length of the Ethernet, IPv4 and UDP headers in bytes.
const HEADERS_LEN: u64 = 42;
/// Load during the whole run.
const ALWAYS: Load = Load { from: Time(0), to: Time(u64::MAX), phases: None };

impl SendOptions {
    /// Creates an example that sends small packets as fast as the device accepts them.
    ///
    /// # Errors
    /// Returns a message about the first invalid option.
    pub fn example(&self) -> Result<Example, String> {
        match (self.mode, &self.card.real) {
            (SendMode::Write, None) => self.written(),
            (SendMode::Write, Some(real)) => self.written_to_device(real),
            (SendMode::Sendto, _) => self.through_stack(),
        }
    }

    fn written(&self) -> Result<Example, String> {
        let Self { card, packets, size, poll, .. } = self;
        self.check_poll()?;
        let ring = RingConfig {
            descriptors: card.ring,
            rate: card.rate.0,
            overhead: ETHERNET_OVERHEAD,
            frames: card.frames(),
            delay_ns: card.tx_delay_ns(),
        };
        // Sample more often in a run that is shorter than the interval of lines.
        let all_ns = wire_ns(&DevicePlan { ring, limits: None }, *packets, *size);
        let line_ns = u64::try_from(all_ns).unwrap_or(u64::MAX).min(card.every.0);
        let writings = card.bql.runs().iter().map(|is_on| Writing {
            variant: variant(*is_on),
            device: DevicePlan { ring, limits: is_on.then(QueueLimitsConfig::default) },
            packets: *packets,
            bytes: *size,
            poll_ns: poll.0,
            sample_ns: (line_ns / SAMPLES_OF_LINE).max(1),
        });
        let writings: Vec<Writing> = writings.collect();
        writings.iter().try_for_each(Writing::check)?;
        let about = format!(
            "{packets} frames of {size} bytes are written into the device; a writer that meets a \
             stopped queue looks again after {poll}. {}",
            card.words().replace(&format!("; above it is {}", card.qdisc), "")
        );
        Ok(of_frames(about, ExampleWork::Frames(writings), false))
    }

    fn written_to_device(&self, real: &RealCard) -> Result<Example, String> {
        let Self { card, size, poll, duration, .. } = self;
        self.check_poll()?;
        card.check()?;
        if !(14..=1514).contains(size) {
            return Err(format!("`size` is {size}; expected 14 to 1514 bytes"));
        }
        if !(1..=65_536).contains(&card.ring) {
            return Err(format!("`ring` is {}; expected 1 to 65536 frames", card.ring));
        }
        if real.rate.is_some() {
            return Err("`rate` is that of a simulated link, which frames written into a real \
                        device do not pass; leave it out, or use --mode sendto"
                .into());
        }
        let sample_ns = sample_of(card.every.0, duration.0)?;
        let writings = card.bql.runs().iter().map(|is_on| DeviceWriting {
            variant: variant(*is_on),
            device: real.device.clone(),
            ring: card.ring,
            limits: is_on.then(QueueLimitsConfig::default),
            bytes: *size as usize,
            duration_ns: duration.0,
            poll_ns: poll.0,
            sample_ns,
        });
        let about = format!(
            "Frames of {size} bytes are written into {} for {duration}; a writer that meets a \
             stopped queue looks again after {poll}. The device may hold {} frames.",
            real.device, card.ring
        );
        Ok(of_frames(about, ExampleWork::DeviceFrames(writings.collect()), true))
    }

    fn check_poll(&self) -> Result<(), String> {
        if self.poll.0 == 0 { Err("`poll` is 0; expected more".into()) } else { Ok(()) }
    }

    fn through_stack(&self) -> Result<Example, String> {
        let Self { card, packets, size, server, .. } = self;
        let Some(payload) = size.checked_sub(HEADERS_LEN).filter(|n| (16..=1472).contains(n))
        else {
            return Err(format!(
                "`size` is {size}; expected 58 to 1514 bytes with headers of 42 in front of a \
                 datagram"
            ));
        };
        let overload = u128::from(card.rate.0) * u128::from(OVERLOAD * payload)
            / u128::from(size + ETHERNET_OVERHEAD);
        let rate = self.data_rate.map_or(overload, |rate| rate.0.into());
        // Interval at which datagrams leave the socket.
        let every_ns = (u128::from(payload) * 8_000_000_000 / rate.max(1)).max(1);
        let duration = match &card.real {
            None => u64::try_from(every_ns * u128::from(*packets)).unwrap_or(u64::MAX),
            Some(_) => self.duration.0,
        };
        let duration = Time(duration.max(card.every.0));
        let mut text = head("send", duration, card)?;
        text += &pair([Ipv4Addr::new(10, 0, 1, 1), *server], card);
        text += &format!(
            "\n[[flow]]\nname = \"load\"\nkind = \"cbr\"\nrate = \"{}\"\nsize = {payload}\n\
             from = \"client\"\nto = \"server\"\n{}",
            Rate(u64::try_from(rate.max(1)).unwrap_or(u64::MAX)).exact(),
            card.port()
        );
        text += &card.variants("link");
        let about = match (&card.real, self.data_rate) {
            (None, None) => format!(
                "A UDP socket sends {packets} datagrams, {size} bytes each with headers, \
                 {OVERLOAD} times as fast as the device takes them. {}",
                card.words()
            ),
            _ => format!(
                "A UDP socket sends datagrams of {size} bytes with headers, {} of payload. {}",
                bits_per_second(rate as f64),
                card.words()
            ),
        };
        let example = Example::of_scenario("send", about, text)?;
        Ok(Example { load: Some(ALWAYS), counts_failures: true, ..example })
    }
}

/// Creates an example that writes frames into a device.
fn of_frames(about: String, work: ExampleWork, counts_failures: bool) -> Example {
    Example {
        name: "send",
        scenario: None,
        about,
        work,
        way: 0,
        pings: None,
        load: Some(ALWAYS),
        counts_failures,
    }
}
