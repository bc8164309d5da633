//! The gateways of one host: each shard of the program's stack has one, and what a shard sends goes
//! into its own.
//!
//! So each gateway has the flows of its shard, and nobody else sees them. Some things they have to
//! agree on:
//!
//! - The program's answers leave from the shard that owns the flow, so a client's connection must
//!   be with the gateway of that shard. A single gateway listens, and hands each connection to the
//!   gateway of the owner, in an order that the program sees (`order`).
//! - The datagrams of such clients come in at one gateway as well, and the program's answers leave
//!   from the shard of its socket. Its gateway learns of the client when the first answer comes.
//! - A UDP port of the program has one port of the host, whichever shards its sockets are in.
//! - A notice for the user is given once.
//!
//! Locks are taken where flows begin and end. No packet of a flow takes one.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use towpath_shm::Fd;
use towpath_stack::Owners;

use crate::budget::{FlowBudget, Share};
use crate::config::Presented;
use crate::limits::HANDED_MAX;
use crate::mapping::Mappings;
use crate::order::FlightGuard;

/// A gateway's place among its siblings.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) siblings: Arc<Siblings>,
    number: usize,
    /// None: there are no others.
    inbox: Option<Receiver<Accepted>>,
    /// How many clients that anybody can have this one has given to each.
    given: Vec<u64>,
    /// Port chosen last.
    port: u16,
}

/// State that all gateways of a host share.
#[derive(Debug)]
pub(crate) struct Siblings {
    owners: Owners,
    pub(crate) budget: Arc<FlowBudget>,
    /// Inboxes of the gateways, empty when there is but one.
    inboxes: Vec<SiblingInbox>,
    mappings: Mutex<Mappings>,
    clients: Mutex<HashMap<SiblingEnds, Arc<Client>>>,
    told: Mutex<HashSet<Topic>>,
}

#[derive(Debug)]
struct SiblingInbox {
    give: SyncSender<Accepted>,
    /// Rung for each connection that is given, and when one need not wait any more.
    bell: Arc<Fd>,
}

/// A connection of a client of a published port.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) host: Fd,
    pub(crate) client: IpAddr,
    pub(crate) presented: [Option<Presented>; 2],
    /// Right to the descriptor of `host`.
    pub(crate) share: Share,
    /// Other connections wait until this one is with the program.
    pub(crate) flight: Option<FlightGuard>,
}

/// The program's end and the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SiblingEnds {
    pub(crate) program: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// A client of a published UDP port.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) listener: u32,
    pub(crate) address: SocketAddr,
    /// The address of the host that it wrote to last.
    host: Mutex<Option<IpAddr>>,
    /// How often that has changed: who has seen as many changes need not look.
    moves: AtomicU32,
    /// The program has answered, by way of another gateway than the one where the client comes in.
    answered: AtomicBool,
}

/// A gateway's knowledge of a client that others may know, too.
#[derive(Debug)]
pub(crate) struct KnownClient {
    pub(crate) client: Arc<Client>,
    /// Changes of its `host` that were seen.
    seen: u32,
}

/// Topic of a notice that is given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Ping,
    /// Clients of published ports are refused for want of flows.
    ClientsRefused,
    /// Connections of the program wait for want of flows.
    ConnectionsWait,
    /// A client has as many TCP flows as one may have.
    ClientFull,
    /// The gateway's own connections come back to it.
    Loop,
    /// No program takes connections to this port of the host.
    Tcp(u16),
    /// No program takes datagrams to this listener.
    Udp(u32),
}

impl Place {
    /// Place of a gateway without others.
    pub(crate) fn alone(budget: Arc<FlowBudget>) -> Self {
        let siblings = Siblings::new(Owners::new(&[0; 32], 1), budget, Vec::new());
        Self { siblings: Arc::new(siblings), number: 0, inbox: None, given: vec![0], port: 0 }
    }

    /// A place for the gateway of each shard.
    ///
    /// # Errors
    /// When the host gives no descriptor.
    pub(crate) fn all(owners: Owners, budget: Arc<FlowBudget>) -> io::Result<Vec<Self>> {
        if owners.count() == 1 {
            return Ok(vec![Self::alone(budget)]);
        }
        let (mut inboxes, mut receivers) = (Vec::new(), Vec::new());
        let count = owners.count();
        for _ in 0..count {
            let (give, inbox) = sync_channel(HANDED_MAX);
            let bell = Fd::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            inboxes.push(SiblingInbox { give, bell: Arc::new(bell) });
            receivers.push(inbox);
        }
        let siblings = Arc::new(Siblings::new(owners, budget, inboxes));
        let place = |(number, inbox)| {
            let siblings = Arc::clone(&siblings);
            Self { siblings, number, inbox: Some(inbox), given: vec![0; count], port: 0 }
        };
        Ok(receivers.into_iter().enumerate().map(place).collect())
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.inbox.is_none()
    }

    /// How many gateways there are.
    pub(crate) fn count(&self) -> usize {
        self.siblings.owners.count()
    }

    /// Number of this gateway.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Whether this gateway takes what comes in on a published port.
    pub(crate) fn listens(&self, listener: usize) -> bool {
        listener % self.count() == self.number
    }

    /// A descriptor that is readable when another gateway has handed something over, or a
    /// connection need not wait any more.
    pub(crate) fn notifier(&self) -> Option<&Arc<Fd>> {
        self.siblings.inboxes.get(self.number).map(|inbox| &inbox.bell)
    }

    /// The gateway that owns a connection. `None`: a client that is not shown at its own port can
    /// be any gateway's, which chooses a port.
    pub(crate) fn owner(&self, accepted: &Accepted) -> Option<usize> {
        let first = accepted.presented[0].filter(|first| first.client.port() != 0)?;
        Some(self.siblings.owners.owner(first.client, first.program).index())
    }

    /// The gateway that has been given the fewest clients that any can have.
    pub(crate) fn least_given(&self) -> usize {
        let least = self.given.iter().enumerate().min_by_key(|(_, given)| **given);
        least.map_or(self.number, |(owner, _)| owner)
    }

    /// A gateway is given one of those.
    pub(crate) fn note_given(&mut self, owner: usize) {
        if let Some(given) = self.given.get_mut(owner) {
            *given += 1;
        }
    }

    /// Hands a connection to another gateway. The connection comes back if that one has enough to
    /// do.
    pub(crate) fn hand_over(&self, to: usize, accepted: Accepted) -> Option<Accepted> {
        let Some(inbox) = self.siblings.inboxes.get(to) else { return Some(accepted) };
        match inbox.give.try_send(accepted) {
            Ok(()) => {
                // A write fails only when the counter is full, and then the bell is readable.
                let _ = rustix::io::write(inbox.bell.as_fd(), &1u64.to_ne_bytes());
                None
            }
            Err(TrySendError::Full(accepted)) => Some(accepted),
            // The other gateway has ended, and the run with it: the client's connection is reset.
            Err(TrySendError::Disconnected(_)) => None,
        }
    }

    /// A connection that was handed over.
    pub(crate) fn take(&self) -> Option<Accepted> {
        self.inbox.as_ref()?.try_recv().ok()
    }

    /// The next port of `range` that makes this gateway's shard the owner of a flow from `ip` to
    /// the program. At most `tries` ports are tried, which the caller has left of
    /// [`PORTS_TRIED_MAX`](crate::limits::PORTS_TRIED_MAX).
    pub(crate) fn next_port(
        &mut self,
        ip: IpAddr,
        program: SocketAddr,
        range: &RangeInclusive<u16>,
        tries: &mut usize,
    ) -> Option<SocketAddr> {
        while let Some(left) = tries.checked_sub(1) {
            *tries = left;
            let next = self.port.checked_add(1).filter(|port| range.contains(port));
            self.port = next.unwrap_or(*range.start());
            let client = SocketAddr::new(ip, self.port);
            if self.siblings.owners.owner(client, program).index() == self.number {
                return Some(client);
            }
        }
        None
    }
}

impl Siblings {
    fn new(owners: Owners, budget: Arc<FlowBudget>, inboxes: Vec<SiblingInbox>) -> Self {
        let (mappings, clients, told) = Default::default();
        Self { owners, budget, inboxes, mappings, clients, told }
    }

    /// Ports of the host for the program's UDP ports.
    pub(crate) fn mappings(&self) -> MutexGuard<'_, Mappings> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a topic's notice has not been given yet. The topic counts as told from now on.
    pub(crate) fn is_first(&self, topic: Topic) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(topic)
    }

    /// A client has a flow between `ends`, and the other gateways are to know. `None`: there are no
    /// others.
    ///
    /// # Errors
    /// Another client has it.
    pub(crate) fn register(
        &self,
        ends: SiblingEnds,
        (listener, address): (u32, SocketAddr),
        host: Option<IpAddr>,
    ) -> Result<Option<KnownClient>, Taken> {
        if self.inboxes.is_empty() {
            return Ok(None);
        }
        let new = || Client {
            listener,
            address,
            host: Mutex::new(host),
            moves: AtomicU32::new(0),
            answered: AtomicBool::new(false),
        };
        let mut clients = self.clients();
        // Another gateway may still answer to it, while this one has forgotten it.
        let client = clients.entry(ends).or_insert_with(|| Arc::new(new()));
        if (client.listener, client.address) != (listener, address) {
            return Err(Taken);
        }
        let known = KnownClient { client: Arc::clone(client), seen: 0 };
        drop(clients);
        known.client.moved_to(host);
        Ok(Some(known))
    }

    /// The client whose flow is between `ends`, if another gateway knows of one.
    pub(crate) fn client(&self, ends: &SiblingEnds) -> Option<KnownClient> {
        if self.inboxes.is_empty() {
            return None;
        }
        let client = Arc::clone(self.clients().get(ends)?);
        // Its address is still to be looked up.
        let seen = client.moves.load(Ordering::Acquire).wrapping_sub(1);
        Some(KnownClient { client, seen })
    }

    /// A gateway has forgotten its flow with a client. The last one takes it out.
    pub(crate) fn forget(&self, ends: &SiblingEnds, known: &KnownClient) {
        let mut clients = self.clients();
        let is_last = |client: &Arc<Client>| {
            // A reference is here, and another in the flow that ends.
            Arc::ptr_eq(client, &known.client) && Arc::strong_count(client) == 2
        };
        if clients.get(ends).is_some_and(is_last) {
            clients.remove(ends);
        }
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<SiblingEnds, Arc<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Another client has the flow.
#[derive(Debug)]
pub(crate) struct Taken;

impl Client {
    /// Notes the address of the host that the client writes to now.
    pub(crate) fn moved_to(&self, host: Option<IpAddr>) {
        let mut known = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != host {
            *known = host;
            // Release: who sees the number finds the address.
            self.moves.fetch_add(1, Ordering::Release);
        }
    }

    /// The program has answered.
    pub(crate) fn set_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }
}

impl KnownClient {
    /// The address of the host that the client writes to, if that has changed.
    pub(crate) fn updates(&mut self) -> Option<Option<IpAddr>> {
        let moves = self.client.moves.load(Ordering::Acquire);
        (moves != self.seen).then(|| {
            self.seen = moves;
            *self.client.host.lock().unwrap_or_else(PoisonError::into_inner)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::FlowsMax;

    fn budget() -> Arc<FlowBudget> {
        FlowBudget::new(&FlowsMax::new(None))
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn ends() -> SiblingEnds {
        SiblingEnds { program: addr("10.0.2.15:53"), peer: addr("192.0.2.1:4000") }
    }

    #[test]
    fn a_client_is_known_until_the_last_gateway_has_forgotten_it() {
        let places = Place::all(Owners::new(&[1; 32], 4), budget()).unwrap();
        let siblings = &places[0].siblings;
        let (client, host) = ((0, addr("192.0.2.1:4000")), Some(addr("192.0.2.9:53").ip()));
        assert!(siblings.client(&ends()).is_none());
        let here = siblings.register(ends(), client, host).unwrap().unwrap();
        let other = (0, addr("192.0.2.2:4000"));
        assert!(siblings.register(ends(), other, host).is_err(), "another client's");
        let mut there = siblings.client(&ends()).unwrap();
        assert_eq!((there.updates(), there.updates()), (Some(host), None));
        here.client.moved_to(None);
        assert_eq!((there.updates(), there.updates()), (Some(None), None));
        siblings.forget(&ends(), &here);
        drop(here);
        assert!(siblings.client(&ends()).is_some(), "one answers it still");
        siblings.forget(&ends(), &there);
        assert!(siblings.client(&ends()).is_none());
    }

    #[test]
    fn ports_are_those_of_the_owner_and_not_beyond_the_range() {
        let mut places = Place::all(Owners::new(&[1; 32], 16), budget()).unwrap();
        let (program, range) = (addr("10.0.2.15:80"), 60_000..=60_099);
        let mut all = Vec::new();
        for place in &mut places {
            let mut tries = 100;
            let ip = addr("10.0.2.2:0").ip();
            while let Some(client) = place.next_port(ip, program, &range, &mut tries) {
                all.push(client.port());
            }
        }
        all.sort();
        // Each has one owner.
        assert_eq!(all, range.collect::<Vec<_>>());
    }
}
