//! Creates and evicts UDP flows: opens their host sockets, and makes room in the table.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::SocketType;
use towpath_shm::Fd;

use super::{
    CLASS_CLIENT, CLASS_CLIENT_NEW, CLASS_DNS_NEW, CLASS_PLAIN_NEW, Flow, Key, Side, UdpFlows,
};
use crate::budget::{Share, Whose};
use crate::client::Client;
use crate::config::Presented;
use crate::context::Shared;
use crate::events::{Interest, Token};
use crate::idle::Evicted;
use crate::listeners::Listeners;
use crate::source::PeerSilence;
use crate::{dialer, nameservers, slab, sys};

/// Ports shown to the program for a client of a published port whose own port is already in use:
/// the dynamic ports (RFC 6335 §6).
const PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

impl UdpFlows {
    /// Creates a flow for a client of a sibling gateway. The sibling receives the client's
    /// datagrams, but the program's answers leave through this gateway.
    pub(super) fn adopt(&mut self, shared: &mut Shared, key: Key) -> Option<slab::SlabKey> {
        let mut known = self.siblings.client(&key)?;
        known.client.set_answered();
        let host = known.updates().flatten();
        let (listener, client) = (known.client.listener, known.client.address);
        let side = Side::Client { listener, client, host, known: Some(known) };
        let whose = Client::at(client.ip());
        self.make_room(shared, CLASS_CLIENT, whose);
        shared.counters.udp_flows += 1;
        let flow = Flow { side, cuts: true, bytes: [0; 2] };
        let id = self.flows.insert(shared.now_ns, CLASS_CLIENT, whose, key, flow);
        self.clients.insert((listener, client), id);
        Some(id)
    }

    /// Creates a flow for a datagram that the program sends to a new peer.
    pub(super) fn open(
        &mut self,
        shared: &mut Shared,
        listeners: &Listeners,
        key: Key,
    ) -> Result<slab::SlabKey, Errno> {
        let to = shared.host_addr(key.peer).ok_or(Errno::CONNREFUSED)?;
        if shared.is_loop(key.program, key.peer) {
            return Err(Errno::CONNREFUSED);
        }
        let is_dns = key.peer.port() == nameservers::PORT;
        let class = if is_dns { CLASS_DNS_NEW } else { CLASS_PLAIN_NEW };
        let client = shared.config.client(key.program.ip());
        self.make_room(shared, class, client);
        let _share = self.share(shared, class, client)?;
        let (host, mapped) = self.open_towards(shared, to, listeners, key)?;
        if mapped && listeners.host_port(key.port()).is_none() {
            self.open_others(shared, &host, to.ip(), key);
        }
        let side = Side::Connected {
            host,
            _share,
            to,
            readable: false,
            silence: PeerSilence::default(),
            mapped,
            dont_fragment: false,
            path_mtu: Cell::default(),
        };
        let flow = Flow { side, cuts: true, bytes: [0; 2] };
        let id = self.flows.insert(shared.now_ns, class, client, key, flow);
        if let Some((_, flow)) = self.flows.get(id)
            && let Side::Connected { host, .. } = &flow.side
            && let Err(error) = shared.events.watch(host, Token::Udp(id), Interest::Readable)
        {
            if let Some((key, flow)) = self.flows.remove(id) {
                self.forget(&key, &flow.side);
            }
            return Err(error);
        }
        shared.counters.udp_flows += 1;
        Ok(id)
    }

    /// Also accepts datagrams from other ports of the peer's address.
    //= https://www.rfc-editor.org/rfc/rfc4787#section-5
    //# REQ-8:  If application transparency is most important, it is
    //# RECOMMENDED that a NAT have an "Endpoint-Independent Filtering"
    //# behavior.  If a more stringent filtering behavior is most
    //# important, it is RECOMMENDED that a NAT have an "Address-Dependent
    //# Filtering" behavior.
    fn open_others(&mut self, shared: &mut Shared, flow: &Fd, to: IpAddr, key: Key) {
        if self.others.is_new(key.program)
            && let Some(share) = self.siblings.budget.take(Whose::Datagrams)
        {
            // Ignore errors: without this socket, the program receives datagrams only from ports of
            // the peer to which it has sent.
            let _ = self.others.open(shared, key.program, flow, to, share);
        }
        self.others.enter(key.program, to, key.peer.ip());
    }

    /// Reserves a descriptor for a flow of the program. If none is free, evicts another flow.
    fn share(&mut self, shared: &mut Shared, class: usize, client: Client) -> Result<Share, Errno> {
        loop {
            if let Some(share) = self.siblings.budget.take(Whose::Datagrams) {
                return Ok(share);
            }
            if !self.evict(shared, class, client) {
                return Err(Errno::NOBUFS);
            }
        }
    }

    /// Opens a host socket connected to the flow's peer. Also returns whether the socket's local
    /// port is registered in [`Mappings`](crate::mapping::Mappings).
    fn open_towards(
        &mut self,
        shared: &mut Shared,
        to: SocketAddr,
        listeners: &Listeners,
        key: Key,
    ) -> Result<(Fd, bool), Errno> {
        let host = dialer::socket(SocketType::DGRAM, to)?;
        // DNS queries leave from an unpredictable port (RFC 5452 §9.2). Only the nameserver sends
        // to this port, so it needs no mapping.
        let forwarded = listeners.host_port(key.port());
        let mapped = key.peer.port() != nameservers::PORT
            && self.siblings.mappings().bind(&host, key.program, forwarded);
        let connected = sys::enable_details(host.as_fd(), to.is_ipv6())
            .and_then(|()| shared.dialer.carry(&host, to));
        if let Err(error) = connected {
            if mapped {
                self.siblings.mappings().release(key.program);
            }
            return Err(error);
        }
        shared.loops.note(&host, to);
        // Ignore errors: without UDP_GRO, each datagram takes one system call, but nothing is lost.
        sys::enable_gro(host.as_fd());
        Ok((host, mapped))
    }

    /// Creates a flow for a client that the program sees at the address `shown`. If the port of
    /// `shown` is in use, chooses another port of the same address. Returns `None` if no port is
    /// free.
    pub(super) fn open_client(
        &mut self,
        shared: &mut Shared,
        shown: Presented,
        (listener, client): (u32, SocketAddr),
        host: Option<IpAddr>,
    ) -> Option<slab::SlabKey> {
        let wanted = match shown.client.port() {
            0 => client.port(),
            port => port,
        };
        let mut ports = std::iter::once(wanted).chain(PORTS);
        let (key, known) = ports.find_map(|port| {
            let peer = SocketAddr::new(shown.client.ip(), port);
            let key = Key { program: shown.program, peer };
            if self.flows.find(&key).is_some() {
                return None;
            }
            Some((key, self.siblings.register(key, (listener, client), host).ok()?))
        })?;
        let side = Side::Client { listener, client, host, known };
        let whose = Client::at(client.ip());
        self.make_room(shared, CLASS_CLIENT_NEW, whose);
        shared.counters.udp_flows += 1;
        let flow = Flow { side, cuts: true, bytes: [0; 2] };
        Some(self.flows.insert(shared.now_ns, CLASS_CLIENT_NEW, whose, key, flow))
    }

    fn make_room(&mut self, shared: &mut Shared, class: usize, client: Client) {
        if self.flows.is_full(class) {
            self.evict(shared, class, client);
        }
    }

    /// Evicts one flow to make room for a flow of `client` in `class`. Returns false if no flow may
    /// be evicted.
    fn evict(&mut self, shared: &mut Shared, class: usize, client: Client) -> bool {
        let Some(Evicted { key, value, class }) = self.flows.evict(class, client) else {
            return false;
        };
        let counters = &mut shared.counters;
        match class {
            CLASS_CLIENT_NEW => counters.udp_clients_evicted += 1,
            CLASS_CLIENT => counters.udp_clients_answered_evicted += 1,
            CLASS_PLAIN_NEW | CLASS_DNS_NEW => counters.udp_evicted += 1,
            _ => counters.udp_answered_evicted += 1,
        }
        self.forget(&key, &value.side);
        true
    }

    pub(super) fn forget(&mut self, key: &Key, side: &Side) {
        match side {
            Side::Connected { mapped, to, .. } => {
                if *mapped {
                    self.others.leave(key.program, to.ip());
                    self.siblings.mappings().release(key.program);
                }
            }
            Side::Client { listener, client, known, .. } => {
                self.clients.remove(&(*listener, *client));
                if let Some(known) = known {
                    self.siblings.forget(key, known);
                }
            }
        }
    }
}
