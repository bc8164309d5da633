//! Checks every frame and the state of every host against the rules of TCP.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use towpath_direct::Node;
use towpath_stack::SocketId;
use towpath_tcp::Info;
use towpath_wire::tcp::{Flags, Header, SeqNum};
use towpath_wire::{IpProtocol, checksum};

use crate::fault::RuleFault;
use crate::packet::{SimPort, Towards, VIRTUAL_MACS, mac_of};

/// Addresses of the two endpoints of a connection. The sender's address is first.
type Ends = (SocketAddr, SocketAddr);

/// Maximum number by which a sequence number may advance between two checks of a host.
const STEP_MAX: u32 = 1 << 30;

/// Sent segments and state of all connections, to the extent that the rules need them.
#[derive(Debug, Default)]
pub struct Watch {
    ends: BTreeMap<Ends, SentSegments>,
    /// Acknowledgements that each host has received, by the host's number and the endpoints of the
    /// connection.
    heard: BTreeMap<(usize, Ends), AcksHeard>,
    sockets: BTreeMap<(usize, SocketId), WatchMarks>,
    /// First violation of a rule. `None` if there was none.
    pub fault: Option<RuleFault>,
}

/// State derived from the segments that one endpoint of a connection has sent.
#[derive(Debug, Clone, Copy, Default)]
struct SentSegments {
    isn: Option<SeqNum>,
    scale: Option<u8>,
    /// Sequence number after the last byte that was sent so far.
    high: Option<SeqNum>,
    fin: Option<SeqNum>,
    ack: Option<SeqNum>,
    /// Right edge of the last advertised window.
    edge: Option<SeqNum>,
    has_reset: bool,
}

/// Acknowledgements that a host has received from its peer.
#[derive(Debug, Default)]
struct AcksHeard {
    /// Times at which acknowledgements arrived, in ms.
    at_ms: Vec<u64>,
    /// Highest acknowledgement number received.
    ack: Option<SeqNum>,
}

/// State variables of a socket that must never decrease.
#[derive(Debug, Clone, Copy)]
struct WatchMarks {
    snd_una: SeqNum,
    snd_nxt: SeqNum,
    rcv_nxt: SeqNum,
    bytes_acked: u64,
    bytes_received: u64,
}

/// Frame whose TCP segment was parsed.
struct Frame<'a> {
    ends: Ends,
    header: &'a Header,
    payload: u32,
}

impl Frame<'_> {
    /// Returns the length of the segment in sequence numbers. SYN and FIN count as one each.
    fn seq_len(&self) -> u32 {
        let flags = self.header.flags;
        self.payload + u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN))
    }
}

impl SentSegments {
    /// Records a sent segment, and returns the rule that it violates, if any. `peer` contains the
    /// segments sent by the peer.
    fn note(&mut self, frame: &Frame<'_>, peer: &SentSegments) -> Option<&'static str> {
        let header = frame.header;
        let flags = header.flags;
        if flags.contains(Flags::SYN) && self.isn != Some(header.seq) {
            // A SYN with a new initial sequence number starts a new connection between these
            // addresses.
            let (isn, scale) = (Some(header.seq), header.options.window_scale);
            *self = SentSegments { isn, scale, ..SentSegments::default() };
        }
        if flags.contains(Flags::RST) {
            // An unacceptable ACK, for example of an older handshake, is answered by a RST with the
            // number of that ACK (RFC 9293 section 3.10.7.4).
            let is_of_this = |(isn, high): (SeqNum, SeqNum)| header.seq.is_within(isn, high - isn);
            self.has_reset |= self.isn.zip(self.high).is_none_or(is_of_this);
            return None;
        }
        if self.has_reset {
            return Some("nothing is sent after RST");
        }
        self.isn?;
        let broken = self.note_text(frame, peer);
        if broken.is_some() || !flags.contains(Flags::ACK) {
            return broken;
        }
        let broken = self.note_ack(header, peer);
        let broken = broken.or_else(|| self.note_window(header, peer));
        broken.or_else(|| self.broken_by_sack(header, peer))
    }

    fn note_text(&mut self, frame: &Frame<'_>, peer: &SentSegments) -> Option<&'static str> {
        let header = frame.header;
        let flags = header.flags;
        let end = header.seq + frame.seq_len();
        // Allow a gap in sequence numbers, because segments are dropped before the device if ARP
        // fails.
        let high = self.high.unwrap_or(header.seq);
        if let Some(fin) = self.fin
            && (end.gt(fin + 1) || flags.contains(Flags::FIN) && end != fin + 1)
        {
            return Some("nothing follows FIN, which stays where it is");
        }
        if flags.contains(Flags::FIN) {
            self.fin = Some(end - 1);
        }
        if frame.payload > 0 && !flags.contains(Flags::SYN) {
            let beyond = peer.edge.is_none_or(|edge| (header.seq + frame.payload).gt(edge));
            if beyond && end.gt(high) {
                return Some("new bytes lie in the window that the peer advertised");
            }
        }
        self.high = Some(high.max(end));
        None
    }

    fn note_ack(&mut self, header: &Header, peer: &SentSegments) -> Option<&'static str> {
        if peer.isn.is_some() && peer.high.is_some_and(|high| header.ack.gt(high)) {
            return Some("nothing is acknowledged that was not sent");
        }
        if self.ack.is_some_and(|ack| header.ack.lt(ack)) {
            return Some("acknowledgements do not go back");
        }
        self.ack = Some(header.ack);
        None
    }

    fn note_window(&mut self, header: &Header, peer: &SentSegments) -> Option<&'static str> {
        let is_syn = header.flags.contains(Flags::SYN);
        let is_scaled = !is_syn && self.scale.is_some() && peer.scale.is_some();
        let shift = if is_scaled { self.scale.unwrap_or(0) } else { 0 };
        let edge = header.ack + (u32::from(header.window) << shift);
        let before = self.edge.replace(self.edge.map_or(edge, |before| before.max(edge)));
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# A TCP receiver SHOULD NOT shrink the window, i.e., move the right window edge to the left
        //# (SHLD-14).
        // Allow the edge to move left by less than one unit, because the window field counts units
        // of the scale (RFC 7323 section 2.4).
        let unit = 1u32 << shift;
        let has_shrunk = before.is_some_and(|before| (edge + (unit - 1)).lt(before));
        has_shrunk.then_some("the right edge of the window does not move to the left")
    }

    fn broken_by_sack(&self, header: &Header, peer: &SentSegments) -> Option<&'static str> {
        let most = self.edge.unwrap_or(header.ack);
        let is_sound = header.options.sack.iter().enumerate().all(|(n, (left, right))| {
            let is_known = peer.high.is_none_or(|high| right.leq(high));
            // The first block may report a duplicate below the acknowledgement number (RFC 2883
            // section 4.1).
            let is_dsack = n == 0 && right.leq(header.ack);
            left.lt(right) && (left.gt(header.ack) || is_dsack) && is_known && right.leq(most)
        });
        (!is_sound).then_some("SACK blocks lie beyond the acknowledgement, in what was sent")
    }
}

impl Watch {
    /// Checks a frame that a host sends, or receives if `is_sent` is false.
    pub fn on_frame(&mut self, now: u64, host: usize, frame: &[u8], is_sent: bool) {
        let Some((ends, header, payload)) = parse(frame) else { return };
        let towards = Towards::read(frame);
        let frame = Frame { ends, header: &header, payload };
        if !is_sent {
            // No checksum covers the link header, so a corrupted frame may reach another host,
            // which drops it.
            if towards == Towards::Station(mac_of(VIRTUAL_MACS, host)) {
                self.heard.entry((host, (ends.1, ends.0))).or_default().note(now, &frame);
            }
            return;
        }
        if let Some(rule) = self.sent(&frame) {
            let text = format!(
                "host {host} sends {} > {}: seq {} ack {} window {} {:?}, {payload} bytes",
                ends.0, ends.1, header.seq.0, header.ack.0, header.window, header.flags
            );
            self.note(now, rule, text);
        }
    }

    /// Checks the state of a host after its event loop has run.
    pub fn on_turn(&mut self, now: u64, host: usize, node: &Node<SimPort>) {
        if let Some((id, rule)) = node.stack.audit() {
            let of = id.and_then(|id| node.stack.info(node.now(), id));
            self.note(now, rule, format!("host {host}: {of:?}"));
        }
        for socket in node.stack.sockets(node.now()) {
            let Some(tcp) = socket.tcp else { continue };
            let marks = WatchMarks::of(&tcp);
            let before = self.sockets.insert((host, socket.id), marks);
            if let Some(rule) = before.and_then(|before| before.broken_by(&marks)) {
                self.note(now, rule, format!("host {host}: {before:?}, then {socket:?}"));
            }
        }
    }

    /// Returns the last time, up to `now`, at which `host` received a new acknowledgement on one of
    /// its own connections, or on one to `server`.
    pub fn last_heard(&self, host: usize, server: SocketAddr, now: u64) -> Option<u64> {
        let last = |((at, ends), heard): (&(usize, Ends), &AcksHeard)| {
            let is_own = *at == host && (ends.0 == server || ends.1 == server);
            let count = heard.at_ms.partition_point(|ms| *ms <= now / 1_000_000);
            let last = count.checked_sub(1).and_then(|at| heard.at_ms.get(at).copied());
            last.filter(|_| is_own)
        };
        self.heard.iter().filter_map(last).max().map(|ms| ms * 1_000_000)
    }

    fn note(&mut self, now: u64, rule: &'static str, what: String) {
        let at = format!("{:.6} s: {what}", now as f64 / 1e9);
        self.fault.get_or_insert(RuleFault { rule: rule.to_owned(), what: at });
    }

    /// Records a sent segment, and returns the rule that it violates, if any.
    fn sent(&mut self, frame: &Frame<'_>) -> Option<&'static str> {
        let (from, to) = frame.ends;
        let peer = self.ends.get(&(to, from)).copied().unwrap_or_default();
        self.ends.entry((from, to)).or_default().note(frame, &peer)
    }
}

impl AcksHeard {
    /// Records a received segment that acknowledges new data. Other segments do not reset the R2
    /// timeout.
    fn note(&mut self, now: u64, frame: &Frame<'_>) {
        let header = frame.header;
        if header.flags.contains(Flags::RST) || !header.flags.contains(Flags::ACK) {
            return;
        }
        if self.ack.is_none_or(|ack| header.ack.gt(ack)) {
            self.ack = Some(header.ack);
            self.at_ms.push(now / 1_000_000);
        }
    }
}

impl WatchMarks {
    fn of(tcp: &Info) -> Self {
        Self {
            snd_una: tcp.snd_una,
            snd_nxt: tcp.snd_nxt,
            rcv_nxt: tcp.rcv_nxt,
            bytes_acked: tcp.bytes_acked,
            bytes_received: tcp.bytes_received,
        }
    }

    fn broken_by(&self, now: &Self) -> Option<&'static str> {
        let follows = |now: SeqNum, before: SeqNum| now.is_within(before, STEP_MAX);
        let has_syn = self.rcv_nxt != SeqNum(0);
        let rules = [
            (follows(now.snd_una, self.snd_una), "SND.UNA does not go back"),
            (follows(now.snd_nxt, self.snd_nxt), "SND.NXT does not go back"),
            (!has_syn || follows(now.rcv_nxt, self.rcv_nxt), "RCV.NXT does not go back"),
            (self.bytes_acked <= now.bytes_acked, "acknowledged bytes do not go back"),
            (self.bytes_received <= now.bytes_received, "received bytes do not go back"),
        ];
        rules.iter().find(|(holds, _)| !holds).map(|(_, rule)| *rule)
    }
}

/// Parses the TCP segment in an Ethernet frame with IPv4. `None` if there is none, or if its
/// checksum is wrong.
fn parse(frame: &[u8]) -> Option<(Ends, Header, u32)> {
    if frame.get(12..14)? != [0x08, 0x00] {
        return None;
    }
    let ip = frame.get(14..)?;
    let header_len = usize::from(ip.first()? & 15) * 4;
    let total_len = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    if *ip.get(9)? != 6 || checksum::finish(checksum::sum(ip.get(..header_len)?, 0)) != 0 {
        return None;
    }
    let tcp = ip.get(header_len..total_len)?;
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    let (src, dst) = (address(12), address(16));
    let pseudo = checksum::pseudo_v4(src, dst, IpProtocol::TCP, tcp.len() as u16);
    if checksum::finish(checksum::sum(tcp, pseudo)) != 0 {
        return None;
    }
    let header = Header::parse(tcp).ok()?;
    let ends = ((src, header.src_port).into(), (dst, header.dst_port).into());
    let payload = tcp.len() - usize::from(header.header_len);
    Some((ends, header, payload as u32))
}
