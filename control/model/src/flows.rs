//! Flows that a router tracks, and its rules of address translation, as serialized to JSON.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use towpath_wire::Prefix;

use crate::sockets::Word;
use crate::text;

/// Rules of address translation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nat {
    /// All rules, in ascending order of their numbers.
    pub rules: Vec<NatRuleText>,
}

/// Rule of address translation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatRuleText {
    /// Text of the rule, starting with `id`: "id 10 masquerade out wan".
    pub rule: String,
    /// Flows that the rule has translated since it was added.
    pub flows: u64,
}

/// Change to the rules of address translation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum NatChange {
    /// Adds a rule. Fails if a rule with this number exists. A rule without number is added at the
    /// end.
    AddRule {
        /// Text of the rule.
        rule: String,
    },
    /// Adds a rule, or replaces the rule with its number.
    ReplaceRule {
        /// Text of the rule, starting with `id`.
        rule: String,
    },
    /// Deletes a rule. Flows that it has translated go on.
    DeleteRule {
        /// Number of the rule.
        id: u32,
    },
    /// Deletes all rules.
    Flush,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownFlow {
    /// Number of the flow, which no later flow has.
    pub id: u64,
    /// Event that the flow is listed for: `new`, `expired`, `evicted` or `deleted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Word>,
    /// Transport protocol: `tcp`, `udp`, `icmp`, `icmp6`, or a number.
    pub proto: Word,
    /// State: `opening`, `established`, `closing`, `unanswered`, `answered` or
    /// `assured`.
    pub state: Word,
    /// Source of the first packet, as it arrived.
    pub src: IpAddr,
    /// Source port, or identifier of an ICMP query.
    pub sport: u16,
    /// Destination of the first packet, as it arrived.
    pub dst: IpAddr,
    /// Destination port.
    pub dport: u16,
    /// Source of answers, as they arrive.
    pub reply_src: IpAddr,
    /// Source port of answers.
    pub reply_sport: u16,
    /// Destination of answers, as they arrive: the translated source.
    pub reply_dst: IpAddr,
    /// Destination port of answers.
    pub reply_dport: u16,
    /// Packets in the direction of the first one.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets in the other direction.
    pub reply_packets: u64,
    /// Bytes of these packets.
    pub reply_bytes: u64,
    /// Seconds until the flow is forgotten if no packet comes.
    pub expires_s: u64,
}

/// Conditions on flows; all must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowFilter {
    /// Number of the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Transport protocol, as in [`ShownFlow`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proto: Option<Word>,
    /// State, as in [`ShownFlow`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Word>,
    /// Prefix with the source.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::option")]
    pub src: Option<Prefix>,
    /// Prefix with the destination.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::option")]
    pub dst: Option<Prefix>,
    /// Source port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<u16>,
    /// Destination port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dport: Option<u16>,
}

impl FlowFilter {
    /// Returns whether a flow meets all conditions.
    #[must_use]
    pub fn matches(&self, flow: &ShownFlow) -> bool {
        let Self { id, proto, state, src, dst, sport, dport } = self;
        id.is_none_or(|id| id == flow.id)
            && proto.as_ref().is_none_or(|proto| *proto == flow.proto)
            && state.as_ref().is_none_or(|state| *state == flow.state)
            && src.is_none_or(|prefix| prefix.contains(flow.src))
            && dst.is_none_or(|prefix| prefix.contains(flow.dst))
            && sport.is_none_or(|port| port == flow.sport)
            && dport.is_none_or(|port| port == flow.dport)
    }
}
