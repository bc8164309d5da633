//! The other end of a queue of a device: clients of the shard that the queue belongs to.
//!
//! The peer drops no packets, ignores received payload, and sends again as soon as it is answered.
//! Shards thereby always have work, and the peer costs as little as possible. Like TAP, it sends
//! and receives packets of up to 64 KiB without checksums.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use anyhow::{Result, bail};
use towpath_pool::{
    Batch, Checksum, LinkType, Offloads, Packet, Pool, Port, Protocol, Segmentation,
};
use towpath_stack::{Owners, ShardId};
use towpath_wire::tcp::{Flags, Header, Options, SeqNum};
use towpath_wire::{IpProtocol, ipv4, udp};

/// The address of the host.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Port of the host's TCP service. UDP uses a port per shard, from this one on.
pub const SERVICE: u16 = 5000;
pub const MTU: u32 = 1500;
/// Bytes of a request, and of its answer.
pub const ASKED: usize = 64;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORTS: std::ops::Range<u16> = 20_000..60_000;
const IP_LEN: usize = 20;
const HEADERS_LEN: usize = IP_LEN + 20;
const MSS: u16 = MTU as u16 - HEADERS_LEN as u16;
/// Maximum payload of full segments that fits into a packet of 64 KiB, in bytes.
const LARGE: usize = 44 * MSS as usize;
const WINDOW_SHIFT: u8 = 7;

/// Traffic of clients and program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Requests and answers of 64 bytes on connections.
    Requests,
    /// Requests and answers of 64 bytes in UDP datagrams.
    Datagrams,
    /// The program reads.
    Receive,
    /// The program writes.
    Send,
}

impl Work {
    pub fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "requests" => Self::Requests,
            "datagrams" => Self::Datagrams,
            "receive" => Self::Receive,
            "send" => Self::Send,
            _ => bail!("{name}: requests, datagrams, receive or send is meant"),
        })
    }

    /// Returns the size of a socket's buffers in bytes. At these sizes, bulk data stays in the
    /// processor's L2 cache.
    pub fn room(self) -> u32 {
        match self {
            Self::Requests | Self::Datagrams => 16 * 1024,
            Self::Receive | Self::Send => 128 * 1024,
        }
    }
}

/// A client's connection or socket.
struct Flow {
    port: u16,
    is_open: bool,
    snd_una: SeqNum,
    snd_nxt: SeqNum,
    rcv_nxt: SeqNum,
    /// Receive window of the host in bytes, from `snd_una` on.
    window: u32,
    shift: u8,
    /// Received bytes of the current answer.
    answered: usize,
}

/// All clients of a shard, aligned to cache lines of their own like a device's memory.
#[repr(align(128))]
pub struct Peer {
    work: Work,
    service: u16,
    flows: Vec<Flow>,
    /// Index in `flows` plus 1, by client port.
    places: Vec<u16>,
    out: Batch,
    has_begun: bool,
    answered: u64,
    bytes: u64,
    unexpected: u64,
}

impl Peer {
    /// Creates the clients of shard `shard`, with flows that this shard owns.
    pub fn new(work: Work, shard: usize, owners: &Owners, flows: usize) -> Self {
        let service = if work == Work::Datagrams { SERVICE + shard as u16 } else { SERVICE };
        let host = SocketAddr::from((HOST, service));
        let owned = |port: &u16| {
            let client = SocketAddr::new(IpAddr::V4(CLIENT), *port);
            owners.owner(host, client) == ShardId(shard as u8)
        };
        let flows: Vec<Flow> = PORTS.filter(owned).take(flows).map(Flow::new).collect();
        let mut places = vec![0; usize::from(u16::MAX) + 1];
        for (flow, place) in flows.iter().zip(1..) {
            places[usize::from(flow.port)] = place;
        }
        Self {
            work,
            service,
            flows,
            places,
            out: Batch::new(),
            has_begun: false,
            answered: 0,
            bytes: 0,
            unexpected: 0,
        }
    }

    /// Returns whether all clients are connected, or answered by UDP.
    pub fn is_ready(&self) -> bool {
        self.flows.iter().all(|flow| flow.is_open)
    }

    /// Returns the number of answered requests.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Returns the payload bytes received on connections.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of unexpected packets.
    pub fn unexpected(&self) -> u64 {
        self.unexpected
    }

    fn begin(&mut self, pool: &mut Pool) {
        for place in 0..self.flows.len() {
            if self.work == Work::Datagrams {
                self.ask(place, pool);
            } else {
                let mss_and_scale = Options {
                    mss: Some(MSS),
                    window_scale: Some(WINDOW_SHIFT),
                    ..Default::default()
                };
                self.send_segment(place, Flags::SYN, mss_and_scale, 0, pool);
                let flow = &mut self.flows[place];
                flow.snd_nxt += 1;
            }
        }
    }

    /// Sends the next request in a datagram.
    fn ask(&mut self, place: usize, pool: &mut Pool) {
        let length = (udp::HEADER_LEN + ASKED) as u16;
        let src_port = self.flows[place].port;
        let header = udp::Header { src_port, dst_port: self.service, length, checksum: 0 };
        let mut packet = ip_packet(IpProtocol::UDP, length.into(), pool);
        header.emit(&mut packet.linear_mut()[IP_LEN..]);
        self.out.push_back(packet);
    }

    fn send_segment(
        &mut self,
        place: usize,
        flags: Flags,
        options: Options,
        len: usize,
        pool: &mut Pool,
    ) {
        let flow = &mut self.flows[place];
        let header = Header {
            src_port: flow.port,
            dst_port: self.service,
            seq: flow.snd_nxt,
            ack: flow.rcv_nxt,
            flags,
            window: u16::MAX,
            checksum: 0,
            urgent: 0,
            header_len: 0,
            options,
        };
        let header_len = header.emitted_len();
        let mut packet = ip_packet(IpProtocol::TCP, header_len + len, pool);
        header.emit(&mut packet.linear_mut()[IP_LEN..]);
        if len > MSS.into() {
            let header_len = (IP_LEN + header_len) as u16;
            packet.meta.segmentation =
                Some(Segmentation { protocol: Protocol::Tcp4, size: MSS, header_len });
        }
        flow.snd_nxt += len as u32;
        self.out.push_back(packet);
    }

    fn acknowledge(&mut self, place: usize, len: usize, pool: &mut Pool) {
        self.send_segment(place, Flags::ACK, Options::default(), len, pool);
    }

    /// Handles a packet of the host.
    fn take(&mut self, packet: &Packet, pool: &mut Pool) -> Option<()> {
        let (ip, payload) = ipv4::Header::parse_quoted(packet.linear()).ok()?;
        let bytes = packet.linear().get(payload..)?;
        if ip.protocol == IpProtocol::UDP {
            let (header, _) = udp::Header::parse_quoted(bytes).ok()?;
            let place = self.place(header.dst_port)?;
            self.flows[place].is_open = true;
            self.answered += 1;
            self.ask(place, pool);
            return Some(());
        }
        let header = Header::parse(bytes).ok()?;
        let place = self.place(header.dst_port)?;
        let len = packet.len() - payload - usize::from(header.header_len);
        self.on_segment(place, &header, len, pool)
    }

    fn place(&self, port: u16) -> Option<usize> {
        usize::from(self.places[usize::from(port)]).checked_sub(1)
    }

    fn on_segment(
        &mut self,
        place: usize,
        header: &Header,
        len: usize,
        pool: &mut Pool,
    ) -> Option<()> {
        let flow = &mut self.flows[place];
        if header.flags.contains(Flags::RST) {
            return None;
        }
        if header.flags.contains(Flags::SYN) {
            flow.is_open = true;
            flow.rcv_nxt = header.seq + 1;
            flow.shift = header.options.window_scale.unwrap_or(0);
            flow.snd_una = header.ack;
            flow.window = header.window.into();
        } else {
            if header.seq != flow.rcv_nxt {
                return None;
            }
            flow.rcv_nxt += len as u32;
            flow.snd_una = header.ack;
            flow.window = u32::from(header.window) << flow.shift;
            self.bytes += len as u64;
        }
        let opened = header.flags.contains(Flags::SYN);
        match self.work {
            Work::Requests => {
                flow.answered += len;
                if flow.answered >= ASKED || opened {
                    flow.answered = 0;
                    self.answered += u64::from(!opened);
                    self.acknowledge(place, ASKED, pool);
                }
            }
            Work::Receive => self.push(place, opened, pool),
            Work::Send if len > 0 || opened => self.acknowledge(place, 0, pool),
            Work::Send | Work::Datagrams => {}
        }
        Some(())
    }

    /// Sends large packets while the window permits, at most about two in flight. The larger the
    /// packets, the less work the host has.
    fn push(&mut self, place: usize, opened: bool, pool: &mut Pool) {
        if opened {
            self.acknowledge(place, 0, pool);
        }
        loop {
            let Flow { snd_una, snd_nxt, window, .. } = self.flows[place];
            let in_flight = snd_nxt - snd_una;
            let room = window.saturating_sub(in_flight);
            if in_flight >= LARGE as u32 || room < (LARGE / 2) as u32 {
                return;
            }
            self.acknowledge(place, LARGE.min(room as usize), pool);
        }
    }
}

impl Flow {
    fn new(port: u16) -> Self {
        let iss = SeqNum(u32::from(port) << 8);
        Self {
            port,
            is_open: false,
            snd_una: iss,
            snd_nxt: iss,
            rcv_nxt: SeqNum(0),
            window: 0,
            shift: 0,
            answered: 0,
        }
    }
}

/// Creates a packet from a client to the host: an IP header, and `len` arbitrary bytes.
fn ip_packet(protocol: IpProtocol, len: usize, pool: &mut Pool) -> Packet {
    let len = IP_LEN + len;
    let mut packet = pool.take(len);
    let bytes = packet.push_back(len).expect("taken with room");
    let header = ipv4::Header {
        tos: 0,
        total_len: len as u16,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol,
        src: CLIENT,
        dst: HOST,
        options: ipv4::Options::EMPTY,
    };
    header.emit(bytes);
    packet.meta.checksum = Checksum::Verified;
    packet
}

impl Port for Peer {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.begin(pool);
        }
        let n = self.out.len().min(max);
        for mut packet in self.out.drain(..n) {
            packet.meta.arrival_ns = now_ns;
            out.push_back(packet);
        }
        n
    }

    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len();
        for packet in batch.drain(..) {
            self.unexpected += u64::from(self.take(&packet, pool).is_none());
            pool.give(packet);
        }
        n
    }

    fn offloads(&self) -> Offloads {
        Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true }
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ip
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        (!self.out.is_empty()).then_some(0)
    }
}
