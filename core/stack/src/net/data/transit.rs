//! Forwards packets in batches: the fast path of a router for packets without special cases.
//!
//! ```text
//!  plan_transit: headers ─► addresses ─► routes        a plan for each packet of a batch
//!  forward_run:  next hop ─► rules ─► TTL ─► output    while plans say `Pass`
//! ```
//!
//! A plan depends only on the packet's bytes and the snapshot. `Pass` is planned for unfragmented
//! IPv4 packets without options that pass every check of `receive`, `verdict` and `forward`. The
//! three functions handle all other packets and every error. `tests/transit.rs` compares the fast
//! path with them.
//!
//! Budget: 700 instructions per packet with one route and no rules, including output. The packet's
//! bytes are not copied, and nothing is allocated.

use core::net::{IpAddr, Ipv4Addr};

use towpath_filter::Hook;
use towpath_pool::{Batch, Checksum, LinkType, Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::{checksum, ipv4};

use super::fields;
use super::forward::{ends, lower_ttl_v4};
use super::ip_packet::IpPacket;
use super::plans::{Looked, Plans, TransitPlan};
use super::refusal::RuleRefusal;
use super::tables::Data;
use crate::drop::DropReason;
use crate::net::config::SourceCheck;
use crate::net::fib::Ways;
use crate::net::iface::IfaceId;
use crate::net::link_header::LinkHeader;
use crate::net::route::RouteKind;
use crate::net::snapshot::Link;

/// Number of packets of a batch whose routes are looked up at the same time.
const LOOK_UPS: usize = 32;

/// Header fields that are needed to plan the forwarding of a packet. `len`, the length of the IP
/// packet in bytes, is 0 if the packet must be passed to `receive`.
#[derive(Debug, Clone, Copy, Default)]
struct Head {
    src: u32,
    dst: u32,
    len: u16,
}

/// Interfaces of a packet that is forwarded on the fast path, and the offset and length in bytes of
/// its IP packet.
#[derive(Debug, Clone, Copy)]
struct TransitPass {
    iface: IfaceId,
    out: IfaceId,
    at: usize,
    len: usize,
}

/// Sums of packets and bytes that `forward_run` processed. The sums are added to the counters at
/// the end of the run.
#[derive(Debug, Default)]
struct TransitSums {
    received: u64,
    received_bytes: usize,
    forwarded: u64,
    forwarded_bytes: usize,
    sent_bytes: usize,
}

impl Data {
    /// Plans the forwarding of each packet of a batch that was received on the interface `iface`.
    ///
    /// Routes of several packets are looked up at the same time, so that the memory accesses of the
    /// lookups overlap.
    pub(in crate::net) fn plan_transit(&mut self, iface: IfaceId, packets: &Batch) {
        self.plans.clear();
        if self.hooks.tracks_transit() {
            return;
        }
        let mut plans = core::mem::take(&mut self.plans);
        let (front, back) = packets.as_slices();
        for chunk in front.chunks(LOOK_UPS).chain(back.chunks(LOOK_UPS)) {
            self.plan_chunk(iface, chunk, &mut plans);
        }
        self.plans = plans;
    }

    fn plan_chunk(&self, iface: IfaceId, packets: &[Packet], plans: &mut Plans) {
        let link = self.link(iface);
        let mut heads = [Head::default(); LOOK_UPS];
        let mut destinations = [0; LOOK_UPS];
        if !link.any_address && !link.mac.is_multicast() {
            for (n, packet) in packets.iter().enumerate() {
                if let Some(head) = read_head(link, packet).filter(|it| self.is_between_others(it))
                {
                    (heads[n], destinations[n]) = (head, head.dst);
                }
            }
        }
        let mut found = [None; LOOK_UPS];
        self.snapshot.fib.find_all(&destinations[..packets.len()], &mut found);
        let checks = self.forwarding.is_some_and(|it| it.source_check != SourceCheck::Off);
        for ((head, ways), packet) in heads.iter().zip(found).zip(packets) {
            if head.len == 0 {
                plans.push(TransitPlan::Receive, || self.look_up(link, packet));
                continue;
            }
            let is_refused = || checks && !self.may_come_by(iface, v4(head.src));
            let pass =
                ways.and_then(|ways| self.pass_by(iface, ways, head)).filter(|_| !is_refused());
            plans.push(pass.unwrap_or(TransitPlan::Receive), || None);
        }
    }

    /// Returns whether a packet is between other hosts: neither address is an address of this host
    /// or a broadcast address.
    #[inline]
    fn is_between_others(&self, head: &Head) -> bool {
        let locals = &self.here().locals;
        !locals.may_know(head.src) && !locals.may_know(head.dst)
    }

    /// Returns the plan to forward a packet by its route on the fast path; `None` if the packet
    /// needs further checks.
    #[inline]
    fn pass_by(&self, iface: IfaceId, ways: &Ways, head: &Head) -> Option<TransitPlan> {
        let shared;
        let way = match &**ways {
            [way] => way,
            _ => {
                let ends = (v4(head.src), v4(head.dst));
                shared = self.snapshot.fib.choose_between(ways, ends).filter(|it| !it.avoids)?;
                &shared.way
            }
        };
        let router = match way.next_hop {
            None => head.dst,
            Some(IpAddr::V4(router)) => router.to_bits(),
            Some(IpAddr::V6(_)) => return None,
        };
        let is_plain = way.kind == RouteKind::Unicast
            && way.iface != IfaceId::LOOPBACK
            // The packet must leave by another interface than the one on which it arrived.
            // Otherwise its sender may need an ICMP redirect.
            && way.iface != iface
            && u32::from(head.len) <= way.limit(self.link(way.iface).mtu);
        is_plain.then_some(TransitPlan::Pass { out: way.iface, len: head.len, router })
    }

    /// Looks up the route of a packet that is passed to `receive`.
    fn look_up(&self, link: &Link, packet: &Packet) -> Option<Looked> {
        let at = if link.kind == LinkType::Ethernet { ethernet::HEADER_LEN } else { 0 };
        let ends = ends(packet.linear().get(at..)?)?;
        Some((ends, self.snapshot.fib.best_between(ends.0, ends.1)))
    }

    /// Forwards packets from the front of a batch, until a packet must be passed to `receive`.
    /// Returns the bytes of all packets that were forwarded or dropped.
    pub(in crate::net) fn forward_run(
        &mut self,
        now: Instant,
        iface: IfaceId,
        batch: &mut Batch,
        pool: &mut Pool,
    ) -> usize {
        let at = if self.has_neighbors(iface) { ethernet::HEADER_LEN } else { 0 };
        let has_rules = self.hooks.has_rules();
        let mut sums = TransitSums::default();
        while let Some(TransitPlan::Pass { out, len, router }) = self.plans.front() {
            let Some(link) = self.link_ready(now, out, router) else { break };
            if self.outputs[out.index()].full(None).is_some() {
                break;
            }
            let Some(mut packet) = batch.pop_front() else { break };
            self.plans.advance();
            let len = usize::from(len);
            sums.received += 1;
            sums.received_bytes += packet.len();
            if has_rules {
                match self.judge_pass(now, TransitPass { iface, out, at, len }, packet, pool) {
                    Some(accepted) => packet = accepted,
                    // A rule rejected the packet. Stop if this caused reports to the control part
                    // of the IP layer, because the ICMP error to the sender may depend on its
                    // answer.
                    None if self.has_told() => break,
                    None => continue,
                }
            }
            packet.truncate(at + len);
            packet.pull_front(at).expect("the header was read there");
            if let Some(header) = packet.linear_mut().first_chunk_mut() {
                lower_ttl_v4(header);
            }
            if let Some(header) = link.whole() {
                packet.push_front(header.len()).copy_from_slice(header);
            }
            (packet.meta.vlan, packet.meta.sender) = (None, None);
            sums.forwarded += 1;
            sums.forwarded_bytes += len;
            sums.sent_bytes += packet.len();
            self.outputs[out.index()].enqueue(packet);
        }
        self.plans.pass_over();
        self.counters.received += sums.received;
        self.counters.received_bytes += sums.received_bytes as u64;
        self.counters.forwarded += sums.forwarded;
        self.counters.forwarded_bytes += sums.forwarded_bytes as u64;
        self.counters.sent += sums.forwarded;
        self.counters.sent_bytes += sums.sent_bytes as u64;
        sums.received_bytes
    }

    /// Returns the link header for a packet to a next hop. Returns `None` if the next hop is
    /// unknown, or if its use must be reported to the control part.
    #[inline]
    fn link_ready(&mut self, now: Instant, out: IfaceId, router: u32) -> Option<LinkHeader> {
        match self.link(out).kind {
            LinkType::Ip => Some(LinkHeader::NONE),
            LinkType::Ethernet => self.next_hops.ready(now, &(out, v4(router))),
        }
    }

    /// Evaluates the rules of the packet filter for a packet. Returns `None` if the packet was
    /// refused.
    #[inline]
    fn judge_pass(
        &mut self,
        now: Instant,
        pass: TransitPass,
        mut packet: Packet,
        pool: &mut Pool,
    ) -> Option<Packet> {
        let TransitPass { iface, out, at, len } = pass;
        let bytes = packet.linear().get(at..at + len).unwrap_or_default();
        let mut fields = fields::of_plain_v4(bytes);
        fields.iface_in = Some(iface.0);
        for hook in [Hook::Prerouting, Hook::Forward, Hook::Postrouting] {
            if hook == Hook::Forward {
                packet.truncate(at + len);
                fields.iface_out = Some(out.0);
            }
            if let Err(refusal) = self.hooks.judge(now, hook, &mut fields, len) {
                self.refuse_pass(now, iface, at, refusal, packet, pool);
                return None;
            }
        }
        Some(packet)
    }

    #[cold]
    fn refuse_pass(
        &mut self,
        now: Instant,
        iface: IfaceId,
        at: usize,
        refusal: RuleRefusal,
        packet: Packet,
        pool: &mut Pool,
    ) {
        match IpPacket::of_plain_v4(&packet, at) {
            Some(ip) => self.refuse_at_hook(now, iface, &ip, refusal, packet, pool),
            // Unreachable, because the plan was made from the same bytes.
            None => self.drop(iface, packet, DropReason::IpMalformed, pool),
        }
    }
}

#[inline]
fn v4(bits: u32) -> IpAddr {
    Ipv4Addr::from_bits(bits).into()
}

/// Reads the header fields of a packet that can be forwarded by a plan. If the packet cannot, `len`
/// is 0.
#[inline]
fn read_head(link: &Link, packet: &Packet) -> Option<Head> {
    let meta = &packet.meta;
    let is_whole = packet.tail.is_empty()
        && meta.segmentation.is_none()
        && meta.vlan.is_none()
        && !matches!(meta.checksum, Checksum::Partial { .. });
    if !is_whole {
        return None;
    }
    let bytes = packet.linear();
    let (header, room) = match link.kind {
        LinkType::Ip => (bytes.first_chunk::<{ ipv4::HEADER_LEN }>()?, bytes.len()),
        LinkType::Ethernet => {
            let frame = bytes.first_chunk::<{ ethernet::HEADER_LEN + ipv4::HEADER_LEN }>()?;
            let (link_header, header) = frame.split_last_chunk()?;
            let (to, from) = link_header.split_first_chunk::<6>()?;
            let (from, ethertype) = from.split_first_chunk::<6>()?;
            let is_ours = *to == link.mac.0 && *from != link.mac.0;
            if !is_ours || ethertype != EtherType::IPV4.0.to_be_bytes() {
                return None;
            }
            (header, bytes.len() - ethernet::HEADER_LEN)
        }
    };
    read_header(header).filter(|head| usize::from(head.len) <= room)
}

/// Reads an IPv4 header without options. The packet must be unfragmented, and its addresses
/// unicast.
#[inline]
fn read_header(header: &[u8; ipv4::HEADER_LEN]) -> Option<Head> {
    const FIRST: u32 = 0x45 << 24;
    const FRAGMENT: u32 = 0x3fff;
    let (words, _) = header.as_chunks::<4>();
    let word = |n: usize| u32::from_be_bytes(words[n]);
    let sum = (0..5).map(|n| u64::from(word(n))).sum();
    let len = word(0) as u16;
    let is_plain = word(0) & 0xff00_0000 == FIRST
        && usize::from(len) >= ipv4::HEADER_LEN
        && word(1) & FRAGMENT == 0
        && word(2) >> 24 > 1
        && is_far_unicast(word(3))
        && is_far_unicast(word(4))
        && checksum::finish(sum) == 0;
    is_plain.then_some(Head { src: word(3), dst: word(4), len })
}

/// Returns whether routers forward packets from and to this IPv4 address. Returns false for
/// 0.0.0.0/8, loopback, link-local, multicast, class E and broadcast addresses.
#[inline]
fn is_far_unicast(bits: u32) -> bool {
    let first = bits >> 24;
    first.wrapping_sub(1) < 223 && first != 127 && bits >> 16 != 0xa9fe
}
