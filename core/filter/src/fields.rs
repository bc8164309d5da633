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
    /// Received packets, before routing.
    Prerouting,
    /// Packets to this host.
    Input,
    /// Packets to other hosts, after routing, so that the outgoing interface is known.
    Forward,
    /// Packets sent by this host.
    Output,
    /// Packets about to be sent on an interface.
    Postrouting,
}

impl Hook {
    /// All hooks, in packet path order.
    pub const ALL: [Self; 5] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];

    /// Returns the hook's name in the grammar.
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

/// Set of hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hooks(u8);

impl Hooks {
    /// Empty set.
    pub const NONE: Self = Self(0);
    /// Default hooks of a rule: each packet from outside passes exactly one of them.
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

    /// Iterates over the hooks in packet path order.
    pub fn iter(self) -> impl Iterator<Item = Hook> {
        Hook::ALL.into_iter().filter(move |hook| self.contains(*hook))
    }
}

impl From<Hook> for Hooks {
    fn from(hook: Hook) -> Self {
        Self::NONE.with(hook)
    }
}

/// State of a packet's flow, as a connection tracker determines it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowState {
    /// The packet is not tracked: there is no tracker, or it goes to a group.
    #[default]
    Untracked,
    /// The packet opens a flow, or belongs to one that has not been answered.
    New,
    /// The packet belongs to a flow with packets in both directions.
    Established,
    /// An ICMP error about a packet of a flow.
    Related,
    /// The packet belongs to no flow, and cannot open one.
    Invalid,
}

impl FlowState {
    /// All states.
    pub const ALL: [Self; 5] =
        [Self::Untracked, Self::New, Self::Established, Self::Related, Self::Invalid];

    /// Returns the state's name in the grammar.
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

/// Set of flow states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowStates(u8);

impl FlowStates {
    /// Empty set.
    pub const NONE: Self = Self(0);
    /// All states.
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

/// Packet fields as matched by rules. The caller fills them in from validated headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// Current hook of the packet.
    pub hook: Hook,
    /// Source address, of the same family as `dst`.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Transport protocol, after IP extension headers.
    pub protocol: u8,
    /// Source and destination port; `None` for protocols without ports and for later fragments.
    pub ports: Option<(u16, u16)>,
    /// TCP header flags (CWR ECE URG ACK PSH RST SYN FIN); used only with TCP and `ports`.
    pub tcp_flags: u8,
    /// Type and code of an ICMP or ICMPv6 message; otherwise, and for later fragments, `None`.
    pub icmp: Option<(u8, u8)>,
    /// Receiving interface; `None` for packets of this host.
    pub iface_in: Option<u16>,
    /// Sending interface; `None` if routing has not chosen one.
    pub iface_out: Option<u16>,
    /// State of the packet's flow.
    pub state: FlowState,
}
