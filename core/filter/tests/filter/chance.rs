//! Random rules and packets, from pools so small that rules overlap often.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_filter::{
    Action, AddressMatch, Fields, FlowState, FlowStates, Hook, Hooks, Icmp, Log, PortMatch,
    PortRanges, Ports, PrefixList, RateLimit, RateUnit, Rule, RuleAction, RuleList, SetMembers,
    TcpFlags,
};
use towpath_wire::Prefix;

/// Interfaces by name.
pub const IFACES: [(&str, u16); 4] = [("lo", 0), ("eth0", 1), ("eth1", 2), ("wan", 9)];

/// Names of the sets of a list: two of prefixes, and two of ports. The last one of each is empty.
pub const SETS: [&str; 4] = ["nets", "no-nets", "ports", "no-ports"];

/// Marks of packets and rules.
const MARKS: [u32; 3] = [0, 7, u32::MAX];

pub fn iface(name: &str) -> Option<u16> {
    IFACES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// SplitMix64 generator, so that a seed produces the same lists everywhere.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns an address that shares most bits with one of a few others.
    fn address(&mut self, is_v6: bool) -> IpAddr {
        let noise = self.next() & self.next() & self.next();
        if is_v6 {
            let base = self.pick(&[0x2001_0db8 << 96, 0x2001_0db8 << 96 | 7 << 40, 0, u128::MAX]);
            let noise = u128::from(noise) << self.pick(&[0, 16, 60, 64]);
            IpAddr::V6(Ipv6Addr::from_bits(base ^ noise))
        } else {
            let base = self.pick(&[0x0a00_0000, 0x0a01_0100, 0xc0a8_0001, 0, u32::MAX]);
            IpAddr::V4(Ipv4Addr::from_bits(base ^ noise as u32))
        }
    }

    fn prefix(&mut self, is_v6: bool) -> Prefix {
        let lens: &[u8] = if is_v6 {
            &[0, 1, 16, 32, 33, 48, 63, 64, 65, 96, 120, 128]
        } else {
            &[0, 1, 4, 8, 9, 15, 16, 20, 24, 28, 31, 32]
        };
        let len = self.pick(lens);
        Prefix::new(self.address(is_v6), len).expect("the length fits").trunc()
    }

    fn port(&mut self) -> u16 {
        let near = self.below(32) as u16;
        self.pick(&[near, 80, 443, 1023, 1024, 65535 - near, 0])
    }

    fn ports(&mut self) -> Ports {
        let (a, b) = (self.port(), self.port());
        if self.one_in(3) {
            Ports { first: a, last: a }
        } else {
            Ports { first: a.min(b), last: a.max(b) }
        }
    }

    /// Returns a condition on an address: a prefix, some prefixes, or a set.
    fn prefixes(&mut self, is_v6: bool) -> AddressMatch {
        match self.below(8) {
            0 => AddressMatch::Set(self.pick(&SETS[..2]).to_owned()),
            1 | 2 => {
                let len = 1 + self.below(5);
                let all = (0..len).map(|n| {
                    // The first prefix has the IP version of the rule's other condition.
                    let is_other = n > 0 && self.one_in(4);
                    self.prefix(is_v6 != is_other)
                });
                PrefixList::new(all.collect::<Vec<_>>()).into()
            }
            _ => self.prefix(is_v6).into(),
        }
    }

    /// Returns a condition on a port: a range, some ranges, or a set.
    fn port_match(&mut self) -> PortMatch {
        match self.below(8) {
            0 => PortMatch::Set(self.pick(&SETS[2..]).to_owned()),
            1 | 2 => {
                let len = 1 + self.below(5);
                PortRanges::new((0..len).map(|_| self.ports()).collect::<Vec<_>>()).into()
            }
            _ => self.ports().into(),
        }
    }

    /// Returns members of the set `name` that [`SETS`] has.
    pub fn members(&mut self, name: &str) -> SetMembers {
        let len = self.below(20);
        match name {
            "nets" => {
                let all = (0..len).map(|n| self.prefix(n % 3 == 0)).collect::<Vec<_>>();
                PrefixList::with_overlaps(all).into()
            }
            "ports" => {
                let all = (0..len).map(|_| self.ports()).collect::<Vec<_>>();
                PortRanges::with_overlaps(all).into()
            }
            _ => SetMembers::Empty,
        }
    }

    pub fn rule(&mut self, id: u32) -> Rule {
        let mut rule = Rule::new(id, self.pick(&[Action::Accept, Action::Drop, Action::Reject]));
        let is_v6 = self.one_in(3);
        if !self.one_in(4) {
            rule.src = Some(self.prefixes(is_v6));
        }
        if !self.one_in(4) {
            rule.dst = Some(self.prefixes(is_v6));
        }
        match self.below(8) {
            0 => {
                rule.protocol = Some(if is_v6 { 58 } else { 1 });
                let code = if self.one_in(2) { Some(self.below(3) as u8) } else { None };
                rule.icmp = Some(Icmp { kind: self.pick(&[0, 3, 8, 128]), code });
                if rule.src.is_none() && rule.dst.is_none() && self.one_in(2) {
                    rule.protocol = None;
                }
            }
            1 => {
                rule.protocol = Some(6);
                let mask = self.below(256) as u8 | 1;
                rule.flags = Some(TcpFlags { mask, set: mask & self.below(256) as u8 });
            }
            2 => rule.protocol = Some(self.pick(&[0, 1, 17, 47, 58, 255])),
            3 | 4 => rule.protocol = Some(self.pick(&[6, 17])),
            _ => {}
        }
        if matches!(rule.protocol, None | Some(6 | 17)) && rule.icmp.is_none() {
            if self.one_in(2) {
                rule.dport = Some(self.port_match());
            }
            if self.one_in(4) {
                rule.sport = Some(self.port_match());
            }
        }
        if self.one_in(6) {
            rule.hooks = self.pick(&[Hook::Prerouting, Hook::Input, Hook::Output]).into();
            rule.hooks = rule.hooks.with(Hook::Forward);
        }
        if self.one_in(5) {
            rule.iface_in = Some(self.pick(&IFACES).0.to_owned());
        }
        if self.one_in(8) && rule.hooks == Hooks::INCOMING {
            rule.iface_out = Some(self.pick(&IFACES).0.to_owned());
        }
        if self.one_in(6) {
            let states = [self.pick(&FlowState::ALL), self.pick(&FlowState::ALL)];
            rule.states = Some(states.into_iter().fold(FlowStates::NONE, FlowStates::with));
        }
        if self.one_in(8) {
            let rate = if self.one_in(2) { Some(1 + self.below(9) as u32) } else { None };
            rule.log = Some(Log { rate });
        }
        if self.one_in(10) {
            rule.mark = Some(self.pick(&MARKS));
        }
        if self.one_in(10) {
            let burst = self.pick(&[1, 2, RateLimit::BURST]);
            let per = self.pick(&[RateUnit::Second, RateUnit::Minute, RateUnit::Hour]);
            rule.rate = Some(RateLimit { tokens: 1 + self.below(2000) as u32, per, burst });
        }
        if self.one_in(10) {
            rule.action = RuleAction::Mark(self.pick(&MARKS));
        }
        rule
    }

    pub fn list(&mut self, len: u32) -> RuleList {
        let mut list = RuleList::new();
        for n in 0..len {
            // Use numbers with gaps, because a judgement contains indices and not numbers.
            list.insert(self.rule(n * 3));
        }
        for name in SETS {
            let members = self.members(name);
            list.set_members(name, members);
        }
        list.set_default(Hooks::INCOMING, self.pick(&[Action::Accept, Action::Drop]));
        list
    }

    /// Returns a packet at or next to a corner of a rule, or a random packet.
    pub fn packet(&mut self, list: &[Rule]) -> Fields {
        let any = Rule::new(0, Action::Drop);
        let rule =
            if list.is_empty() { &any } else { &list[self.below(list.len() as u64) as usize] };
        let mut prefix = |condition: &Option<AddressMatch>| {
            let all = condition.as_ref().map(AddressMatch::prefixes).unwrap_or_default();
            (!all.is_empty()).then(|| self.pick(all))
        };
        let (src, dst) = (prefix(&rule.src), prefix(&rule.dst));
        let version = src.or(dst).map(|prefix| prefix.addr().is_ipv6());
        let is_v6 = version.unwrap_or(rule.protocol == Some(58) || self.one_in(4));
        let of_version = |prefix: &Prefix| prefix.addr().is_ipv6() == is_v6;
        let src = self.address_of(src.filter(of_version), is_v6);
        let dst = self.address_of(dst.filter(of_version), is_v6);
        let protocol = rule.protocol.filter(|_| !self.one_in(16));
        let protocol = protocol.unwrap_or_else(|| self.pick(&[1, 6, 17, 47, 58]));
        let has_ports = matches!(protocol, 6 | 17) && !self.one_in(16);
        let ports = (self.port_of(&rule.sport), self.port_of(&rule.dport));
        let icmp = rule.icmp.map(|icmp| (icmp.kind, icmp.code.unwrap_or(self.below(3) as u8)));
        let has_icmp = matches!(protocol, 1 | 58) && !self.one_in(16);
        let flags = rule
            .flags
            .map_or(self.below(256) as u8, |flags| flags.set | !flags.mask & self.below(256) as u8);
        Fields {
            hook: self.pick(&[
                Hook::Forward,
                Hook::Forward,
                Hook::Input,
                Hook::Prerouting,
                Hook::Output,
            ]),
            src,
            dst,
            protocol,
            ports: has_ports.then_some(ports),
            tcp_flags: flags,
            icmp: has_icmp.then_some(icmp.unwrap_or((self.pick(&[0, 3, 8, 128]), 0))),
            iface_in: self.iface_of(rule.iface_in.as_deref()),
            iface_out: self.iface_of(rule.iface_out.as_deref()),
            state: self.pick(&FlowState::ALL),
            mark: self.pick(&MARKS),
        }
    }

    fn address_of(&mut self, prefix: Option<Prefix>, is_v6: bool) -> IpAddr {
        let Some(prefix) = prefix else { return self.address(is_v6) };
        let ends = [prefix.network(), prefix.last(), self.address(is_v6)];
        match (self.pick(&ends), self.below(8)) {
            // The address after the prefix.
            (IpAddr::V4(last), 0) => {
                IpAddr::V4(Ipv4Addr::from_bits(last.to_bits().wrapping_add(1)))
            }
            (IpAddr::V6(last), 0) => {
                IpAddr::V6(Ipv6Addr::from_bits(last.to_bits().wrapping_add(1)))
            }
            (end, _) => end,
        }
    }

    fn port_of(&mut self, ports: &Option<PortMatch>) -> u16 {
        let all = ports.as_ref().map(PortMatch::ranges).unwrap_or_default();
        if all.is_empty() {
            return self.port();
        }
        let ports = self.pick(all);
        let beside = [ports.first.wrapping_sub(1), ports.last.wrapping_add(1)];
        if self.one_in(6) { self.pick(&beside) } else { self.pick(&[ports.first, ports.last]) }
    }

    fn iface_of(&mut self, name: Option<&str>) -> Option<u16> {
        let wanted = name.and_then(iface);
        wanted
            .filter(|_| !self.one_in(8))
            .or_else(|| self.pick(&[None, Some(0), Some(1), Some(77)]))
    }
}
