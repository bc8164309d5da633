//! Receives datagrams from ports of a peer to which the program has not sent, as from TFTP and STUN
//! servers.
//!
//! ```text
//!   port of the program ◄── connected sockets: one for each peer's port that was written to
//!                       ◄── one socket without a peer: all other ports of these peers' addresses
//! ```
//!
//! All these sockets are bound to one port of the host. The kernel prefers a socket that is
//! connected to the datagram's sender. So the socket without a peer receives only datagrams from
//! ports to which the program has not sent. A datagram from such a port creates no flow, but an
//! answer of the program does.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, socket_with};
use towpath_shm::{Fd, opened};
use towpath_stack::Host;

use super::to_program::to_program;
use crate::budget::Share;
use crate::context::{Context, Shared};
use crate::events::{Interest, Readiness, Token, family};
use crate::limits::DATAGRAMS_PER_TURN;
use crate::mapping;
use crate::siblings::SiblingEnds;
use crate::slab::{self, KeyedSlab};
use crate::sys;

/// Unconnected host sockets, one for each mapped port of the program.
#[derive(Debug)]
pub(crate) struct OtherPorts {
    entries: KeyedSlab<Entry>,
    by_program: HashMap<SocketAddr, slab::SlabKey>,
    /// Entries whose socket is readable; each is queued at most once.
    due: VecDeque<slab::SlabKey>,
}

#[derive(Debug)]
struct Entry {
    program: SocketAddr,
    host: Fd,
    /// Reservation of the descriptor `host` in the flow budget.
    _share: Share,
    /// Peers of the port's flows, by their address in the host's network, with the address at which
    /// the program sees each.
    peers: HashMap<IpAddr, Peer>,
    readable: bool,
}

#[derive(Debug)]
struct Peer {
    seen: IpAddr,
    flows: usize,
}

impl OtherPorts {
    pub(crate) fn new() -> Self {
        Self { entries: KeyedSlab::new(), by_program: HashMap::new(), due: VecDeque::new() }
    }

    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Returns whether there is no unconnected socket for this port of the program yet.
    pub(crate) fn is_new(&self, program: SocketAddr) -> bool {
        !self.by_program.contains_key(&program)
    }

    /// Opens an unconnected socket on the host port to which `flow` is bound.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be created; datagrams from unknown ports are then
    /// lost.
    pub(crate) fn open(
        &mut self,
        shared: &Shared,
        program: SocketAddr,
        flow: &Fd,
        to: IpAddr,
        share: Share,
    ) -> Result<(), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let to = SocketAddr::new(to, 0);
        let host = Fd::from(opened(|| socket_with(family(to), SocketType::DGRAM, flags, None))?);
        shared.dialer.egress.apply(&host, to.ip())?;
        mapping::bind_beside(&host, flow, to.is_ipv6())?;
        sys::enable_details(host.as_fd(), to.is_ipv6())?;
        sys::enable_gro(host.as_fd());
        let peers = HashMap::new();
        let entry = Entry { program, host, _share: share, peers, readable: false };
        let key = self.entries.insert(entry);
        self.by_program.insert(program, key);
        let Some(entry) = self.entries.get(key) else { return Ok(()) };
        shared.events.watch(&entry.host, Token::OtherPorts(key), Interest::Readable).inspect_err(
            |_| {
                self.entries.remove(key);
                self.by_program.remove(&program);
            },
        )
    }

    /// Counts a flow to the peer `to`, which the program sees at the address `seen`.
    pub(crate) fn enter(&mut self, program: SocketAddr, to: IpAddr, seen: IpAddr) {
        let key = self.by_program.get(&program).copied();
        if let Some(entry) = key.and_then(|key| self.entries.get_mut(key)) {
            entry.peers.entry(to).or_insert(Peer { seen, flows: 0 }).flows += 1;
        }
    }

    /// Removes a flow to the peer `to`. The last flow of the port closes the unconnected socket.
    pub(crate) fn leave(&mut self, program: SocketAddr, to: IpAddr) {
        let Some(key) = self.by_program.get(&program).copied() else { return };
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(peer) = entry.peers.get_mut(&to) {
            peer.flows -= 1;
            if peer.flows == 0 {
                entry.peers.remove(&to);
            }
        }
        if entry.peers.is_empty() {
            self.entries.remove(key);
            self.by_program.remove(&program);
        }
    }

    /// Queues an entry whose socket has become readable.
    pub(crate) fn on_ready(&mut self, key: slab::SlabKey, ready: Readiness) {
        if let Some(entry) = self.entries.get_mut(key)
            && (ready.readable || ready.failed)
            && !entry.readable
        {
            entry.readable = true;
            self.due.push_back(key);
        }
    }

    /// Passes received datagrams to the program while the link has room.
    pub(crate) fn serve(&mut self, cx: &mut Context<'_, impl Host>) {
        for _ in 0..self.due.len() {
            if cx.is_link_busy() {
                break;
            }
            let Some(key) = self.due.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(key) else { continue };
            if entry.receive(cx) {
                self.due.push_back(key);
            } else {
                entry.readable = false;
            }
        }
    }
}

impl Entry {
    /// Receives a batch of datagrams. Returns true if more may be pending.
    fn receive(&self, cx: &mut Context<'_, impl Host>) -> bool {
        let mut scratch = std::mem::take(&mut cx.shared.scratch);
        let mut more = true;
        for _ in 0..DATAGRAMS_PER_TURN {
            match sys::recv_datagram(self.host.as_fd(), &mut scratch) {
                Ok(received) => {
                    let from = received.from;
                    let peer = from.and_then(|from| Some((self.peers.get(&from.ip())?, from)));
                    let Some((peer, from)) = peer else {
                        cx.shared.counters.udp_dropped += 1;
                        continue;
                    };
                    let peer = SocketAddr::new(peer.seen, from.port());
                    let key = SiblingEnds { program: self.program, peer };
                    let bytes = scratch.get(..received.len).unwrap_or_default();
                    let before = cx.shared.counters.udp_to_program;
                    to_program(cx, &key, bytes, &received);
                    let passed = cx.shared.counters.udp_to_program - before;
                    cx.shared.counters.udp_from_other_ports += passed;
                }
                Err(Errno::AGAIN) => {
                    more = false;
                    break;
                }
                // Ignore errors: the socket sends no datagrams, so an error cannot concern one of
                // them.
                Err(_) => {}
            }
        }
        cx.shared.scratch = scratch;
        more
    }
}
