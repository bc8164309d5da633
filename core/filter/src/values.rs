//! Parses and formats the values in rules: prefixes, ports, flags, ICMP types, rates.

use core::fmt::Display;

use towpath_wire::{IpProtocol, Prefix};

use crate::error::{RuleError, shown};
use crate::fields::{FlowState, FlowStates, Hook, Hooks};
use crate::rule::{Action, Icmp, RateLimit, RateUnit, RuleAction, TcpFlags};
use crate::sets::{AddressMatch, PortMatch, PortRanges, Ports, PrefixList, SetMembers};

const ACTIONS: [(&str, Action); 3] =
    [("accept", Action::Accept), ("drop", Action::Drop), ("reject", Action::Reject)];

/// Names of IP protocols in the grammar of rules, with their numbers.
const PROTOCOLS: [(&str, u8); 4] = [
    ("tcp", IpProtocol::TCP.0),
    ("udp", IpProtocol::UDP.0),
    ("icmp", IpProtocol::ICMP.0),
    ("icmp6", IpProtocol::ICMPV6.0),
];

/// TCP header flags by bit (RFC 9293 section 3.1).
const FLAGS: [(&str, u8); 8] = [
    ("fin", 1),
    ("syn", 2),
    ("rst", 4),
    ("psh", 8),
    ("ack", 16),
    ("urg", 32),
    ("ece", 64),
    ("cwr", 128),
];

/// Names of ICMP types (RFC 792), as in nft(8).
const ICMP_TYPES: [(&str, u8); 6] = [
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("redirect", 5),
    ("echo-request", 8),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
];

/// Names of ICMPv6 types (RFC 4443, RFC 4861), as in nft(8).
const ICMPV6_TYPES: [(&str, u8); 11] = [
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
];

/// Maximum length of an interface name in bytes. The limit is four times Linux's IFNAMSIZ, because
/// port names of the router can be longer.
const IFACE_NAME_MAX: usize = 64;

/// Maximum number of prefixes or port ranges that a condition lists. More need a set.
const LISTED_MAX: usize = 64;

/// Maximum length of the name of a set, in characters.
const SET_NAME_MAX: usize = 32;

/// Word for the members of a set without any.
const NO_MEMBERS: &str = "none";

type Parsed<T> = Result<T, RuleError>;

/// Returns the value with the name `word` in `table`.
fn of_name<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    table.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}

/// Returns the name of `value` in `table`.
fn name_of<T: Copy + PartialEq>(table: &[(&'static str, T)], value: T) -> Option<&'static str> {
    table.iter().find(|(_, known)| *known == value).map(|(name, _)| *name)
}

fn names<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|(name, _)| *name).collect()
}

/// Parses a decimal number. Unlike `str::parse`, rejects a leading plus sign.
fn number<T: core::str::FromStr>(word: &str) -> Option<T> {
    let is_plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { word.parse().ok() } else { None }
}

fn invalid(word: &str, what: &str, expected: &str) -> RuleError {
    RuleError::new(format!("\"{}\" is not {what}", shown(word)), format!("expected {expected}"))
}

pub(crate) fn id(word: &str) -> Parsed<u32> {
    number(word).ok_or_else(|| invalid(word, "a valid number of a rule", "0 to 4294967295"))
}

pub(crate) fn action(word: &str) -> Parsed<Action> {
    let unknown = || RuleError::unknown("action", word, &names(&ACTIONS));
    of_name(&ACTIONS, word).ok_or_else(unknown)
}

pub(crate) fn action_name(action: Action) -> &'static str {
    name_of(&ACTIONS, action).unwrap_or_default()
}

pub(crate) fn hooks(word: &str) -> Parsed<Hooks> {
    let known = Hook::ALL.map(Hook::name);
    word.split(',').try_fold(Hooks::NONE, |hooks, name| {
        let hook = Hook::ALL.into_iter().find(|hook| hook.name() == name);
        Ok(hooks.with(hook.ok_or_else(|| RuleError::unknown("hook", name, &known))?))
    })
}

pub(crate) fn hook_names(hooks: Hooks) -> String {
    hooks.iter().map(Hook::name).collect::<Vec<_>>().join(",")
}

pub(crate) fn states(word: &str) -> Parsed<FlowStates> {
    let known = FlowState::ALL.map(FlowState::name);
    word.split(',').try_fold(FlowStates::NONE, |states, name| {
        let state = FlowState::ALL.into_iter().find(|state| state.name() == name);
        Ok(states.with(state.ok_or_else(|| RuleError::unknown("state", name, &known))?))
    })
}

pub(crate) fn state_names(states: FlowStates) -> String {
    let names = FlowState::ALL.into_iter().filter(|state| states.contains(*state));
    names.map(FlowState::name).collect::<Vec<_>>().join(",")
}

pub(crate) fn prefix(word: &str) -> Parsed<Prefix> {
    let none = |_| invalid(word, "a valid prefix", "an address or a prefix, as 10.0.0.0/8");
    let prefix = word.parse::<Prefix>().map_err(none)?;
    // Reject a prefix with host bits set: because of a typing error, the rule could apply to the
    // wrong hosts.
    if prefix.trunc() != prefix {
        let (host, network) = (prefix.addr(), prefix.trunc());
        let bits = if host.is_ipv4() { 32 } else { 128 };
        let expected = format!("{network} or {host}/{bits}");
        return Err(invalid(word, "a network, but a host in one", &expected));
    }
    Ok(prefix)
}

pub(crate) fn protocol(word: &str) -> Parsed<u8> {
    if let Some(known) = of_name(&PROTOCOLS, word).or_else(|| number(word)) {
        return Ok(known);
    }
    let mut error = RuleError::unknown("protocol", word, &names(&PROTOCOLS));
    if error.expected.starts_with("expected") {
        error.expected.push_str(", or a number up to 255");
    }
    Err(error)
}

pub(crate) fn protocol_name(protocol: u8) -> String {
    name_of(&PROTOCOLS, protocol).map_or_else(|| protocol.to_string(), str::to_owned)
}

pub(crate) fn ports(word: &str) -> Parsed<Ports> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let expected = "a port up to 65535, or a range as 80-90";
    let ports = match (number(first), number(last)) {
        (Some(first), Some(last)) => Ports { first, last },
        _ => return Err(invalid(word, "a valid port", expected)),
    };
    if ports.first > ports.last {
        return Err(invalid(word, "a valid range of ports", "the lower port first"));
    }
    Ok(ports)
}

/// Parses the words of a list, separated by commas.
fn listed<T>(word: &str, one: impl Fn(&str) -> Parsed<T>) -> Parsed<Vec<T>> {
    let all = word.split(',').map(one).collect::<Parsed<Vec<_>>>()?;
    if all.len() > LISTED_MAX {
        let what = format!("{} values in a list: at most {LISTED_MAX} are possible", all.len());
        return Err(RuleError::new(what, "expected a set: \"acl set NAME …\", then \"@NAME\""));
    }
    Ok(all)
}

/// Parses a condition on an address: prefixes, or `@` and the name of a set.
pub(crate) fn prefixes(word: &str) -> Parsed<AddressMatch> {
    match word.strip_prefix('@') {
        Some(name) => set_name(name).map(AddressMatch::Set),
        None => Ok(PrefixList::new(listed(word, prefix)?).into()),
    }
}

pub(crate) fn prefix_words(prefixes: &AddressMatch) -> String {
    match prefixes {
        AddressMatch::Set(name) => format!("@{name}"),
        known => joined(known.prefixes()),
    }
}

/// Parses a condition on a port: ports and ranges, or `@` and the name of a set.
pub(crate) fn port_match(word: &str) -> Parsed<PortMatch> {
    match word.strip_prefix('@') {
        Some(name) => set_name(name).map(PortMatch::Set),
        None => Ok(PortRanges::new(listed(word, ports)?).into()),
    }
}

pub(crate) fn port_words(ports: &PortMatch) -> String {
    match ports {
        PortMatch::Set(name) => format!("@{name}"),
        known => joined(known.ranges()),
    }
}

fn joined<T: Display>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Parses the name of a set.
pub(crate) fn set_name(word: &str) -> Parsed<String> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_valid = !word.is_empty() && word.len() <= SET_NAME_MAX && word.chars().all(is_letter);
    let expected = "at most 32 letters, digits, - or _";
    if is_valid {
        Ok(word.to_owned())
    } else {
        Err(invalid(word, "a valid name of a set", expected))
    }
}

/// Parses members of a set: prefixes or ports with commas between them, or `none`.
pub(crate) fn members(word: &str) -> Parsed<SetMembers> {
    if word == NO_MEMBERS {
        return Ok(SetMembers::Empty);
    }
    let words = || word.split(',').filter(|word| !word.is_empty());
    let Some(first) = words().next() else {
        return Err(invalid(word, "a list of members", "prefixes, ports or none"));
    };
    if first.contains(['.', ':']) {
        let all = words().map(prefix).collect::<Parsed<Vec<_>>>()?;
        return Ok(SetMembers::Prefixes(PrefixList::with_overlaps(all)));
    }
    let is_port = first.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    if !is_port {
        return Err(invalid(first, "a member of a set", "prefixes, ports or none"));
    }
    let all = words().map(ports).collect::<Parsed<Vec<_>>>()?;
    Ok(SetMembers::Ports(PortRanges::with_overlaps(all)))
}

pub(crate) fn member_words(members: &SetMembers) -> String {
    match members {
        SetMembers::Prefixes(list) if !members.is_empty() => joined(list.as_slice()),
        SetMembers::Ports(list) if !members.is_empty() => joined(list.as_slice()),
        _ => NO_MEMBERS.to_owned(),
    }
}

pub(crate) fn flags(word: &str) -> Parsed<TcpFlags> {
    let mut flags = TcpFlags { mask: 0, set: 0 };
    for name in word.split(',') {
        let (is_set, name) = name.strip_prefix('!').map_or((true, name), |name| (false, name));
        let unknown = || RuleError::unknown("flag", name, &names(&FLAGS));
        let bit = of_name(&FLAGS, name).ok_or_else(unknown)?;
        if flags.mask & bit != 0 {
            return Err(RuleError::new(
                format!("flag \"{name}\" is there twice"),
                "expected each flag once",
            ));
        }
        flags.mask |= bit;
        flags.set |= if is_set { bit } else { 0 };
    }
    Ok(flags)
}

pub(crate) fn flag_names(flags: TcpFlags) -> String {
    let asked = FLAGS.iter().filter(|(_, bit)| flags.mask & bit != 0);
    let named = asked.map(|(name, bit)| {
        let not = if flags.set & bit == 0 { "!" } else { "" };
        format!("{not}{name}")
    });
    named.collect::<Vec<_>>().join(",")
}

/// Parses an ICMP type and code, using the type names of `protocol`.
pub(crate) fn icmp(word: &str, protocol: u8) -> Parsed<Icmp> {
    let (kind, code) = word.split_once('/').map_or((word, None), |(kind, code)| (kind, Some(code)));
    let types = icmp_types(protocol);
    let unknown = || RuleError::unknown("ICMP type", kind, &names(types));
    let kind = of_name(types, kind).or_else(|| number(kind)).ok_or_else(unknown)?;
    let invalid = |code| invalid(code, "a valid ICMP code", "a number up to 255");
    let code = code.map(|code| number(code).ok_or_else(|| invalid(code))).transpose()?;
    Ok(Icmp { kind, code })
}

pub(crate) fn icmp_name(icmp: Icmp, protocol: Option<u8>) -> String {
    let types = protocol.map(icmp_types).unwrap_or_default();
    let named = name_of(types, icmp.kind).map_or_else(|| icmp.kind.to_string(), str::to_owned);
    match icmp.code {
        Some(code) => format!("{named}/{code}"),
        None => named,
    }
}

fn icmp_types(protocol: u8) -> &'static [(&'static str, u8)] {
    if protocol == IpProtocol::ICMPV6.0 { &ICMPV6_TYPES } else { &ICMP_TYPES }
}

pub(crate) fn iface(word: &str) -> Parsed<String> {
    let is_valid = !word.is_empty()
        && word.len() <= IFACE_NAME_MAX
        && !word.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#');
    let expected = "a name without blanks and #, of at most 64 bytes";
    if is_valid {
        Ok(word.to_owned())
    } else {
        Err(invalid(word, "a valid name of an interface", expected))
    }
}

/// Parses the mark of a packet: a decimal number, or a hexadecimal one with `0x`.
pub(crate) fn mark(word: &str) -> Parsed<u32> {
    let mark = match word.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16).ok(),
        _ => number(word),
    };
    mark.ok_or_else(|| invalid(word, "a valid mark", "0 to 4294967295, or as 0x1f"))
}

/// Parses an action: that of a default, or `mark` and a number.
pub(crate) fn rule_action(word: &str) -> Parsed<RuleAction> {
    match word.split_once(' ') {
        Some(("mark", number)) => mark(number).map(RuleAction::Mark),
        _ if word == "mark" => {
            Err(RuleError::new("\"mark\" is without its number", "expected \"action mark 7\""))
        }
        _ => action(word).map(RuleAction::Final),
    }
}

pub(crate) fn rule_action_name(action: RuleAction) -> String {
    match action {
        RuleAction::Final(action) => action_name(action).to_owned(),
        RuleAction::Mark(mark) => format!("mark {mark}"),
    }
}

/// Parses a rate of packets, such as `10/s` or `1/h`, with the default burst.
pub(crate) fn rate(word: &str) -> Parsed<RateLimit> {
    let known = 1..=RateLimit::TOKENS_MAX;
    let parts = word.split_once('/').and_then(|(tokens, unit)| {
        let tokens = number(tokens).filter(|tokens| known.contains(tokens))?;
        Some(RateLimit { tokens, per: of_name(&RateUnit::ALL, unit)?, burst: RateLimit::BURST })
    });
    parts.ok_or_else(|| invalid(word, "a valid rate", "1/s to 10000000/s, or a unit of m, h or d"))
}

pub(crate) fn rate_words(rate: RateLimit) -> String {
    format!("{}/{}", rate.tokens, name_of(&RateUnit::ALL, rate.per).unwrap_or_default())
}

/// Parses the capacity of a token bucket.
pub(crate) fn burst(word: &str) -> Parsed<u32> {
    let burst = number(word).filter(|burst| *burst > 0);
    burst.ok_or_else(|| invalid(word, "a valid burst", "a number of packets, at least 1"))
}

/// Parses a rate of log entries, such as `10/s`.
pub(crate) fn log_rate(word: &str) -> Parsed<u32> {
    let rate = word.strip_suffix("/s").and_then(number).filter(|rate| *rate > 0);
    rate.ok_or_else(|| invalid(word, "a valid rate", "a number of entries a second, as 10/s"))
}

pub(crate) fn log_rate_words(rate: u32) -> String {
    format!("{rate}/s")
}
