//! Rules judge packets here, at five hooks.
//!
//! ```text
//!  receive ─► judge_received: prerouting, input ─► forward ─► judge_transit: forward, postrouting
//!  send ────► judge_sent: output, postrouting
//! ```
//!
//! Each call stands behind one look at `Snapshot::rules`, so that a host without rules pays a
//! branch. ARP and neighbour discovery are not judged: without them there is no link. A rule that
//! rejects a packet of this host drops it, for its sender is here.

use core::net::IpAddr;

use towpath_filter::{Action, Fields, Hook, Judgement};
use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;
use towpath_wire::tcp::{self, Flags};
use towpath_wire::{IpProtocol, ipv4, ndp};

use super::receive::IpPacket;
use super::report::{Offender, Report, Unreachable};
use super::tables::Data;
use super::verdict::Verdict;
use crate::drop::DropReason;
use crate::net::iface::IfaceId;
use crate::net::ip::{Fragmenting, Ip};
use crate::net::limits::LOGGED_MAX;
use crate::net::rule_set::Logged;

/// A packet that rules refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Dropped,
    Rejected,
    /// A fragment that could hide a transport header.
    Fragment,
    /// No transport header was found.
    Hidden,
}

impl Data {
    /// Has rules judge a packet that came in by `iface`, before routing, and as one for this host
    /// if it is.
    #[cold]
    pub(super) fn judge_received(
        &mut self,
        now: Instant,
        iface: IfaceId,
        (ip, link_group): (&IpPacket, bool),
        packet: &Packet,
    ) -> Result<(), Refused> {
        let Some(set) = &self.snapshot.rules else { return Ok(()) };
        let hooks = set.rules().hooks();
        check_visible(packet, ip)?;
        let mut fields = fields_of(packet, ip);
        fields.iface_in = Some(iface.0);
        if is_discovery(&fields, ip) {
            return Ok(());
        }
        let len = ip.end - ip.ip_offset;
        if hooks.contains(Hook::Prerouting) {
            self.judge(now, &mut fields, Hook::Prerouting, len)?;
        }
        let verdict = self.verdict(iface, (ip.src, ip.dst), link_group);
        if hooks.contains(Hook::Input) && matches!(verdict, Verdict::Local { .. }) {
            self.judge(now, &mut fields, Hook::Input, len)?;
        }
        Ok(())
    }

    /// Has rules judge a packet of another host that leaves by `out`.
    pub(super) fn judge_transit(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        out: IfaceId,
        packet: &Packet,
    ) -> Result<(), Refused> {
        let Some(set) = &self.snapshot.rules else { return Ok(()) };
        let hooks = set.rules().hooks();
        let mut fields = fields_of(packet, ip);
        (fields.iface_in, fields.iface_out) = (Some(iface.0), Some(out.0));
        for hook in [Hook::Forward, Hook::Postrouting] {
            if hooks.contains(hook) {
                self.judge(now, &mut fields, hook, ip.end - ip.ip_offset)?;
            }
        }
        Ok(())
    }

    /// Has rules judge a packet of this host that leaves by `out`, and starts with its transport
    /// header.
    #[cold]
    pub(super) fn judge_sent(
        &mut self,
        now: Instant,
        out: IfaceId,
        (src, dst): (IpAddr, IpAddr),
        protocol: u8,
        packet: &Packet,
    ) -> Result<(), Refused> {
        let Some(set) = &self.snapshot.rules else { return Ok(()) };
        let hooks = set.rules().hooks();
        let mut fields = Fields {
            hook: Hook::Output,
            src,
            dst,
            protocol,
            ports: None,
            tcp_flags: 0,
            icmp: None,
            iface_in: None,
            iface_out: Some(out.0),
        };
        read_transport(&mut fields, packet.linear());
        for hook in [Hook::Output, Hook::Postrouting] {
            if hooks.contains(hook) {
                self.judge(now, &mut fields, hook, packet.len())?;
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn judge(
        &mut self,
        now: Instant,
        fields: &mut Fields,
        hook: Hook,
        len: usize,
    ) -> Result<(), Refused> {
        let Some(set) = &self.snapshot.rules else { return Ok(()) };
        fields.hook = hook;
        let judgement = set.rules().judge(fields);
        let counters = set.counters(self.shard);
        counters.on_judged(hook, &judgement, len);
        if judgement.log && counters.is_log_due(set.rules(), &judgement, now.0) {
            self.log(*fields, judgement, len);
        }
        match judgement.action {
            Action::Accept => Ok(()),
            Action::Drop => Err(Refused::Dropped),
            Action::Reject => Err(Refused::Rejected),
        }
    }

    fn log(&mut self, fields: Fields, judgement: Judgement, len: usize) {
        if self.logged.len() >= LOGGED_MAX {
            self.counters.rules_unlogged += 1;
            return;
        }
        let set = self.snapshot.rules.as_ref();
        let index = judgement.rule;
        if let Some(rule) = set.zip(index).and_then(|(set, index)| set.rules().rule(index)) {
            let (rule, action) = (rule.id, judgement.action);
            self.logged.push_back(Logged { fields, rule, action, len });
        }
    }

    /// Drops a packet that rules refuse, and reports that to its sender if they say so.
    #[cold]
    pub(super) fn refuse_by_rule(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        refused: Refused,
        packet: Packet,
        pool: &mut Pool,
    ) {
        let reason = match refused {
            Refused::Dropped => DropReason::FilterDrop,
            Refused::Fragment => DropReason::FilterFragment,
            Refused::Hidden => DropReason::FilterHidden,
            Refused::Rejected => {
                self.reject(now, iface, ip, &packet, pool);
                DropReason::FilterReject
            }
        };
        self.drop(iface, packet, reason, pool);
    }

    /// Answers a rejected packet: a segment by a reset, anything else by an ICMP error.
    fn reject(
        &mut self,
        now: Instant,
        iface: IfaceId,
        ip: &IpPacket,
        packet: &Packet,
        pool: &mut Pool,
    ) {
        let group = matches!(
            self.verdict(iface, (ip.src, ip.dst), false),
            Verdict::Local { group: true } | Verdict::Drop(_)
        );
        if group {
            return;
        }
        let is_tcp = ip.protocol == IpProtocol::TCP && ip.fragment.is_none();
        if is_tcp && self.send_reset(now, ip, packet, pool).is_some() {
            return;
        }
        let (src, dst, ip_offset, end) = (ip.src, ip.dst, ip.ip_offset, ip.end);
        let about = Offender { iface, src, dst, ip_offset, end, group };
        let report = Report::unreachable(src.is_ipv4(), Unreachable::AdminProhibited, || 0);
        self.send_error(now, packet, &about, report, pool);
    }

    /// Resets the connection of a segment in the name of its destination, as RFC 9293 (3.10.7.1)
    /// has a closed port answer. `None`: it is no segment.
    fn send_reset(
        &mut self,
        now: Instant,
        ip: &IpPacket,
        packet: &Packet,
        pool: &mut Pool,
    ) -> Option<()> {
        let segment = packet.linear().get(ip.offset..)?;
        let header = tcp::Header::parse(segment).ok()?;
        // A reset answered by a reset would have no end.
        if header.flags.contains(Flags::RST) {
            return Some(());
        }
        let payload = (ip.end - ip.offset).saturating_sub(usize::from(header.header_len)) as u32;
        let controls = [Flags::SYN, Flags::FIN].map(|flag| u32::from(header.flags.contains(flag)));
        let len = payload + controls[0] + controls[1];
        let mut reset = [0; RESET_LEN];
        reset[..2].copy_from_slice(&header.dst_port.to_be_bytes());
        reset[2..4].copy_from_slice(&header.src_port.to_be_bytes());
        reset[12] = (RESET_LEN as u8 / 4) << 4;
        if header.flags.contains(Flags::ACK) {
            reset[4..8].copy_from_slice(&header.ack.0.to_be_bytes());
            reset[13] = Flags::RST.0 as u8;
        } else {
            reset[8..12].copy_from_slice(&header.seq.0.wrapping_add(len).to_be_bytes());
            reset[13] = (Flags::RST | Flags::ACK).0 as u8;
        }
        let mut answer = pool.take(RESET_LEN);
        answer.push_back(RESET_LEN).expect("taken with room").copy_from_slice(&reset);
        let Ok(route) = self.route(now, Some(ip.dst), ip.src, None) else {
            pool.give(answer);
            return Some(());
        };
        let how = Ip {
            protocol: IpProtocol::TCP.0,
            ttl: None,
            tos: 0,
            fragmenting: Fragmenting::Anywhere,
            flow_label: 0,
        };
        let at = Some(tcp::CHECKSUM_OFFSET as u16);
        // The sender of a segment whose reset is lost sends it again, and gets another one.
        let _ = self.send(now, &route, (ip.dst, ip.src), how, answer, at, pool);
        Some(())
    }
}

/// Length of a reset in bytes: a TCP header without options.
const RESET_LEN: usize = 20;

/// The packet as rules see it, at no hook in particular yet.
fn fields_of(packet: &Packet, ip: &IpPacket) -> Fields {
    let upper = ip.upper(packet);
    let mut fields = Fields {
        hook: Hook::Prerouting,
        src: ip.src,
        dst: ip.dst,
        protocol: upper.map_or(ip.protocol, |upper| upper.protocol).0,
        ports: None,
        tcp_flags: 0,
        icmp: None,
        iface_in: None,
        iface_out: None,
    };
    if let Some(upper) = upper.filter(|upper| upper.fragment_offset == 0) {
        // Padding behind the packet is no part of its transport header.
        let linear = packet.linear();
        let end = ip.end.min(linear.len());
        read_transport(&mut fields, linear.get(upper.at..end).unwrap_or_default());
    }
    fields
}

/// The same of a packet that starts with an IPv4 header without options, and is no fragment.
#[inline]
pub(super) fn fields_of_plain_v4(bytes: &[u8]) -> Fields {
    let (header, transport) = bytes.split_first_chunk().unwrap_or((&[0; ipv4::HEADER_LEN], &[]));
    let (words, _) = header.as_chunks::<4>();
    let mut fields = Fields {
        hook: Hook::Prerouting,
        src: IpAddr::from(words[3]),
        dst: IpAddr::from(words[4]),
        protocol: words[2][1],
        ports: None,
        tcp_flags: 0,
        icmp: None,
        iface_in: None,
        iface_out: None,
    };
    read_transport(&mut fields, transport);
    fields
}

/// Reads ports, flags and the kind of an ICMP message, as far as there are any.
fn read_transport(fields: &mut Fields, bytes: &[u8]) {
    match IpProtocol(fields.protocol) {
        IpProtocol::TCP | IpProtocol::UDP | SCTP | DCCP | UDP_LITE => {
            if let Some([a, b, c, d]) = bytes.first_chunk::<4>() {
                fields.ports = Some((u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])));
            }
            if fields.protocol == IpProtocol::TCP.0 {
                fields.tcp_flags = bytes.get(TCP_FLAGS_AT).copied().unwrap_or(0);
            }
        }
        IpProtocol::ICMP | IpProtocol::ICMPV6 => {
            fields.icmp = bytes.first_chunk::<2>().map(|[kind, code]| (*kind, *code));
        }
        _ => {}
    }
}

const TCP_FLAGS_AT: usize = 13;
const TCP_HEADER_MIN: usize = 20;
const SCTP: IpProtocol = IpProtocol(132);
const DCCP: IpProtocol = IpProtocol(33);
const UDP_LITE: IpProtocol = IpProtocol(136);

/// Neighbour discovery from the link itself.
fn is_discovery(fields: &Fields, ip: &IpPacket) -> bool {
    let kinds = ndp::ROUTER_SOLICIT..=ndp::REDIRECT;
    let is_kind = fields.icmp.is_some_and(|(kind, _)| kinds.contains(&kind));
    fields.protocol == IpProtocol::ICMPV6.0 && is_kind && ip.ttl == ndp::HOP_LIMIT
}

/// Refuses a packet whose transport header rules cannot see, or which could overwrite that of the
/// first fragment. Offsets 8 and 16 are refused for every protocol, since no link needs them:
/// fragments for an MTU of 68 bytes (RFC 791) carry 48.
//= https://www.rfc-editor.org/rfc/rfc1858#section-3.2.2
//# IF FO=1 and PROTOCOL=TCP then
//# DROP PACKET
//= https://www.rfc-editor.org/rfc/rfc8200#section-4.5
//# If the first fragment does not include all headers through an
//# Upper-Layer header, then that fragment should be discarded
fn check_visible(packet: &Packet, ip: &IpPacket) -> Result<(), Refused> {
    let upper = ip.upper(packet).ok_or(Refused::Hidden)?;
    let is_first = upper.fragment_offset == 0 && upper.more_fragments;
    let is_incomplete = is_first && ip.end < upper.at + header_len_min(upper.protocol);
    if is_incomplete || (1..TCP_HEADER_MIN).contains(&upper.fragment_offset) {
        return Err(Refused::Fragment);
    }
    Ok(())
}

/// Length of the shortest header of a protocol, as far as rules have conditions on it.
fn header_len_min(protocol: IpProtocol) -> usize {
    match protocol {
        IpProtocol::TCP => TCP_HEADER_MIN,
        IpProtocol::UDP | UDP_LITE | IpProtocol::ICMP | IpProtocol::ICMPV6 => 8,
        SCTP | DCCP => 12,
        _ => 0,
    }
}
