//! The parts of a packet that rules look at: headers, interfaces, and the hook.

use core::net::IpAddr;

/// A place on a packet's way through a router at which rules judge packets.
///
/// ```text
///  rx ─► prerouting ─┬─► input ─► sockets ─► output ─┐
///                    └─► forward ────────────────────┴─► postrouting ─► tx
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Every packet that an interface receives, before routing.
    Prerouting,
    /// A packet for this host itself.
    Input,
    /// A packet for another host, after routing: the outgoing interface is known.
    Forward,
    /// A packet that this host itself sends.
    Output,
    /// Every packet that an interface is about to send.
    Postrouting,
}

impl Hook {
    /// All hooks, in the order of a packet's way.
    pub const ALL: [Self; 5] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];

    /// The hook's word in the grammar.
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

/// A set of hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hooks(u8);

impl Hooks {
    /// No hook.
    pub const NONE: Self = Self(0);
    /// The hooks of a rule that names none: each packet from outside passes exactly one of them.
    pub const INCOMING: Self = Self::NONE.with(Hook::Input).with(Hook::Forward);

    /// The same set and `hook`.
    #[must_use]
    pub const fn with(self, hook: Hook) -> Self {
        Self(self.0 | 1 << hook as u8)
    }

    /// Whether `hook` is in the set.
    #[must_use]
    pub const fn contains(self, hook: Hook) -> bool {
        self.0 & 1 << hook as u8 != 0
    }

    /// Whether no hook is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The hooks of the set, in the order of a packet's way.
    pub fn iter(self) -> impl Iterator<Item = Hook> {
        Hook::ALL.into_iter().filter(move |hook| self.contains(*hook))
    }
}

impl From<Hook> for Hooks {
    fn from(hook: Hook) -> Self {
        Self::NONE.with(hook)
    }
}

/// A packet as rules see it, filled in by the caller from headers that are validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// Hook that the packet is at.
    pub hook: Hook,
    /// Source address, of the same family as `dst`.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Protocol behind the IP header and its extension headers.
    pub protocol: u8,
    /// Source and destination port. `None` for protocols without ports and for later fragments.
    pub ports: Option<(u16, u16)>,
    /// Flags of the TCP header (CWR ECE URG ACK PSH RST SYN FIN), read only with TCP and `ports`.
    pub tcp_flags: u8,
    /// Type and code of an ICMP or ICMPv6 message. `None` otherwise and for later fragments.
    pub icmp: Option<(u8, u8)>,
    /// Interface that received the packet. `None` for packets of this host.
    pub iface_in: Option<u16>,
    /// Interface that is to send the packet. `None` where routing has not chosen one.
    pub iface_out: Option<u16>,
}
