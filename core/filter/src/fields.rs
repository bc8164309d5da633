//! Packet fields that rules match: headers, interfaces, and the hook.

use core::net::IpAddr;

/// Point in the packet path of a router at which rules are applied.
///
/// ```text
///  rx ─► prerouting ─┬─► input ─► sockets ─► output ─┐
///                    └─► forward ────────────────────┴─► postrouting ─► tx
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Received packets, before they are routed.
    Prerouting,
    /// Packets addressed to this host.
    Input,
    /// Packets to be forwarded to other hosts. The packets are already routed, so their outgoing
    /// interface is known.
    Forward,
    /// Packets sent by this host itself.
    Output,
    /// Packets about to be sent on their outgoing interface.
    Postrouting,
}

impl Hook {
    /// All hooks, in the order in which a packet passes them.
    pub const ALL: [Self; 5] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];

    /// Returns the hook's name in the grammar of rules.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        }
    }
}

/// Set of hooks at which a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hooks(u8);

impl Hooks {
    /// The empty set of hooks.
    pub const NONE: Self = Self(0);
    /// Default hooks of a rule: each packet received from another host passes exactly one of them.
    pub const INCOMING: Self = Self::NONE.with(Hook::Input).with(Hook::Forward);

    /// Returns the set with `hook` added.
    #[must_use]
    pub const fn with(self, hook: Hook) -> Self {
        Self(self.0 | 1 << hook as u8)
    }

    /// Returns whether `hook` is in the set.
    #[must_use]
    pub const fn contains(self, hook: Hook) -> bool {
        self.0 & 1 << hook as u8 != 0
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the hooks of the set, in the order in which a packet passes them.
    pub fn iter(self) -> impl Iterator<Item = Hook> {
        Hook::ALL.into_iter().filter(move |hook| self.contains(*hook))
    }
}

impl From<Hook> for Hooks {
    fn from(hook: Hook) -> Self {
        Self::NONE.with(hook)
    }
}

/// State of the flow that a packet belongs to, as determined by the connection tracker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowState {
    /// The packet is not tracked, because there is no connection tracker or because its destination
    /// is not unicast.
    #[default]
    Untracked,
    /// The packet opens a flow, or belongs to a flow without packets in the reply direction.
    New,
    /// The packet belongs to a flow with packets in both directions.
    Established,
    /// The packet is an ICMP error about a packet of a known flow.
    Related,
    /// The packet belongs to no flow and cannot open one.
    Invalid,
}

impl FlowState {
    /// All flow states.
    pub const ALL: [Self; 5] =
        [Self::Untracked, Self::New, Self::Established, Self::Related, Self::Invalid];

    /// Returns the state's name in the grammar of rules.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Untracked => "untracked",
            Self::New => "new",
            Self::Established => "established",
            Self::Related => "related",
            Self::Invalid => "invalid",
        }
    }
}

/// Set of flow states that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowStates(u8);

impl FlowStates {
    /// The empty set of flow states.
    pub const NONE: Self = Self(0);
    /// The set of all flow states.
    pub const ANY: Self = Self(0xff);

    /// Returns the set with `state` added.
    #[must_use]
    pub const fn with(self, state: FlowState) -> Self {
        Self(self.0 | 1 << state as u8)
    }

    /// Returns whether `state` is in the set.
    #[inline]
    #[must_use]
    pub const fn contains(self, state: FlowState) -> bool {
        self.0 & 1 << state as u8 != 0
    }
}

/// Fields of a packet that filter rules match. The caller fills them in from validated headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// Hook at which the packet is being judged.
    pub hook: Hook,
    /// Source address, of the same family as `dst`.
    pub src: IpAddr,
    /// Destination address, of the same family as `src`.
    pub dst: IpAddr,
    /// Number of the transport protocol that follows the IP extension headers.
    pub protocol: u8,
    /// Source and destination port; `None` for protocols without ports and for later fragments.
    pub ports: Option<(u16, u16)>,
    /// Flags of the TCP header (CWR ECE URG ACK PSH RST SYN FIN). Used only if the protocol is TCP
    /// and `ports` is set.
    pub tcp_flags: u8,
    /// Type and code of an ICMP or ICMPv6 message; `None` for other protocols and for fragments
    /// other than the first.
    pub icmp: Option<(u8, u8)>,
    /// Number of the receiving interface; `None` for packets sent by this host.
    pub iface_in: Option<u16>,
    /// Number of the outgoing interface; `None` before routing.
    pub iface_out: Option<u16>,
    /// State of the flow that the packet belongs to.
    pub state: FlowState,
    /// Mark that a rule has set at this or an earlier hook; 0 if none has.
    pub mark: u32,
}
