//! Ethernet link in front of a port that carries IP packets.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use towpath_pool::{Batch, Checksum, LinkType, Offloads, Packet, Pool, Port};
use towpath_qdisc::QueuedPacket;
use towpath_wire::MacAddr;
use towpath_wire::arp::{self, ArpOp, ArpPacket};
use towpath_wire::ethernet::{self, EtherType};

/// Maximum number of packets that wait for a port that accepts none.
const READY_MAX: usize = 64;

/// Addresses of an [`IpLink`].
pub struct IpLinkAddresses {
    /// Ethernet address of the host behind the port.
    pub own: MacAddr,
    /// IPv4 address of that host, for which the link answers ARP requests.
    pub ip: Ipv4Addr,
    /// Ethernet addresses of the hosts of the simulation.
    pub neighbors: BTreeMap<Ipv4Addr, MacAddr>,
    /// Ethernet address to which packets for other destinations are sent.
    pub router: MacAddr,
}

/// A port with Ethernet frames over a port with IP packets.
///
/// The host behind the port knows no Ethernet addresses. The link adds and removes the headers, and
/// answers the ARP requests for the host.
pub struct IpLink {
    port: Box<dyn Port + Send>,
    addresses: IpLinkAddresses,
    /// Packets that the port has not accepted yet.
    ready: Batch,
    /// ARP replies for the next poll.
    replies: Batch,
    /// Packets of the port; empty between calls.
    received: Batch,
}

impl IpLink {
    pub fn new(port: Box<dyn Port + Send>, addresses: IpLinkAddresses) -> Self {
        let (ready, replies, received) = (Batch::new(), Batch::new(), Batch::new());
        Self { port, addresses, ready, replies, received }
    }

    /// Adds the Ethernet header to an IP packet, whose checksum must be complete.
    fn framed(&self, packet: Packet, pool: &mut Pool) -> Packet {
        let mut packet = with_headroom(packet, pool);
        let bytes = packet.linear();
        let is_v6 = bytes.first().is_some_and(|byte| byte >> 4 == 6);
        let to = bytes.get(16..20).and_then(<[u8]>::first_chunk::<4>).filter(|_| !is_v6);
        let to = to.and_then(|ip| self.addresses.neighbors.get(&Ipv4Addr::from(*ip)));
        let header = ethernet::Header {
            dst: *to.unwrap_or(&self.addresses.router),
            src: self.addresses.own,
            vlan: None,
            ethertype: if is_v6 { EtherType::IPV6 } else { EtherType::IPV4 },
        };
        header.emit(packet.push_front(ethernet::HEADER_LEN));
        packet
    }

    /// Removes the Ethernet header of a frame for the port. Returns `None` for other frames, which
    /// are given back to the pool. Answers ARP requests.
    fn unframed(&mut self, mut frame: Packet, pool: &mut Pool) -> Option<Packet> {
        let header = ethernet::Header::parse(frame.linear()).ok();
        let is_ip = |of: &ethernet::Header| {
            of.vlan.is_none() && [EtherType::IPV4, EtherType::IPV6].contains(&of.ethertype)
        };
        match header {
            Some((header, len)) if is_ip(&header) && header.dst == self.addresses.own => {
                frame.pull_front(len)?;
                Some(frame)
            }
            Some((header, len)) if header.ethertype == EtherType::ARP => {
                let reply = self.reply(&frame.linear()[len..], pool);
                self.replies.extend(reply);
                pool.give(frame);
                None
            }
            _ => {
                pool.give(frame);
                None
            }
        }
    }

    /// Returns the reply to an ARP request for the host behind the port.
    fn reply(&self, request: &[u8], pool: &mut Pool) -> Option<Packet> {
        let (request, _) = ArpPacket::parse(request).ok()?;
        let IpLinkAddresses { own, ip, .. } = self.addresses;
        if request.op != ArpOp::Request || request.target_ip != ip {
            return None;
        }
        let reply = ArpPacket {
            op: ArpOp::Reply,
            sender_mac: own,
            sender_ip: ip,
            target_mac: request.sender_mac,
            target_ip: request.sender_ip,
        };
        let header = ethernet::Header {
            dst: request.sender_mac,
            src: own,
            vlan: None,
            ethertype: EtherType::ARP,
        };
        let len = ethernet::HEADER_LEN + arp::PACKET_LEN;
        let mut packet = pool.take(len);
        let bytes = packet.push_back(len)?;
        let at = header.emit(bytes);
        reply.emit(&mut bytes[at..]);
        Some(packet)
    }

    fn flush(&mut self, now_ns: u64, pool: &mut Pool) {
        if !self.ready.is_empty() {
            self.port.submit(now_ns, pool, &mut self.ready);
        }
    }
}

impl Port for IpLink {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.flush(now_ns, pool);
        out.extend(self.replies.drain(..));
        let mut received = std::mem::take(&mut self.received);
        let count = self.port.poll(now_ns, pool, &mut received, max);
        for packet in received.drain(..) {
            QueuedPacket::each(packet, LinkType::Ip, pool, |mut packet, pool| {
                if let Checksum::Partial { .. } = packet.packet().meta.checksum {
                    packet.complete_checksum();
                }
                out.push_back(self.framed(packet.into_packet(), pool));
            });
        }
        self.received = received;
        count
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut taken = 0;
        loop {
            while self.ready.len() < READY_MAX
                && let Some(frame) = batch.pop_front()
            {
                taken += 1;
                let packet = self.unframed(frame, pool);
                self.ready.extend(packet);
            }
            self.flush(now_ns, pool);
            if batch.is_empty() || self.ready.len() >= READY_MAX {
                return taken;
            }
        }
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.wake_fd()
    }

    fn blocked(&self) -> bool {
        !self.ready.is_empty() && self.port.blocked()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        // A port that is full, but not blocked, must be polled again.
        let is_waiting = !self.ready.is_empty() && !self.port.blocked();
        let now = is_waiting || !self.replies.is_empty();
        now.then_some(0).or_else(|| self.port.next_timeout_ns())
    }

    towpath_pool::forward_port!(port: looked, is_gone, undelivered, undelivered_of_ended);
}

/// Returns the packet with room for an Ethernet header. Copies a packet that has none.
fn with_headroom(packet: Packet, pool: &mut Pool) -> Packet {
    if packet.headroom() >= ethernet::HEADER_LEN {
        return packet;
    }
    let mut copy = pool.take(packet.len());
    let bytes = copy.push_back(packet.len()).expect("taken with room");
    packet.copy_to(0, bytes);
    pool.give(packet);
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Port that returns each packet that it has sent.
    struct EchoIpPort(Batch);

    impl Port for EchoIpPort {
        fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
            let n = self.0.len().min(max);
            out.extend(self.0.drain(..n));
            n
        }

        fn submit(&mut self, _: u64, _: &mut Pool, batch: &mut Batch) -> usize {
            let n = batch.len();
            self.0.extend(batch.drain(..));
            n
        }

        fn offloads(&self) -> Offloads {
            Offloads::default()
        }

        fn link_type(&self) -> LinkType {
            LinkType::Ip
        }

        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

    fn link() -> IpLink {
        let addresses = IpLinkAddresses {
            own: OWN,
            ip: Ipv4Addr::new(10, 0, 0, 1),
            neighbors: BTreeMap::from([(Ipv4Addr::new(10, 0, 0, 2), PEER)]),
            router: ROUTER,
        };
        IpLink::new(Box::new(EchoIpPort(Batch::new())), addresses)
    }

    /// Sends a frame to the link, and returns the frames that the link sends back.
    fn exchange(link: &mut IpLink, frame: &[u8]) -> Vec<Vec<u8>> {
        let (mut pool, mut batch) = (Pool::default(), Batch::new());
        let mut packet = pool.take(frame.len());
        packet.push_back(frame.len()).expect("taken with room").copy_from_slice(frame);
        batch.push_back(packet);
        assert_eq!(link.submit(0, &mut pool, &mut batch), 1);
        link.poll(0, &mut pool, &mut batch, 64);
        batch.iter().map(|packet| packet.linear().to_vec()).collect()
    }

    fn frame(dst: MacAddr, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ethernet::HEADER_LEN];
        ethernet::Header { dst, src: PEER, vlan: None, ethertype }.emit(&mut frame);
        frame.extend(payload);
        frame
    }

    #[test]
    fn packets_lose_and_get_their_headers() {
        let mut link = link();
        for (to, mac) in [([10, 0, 0, 2], PEER), ([192, 0, 2, 1], ROUTER)] {
            let mut packet = [0; 20];
            packet[0] = 0x45;
            packet[16..].copy_from_slice(&to);
            let frames = exchange(&mut link, &frame(OWN, EtherType::IPV4, &packet));
            let [frame] = &frames[..] else { panic!("{frames:?}") };
            let (header, len) = ethernet::Header::parse(frame).expect("a header");
            assert_eq!((header.dst, header.src), (mac, OWN));
            assert_eq!(frame[len..], packet);
        }
        let foreign = frame(PEER, EtherType::IPV4, &[0x45; 20]);
        assert!(exchange(&mut link, &foreign).is_empty(), "the frame is for another host");
        for cut in 0..foreign.len() {
            assert!(exchange(&mut link, &foreign[..cut]).is_empty());
        }
    }

    #[test]
    fn arp_requests_for_the_host_are_answered() {
        let mut link = link();
        let mut request = [0; arp::PACKET_LEN];
        for (target, is_answered) in [([10, 0, 0, 1], true), ([10, 0, 0, 9], false)] {
            ArpPacket {
                op: ArpOp::Request,
                sender_mac: PEER,
                sender_ip: Ipv4Addr::new(10, 0, 0, 2),
                target_mac: MacAddr::default(),
                target_ip: target.into(),
            }
            .emit(&mut request);
            let frames = exchange(&mut link, &frame(MacAddr([255; 6]), EtherType::ARP, &request));
            assert_eq!(frames.len(), usize::from(is_answered));
            if let Some(frame) = frames.first() {
                let (reply, _) = ArpPacket::parse(&frame[ethernet::HEADER_LEN..]).expect("ARP");
                assert_eq!((reply.op, reply.sender_mac), (ArpOp::Reply, OWN));
                assert_eq!(reply.target_mac, PEER);
            }
        }
    }
}
