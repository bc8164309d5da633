//! Handles packets at the last hook of the router: translates the source address, and adds new
//! flows to the table.

use core::net::IpAddr;

use towpath_filter::{Action, FlowState, Hook};
use towpath_wire::IpProtocol;

use crate::events::FlowEventKind;
use crate::flow::{FlowClass, FlowTraffic, NONE, TrackedFlow};
use crate::mappings::{MappingRequest, range_of};
use crate::rules::NatKind;
use crate::table::{FlowRemoval, TableRefusal};
use crate::tcp::{TcpPhase, TcpTrack};
use crate::tracker::{Conntrack, FlowMark, OpeningFlow, PacketMark, info, set_src};
use crate::tuple::{FlowDirection, Tuple};
use crate::view::PacketView;

/// Maximum number of source ports tried for a new flow. A port cannot be used if the flow's reply
/// packets would have the addresses and ports of an existing flow.
const TRIES_MAX: usize = 128;

/// Source address and port chosen for a new flow (source NAT).
struct SourceChoice {
    /// Addresses and ports of the packet after source translation.
    tuple: Tuple,
    /// Number of the table slot of the port mapping that the flow uses, or [`NONE`].
    mapping: u32,
    /// Number of the interface whose address replaces the source address; 0 without masquerading.
    masquerade: u16,
}

/// Address that replaces the source address of a new flow (source NAT).
struct OutsideAddress {
    addr: IpAddr,
    rule: Option<usize>,
    masquerade: u16,
}

impl Conntrack {
    pub(crate) fn on_departure(&mut self, now_ns: u64, packet: &mut impl PacketView) -> Action {
        let mark = packet.token().into();
        match mark {
            PacketMark::None => self.on_untracked(packet),
            PacketMark::Pending(serial) => {
                match self.pending.take().filter(|it| it.serial == serial) {
                    Some(pending) => self.confirm(now_ns, packet, &pending),
                    None => Action::Drop,
                }
            }
            PacketMark::Flow(_) => {
                let Some((flow, way)) = self.flow_of(mark) else { return Action::Drop };
                let target = flow.translated(way);
                if packet.fragment().is_some_and(|fragment| !fragment.is_first) {
                    if packet.fields().src != target.src {
                        packet.set_src(target.src);
                    }
                    return Action::Accept;
                }
                set_src(packet, &target);
                Action::Accept
            }
            PacketMark::Error(_) => {
                let Some((flow, way)) = self.flow_of(mark) else { return Action::Drop };
                let (sent, translated) = (flow.tuples[way as usize], flow.translated(way));
                // Translate the source as in other packets of the flow, because outside hosts
                // cannot reach the inside address.
                if sent.src != translated.src {
                    packet.set_src(translated.src);
                }
                Action::Accept
            }
        }
    }

    /// Drops a packet without a flow if a rule requires that its source is translated. Otherwise
    /// the private source address would be visible outside.
    fn on_untracked(&mut self, packet: &impl PacketView) -> Action {
        let fields = packet.fields();
        let has_to = fields.hook == Hook::Postrouting
            && fields.state == FlowState::Invalid
            && fields.iface_in.is_some()
            && self.rules.find(fields).is_some();
        if !has_to {
            return Action::Accept;
        }
        self.ledger.counters.untranslatable += 1;
        Action::Drop
    }

    /// Adds the flow that the packet opens to the table, and translates the packet's source.
    fn confirm(
        &mut self,
        now_ns: u64,
        packet: &mut impl PacketView,
        pending: &OpeningFlow,
    ) -> Action {
        let Some(choice) = self.choose_source(now_ns, packet, pending) else { return Action::Drop };
        let SourceChoice { tuple, mapping, masquerade } = choice;
        let class = match IpProtocol(tuple.protocol) {
            IpProtocol::TCP => FlowClass::of_tcp(TcpPhase::Opening),
            IpProtocol::UDP => FlowClass::UdpUnanswered,
            _ if tuple.query != 0 => FlowClass::IcmpUnanswered,
            _ => FlowClass::OtherUnanswered,
        };
        let first = FlowTraffic { packets: 1, bytes: packet.len() as u64 };
        let flow = TrackedFlow {
            tuples: [pending.tuple, tuple.inverse()],
            tcp: pending.tcp.as_ref().map(TcpTrack::open).unwrap_or_default(),
            traffic: [first, FlowTraffic::default()],
            last_ns: now_ns,
            newer: NONE,
            older: NONE,
            source_newer: NONE,
            source_older: NONE,
            generation: 0,
            source: NONE,
            mapping,
            masquerade,
            class,
            is_live: true,
            is_answered: false,
        };
        let ledger = &mut self.ledger;
        let removed = |id, flow: &TrackedFlow, why| ledger.on_removed(id, flow, why);
        let id = match self.table.insert(flow, now_ns, removed) {
            Ok(id) => id,
            Err(refusal) => {
                self.refuse(mapping, refusal);
                return Action::Drop;
            }
        };
        self.ledger.counters.created += 1;
        let flow = *self.table.at(id);
        self.ledger
            .events
            .push(FlowEventKind::New, info(id, &flow, self.table.left_ns(id, now_ns)));
        let of = FlowMark { id, generation: flow.generation, way: FlowDirection::Original };
        packet.set_tracked(PacketMark::Flow(of).into(), FlowState::New);
        if let Some(key) = pending.fragment {
            self.fragments.note(key, PacketMark::Flow(of).into(), now_ns);
        }
        set_src(packet, &tuple);
        Action::Accept
    }

    fn refuse(&mut self, mapping: u32, refusal: TableRefusal) {
        if mapping != NONE {
            self.ledger.mappings.release(mapping);
        }
        match refusal {
            TableRefusal::Full => self.ledger.counters.table_full += 1,
            TableRefusal::SourceFull => self.ledger.counters.source_full += 1,
        }
    }

    /// Chooses the source of a new flow so that its reply packets cannot be confused with those of
    /// an existing flow. Returns `None` if no port is free.
    fn choose_source(
        &mut self,
        now_ns: u64,
        packet: &impl PacketView,
        pending: &OpeningFlow,
    ) -> Option<SourceChoice> {
        let fields = packet.fields();
        let (dst, ports) = (fields.dst, fields.ports);
        let dst_port = ports.map_or(pending.tuple.dst_port, |(_, dst_port)| dst_port);
        let tuple = Tuple { dst, dst_port, ..pending.tuple };
        let plain = SourceChoice { tuple, mapping: pending.mapping, masquerade: 0 };
        let choice = match self.outside_of(packet, pending)? {
            Some(outside) => self.translate_source(tuple, &outside)?,
            None => {
                if plain.mapping != NONE {
                    // The mapping may have been removed since the packet passed the first hook.
                    let found = self.ledger.mappings.full_cone(&pending.tuple);
                    found.filter(|slot| *slot == plain.mapping)?;
                    self.ledger.mappings.hold(plain.mapping);
                }
                plain
            }
        };
        if let Some(index) = pending.rule {
            self.rules.count(index);
        }
        let is_own_answer = choice.tuple.inverse() == pending.tuple;
        if !is_own_answer && self.is_free(now_ns, &choice.tuple) {
            return Some(choice);
        }
        if choice.mapping != NONE {
            self.ledger.mappings.release(choice.mapping);
            self.ledger.counters.ports_exhausted += 1;
            return None;
        }
        let free = self.free_source(now_ns, choice.tuple);
        self.ledger.counters.ports_exhausted += u64::from(free.is_none());
        Some(SourceChoice { tuple: free?, ..choice })
    }

    /// Returns the address that replaces the source of a new flow, or `Some(None)` to keep the
    /// source. Returns `None` if the outgoing interface has no address.
    fn outside_of(
        &mut self,
        packet: &impl PacketView,
        pending: &OpeningFlow,
    ) -> Option<Option<OutsideAddress>> {
        let fields = packet.fields();
        if fields.hook != Hook::Postrouting {
            return Some(None);
        }
        let is_v4 = fields.src.is_ipv4();
        let out = fields.iface_out.unwrap_or_default();
        let rule = self.rules.find(fields);
        let (addr, masquerade) = match rule.map(|index| self.rules.at(index)) {
            Some(rule) if rule.kind == NatKind::Masquerade => (self.address_of(out, is_v4), out),
            Some(rule) => (rule.to, 0),
            //= https://www.rfc-editor.org/rfc/rfc4787#section-6
            //# a) A NAT Hairpinning behavior MUST be "External source IP
            //# address and port".
            None if pending.rule.is_some() && fields.iface_in == fields.iface_out => {
                let known = Some(pending.tuple.dst).filter(|addr| self.is_own(*addr));
                (known.or_else(|| self.address_of(out, is_v4)), 0)
            }
            None => return Some(None),
        };
        match addr {
            Some(addr) if addr.is_ipv4() != is_v4 => Some(None),
            Some(addr) if addr == fields.src => Some(None),
            Some(addr) => Some(Some(OutsideAddress { addr, rule, masquerade })),
            None => {
                self.ledger.counters.no_address += 1;
                None
            }
        }
    }

    fn translate_source(&mut self, tuple: Tuple, outside: &OutsideAddress) -> Option<SourceChoice> {
        let &OutsideAddress { addr, rule, masquerade } = outside;
        if let Some(index) = rule {
            self.rules.count(index);
        }
        if !tuple.has_ports() {
            let tuple = tuple.with_src(addr, tuple.src_port);
            return Some(SourceChoice { tuple, mapping: NONE, masquerade });
        }
        let rule = rule.map(|index| self.rules.at(index));
        let request = MappingRequest {
            tuple,
            outside: addr,
            ports: rule.and_then(|rule| rule.ports),
            is_full_cone: rule.is_some_and(|rule| rule.is_full_cone),
        };
        let Some(mapping) = self.ledger.mappings.take(&request) else {
            self.ledger.counters.ports_exhausted += 1;
            return None;
        };
        let port = self.ledger.mappings.at(mapping).outside.port;
        Some(SourceChoice { tuple: tuple.with_src(addr, port), mapping, masquerade })
    }

    /// Returns whether no flow in the table matches the replies to packets with this tuple.
    fn is_free(&mut self, now_ns: u64, tuple: &Tuple) -> bool {
        match self.table.find(&tuple.inverse()) {
            Some((id, _)) if self.table.left_ns(id, now_ns) == 0 => {
                self.remove(id, FlowRemoval::Expired);
                true
            }
            found => found.is_none(),
        }
    }

    /// Returns the tuple with a different source port, chosen so that no flow in the table matches
    /// the replies.
    fn free_source(&mut self, now_ns: u64, tuple: Tuple) -> Option<Tuple> {
        if !tuple.has_ports() {
            return None;
        }
        let range = range_of(&tuple);
        let count = u64::from(range.last - range.first) + 1;
        (0..TRIES_MAX).find_map(|_| {
            let offset = (u64::from(self.ledger.mappings.random()) * count) >> 32;
            let tuple = tuple.with_src(tuple.src, range.first + offset as u16);
            self.is_free(now_ns, &tuple).then_some(tuple)
        })
    }
}
