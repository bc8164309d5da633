//! Runs a gateway on a device, on one thread without an engine.
//!
//! ```text
//!   clients == kernel == device ─ inbound ─► Gateway ── flows ── host sockets
//!                               ◄─ outbound ─
//! ```
//!
//! Cost per turn: the device's system calls, and one `epoll_pwait2` if no packet was moved. Each
//! packet is moved between batches twice, and neither copied nor allocated.

use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use towpath_pool::{Batch, Pool, Port};

use crate::gateway::Gateway;
use crate::limits::{DEVICE_PACKETS_PER_TURN, LINK_PACKETS_MAX};

/// A gateway and the device of its clients, with packets moved between the two.
pub struct Joint<G: Port, P: Port + ?Sized> {
    gateway: G,
    inbound: Batch,
    /// Packets from the gateway that the device has not accepted yet.
    outbound: Batch,
    pool: Pool,
    device: Box<P>,
}

/// Event loop that moves packets between a gateway and a device.
pub struct Runner<P: Port + ?Sized> {
    joint: Joint<Gateway, P>,
    epoll: OwnedFd,
    /// Whether epoll reports when the device accepts packets again.
    awaits_room: bool,
}

/// Reason why [`Runner::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A caller has stopped the loop: `woken` returned `Break`.
    Stopped,
    /// The device was deleted.
    DeviceGone,
}

impl<G: Port, P: Port + ?Sized> Joint<G, P> {
    /// Connects a gateway to a device; its [`Outer`](crate::Outer) must match the device.
    pub fn new(gateway: G, device: Box<P>) -> Self {
        let (inbound, outbound) = Default::default();
        Self { gateway, inbound, outbound, pool: Pool::default(), device }
    }

    /// Returns the gateway.
    pub fn gateway(&mut self) -> &mut G {
        &mut self.gateway
    }

    /// Returns the device.
    pub fn device(&mut self) -> &mut P {
        &mut self.device
    }

    /// Moves packets between the gateway and the device in both directions. Returns the number of
    /// packets.
    pub fn turn(&mut self, now_ns: u64) -> usize {
        let Self { gateway, inbound, outbound, pool, device } = self;
        let mut moved = device.poll(now_ns, pool, inbound, DEVICE_PACKETS_PER_TURN);
        gateway.submit(now_ns, pool, inbound);
        if outbound.len() < LINK_PACKETS_MAX {
            moved += gateway.poll(now_ns, pool, outbound, LINK_PACKETS_MAX - outbound.len());
        }
        device.submit(now_ns, pool, outbound);
        moved
    }

    /// Passes packets of the gateway to the device. Returns false if the device accepts no more
    /// packets.
    fn deliver(&mut self, now_ns: u64) -> bool {
        let Self { gateway, outbound, pool, device, .. } = self;
        while outbound.is_empty() && gateway.poll(now_ns, pool, outbound, LINK_PACKETS_MAX) > 0 {
            device.submit(now_ns, pool, outbound);
        }
        outbound.is_empty()
    }

    /// Returns the time in ns at which the next turn is due even if no packet arrives. A time in
    /// the past means now.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        let device = self.device.next_timeout_ns();
        // While the device is full, ignore the gateway's timers, because the gateway could not
        // send.
        let gateway = match self.outbound.len() < LINK_PACKETS_MAX {
            true => self.gateway.next_timeout_ns(),
            false => None,
        };
        device.into_iter().chain(gateway).min()
    }
}

/// Values of epoll data for the descriptors: the device, the gateway, and from [`FIRST_WAKE`] on
/// the descriptors of the caller.
const DEVICE: u64 = 0;
const GATEWAY: u64 = 1;
const FIRST_WAKE: u64 = 2;
/// Maximum number of events taken per epoll_wait call.
const TOLD_MAX: usize = 8;

impl<P: Port + ?Sized> Runner<P> {
    /// Creates the event loop for a gateway and its device.
    ///
    /// # Errors
    /// Returns an error if no epoll descriptor can be created or the device has no descriptor.
    pub fn new(joint: Joint<Gateway, P>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let device = joint.device.wake_fd().ok_or(io::ErrorKind::Unsupported)?;
        epoll::add(&epoll, device, EventData::new_u64(DEVICE), EventFlags::IN)?;
        let gateway = joint.gateway.wake_fd().ok_or(io::ErrorKind::Unsupported)?;
        epoll::add(&epoll, gateway, EventData::new_u64(GATEWAY), EventFlags::IN)?;
        Ok(Self { joint, epoll, awaits_room: false })
    }

    /// Returns the gateway.
    pub fn gateway(&mut self) -> &mut Gateway {
        self.joint.gateway()
    }

    /// Resets the connections to all clients, because the device will be removed. Reset segments
    /// that the device does not accept at once are lost.
    pub fn reset_clients(&mut self) {
        let now_ns = now_ns();
        loop {
            let Joint { gateway, pool, .. } = &mut self.joint;
            let count = gateway.reset_clients(now_ns, pool, RESETS_AT_ONCE);
            if count == 0 || !self.joint.deliver(now_ns) {
                break;
            }
        }
    }

    /// Runs the event loop until `woken` returns `Break`. `woken` is called with the index of each
    /// descriptor of `wakes` that is readable.
    ///
    /// # Errors
    /// Returns an error if the host cannot wait because of insufficient memory.
    pub fn run(
        &mut self,
        wakes: &[BorrowedFd<'_>],
        mut woken: impl FnMut(usize, &mut Gateway) -> ControlFlow<()>,
    ) -> io::Result<Ended> {
        for (wake, name) in wakes.iter().zip(FIRST_WAKE..) {
            epoll::add(&self.epoll, wake, EventData::new_u64(name), EventFlags::IN)?;
        }
        let mut busy_turns = 0;
        let ended = loop {
            let now_ns = now_ns();
            let moved = self.joint.turn(now_ns);
            if self.joint.device.is_gone() {
                break Ended::DeviceGone;
            }
            // Poll the caller's descriptors from time to time, even if the device always has
            // packets.
            busy_turns = if moved > 0 { busy_turns + 1 } else { 0 };
            if moved > 0 && busy_turns < BUSY_TURNS_MAX {
                continue;
            }
            let wait_ns = if moved > 0 { Some(0) } else { self.wait_ns(now_ns) };
            busy_turns = 0;
            if let ControlFlow::Break(()) = self.wait(wait_ns, &mut woken)? {
                break Ended::Stopped;
            }
        };
        for wake in wakes {
            epoll::delete(&self.epoll, wake)?;
        }
        Ok(ended)
    }

    fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        self.joint.next_timeout_ns().map(|due| due.saturating_sub(now_ns))
    }

    /// Sleeps until a descriptor is ready or `wait_ns` has passed.
    fn wait(
        &mut self,
        wait_ns: Option<u64>,
        woken: &mut impl FnMut(usize, &mut Gateway) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        self.await_room()?;
        let timeout = wait_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let mut list = [const { MaybeUninit::<Event>::uninit() }; TOLD_MAX];
        let told = match epoll::wait(&self.epoll, &mut list[..], timeout.as_ref()) {
            Ok((told, _)) => &*told,
            // Nothing was checked, so do not tell the ports that they are not ready.
            Err(Errno::INTR) => return Ok(ControlFlow::Continue(())),
            Err(error) => return Err(error.into()),
        };
        let is_told = |name| told.iter().any(|event| event.data.u64() == name);
        self.joint.device.looked(is_told(DEVICE));
        self.joint.gateway.looked(is_told(GATEWAY));
        for event in told {
            if let Some(n) = event.data.u64().checked_sub(FIRST_WAKE)
                && woken(n as usize, &mut self.joint.gateway).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Adds or removes the interest in writability of the device, depending on whether the device
    /// is full.
    fn await_room(&mut self) -> io::Result<()> {
        let blocked = self.joint.device.blocked();
        if blocked == std::mem::replace(&mut self.awaits_room, blocked) {
            return Ok(());
        }
        let Some(device) = self.joint.device.wake_fd() else { return Ok(()) };
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, blocked);
        Ok(epoll::modify(&self.epoll, device, EventData::new_u64(DEVICE), flags)?)
    }
}

/// Number of connections that are reset before the segments are passed to the device. Limited so
/// that the segments fit into the gateway's queues.
const RESETS_AT_ONCE: usize = LINK_PACKETS_MAX / 4;

/// Maximum number of consecutive turns with packets before the caller's descriptors are polled.
const BUSY_TURNS_MAX: u32 = 64;

/// Returns the time of CLOCK_MONOTONIC in ns.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
