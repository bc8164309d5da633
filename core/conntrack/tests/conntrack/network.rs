//! A tracker between `lan` and `wan`, and packets that pass it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use towpath_conntrack::{
    Conntrack, FragmentPosition, NatRule, NatRules, PacketToken, PacketView, TrackerLimits,
};
use towpath_filter::{Action, Fields, FlowState, Hook};

pub const LAN: u16 = 1;
pub const WAN: u16 = 2;
pub const OWN_WAN: &str = "192.0.2.2";
pub const OWN_LAN: &str = "10.1.0.1";

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMPV6: u8 = 58;

/// A packet: fields and the bytes from the transport header on.
#[derive(Debug, Clone)]
pub struct TestPacket {
    pub fields: Fields,
    pub transport: Vec<u8>,
    pub fragment: Option<FragmentPosition>,
    token: PacketToken,
}

impl TestPacket {
    pub fn new(protocol: u8, src: &str, dst: &str, transport: Vec<u8>) -> Self {
        let end = |text: &str| -> SocketAddr {
            text.parse().unwrap_or_else(|_| SocketAddr::new(text.parse().unwrap(), 0))
        };
        let (src, dst) = (end(src), end(dst));
        let fields = Fields {
            hook: Hook::Prerouting,
            src: src.ip(),
            dst: dst.ip(),
            protocol,
            ports: matches!(protocol, TCP | UDP).then_some((src.port(), dst.port())),
            tcp_flags: 0,
            icmp: None,
            iface_in: None,
            iface_out: None,
            state: FlowState::Untracked,
            mark: 0,
        };
        let mut packet = Self { fields, transport, fragment: None, token: PacketToken::default() };
        if let Some((src, dst)) = packet.fields.ports {
            packet.set_ports(src, dst);
        }
        if protocol == ICMP {
            packet.fields.icmp = Some((packet.transport[0], packet.transport[1]));
        }
        packet
    }

    pub fn udp(src: &str, dst: &str) -> Self {
        Self::new(UDP, src, dst, vec![0, 0, 0, 0, 0, 12, 0, 0, 1, 2, 3, 4])
    }

    pub fn echo(kind: u8, src: &str, dst: &str, ident: u16) -> Self {
        let [a, b] = ident.to_be_bytes();
        Self::new(ICMP, src, dst, vec![kind, 0, 0, 0, a, b, 0, 1])
    }

    /// Returns an ICMP error "time exceeded" about a packet, as a router sends it.
    pub fn error(src: &str, about: &Self) -> Self {
        let (protocol, kind) = if about.fields.src.is_ipv4() { (ICMP, 11) } else { (ICMPV6, 3) };
        let mut transport = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        transport.extend(about.ip_bytes());
        let mut packet = Self::new(protocol, src, &about.fields.src.to_string(), transport);
        packet.fields.icmp = Some((kind, 0));
        packet
    }

    /// Returns the IP packet.
    pub fn ip_bytes(&self) -> Vec<u8> {
        match (self.fields.src, self.fields.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.v4_bytes(src, dst),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.v6_bytes(src, dst),
            ends => panic!("{ends:?} are of two IP versions"),
        }
    }

    fn v6_bytes(&self, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
        let len = self.transport.len() as u16;
        let mut bytes = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, self.fields.protocol, 9];
        bytes.extend(src.octets());
        bytes.extend(dst.octets());
        bytes.extend(&self.transport);
        bytes
    }

    fn v4_bytes(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
        let len = (20 + self.transport.len()) as u16;
        let mut bytes = vec![0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 9];
        bytes.extend([self.fields.protocol, 0, 0]);
        bytes.extend(src.octets());
        bytes.extend(dst.octets());
        let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&bytes, 0));
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(&self.transport);
        bytes
    }

    /// Returns source and destination, with the ports if there are some.
    pub fn ends(&self) -> (String, String) {
        let Fields { src, dst, ports, .. } = self.fields;
        match ports {
            Some((sport, dport)) => {
                (SocketAddr::new(src, sport).to_string(), SocketAddr::new(dst, dport).to_string())
            }
            None => (src.to_string(), dst.to_string()),
        }
    }

    pub fn src_port(&self) -> u16 {
        self.fields.ports.unwrap().0
    }
}

impl PacketView for TestPacket {
    fn fields(&self) -> &Fields {
        &self.fields
    }

    fn transport(&self) -> &[u8] {
        if self.fragment.is_some_and(|it| !it.is_first) { &[] } else { &self.transport }
    }

    fn transport_len(&self) -> usize {
        self.transport.len()
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
        self.fields.ports = Some((src, dst));
        self.transport[..2].copy_from_slice(&src.to_be_bytes());
        self.transport[2..4].copy_from_slice(&dst.to_be_bytes());
        true
    }

    fn rewrite(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.transport[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn token(&self) -> PacketToken {
        self.token
    }

    fn set_tracked(&mut self, token: PacketToken, state: FlowState) {
        (self.token, self.fields.state) = (token, state);
    }
}

/// A tracker, and the time.
pub struct Network {
    pub tracker: Conntrack,
    pub now_ns: u64,
}

pub fn rules(text: &[&str]) -> NatRules {
    let rules: Vec<NatRule> = (1..)
        .zip(text)
        .map(|(n, rule)| {
            let mut rule: NatRule = rule.parse().unwrap();
            rule.conditions.id = n;
            rule
        })
        .collect();
    let iface = |name: &str| match name {
        "lan" => Some(LAN),
        "wan" => Some(WAN),
        _ => None,
    };
    NatRules::compile(&rules, iface).unwrap()
}

impl Network {
    pub fn new(nat: &[&str]) -> Self {
        Self::with_limits(nat, &TrackerLimits::default())
    }

    pub fn with_limits(nat: &[&str], limits: &TrackerLimits) -> Self {
        let mut tracker = Conntrack::new(limits, rules(nat), [1, 2]);
        let own = |iface, text: &str| (iface, text.parse().unwrap());
        tracker.set_addresses([own(LAN, OWN_LAN), own(WAN, OWN_WAN)].into_iter());
        Self { tracker, now_ns: 1_000_000_000 }
    }

    /// Passes a packet that came in by an interface. Returns `None` if the tracker drops it.
    pub fn pass(&mut self, iface: u16, mut packet: TestPacket) -> Option<TestPacket> {
        packet.fields.iface_in = Some(iface);
        packet.fields.hook = Hook::Prerouting;
        if self.tracker.on_packet(self.now_ns, &mut packet) != Action::Accept {
            return None;
        }
        let dst = packet.fields.dst.to_string();
        if dst == OWN_WAN || dst == OWN_LAN {
            packet.fields.hook = Hook::Input;
        } else {
            packet.fields.iface_out = Some(if dst.starts_with("10.1.") { LAN } else { WAN });
            packet.fields.hook = Hook::Postrouting;
        }
        let action = self.tracker.on_packet(self.now_ns, &mut packet);
        (action == Action::Accept).then_some(packet)
    }

    pub fn out(&mut self, packet: TestPacket) -> Option<TestPacket> {
        self.pass(LAN, packet)
    }

    pub fn back(&mut self, packet: TestPacket) -> Option<TestPacket> {
        self.pass(WAN, packet)
    }

    pub fn wait(&mut self, seconds: u64) {
        self.now_ns += seconds * 1_000_000_000;
    }
}
