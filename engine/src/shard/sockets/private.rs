//! Sockets of services: code that runs inside the engine. Buffers of such sockets are private
//! memory, to which programs have no access.
//!
//! Numbers of such sockets are above the slot numbers of programs' sockets. Each service has a
//! range of numbers.

use std::fmt;
use std::net::SocketAddr;

use towpath_direct::{Direct, DirectCalls, PrivateHost, PrivateSockets, SetUpError};
use towpath_ring::{HeapRecv, HeapSend, Payload, SocketRecv, SocketSend};
use towpath_stack::{ChildElsewhere, DatagramMeta, Host, SocketEvent, SocketId};
use towpath_tcp::Instant;

use crate::service::{Service, ServiceError};
use crate::shard::net::Net;
use crate::shard::net::sources::ShardSource;
use crate::shard::sockets::Sockets;

/// Lowest number of a service's socket in the stack. Numbers of programs' sockets, their slots, are
/// lower.
const FIRST_USER: u32 = 1 << 31;
/// Number of low bits of a socket's number that contain the socket's index within its service. 2^24
/// is more than the maximum number of sockets of a stack.
const INDEX_BITS: u32 = 24;
/// Maximum number of services of an engine: bits 24 to 30 of a socket's number contain the index of
/// the service.
const SERVICES_MAX: usize = 1 << (31 - INDEX_BITS);
/// Maximum number of events that a service handles in one iteration of the event loop. Later events
/// wait for the next iteration, so that packets are not delayed.
const EVENTS_A_TURN: usize = 256;

/// A socket of a service: the index of the service, and the index of the socket among those of the
/// service.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrivateIndex {
    service: usize,
    index: u32,
}

/// Returns the service and the index to which a socket's number refers. `None` if the number is the
/// slot of a program's socket.
#[inline]
pub(super) fn private_index(user: u32) -> Option<PrivateIndex> {
    let number = user.checked_sub(FIRST_USER)?;
    let index = number & ((1 << INDEX_BITS) - 1);
    Some(PrivateIndex { service: (number >> INDEX_BITS) as usize, index })
}

/// The services of a shard, with their sockets.
#[derive(Default)]
pub(crate) struct PrivateTables {
    services: Vec<RunningService>,
}

struct RunningService {
    direct: Direct,
    service: Box<dyn Service>,
}

impl fmt::Debug for PrivateTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.services.iter().map(|running| &running.direct)).finish()
    }
}

impl PrivateTables {
    /// Adds a service to the shard, and starts it.
    pub(crate) fn add(
        &mut self,
        net: &mut Net,
        now: Instant,
        mut service: Box<dyn Service>,
    ) -> Result<(), ServiceError> {
        let number = self.services.len();
        if number >= SERVICES_MAX {
            return Err(SetUpError::TooMany(SERVICES_MAX).into());
        }
        let first_user = FIRST_USER + ((number as u32) << INDEX_BITS);
        let mut direct = Direct::numbered(service.limits(), first_user);
        let started = service.start(&mut calls(net, &mut direct, now)).map_err(Into::into);
        let started = started.and_then(|()| match service.notification() {
            Some(bell) => {
                net.poller.add(bell, ShardSource::Mail).map_err(ServiceError::Notification)
            }
            None => Ok(()),
        });
        // Add the service even if it fails to start. Sockets that it has already opened remain
        // until the engine ends, and no other service may use their numbers.
        self.services.push(RunningService { direct, service });
        started
    }

    /// Lets services handle their events, timers and messages. Returns whether any service had one.
    pub(crate) fn serve(&mut self, net: &mut Net, now: Instant) -> bool {
        let mut served = false;
        for RunningService { direct, service } in &mut self.services {
            for _ in 0..EVENTS_A_TURN {
                let Some(event) = direct.poll_event() else { break };
                service.on_event(event, &mut calls(net, direct, now));
                served = true;
            }
            served |= service.on_turn(now, &mut calls(net, direct, now));
        }
        served
    }

    /// Returns the time of the earliest timer of a service. `None`: no timer is running.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.services.iter().filter_map(|running| running.service.next_timeout()).min()
    }

    pub(super) fn has_events(&self) -> bool {
        self.services.iter().any(|running| running.direct.has_events())
    }

    fn at(&mut self, at: PrivateIndex) -> Option<&mut Direct> {
        self.services.get_mut(at.service).map(|running| &mut running.direct)
    }

    pub(super) fn recv_room(&self, listener: PrivateIndex) -> u32 {
        let running = self.services.get(listener.service);
        running.map_or(0, |running| running.direct.recv_room(listener.index))
    }

    pub(super) fn accept(
        &mut self,
        listener: PrivateIndex,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, SocketRecv, SocketSend)> {
        let direct = self.at(listener)?;
        let (index, recv, send) = direct.accept(listener.index, child, local, remote)?;
        let (recv, send) = Sockets::buffers(recv, send);
        Some((FIRST_USER + ((listener.service as u32) << INDEX_BITS) + index, recv, send))
    }

    /// Returns the size in bytes of the receive buffer for connections to a service's listener in
    /// another shard.
    pub(super) fn default_recv_room(&self, listener: PrivateIndex) -> u32 {
        let running = self.services.get(listener.service);
        running.map_or(0, |running| running.direct.default_buffers().recv)
    }

    /// Creates a socket for a connection that another shard has accepted on a service's listener.
    /// No accept queue is needed, because the instance of the service on this shard handles the
    /// connection.
    pub(super) fn accept_elsewhere(
        &mut self,
        listener: PrivateIndex,
        child: SocketId,
    ) -> Option<ChildElsewhere<SocketRecv, SocketSend>> {
        let direct = self.at(listener)?;
        let (index, recv, send) = direct.accept_elsewhere(child)?;
        let (recv, send) = Sockets::buffers(recv, send);
        let user = FIRST_USER + ((listener.service as u32) << INDEX_BITS) + index;
        Some(ChildElsewhere { user, tag: 0, recv, send, waits: true })
    }

    pub(super) fn datagram(
        &mut self,
        user: PrivateIndex,
        meta: &DatagramMeta,
        payload: &Payload<'_>,
    ) -> bool {
        self.at(user).is_some_and(|direct| direct.datagram(user.index, meta, payload))
    }

    pub(super) fn event(&mut self, user: PrivateIndex, event: SocketEvent) {
        if let Some(direct) = self.at(user) {
            direct.event(user.index, event);
        }
    }
}

/// Returns the interface with which a service uses its sockets.
fn calls<'a>(
    net: &'a mut Net,
    direct: &'a mut Direct,
    now: Instant,
) -> impl PrivateSockets + use<'a> {
    DirectCalls { stack: &mut net.stack, direct, pool: &mut net.pool, now }
}

impl PrivateHost for Sockets {
    fn buffers(recv: HeapRecv, send: HeapSend) -> (SocketRecv, SocketSend) {
        (SocketRecv::Heap(Box::new(recv)), SocketSend::Heap(Box::new(send)))
    }

    fn heap_recv(recv: &mut SocketRecv) -> Option<&mut HeapRecv> {
        recv.heap()
    }

    fn heap_send(send: &mut SocketSend) -> Option<&mut HeapSend> {
        send.heap()
    }
}
