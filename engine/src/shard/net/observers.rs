//! Listeners of the engine's owner for events of the net.

use std::sync::Arc;

use towpath_stack::IfaceId;
use towpath_stack::net::{Conflict, Logged, Net};
use towpath_tcp::Instant;

pub(crate) type DropTrace = Arc<dyn Fn(DroppedPacket<'_>) + Send + Sync>;
pub(crate) type OnConflict = Arc<dyn Fn(&Conflict) + Send + Sync>;
pub(crate) type OnLogged = Arc<dyn Fn(&Logged) + Send + Sync>;
pub(crate) type OnDeviceGone = Arc<dyn Fn(IfaceId) + Send + Sync>;

/// A packet that the stack dropped, for a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedPacket<'a> {
    /// Time of the drop, in ns on the engine's clock.
    pub now_ns: u64,
    /// Time of arrival on the same clock; 0 if the packet did not arrive.
    pub arrival_ns: u64,
    /// 0: loopback; port `i` drives interface `i + 1`.
    pub interface: u16,
    /// The packet was to be sent; otherwise it was received.
    pub outbound: bool,
    /// The name of its counter, [`towpath_stack::DropReason::as_str`].
    pub reason: &'static str,
    /// From the link header on, or from the first header that it had.
    pub bytes: &'a [u8],
}

/// Turns in a row with further work after which logged packets are reported. A report costs more
/// than a packet, so a flood of packets that a rule logs must not be reported packet by packet. The
/// stack keeps some of them, and counts the others.
const BUSY_TURNS_MAX: u32 = 64;

/// Listeners for events of the net; `None`: the event is not reported.
#[derive(Default)]
pub(crate) struct Observers {
    /// Dropped packets.
    pub drop_trace: Option<DropTrace>,
    /// Addresses of this host that another host has as well.
    pub on_conflict: Option<OnConflict>,
    /// Packets that a rule logs.
    pub on_logged: Option<OnLogged>,
    /// Interfaces whose device was removed.
    pub on_device_gone: Option<OnDeviceGone>,
    /// Turns in a row with further work.
    busy_turns: u32,
}

impl Observers {
    /// Passes the events of a turn on. `more`: another turn follows at once.
    pub fn notify(&mut self, net: &mut Net, now: Instant, more: bool) {
        if let Some(trace) = &self.drop_trace {
            while let Some(dropped) = net.take_dropped() {
                trace(DroppedPacket {
                    now_ns: now.0,
                    arrival_ns: dropped.arrival_ns,
                    interface: dropped.iface.0,
                    outbound: dropped.reason.is_outbound(),
                    reason: dropped.reason.as_str(),
                    bytes: &dropped.bytes,
                });
            }
        }
        if let Some(tell) = &self.on_conflict {
            while let Some(conflict) = net.take_conflict() {
                tell(&conflict);
            }
        }
        self.busy_turns = if more { (self.busy_turns + 1) % BUSY_TURNS_MAX } else { 0 };
        if let Some(tell) = self.on_logged.as_ref().filter(|_| self.busy_turns == 0) {
            while let Some(logged) = net.take_logged() {
                tell(&logged);
            }
        }
    }

    /// Reports that the device of the port at `place` was removed.
    pub fn device_gone(&self, place: u32) {
        if let (Some(tell), Ok(iface)) = (&self.on_device_gone, u16::try_from(place + 1)) {
            tell(IfaceId(iface));
        }
    }
}
