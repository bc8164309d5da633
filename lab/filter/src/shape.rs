//! Generates rules and packets with the published statistics of real lists.
//!
//! ClassBench (Taylor and Turner, INFOCOM 2005) describes three kinds of lists: access lists of
//! routers, firewalls, and chains of Linux's ipchains. The parts of wildcards, lengths of prefixes
//! and classes of ports here are rounded from its tables. `worst` has no model: wide prefixes and
//! ranges of any length in all four dimensions, so that each packet matches many rules.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_filter::{
    Action, AddressMatch, Fields, FlowState, Hook, PortMatch, Ports, Rule, RuleList,
};
use towpath_wire::Prefix;

/// Number of packets that are evaluated in turn, too many for a branch predictor to learn.
pub const PACKETS: usize = 16_384;

/// A kind of list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Access list of a router: mostly long prefixes in both addresses, exact destination ports.
    Acl,
    /// Access list of a router for IPv6.
    Acl6,
    /// Firewall: many wildcards, port ranges on both sides.
    Firewall,
    /// ipchains: a mixture of access lists and firewalls.
    Chains,
    /// Wide prefixes and ranges, so that most rules overlap.
    Worst,
}

/// Statistics of a list, in percent of its rules.
struct Parts {
    any_src: u64,
    any_dst: u64,
    any_sport: u64,
    exact_dport: u64,
    any_dport: u64,
    tcp: u64,
    udp: u64,
}

impl Shape {
    /// All kinds of lists.
    pub const ALL: [Self; 5] = [Self::Acl, Self::Acl6, Self::Firewall, Self::Chains, Self::Worst];

    /// Returns the name used in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acl => "acl",
            Self::Acl6 => "acl6",
            Self::Firewall => "firewall",
            Self::Chains => "chains",
            Self::Worst => "worst",
        }
    }

    const fn parts(self) -> Parts {
        match self {
            Self::Acl | Self::Acl6 => Parts {
                any_src: 5,
                any_dst: 2,
                any_sport: 98,
                exact_dport: 60,
                any_dport: 25,
                tcp: 70,
                udp: 20,
            },
            Self::Firewall => Parts {
                any_src: 45,
                any_dst: 20,
                any_sport: 60,
                exact_dport: 50,
                any_dport: 25,
                tcp: 60,
                udp: 25,
            },
            Self::Chains => Parts {
                any_src: 15,
                any_dst: 10,
                any_sport: 75,
                exact_dport: 45,
                any_dport: 40,
                tcp: 50,
                udp: 30,
            },
            Self::Worst => Parts {
                any_src: 10,
                any_dst: 10,
                any_sport: 10,
                exact_dport: 10,
                any_dport: 10,
                tcp: 30,
                udp: 30,
            },
        }
    }

    /// Generates a list of `len` rules.
    pub fn list(self, len: u32) -> RuleList {
        let mut dice = Dice(u64::from(len));
        let mut list = RuleList::new();
        // Networks of the site, to which many rules refer.
        let sites: Vec<u32> = (0..(len / 50).max(4)).map(|_| dice.next() as u32).collect();
        let mut rules: Vec<Rule> = Vec::new();
        while rules.len() < len as usize {
            let rule = self.rule(&mut dice, &sites);
            // Skip rules that match everything. In real lists such a rule is the last one, the
            // default.
            if prefix_len(&rule.src) + prefix_len(&rule.dst) > 0 {
                rules.push(rule);
            }
        }
        if self != Self::Worst {
            // As in ClassBench, sort more specific rules first, because administrators put
            // exceptions before the rules that they restrict.
            rules.sort_by_key(|rule| Reverse(prefix_len(&rule.src) + prefix_len(&rule.dst)));
        }
        for (id, rule) in (0..).zip(rules) {
            list.insert(Rule { id, ..rule });
        }
        list
    }

    fn rule(self, dice: &mut Dice, sites: &[u32]) -> Rule {
        let parts = self.parts();
        let action = if dice.percent(50) { Action::Accept } else { Action::Drop };
        let mut rule = Rule::new(0, action);
        rule.hooks = Hook::Forward.into();
        rule.src = (!dice.percent(parts.any_src)).then(|| self.prefix(dice, sites).into());
        rule.dst = (!dice.percent(parts.any_dst)).then(|| self.prefix(dice, sites).into());
        let of_tcp = parts.tcp;
        match dice.below(100) {
            n if n < of_tcp => rule.protocol = Some(6),
            n if n < of_tcp + parts.udp => rule.protocol = Some(17),
            n if n < 95 && self != Self::Acl6 => {
                rule.protocol = Some(1);
                return rule;
            }
            _ => return rule,
        }
        if !dice.percent(parts.any_sport) {
            rule.sport = Some(self.range(dice).into());
        }
        rule.dport = match dice.below(100) {
            n if n < parts.exact_dport => {
                let port = dice.pick(&[22, 25, 53, 80, 123, 443, 993, 1433, 3306, 5432, 8080]);
                let other = dice.below(65_536) as u16;
                let port = if dice.percent(70) { port } else { other };
                Some(Ports { first: port, last: port }.into())
            }
            n if n < parts.exact_dport + parts.any_dport => None,
            _ => Some(self.range(dice).into()),
        };
        rule
    }

    fn range(self, dice: &mut Dice) -> Ports {
        if self == Self::Worst {
            let (a, b) = (dice.below(65_536) as u16, dice.below(65_536) as u16);
            return Ports { first: a.min(b), last: a.max(b) };
        }
        match dice.below(10) {
            0..6 => Ports { first: 1024, last: 65_535 },
            6 => Ports { first: 0, last: 1023 },
            _ => {
                let first = dice.below(65_000) as u16;
                Ports { first, last: first + 1 + dice.below(500) as u16 }
            }
        }
    }

    fn prefix(self, dice: &mut Dice, sites: &[u32]) -> Prefix {
        let site = dice.pick(sites);
        // Within the site's /16 (IPv6: /48), hosts and small networks are close together.
        let host = dice.next() as u32 & 0xffff;
        match self {
            Self::Worst => {
                let (addr, len) = (dice.next() as u32, 1 + dice.below(24) as u8);
                new_prefix(IpAddr::V4(Ipv4Addr::from_bits(addr)), len)
            }
            Self::Acl6 => {
                let site = u128::from(site) << 80 | 0x2001 << 112;
                let host = u128::from(host) << 64 | u128::from(dice.next() & 0xffff);
                let len = dice.pick(&[48, 56, 64, 64, 64, 128, 128, 128]);
                new_prefix(IpAddr::V6(Ipv6Addr::from_bits(site | host)), len)
            }
            _ => {
                let len =
                    dice.pick(&[16, 20, 22, 23, 24, 24, 24, 25, 26, 27, 28, 30, 32, 32, 32, 32]);
                let addr = (site & 0xffff_0000) | host;
                new_prefix(IpAddr::V4(Ipv4Addr::from_bits(addr)), len)
            }
        }
    }

    /// Generates packets, nine of ten of which match a rule, as ClassBench's trace generator does.
    pub fn packets(self, list: &RuleList) -> Vec<Fields> {
        let mut dice = Dice(7);
        let rules: Vec<&Rule> = list.iter().collect();
        let any = Rule::new(0, Action::Drop);
        let packet = |_| {
            let rule = if dice.percent(10) { &any } else { dice.pick(&rules) };
            self.packet(&mut dice, rule)
        };
        (0..PACKETS).map(packet).collect()
    }

    fn packet(self, dice: &mut Dice, rule: &Rule) -> Fields {
        let protocol = rule.protocol.unwrap_or(if dice.percent(80) { 6 } else { 17 });
        let port = |dice: &mut Dice, ports: &Option<PortMatch>| {
            let ports = ports.as_ref().and_then(|ports| ports.ranges().first());
            let Ports { first, last } = *ports.unwrap_or(&Ports { first: 0, last: 65_535 });
            first + dice.below(u64::from(last - first) + 1) as u16
        };
        let ports = (port(dice, &rule.sport), port(dice, &rule.dport));
        Fields {
            hook: Hook::Forward,
            src: self.address(dice, &rule.src),
            dst: self.address(dice, &rule.dst),
            protocol,
            ports: (protocol != 1).then_some(ports),
            tcp_flags: 0x10,
            icmp: (protocol == 1).then_some((8, 0)),
            iface_in: Some(1),
            iface_out: Some(2),
            state: FlowState::Untracked,
            mark: 0,
        }
    }

    fn address(self, dice: &mut Dice, prefixes: &Option<AddressMatch>) -> IpAddr {
        let any = if self == Self::Acl6 { Prefix::ALL_V6 } else { Prefix::ALL_V4 };
        let prefixes = prefixes.as_ref().and_then(|prefixes| prefixes.prefixes().first());
        let prefix = *prefixes.unwrap_or(&any);
        let noise = u128::from(dice.next()) << 64 | u128::from(dice.next());
        match (prefix.network(), prefix.last()) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                let free = last.to_bits() ^ first.to_bits();
                IpAddr::V4(Ipv4Addr::from_bits(first.to_bits() | noise as u32 & free))
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                let free = last.to_bits() ^ first.to_bits();
                IpAddr::V6(Ipv6Addr::from_bits(first.to_bits() | noise & free))
            }
            _ => prefix.addr(),
        }
    }
}

/// Returns the number of bits that a condition on an address fixes.
fn prefix_len(prefixes: &Option<AddressMatch>) -> u32 {
    let first = prefixes.as_ref().and_then(|prefixes| prefixes.prefixes().first());
    first.map_or(0, |prefix| prefix.len().into())
}

/// Resolves interface names; the generated rules have none.
pub fn iface(_name: &str) -> Option<u16> {
    None
}

fn new_prefix(addr: IpAddr, len: u8) -> Prefix {
    Prefix::new(addr, len).expect("the length fits the version").trunc()
}

/// SplitMix64, a pseudorandom number generator.
pub struct Dice(pub u64);

impl Dice {
    /// Returns the next random number.
    #[allow(clippy::should_implement_trait)] // Dice do not end.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns true with a probability of `part` percent.
    pub fn percent(&mut self, part: u64) -> bool {
        self.below(100) < part
    }

    /// Returns a random element.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
