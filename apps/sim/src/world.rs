//! Simulated network, and its event loop.
//!
//! Links and hosts are actors. Each actor has one time at which it is called, and [`Schedule`]
//! returns the earliest. Actors with the same time are called in the order of their numbers. Links
//! precede hosts, so that a host sees all packets that arrive at the same time. The result of a run
//! depends only on the plan and the seed.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use towpath_direct::SocketHandle;
use towpath_link::{Carried, Dice, Dropped};
use towpath_pool::{Batch, LinkType, Pool, Port};
use towpath_qdisc::QueuedPacket;
use towpath_stack::{Instant, Usage};
use towpath_wire::MacAddr;

use crate::capture::Captures;
use crate::clock::monotonic_ns;
use crate::exit::Exit;
use crate::host::{EPOCH_NS, SimHost};
use crate::packet::{SimPacket, Towards, host_of, source};
use crate::scenario::{HostPlan, Place, Plan};
use crate::schedule::Schedule;
use crate::trace::Traces;
use crate::watch::Watch;
use crate::wire::Wire;

/// Maximum number of consecutive iterations of a host's event loop at one point of virtual time.
/// Links are then called before the host continues.
const ROUNDS_MAX: usize = 64;

/// Maximum number of MAC addresses outside of the simulation that a switch learns.
const LEARNED_MAX: usize = 4_096;

struct Switch {
    /// Indices of the outgoing wires.
    wires: Vec<usize>,
    /// Index of the outgoing wire that leads to each host, by the host's number.
    towards: Vec<usize>,
    /// Outgoing wire to each station outside of the simulation that has sent a frame.
    learned: BTreeMap<MacAddr, usize>,
}

/// Simulated network with its hosts, switches and links.
pub struct World {
    /// Virtual time since the start, in ns.
    pub now: u64,
    /// Number of events that were handled so far.
    pub events: u64,
    /// Directions of the links. Link `i` has the wires `2 i` and `2 i + 1`.
    pub wires: Vec<Wire>,
    /// Traces of some connections. Empty unless they are requested.
    pub traces: Traces,
    /// Checks of TCP rules. `None` if they are disabled.
    pub watch: Option<Watch>,
    /// Hosts by number; `None` for real ones.
    hosts: Vec<Option<Box<SimHost>>>,
    switches: Vec<Switch>,
    /// First bytes of the hosts' MAC addresses.
    macs: [u8; 4],
    /// Whether frames of real devices enter the simulation, so that switches must learn addresses.
    is_open: bool,
    by_address: BTreeMap<Ipv4Addr, usize>,
    captures: Option<Captures>,
    schedule: Schedule,
    /// Number of packets that a host may send to each wire while the wire is idle. `None` if the
    /// wire has a device with a variable limit.
    rooms: Vec<Option<usize>>,
    pool: Pool,
    /// Number of packets that switches have copied.
    copies: u64,
    /// Packets sent by the current host. Empty between events, and kept only to reuse its memory.
    outbox: Batch,
    /// Frames received from a real device. Empty between events; kept to reuse its memory.
    arrived: Vec<QueuedPacket>,
    /// Packets dropped by the current link. Empty between events, and kept only to reuse its
    /// memory.
    drops: Vec<Dropped<SimPacket>>,
}

impl World {
    /// Creates a network without any packet. Its programs have not started yet.
    pub fn new(plan: &Plan, seed: u64, captures: Option<Captures>) -> Self {
        let wires: Vec<Wire> = plan
            .links
            .iter()
            .enumerate()
            .flat_map(|(number, link)| {
                [0, 1].map(|way| {
                    let stream = 2 * number as u64 + way as u64;
                    Wire::new(
                        link.ends[way],
                        link.ends[1 - way],
                        &link.ways[way],
                        Dice::new(seed, stream),
                    )
                })
            })
            .collect();
        let mut first_wires = vec![0; plan.hosts.len()];
        for (at, wire) in wires.iter().enumerate() {
            if let Place::Host(host) = wire.from {
                first_wires[host] = at;
            }
        }
        let hosts = plan.hosts.iter().enumerate().map(|(number, host)| {
            let new = || Box::new(SimHost::new(plan, number, first_wires[number], seed));
            host.device.is_none().then(new)
        });
        let hosts: Vec<Option<Box<SimHost>>> = hosts.collect();
        let is_known = |host: &HostPlan| host.device.as_ref().is_none_or(|it| it.has_address);
        let known = plan.hosts.iter().zip(0..).filter(|(host, _)| is_known(host));
        let mut leaving = vec![Vec::new(); plan.switches.len()];
        for (at, wire) in wires.iter().enumerate() {
            if let Place::Switch(switch) = wire.from {
                leaving[switch].push(at);
            }
        }
        let switches =
            (0..leaving.len()).map(|number| switch(number, &wires, &leaving, hosts.len()));
        let switches = switches.collect();
        let actors = wires.len() + hosts.len();
        let mut world = Self {
            now: 0,
            events: 0,
            traces: Traces::default(),
            watch: None,
            switches,
            macs: plan.macs,
            is_open: plan.devices().next().is_some(),
            by_address: known.map(|(host, number)| (host.address, number)).collect(),
            captures,
            schedule: Schedule::new(actors),
            rooms: wires.iter().map(|it| (!it.has_card()).then(|| it.room())).collect(),
            pool: Pool::default(),
            copies: 0,
            outbox: Batch::new(),
            arrived: Vec::new(),
            drops: Vec::new(),
            wires,
            hosts,
        };
        (0..world.hosts.len()).for_each(|host| world.arm_host(host, 0));
        for wire in 0..world.wires.len() {
            world.wires[wire].switch(0);
            world.arm_wire(wire);
        }
        world
    }

    /// Handles events until the time `end`, and settles all queues at that time. Returns false if
    /// `events_max` events were handled before; the next call then continues.
    pub fn run_until(&mut self, end: u64, events_max: u64) -> bool {
        loop {
            if self.events >= events_max {
                return false;
            }
            let Some((at, actor)) = self.schedule.pop(end) else { break };
            self.call(at, actor);
        }
        self.now = end;
        let mut drops = std::mem::take(&mut self.drops);
        for wire in 0..self.wires.len() {
            self.settle(wire, &mut drops);
        }
        self.drops = drops;
        true
    }

    /// Returns the time of the next event. `None` if the world is idle.
    pub fn next_event(&mut self) -> Option<u64> {
        self.schedule.next()
    }

    /// Advances the time to the next event, and calls the actor of that event.
    pub fn step(&mut self) {
        if let Some((at, actor)) = self.schedule.pop(u64::MAX) {
            self.call(at, actor);
        }
    }

    fn call(&mut self, at: u64, actor: usize) {
        self.events += 1;
        self.now = at;
        match actor.checked_sub(self.wires.len()) {
            None => self.run_wire(actor),
            Some(host) => self.run_host(host),
        }
    }

    /// Closes all sockets of all hosts, which resets open connections.
    pub fn end_programs(&mut self) {
        for at in 0..self.hosts.len() {
            let Some(SimHost { node, .. }) = self.hosts[at].as_deref_mut() else { continue };
            let handles: Vec<SocketHandle> = node.handles().collect();
            handles.into_iter().for_each(|handle| node.abort(handle));
            self.arm_host(at, self.now);
        }
    }

    /// Describes sockets, packets or buffers that are left in an idle world. `None` if nothing
    /// leaked.
    pub fn leftovers(&self) -> Option<String> {
        for (number, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            let usage = host.node.stack.usage();
            if usage != Usage::default() {
                return Some(format!("host {number} has entries in its tables: {usage:?}"));
            }
            if !host.node.direct.is_empty() {
                return Some(format!("host {number} has {} sockets", host.node.direct.len()));
            }
            let batches = host.node.ports.iter().map(|port| port.inbox.len() + port.outbox.len());
            let packets: usize = batches.sum();
            if packets > 0 {
                return Some(format!("the device of host {number} has {packets} packets"));
            }
        }
        let held: usize = self.wires.iter().map(|wire| wire.held()).sum();
        if held > 0 {
            return Some(format!("links have {held} packets"));
        }
        self.missing_buffers()
    }

    /// Describes the packet buffers that were not returned to a pool. `None` if no buffer is
    /// missing.
    fn missing_buffers(&self) -> Option<String> {
        // Include the pools of hosts. While a host runs, its pool receives the buffers of dropped
        // packets.
        let pools = || self.hosts.iter().flatten().map(|host| &host.node.pool).chain([&self.pool]);
        let duplicates = self.wires.iter().map(|wire| wire.link().stats().duplicated);
        let copies = self.copies + duplicates.sum::<u64>();
        let expected = pools().map(Pool::allocated).sum::<u64>() + copies;
        let kept = pools().map(Pool::kept).sum::<usize>() as u64;
        // Skip the check for larger numbers of buffers, because a full pool returns further buffers
        // to the system.
        let is_known = expected <= Pool::KEPT_MAX as u64;
        (is_known && kept != expected)
            .then(|| format!("{kept} of {expected} buffers are back in the pool"))
    }

    /// Calls `look` for each simulated program, with the index of its flow, whether the program is
    /// the source of the flow, and its measurements.
    pub fn each_tally(&mut self, mut look: impl FnMut(usize, bool, &mut crate::traffic::Tally)) {
        for host in self.hosts.iter_mut().flatten() {
            let SimHost { node, programs, .. } = &mut **host;
            for (flow, is_source, tally) in programs.tallies(node) {
                look(flow, is_source, tally);
            }
        }
    }

    /// Returns the memory of all hosts, links, queued packets, socket buffers and measurements, in
    /// bytes.
    pub fn memory(&mut self) -> u64 {
        let packets: usize = self.wires.iter().map(|wire| wire.held()).sum();
        let queues: u64 = self.wires.iter().map(Wire::memory_bytes).sum();
        let of_host =
            |host: &mut Box<SimHost>| host.node.buffer_bytes() + host.programs.memory_bytes();
        let hosts: u64 = self.hosts.iter_mut().flatten().map(of_host).sum();
        let places = memory_of_places(self.hosts.len(), self.wires.len());
        places + packets as u64 * PACKET_BYTES + queues + hosts + self.traces.bytes()
    }

    /// Flushes the captures.
    ///
    /// # Errors
    /// Returns an error message for the first file that could not be written.
    pub fn finish(mut self) -> Result<(), String> {
        self.captures.take().map_or(Ok(()), Captures::finish)
    }

    fn arm_host(&mut self, host: usize, at: u64) {
        self.schedule.arm(self.wires.len() + host, at);
    }

    fn arm_wire(&mut self, wire: usize) {
        if let Some(at) = self.wires[wire].next_timeout_ns(self.now) {
            self.schedule.arm(wire, at.max(self.now));
        }
    }

    /// Sends the queued packets of a link up to the current time. No packet is delivered, because
    /// the delivery would have been an event of its own.
    fn settle(&mut self, at: usize, drops: &mut Vec<Dropped<SimPacket>>) {
        let first = drops.len();
        let out = self.wires[at].poll_packet(self.now, drops);
        debug_assert!(out.is_none(), "wire {at} slept over a packet");
        self.give_up(at, first, drops);
    }

    /// Returns the number of packets that a host may send to a wire now. Uses a cached value for an
    /// idle wire, because accessing the wire often causes a cache miss.
    fn room(&mut self, wire: usize, drops: &mut Vec<Dropped<SimPacket>>) -> usize {
        match self.rooms[wire] {
            Some(room) if self.schedule.at(wire) == u64::MAX => room,
            _ => {
                // Settle the wire unless its next delivery is at the current time. In that case it
                // was settled when the packet to be delivered has entered it.
                if self.schedule.at(wire) > self.now {
                    self.settle(wire, drops);
                }
                self.wires[wire].room()
            }
        }
    }

    /// Passes the packets that a link delivers to the switch or host at its end.
    fn run_wire(&mut self, at: usize) {
        let mut drops = std::mem::take(&mut self.drops);
        self.wires[at].switch(self.now);
        while let Some(item) = self.wires[at].poll_packet(self.now, &mut drops) {
            if let Some(captures) = &mut self.captures {
                captures.delivered(at, self.now, item.frame());
            }
            match self.wires[at].to {
                Place::Host(host) if self.hosts[host].is_some() => self.deliver(host, item),
                Place::Host(_) if self.wires[at].has_exit() => {
                    self.wires[at].leave(self.now, item, &mut drops);
                }
                Place::Host(_) => self.pool.give(item.into_packet()),
                Place::Switch(switch) => self.forward(switch, at, item, &mut drops),
            }
        }
        self.wires[at].run_exit(self.now, &mut self.pool, &mut drops);
        self.give_up(at, 0, &mut drops);
        self.drops = drops;
        self.wake_sender(at);
    }

    /// Schedules a wire, and the host that waits for room in it.
    fn wake_sender(&mut self, wire: usize) {
        self.arm_wire(wire);
        if let (true, Place::Host(host)) = (self.wires[wire].wakes_sender(), self.wires[wire].from)
        {
            self.arm_host(host, self.now);
        }
    }

    /// Connects the port of a real device at the end of a wire, or disconnects it with `None`.
    /// Returns the previous port.
    pub fn connect(
        &mut self,
        wire: usize,
        port: Option<Box<dyn Port + Send>>,
    ) -> Option<Box<dyn Port + Send>> {
        self.wires[wire].exit()?.connect(port)
    }

    /// Returns the real device at the end of a wire.
    pub fn exit(&mut self, wire: usize) -> Option<&mut Exit> {
        self.wires[wire].exit()
    }

    /// Advances the time to `now`. All earlier events must have been called.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Receives up to `max` frames from the real device at the end of a wire, at the current time.
    /// Returns the number of packets that the device had.
    pub fn receive(&mut self, wire: usize, max: usize) -> usize {
        let Some(port) = self.wires[wire].exit().and_then(|exit| exit.port()) else { return 0 };
        let mut batch = std::mem::take(&mut self.outbox);
        let count = port.poll(monotonic_ns(), &mut self.pool, &mut batch, max);
        let mut arrived = std::mem::take(&mut self.arrived);
        for packet in batch.drain(..) {
            QueuedPacket::each(packet, LinkType::Ethernet, &mut self.pool, |packet, _| {
                arrived.push(packet);
            });
        }
        let mut drops = std::mem::take(&mut self.drops);
        // `wire ^ 1` is the reverse direction of the same link.
        for packet in arrived.drain(..) {
            self.enter(wire ^ 1, SimPacket::received(packet, self.now), &mut drops);
        }
        (self.outbox, self.arrived, self.drops) = (batch, arrived, drops);
        count
    }

    /// Passes further packets to the real device at the end of a wire, as far as it has sent
    /// earlier ones.
    pub fn run_exit(&mut self, wire: usize) {
        let mut drops = std::mem::take(&mut self.drops);
        self.wires[wire].run_exit(self.now, &mut self.pool, &mut drops);
        self.give_up(wire, 0, &mut drops);
        self.drops = drops;
        self.wake_sender(wire);
    }

    fn deliver(&mut self, host: usize, item: SimPacket) {
        if !self.traces.is_empty() {
            self.traces.on_frame(self.now, item.frame(), false);
        }
        if let Some(watch) = &mut self.watch {
            watch.on_frame(self.now, host, item.frame(), false);
        }
        let ports = self.hosts[host].as_mut().map(|host| &mut host.node.ports);
        if let Some(port) = ports.and_then(|ports| ports.first_mut()) {
            port.inbox.push_back(item.into_packet());
        }
        self.arm_host(host, self.now);
    }

    /// Forwards a frame to its destination, or floods it if the destination is unknown.
    fn forward(
        &mut self,
        switch: usize,
        came: usize,
        item: SimPacket,
        drops: &mut Vec<Dropped<SimPacket>>,
    ) {
        if self.is_open {
            self.learn(switch, came ^ 1, &item);
        }
        let host = match item.towards() {
            Towards::Station(mac) => host_of(self.macs, mac),
            // Forward an ARP request only to the owner of the address, as switches with ARP
            // suppression do. Flooding would create a packet per host of the network.
            Towards::Asked(address) => self.by_address.get(&address).copied(),
            Towards::All => None,
        };
        let towards = &self.switches[switch];
        let wire = host.and_then(|host| towards.towards.get(host)).or_else(|| {
            let Towards::Station(mac) = item.towards() else { return None };
            towards.learned.get(&mac)
        });
        match wire {
            // The destination is on the link from which the frame came, so it has already received
            // the frame.
            Some(&wire) if wire == came ^ 1 && self.is_open => self.pool.give(item.into_packet()),
            Some(&wire) => self.enter(wire, item, drops),
            None => {
                // Exclude `came ^ 1`, which is the reverse direction of the same link.
                let wires = self.switches[switch].wires.clone();
                for wire in wires.into_iter().filter(|wire| *wire != came ^ 1) {
                    self.copies += 1;
                    self.enter(wire, item.duplicate(), drops);
                }
                self.pool.give(item.into_packet());
            }
        }
    }

    /// Records that the sender of a frame is reached by `wire`. Ignores simulated hosts, whose
    /// wires are known.
    fn learn(&mut self, switch: usize, wire: usize, item: &SimPacket) {
        let Some(mac) = source(item.frame()) else { return };
        let learned = &mut self.switches[switch].learned;
        let is_free = learned.len() < LEARNED_MAX || learned.contains_key(&mac);
        if host_of(self.macs, mac).is_none() && is_free {
            learned.insert(mac, wire);
        }
    }

    fn enter(&mut self, wire: usize, mut item: SimPacket, drops: &mut Vec<Dropped<SimPacket>>) {
        item.entered_ns = self.now;
        let before = drops.len();
        self.wires[wire].on_packet(self.now, item, drops);
        self.give_up(wire, before, drops);
        // Schedule the wire, unless it is already scheduled for an earlier packet and may sleep
        // until then.
        if self.schedule.at(wire) == u64::MAX || !self.wires[wire].may_sleep() {
            self.arm_wire(wire);
        }
    }

    /// Records the drops of a wire from index `first` of `drops` on, and returns their memory to
    /// the pool.
    fn give_up(&mut self, wire: usize, first: usize, drops: &mut Vec<Dropped<SimPacket>>) {
        for Dropped { item, cause } in drops.drain(first..) {
            if let Some(captures) = &mut self.captures {
                captures.dropped(wire, self.now, cause.name(), item.frame());
            }
            self.pool.give(item.into_packet());
        }
    }

    /// Runs the stack of a host and its programs alternately, until both are idle.
    fn run_host(&mut self, at: usize) {
        let Some(mut host) = self.hosts[at].take() else { return };
        std::mem::swap(&mut self.pool, &mut host.node.pool);
        let mut outbox = std::mem::take(&mut self.outbox);
        let mut drops = std::mem::take(&mut self.drops);
        for _ in 0..ROUNDS_MAX {
            if !self.turn_host(at, &mut host, &mut outbox, &mut drops) {
                break;
            }
        }
        (self.drops, self.outbox) = (drops, outbox);
        let is_waiting = host.node.ports.iter().any(|port| port.is_blocked);
        if is_waiting || host.is_waiting {
            host.is_waiting = is_waiting;
            self.wires[host.wire].sender_waits = is_waiting;
            self.arm_wire(host.wire);
        }
        std::mem::swap(&mut self.pool, &mut host.node.pool);
        if let Some(watch) = &mut self.watch {
            watch.on_turn(self.now, at, &host.node);
        }
        let due = host.node_due().min(host.programs.due());
        self.hosts[at] = Some(host);
        if due != u64::MAX {
            self.arm_host(at, due.max(self.now));
        }
    }

    /// Runs one iteration of the event loop of a host's stack, sends its packets, and calls its
    /// programs. Returns whether another iteration has work.
    fn turn_host(
        &mut self,
        at: usize,
        host: &mut SimHost,
        outbox: &mut Batch,
        drops: &mut Vec<Dropped<SimPacket>>,
    ) -> bool {
        let (now, wire) = (self.now, host.wire);
        let room = self.room(wire, drops);
        if let Some(port) = host.node.ports.first_mut() {
            port.room = room;
        }
        let turn = host.node.turn(Instant(EPOCH_NS + now));
        if let Some(port) = host.node.ports.first_mut() {
            std::mem::swap(&mut port.outbox, outbox);
        }
        let sent = !outbox.is_empty();
        for packet in outbox.drain(..) {
            let item = SimPacket::new(packet, &mut host.node.pool, now);
            if !self.traces.is_empty() {
                self.traces.on_frame(now, item.frame(), true);
            }
            if let Some(watch) = &mut self.watch {
                watch.on_frame(now, at, item.frame(), true);
            }
            self.enter(wire, item, drops);
        }
        let mut called = host.programs.on_timeout(&mut host.node, now);
        let mut has_heard = false;
        while let Some(event) = host.node.poll_event() {
            host.programs.on_event(&mut host.node, now, event);
            has_heard = true;
        }
        called |= host.programs.on_timeout(&mut host.node, now);
        let has_more = turn.more || (sent && host.node.ports.iter().any(|port| port.is_blocked));
        // Run no further iteration if programs have only read data, because the stack then usually
        // has no work.
        called || has_more || has_heard && host.has_work(now)
    }
}

/// Returns the memory of all hosts and links in an idle world, in bytes.
pub fn memory_of_places(hosts: usize, wires: usize) -> u64 {
    hosts as u64 * HOST_BYTES + (wires * size_of::<Wire>()) as u64
}

/// Memory of an idle host in bytes: a stack with empty tables.
const HOST_BYTES: u64 = 100_000;

/// Memory of a packet on a link in bytes, including the buffer of the packet.
const PACKET_BYTES: u64 = 2_304;

/// Creates switch `number`. `leaving` contains the outgoing wires of each switch. The outgoing wire
/// to each host is unique, because the links form no loop.
fn switch(number: usize, wires: &[Wire], leaving: &[Vec<usize>], hosts: usize) -> Switch {
    let mut towards = vec![usize::MAX; hosts];
    for &first in &leaving[number] {
        let mut stack = vec![first];
        while let Some(at) = stack.pop() {
            match wires[at].to {
                Place::Host(host) => towards[host] = first,
                // Skip the reverse direction of the link, whose number is `at ^ 1`.
                Place::Switch(next) => {
                    stack.extend(leaving[next].iter().filter(|other| **other != at ^ 1));
                }
            }
        }
    }
    Switch { wires: leaving[number].clone(), towards, learned: BTreeMap::new() }
}
