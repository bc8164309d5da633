//! A DHCP client of one interface. Read RFC 2131 §4.4 first; the states are those of its figure 5.
//!
//! ```text
//!   Init ──► Selecting ──► Requesting ──► Probing ──► Bound ──► Renewing ──► Rebinding
//!    ▲ │                       │             │ ▲        ▲           │            │
//!    │ └── a kept lease ──► Rebooting ───────┼─┘        └── ACK ────┴────────────┤
//!    └────── NAK, no answer ───┴─────────────┴─ conflict       NAK, expired ─────┘
//! ```

#[cfg(test)]
mod tests;
mod transaction;

use core::net::Ipv4Addr;
use core::time::Duration;
use std::collections::VecDeque;

use towpath_dice::Dice;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use crate::frame::{self, CLIENT_PORT, DhcpDatagram, DhcpFrame, LinkEndpoint, SERVER_PORT};
use crate::lease::{Lease, address_of};
use crate::message::{BootOp, DhcpMessage, DhcpOptions, MessageKind};
use transaction::Transaction;

/// Number of ARP probes for a new address, and the time to wait after each one. A host on the link
/// answers within milliseconds, so the five seconds of RFC 5227 are not needed.
const PROBES: u32 = 3;
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of DHCPREQUEST messages that the client sends without an answer. Then it searches
/// for servers again. With exponential back-off, four messages take about a minute.
const REQUESTS: u32 = 4;
/// Time to wait after an address conflict before the next DHCPDISCOVER.
const CONFLICT_DELAY: Duration = Duration::from_secs(10);
/// Maximum time to wait after a server's refusal before the next search for servers.
const REFUSED_DELAY_MAX: Duration = Duration::from_secs(64);
/// Minimum time between two requests to extend a lease (RFC 2131 §4.4.5).
const EXTENSION_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Maximum length in bytes of DHCP messages that servers may send to the client. A UDP datagram
/// with this payload fits in one Ethernet frame.
const MESSAGE_SIZE_MAX: u16 = 1472;
/// Maximum number of queued frames. Each call of the client adds one or two frames, and the caller
/// then sends them, so the queue is normally short.
const FRAMES_MAX: usize = 16;

/// Configuration of a DHCP client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Ethernet address of the interface, by which the DHCP server identifies the client.
    pub mac: MacAddr,
    /// Host name that the client sends to the DHCP server.
    pub host_name: Option<String>,
    /// Address of a lease from an earlier run. The client first asks the DHCP server whether this
    /// lease is still valid (INIT-REBOOT).
    pub kept: Option<Ipv4Addr>,
}

/// Change of a DHCP client's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The client has obtained a lease, or its lease has a new duration or other new parameters.
    Bound(Lease),
    /// The client has lost its lease, so the host must stop using the address.
    Lost(LeaseLoss),
}

/// Reason why a DHCP client lost its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseLoss {
    /// No server extended the lease before it expired.
    Expired,
    /// A DHCP server refused to extend the lease.
    Refused,
    /// Another host on the link already uses the offered address.
    InUse(Ipv4Addr),
    /// [`DhcpClient::release`] was called.
    Released,
}

/// Counters of a DHCP client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// DHCP messages sent.
    pub tx_messages: u64,
    /// DHCP messages that the client received and accepted in its current state.
    pub rx_messages: u64,
    /// DHCP messages that the client ignored. The messages were of another transaction or server,
    /// unexpected in the client's state, or invalid.
    pub rx_ignored: u64,
    /// Number of times that the client obtained or extended a lease.
    pub leases: u64,
    /// Requests that a DHCP server refused (DHCPNAK).
    pub refusals: u64,
    /// Offered addresses that the client declined, because another host already used them.
    pub conflicts: u64,
    /// Frames dropped because the queue of frames to send was full.
    pub frames_dropped: u64,
}

impl ClientCounters {
    /// Returns all counters with their names.
    pub fn list(&self) -> [(&'static str, u64); 7] {
        let Self { tx_messages, rx_messages, rx_ignored, leases, refusals, conflicts, .. } = *self;
        [
            ("tx_messages", tx_messages),
            ("rx_messages", rx_messages),
            ("rx_ignored", rx_ignored),
            ("leases", leases),
            ("refusals", refusals),
            ("conflicts", conflicts),
            ("frames_dropped", self.frames_dropped),
        ]
    }
}

/// A DHCP client. Call [`Self::on_frame`] for each received frame for which [`frame::concerns`]
/// returns true, and [`Self::on_timeout`] at [`Self::next_timeout`]. After each call, send the
/// frames and handle the events.
#[derive(Debug)]
pub struct DhcpClient {
    config: ClientConfig,
    dice: Dice,
    state: ClientState,
    /// Time of the client's next state change or retransmission.
    timer: Option<Instant>,
    transaction: Transaction,
    held: Option<HeldLease>,
    /// Server whose last offer did not lead to a lease. The client prefers offers of other servers.
    avoided: Option<Ipv4Addr>,
    /// Number of refusals and address conflicts since the client last obtained a lease.
    failures: u32,
    frames: VecDeque<Vec<u8>>,
    events: VecDeque<ClientEvent>,
    counters: ClientCounters,
}

/// A lease, and the Ethernet address to which messages for its server are sent.
#[derive(Debug, Clone)]
struct HeldLease {
    lease: Lease,
    server_mac: MacAddr,
}

/// Address that a DHCP server offers.
#[derive(Debug, Clone, Copy)]
struct LeaseOffer {
    address: Ipv4Addr,
    server: Ipv4Addr,
}

#[derive(Debug, Clone)]
enum ClientState {
    Init,
    /// The client waits for offers. The field has an offer of the server to be avoided, which the
    /// client accepts if no other server answers.
    Selecting(Option<LeaseOffer>),
    Requesting(LeaseOffer),
    Rebooting(Ipv4Addr),
    /// A granted lease whose address is being probed with ARP, and the number of probes still to
    /// send.
    Probing(HeldLease, u32),
    Bound,
    Renewing,
    Rebinding,
    /// The lease was released, and the client sends no more messages.
    Ended,
}

impl DhcpClient {
    /// Creates a client, whose first message is due at `now`. `seed` must be random: transaction
    /// identifiers follow from it.
    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.4.1
    //= type=exception
    //= reason=Users wait for the address, and other clients send at once, too.
    //# The client SHOULD wait a random time between one and ten seconds to
    //# desynchronize the use of DHCP at startup.
    pub fn new(config: ClientConfig, seed: u64, now: Instant) -> Self {
        let mut dice = Dice::new(seed, 0);
        let transaction = Transaction::new(&mut dice, now);
        Self {
            config,
            dice,
            state: ClientState::Init,
            timer: Some(now),
            transaction,
            held: None,
            avoided: None,
            failures: 0,
            frames: VecDeque::new(),
            events: VecDeque::new(),
            counters: ClientCounters::default(),
        }
    }

    /// Returns the current lease; `None` if the client has no lease.
    pub fn lease(&self) -> Option<&Lease> {
        self.held.as_ref().map(|held| &held.lease)
    }

    /// Returns the counters of the client.
    pub fn counters(&self) -> &ClientCounters {
        &self.counters
    }

    /// Removes and returns the oldest frame that is to be sent.
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// Removes and returns the oldest event.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// Returns the time at which [`Self::on_timeout`] must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timer
    }

    /// Handles a received frame. Returns true if the frame was a DHCP message to this client, so
    /// that no other receiver needs it. `is_verified` states that the UDP checksum need not be
    /// checked.
    pub fn on_frame(&mut self, now: Instant, bytes: &[u8], is_verified: bool) -> bool {
        match frame::parse(bytes, is_verified) {
            Some(DhcpFrame::Arp(packet)) => {
                if let ClientState::Probing(held, _) = &self.state
                    && frame::is_conflict(&packet, self.config.mac, held.lease.ip())
                {
                    self.decline(now, held.lease.ip(), held.lease.server);
                }
                false
            }
            Some(DhcpFrame::Datagram(datagram)) => self.on_datagram(now, &datagram),
            None => false,
        }
    }

    fn on_datagram(&mut self, now: Instant, datagram: &DhcpDatagram<'_>) -> bool {
        if datagram.to.port != CLIENT_PORT {
            return false;
        }
        let Ok(message) = DhcpMessage::parse(datagram.payload) else { return false };
        if message.op != BootOp::Reply || message.chaddr != self.config.mac {
            return false;
        }
        //= https://www.rfc-editor.org/rfc/rfc2131#section-4.4.1
        //# If the 'xid' of an arriving DHCPOFFER message does not match the
        //# 'xid' of the most recent DHCPDISCOVER message, the DHCPOFFER message
        //# must be silently discarded.  Any arriving DHCPACK messages must be
        //# silently discarded.
        let is_own = message.xid == self.transaction.xid && self.is_own_id(&message);
        let is_expected = is_own && self.handle(now, &message, datagram.from.mac);
        match is_expected {
            true => self.counters.rx_messages += 1,
            false => self.counters.rx_ignored += 1,
        }
        true
    }

    /// Returns whether a reply has this client's identifier, or no client identifier. RFC 6842 §3
    /// requires clients to discard replies with a different identifier.
    fn is_own_id(&self, message: &DhcpMessage) -> bool {
        message.options.client_id.as_ref().is_none_or(|id| *id == self.id())
    }

    fn id(&self) -> Vec<u8> {
        [&[1], &self.config.mac.0[..]].concat()
    }

    /// Handles a message of the current transaction. Returns false if the message is invalid, or is
    /// not expected in the client's state.
    fn handle(&mut self, now: Instant, message: &DhcpMessage, from: MacAddr) -> bool {
        let server = message.options.server;
        match (message.kind, &self.state) {
            (MessageKind::Offer, ClientState::Selecting(_)) => self.on_offer(now, message),
            (MessageKind::Ack, ClientState::Requesting(offer))
                if server == Some(offer.server) && message.yiaddr == offer.address =>
            {
                self.on_grant(now, message, from)
            }
            (MessageKind::Ack, ClientState::Rebooting(kept)) if message.yiaddr == *kept => {
                self.on_grant(now, message, from)
            }
            (MessageKind::Ack, ClientState::Renewing | ClientState::Rebinding) => {
                self.on_extension(message, from)
            }
            (MessageKind::Nak, ClientState::Requesting(offer)) if server == Some(offer.server) => {
                self.on_refusal(now)
            }
            (MessageKind::Nak, ClientState::Renewing) if server == self.lease_server() => {
                self.on_refusal(now)
            }
            (MessageKind::Nak, ClientState::Rebooting(_) | ClientState::Rebinding) => {
                self.on_refusal(now)
            }
            _ => false,
        }
    }

    fn lease_server(&self) -> Option<Ipv4Addr> {
        self.held.as_ref().map(|held| held.lease.server)
    }

    /// Handles an offer: accepts the first valid one. An offer of the server to be avoided is only
    /// stored, and used if no other server makes an offer.
    fn on_offer(&mut self, now: Instant, message: &DhcpMessage) -> bool {
        let Some(server) = message.options.server else { return false };
        if address_of(message.yiaddr, message.options.mask_len).is_err() {
            return false;
        }
        let offer = LeaseOffer { address: message.yiaddr, server };
        if self.avoided == Some(server) {
            self.state = ClientState::Selecting(Some(offer));
        } else {
            self.accept(now, offer);
        }
        true
    }

    fn accept(&mut self, now: Instant, offer: LeaseOffer) {
        self.state = ClientState::Requesting(offer);
        self.transaction.restart(now);
        self.request(now);
    }

    /// Checks by ARP that no other host uses the address of a new lease.
    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.4.1
    //# The client SHOULD perform a
    //# check on the suggested address to ensure that the address is not
    //# already in use.
    fn on_grant(&mut self, now: Instant, message: &DhcpMessage, from: MacAddr) -> bool {
        let lease = Lease::of_message(message, self.transaction.began, &mut self.dice);
        let Ok(lease) = lease else { return false };
        self.probe(now, HeldLease { lease, server_mac: from }, PROBES);
        true
    }

    fn on_extension(&mut self, message: &DhcpMessage, from: MacAddr) -> bool {
        let lease = Lease::of_message(message, self.transaction.sent, &mut self.dice);
        let Ok(lease) = lease else { return false };
        let is_same = self.lease().is_some_and(|held| held.ip() == lease.ip());
        if is_same {
            self.bind(HeldLease { lease, server_mac: from });
        }
        is_same
    }

    fn on_refusal(&mut self, now: Instant) -> bool {
        self.counters.refusals += 1;
        self.lose(LeaseLoss::Refused);
        // Search at once after the first failure, because the host may have moved to another
        // network.
        let factor = 1 << self.failures.min(10);
        let delay = Duration::from_secs(factor - 1).min(REFUSED_DELAY_MAX);
        self.failures += 1;
        self.restart(now + delay);
        true
    }

    /// Performs the state change or retransmission that is due at [`Self::next_timeout`].
    pub fn on_timeout(&mut self, now: Instant) {
        if self.timer.is_none_or(|timer| now < timer) {
            return;
        }
        match self.state.clone() {
            ClientState::Init => self.begin(now),
            ClientState::Selecting(None) => self.discover(now),
            ClientState::Selecting(Some(offer)) => self.accept(now, offer),
            ClientState::Requesting(LeaseOffer { server, .. })
                if self.transaction.tries >= REQUESTS =>
            {
                self.avoided = Some(server);
                self.restart(now);
            }
            ClientState::Rebooting(_) if self.transaction.tries >= REQUESTS => self.restart(now),
            ClientState::Requesting(_) | ClientState::Rebooting(_) => self.request(now),
            ClientState::Probing(held, 0) => self.bind(held),
            ClientState::Probing(held, left) => self.probe(now, held, left),
            ClientState::Bound | ClientState::Renewing | ClientState::Rebinding => self.extend(now),
            ClientState::Ended => self.timer = None,
        }
    }

    /// Begins to verify the lease of an earlier run, if there is one. Otherwise begins to search
    /// for servers.
    fn begin(&mut self, now: Instant) {
        self.transaction = Transaction::new(&mut self.dice, now);
        match self.config.kept.take() {
            Some(kept) => {
                self.state = ClientState::Rebooting(kept);
                self.request(now);
            }
            None => self.discover(now),
        }
    }

    /// Releases the lease and stops the client. A lease whose address is still being probed is
    /// released too.
    pub fn release(&mut self, now: Instant) {
        let granted = match &self.state {
            ClientState::Probing(granted, _) => Some(granted.clone()),
            _ => self.held.clone(),
        };
        if let Some(HeldLease { lease, server_mac }) = granted {
            self.transaction = Transaction::new(&mut self.dice, now);
            let mut message = self.message(MessageKind::Release, now);
            message.ciaddr = lease.ip();
            message.options.server = Some(lease.server);
            self.send(&message, Some((server_mac, lease.server)));
        }
        self.lose(LeaseLoss::Released);
        self.state = ClientState::Ended;
        self.timer = None;
    }

    fn discover(&mut self, now: Instant) {
        self.state = ClientState::Selecting(None);
        let mut message = self.message(MessageKind::Discover, now);
        self.request_parameters(&mut message);
        self.send(&message, None);
        self.timer = Some(self.transaction.sent_at(now, &mut self.dice));
    }

    /// Sends a DHCPREQUEST for the offered address, or for the address of an earlier run's lease.
    fn request(&mut self, now: Instant) {
        let mut message = self.message(MessageKind::Request, now);
        match &self.state {
            ClientState::Requesting(offer) => {
                message.options.requested = Some(offer.address);
                message.options.server = Some(offer.server);
            }
            ClientState::Rebooting(kept) => message.options.requested = Some(*kept),
            _ => return,
        }
        self.request_parameters(&mut message);
        self.send(&message, None);
        self.timer = Some(self.transaction.sent_at(now, &mut self.dice));
    }

    fn probe(&mut self, now: Instant, held: HeldLease, left: u32) {
        self.put(frame::arp_probe(self.config.mac, held.lease.ip()));
        self.state = ClientState::Probing(held, left.saturating_sub(1));
        self.timer = Some(now + PROBE_INTERVAL);
    }

    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.4.1
    //# If the
    //# network address appears to be in use, the client MUST send a
    //# DHCPDECLINE message to the server.
    fn decline(&mut self, now: Instant, address: Ipv4Addr, server: Ipv4Addr) {
        self.counters.conflicts += 1;
        self.transaction = Transaction::new(&mut self.dice, now);
        let mut message = self.message(MessageKind::Decline, now);
        message.options.requested = Some(address);
        message.options.server = Some(server);
        self.send(&message, None);
        self.events.push_back(ClientEvent::Lost(LeaseLoss::InUse(address)));
        self.failures += 1;
        self.restart(now + CONFLICT_DELAY);
    }

    fn bind(&mut self, held: HeldLease) {
        self.counters.leases += 1;
        (self.failures, self.avoided) = (0, None);
        self.timer = held.lease.renew_at;
        self.state = ClientState::Bound;
        self.events.push_back(ClientEvent::Bound(held.lease.clone()));
        self.held = Some(held);
    }

    /// Requests an extension of the lease, or ends it.
    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.4.5
    //# In both RENEWING and REBINDING states, if the client receives no
    //# response to its DHCPREQUEST message, the client SHOULD wait one-half
    //# of the remaining time until T2 (in RENEWING state) and one-half of
    //# the remaining lease time (in REBINDING state), down to a minimum of
    //# 60 seconds, before retransmitting the DHCPREQUEST message.
    fn extend(&mut self, now: Instant) {
        let Some(HeldLease { lease, server_mac }) = self.held.clone() else { return };
        let (Some(rebind), Some(until)) = (lease.rebind_at, lease.valid_until) else { return };
        if now >= until {
            self.lose(LeaseLoss::Expired);
            return self.restart(now);
        }
        let is_renewing = now < rebind;
        let (state, end) = match is_renewing {
            true => (ClientState::Renewing, rebind),
            false => (ClientState::Rebinding, until),
        };
        self.state = state;
        self.transaction = Transaction::new(&mut self.dice, now);
        let mut message = self.message(MessageKind::Request, now);
        message.ciaddr = lease.ip();
        self.request_parameters(&mut message);
        self.send(&message, is_renewing.then_some((server_mac, lease.server)));
        let wait = (end.since(now) / 2).max(EXTENSION_INTERVAL_MIN);
        self.timer = Some((now + wait).min(end));
    }

    /// Schedules a new search for servers at the time `at`.
    fn restart(&mut self, at: Instant) {
        self.state = ClientState::Init;
        self.timer = Some(at);
    }

    fn lose(&mut self, why: LeaseLoss) {
        if self.held.take().is_some() {
            self.events.push_back(ClientEvent::Lost(why));
        }
    }

    /// Creates a DHCP message of the current transaction.
    fn message(&self, kind: MessageKind, now: Instant) -> DhcpMessage {
        let mut message = DhcpMessage::request(kind, self.transaction.xid, self.config.mac);
        message.secs = self.transaction.secs(now);
        message.options.client_id = Some(self.id());
        message
    }

    fn request_parameters(&self, message: &mut DhcpMessage) {
        message.options.parameters = DhcpOptions::REQUESTED.to_vec();
        message.options.size_max = Some(MESSAGE_SIZE_MAX);
        message.options.host_name.clone_from(&self.config.host_name);
    }

    /// Sends a message: to one server, or as a broadcast.
    //= https://www.rfc-editor.org/rfc/rfc2131#section-4.1
    //# DHCP messages broadcast by a client prior to that client obtaining
    //# its IP address must have the source address field in the IP header
    //# set to 0.
    fn send(&mut self, message: &DhcpMessage, to: Option<(MacAddr, Ipv4Addr)>) {
        self.counters.tx_messages += 1;
        let from = LinkEndpoint { mac: self.config.mac, ip: message.ciaddr, port: CLIENT_PORT };
        let to = to.map_or(LinkEndpoint::broadcast(SERVER_PORT), |(mac, ip)| LinkEndpoint {
            mac,
            ip,
            port: SERVER_PORT,
        });
        self.put(frame::datagram(&from, &to, &message.emit()));
    }

    fn put(&mut self, frame: Vec<u8>) {
        if self.frames.len() >= FRAMES_MAX {
            self.frames.pop_front();
            self.counters.frames_dropped += 1;
        }
        self.frames.push_back(frame);
    }
}
