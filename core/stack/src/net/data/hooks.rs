//! Rules judge packets here, at five hooks.
//!
//! ```text
//!  receive ─► judge_received: prerouting, input ─► forward ─► judge_transit: forward, postrouting
//!  send ────► judge_sent: output, postrouting
//! ```
//!
//! Each call stands behind one look at `Snapshot::rules`, so that a host without rules pays a
//! branch. ARP and neighbour discovery are not judged: without them there is no link. `reject`
//! drops and answers refused packets. A rule that rejects a packet of this host drops it, because
//! its sender is here.

use core::net::IpAddr;

use towpath_filter::{Action, Fields, Hook, Judgement};
use towpath_pool::Packet;
use towpath_tcp::Instant;
use towpath_wire::{IpProtocol, ipv4, ndp};

use super::receive::IpPacket;
use super::tables::Data;
use super::verdict::Verdict;
use crate::net::iface::IfaceId;
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
        ip: &IpPacket,
        link_group: bool,
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
        let verdict = self.verdict(iface, ip.src, ip.dst, link_group);
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
        src: IpAddr,
        dst: IpAddr,
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
}

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
