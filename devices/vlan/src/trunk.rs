//! The port that carries several VLANs, and the ports that share it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::fcntl_dupfd_cloexec;
use towpath_pool::{Batch, LinkType, Offloads, Pool, Port, PortCounters};
use towpath_shm::Fd;

use crate::tag::{self, UnfitFrame, Vlan};

/// Frames of a VLAN that wait for its port to ask. Ports of one stack ask in each turn, so that
/// more wait for a port alone that nobody polls any more.
const WAITING_MAX: usize = 1024;

/// Why a port cannot be split.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VlanError {
    /// A tag has twelve bits for the identifier, of which two values mean something else.
    #[error("{0} is no VLAN: identifiers are 1 to 4094")]
    Id(u16),
    /// Tags are a part of Ethernet's header.
    #[error("only Ethernet frames have VLAN tags")]
    NoEthernet,
    /// A frame cannot go to two ports.
    #[error("{0:?} is wanted twice")]
    Twice(Vlan),
    /// The process has no descriptors left.
    #[error("no descriptor for a VLAN: {0}")]
    Io(#[from] io::Error),
}

towpath_pool::counters! {
    /// Frames that a trunk dropped.
    #[non_exhaustive]
    pub struct Counters {
        /// Received frames of a VLAN that no port has, with two tags, or with a tag that is no
        /// 802.1Q one.
        rx_foreign,
        /// Received frames that end in their tag.
        rx_malformed,
        /// Received frames beyond the 1024 that may wait for a port.
        rx_overflow,
        /// Frames to be sent that are no Ethernet frames.
        tx_malformed,
    }
}

pub(crate) struct Trunk<P> {
    pub port: P,
    vlans: Vec<Vlan>,
    /// Received frames of each VLAN.
    waiting: Vec<Batch>,
    /// Tagged frames that the port has not taken.
    refused: Batch,
    /// Frames on their way between the port and `waiting`; empty between calls.
    arrived: Batch,
    counters: Counters,
}

/// The part of a trunk that is one VLAN.
pub struct VlanPort<P> {
    trunk: Arc<Mutex<Trunk<P>>>,
    place: usize,
    offloads: Offloads,
    /// A duplicate of the port's descriptor: an epoll instance takes each number once.
    wake: Option<Fd>,
}

/// Splits a port by the tags of its frames: one port for each of `vlans`, in their order.
///
/// # Errors
/// [`VlanError::NoEthernet`] and [`VlanError::Twice`]; [`VlanError::Io`] when the process has no
/// descriptors left, of which each port takes one.
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

    /// Counters of the whole trunk, which all of its ports show.
    pub fn counters(&self) -> Counters {
        self.trunk().counters
    }
}

impl<P: Port> Trunk<P> {
    /// Takes frames from the port, and puts each to those of its VLAN.
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

    /// Offers the port what it has refused. True: nothing is left.
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

    /// Takes all of a batch, or nothing while the port has not taken what came before.
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
            // Another port of the trunk took them from the device, whose descriptor wakes no more.
            false => Some(0),
            true => trunk.port.next_timeout_ns(),
        }
    }

    /// Bytes of the whole trunk, told by its first port alone: an owner adds up its ports' answers.
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
