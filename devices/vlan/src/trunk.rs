//! A trunk port that carries several VLANs, and the ports of the individual VLANs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::fcntl_dupfd_cloexec;
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};
use towpath_shm::Fd;

use crate::tag::{self, UnfitFrame, Vlan};

/// Maximum number of received frames queued per VLAN. All ports of a stack are polled regularly, so
/// only a port that is not used any more reaches the maximum.
const WAITING_MAX: usize = 1024;

/// Error returned when a port cannot be split into VLANs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VlanError {
    /// The VLAN identifier is 0 or above 4094, which are reserved.
    #[error("{0} is no VLAN: identifiers are 1 to 4094")]
    Id(u16),
    /// The port does not carry Ethernet frames.
    #[error("only Ethernet frames have VLAN tags")]
    NoEthernet,
    /// The list of VLANs contains this VLAN twice.
    #[error("{0:?} is wanted twice")]
    Twice(Vlan),
    /// No file descriptor is available.
    #[error("no descriptor for a VLAN: {0}")]
    Io(#[from] io::Error),
}

towpath_pool::counters! {
    /// Counters of frames dropped by a trunk port (a port with tagged frames).
    #[non_exhaustive]
    pub struct Counters {
        /// Received frames dropped because no port has their VLAN, or because they have two tags or
        /// a tag other than 802.1Q.
        rx_foreign,
        /// Received frames dropped because they end within their VLAN tag.
        rx_malformed,
        /// Received frames dropped because 1024 frames were already queued for their VLAN.
        rx_overflow,
        /// Frames to be sent that are shorter than an Ethernet header.
        tx_malformed,
    }
}

pub(crate) struct Trunk<P> {
    pub port: P,
    vlans: Vec<Vlan>,
    /// Received frames by VLAN that the VLAN's port has not polled yet.
    waiting: Vec<Batch>,
    /// Tagged frames to be sent that the trunk port has not accepted yet.
    refused: Batch,
    /// Buffer for frames received from the trunk port; empty between calls.
    arrived: Batch,
    counters: Counters,
}

/// Port for one VLAN of a trunk.
pub struct VlanPort<P> {
    trunk: Arc<Mutex<Trunk<P>>>,
    place: usize,
    offloads: Offloads,
    /// Duplicate of the trunk port's descriptor, because epoll accepts each descriptor only once.
    wake: Option<Fd>,
}

/// Splits a port by VLAN tags, and returns one port for each of `vlans`, in the same order.
///
/// # Errors
/// Returns [`VlanError::NoEthernet`], [`VlanError::Twice`], or [`VlanError::Io`] if no file
/// descriptor is available for one of the ports.
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

    /// Returns the counters of the trunk, which its ports share.
    pub fn counters(&self) -> Counters {
        self.trunk().counters
    }
}

impl<P: Port> Trunk<P> {
    /// Receives frames from the trunk port, and queues each for the port of its VLAN.
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

    /// Submits the frames that the trunk port did not accept earlier. Returns true if it has
    /// accepted all of them now.
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

    /// Accepts all frames of the batch, or none while the trunk port has not accepted earlier
    /// frames.
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
            // Poll at once: the poll of another VLAN's port has already received frames for this
            // VLAN, so the trunk's descriptor does not become readable.
            false => Some(0),
            true => trunk.port.next_timeout_ns(),
        }
    }

    /// Returns the trunk's number of undelivered bytes for its first port and 0 for the others.
    /// Otherwise a sum over all ports would count them several times.
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
