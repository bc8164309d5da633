//! Transfers datagrams of UDP flows between host sockets and the program.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::getsockname;
use towpath_shm::Fragments;
use towpath_stack::Host;
use towpath_wire::{ipv6, udp};

use super::fragments::LongDatagram;
use super::{Flow, Side, UdpFlows, to_program};
use crate::context::{Context, Shared};
use crate::egress::Egress;
use crate::limits::{DATAGRAMS_PER_TURN, LINK_PACKETS_MAX, PLAIN_TTL};
use crate::listeners::Listeners;
use crate::slab;
use crate::sys::{self, Destination};
use crate::train::IpMarks;

impl UdpFlows {
    /// Sends one datagram, or several of `segment` bytes each. Returns false if the kernel refuses
    /// to split the bytes into datagrams. The caller should then send the datagrams one by one.
    pub(super) fn send(
        &mut self,
        shared: &mut Shared,
        listeners: &Listeners,
        id: slab::SlabKey,
        marks: IpMarks,
        bytes: &[u8],
        segment: Option<u16>,
    ) -> bool {
        let count = bytes.len().div_ceil(segment.map_or(bytes.len(), usize::from).max(1)).max(1);
        let Some((_, flow)) = self.flows.get_mut(id) else {
            // The flow was evicted while these datagrams were queued, so drop them.
            shared.counters.udp_dropped += count as u64;
            return true;
        };
        flow.side.set_dont_fragment(marks.dont_fragment);
        flow.side.catch_up();
        let Some((_, flow)) = self.flows.get(id) else { return true };
        if segment.is_none()
            && let Some(datagram) = flow.side.beyond_path(&shared.dialer.egress, marks, bytes)
            && self.fragmenter.send(&shared.config, &datagram)
        {
            shared.counters.udp_to_host += 1;
            self.count(id, 0, bytes.len());
            return true;
        }
        let plain = Destination {
            segment,
            v6: flow.side.is_v6(),
            ttl: (marks.ttl != PLAIN_TTL).then_some(marks.ttl),
            tos: (marks.tos != 0).then_some(marks.tos),
            ..Destination::default()
        };
        let (host, destination) = match &flow.side {
            Side::Connected { host, .. } => (host.as_fd(), plain),
            Side::Client { listener, client, host, .. } => {
                let Some(fd) = listeners.fd(*listener) else { return true };
                (fd, Destination { to: Some(*client), from: *host, ..plain })
            }
        };
        let empty = Fragments::empty();
        let mut result = sys::send_datagram(host, bytes, &empty, &destination);
        let mut told = 0;
        if result.is_err_and(|error| error != Errno::AGAIN) {
            told = self.hear(shared, id, host);
            if told > 0 && result != Err(Errno::MSGSIZE) {
                // The first call has sent nothing, but only returned the error of an earlier
                // datagram. Send again.
                result = sys::send_datagram(host, bytes, &empty, &destination);
            }
        }
        match result {
            Ok(_) => {
                shared.counters.udp_to_host += count as u64;
                self.count(id, 0, bytes.len());
            }
            Err(Errno::INVAL | Errno::IO | Errno::MSGSIZE) if segment.is_some() => return false,
            Err(error) => {
                shared.counters.udp_dropped += count as u64;
                if told == 0 {
                    self.on_send_error(shared, id, error);
                }
            }
        }
        true
    }

    /// Handles a send error for which the socket's error queue contains no report.
    fn on_send_error(&mut self, shared: &mut Shared, id: slab::SlabKey, error: Errno) {
        let Some((key, flow)) = self.flows.get(id) else { return };
        match error {
            // The socket's source address may have been removed from the host. Remove the flow: the
            // next datagram creates a new one with another source address, or reports an error if
            // there is none.
            Errno::INVAL | Errno::ADDRNOTAVAIL | Errno::NETUNREACH if flow.side.is_connected() => {
                if let Some((key, flow)) = self.flows.remove(id) {
                    self.forget(&key, &flow.side);
                }
            }
            error => shared.errors.refused(key.about(), error, &[], &mut shared.counters),
        }
    }

    /// Takes the reports from the error queue of a flow's host socket. Returns their number.
    fn hear(&self, shared: &mut Shared, id: slab::SlabKey, host: BorrowedFd<'_>) -> usize {
        match self.flows.get(id) {
            Some((key, Flow { side: Side::Connected { to, path_mtu, .. }, .. })) => {
                let Shared { errors, config, counters, .. } = shared;
                errors.hear(host, &[], config, counters, |report, _| {
                    if let Some(mtu) = report.mtu_v6() {
                        let mtu = sys::lower_mtu_v6(host, mtu) as usize;
                        path_mtu.set(Some(path_mtu.get().map_or(mtu, |known| known.min(mtu))));
                    }
                    Some((key.about(), to.ip()))
                })
            }
            Some((_, Flow { side: Side::Client { listener, .. }, .. })) => {
                self.on_client_errors(shared, *listener, host)
            }
            None => 0,
        }
    }

    /// Receives datagrams from a flow's host socket. Returns whether more may be pending.
    pub(super) fn receive(&mut self, cx: &mut Context<'_, impl Host>, id: slab::SlabKey) -> bool {
        let mut scratch = std::mem::take(&mut cx.shared.scratch);
        let mut more = true;
        for _ in 0..DATAGRAMS_PER_TURN {
            let Some((key, Flow { side: Side::Connected { host, to, .. }, .. })) =
                self.flows.get(id)
            else {
                more = false;
                break;
            };
            let key = *key;
            match sys::recv_datagram(host.as_fd(), &mut scratch) {
                // Drop a datagram of another sender. The datagram has arrived between bind(2) and
                // connect(2) of the socket.
                Ok(received) if received.from.is_some_and(|from| !is_same(from, *to)) => {
                    cx.shared.counters.udp_dropped += 1;
                }
                Ok(received) => {
                    let bytes = scratch.get(..received.len).unwrap_or_default();
                    to_program(cx, &key, bytes, &received);
                    self.count(id, 1, received.len);
                    self.on_heard(cx.shared.now_ns, id);
                }
                Err(Errno::AGAIN) => {
                    more = false;
                    break;
                }
                Err(_) => {
                    self.hear(cx.shared, id, host.as_fd());
                }
            }
        }
        cx.shared.scratch = scratch;
        more
    }
}

impl Side {
    /// Returns the datagram if it is longer than the path MTU reported by a router, and host
    /// sockets are bound to an interface. In this case the kernel may fail to fragment the
    /// datagram.
    fn beyond_path<'a>(
        &self,
        egress: &Egress,
        marks: IpMarks,
        payload: &'a [u8],
    ) -> Option<LongDatagram<'a>> {
        let Self::Connected { host, to: SocketAddr::V6(to), path_mtu, .. } = self else {
            return None;
        };
        let mtu = path_mtu.get()?;
        if egress.interface.is_none() || ipv6::HEADER_LEN + udp::HEADER_LEN + payload.len() <= mtu {
            return None;
        }
        match SocketAddr::try_from(getsockname(host).ok()?).ok()? {
            SocketAddr::V6(from) => Some(LongDatagram { from, to: *to, marks, mtu, payload }),
            SocketAddr::V4(_) => None,
        }
    }
}

/// Returns whether two addresses are equal, ignoring the scope id of link-local addresses.
fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    (a.ip(), a.port()) == (b.ip(), b.port())
}

// The datagrams of one turn of the event loop must fit into the queue of an idle link.
const _: () = assert!(LINK_PACKETS_MAX > DATAGRAMS_PER_TURN);
