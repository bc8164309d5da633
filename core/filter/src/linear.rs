//! Reference implementation of a rule list: compares a packet with every rule in turn.
//!
//! Tests and the fuzzer compare the compiled classifier with it.

use towpath_wire::IpProtocol;

use crate::fields::Fields;
use crate::rule::Rule;

/// Filter rule whose interface names are resolved to interface numbers.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) rule: Rule,
    pub(crate) iface_in: Option<u16>,
    pub(crate) iface_out: Option<u16>,
}

/// Returns the index of the first rule in `rules` that the packet matches.
pub(crate) fn first_match(rules: &[Resolved], fields: &Fields) -> Option<usize> {
    rules.iter().position(|rule| rule.matches(fields))
}

impl Resolved {
    /// Returns whether a packet meets all conditions of the rule.
    pub(crate) fn matches(&self, fields: &Fields) -> bool {
        let Rule { src, dst, protocol, sport, dport, flags, icmp, .. } = &self.rule;
        let is_icmp = [IpProtocol::ICMP.0, IpProtocol::ICMPV6.0].contains(&fields.protocol);
        let is_tcp = fields.protocol == IpProtocol::TCP.0 && fields.ports.is_some();
        let is_met = [
            self.rule.hooks.contains(fields.hook),
            src.is_none_or(|prefix| prefix.contains(fields.src)),
            dst.is_none_or(|prefix| prefix.contains(fields.dst)),
            protocol.is_none_or(|protocol| protocol == fields.protocol),
            sport.is_none_or(|ports| {
                fields.ports.is_some_and(|(port, _)| (ports.first..=ports.last).contains(&port))
            }),
            dport.is_none_or(|ports| {
                fields.ports.is_some_and(|(_, port)| (ports.first..=ports.last).contains(&port))
            }),
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
        ];
        is_met.iter().all(|is_met| *is_met)
    }
}
