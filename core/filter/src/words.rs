//! Converts a rule to and from pairs of key and value, the common form of text and JSON.

use core::fmt;

use towpath_wire::IpProtocol;

use crate::error::RuleError;
use crate::fields::{FlowStates, Hook, Hooks};
use crate::rule::{Icmp, Log, RateLimit, Rule, RuleAction, TcpFlags};
use crate::sets::{AddressMatch, IpVersions, PortMatch};
use crate::values;

/// Keys of a rule, in the order in which they are written.
pub(crate) const KEYS: [&str; 18] = [
    "id", "hook", "proto", "src", "sport", "dst", "dport", "flags", "icmp", "state", "in", "out",
    "mark", "rate", "burst", "action", LOG, LOG_RATE,
];

/// The only key of a rule without a value.
pub(crate) const LOG: &str = "log";

/// Key of the maximum rate of log entries. In text, the value follows the words `log rate`.
pub(crate) const LOG_RATE: &str = "log-rate";

/// Partially parsed rule; each key may occur once.
#[derive(Debug, Default)]
pub(crate) struct RuleDraft {
    id: Option<u32>,
    hooks: Option<Hooks>,
    protocol: Option<u8>,
    src: Option<AddressMatch>,
    sport: Option<PortMatch>,
    dst: Option<AddressMatch>,
    dport: Option<PortMatch>,
    flags: Option<TcpFlags>,
    /// ICMP type as text. The text is parsed last, because its meaning depends on the protocol,
    /// which may follow.
    icmp: Option<String>,
    states: Option<FlowStates>,
    iface_in: Option<String>,
    iface_out: Option<String>,
    mark: Option<u32>,
    rate: Option<RateLimit>,
    burst: Option<u32>,
    action: Option<RuleAction>,
    log: Option<()>,
    log_rate: Option<u32>,
}

impl RuleDraft {
    /// Parses the value of a key; [`LOG`] has an empty value.
    pub(crate) fn take(&mut self, key: &str, value: &str) -> Result<(), RuleError> {
        let is_first = match key {
            "id" => self.id.replace(values::id(value)?).is_none(),
            "hook" => self.hooks.replace(values::hooks(value)?).is_none(),
            "proto" => self.protocol.replace(values::protocol(value)?).is_none(),
            "src" => self.src.replace(values::prefixes(value)?).is_none(),
            "sport" => self.sport.replace(values::port_match(value)?).is_none(),
            "dst" => self.dst.replace(values::prefixes(value)?).is_none(),
            "dport" => self.dport.replace(values::port_match(value)?).is_none(),
            "flags" => self.flags.replace(values::flags(value)?).is_none(),
            "icmp" => self.icmp.replace(value.to_owned()).is_none(),
            "state" => self.states.replace(values::states(value)?).is_none(),
            "in" => self.iface_in.replace(values::iface(value)?).is_none(),
            "out" => self.iface_out.replace(values::iface(value)?).is_none(),
            "mark" => self.mark.replace(values::mark(value)?).is_none(),
            "rate" => self.rate.replace(values::rate(value)?).is_none(),
            "burst" => self.burst.replace(values::burst(value)?).is_none(),
            "action" => self.action.replace(values::rule_action(value)?).is_none(),
            LOG => self.log.replace(()).is_none(),
            LOG_RATE => self.log_rate.replace(values::log_rate(value)?).is_none(),
            _ => return Err(RuleError::unknown("word", key, &KEYS)),
        };
        if is_first {
            Ok(())
        } else {
            Err(RuleError::new(format!("\"{key}\" is there twice"), "expected each word once"))
        }
    }

    /// Checks that the keys of the rule fit together, and returns the rule.
    pub(crate) fn finish(self) -> Result<Rule, RuleError> {
        let missing = |key: &str, expected: &str| {
            RuleError::new(format!("\"{key}\" is missing"), format!("expected \"{expected}\""))
        };
        let id = self.id.ok_or_else(|| missing("id", "id NUMBER"))?;
        let action = "action accept|drop|reject|mark NUMBER";
        let action = self.action.ok_or_else(|| missing("action", action))?;
        let hooks = self.hooks.unwrap_or(Hooks::INCOMING);
        self.check_family()?;
        self.check_ports()?;
        self.check_interfaces(hooks)?;
        let icmp = self.icmp()?;
        if self.log_rate.is_some() && self.log.is_none() {
            return Err(RuleError::new("\"log-rate\" is without \"log\"", "expected \"log\""));
        }
        if self.burst.is_some() && self.rate.is_none() {
            return Err(RuleError::new("\"burst\" is without \"rate\"", "expected \"rate 10/s\""));
        }
        let burst = self.burst.unwrap_or(RateLimit::BURST);
        Ok(Rule {
            id,
            hooks,
            src: self.src,
            dst: self.dst,
            protocol: self.protocol,
            sport: self.sport,
            dport: self.dport,
            flags: self.flags,
            icmp,
            states: self.states,
            iface_in: self.iface_in,
            iface_out: self.iface_out,
            mark: self.mark,
            rate: self.rate.map(|rate| RateLimit { burst, ..rate }),
            action,
            log: self.log.map(|()| Log { rate: self.log_rate }),
        })
    }

    /// Rejects source and destination prefixes without a common IP version, and an ICMP protocol of
    /// another version.
    fn check_family(&self) -> Result<(), RuleError> {
        let versions = |prefixes: &Option<AddressMatch>| {
            prefixes.as_ref().map_or(IpVersions::BOTH, AddressMatch::versions)
        };
        let possible = versions(&self.src).and(versions(&self.dst));
        if possible.is_none() {
            return Err(RuleError::new(
                "\"src\" and \"dst\" are of different IP versions",
                "expected both of IPv4 or both of IPv6",
            ));
        }
        match self.protocol.map(IpProtocol) {
            Some(IpProtocol::ICMP) if !possible.v4 => {
                Err(RuleError::new("IPv6 has no \"proto icmp\"", "expected \"proto icmp6\""))
            }
            Some(IpProtocol::ICMPV6) if !possible.v6 => {
                Err(RuleError::new("IPv4 has no \"proto icmp6\"", "expected \"proto icmp\""))
            }
            _ => Ok(()),
        }
    }

    /// Rejects conditions on ports or TCP flags if the rule's protocol has none, because no packet
    /// would match.
    fn check_ports(&self) -> Result<(), RuleError> {
        let Some(protocol) = self.protocol.map(IpProtocol) else { return Ok(()) };
        let has_ports = protocol == IpProtocol::TCP || protocol == IpProtocol::UDP;
        let name = values::protocol_name(protocol.0);
        for (key, is_given) in [("sport", self.sport.is_some()), ("dport", self.dport.is_some())] {
            if is_given && !has_ports {
                let what = format!("\"{key}\" does not go with protocol {name}");
                return Err(RuleError::new(what, "expected \"proto tcp\" or \"proto udp\""));
            }
        }
        if self.flags.is_some() && protocol != IpProtocol::TCP {
            let what = format!("\"flags\" does not go with protocol {name}");
            return Err(RuleError::new(what, "expected \"proto tcp\""));
        }
        Ok(())
    }

    /// Rejects a condition on an interface that is unknown at all hooks of the rule, because no
    /// packet would match.
    fn check_interfaces(&self, hooks: Hooks) -> Result<(), RuleError> {
        let never = |key: &str, lacking: &[Hook], expected: &str| {
            if hooks.iter().all(|hook| lacking.contains(&hook)) {
                let what = format!("\"{key}\" never matches at hook {}", values::hook_names(hooks));
                return Err(RuleError::new(what, expected));
            }
            Ok(())
        };
        if self.iface_in.is_some() {
            never(
                "in",
                &[Hook::Output],
                "expected hook prerouting, input, forward or postrouting",
            )?;
        }
        if self.iface_out.is_some() {
            let lacking = [Hook::Prerouting, Hook::Input];
            never("out", &lacking, "expected hook forward, output or postrouting")?;
        }
        Ok(())
    }

    fn icmp(&self) -> Result<Option<Icmp>, RuleError> {
        let Some(word) = &self.icmp else { return Ok(None) };
        let is_icmp =
            |protocol: &u8| [IpProtocol::ICMP, IpProtocol::ICMPV6].contains(&IpProtocol(*protocol));
        let Some(protocol) = self.protocol.filter(is_icmp) else {
            return Err(RuleError::new(
                "\"icmp\" is without its protocol",
                "expected \"proto icmp\" or \"proto icmp6\"",
            ));
        };
        values::icmp(word, protocol).map(Some)
    }
}

impl Rule {
    /// Returns the rule as pairs of key and value, for JSON and other formats. `log` has an empty
    /// value.
    #[must_use]
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let Self {
            id,
            hooks,
            src,
            dst,
            protocol,
            sport,
            dport,
            flags,
            icmp,
            states,
            iface_in,
            iface_out,
            mark,
            rate,
            action,
            log,
        } = self;
        let hooks = (*hooks != Hooks::INCOMING).then(|| values::hook_names(*hooks));
        let burst = rate.map(|rate| rate.burst).filter(|burst| *burst != RateLimit::BURST);
        let all = [
            ("id", Some(id.to_string())),
            ("hook", hooks),
            ("proto", protocol.map(values::protocol_name)),
            ("src", src.as_ref().map(values::prefix_words)),
            ("sport", sport.as_ref().map(values::port_words)),
            ("dst", dst.as_ref().map(values::prefix_words)),
            ("dport", dport.as_ref().map(values::port_words)),
            ("flags", flags.map(values::flag_names)),
            ("icmp", icmp.map(|icmp| values::icmp_name(icmp, *protocol))),
            ("state", states.map(values::state_names)),
            ("in", iface_in.clone()),
            ("out", iface_out.clone()),
            ("mark", mark.map(|mark| mark.to_string())),
            ("rate", rate.map(values::rate_words)),
            ("burst", burst.map(|burst| burst.to_string())),
            ("action", Some(values::rule_action_name(*action))),
            (LOG, log.map(|_| String::new())),
            (LOG_RATE, log.and_then(|log| log.rate).map(values::log_rate_words)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// Creates a rule from pairs of key and value, in any order.
    ///
    /// # Errors
    /// Returns an error for unknown keys, invalid values, or conflicting conditions.
    pub fn from_words<'a>(
        words: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, RuleError> {
        let mut draft = RuleDraft::default();
        for (key, value) in words {
            draft.take(key, value)?;
        }
        draft.finish()
    }
}

/// Formats the rule in the grammar of access lists, starting with `id`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (key, value)) in self.words().into_iter().enumerate() {
            let blank = if n == 0 { "" } else { " " };
            match key {
                LOG => write!(f, "{blank}{key}")?,
                LOG_RATE => write!(f, "{blank}rate {value}")?,
                _ => write!(f, "{blank}{key} {value}")?,
            }
        }
        Ok(())
    }
}
