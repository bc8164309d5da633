//! An in-memory device, and the stack's interface on it.

use std::error::Error;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port};
use towpath_stack::net::InterfaceConfig;
use towpath_wire::{MacAddr, arp, ethernet};

pub const OURS: Ipv4Addr = Ipv4Addr::new(1, 1, 1, 1);
pub const PEER: Ipv4Addr = Ipv4Addr::new(1, 1, 1, 2);
pub const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// MTU in bytes: the maximum length of an IPv4 packet.
const MTU: u32 = 65_535;

/// Returns the configuration of an interface on the device.
pub fn interface(device: &Memory) -> Result<InterfaceConfig, Box<dyn Error>> {
    Ok(InterfaceConfig {
        name: "eth0".to_owned(),
        link: LinkType::Ethernet,
        mac: OUR_MAC,
        mtu: MTU,
        offloads: device.offloads(),
        addresses: vec![format!("{OURS}/24").parse()?],
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    })
}

/// Device that drops all frames. Until it is ready, it answers ARP requests for the neighbour.
#[derive(Default)]
pub struct Memory {
    /// Whether checksums are offloaded to the device, which computes none.
    pub is_offloaded: bool,
    /// Whether the neighbour is resolved, so that no more requests are expected.
    pub is_ready: bool,
    /// Frames that the stack receives in its next turn.
    pub received: Batch,
    /// Whether to store the next frame of the stack in `kept`.
    pub keeps: bool,
    pub kept: Option<Packet>,
    /// Number of IP packets that the stack has sent.
    pub taken: u64,
}

impl Memory {
    /// Returns the neighbour's answer to a frame, if the frame is an ARP request.
    fn answer(&self, frame: &Packet, pool: &mut Pool) -> Option<Packet> {
        let (_, at) = ethernet::Header::parse(frame.linear()).ok()?;
        let (asked, _) = arp::ArpPacket::parse(frame.linear().get(at..)?).ok()?;
        let answer = arp::ArpPacket {
            op: arp::ArpOp::Reply,
            sender_mac: PEER_MAC,
            sender_ip: PEER,
            target_mac: asked.sender_mac,
            target_ip: asked.sender_ip,
        };
        let mut packet = pool.take(ethernet::HEADER_LEN + arp::PACKET_LEN);
        let bytes = packet.push_back(ethernet::HEADER_LEN + arp::PACKET_LEN)?;
        let ethertype = ethernet::EtherType::ARP;
        let link = ethernet::Header { dst: OUR_MAC, src: PEER_MAC, vlan: None, ethertype };
        let at = link.emit(bytes);
        answer.emit(&mut bytes[at..]);
        Some(packet)
    }
}

impl Port for Memory {
    fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, _: usize) -> usize {
        if self.received.is_empty() {
            return 0;
        }
        let count = self.received.len();
        out.append(&mut self.received);
        count
    }

    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let count = batch.len();
        for packet in batch.drain(..) {
            if !self.is_ready
                && let Some(answer) = self.answer(&packet, pool)
            {
                self.received.push_back(answer);
                pool.give(packet);
                continue;
            }
            self.taken += 1;
            match self.keeps {
                true => self.kept = Some(packet),
                false => pool.give(packet),
            }
        }
        count
    }

    fn offloads(&self) -> Offloads {
        Offloads { checksum: self.is_offloaded, ..Offloads::default() }
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
