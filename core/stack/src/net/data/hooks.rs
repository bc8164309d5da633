//! The five hooks at which packets pass the rules of the packet filter and a tracker, such as NAT.
//!
//! ```text
//!  receive ─► prerouting ─► verdict ─┬─► input ─► sockets
//!                                    └─► route ─► forward ─► postrouting ─► out
//!  send ────► output ─► route again if the destination changed ─► postrouting ─► out
//! ```
//!
//! At the hooks before a routing decision (prerouting, output), the tracker runs before the rules.
//! At the other hooks it runs after them. Rules therefore match the translated destination and the
//! original source, as on Linux.
//!
//! Each hook is called only if [`PacketHooks::is_idle`] is false. A host without rules and tracker
//! therefore spends one branch per hook. ARP and neighbour discovery do not pass the rules, because
//! a link cannot work without them. `hook_points` has the calls of `receive` and `send`. `reject`
//! drops rejected packets and answers them. A packet of this host that a rule rejects is only
//! dropped, because its sender is local.

use core::any::Any;
use core::fmt;
use core::net::IpAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use towpath_filter::{Action, Fields, Hook, Hooks, Judgement};
use towpath_pool::Packet;
use towpath_tcp::Instant;

use super::hook_packet::HookPacket;
use super::ip_packet::IpPacket;
use super::refusal::RuleRefusal;
use crate::net::iface::IfaceId;
use crate::net::limits::LOGGED_MAX;
use crate::net::rule_set::{Logged, RuleSet};

/// Tracks the flows of packets at the hooks of a host, and may rewrite packets, as NAT does.
///
/// Each shard (stack) of a host has its own tracker, which handles the packets of this shard.
pub trait Tracker: Any + fmt::Debug + Send {
    /// Returns the hooks at which [`on_packet`](Self::on_packet) is called.
    /// [`Net::set_tracker`](crate::net::Net::set_tracker) calls this once. If the hooks include
    /// prerouting, forward or postrouting, a router does not plan the forwarding of packets in
    /// batches. The plans would use the addresses before translation.
    fn hooks(&self) -> Hooks;

    /// Decides what happens to a packet. May rewrite the packet.
    fn on_packet(&mut self, now: Instant, packet: &mut HookPacket<'_>) -> Action;

    /// Receives the addresses of all interfaces, when the tracker is set and after each change.
    fn on_addresses(&mut self, _addresses: &[(IfaceId, IpAddr)]) {}

    /// Returns the original source address of a packet whose source the tracker has replaced. ICMP
    /// errors about the packet are sent to the original address. `_packet` begins with its IP
    /// header.
    fn original_source(&self, _packet: &[u8]) -> Option<IpAddr> {
        None
    }
}

/// The current rules of the packet filter, the tracker, and the packets that rules logged.
#[derive(Debug)]
pub(in crate::net) struct PacketHooks {
    rules: Option<Arc<RuleSet>>,
    tracker: Option<Box<dyn Tracker>>,
    /// Hooks at which the tracker, such as NAT, is called.
    tracked: Hooks,
    is_idle: bool,
    /// Index of this shard (stack). Each shard has its own counters of rules.
    shard: usize,
    log: RuleLog,
}

/// Packets that rules logged.
#[derive(Debug, Default)]
struct RuleLog {
    /// Packets, the oldest first; at most [`LOGGED_MAX`].
    logged: VecDeque<Logged>,
    /// Number of packets that were not logged because the log was full.
    unlogged: u64,
}

impl PacketHooks {
    pub(super) fn new(shard: usize) -> Self {
        Self {
            rules: None,
            tracker: None,
            tracked: Hooks::NONE,
            is_idle: true,
            shard,
            log: RuleLog::default(),
        }
    }

    pub(super) fn set_rules(&mut self, rules: Option<Arc<RuleSet>>) {
        self.rules = rules;
        self.is_idle = !self.has_rules() && self.tracker.is_none();
    }

    pub(super) fn set_tracker(&mut self, tracker: Option<Box<dyn Tracker>>) {
        self.tracked = tracker.as_ref().map_or(Hooks::NONE, |tracker| tracker.hooks());
        self.tracker = tracker;
        self.is_idle = !self.has_rules() && self.tracker.is_none();
    }

    /// Returns whether neither rules nor a tracker examine packets.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Returns whether rules examine packets. A list that only has named sets examines none.
    #[inline]
    pub(super) fn has_rules(&self) -> bool {
        self.rules.as_ref().is_some_and(|set| !set.rules().hooks().is_empty())
    }

    /// Returns the tracker; `None` if none is set.
    pub(in crate::net) fn tracker_mut(&mut self) -> Option<&mut dyn Tracker> {
        self.tracker.as_deref_mut()
    }

    /// Returns the original source address of a packet whose source the tracker replaced.
    pub(super) fn original_source(&self, packet: &[u8]) -> Option<IpAddr> {
        self.tracker.as_ref()?.original_source(packet)
    }

    #[inline]
    pub(in crate::net) fn has_tracker(&self) -> bool {
        self.tracker.is_some()
    }

    /// Returns whether the tracker is called for forwarded packets.
    #[inline]
    pub(super) fn tracks_transit(&self) -> bool {
        [Hook::Prerouting, Hook::Forward, Hook::Postrouting]
            .into_iter()
            .any(|hook| self.tracked.contains(hook))
    }

    /// Removes and returns the oldest packet that a rule logged.
    pub(in crate::net) fn take_logged(&mut self) -> Option<Logged> {
        self.log.logged.pop_front()
    }

    /// Returns the number of packets that were not logged because the log was full.
    pub(in crate::net) fn unlogged(&self) -> u64 {
        self.log.unlogged
    }

    /// Runs the rules and the tracker for a packet at a hook.
    pub(super) fn at(
        &mut self,
        now: Instant,
        hook: Hook,
        packet: &mut HookPacket<'_>,
    ) -> Result<(), RuleRefusal> {
        packet.fields.hook = hook;
        if matches!(hook, Hook::Prerouting | Hook::Output) {
            self.track(now, hook, packet)?;
            return self.judge_packet(now, hook, packet);
        }
        self.judge_packet(now, hook, packet)?;
        self.track(now, hook, packet)
    }

    /// Evaluates the rules of a hook for a packet, and stores its mark for later hooks.
    fn judge_packet(
        &mut self,
        now: Instant,
        hook: Hook,
        packet: &mut HookPacket<'_>,
    ) -> Result<(), RuleRefusal> {
        let len = packet.len();
        let judged = self.judge(now, hook, &mut packet.fields, len);
        packet.keep_mark();
        judged
    }

    /// Runs the rules and the tracker for a forwarded packet, which leaves by the interface `out`.
    pub(super) fn on_transit(
        &mut self,
        now: Instant,
        ifaces: [IfaceId; 2],
        ip: &mut IpPacket,
        packet: &mut Packet,
    ) -> Result<(), RuleRefusal> {
        let [iface, out] = ifaces;
        let upper = ip.upper(packet);
        let mut packet = HookPacket::received(packet, ip, upper, iface);
        packet.fields.iface_out = Some(out.0);
        self.at(now, Hook::Forward, &mut packet)?;
        self.at(now, Hook::Postrouting, &mut packet)
    }

    #[inline]
    fn track(
        &mut self,
        now: Instant,
        hook: Hook,
        packet: &mut HookPacket<'_>,
    ) -> Result<(), RuleRefusal> {
        match &mut self.tracker {
            Some(tracker) if self.tracked.contains(hook) => {
                RuleRefusal::of(tracker.on_packet(now, packet))
            }
            _ => Ok(()),
        }
    }

    /// Evaluates the rules of a hook for a packet of `len` bytes.
    #[inline]
    pub(super) fn judge(
        &mut self,
        now: Instant,
        hook: Hook,
        fields: &mut Fields,
        len: usize,
    ) -> Result<(), RuleRefusal> {
        let Self { rules: Some(set), log, shard, .. } = self else { return Ok(()) };
        if !set.rules().hooks().contains(hook) {
            return Ok(());
        }
        fields.hook = hook;
        let counters = set.counters(*shard);
        let action = set.rules().decide(
            fields,
            |rule, rate| counters.take_token(rule, rate, now.0),
            |fields, judgement| {
                counters.on_judged(hook, judgement, len);
                if judgement.log && counters.is_log_due(set.rules(), judgement, now.0) {
                    log.add(set, *fields, judgement, len);
                }
            },
        );
        RuleRefusal::of(action)
    }
}

impl RuleLog {
    #[cold]
    fn add(&mut self, set: &RuleSet, fields: Fields, judgement: &Judgement, len: usize) {
        if self.logged.len() >= LOGGED_MAX {
            self.unlogged += 1;
            return;
        }
        if let Some(rule) = judgement.rule.and_then(|index| set.rules().rule(index)) {
            let (rule, action) = (rule.id, judgement.action);
            self.logged.push_back(Logged { fields, rule, action, len });
        }
    }
}
