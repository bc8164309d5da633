//! The connection tracker: finds the flow of each packet, and translates its addresses and ports.
//!
//! ```text
//!  prerouting, output   find the flow ─► destination translation ─► token, state
//!  input, postrouting   token ─► source translation; a new flow enters the table here
//! ```
//!
//! A new flow enters the table only when its packet reaches the last hook. Packets that rules drop
//! therefore leave no flow.

use core::net::IpAddr;
use core::time::Duration;

use towpath_filter::{Action, FlowState, Hook};
use towpath_wire::{IpProtocol, addr};

use crate::events::{FlowEvent, FlowEventKind, FlowEvents, TrackerCounters};
use crate::flow::{FlowClass, FlowInfo, FlowTimeouts, NONE, TrackedFlow};
use crate::fragments::{FragmentFlows, FragmentKey};
use crate::mappings::PortMappings;
use crate::quote::translate_quote;
use crate::rules::{NatKind, NatRules};
use crate::table::{FlowRemoval, REFRESH_NS, TrackedFlows};
use crate::tcp::TcpSegment;
use crate::tuple::{FlowDirection, HashKey, Tuple};
use crate::view::{IDENT_AT, PacketSubject, PacketToken, PacketView, quoted, subject};

/// Default for the maximum number of flows: at 256 bytes per flow, 16 MiB.
pub const FLOWS_MAX: usize = 65_536;
/// Upper bound of the configurable number of flows. The number of a flow must fit in 24 bits of a
/// packet token.
pub const FLOWS_MOST: usize = 1 << 24;
/// Default maximum number of flows per source address. The value is a quarter of the table, so that
/// one host cannot fill the table.
pub const FLOWS_PER_SOURCE_MAX: u32 = FLOWS_MAX as u32 / 4;

/// Maximum number of table slots that one call of [`Conntrack::flows`] or [`Conntrack::delete`]
/// examines.
const VISITS_MAX: u32 = 4096;

/// Length in bytes assumed for a fragmented segment, the maximum, because its first fragment does
/// not contain the total length.
const FRAGMENTED_LEN: usize = 65_535;

/// Limits and timeouts of a connection tracker.
#[derive(Debug, Clone, Copy)]
pub struct TrackerLimits {
    /// Maximum number of flows in the table.
    pub flows_max: usize,
    /// Maximum number of flows per source address. All IPv6 addresses of a /64 count as one.
    pub per_source_max: u32,
    /// Timeout of each flow class.
    pub timeouts: FlowTimeouts,
}

impl Default for TrackerLimits {
    fn default() -> Self {
        Self {
            flows_max: FLOWS_MAX,
            per_source_max: FLOWS_PER_SOURCE_MAX,
            timeouts: FlowTimeouts::default(),
        }
    }
}

/// Connection tracker: tracks flows and translates the addresses of their packets. See the
/// [crate](crate).
#[derive(Debug)]
pub struct Conntrack {
    pub(crate) table: TrackedFlows,
    pub(crate) rules: NatRules,
    pub(crate) fragments: FragmentFlows,
    pub(crate) ledger: FlowRecords,
    /// IP addresses of the router, each with the number of its interface.
    addresses: Vec<(u16, IpAddr)>,
    /// Flow that the current packet opens. Set at the packet's first hook, and moved to the table
    /// at its last hook.
    pub(crate) pending: Option<OpeningFlow>,
    serial: u64,
    /// Time in nanoseconds of the last call of `expire` that removed all expired flows.
    expired_ns: u64,
}

/// Mappings, counters and events, which are updated when flows are added or removed.
#[derive(Debug)]
pub(crate) struct FlowRecords {
    pub mappings: PortMappings,
    pub events: FlowEvents,
    pub counters: TrackerCounters,
}

/// New flow that is not in the table yet, because its first packet has not passed the last hook of
/// the router.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpeningFlow {
    pub serial: u64,
    /// Addresses and ports of the packet as it arrived.
    pub tuple: Tuple,
    /// Addresses and ports of the packet after destination translation.
    pub target: Tuple,
    pub tcp: Option<TcpSegment>,
    /// Index of the rule of destination translation that the packet matched.
    pub rule: Option<usize>,
    /// Slot of the full-cone mapping whose outside address and port the packet was sent to, or
    /// [`NONE`].
    pub mapping: u32,
    pub fragment: Option<FragmentKey>,
}

/// Flow of a packet, and the direction of the packet within it.
#[derive(Debug, Clone, Copy)]
struct FoundFlow {
    id: u32,
    way: FlowDirection,
}

/// Decoded [`PacketToken`]: flow and direction that the tracker found for a packet at its first
/// hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketMark {
    None,
    /// The packet opens the flow in [`Conntrack::pending`], if that flow has this serial number.
    Pending(u64),
    Flow(FlowMark),
    /// The packet is an ICMP error about a packet of a flow. The error travels in this direction of
    /// the flow.
    Error(FlowMark),
}

/// A flow and a direction within it, as stored in the token of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowMark {
    pub id: u32,
    pub generation: u32,
    pub way: FlowDirection,
}

const KIND_SHIFT: u32 = 62;
const WAY_SHIFT: u32 = 61;

impl From<PacketMark> for PacketToken {
    fn from(mark: PacketMark) -> Self {
        let of = |kind: u64, flow: FlowMark| {
            let way = (flow.way as u64) << WAY_SHIFT;
            kind << KIND_SHIFT | way | u64::from(flow.id) << 32 | u64::from(flow.generation)
        };
        Self(match mark {
            PacketMark::None => 0,
            PacketMark::Pending(serial) => 1 << KIND_SHIFT | serial & ((1 << WAY_SHIFT) - 1),
            PacketMark::Flow(flow) => of(2, flow),
            PacketMark::Error(flow) => of(3, flow),
        })
    }
}

impl From<PacketToken> for PacketMark {
    fn from(PacketToken(bits): PacketToken) -> Self {
        let way = match bits >> WAY_SHIFT & 1 {
            0 => FlowDirection::Original,
            _ => FlowDirection::Reply,
        };
        let id = (bits >> 32) as u32 & ((1 << (WAY_SHIFT - 32)) - 1);
        let flow = FlowMark { id, generation: bits as u32, way };
        match bits >> KIND_SHIFT {
            0 => Self::None,
            1 => Self::Pending(bits & ((1 << WAY_SHIFT) - 1)),
            2 => Self::Flow(flow),
            _ => Self::Error(flow),
        }
    }
}

impl FlowRecords {
    pub(crate) fn on_removed(&mut self, id: u32, flow: &TrackedFlow, why: FlowRemoval) {
        if flow.mapping != NONE {
            self.mappings.release(flow.mapping);
        }
        let counter = match why {
            FlowRemoval::Expired => &mut self.counters.expired,
            FlowRemoval::Evicted => &mut self.counters.evicted,
            FlowRemoval::SourceEvicted => &mut self.counters.source_evicted,
            FlowRemoval::Deleted => &mut self.counters.deleted,
        };
        *counter += 1;
        self.events.push(FlowEventKind::Destroyed(why), info(id, flow, 0));
    }
}

pub(crate) fn info(id: u32, flow: &TrackedFlow, left_ns: u64) -> FlowInfo {
    let [original, reply] = flow.tuples;
    let [sent, received] = flow.traffic;
    FlowInfo {
        id: u64::from(flow.generation) << 32 | u64::from(id),
        original,
        reply,
        class: flow.class,
        sent,
        received,
        expires_in: Duration::from_nanos(left_ns),
    }
}

impl Conntrack {
    /// Creates a tracker. `key` must be random and secret, because hashes and the choice of outside
    /// ports depend on it.
    #[must_use]
    pub fn new(limits: &TrackerLimits, rules: NatRules, key: [u64; 2]) -> Self {
        let (flows_max, key) = (limits.flows_max.clamp(1, FLOWS_MOST), HashKey(key));
        let ledger = FlowRecords {
            mappings: PortMappings::new(flows_max, key),
            events: FlowEvents::new(),
            counters: TrackerCounters::default(),
        };
        Self {
            table: TrackedFlows::new(flows_max, limits.per_source_max, &limits.timeouts, key),
            rules,
            fragments: FragmentFlows::new(key),
            ledger,
            addresses: Vec::new(),
            pending: None,
            serial: 0,
            expired_ns: 0,
        }
    }

    /// Handles a packet at its current hook, and returns what to do with it (accept or drop).
    #[inline]
    pub fn on_packet(&mut self, now_ns: u64, packet: &mut impl PacketView) -> Action {
        match packet.fields().hook {
            Hook::Prerouting | Hook::Output => self.on_arrival(now_ns, packet),
            Hook::Input | Hook::Postrouting => self.on_departure(now_ns, packet),
            Hook::Forward => Action::Accept,
        }
    }

    fn on_arrival(&mut self, now_ns: u64, packet: &mut impl PacketView) -> Action {
        if now_ns.saturating_sub(self.expired_ns) >= REFRESH_NS {
            self.expire(now_ns);
        }
        if !addr::is_unicast(packet.fields().dst) {
            packet.set_tracked(PacketMark::None.into(), FlowState::Untracked);
            return Action::Accept;
        }
        match subject(packet) {
            PacketSubject::Flow { tuple, may_open } => match self.table.find(&tuple) {
                Some((id, way)) if self.table.left_ns(id, now_ns) > 0 => {
                    self.on_known(now_ns, packet, FoundFlow { id, way })
                }
                expired => {
                    if let Some((id, _)) = expired {
                        self.remove(id, FlowRemoval::Expired);
                    }
                    self.on_unknown(packet, tuple, may_open)
                }
            },
            PacketSubject::Error(quoted) => self.on_error(packet, &quoted),
            PacketSubject::LaterFragment => self.on_later_fragment(now_ns, packet),
            PacketSubject::Invalid => self.on_invalid(packet),
        }
    }

    /// Marks a packet as invalid, because it belongs to no flow and cannot open one. Filter rules
    /// then decide whether the packet passes.
    fn on_invalid(&mut self, packet: &mut impl PacketView) -> Action {
        self.ledger.counters.invalid += 1;
        packet.set_tracked(PacketMark::None.into(), FlowState::Invalid);
        Action::Accept
    }

    /// Handles a packet of a flow that is in the table.
    #[inline]
    fn on_known(&mut self, now_ns: u64, packet: &mut impl PacketView, found: FoundFlow) -> Action {
        let FoundFlow { id, way } = found;
        let key = fragment_key(packet);
        let flow = self.table.at_mut(id);
        let class = if packet.fields().protocol == IpProtocol::TCP.0 {
            let segment = segment_of(packet, key.is_some());
            segment.and_then(|segment| flow.tcp.on_segment(way, &segment)).map(FlowClass::of_tcp)
        } else {
            Some(flow.class.after(way))
        };
        let Some(class) = class else {
            if flow.is_translated() {
                self.ledger.counters.invalid += 1;
                self.ledger.counters.untranslatable += 1;
                return Action::Drop;
            }
            return self.on_invalid(packet);
        };
        flow.is_answered |= way == FlowDirection::Reply;
        let traffic = &mut flow.traffic[way as usize];
        traffic.packets += 1;
        traffic.bytes += packet.len() as u64;
        let state = if flow.is_answered { FlowState::Established } else { FlowState::New };
        let (generation, target) = (flow.generation, flow.translated(way));
        self.table.refresh(id, class, now_ns);
        let token = PacketMark::Flow(FlowMark { id, generation, way }).into();
        if let Some(key) = key {
            self.fragments.note(key, token, now_ns);
        }
        packet.set_tracked(token, state);
        set_dst(packet, &target);
        // Translate the identifier of ICMP replies only. A request's identifier is part of its
        // source, which is translated at the last hook.
        if way == FlowDirection::Reply {
            set_ident(packet, &target);
        }
        Action::Accept
    }

    /// Handles a packet that belongs to no flow in the table. If `may_open` is set, the packet may
    /// open a flow.
    fn on_unknown(&mut self, packet: &mut impl PacketView, tuple: Tuple, may_open: bool) -> Action {
        let fragment = fragment_key(packet);
        let mut tcp = None;
        if tuple.protocol == IpProtocol::TCP.0 {
            tcp = segment_of(packet, fragment.is_some()).filter(TcpSegment::is_opening);
        }
        // Do not track a packet from a host to itself, because it would match its own reply
        // direction.
        let is_own_answer = tuple == tuple.inverse();
        let lacks_syn = tuple.protocol == IpProtocol::TCP.0 && tcp.is_none();
        if !may_open || is_own_answer || lacks_syn {
            // The packet is a reset of this router that refuses a redirected connection. Set its
            // source to the address to which the client connected.
            if let Some(pending) = self.refused(packet).filter(|it| it.target.inverse() == tuple) {
                packet.set_tracked(PacketMark::None.into(), FlowState::Related);
                set_src(packet, &pending.tuple.inverse());
                return Action::Accept;
            }
            return self.on_invalid(packet);
        }
        self.serial += 1;
        let serial = self.serial;
        let (target, rule, mapping) = (tuple, None, NONE);
        let mut pending = OpeningFlow { serial, tuple, target, tcp, rule, mapping, fragment };
        packet.set_tracked(PacketMark::Pending(serial).into(), FlowState::New);
        if packet.fields().hook == Hook::Prerouting
            && let Err(action) = self.redirect(packet, &mut pending)
        {
            return action;
        }
        self.pending = Some(pending);
        Action::Accept
    }

    /// Chooses and applies the destination translation of a new flow.
    fn redirect(
        &mut self,
        packet: &mut impl PacketView,
        pending: &mut OpeningFlow,
    ) -> Result<(), Action> {
        let tuple = pending.tuple;
        if let Some(index) = self.rules.find(packet.fields()) {
            let rule = self.rules.at(index);
            let applies = rule.conditions.dst.is_some()
                || rule.kind == NatKind::Redirect
                || self.is_own(tuple.dst);
            if applies {
                let iface = packet.fields().iface_in.unwrap_or_default();
                let to = match rule.kind {
                    NatKind::Redirect => self.address_of(iface, tuple.dst.is_ipv4()),
                    _ => rule.to.filter(|to| to.is_ipv4() == tuple.dst.is_ipv4()),
                };
                let Some(dst) = to else {
                    self.ledger.counters.no_address += 1;
                    return Err(Action::Drop);
                };
                let dst_port = rule.to_port.unwrap_or(tuple.dst_port);
                pending.rule = Some(index);
                pending.target = Tuple { dst, dst_port, ..tuple };
                set_dst(packet, &pending.target);
                return Ok(());
            }
        }
        if let Some(slot) = self.ledger.mappings.full_cone(&tuple) {
            let inside = self.ledger.mappings.at(slot).inside;
            pending.mapping = slot;
            pending.target = Tuple { dst: inside.addr, dst_port: inside.port, ..tuple };
            set_dst(packet, &pending.target);
        }
        Ok(())
    }

    /// Handles an ICMP error about a packet that had the tuple `quoted` behind the translation.
    //= https://www.rfc-editor.org/rfc/rfc5382#section-7
    //# REQ-10:  Receipt of any sort of ICMP message MUST NOT terminate the
    //# NAT mapping or TCP connection for which the ICMP was generated.
    fn on_error(&mut self, packet: &mut impl PacketView, quoted: &Tuple) -> Action {
        // Look up the inverse of the quoted tuple, because an ICMP error travels in the direction
        // of replies to the quoted packet.
        let Some((id, way)) = self.table.find(&quoted.inverse()) else {
            return match self.refused(packet).filter(|it| it.target == *quoted) {
                Some(pending) if translate_quote(packet, &pending.tuple) => {
                    packet.set_tracked(PacketMark::None.into(), FlowState::Related);
                    Action::Accept
                }
                _ => self.on_invalid(packet),
            };
        };
        let flow = self.table.at(id);
        let sent = flow.tuples[way.reverse() as usize];
        if flow.is_translated() {
            if !translate_quote(packet, &sent) {
                return self.on_invalid(packet);
            }
            if packet.fields().dst == quoted.src && sent.src != quoted.src {
                packet.set_dst(sent.src);
            }
        }
        self.ledger.counters.errors_related += 1;
        let flow = FlowMark { id, generation: flow.generation, way };
        packet.set_tracked(PacketMark::Error(flow).into(), FlowState::Related);
        Action::Accept
    }

    /// Returns the pending flow if its packet was redirected to this router and `packet` is the
    /// router's answer. If the flow has not entered the table, the answer refuses the connection.
    fn refused(&self, packet: &impl PacketView) -> Option<OpeningFlow> {
        let is_answer = packet.fields().hook == Hook::Output;
        self.pending.filter(|pending| is_answer && pending.target != pending.tuple)
    }

    fn on_later_fragment(&mut self, now_ns: u64, packet: &mut impl PacketView) -> Action {
        let key = fragment_key(packet);
        let token = key.and_then(|key| self.fragments.find(&key, now_ns)).unwrap_or_default();
        let Some((flow, way)) = self.flow_of(token.into()) else {
            self.ledger.counters.fragments_unknown += 1;
            return self.on_invalid(packet);
        };
        let (target, is_answered) = (flow.translated(way).dst, flow.is_answered);
        let state = if is_answered { FlowState::Established } else { FlowState::New };
        packet.set_tracked(token, state);
        if packet.fields().dst != target {
            packet.set_dst(target);
        }
        Action::Accept
    }

    /// Returns the flow and direction stored in a packet's token, unless the flow has been removed.
    pub(crate) fn flow_of(&self, mark: PacketMark) -> Option<(&TrackedFlow, FlowDirection)> {
        let (PacketMark::Flow(of) | PacketMark::Error(of)) = mark else { return None };
        let flow = self.table.get(of.id).filter(|flow| flow.generation == of.generation)?;
        Some((flow, of.way))
    }

    pub(crate) fn remove(&mut self, id: u32, why: FlowRemoval) {
        let ledger = &mut self.ledger;
        self.table.remove(id, why, &mut |id, flow, why| ledger.on_removed(id, flow, why));
    }

    /// Removes expired flows, because a full-cone mapping accepts packets of any sender as long as
    /// it has a flow. Each packet removes a limited number, and the next packets continue.
    #[cold]
    fn expire(&mut self, now_ns: u64) {
        let ledger = &mut self.ledger;
        let mut removed = |id, flow: &TrackedFlow, why| ledger.on_removed(id, flow, why);
        if !self.table.expire(now_ns, &mut removed) {
            self.expired_ns = now_ns;
        }
    }

    /// Returns whether `addr` is an address of the router.
    pub(crate) fn is_own(&self, addr: IpAddr) -> bool {
        self.addresses.iter().any(|(_, own)| *own == addr)
    }

    /// Returns the first address of an interface that is valid in other networks. Link-local
    /// addresses are therefore skipped.
    pub(crate) fn address_of(&self, iface: u16, is_v4: bool) -> Option<IpAddr> {
        let of_iface =
            self.addresses.iter().filter(|(of, own)| *of == iface && own.is_ipv4() == is_v4);
        of_iface.map(|(_, own)| *own).find(|own| !addr::is_link_local(*own))
    }

    /// Sets the router's addresses, each with the number of its interface. Removes flows whose
    /// source was translated to an address that no longer exists (masquerading).
    pub fn set_addresses(&mut self, addresses: impl Iterator<Item = (u16, IpAddr)>) {
        let before = core::mem::take(&mut self.addresses);
        self.addresses.extend(addresses);
        if self.addresses == before {
            return;
        }
        for id in 0..self.table.slots() {
            let Some(flow) = self.table.get(id) else { continue };
            let own = (flow.masquerade, flow.translated(FlowDirection::Original).src);
            if flow.masquerade != 0 && !self.addresses.contains(&own) {
                self.remove(id, FlowRemoval::Deleted);
            }
        }
    }

    /// Replaces the translation rules. Existing flows keep their translation.
    pub fn set_rules(&mut self, mut rules: NatRules) {
        rules.inherit(&self.rules);
        self.rules = rules;
        self.pending = None;
    }

    /// Returns the translation rules.
    #[must_use]
    pub fn rules(&self) -> &NatRules {
        &self.rules
    }

    /// Returns the original source address of a packet whose source was translated. `bytes` starts
    /// with the packet's IP header. Returns `None` if the source was not translated.
    #[must_use]
    pub fn original_source(&self, bytes: &[u8]) -> Option<IpAddr> {
        let tuple = quoted(bytes)?.tuple;
        let (id, way) = self.table.find(&tuple.inverse())?;
        let sender = self.table.at(id).tuples[way.reverse() as usize].src;
        (sender != tuple.src).then_some(sender)
    }

    /// Returns up to `max` flows from slot `from` on, and the slot at which the next call continues
    /// (`None` at the end). The list can be empty before the end, because a call examines a limited
    /// number of slots.
    #[must_use]
    pub fn flows(&self, now_ns: u64, from: u32, max: usize) -> (Vec<FlowInfo>, Option<u32>) {
        let mut flows = Vec::new();
        for id in from..self.table.slots() {
            if flows.len() >= max || id - from >= VISITS_MAX {
                return (flows, Some(id));
            }
            let left_ns = self.table.get(id).map_or(0, |_| self.table.left_ns(id, now_ns));
            if left_ns > 0 {
                flows.push(info(id, self.table.at(id), left_ns));
            }
        }
        (flows, None)
    }

    /// Removes the flows for which `is_it` returns true, from slot `from` on. Returns their number,
    /// and the slot at which the next call must continue (`None` at the end).
    pub fn delete(
        &mut self,
        from: u32,
        mut is_it: impl FnMut(&FlowInfo) -> bool,
    ) -> (usize, Option<u32>) {
        let mut count = 0;
        let end = self.table.slots().min(from.saturating_add(VISITS_MAX));
        for id in from..end {
            if self.table.get(id).is_some_and(|flow| is_it(&info(id, flow, 0))) {
                self.remove(id, FlowRemoval::Deleted);
                count += 1;
            }
        }
        (count, Some(end).filter(|end| *end < self.table.slots()))
    }

    /// Returns the counters of the tracker.
    #[must_use]
    pub fn counters(&self) -> &TrackerCounters {
        &self.ledger.counters
    }

    /// Returns the number of flows in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether the table has no flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of flows of `class`.
    #[must_use]
    pub fn len_of(&self, class: FlowClass) -> usize {
        self.table.len_of(class)
    }

    /// Iterates over the stored events with number `from` or higher.
    pub fn events(&self, from: u64) -> impl Iterator<Item = &FlowEvent> {
        self.ledger.events.since(from)
    }

    /// Returns the number that the next event will get.
    #[must_use]
    pub fn next_event(&self) -> u64 {
        self.ledger.events.next()
    }

    /// Returns the memory reserved for flows and mappings in bytes. The kernel commits its pages
    /// when they are used.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.ledger.mappings.bytes()
    }
}

/// Returns the key that identifies the packet to which a fragment belongs; `None` for an
/// unfragmented packet.
fn fragment_key(packet: &impl PacketView) -> Option<FragmentKey> {
    let fragment = packet.fragment()?;
    let fields = packet.fields();
    Some(FragmentKey { src: fields.src, dst: fields.dst, ident: fragment.ident })
}

fn segment_of(packet: &impl PacketView, is_fragment: bool) -> Option<TcpSegment> {
    let len = if is_fragment { FRAGMENTED_LEN } else { packet.transport_len() };
    let segment = TcpSegment::parse(packet.transport(), len)?;
    Some(TcpSegment { is_fragment, ..segment })
}

/// Replaces the packet's destination address and port with those of `target`.
#[inline]
pub(crate) fn set_dst(packet: &mut impl PacketView, target: &Tuple) {
    if packet.fields().dst != target.dst {
        packet.set_dst(target.dst);
    }
    if let Some((src, dst)) = packet.fields().ports
        && dst != target.dst_port
    {
        packet.set_ports(src, target.dst_port);
    }
}

/// Replaces the packet's source address and port with those of `target`.
#[inline]
pub(crate) fn set_src(packet: &mut impl PacketView, target: &Tuple) {
    if packet.fields().src != target.src {
        packet.set_src(target.src);
    }
    match packet.fields().ports {
        Some((src, dst)) if src != target.src_port => {
            packet.set_ports(target.src_port, dst);
        }
        _ => set_ident(packet, target),
    }
}

/// Replaces the identifier of an ICMP query with the one in `target`.
fn set_ident(packet: &mut impl PacketView, target: &Tuple) {
    let ident = target.src_port.to_be_bytes();
    if target.query != 0
        && packet.transport().get(IDENT_AT..).is_some_and(|bytes| !bytes.starts_with(&ident))
    {
        packet.rewrite(IDENT_AT, &ident);
    }
}
