//! Fuzzes a tracker between two networks, which send packets in any order.
//!
//! Invariants after each packet:
//!
//! - The answer to a translated packet arrives at the packet's own sender, from the address that
//!   the sender used.
//! - No two flows have a tuple in common, so that each packet belongs to one flow.
//! - The numbers of flows, in total and of a source, are within their limits.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use towpath_conntrack::{
    Conntrack, FragmentPosition, NatRule, NatRules, PacketToken, PacketView, TrackerLimits,
};
use towpath_filter::{Action, Fields, FlowState, Hook};

use crate::input::Input;

/// Maximum packets of a case; more would only repeat states.
const PACKETS_MAX: usize = 256;
const FLOWS_MAX: usize = 12;
const PER_SOURCE_MAX: u32 = 8;
const LAN: u16 = 1;
const WAN: u16 = 2;
const OWN: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 1)];
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;

/// Rules of which a case has some.
const RULES: [&str; 5] = [
    "id 1 masquerade out wan",
    "id 2 snat out wan to 192.0.2.9 ports 5-8 full-cone",
    "id 3 dnat proto udp dport 80-82 to 10.0.0.3:7",
    "id 4 dnat dst 198.51.100.2 to 10.0.0.4",
    "id 5 redirect in lan proto udp dport 53 to :9",
];

/// Runs a case.
///
/// # Panics
/// If a packet is translated wrongly, or a limit is exceeded.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let chosen = input.u8();
    let rules = (0..).zip(RULES).filter(|(n, _)| chosen >> n & 1 == 1);
    let rules: Vec<NatRule> = rules.map(|(_, text)| text.parse().expect("a rule")).collect();
    let iface = |name: &str| Some(if name == "lan" { LAN } else { WAN });
    let rules = NatRules::compile(&rules, iface).expect("known interfaces");
    let limits = TrackerLimits {
        flows_max: FLOWS_MAX,
        per_source_max: PER_SOURCE_MAX,
        ..TrackerLimits::default()
    };
    let mut case = Case { tracker: Conntrack::new(&limits, rules, [3, 4]), now_ns: 1 };
    case.tracker.set_addresses([(LAN, OWN[0].into()), (WAN, OWN[1].into())].into_iter());
    for _ in 0..PACKETS_MAX {
        if input.is_empty() {
            break;
        }
        case.step(&mut input);
    }
}

struct Case {
    tracker: Conntrack,
    now_ns: u64,
}

impl Case {
    fn step(&mut self, input: &mut Input<'_>) {
        self.now_ns += u64::from(input.u8()) * 1_000_000_000 * u64::from(input.one_in(16));
        let mut packet = FuzzPacket::of(input);
        let (sent, from) = (packet.clone(), if input.bool() { LAN } else { WAN });
        let has_left = self.pass(&mut packet, from);
        self.check_tables();
        if has_left && packet.opens_or_continues() && input.bool() {
            self.check_answer(&sent, packet, from);
            self.check_tables();
        }
        if input.one_in(64) {
            self.tracker.delete(0, |flow| flow.original.src_port & 1 == 0);
            self.check_tables();
        }
    }

    /// Passes a packet through both hooks. Returns false if it is dropped.
    fn pass(&mut self, packet: &mut FuzzPacket, from: u16) -> bool {
        packet.fields.iface_in = Some(from);
        packet.fields.hook = Hook::Prerouting;
        if self.tracker.on_packet(self.now_ns, packet) != Action::Accept {
            return false;
        }
        let IpAddr::V4(dst) = packet.fields.dst else { return false };
        packet.fields.hook = Hook::Input;
        if !OWN.contains(&dst) {
            packet.fields.hook = Hook::Postrouting;
            packet.fields.iface_out = Some(if dst.octets()[0] == 10 { LAN } else { WAN });
        }
        self.tracker.on_packet(self.now_ns, packet) == Action::Accept
    }

    /// Answers a packet as its receiver would, and checks that its sender gets the answer.
    fn check_answer(&mut self, sent: &FuzzPacket, received: FuzzPacket, from: u16) {
        let is_own = received.fields.hook == Hook::Input;
        let from = if is_own { 0 } else { received.fields.iface_out.unwrap_or(from) };
        let mut answer = received.answered();
        assert!(self.pass(&mut answer, from), "dropped: {answer:?}");
        let wanted = sent.clone().answered();
        assert_eq!(answer.ends(), wanted.ends(), "{sent:?}");
        assert_eq!(answer.fields.state, FlowState::Established);
    }

    fn check_tables(&mut self) {
        let (flows, _) = self.tracker.flows(self.now_ns, 0, usize::MAX);
        assert!(self.tracker.len() <= FLOWS_MAX && flows.len() <= self.tracker.len());
        let mut tuples: Vec<_> = flows.iter().flat_map(|it| [it.original, it.reply]).collect();
        let count = tuples.len();
        tuples.sort();
        tuples.dedup();
        assert_eq!(tuples.len(), count, "{flows:?}");
        let mut by_source = BTreeMap::new();
        flows.iter().for_each(|flow| *by_source.entry(flow.original.src).or_insert(0) += 1);
        assert!(by_source.values().all(|count| *count <= PER_SOURCE_MAX), "{flows:?}");
    }
}

#[derive(Debug, Clone)]
struct FuzzPacket {
    fields: Fields,
    transport: Vec<u8>,
    fragment: Option<FragmentPosition>,
    token: PacketToken,
}

impl FuzzPacket {
    fn of(input: &mut Input<'_>) -> Self {
        const ADDRESSES: [Ipv4Addr; 8] = [
            OWN[0],
            OWN[1],
            Ipv4Addr::new(10, 0, 0, 2),
            Ipv4Addr::new(10, 0, 0, 3),
            Ipv4Addr::new(198, 51, 100, 1),
            Ipv4Addr::new(198, 51, 100, 2),
            Ipv4Addr::new(192, 0, 2, 9),
            Ipv4Addr::new(224, 0, 0, 5),
        ];
        const PORTS: [u16; 8] = [5, 6, 7, 53, 80, 81, 4000, 4001];
        let protocol = input.pick(&[UDP, UDP, TCP, ICMP, 47]);
        let (src, dst) = (input.pick(&ADDRESSES[2..6]), input.pick(&ADDRESSES));
        let ports = (input.pick(&PORTS), input.pick(&PORTS));
        let mut transport = vec![0; 64];
        transport.iter_mut().for_each(|byte| *byte = input.u8());
        let is_later = input.one_in(32);
        let fragment = input
            .one_in(8)
            .then(|| FragmentPosition { ident: input.u8().into(), is_first: !is_later });
        let has_header = fragment.is_none_or(|fragment| fragment.is_first);
        if protocol == TCP {
            transport[12] = 5 << 4;
            transport[13] = input.pick(&[2, 2, 16, 18, 4, 1]);
        }
        if protocol == ICMP {
            transport[0] = input.pick(&[8, 8, 0, 13, 3, 11, 5]);
            (transport[8], transport[17]) = (0x45, input.pick(&[UDP, TCP, ICMP]));
            transport[20..24].copy_from_slice(&input.pick(&ADDRESSES).octets());
            transport[24..28].copy_from_slice(&input.pick(&ADDRESSES).octets());
        }
        let mut fields = Fields {
            hook: Hook::Prerouting,
            src: src.into(),
            dst: dst.into(),
            protocol,
            ports: None,
            tcp_flags: transport[13],
            icmp: (protocol == ICMP && has_header).then_some((transport[0], transport[1])),
            iface_in: None,
            iface_out: None,
            state: FlowState::Untracked,
            mark: 0,
        };
        if matches!(protocol, TCP | UDP) && has_header {
            fields.ports = Some(ports);
        }
        let mut packet = Self { fields, transport, fragment, token: PacketToken::default() };
        packet.set_ports(ports.0, ports.1);
        packet
    }

    /// Returns whether a receiver would answer the packet, with an answer that can be checked.
    fn opens_or_continues(&self) -> bool {
        let is_query = self.fields.icmp.is_some_and(|(kind, _)| kind == 8);
        let is_known = matches!(self.fields.state, FlowState::New | FlowState::Established);
        self.fragment.is_none() && is_known && (self.fields.protocol == UDP || is_query)
    }

    fn answered(mut self) -> Self {
        (self.fields.src, self.fields.dst) = (self.fields.dst, self.fields.src);
        self.fields.ports = self.fields.ports.map(|(src, dst)| (dst, src));
        if self.fields.protocol == ICMP {
            self.transport[0] = 0;
            self.fields.icmp = Some((0, self.transport[1]));
        }
        (self.fields.iface_out, self.token) = (None, PacketToken::default());
        self
    }

    /// Returns the addresses, and the ports or the identifier of a query.
    fn ends(&self) -> (IpAddr, IpAddr, Option<(u16, u16)>) {
        let Fields { src, dst, ports, icmp, .. } = self.fields;
        let ident = u16::from_be_bytes([self.transport[4], self.transport[5]]);
        (src, dst, ports.or(icmp.map(|_| (ident, ident))))
    }
}

impl PacketView for FuzzPacket {
    fn fields(&self) -> &Fields {
        &self.fields
    }

    fn transport(&self) -> &[u8] {
        let has_header = self.fragment.is_none_or(|fragment| fragment.is_first);
        if has_header { &self.transport } else { &[] }
    }

    fn transport_len(&self) -> usize {
        self.transport().len()
    }

    fn len(&self) -> usize {
        20 + self.transport.len()
    }

    fn fragment(&self) -> Option<FragmentPosition> {
        self.fragment
    }

    fn set_src(&mut self, src: IpAddr) {
        self.fields.src = src;
    }

    fn set_dst(&mut self, dst: IpAddr) {
        self.fields.dst = dst;
    }

    fn set_ports(&mut self, src: u16, dst: u16) -> bool {
        if let Some(ports) = &mut self.fields.ports {
            *ports = (src, dst);
        }
        self.fields.ports.is_some()
    }

    fn rewrite(&mut self, at: usize, bytes: &[u8]) -> bool {
        let Some(there) = self.transport.get_mut(at..at + bytes.len()) else { return false };
        there.copy_from_slice(bytes);
        true
    }

    fn token(&self) -> PacketToken {
        self.token
    }

    fn set_tracked(&mut self, token: PacketToken, state: FlowState) {
        (self.token, self.fields.state) = (token, state);
    }
}
