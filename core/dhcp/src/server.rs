//! A DHCP server for the network of one interface. Read RFC 2131 §4.3 first.
//!
//! ```text
//!   DISCOVER ──► choose ──► ARP probe ──► OFFER        a known client skips the probe
//!   REQUEST  ──► find the binding ──► ACK, NAK or silence
//! ```
//!
//! Relayed requests are ignored, because the server serves its own link only.

mod bindings;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::collections::VecDeque;

use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

use crate::frame::{self, CLIENT_PORT, DhcpDatagram, DhcpFrame, LinkEndpoint, SERVER_PORT};
use crate::message::{BootOp, DhcpMessage, DhcpOptions, MessageKind};
pub use bindings::POOL_MAX;
use bindings::{Binding, BindingState, Bindings, Chosen};

/// Time for which the server waits for an answer to its ARP probe before it offers an address. A
/// host on the link answers within milliseconds.
const PROBE_WAIT: Duration = Duration::from_millis(300);
/// Time for which an offered address is reserved for its client (RFC 2131 §4.3.1).
const OFFER_HOLD: Duration = Duration::from_secs(60);
/// Time for which the server does not offer an address after another host was found to use it.
const CONFLICT_HOLD: Duration = Duration::from_secs(600);
/// Maximum duration of leases in seconds until the server learns which nameservers to announce.
/// Clients renew after half of this time, and then learn the nameservers.
const UNNAMED_LEASE_S: u32 = 60;
/// Maximum number of addresses that the server probes at a time. Requests beyond this limit are
/// dropped, and the clients retransmit them.
const PROBES_MAX: usize = 64;
/// Maximum number of queued frames. Each call of the server adds one frame, and the caller then
/// sends it, so the queue is normally short.
const FRAMES_MAX: usize = 256;

/// Configuration of a DHCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Ethernet address of the server's interface.
    pub mac: MacAddr,
    /// Address of the server with the prefix length of its network. Clients use this address as
    /// their router.
    pub address: Prefix,
    /// First and last address that the server assigns; at most [`POOL_MAX`] addresses.
    pub pool: (Ipv4Addr, Ipv4Addr),
    /// Fixed addresses of certain clients, which may be outside the pool.
    pub reservations: Vec<Reservation>,
    /// Duration of leases in seconds.
    pub lease_s: u32,
    /// Nameservers that clients learn. If the list is empty, clients learn the nameservers that
    /// were set by [`DhcpServer::set_nameservers`].
    pub nameservers: Vec<Ipv4Addr>,
    /// Whether [`DhcpServer::set_nameservers`] will be called. Until that call, leases are short,
    /// so that clients soon renew and learn the nameservers.
    pub awaits_nameservers: bool,
    /// Domain in which clients resolve names.
    pub domain: Option<String>,
}

/// An address that the server assigns to one client only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Ethernet address of the client.
    pub mac: MacAddr,
    /// Address that the client with this Ethernet address obtains.
    pub address: Ipv4Addr,
}

/// A lease that a DHCP server has granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Address of the lease.
    pub address: Ipv4Addr,
    /// Ethernet address of the client.
    pub mac: MacAddr,
    /// Client identifier, or the Ethernet address if the client sent no identifier.
    pub client: Vec<u8>,
    /// Time at which the lease ends.
    pub until: Instant,
    /// Host name that the client sent.
    pub host_name: Option<String>,
}

/// Counters of a DHCP server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// DHCP messages received.
    pub rx_messages: u64,
    /// Addresses offered to clients.
    pub offers: u64,
    /// Leases granted or extended.
    pub acks: u64,
    /// Requests refused with a DHCPNAK.
    pub naks: u64,
    /// Addresses that were found to be used by a host without a lease for them.
    pub conflicts: u64,
    /// Requests that were not answered because no address of the pool was free.
    pub pool_full: u64,
    /// Requests that were not answered because the client already had the maximum number of
    /// addresses.
    pub client_full: u64,
    /// Requests dropped because too many ARP probes were in progress, or too many frames waited to
    /// be sent.
    pub dropped: u64,
}

impl ServerCounters {
    /// Returns all counters with their names.
    pub fn list(&self) -> [(&'static str, u64); 8] {
        let Self { rx_messages, offers, acks, naks, conflicts, pool_full, .. } = *self;
        [
            ("rx_messages", rx_messages),
            ("offers", offers),
            ("acks", acks),
            ("naks", naks),
            ("conflicts", conflicts),
            ("pool_full", pool_full),
            ("client_full", self.client_full),
            ("dropped", self.dropped),
        ]
    }
}

/// A DHCP server. Call [`Self::on_frame`] for each received frame for which [`frame::concerns`]
/// returns true, and [`Self::on_timeout`] at [`Self::next_timeout`]. After each call, send the
/// frames.
#[derive(Debug)]
pub struct DhcpServer {
    config: ServerConfig,
    /// Nameservers of [`Self::set_nameservers`].
    learned: Option<Vec<Ipv4Addr>>,
    bindings: Bindings,
    probes: VecDeque<ProbedOffer>,
    frames: VecDeque<Vec<u8>>,
    counters: ServerCounters,
    /// Whether leases have changed since the last call of [`Self::take_changed`].
    changed: bool,
    /// Whether a new client replaces all others.
    has_one_client: bool,
}

/// An address that is being probed with ARP, and the request that is answered if no host replies to
/// the probe.
#[derive(Debug, Clone)]
struct ProbedOffer {
    address: Ipv4Addr,
    request: DhcpMessage,
    until: Instant,
}

impl DhcpServer {
    /// Creates a server without leases. `key` must be random: it determines which address of the
    /// pool a new client obtains.
    pub fn new(config: ServerConfig, key: u64) -> Self {
        let bindings = Bindings::new(&config, key);
        let (probes, frames) = (VecDeque::new(), VecDeque::new());
        let counters = ServerCounters::default();
        let (learned, changed, has_one_client) = (None, false, false);
        Self { config, learned, bindings, probes, frames, counters, changed, has_one_client }
    }

    /// Assumes that the link has one client, such as a virtual machine. A DHCPDISCOVER with a new
    /// client identifier then ends all bindings. Otherwise a guest whose boot loader and system
    /// have different identifiers would need several addresses.
    pub fn set_one_client(&mut self) {
        self.has_one_client = true;
    }

    /// Replaces the configuration. Keeps the Ethernet address of the server, and the leases of
    /// addresses that are also in the new configuration.
    pub fn reconfigure(&mut self, config: ServerConfig) {
        self.bindings.reconfigure(&config);
        self.config = ServerConfig { mac: self.config.mac, ..config };
        // Clients repeat their requests.
        self.probes.clear();
        self.changed = true;
    }

    /// Sets the nameservers that clients learn when they next renew their leases. From this call
    /// on, new leases have their full duration, even if the list is empty. The call has no effect
    /// if the configuration lists nameservers.
    pub fn set_nameservers(&mut self, nameservers: &[Ipv4Addr]) {
        self.learned = Some(nameservers.to_vec());
    }

    fn nameservers(&self) -> &[Ipv4Addr] {
        match &self.learned {
            Some(learned) if self.config.nameservers.is_empty() => learned,
            _ => &self.config.nameservers,
        }
    }

    /// Adds leases that this server granted before a restart. Leases of addresses that are neither
    /// in the pool nor reserved are ignored.
    pub fn restore(&mut self, records: Vec<LeaseRecord>) {
        for LeaseRecord { address, mac, client, until, host_name } in records {
            let state = BindingState::Leased;
            self.bindings.restore(address, Binding { client, mac, until, state, host_name });
        }
    }

    /// Returns the leases that have not ended, sorted by address.
    pub fn leases(&self, now: Instant) -> Vec<LeaseRecord> {
        self.bindings.leases(now).collect()
    }

    /// Returns whether leases have changed since the last call of this method.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Returns the counters of the server.
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// Removes and returns the oldest frame that is to be sent.
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// Returns the time at which [`Self::on_timeout`] must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.probes.front().map(|probe| probe.until)
    }

    /// Offers the addresses for which no host has answered the ARP probe in time.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some(probe) = self.probes.pop_front_if(|probe| probe.until <= now) {
            self.offer(now, probe.address, &probe.request);
        }
    }

    /// Handles a received frame. Returns true if the frame was a DHCP request to this server, so
    /// that no other receiver needs it. `is_verified` states that the UDP checksum need not be
    /// checked.
    pub fn on_frame(&mut self, now: Instant, bytes: &[u8], is_verified: bool) -> bool {
        match frame::parse(bytes, is_verified) {
            Some(DhcpFrame::Arp(packet)) => {
                let is_rival = |probe: &ProbedOffer| {
                    packet.sender_mac != probe.request.chaddr
                        && frame::is_conflict(&packet, self.config.mac, probe.address)
                };
                if let Some(at) = self.probes.iter().position(is_rival)
                    && let Some(probe) = self.probes.remove(at)
                {
                    self.on_conflict(now, probe.address, packet.sender_mac);
                    self.discover(now, &probe.request);
                }
                false
            }
            Some(DhcpFrame::Datagram(datagram)) => self.on_datagram(now, &datagram),
            None => false,
        }
    }

    fn on_datagram(&mut self, now: Instant, datagram: &DhcpDatagram<'_>) -> bool {
        let is_for_us = datagram.to.ip.is_broadcast() || datagram.to.ip == self.ip();
        if datagram.to.port != SERVER_PORT || !is_for_us {
            return false;
        }
        let Ok(message) = DhcpMessage::parse(datagram.payload) else { return false };
        let is_direct = message.giaddr.is_unspecified() && message.chaddr.is_unicast();
        if message.op != BootOp::Request || !is_direct {
            return false;
        }
        self.counters.rx_messages += 1;
        match message.kind {
            MessageKind::Discover => self.discover(now, &message),
            MessageKind::Request => self.request(now, &message),
            MessageKind::Decline => self.decline(now, &message),
            MessageKind::Release => {
                self.changed |= self.bindings.release(now, &client_of(&message), message.ciaddr);
            }
            MessageKind::Inform => self.inform(&message),
            MessageKind::Offer | MessageKind::Ack | MessageKind::Nak => {}
        }
        true
    }

    /// Handles a DHCPDISCOVER: chooses an address, and probes it with ARP unless the client already
    /// has it.
    fn discover(&mut self, now: Instant, message: &DhcpMessage) {
        let client = client_of(message);
        let requested = message.options.requested;
        if self.has_one_client && self.bindings.of_client(&client).is_none() {
            self.bindings.clear();
            self.probes.clear();
        }
        let (address, is_known) =
            match self.bindings.choose(now, &client, message.chaddr, requested) {
                Chosen::Known(address) => (address, true),
                Chosen::New(address) => (address, false),
                Chosen::ClientFull => return self.counters.client_full += 1,
                Chosen::PoolFull => return self.counters.pool_full += 1,
            };
        if is_known {
            return self.offer(now, address, message);
        }
        if self.probes.iter().any(|probe| probe.address == address) {
            return;
        }
        if self.probes.len() >= PROBES_MAX {
            return self.counters.dropped += 1;
        }
        self.bindings.hold(address, offered(now, client, message));
        self.put(frame::arp_probe(self.config.mac, address));
        let (request, until) = (message.clone(), now + PROBE_WAIT);
        self.probes.push_back(ProbedOffer { address, request, until });
    }

    fn offer(&mut self, now: Instant, address: Ipv4Addr, message: &DhcpMessage) {
        if !self.bindings.is_leased(now, address) {
            self.bindings.hold(address, offered(now, client_of(message), message));
        }
        self.counters.offers += 1;
        let mut offer = self.reply(MessageKind::Offer, message, address);
        self.set_times(&mut offer.options);
        self.send(&offer);
    }

    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.3.2
    //# If the DHCPREQUEST message contains a 'server
    //# identifier' option, the message is in response to a DHCPOFFER
    //# message.  Otherwise, the message is a request to verify or extend an
    //# existing lease.
    fn request(&mut self, now: Instant, message: &DhcpMessage) {
        let client = client_of(message);
        if let Some(server) = message.options.server {
            match message.options.requested {
                _ if server != self.ip() => self.bindings.withdraw(now, &client),
                Some(address)
                    if self.bindings.is_of(now, &client, address)
                        && !self.bindings.is_reserved_for_other(message.chaddr, address) =>
                {
                    self.grant(now, client, address, message);
                }
                _ => self.refuse(message),
            }
            return;
        }
        let extended = Some(message.ciaddr).filter(|ip| !ip.is_unspecified());
        let Some(address) = extended.or(message.options.requested) else { return };
        let is_outside = !self.config.address.contains(IpAddr::V4(address));
        if is_outside || self.bindings.is_reserved_for_other(message.chaddr, address) {
            return self.refuse(message);
        }
        //= https://www.rfc-editor.org/rfc/rfc2131#section-4.3.2
        //# If the DHCP
        //# server has no record of this client, then it MUST remain silent,
        //# and MAY output a warning to the network administrator.
        match self.bindings.of_client(&client) {
            Some(known)
                if known == address
                    && self.bindings.is_extendable(now, &client, message.chaddr) =>
            {
                self.grant(now, client, address, message);
            }
            Some(_) => self.refuse(message),
            None => {}
        }
    }

    fn grant(&mut self, now: Instant, client: Vec<u8>, address: Ipv4Addr, message: &DhcpMessage) {
        let until = now + Duration::from_secs(self.lease_s().into());
        let (mac, host_name) = (message.chaddr, message.options.host_name.clone());
        let state = BindingState::Leased;
        self.bindings.hold(address, Binding { client, mac, until, state, host_name });
        self.changed = true;
        self.counters.acks += 1;
        let mut ack = self.reply(MessageKind::Ack, message, address);
        ack.ciaddr = message.ciaddr;
        self.set_times(&mut ack.options);
        self.send(&ack);
    }

    fn refuse(&mut self, message: &DhcpMessage) {
        self.counters.naks += 1;
        let mut nak = self.reply(MessageKind::Nak, message, Ipv4Addr::UNSPECIFIED);
        let (server, client_id) = (Some(self.ip()), nak.options.client_id.take());
        nak.options = DhcpOptions { server, client_id, ..DhcpOptions::default() };
        nak.broadcast = true;
        self.send(&nak);
    }

    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.3.3
    //# The server MUST mark the network address
    //# as not available and SHOULD notify the local system administrator of
    //# a possible configuration problem.
    fn decline(&mut self, now: Instant, message: &DhcpMessage) {
        let Some(address) = message.options.requested else { return };
        if self.bindings.is_of(now, &client_of(message), address) {
            self.on_conflict(now, address, message.chaddr);
        }
    }

    /// Marks an address as in use by a host without a lease, so that it is not offered. The address
    /// counts toward the address limit of `mac`, the Ethernet address of the host that uses the
    /// address or reports its use.
    fn on_conflict(&mut self, now: Instant, address: Ipv4Addr, mac: MacAddr) {
        self.counters.conflicts += 1;
        self.changed = true;
        let (client, until) = (Vec::new(), now + CONFLICT_HOLD);
        let state = BindingState::Blocked;
        self.bindings.hold(address, Binding { client, mac, until, state, host_name: None });
    }

    fn inform(&mut self, message: &DhcpMessage) {
        if self.config.address.contains(IpAddr::V4(message.ciaddr)) {
            let mut ack = self.reply(MessageKind::Ack, message, Ipv4Addr::UNSPECIFIED);
            ack.ciaddr = message.ciaddr;
            self.send(&ack);
        }
    }

    /// Creates a reply with the network's parameters and the client's identifier (RFC 6842 §3).
    fn reply(&self, kind: MessageKind, request: &DhcpMessage, yiaddr: Ipv4Addr) -> DhcpMessage {
        let options = DhcpOptions {
            server: Some(self.ip()),
            mask_len: Some(self.config.address.len()),
            routers: vec![self.ip()],
            nameservers: self.nameservers().to_vec(),
            domain: self.config.domain.clone(),
            client_id: request.options.client_id.clone(),
            ..DhcpOptions::default()
        };
        let mut reply = DhcpMessage::request(kind, request.xid, request.chaddr);
        (reply.op, reply.broadcast, reply.yiaddr) = (BootOp::Reply, request.broadcast, yiaddr);
        DhcpMessage { options, ..reply }
    }

    /// Returns the duration of new leases in seconds.
    fn lease_s(&self) -> u32 {
        match self.config.awaits_nameservers && self.learned.is_none() {
            true => self.config.lease_s.min(UNNAMED_LEASE_S),
            false => self.config.lease_s,
        }
    }

    fn set_times(&self, options: &mut DhcpOptions) {
        let lease_s = self.lease_s();
        options.lease_s = Some(lease_s);
        options.renew_s = Some(lease_s / 2);
        options.rebind_s = Some(lease_s - lease_s / 8);
    }

    /// Sends a reply to the address that the client can receive at.
    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.1
    //# If the 'giaddr'
    //# field is zero and the 'ciaddr' field is nonzero, then the server
    //# unicasts DHCPOFFER and DHCPACK messages to the address in 'ciaddr'.
    //# If 'giaddr' is zero and 'ciaddr' is zero, and the broadcast bit is
    //# set, then the server broadcasts DHCPOFFER and DHCPACK messages to
    //# 0xffffffff. If the broadcast bit is not set and 'giaddr' is zero and
    //# 'ciaddr' is zero, then the server unicasts DHCPOFFER and DHCPACK
    //# messages to the client's hardware address and 'yiaddr' address.  In
    //# all cases, when 'giaddr' is zero, the server broadcasts any DHCPNAK
    //# messages to 0xffffffff.
    fn send(&mut self, reply: &DhcpMessage) {
        let from = LinkEndpoint { mac: self.config.mac, ip: self.ip(), port: SERVER_PORT };
        let unicast = |ip| LinkEndpoint { mac: reply.chaddr, ip, port: CLIENT_PORT };
        let to = match () {
            () if !reply.ciaddr.is_unspecified() => unicast(reply.ciaddr),
            () if reply.broadcast => LinkEndpoint::broadcast(CLIENT_PORT),
            () => unicast(reply.yiaddr),
        };
        self.put(frame::datagram(&from, &to, &reply.emit()));
    }

    fn put(&mut self, frame: Vec<u8>) {
        match self.frames.len() < FRAMES_MAX {
            true => self.frames.push_back(frame),
            false => self.counters.dropped += 1,
        }
    }

    fn ip(&self) -> Ipv4Addr {
        match self.config.address.addr() {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        }
    }
}

fn offered(now: Instant, client: Vec<u8>, message: &DhcpMessage) -> Binding {
    let (mac, until, state) = (message.chaddr, now + OFFER_HOLD, BindingState::Offered);
    Binding { client, mac, until, state, host_name: None }
}

/// Returns the identifier of a client.
//= https://www.rfc-editor.org/rfc/rfc2131#section-4.2
//# If the client does not provide a
//# 'client identifier' option, the server MUST use the contents of the
//# 'chaddr' field to identify the client.
fn client_of(message: &DhcpMessage) -> Vec<u8> {
    let of_hardware = || [&[1], &message.chaddr.0[..]].concat();
    message.options.client_id.clone().unwrap_or_else(of_hardware)
}
