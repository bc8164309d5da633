//! Callbacks for events of the network layer, set by the owner of the engine.

use std::sync::Arc;

use towpath_stack::IfaceId;
use towpath_stack::net::{Conflict, Logged, Net};
use towpath_tcp::Instant;

pub(crate) type DropTrace = Arc<dyn Fn(DroppedPacket<'_>) + Send + Sync>;
pub(crate) type OnConflict = Arc<dyn Fn(&Conflict) + Send + Sync>;
pub(crate) type OnLogged = Arc<dyn Fn(&Logged) + Send + Sync>;
pub(crate) type OnDeviceGone = Arc<dyn Fn(IfaceId) + Send + Sync>;

/// A packet that the stack dropped, as passed to a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedPacket<'a> {
    /// Time at which the packet was dropped, in nanoseconds on the engine's clock.
    pub now_ns: u64,
    /// Time at which the packet arrived, in nanoseconds on the engine's clock. 0 if it did not
    /// arrive from a device.
    pub arrival_ns: u64,
    /// Index of the packet's interface. 0 is loopback.
    pub interface: u16,
    /// Whether the packet was to be sent. False for a received packet.
    pub outbound: bool,
    /// Reason why the packet was dropped, as returned by [`towpath_stack::DropReason::as_str`].
    pub reason: &'static str,
    /// Bytes of the packet, from its link header on, or from its IP header on if there is no link
    /// header.
    pub bytes: &'a [u8],
}

/// Maximum number of iterations without a sleep after which logged packets are reported. A report
/// costs more than a packet, so a flood of logged packets must not be reported one by one. Until
/// the report, the stack keeps some of these packets and counts the others.
const BUSY_TURNS_MAX: u32 = 64;

/// Callbacks for events of the network layer. `None` means that there is no callback.
#[derive(Default)]
pub(crate) struct Observers {
    /// Called for each packet that the stack drops.
    pub drop_trace: Option<DropTrace>,
    /// Called when another host on the link uses an address of this host.
    pub on_conflict: Option<OnConflict>,
    /// Called for packets that a filter rule logs.
    pub on_logged: Option<OnLogged>,
    /// Called when the device of an interface was removed.
    pub on_device_gone: Option<OnDeviceGone>,
    /// Number of consecutive iterations of the event loop without a sleep.
    busy_turns: u32,
}

impl Observers {
    /// Passes the events of an iteration of the event loop to the callbacks. `more` is true if
    /// another iteration follows without a sleep.
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

    /// Reports to the callback that the device of an interface was removed.
    pub fn device_gone(&self, iface: IfaceId) {
        if let Some(tell) = &self.on_device_gone {
            tell(iface);
        }
    }
}
