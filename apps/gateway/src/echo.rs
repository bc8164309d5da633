//! Echo flows: forwards the program's pings through ICMP sockets of the host.
//!
//! A datagram ICMP socket needs no privilege, but `net.ipv4.ping_group_range` must contain our
//! group. A raw socket needs CAP_NET_RAW. With both kinds, requests leave with another identifier
//! than the program's, so that two clients may use the same one. The host chooses it for a datagram
//! socket, and [`EchoFlows`] for a raw socket. Replies are passed to the program with its own
//! identifier. TTL and traffic class are copied in both directions, and errors are passed back, so
//! `traceroute -I` shows the host's routers.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use towpath_shm::{Fd, opened};

use rustix::io::Errno;
use rustix::net::{Protocol, SocketFlags, SocketType, ipproto, socket_with};
use siphasher::sip::SipHasher13;
use towpath_ring::Payload;
use towpath_shm::Fragments;
use towpath_stack::net::{EchoOut, Fragmenting};
use towpath_stack::{EchoMeta, Host};
use towpath_wire::{icmpv4, icmpv6, ipv4};

use crate::addresses::LostAddresses;
use crate::client::Client;
use crate::context::{Context, Shared};
use crate::events::{Interest, Readiness, Token, family};
use crate::icmp::About;
use crate::idle::{Class, Evicted, IdleTable};
use crate::limits::{DATAGRAMS_PER_TURN, ECHO_IDLE_NS, PLAIN_TTL};
use crate::notice::Notice;
use crate::show::{FlowEntry, FlowProtocol, datagrams};
use crate::siblings::{Place, Topic};
use crate::slab;
use crate::source::PeerSilence;
use crate::sys::{self, Destination, IpOption};

/// Table of echo flows. A flow consists of the pings with one identifier from one address of the
/// program to one peer.
#[derive(Debug)]
pub(crate) struct EchoFlows {
    flows: IdleTable<EchoKey, Flow>,
    due: VecDeque<slab::SlabKey>,
    /// ICMP identifier to try next for a raw socket.
    next_ident: u16,
    /// Difference between two successive identifiers, so that the gateways of a host never use the
    /// same one.
    stride: u16,
    warned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct EchoKey {
    program: IpAddr,
    peer: IpAddr,
    ident: u16,
}

#[derive(Debug)]
struct Flow {
    host: Fd,
    /// Host address to which the flow's socket is connected.
    to: IpAddr,
    /// TTL and traffic class of the last request. [`PLAIN_TTL`] and 0 mean the host's defaults.
    marks: (u8, u8),
    /// Whether the host must not fragment requests, as the DF bit of the last request says.
    dont_fragment: bool,
    /// ICMP identifier of requests sent from a raw socket. Reads of a raw socket return all ICMP
    /// messages of the peer, with IPv4 headers. `None` for a datagram socket.
    raw: Option<u16>,
    readable: bool,
    silence: PeerSilence,
    /// Number of payload bytes in requests, and in replies.
    bytes: [u64; 2],
}

/// Reason why an echo request was not sent.
enum Lost {
    /// The host does not allow this user to send pings.
    NotPermitted,
    /// Another error, which is reported to the program if it concerns the destination.
    Failed,
}

/// Eviction class of flows whose peer has not answered yet. [`CLASS`] is the class of answered
/// flows.
const CLASS_NEW: usize = 0;
const CLASS: usize = 1;
/// Length of an ICMP echo header in bytes, equal for ICMPv4 and ICMPv6.
const HEADER_LEN: usize = icmpv4::HEADER_LEN;
const _: () = assert!(HEADER_LEN == icmpv6::HEADER_LEN);
/// Offset of the identifier in ICMPv4 and ICMPv6 echo messages.
const IDENT_AT: usize = 4;

impl EchoFlows {
    pub(crate) fn new(max: usize, place: &Place, seed: &[u8; 32]) -> Self {
        let class = |worth| Class { idle_ns: ECHO_IDLE_NS, owner: 0, max, worth };
        let flows = IdleTable::new(&[class(0), class(1)]);
        let (number, stride) = (place.number() as u16, place.count() as u16);
        let next_ident = first_ident(seed).wrapping_add(number);
        Self { flows, due: VecDeque::new(), next_ident, stride, warned: false }
    }

    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        self.flows.next_expiry_ns()
    }

    /// Returns descriptions of all flows, for lists shown to the user.
    pub(crate) fn shown(&self) -> impl Iterator<Item = FlowEntry> {
        self.flows.iter().map(|(key, flow)| {
            let ends = (SocketAddr::new(key.program, key.ident), SocketAddr::new(key.peer, 0));
            let mut entry = datagrams(FlowProtocol::Echo, ends, Some(&flow.host), flow.bytes);
            if let Some((via, ident)) = entry.via.as_mut().zip(flow.raw) {
                via.set_port(ident);
            }
            entry
        })
    }

    /// Removes echo flows whose idle timeout has passed.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while self.flows.expire(now_ns).is_some() {}
    }

    /// Removes flows whose sockets send from an address that was removed from the host. The
    /// program's next request creates a new flow.
    pub(crate) fn on_addresses_lost(&mut self, shared: &mut Shared, lost: &LostAddresses) {
        let ended = self.flows.remove_if(|flow| lost.has_source_of(&flow.host));
        shared.counters.address_lost += ended.len() as u64;
    }

    /// Sends an echo request of the program to the host's network.
    pub(crate) fn on_request(
        &mut self,
        shared: &mut Shared,
        meta: &EchoMeta,
        payload: &Payload<'_>,
    ) {
        let key = EchoKey { program: meta.remote, peer: meta.local, ident: meta.ident };
        let mut scratch = std::mem::take(&mut shared.scratch);
        // The message always fits: `scratch` has the length of the largest ICMP message.
        if let Some(message) = scratch.get_mut(..HEADER_LEN + payload.len() as usize) {
            payload.copy_to(0, &mut message[HEADER_LEN..]);
            emit_request(message, meta, meta.ident);
            match self.pass_on(shared, key, meta, message) {
                Ok(()) => shared.counters.echo_requests += 1,
                Err(Lost::NotPermitted) => self.warn(shared),
                Err(Lost::Failed) => shared.counters.echo_dropped += 1,
            }
        }
        shared.scratch = scratch;
    }

    /// Sends an echo request on its existing flow, or creates a flow for it.
    fn pass_on(
        &mut self,
        shared: &mut Shared,
        key: EchoKey,
        meta: &EchoMeta,
        message: &mut [u8],
    ) -> Result<(), Lost> {
        let id = match self.flows.find(&key).filter(|id| !self.leave_source(shared, *id)) {
            Some(id) => id,
            None => self.open(shared, key, message)?,
        };
        self.flows.touch(shared.now_ns, id);
        let Some((_, flow)) = self.flows.get_mut(id) else { return Err(Lost::Failed) };
        flow.set_marks(meta.ttl, meta.tos);
        flow.set_dont_fragment(meta.dont_fragment);
        if let Some(ident) = flow.raw {
            emit_request(message, meta, ident);
        }
        flow.send(shared, &key, message)?;
        flow.bytes[0] += message.len().saturating_sub(HEADER_LEN) as u64;
        Ok(())
    }

    /// Removes a flow without answers if a new socket would have another source address, because
    /// the host's addresses have changed. Returns whether the flow is gone.
    fn leave_source(&mut self, shared: &mut Shared, id: slab::SlabKey) -> bool {
        let Some((_, flow)) = self.flows.get_mut(id) else { return true };
        let leaves = flow.silence.on_sent(shared.now_ns)
            && shared.leaves_elsewhere(&flow.host, SocketAddr::new(flow.to, 0));
        if leaves {
            self.flows.remove(id);
            shared.counters.source_moved += 1;
        }
        leaves
    }

    pub(crate) fn on_ready(&mut self, id: slab::SlabKey, ready: Readiness) {
        let Some((_, flow)) = self.flows.get_mut(id) else { return };
        if (ready.readable || ready.failed) && !flow.readable {
            flow.readable = true;
            self.due.push_back(id);
        }
    }

    /// Passes received echo replies to the program.
    pub(crate) fn serve(&mut self, cx: &mut Context<'_, impl Host>) {
        for _ in 0..self.due.len() {
            if cx.is_link_busy() {
                break;
            }
            let Some(id) = self.due.pop_front() else { break };
            if self.receive(cx, id) {
                self.due.push_back(id);
            } else if let Some((_, flow)) = self.flows.get_mut(id) {
                flow.readable = false;
            }
        }
    }

    fn open(
        &mut self,
        shared: &mut Shared,
        key: EchoKey,
        message: &[u8],
    ) -> Result<slab::SlabKey, Lost> {
        let refused = |shared: &mut Shared, error| {
            shared.errors.refused(key.about(), error, message, &mut shared.counters);
            Lost::Failed
        };
        let Some(ip) = shared.host_addr(SocketAddr::new(key.peer, 0)).map(|to| to.ip()) else {
            return Err(refused(shared, Errno::HOSTUNREACH));
        };
        if shared.is_loop(SocketAddr::new(key.program, key.ident), SocketAddr::new(key.peer, 0)) {
            return Err(refused(shared, Errno::HOSTUNREACH));
        }
        let client = shared.config.client(key.program);
        self.make_room(shared, client);
        let to = SocketAddr::new(ip, 0);
        let protocol = if ip.is_ipv4() { ipproto::ICMP } else { ipproto::ICMPV6 };
        let (host, raw) = match open_socket(to, protocol) {
            Err(Errno::ACCESS | Errno::PERM) => return Err(Lost::NotPermitted),
            other => other.map_err(|error| refused(shared, error))?,
        };
        sys::enable_details(host.as_fd(), ip.is_ipv6())
            .and_then(|()| shared.dialer.carry(&host, to))
            .map_err(|error| refused(shared, error))?;
        let raw = raw.then(|| self.choose_ident());
        shared.loops.note_echo(&host, ip, raw);
        let flow = Flow {
            host,
            to: ip,
            marks: (PLAIN_TTL, 0),
            dont_fragment: false,
            raw,
            readable: false,
            silence: PeerSilence::default(),
            bytes: [0; 2],
        };
        let id = self.flows.insert(shared.now_ns, CLASS_NEW, client, key, flow);
        let Some((_, flow)) = self.flows.get(id) else { return Ok(id) };
        if let Err(error) = shared.events.watch(&flow.host, Token::Echo(id), Interest::Readable) {
            self.flows.remove(id);
            return Err(refused(shared, error));
        }
        Ok(id)
    }

    fn make_room(&mut self, shared: &mut Shared, client: Client) {
        if !self.flows.is_full(CLASS_NEW) {
            return;
        }
        match self.flows.evict(CLASS_NEW, client) {
            Some(Evicted { class: CLASS, .. }) => shared.counters.echo_answered_evicted += 1,
            Some(_) => shared.counters.echo_evicted += 1,
            None => {}
        }
    }

    /// Chooses an identifier that no other raw socket uses.
    fn choose_ident(&mut self) -> u16 {
        loop {
            let ident = self.next_ident;
            self.next_ident = ident.wrapping_add(self.stride);
            // The loop ends, because the maximum number of flows (ECHO_FLOWS_MAX) is less than the
            // number of identifiers.
            if self.flows.iter().all(|(_, flow)| flow.raw != Some(ident)) {
                return ident;
            }
        }
    }

    fn warn(&mut self, shared: &mut Shared) {
        shared.counters.echo_not_permitted += 1;
        if !self.warned {
            self.warned = true;
            shared.tell_once(Topic::Ping, Notice::PingNotPermitted);
        }
    }

    /// Receives from a flow's socket. Returns true if more messages may be queued.
    fn receive(&mut self, cx: &mut Context<'_, impl Host>, id: slab::SlabKey) -> bool {
        let mut scratch = std::mem::take(&mut cx.shared.scratch);
        let mut more = true;
        for _ in 0..DATAGRAMS_PER_TURN {
            let Some((key, flow)) = self.flows.get(id) else {
                more = false;
                break;
            };
            match sys::recv_datagram(flow.host.as_fd(), &mut scratch) {
                Ok(received) => {
                    let bytes = scratch.get(..received.len).unwrap_or_default();
                    if let Some((seq, data)) = parse_reply(bytes, key.peer, flow.raw) {
                        let (ttl, tos) = (received.ttl, received.tos);
                        reply(cx, &key.reply(seq, ttl, tos), data);
                        let len = data.len() as u64;
                        if let Some((_, flow)) = self.flows.get_mut(id) {
                            flow.silence.end();
                            flow.bytes[1] += len;
                        }
                        self.flows.touch_as(cx.shared.now_ns, id, CLASS);
                    }
                }
                Err(Errno::AGAIN) => {
                    more = false;
                    break;
                }
                // Ignore the error, which concerns an earlier request. `hear` reads its report from
                // the error queue, and passes it to the program.
                Err(_) => {
                    flow.hear(cx.shared, key, &[]);
                }
            }
        }
        cx.shared.scratch = scratch;
        more
    }
}

impl EchoKey {
    fn about(&self) -> About {
        About::Echo { program: self.program, peer: self.peer, ident: self.ident }
    }

    /// Builds the echo reply to the program, with the TTL and traffic class of the received reply.
    fn reply(&self, seq: u16, ttl: Option<u8>, tos: u8) -> EchoOut {
        let Self { program, peer, ident } = *self;
        let fragmenting = Fragmenting::Anywhere;
        EchoOut { src: peer, dst: program, reply: true, ident, seq, ttl, tos, fragmenting }
    }
}

impl Flow {
    fn send(&self, shared: &mut Shared, key: &EchoKey, message: &[u8]) -> Result<(), Lost> {
        let send = || {
            let destination = Destination::default();
            sys::send_datagram(self.host.as_fd(), message, &Fragments::empty(), &destination)
        };
        let mut sent = send();
        if let Err(error) = sent
            && error != Errno::AGAIN
        {
            // If the error queue contains reports, the error that was returned belongs to an
            // earlier request, and this request was not sent.
            if self.hear(shared, key, message) == 0 {
                shared.errors.refused(key.about(), error, message, &mut shared.counters);
            } else if error != Errno::MSGSIZE {
                sent = send();
            }
        }
        sent.map(drop).map_err(|_| Lost::Failed)
    }

    /// Sets TTL and traffic class as socket options, because ICMPv6 sockets ignore control messages
    /// before Linux 5.18.
    fn set_marks(&mut self, ttl: u8, tos: u8) {
        if self.marks == (ttl, tos) {
            return;
        }
        let v6 = self.to.is_ipv6();
        for (option, value) in [(IpOption::Ttl, ttl), (IpOption::Tos, tos)] {
            // Ignore errors: requests then keep the old value, and the program does not expect a
            // result.
            let _ = sys::set_ip(self.host.as_fd(), v6, option, value.into());
        }
        self.marks = (ttl, tos);
    }

    fn set_dont_fragment(&mut self, wanted: bool) {
        if self.dont_fragment != wanted
            && sys::set_dont_fragment(self.host.as_fd(), self.to.is_ipv6(), wanted).is_ok()
        {
            self.dont_fragment = wanted;
        }
    }

    /// Reads the error queue of the flow's socket, and passes the reports to the program. `refused`
    /// is the request that the last send call refused, or empty. Returns the number of reports.
    fn hear(&self, shared: &mut Shared, key: &EchoKey, refused: &[u8]) -> usize {
        let Shared { errors, config, counters, .. } = shared;
        errors.hear(self.host.as_fd(), refused, config, counters, |report, quote| {
            if let Some(mtu) = report.mtu_v6() {
                let _ = sys::lower_mtu_v6(self.host.as_fd(), mtu);
            }
            // Ignore reports about other processes' requests, which a raw socket also receives.
            let ours =
                |ident: u16| quote.get(IDENT_AT..IDENT_AT + 2) == Some(&ident.to_be_bytes()[..]);
            self.raw.is_none_or(ours).then_some((key.about(), self.to))
        })
    }
}

/// Derives the first identifier of raw sockets. The identifier must be unpredictable, and equal in
/// all gateways of a host, which share the second half of the seed.
fn first_ident(seed: &[u8; 32]) -> u16 {
    let key = *seed.last_chunk().expect("32 bytes");
    SipHasher13::new_with_key(&key).hash(b"echo") as u16
}

/// Opens a datagram ICMP socket, or a raw one if a datagram socket is not permitted. Returns
/// whether the socket is raw.
fn open_socket(to: SocketAddr, protocol: Protocol) -> Result<(Fd, bool), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let open = |kind| opened(|| socket_with(family(to), kind, flags, Some(protocol)));
    match open(SocketType::DGRAM) {
        Ok(host) => Ok((host.into(), false)),
        Err(first) => match open(SocketType::RAW) {
            Ok(host) => Ok((host.into(), true)),
            Err(_) => Err(first),
        },
    }
}

/// Writes the ICMP header before the request's data. The kernel computes the checksums for ICMPv6
/// and for datagram sockets. For datagram sockets, the kernel also replaces the identifier.
fn emit_request(message: &mut [u8], meta: &EchoMeta, ident: u16) {
    let seq = meta.seq;
    if meta.local.is_ipv4() {
        icmpv4::Message::EchoRequest { ident, seq }.emit(message);
        icmpv4::fill_checksum(message);
    } else {
        icmpv6::Message::EchoRequest { ident, seq }.emit(message);
    }
}

/// Parses an echo reply, and returns its sequence number and data. Returns `None` for other
/// messages, and for replies whose identifier is not `ident`, if given.
fn parse_reply(bytes: &[u8], peer: IpAddr, ident: Option<u16>) -> Option<(u16, &[u8])> {
    let (theirs, seq, data) = if peer.is_ipv4() {
        let message = match ident {
            Some(_) => bytes.get(ipv4::Header::parse(bytes).ok()?.1)?,
            None => bytes,
        };
        let (header, at) = icmpv4::Message::parse(message).ok()?;
        let icmpv4::Message::EchoReply { ident, seq } = header else { return None };
        (ident, seq, message.get(at..)?)
    } else {
        let (header, at) = icmpv6::Message::parse(bytes).ok()?;
        let icmpv6::Message::EchoReply { ident, seq } = header else { return None };
        (ident, seq, bytes.get(at..)?)
    };
    ident.is_none_or(|ident| ident == theirs).then_some((seq, data))
}

fn reply(cx: &mut Context<'_, impl Host>, answer: &EchoOut, data: &[u8]) {
    let payload = Payload::new(data, Fragments::empty());
    match cx.stack.send_echo_from(cx.now, answer, &payload, cx.pool) {
        Ok(_) => cx.shared.counters.echo_replies += 1,
        Err(_) => cx.shared.counters.echo_dropped += 1,
    }
    cx.touched = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_from_other_messages() {
        let peer: IpAddr = "192.0.2.1".parse().unwrap();
        let mut message = [0; 12];
        icmpv4::Message::EchoReply { ident: 7, seq: 9 }.emit(&mut message);
        message[8..].copy_from_slice(b"data");
        assert_eq!(parse_reply(&message, peer, None), Some((9, &b"data"[..])));
        assert_eq!(parse_reply(&message, peer, Some(7)), None, "a raw socket gives an IP header");
        icmpv4::Message::EchoRequest { ident: 7, seq: 9 }.emit(&mut message);
        assert_eq!(parse_reply(&message, peer, None), None);
        assert_eq!(parse_reply(&[], peer, None), None);
    }
}
