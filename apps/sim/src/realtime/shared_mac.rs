//! Several simulated hosts behind the one Ethernet address of a device.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use towpath_pool::{Batch, Packet, Pool, Port, PortCounters};
use towpath_wire::MacAddr;

/// A port whose device receives frames to one Ethernet address alone.
///
/// All frames are sent from that Ethernet address. A received frame is passed to the simulated host
/// that has its IPv4 destination address. Ethernet addresses in ARP messages are translated, too.
pub struct SharedMac {
    port: Box<dyn Port + Send>,
    /// Ethernet address that the device receives.
    own: MacAddr,
    /// Ethernet addresses of the simulated hosts.
    hosts: BTreeMap<Ipv4Addr, MacAddr>,
}

/// Offsets in an Ethernet frame.
const DESTINATION: usize = 0;
const SOURCE: usize = 6;
const ETHERTYPE: usize = 12;
/// Destination address of an IPv4 packet.
const IPV4_TO: usize = 30;
/// Ethernet address of the sender, and both addresses of the target, of an ARP message (RFC 826).
const ARP_SENDER: usize = 22;
const ARP_TARGET: usize = 32;
const ARP_TARGET_IP: usize = 38;

const MAC_LEN: usize = 6;

/// Protocol of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameKind {
    Arp,
    Ipv4,
    Other,
}

impl SharedMac {
    pub fn new(
        port: Box<dyn Port + Send>,
        own: MacAddr,
        hosts: BTreeMap<Ipv4Addr, MacAddr>,
    ) -> Self {
        Self { port, own, hosts }
    }

    /// Replaces the addresses of a frame that a simulated host sends.
    fn translate_sent(&self, packet: &mut Packet) {
        let frame = packet.linear_mut();
        put(frame, SOURCE, self.own);
        if kind(frame) == FrameKind::Arp {
            put(frame, ARP_SENDER, self.own);
        }
    }

    /// Replaces the addresses of a received frame by those of the simulated host.
    fn translate_received(&self, packet: &mut Packet) {
        let frame = packet.linear_mut();
        if !frame.starts_with(&self.own.0) {
            return;
        }
        let kind = kind(frame);
        let at = match kind {
            FrameKind::Arp => ARP_TARGET_IP,
            FrameKind::Ipv4 => IPV4_TO,
            FrameKind::Other => return,
        };
        let ip = frame.get(at..at + 4).and_then(<[u8]>::first_chunk::<4>);
        let Some(&mac) = ip.and_then(|ip| self.hosts.get(&Ipv4Addr::from(*ip))) else { return };
        put(frame, DESTINATION, mac);
        if kind == FrameKind::Arp {
            put(frame, ARP_TARGET, mac);
        }
    }
}

/// Writes an address, unless the frame is too short.
fn put(frame: &mut [u8], at: usize, mac: MacAddr) {
    if let Some(place) = frame.get_mut(at..at + MAC_LEN) {
        place.copy_from_slice(&mac.0);
    }
}

fn kind(frame: &[u8]) -> FrameKind {
    match frame.get(ETHERTYPE..ETHERTYPE + 2) {
        Some([0x08, 0x06]) => FrameKind::Arp,
        Some([0x08, 0x00]) => FrameKind::Ipv4,
        _ => FrameKind::Other,
    }
}

impl Port for SharedMac {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let before = out.len();
        let count = self.port.poll(now_ns, pool, out, max);
        out.iter_mut().skip(before).for_each(|packet| self.translate_received(packet));
        count
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        batch.iter_mut().for_each(|packet| self.translate_sent(packet));
        self.port.submit(now_ns, pool, batch)
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    fn device(&self) -> Option<String> {
        self.port.device()
    }

    towpath_pool::forward_port!(port: offloads, link_type, wake_fd, looked, blocked, is_gone);
    towpath_pool::forward_port!(port: next_timeout_ns, undelivered, undelivered_of_ended);
    towpath_pool::forward_port!(port: unsent_bytes);
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use towpath_pool::{LinkType, Offloads};
    use towpath_wire::arp::{self, ArpOp, ArpPacket};
    use towpath_wire::ethernet::{self, EtherType};

    use super::*;

    /// Port that returns each packet that it has sent.
    struct EchoFramePort(Batch);

    impl Port for EchoFramePort {
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
            LinkType::Ethernet
        }

        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    const DEVICE: MacAddr = MacAddr([6; 6]);
    const HOST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    /// Sends a frame through the port to a device that echoes it. Returns the frame that the port
    /// receives.
    fn echoed(dst: MacAddr, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
        let hosts = BTreeMap::from([(IP, HOST)]);
        let mut port = SharedMac::new(Box::new(EchoFramePort(Batch::new())), DEVICE, hosts);
        let (mut pool, mut batch) = (Pool::default(), Batch::new());
        let len = ethernet::HEADER_LEN + payload.len();
        let mut packet = pool.take(len);
        let bytes = packet.push_back(len).expect("taken with room");
        let at = ethernet::Header { dst, src: HOST, vlan: None, ethertype }.emit(bytes);
        bytes[at..].copy_from_slice(payload);
        batch.push_back(packet);
        assert_eq!(port.submit(0, &mut pool, &mut batch), 1);
        assert_eq!(port.poll(0, &mut pool, &mut batch, 64), 1);
        batch[0].linear().to_vec()
    }

    #[test]
    fn ipv4_packets_reach_the_host_with_their_address() {
        let mut packet = [0; 20];
        packet[16..].copy_from_slice(&IP.octets());
        let frame = echoed(DEVICE, EtherType::IPV4, &packet);
        assert_eq!((&frame[..6], &frame[6..12]), (&HOST.0[..], &DEVICE.0[..]));
        assert_eq!(frame[14..], packet);
        // Change the destination to an address that no simulated host has.
        packet[19] = 9;
        let frame = echoed(DEVICE, EtherType::IPV4, &packet);
        assert_eq!(frame[..6], DEVICE.0);
    }

    #[test]
    fn arp_messages_have_the_address_of_the_device() {
        let message = ArpPacket {
            op: ArpOp::Reply,
            sender_mac: HOST,
            sender_ip: IP,
            target_mac: DEVICE,
            target_ip: IP,
        };
        let mut payload = [0; arp::PACKET_LEN];
        message.emit(&mut payload);
        let frame = echoed(DEVICE, EtherType::ARP, &payload);
        let (received, _) = ArpPacket::parse(&frame[14..]).expect("ARP");
        let wanted = ArpPacket { sender_mac: DEVICE, target_mac: HOST, ..message };
        assert_eq!((received, &frame[..6]), (wanted, &HOST.0[..]));
    }

    #[test]
    fn short_frames_do_no_harm() {
        for ethertype in [EtherType::ARP, EtherType::IPV4] {
            for len in 0..30 {
                echoed(DEVICE, ethertype, &vec![0; len]);
            }
        }
    }
}
