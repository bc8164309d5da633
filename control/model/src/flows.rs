//! Types of the control protocol for flows that a router tracks, and for its rules of address
//! translation.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use towpath_wire::Prefix;

use crate::sockets::Word;
use crate::text;

/// Rules for address translation of a router.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nat {
    /// All rules, in ascending order of their numbers.
    pub rules: Vec<NatRuleText>,
}

/// Rule for address translation, with its counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatRuleText {
    /// Text of the rule, starting with `id`: "id 10 masquerade out wan".
    pub rule: String,
    /// Number of flows that the rule has translated since it was added.
    pub flows: u64,
}

/// Change to the rules for address translation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum NatChange {
    /// Adds a rule. Fails if a rule with this number exists. A rule without a number is added at
    /// the end.
    AddRule {
        /// Text of the rule, as in [`NatRuleText::rule`]; the number is optional.
        rule: String,
    },
    /// Adds a rule, or replaces the rule with its number.
    ReplaceRule {
        /// Text of the rule, starting with `id`.
        rule: String,
    },
    /// Deletes a rule. Existing flows keep their translation.
    DeleteRule {
        /// Number of the rule.
        id: u32,
    },
    /// Deletes all rules.
    Flush,
}

/// A flow that the router tracks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownFlow {
    /// Number of the flow, which is never reused.
    pub id: u64,
    /// Event for which the flow is listed: `new`, `expired`, `evicted` or `deleted`. `None` if the
    /// flow is listed for another reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Word>,
    /// Transport protocol: `tcp`, `udp`, `icmp`, `icmp6`, or a number.
    pub proto: Word,
    /// State: `opening`, `established`, `closing`, `unanswered`, `answered` or
    /// `assured`.
    pub state: Word,
    /// Source address of the first packet, before translation.
    pub src: IpAddr,
    /// Source port of the first packet, or the identifier of an ICMP query.
    pub sport: u16,
    /// Destination address of the first packet, before translation.
    pub dst: IpAddr,
    /// Destination port of the first packet, before translation.
    pub dport: u16,
    /// Source address of reply packets when they arrive at the router.
    pub reply_src: IpAddr,
    /// Source port of reply packets when they arrive at the router.
    pub reply_sport: u16,
    /// Destination address of reply packets when they arrive at the router: the translated source
    /// address of the flow.
    pub reply_dst: IpAddr,
    /// Destination port of answers, as they arrive at the router.
    pub reply_dport: u16,
    /// Number of packets in the direction of the first packet.
    pub packets: u64,
    /// Number of bytes in the direction of the first packet.
    pub bytes: u64,
    /// Number of packets in the direction of answers.
    pub reply_packets: u64,
    /// Number of bytes in the direction of answers.
    pub reply_bytes: u64,
    /// Seconds until the flow expires if no further packet arrives.
    pub expires_s: u64,
}

/// Conditions that select flows. A flow matches if it meets all conditions that are set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowFilter {
    /// Number of the flow, as in [`ShownFlow::id`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Transport protocol, as in [`ShownFlow`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proto: Option<Word>,
    /// State, as in [`ShownFlow`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Word>,
    /// Prefix that must contain the source address of the first packet.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::option")]
    pub src: Option<Prefix>,
    /// Prefix that must contain the destination address of the first packet.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::option")]
    pub dst: Option<Prefix>,
    /// Source port of the first packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<u16>,
    /// Destination port of the first packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dport: Option<u16>,
}

impl FlowFilter {
    /// Returns whether a flow meets all conditions that are set.
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
