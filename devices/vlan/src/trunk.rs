//! Trunk port that carries several VLANs, and its per-VLAN ports.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::fcntl_dupfd_cloexec;
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};
use towpath_shm::Fd;

use crate::tag::{self, UnfitFrame, Vlan};

/// Maximum number of frames queued per VLAN. Ports of one stack are polled in each turn, so only an
/// abandoned port reaches it.
const WAITING_MAX: usize = 1024;

/// Error of splitting a port into VLANs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VlanError {
    /// Invalid VLAN identifier: 0 and 4095 are reserved.
    #[error("{0} is no VLAN: identifiers are 1 to 4094")]
    Id(u16),
    /// The port is not an Ethernet port.
    #[error("only Ethernet frames have VLAN tags")]
    NoEthernet,
    /// The same VLAN is given twice.
    #[error("{0:?} is wanted twice")]
    Twice(Vlan),
    /// No descriptor is available.
    #[error("no descriptor for a VLAN: {0}")]
    Io(#[from] io::Error),
}

towpath_pool::counters! {
    /// Frames dropped by a trunk.
    #[non_exhaustive]
    pub struct Counters {
        /// Received frames of another VLAN, with two tags, or with a tag other than 802.1Q.
        rx_foreign,
        /// Received frames truncated within their tag.
        rx_malformed,
        /// Received frames beyond the maximum of 1024 queued per port.
        rx_overflow,
        /// Frames to send that are too short for Ethernet.
        tx_malformed,
    }
}

pub(crate) struct Trunk<P> {
    pub port: P,
    vlans: Vec<Vlan>,
    /// Received frames by VLAN.
    waiting: Vec<Batch>,
    /// Tagged frames that the port has not accepted yet.
    refused: Batch,
    /// Buffer for received frames; empty between calls.
    arrived: Batch,
    counters: Counters,
}

/// Port for one VLAN of a trunk.
pub struct VlanPort<P> {
    trunk: Arc<Mutex<Trunk<P>>>,
    place: usize,
    offloads: Offloads,
    /// Duplicate of the port's descriptor, because an epoll instance accepts each descriptor only
    /// once.
    wake: Option<Fd>,
}

/// Splits a port by VLAN tags and returns a port for each of `vlans`, in order.
///
/// # Errors
/// [`VlanError::NoEthernet`] and [`VlanError::Twice`]; [`VlanError::Io`] if no descriptor is
/// available, of which each port needs one.
pub fn split<P: Port>(port: P, vlans: &[Vlan]) -> Result<Vec<VlanPort<P>>, VlanError> {
    if port.link_type() != LinkType::Ethernet {
        return Err(VlanError::NoEthernet);
    }
    for (place, vlan) in vlans.iter().enumerate() {
        if vlans[..place].contains(vlan) {
            return Err(VlanError::Twice(*vlan));
        }
    }
    let offloads = port.offloads();
    let wakes: Result<Vec<_>, _> = vlans
        .iter()
        .map(|_| port.wake_fd().map(|fd| fcntl_dupfd_cloexec(fd, 0)).transpose())
        .collect();
    let wakes = wakes.map_err(io::Error::from)?;
    let trunk = Arc::new(Mutex::new(Trunk {
        port,
        vlans: vlans.to_vec(),
        waiting: vlans.iter().map(|_| Batch::new()).collect(),
        refused: Batch::new(),
        arrived: Batch::new(),
        counters: Counters::default(),
    }));
    let ports = (0..).zip(wakes).map(|(place, wake)| {
        let trunk = Arc::clone(&trunk);
        VlanPort { trunk, place, offloads, wake: wake.map(Fd::from) }
    });
    Ok(ports.collect())
}

impl<P> VlanPort<P> {
    pub(crate) fn trunk(&self) -> MutexGuard<'_, Trunk<P>> {
        self.trunk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters of the whole trunk.
    pub fn counters(&self) -> Counters {
        self.trunk().counters
    }
}

impl<P: Port> Trunk<P> {
    /// Receives frames and queues each for the port of its VLAN.
    fn receive(&mut self, now_ns: u64, pool: &mut Pool, max: usize) {
        self.port.poll(now_ns, pool, &mut self.arrived, max);
        while let Some(mut frame) = self.arrived.pop_front() {
            let dropped = match tag::strip(&mut frame) {
                Err(UnfitFrame::Malformed) => &mut self.counters.rx_malformed,
                Err(UnfitFrame::Foreign) => &mut self.counters.rx_foreign,
                Ok(vlan) => match self.vlans.iter().position(|known| *known == vlan) {
                    None => &mut self.counters.rx_foreign,
                    Some(place) if self.waiting[place].len() < WAITING_MAX => {
                        self.waiting[place].push_back(frame);
                        continue;
                    }
                    Some(_) => &mut self.counters.rx_overflow,
                },
            };
            *dropped += 1;
            pool.give(frame);
        }
    }

    /// Submits the frames that the port has refused before. Returns true if no such frame is left.
    fn flush(&mut self, now_ns: u64, pool: &mut Pool) -> bool {
        if !self.refused.is_empty() {
            self.port.submit(now_ns, pool, &mut self.refused);
        }
        self.refused.is_empty()
    }
}

impl<P: Port> Port for VlanPort<P> {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut trunk = self.trunk();
        trunk.flush(now_ns, pool);
        if trunk.waiting[self.place].is_empty() {
            trunk.receive(now_ns, pool, max);
        }
        let waiting = &mut trunk.waiting[self.place];
        let count = waiting.len().min(max);
        out.extend(waiting.drain(..count));
        count
    }

    /// Accepts the whole batch, or nothing while the port has not accepted earlier frames.
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut trunk = self.trunk();
        if !trunk.flush(now_ns, pool) {
            return 0;
        }
        let (vlan, count) = (trunk.vlans[self.place], batch.len());
        for mut frame in batch.drain(..) {
            match tag::insert(&mut frame, vlan) {
                Some(()) => trunk.refused.push_back(frame),
                None => {
                    trunk.counters.tx_malformed += 1;
                    pool.give(frame);
                }
            }
        }
        trunk.flush(now_ns, pool);
        count
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    fn looked(&mut self, ready: bool) {
        self.trunk().port.looked(ready);
    }

    fn blocked(&self) -> bool {
        let trunk = self.trunk();
        !trunk.refused.is_empty() && trunk.port.blocked()
    }

    fn is_gone(&self) -> bool {
        let trunk = self.trunk();
        trunk.port.is_gone() && trunk.waiting[self.place].is_empty()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let trunk = self.trunk();
        match trunk.waiting[self.place].is_empty() {
            // Another port of the trunk received these frames, so the device's descriptor does not
            // signal them.
            false => Some(0),
            true => trunk.port.next_timeout_ns(),
        }
    }

    /// Returns 0 except for the first port of the trunk, because owners sum their ports.
    fn undelivered(&self) -> u64 {
        if self.place == 0 { self.trunk().port.undelivered() } else { 0 }
    }

    fn undelivered_of_ended(&self) -> u64 {
        if self.place == 0 { self.trunk().port.undelivered_of_ended() } else { 0 }
    }

    fn counters(&self) -> PortCounters {
        vec![("vlan", self.counters().iter().collect())]
    }
}
