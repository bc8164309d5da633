//! Sources of packets: TUN and TAP devices, channels, and streams of the program.

mod channels;
mod device;
mod packets;
mod staged;
mod stream_sink;

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};

pub(super) use channels::MpscLink;
pub(super) use device::DeviceSource;
pub(super) use packets::{PacketLink, PacketSource};
pub(super) use staged::{StagedSource, TURN_PACKETS};
pub(super) use stream_sink::StreamSinkLink;

/// Port of an interceptor's stack, through which it receives and sends packets.
pub(super) enum SourcePort {
    /// A TUN or TAP device.
    Device(Box<DeviceSource>),
    /// A pair of channels, or a stream and a sink.
    Packets(Box<PacketSource>),
}

impl SourcePort {
    /// Sets the task that is woken when the source has packets, or accepts packets again.
    pub(super) fn set_waker(&mut self, cx: &Context<'_>) {
        if let Self::Packets(packets) = self {
            packets.set_waker(cx);
        }
    }

    /// Returns the final result of the source if it has ended.
    pub(super) fn take_end(&mut self) -> Option<io::Result<()>> {
        match self {
            Self::Device(device) => device.is_gone().then_some(Ok(())),
            Self::Packets(packets) => packets.take_end(),
        }
    }

    /// Returns ready if packets can be received, or sent again after the source was blocked.
    /// Otherwise the task is woken when this becomes true.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Device(device) => device.poll_ready(cx),
            Self::Packets(packets) => packets.poll_ready(),
        }
    }
}

/// Calls the method of the device or packet source that the enum contains.
macro_rules! of_source {
    ($self:ident, $source:ident => $call:expr) => {
        match $self {
            Self::Device($source) => $call,
            Self::Packets($source) => $call,
        }
    };
}

impl Port for SourcePort {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        of_source!(self, source => source.poll(now_ns, pool, out, max))
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        of_source!(self, source => source.submit(now_ns, pool, batch))
    }

    fn offloads(&self) -> Offloads {
        of_source!(self, source => source.offloads())
    }

    fn link_type(&self) -> LinkType {
        of_source!(self, source => source.link_type())
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        of_source!(self, source => source.counters())
    }
}
