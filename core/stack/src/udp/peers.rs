//! Lookup of datagram sockets by the peer to which they are connected. Other sockets are found by
//! their local address ([`crate::ports::binds`]).

use crate::host::Host;
use crate::net::IfaceId;
use crate::net::hash::Keyed;
use crate::socket::{SocketRole, StackSocket};
use crate::tables::flow::{Flow, FlowRef, FlowTable, on_device};
use crate::tables::slab::{NONE, Slab};
use crate::udp::socket::{Alike, DatagramSocket};

/// Key under which a connected datagram socket is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PeerKey {
    flow: Flow,
    /// Interface to which the socket is restricted (SO_BINDTODEVICE). The interface is a part of
    /// the key, so that sockets on other interfaces do not slow down lookups.
    device: Option<IfaceId>,
    echo: bool,
}

impl PeerKey {
    /// Returns whether the socket is connected to port 0. As on Linux, such a socket receives from
    /// any port of the peer.
    fn is_any_port(&self) -> bool {
        !self.echo && self.flow.remote_port == 0
    }
}

impl DatagramSocket {
    fn as_peer(&self) -> Option<PeerKey> {
        self.peer.map(|flow| PeerKey { flow, device: self.device, echo: self.echo })
    }
}

/// Table of the connected UDP and ICMP echo sockets.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub table: FlowTable,
    /// Number of sockets that are connected to port 0. If it is 0, lookups do not search for such
    /// sockets.
    pub any_port: usize,
    /// Number of connected sockets that are restricted to an interface. If it is 0, lookups do not
    /// search for such sockets.
    pub on_device: usize,
}

/// Table of all sockets. In it, connected datagram sockets with equal keys form linked lists.
type Sockets<H> = Slab<StackSocket<H>>;

impl Peers {
    /// Adds a connected datagram socket under the key of its peer. If several sockets have equal
    /// keys, the table contains the newest one, as on Linux. Older sockets with the same key are
    /// linked to the newest one, so that a change need not search all entries.
    pub fn enter<H: Host>(&mut self, keys: Keyed, sockets: &mut Sockets<H>, index: u32) {
        let Some(peer) = peer_of(sockets, index) else { return };
        let hash = keys.ends(&peer.flow);
        let older = self.find(sockets, hash, peer);
        let (hash, own) = (on_device(hash, peer.device), FlowRef::Socket(index));
        match older {
            Some(older) => {
                self.table.replace(hash, FlowRef::Socket(older), own);
                set_alike(sockets, older, |alike| alike.newer = index);
            }
            None => self.table.insert(hash, own),
        }
        set_alike(sockets, index, |alike| alike.older = older.unwrap_or(NONE));
        self.any_port += usize::from(peer.is_any_port());
        self.on_device += usize::from(peer.device.is_some());
    }

    /// Removes a connected datagram socket that [`Peers::enter`] added. Returns false if it is not
    /// in the table.
    pub fn leave<H: Host>(&mut self, keys: Keyed, sockets: &mut Sockets<H>, index: u32) -> bool {
        let Some(peer) = peer_of(sockets, index) else { return false };
        let hash = on_device(keys.ends(&peer.flow), peer.device);
        let (mut newer, mut older) = (NONE, NONE);
        set_alike(sockets, index, |alike| Alike { newer, older } = std::mem::take(alike));
        let own = FlowRef::Socket(index);
        let left = match (newer, older) {
            (NONE, NONE) => self.table.remove(hash, own),
            (NONE, older) => self.table.replace(hash, own, FlowRef::Socket(older)),
            _ => true,
        };
        set_alike(sockets, newer, |alike| alike.older = older);
        set_alike(sockets, older, |alike| alike.newer = newer);
        self.any_port -= usize::from(left && peer.is_any_port());
        self.on_device -= usize::from(left && peer.device.is_some());
        left
    }

    /// Returns UDP or ICMP echo sockets that are connected to the sender of a datagram, and receive
    /// packets from the interface `iface`. The best match comes first. As on Linux, the port of the
    /// peer takes precedence over the interface. Only the newest of [`alike`] sockets is returned.
    /// `hash` is the hash of the flow.
    #[inline]
    pub fn connected<'a, H: Host>(
        &'a self,
        keys: Keyed,
        sockets: &'a Sockets<H>,
        hash: u64,
        flow: &Flow,
        iface: IfaceId,
        echo: bool,
    ) -> impl Iterator<Item = u32> + use<'a, H> {
        let flow = *flow;
        let any_port = self.any_port > 0 && !echo && flow.remote_port != 0;
        [false, true].into_iter().filter(move |any| !any || any_port).flat_map(move |any| {
            let (hash, flow) = match any {
                false => (hash, flow),
                true => {
                    let flow = Flow { remote_port: 0, ..flow };
                    (keys.ends(&flow), flow)
                }
            };
            let here = (self.on_device > 0).then_some(Some(iface));
            here.into_iter()
                .chain([None])
                .filter_map(move |device| self.find(sockets, hash, PeerKey { flow, device, echo }))
        })
    }

    /// Returns the first result of [`Peers::connected`]. Avoids the lookup if no socket is
    /// connected.
    #[inline]
    pub fn first_connected<H: Host>(
        &self,
        keys: Keyed,
        sockets: &Sockets<H>,
        hash: u64,
        flow: &Flow,
        iface: IfaceId,
        echo: bool,
    ) -> Option<u32> {
        if self.table.len() == 0 {
            return None;
        }
        self.connected(keys, sockets, hash, flow, iface, echo).next()
    }

    fn find<H: Host>(&self, sockets: &Sockets<H>, hash: u64, peer: PeerKey) -> Option<u32> {
        let found = self.table.find(on_device(hash, peer.device), |at| match at {
            FlowRef::Socket(index) => peer_of(sockets, index) == Some(peer),
            _ => false,
        });
        match found {
            Some(FlowRef::Socket(index)) => Some(index),
            _ => None,
        }
    }
}

/// Iterates over a socket that [`Peers::connected`] returned and all sockets with an equal key, the
/// newest one first.
pub(crate) fn alike<H: Host>(sockets: &Sockets<H>, index: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(index), |&index| match &sockets.get(index)?.kind {
        SocketRole::Datagram(datagram) => Some(datagram.alike.older).filter(|older| *older != NONE),
        _ => None,
    })
}

/// Changes the links of a connected datagram socket to sockets with an equal key. Has no effect if
/// the index is [`NONE`].
fn set_alike<H: Host>(sockets: &mut Sockets<H>, index: u32, set: impl FnOnce(&mut Alike)) {
    if let Some(SocketRole::Datagram(datagram)) = sockets.get_mut(index).map(|it| &mut it.kind) {
        set(&mut datagram.alike);
    }
}

#[inline]
fn peer_of<H: Host>(sockets: &Sockets<H>, index: u32) -> Option<PeerKey> {
    match &sockets.get(index)?.kind {
        SocketRole::Datagram(datagram) => datagram.as_peer(),
        _ => None,
    }
}
