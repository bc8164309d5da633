//! Rules of address translation (NAT), and the grammar in which users write them.
//!
//! ```text
//! masquerade out wan
//! snat out wan src 10.1.0.0/24 to 192.0.2.5 ports 10000-19999
//! dnat in wan proto tcp dport 8080 to 10.1.0.5:80
//! redirect in lan proto udp dport 53 to :5353
//! ```

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use towpath_filter::{AddressMatch, CompileError, Fields, Hook, Ports, Rule, RuleList, Rules};
use towpath_wire::Prefix;

/// Kind of address translation that a rule performs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatKind {
    /// Source translation to an address of the outgoing interface.
    Masquerade,
    /// Source translation to a given address.
    Snat,
    /// Destination translation to a given address.
    Dnat,
    /// Destination translation to the router itself.
    Redirect,
}

impl NatKind {
    const ALL: [Self; 4] = [Self::Masquerade, Self::Snat, Self::Dnat, Self::Redirect];

    /// Returns the keyword of this kind in the grammar of rules.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Masquerade => "masquerade",
            Self::Snat => "snat",
            Self::Dnat => "dnat",
            Self::Redirect => "redirect",
        }
    }

    /// Returns the hook at which a packet is compared with the rule's conditions.
    const fn hook(self) -> Hook {
        match self {
            Self::Masquerade | Self::Snat => Hook::Postrouting,
            Self::Dnat | Self::Redirect => Hook::Prerouting,
        }
    }
}

/// A rule of address translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatRule {
    /// Kind of address translation that the rule performs.
    pub kind: NatKind,
    /// Number of the rule, and conditions that packets must meet. The action in this field is
    /// always `accept`.
    pub conditions: Rule,
    /// New address of `snat` and `dnat` rules; `None` for the other kinds.
    pub to: Option<IpAddr>,
    /// New port of `dnat` and `redirect` rules; `None` keeps the port.
    pub to_port: Option<u16>,
    /// Range of ports from which source translation chooses.
    pub ports: Option<Ports>,
    /// Whether a translated source accepts packets from any sender (full-cone NAT), once it has
    /// sent a packet.
    pub is_full_cone: bool,
}

/// Error message for a text that is not a valid rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatRuleError(pub String);

impl fmt::Display for NatRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for NatRuleError {}

fn error(why: impl Into<String>) -> NatRuleError {
    NatRuleError(why.into())
}

/// Parses a rule. The key `id` is optional; without it the rule gets number 0.
impl FromStr for NatRule {
    type Err = NatRuleError;

    fn from_str(text: &str) -> Result<Self, NatRuleError> {
        let mut words = text.split_whitespace().peekable();
        let mut id = "0";
        if words.next_if_eq(&"id").is_some() {
            id = words.next().ok_or_else(|| error("\"id\" is without its value"))?;
        }
        let word = words.next().unwrap_or_default();
        let kind = NatKind::ALL.into_iter().find(|kind| kind.name() == word).ok_or_else(|| {
            error(format!(
                "{word:?} is no kind of rule: expected masquerade, snat, dnat or redirect"
            ))
        })?;
        let mut draft = NatDraft::default();
        let mut pairs = vec![("id", id), ("action", "accept"), ("hook", kind.hook().name())];
        while let Some(key) = words.next() {
            if key == "full-cone" {
                draft.is_full_cone = true;
                continue;
            }
            let is_own = matches!(key, "to" | "ports");
            let is_condition =
                matches!(key, "src" | "dst" | "proto" | "sport" | "dport" | "in" | "out" | "mark");
            if !is_own && !is_condition {
                return Err(error(format!(
                    "unknown word {key:?}: expected src, dst, proto, sport, dport, in, out, mark, \
                     to, ports or full-cone"
                )));
            }
            let value =
                words.next().ok_or_else(|| error(format!("{key:?} is without its value")))?;
            if value.starts_with('@') {
                let why = "rules of address translation take lists, and no sets of an access list";
                return Err(error(format!("{key} {value}: {why}")));
            }
            match key {
                "to" => draft.set_target(kind, value)?,
                "ports" => draft.ports = Some(parse_ports(value)?),
                _ => pairs.push((key, value)),
            }
        }
        let conditions = Rule::from_words(pairs).map_err(|why| error(why.to_string()))?;
        draft.finish(kind, conditions)
    }
}

/// Parsed parts of a NAT rule, except its conditions.
#[derive(Debug, Default)]
struct NatDraft {
    to: Option<IpAddr>,
    to_port: Option<u16>,
    ports: Option<Ports>,
    is_full_cone: bool,
}

impl NatDraft {
    fn set_target(&mut self, kind: NatKind, text: &str) -> Result<(), NatRuleError> {
        let (addr, port) = match kind {
            NatKind::Redirect => (None, Some(text.trim_start_matches(':'))),
            _ if text.parse::<IpAddr>().is_ok() => (Some(text), None),
            _ => match text.rsplit_once(':') {
                Some((addr, port)) => (Some(addr.trim_matches(['[', ']'])), Some(port)),
                None => (Some(text), None),
            },
        };
        let to = addr.map(|addr| {
            addr.parse::<IpAddr>().map_err(|_| {
                error(format!(
                    "{text:?} is no target: expected an address, as 10.1.0.5 or 10.1.0.5:80"
                ))
            })
        });
        let to_port = port.map(|port| {
            port.parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| error(format!("{port:?} is no port: expected 1 to 65535")))
        });
        (self.to, self.to_port) = (to.transpose()?, to_port.transpose()?);
        Ok(())
    }

    fn finish(self, kind: NatKind, conditions: Rule) -> Result<NatRule, NatRuleError> {
        let Self { to, to_port, ports, is_full_cone } = self;
        let name = kind.name();
        let is_source = matches!(kind, NatKind::Masquerade | NatKind::Snat);
        if matches!(kind, NatKind::Snat | NatKind::Dnat) && to.is_none() {
            return Err(error(format!("{name} is without \"to ADDRESS\"")));
        }
        if kind == NatKind::Masquerade && to.is_some() {
            return Err(error("masquerade takes the address of its port; snat has \"to ADDRESS\""));
        }
        if kind == NatKind::Masquerade && conditions.iface_out.is_none() {
            return Err(error("masquerade is without \"out PORT\", whose address it takes"));
        }
        if is_source && to_port.is_some() {
            return Err(error(format!("{name} takes \"ports FIRST-LAST\", no port behind \"to\"")));
        }
        if !is_source && (ports.is_some() || is_full_cone) {
            return Err(error(format!("\"ports\" and \"full-cone\" do not go with {name}")));
        }
        if !is_source && conditions.mark.is_some() {
            let why = "rules of an access list set marks after destinations are translated";
            return Err(error(format!("\"mark\" does not go with {name}: {why}")));
        }
        let has_ports = matches!(conditions.protocol, Some(6 | 17));
        if to_port.is_some() && !has_ports {
            return Err(error("a new port needs \"proto tcp\" or \"proto udp\""));
        }
        let mut prefixes =
            conditions.src.iter().chain(&conditions.dst).flat_map(AddressMatch::prefixes);
        let is_other =
            |prefix: &&Prefix| to.is_some_and(|to| to.is_ipv4() != prefix.addr().is_ipv4());
        if let Some(other) = prefixes.find(is_other) {
            let addr = other.addr();
            return Err(error(format!("{addr} cannot be translated to the other IP version")));
        }
        Ok(NatRule { kind, conditions, to, to_port, ports, is_full_cone })
    }
}

fn parse_ports(text: &str) -> Result<Ports, NatRuleError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ports { first, last }),
        _ => Err(error(format!("{text:?} is no range of ports: expected 10000-19999"))),
    }
}

impl NatRule {
    /// Returns the rule's conditions, limited to the IP version of the new address. Otherwise the
    /// rule would match packets that it cannot translate, and later rules would not be applied to
    /// them.
    fn compared(&self) -> Rule {
        let mut conditions = self.conditions.clone();
        if conditions.src.is_none() && conditions.dst.is_none() {
            let any = self.to.map(|to| match to {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            });
            conditions.src = any.and_then(|any| Prefix::new(any, 0)).map(AddressMatch::One);
        }
        conditions
    }
}

/// Formats the rule in the grammar of rules, starting with `id`.
impl fmt::Display for NatRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {} {}", self.conditions.id, self.kind.name())?;
        for (key, value) in self.conditions.words() {
            if !matches!(key, "id" | "action" | "hook") {
                write!(f, " {key} {value}")?;
            }
        }
        match (self.to, self.to_port) {
            (None, None) => {}
            (Some(to), None) => write!(f, " to {to}")?,
            (Some(to), Some(port)) => {
                write!(f, " to {}", core::net::SocketAddr::new(to, port))?;
            }
            (None, Some(port)) => write!(f, " to :{port}")?,
        }
        if let Some(Ports { first, last }) = self.ports {
            write!(f, " ports {first}-{last}")?;
        }
        if self.is_full_cone { f.write_str(" full-cone") } else { Ok(()) }
    }
}

/// Compiled rules of address translation. If several match a packet, the one with the lowest number
/// is used.
#[derive(Debug)]
pub struct NatRules {
    rules: Vec<NatRule>,
    compiled: Rules,
    /// Number of flows that each rule has translated, in the order of `rules`.
    flows: Vec<u64>,
}

/// Creates an empty list of rules.
impl Default for NatRules {
    fn default() -> Self {
        Self::compile(&[], |_| None).expect("an empty list names no interface")
    }
}

impl NatRules {
    /// Compiles rules. `iface` returns the number of the interface with a given name. If several
    /// rules have the same number, the last one is used.
    ///
    /// # Errors
    /// Returns an error if a rule names an unknown interface.
    pub fn compile(
        rules: &[NatRule],
        iface: impl FnMut(&str) -> Option<u16>,
    ) -> Result<Self, CompileError> {
        let mut list = RuleList::new();
        let mut by_id = std::collections::BTreeMap::new();
        for rule in rules {
            list.insert(rule.compared());
            by_id.insert(rule.conditions.id, rule.clone());
        }
        let compiled = Rules::compile(&list, iface)?;
        let rules: Vec<_> = by_id.into_values().collect();
        let flows = vec![0; rules.len()];
        Ok(Self { rules, compiled, flows })
    }

    /// Copies the flow counts of rules from `before`, if the rules are also in `self`.
    pub fn inherit(&mut self, before: &Self) {
        for (rule, flows) in self.rules.iter().zip(&mut self.flows) {
            if let Some(at) = before.rules.iter().position(|known| known == rule) {
                *flows = before.flows[at];
            }
        }
    }

    /// Iterates over the rules in ascending order of number, each with its number of translated
    /// flows.
    pub fn iter(&self) -> impl Iterator<Item = (&NatRule, u64)> {
        self.rules.iter().zip(self.flows.iter().copied())
    }

    /// Returns whether the list has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the index of the first rule that matches a packet at its current hook.
    pub(crate) fn find(&self, fields: &Fields) -> Option<usize> {
        if !self.compiled.hooks().contains(fields.hook) {
            return None;
        }
        self.compiled.judge(fields).rule.map(|index| index as usize)
    }

    pub(crate) fn at(&self, index: usize) -> &NatRule {
        &self.rules[index]
    }

    pub(crate) fn count(&mut self, index: usize) {
        self.flows[index] += 1;
    }
}
