//! Reference implementation of a rule list: compares a packet with every rule in turn.
//!
//! Tests and the fuzzer compare the compiled classifier with it.

use towpath_wire::IpProtocol;

use crate::extras::RuleExtras;
use crate::fields::Fields;
use crate::rule::Rule;
use crate::sets::{AddressMatch, NamedSets, PortMatch, Ports, SetMembers};

/// Filter rule whose interface names are resolved to interface numbers.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) rule: Rule,
    pub(crate) iface_in: Option<u16>,
    pub(crate) iface_out: Option<u16>,
    /// Parts of the rule that the search tree does not contain; `None` if there are none.
    pub(crate) extras: Option<RuleExtras>,
}

impl Resolved {
    /// Returns whether a packet meets all conditions of the rule, except its rate.
    pub(crate) fn matches(&self, fields: &Fields, sets: &NamedSets) -> bool {
        let Rule { src, dst, protocol, sport, dport, flags, icmp, .. } = &self.rule;
        let is_icmp = [IpProtocol::ICMP.0, IpProtocol::ICMPV6.0].contains(&fields.protocol);
        let is_tcp = fields.protocol == IpProtocol::TCP.0 && fields.ports.is_some();
        let has_addr = |condition: &Option<AddressMatch>, addr| {
            condition.as_ref().is_none_or(|it| {
                let set = it.set().and_then(|name| sets.get(name));
                let prefixes = set.map_or(it.prefixes(), SetMembers::prefixes);
                prefixes.iter().any(|prefix| prefix.contains(addr))
            })
        };
        let has_port = |condition: &Option<PortMatch>, port: Option<u16>| {
            condition.as_ref().is_none_or(|it| {
                let set = it.set().and_then(|name| sets.get(name));
                let mut ranges = set.map_or(it.ranges(), SetMembers::ranges).iter();
                let is_in = |ports: &Ports, port| (ports.first..=ports.last).contains(&port);
                port.is_some_and(|port| ranges.any(|ports| is_in(ports, port)))
            })
        };
        let is_met = [
            self.rule.hooks.contains(fields.hook),
            has_addr(src, fields.src),
            has_addr(dst, fields.dst),
            protocol.is_none_or(|protocol| protocol == fields.protocol),
            has_port(sport, fields.ports.map(|(port, _)| port)),
            has_port(dport, fields.ports.map(|(_, port)| port)),
            flags.is_none_or(|flags| is_tcp && fields.tcp_flags & flags.mask == flags.set),
            icmp.is_none_or(|icmp| {
                is_icmp
                    && fields.icmp.is_some_and(|(kind, code)| {
                        kind == icmp.kind && icmp.code.is_none_or(|wanted| wanted == code)
                    })
            }),
            self.rule.states.is_none_or(|states| states.contains(fields.state)),
            self.iface_in.is_none_or(|iface| fields.iface_in == Some(iface)),
            self.iface_out.is_none_or(|iface| fields.iface_out == Some(iface)),
            self.rule.mark.is_none_or(|mark| mark == fields.mark),
        ];
        is_met.iter().all(|is_met| *is_met)
    }
}
