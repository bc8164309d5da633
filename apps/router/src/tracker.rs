//! Connection tracking and address translation for the packets of a router's stack.

use std::net::IpAddr;

use towpath_conntrack::{
    Conntrack, FlowClass, FragmentPosition, NatRule, NatRules, PacketToken, PacketView,
    TrackerLimits,
};
use towpath_filter::{Action, Fields, FlowState, Hook, Hooks};
use towpath_stack::IfaceId;
use towpath_stack::net::{HookPacket, Tracker};
use towpath_tcp::Instant;

/// A [`Conntrack`] that tracks the packets of the stack's first shard.
#[derive(Debug)]
pub struct FlowTracker(pub Conntrack);

/// Settings of a connection tracker.
#[derive(Debug, Clone, Copy)]
pub struct TrackerSettings {
    /// Limits on the number of tracked flows.
    pub limits: TrackerLimits,
    /// Random secret for the hashes of flow tables and for the choice of translated ports.
    pub key: [u64; 2],
}

/// A rule for address translation, and the number of flows that it has translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownRule {
    /// The rule for address translation.
    pub rule: NatRule,
    /// Number of flows that the rule has translated.
    pub flows: u64,
}

impl FlowTracker {
    /// Creates a connection tracker with these rules for address translation.
    pub fn new(settings: &TrackerSettings, rules: NatRules) -> Self {
        Self(Conntrack::new(&settings.limits, rules, settings.key))
    }

    /// Returns the rules for address translation, each with the number of translated flows.
    pub fn rules(&self) -> Vec<ShownRule> {
        let all = self.0.rules().iter();
        all.map(|(rule, flows)| ShownRule { rule: rule.clone(), flows }).collect()
    }

    /// Returns the counters of the tracker, and the number of tracked flows in each class.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let counters = self.0.counters().list().map(|(name, value)| (name.to_owned(), value));
        let of_class = |class: FlowClass| {
            let name = format!("flows_{}_{}", class.protocol(), class.name());
            (name, self.0.len_of(class) as u64)
        };
        let flows = ("flows".to_owned(), self.0.len() as u64);
        let by_class = FlowClass::ALL.into_iter().map(of_class);
        std::iter::once(flows).chain(by_class).chain(counters).collect()
    }
}

impl Tracker for FlowTracker {
    fn hooks(&self) -> Hooks {
        [Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting]
            .into_iter()
            .fold(Hooks::NONE, Hooks::with)
    }

    fn on_packet(&mut self, now: Instant, packet: &mut HookPacket<'_>) -> Action {
        self.0.on_packet(now.0, &mut HookView(packet))
    }

    fn on_addresses(&mut self, addresses: &[(IfaceId, IpAddr)]) {
        self.0.set_addresses(addresses.iter().map(|(iface, addr)| (iface.0, *addr)));
    }

    fn original_source(&self, packet: &[u8]) -> Option<IpAddr> {
        self.0.original_source(packet)
    }
}

/// Adapter by which the connection tracker reads and changes a packet that the stack passes to it.
struct HookView<'a, 'b>(&'a mut HookPacket<'b>);

impl PacketView for HookView<'_, '_> {
    #[inline]
    fn fields(&self) -> &Fields {
        self.0.fields()
    }

    #[inline]
    fn transport(&self) -> &[u8] {
        self.0.transport()
    }

    #[inline]
    fn transport_len(&self) -> usize {
        self.0.transport_len()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn fragment(&self) -> Option<FragmentPosition> {
        let (ident, offset) = self.0.fragment()?;
        Some(FragmentPosition { ident, is_first: offset == 0 })
    }

    fn set_src(&mut self, src: IpAddr) {
        self.0.set_src(src);
    }

    fn set_dst(&mut self, dst: IpAddr) {
        self.0.set_dst(dst);
    }

    fn set_ports(&mut self, src: u16, dst: u16) -> bool {
        self.0.set_ports(src, dst)
    }

    fn rewrite(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.0.rewrite(at, bytes)
    }

    #[inline]
    fn token(&self) -> PacketToken {
        PacketToken(self.0.token())
    }

    #[inline]
    fn set_tracked(&mut self, token: PacketToken, state: FlowState) {
        self.0.set_tracked(token.0, state);
    }
}
