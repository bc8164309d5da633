//! Echo of datagrams of 64 bytes: received from an in-memory device, passed to the socket's owner,
//! and sent back.

use std::collections::VecDeque;
use std::error::Error;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet, SocketStorage};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::udp::{PacketBuffer, PacketMetadata, Socket};
use smoltcp::time::Instant;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, IpCidr, IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};
use towpath_lab_measure::{ECHO_PAYLOAD, Run, SRC_PORT};

const OURS: Ipv4Address = Ipv4Address::new(1, 1, 1, 1);
const PEER: Ipv4Address = Ipv4Address::new(1, 1, 1, 2);
const OUR_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 2]);
const PORT: u16 = 7;
const TURN: u64 = 32;
const FRAME_LEN: usize = 42 + ECHO_PAYLOAD;

pub fn measure(run: &mut Run) -> Result<(), Box<dyn Error>> {
    let name = "echo 64 B";
    if run.wants(name) {
        let mut server = Server::new()?;
        server.serve()?;
        let made = server.check()?;
        run.measure_batches(TURN, || server.serve());
        if server.device.taken != server.served {
            return Err("a datagram was not answered".into());
        }
        run.say(name, &made)?;
    }
    Ok(())
}

struct Server {
    device: Memory,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    frame: [u8; FRAME_LEN],
    served: u64,
    now: Instant,
}

impl Server {
    fn new() -> Result<Self, Box<dyn Error>> {
        let mut device = Memory::default();
        let now = Instant::from_micros(1_000_000);
        let mut interface = Interface::new(Config::new(OUR_MAC.into()), &mut device, now);
        interface.update_ip_addrs(|all| all.push(IpCidr::new(OURS.into(), 24)).expect("room"));
        let buffer = || {
            let metadata = vec![PacketMetadata::EMPTY; 2 * TURN as usize];
            PacketBuffer::new(metadata, vec![0; 2 * TURN as usize * ECHO_PAYLOAD])
        };
        let mut socket = Socket::new(buffer(), buffer());
        socket.bind(PORT)?;
        let mut sockets = SocketSet::new(vec![SocketStorage::EMPTY]);
        let socket = sockets.add(socket);
        let frame = frame();
        let mut server = Self { device, interface, sockets, socket, frame, served: 0, now };
        // The stack learns the neighbour from its ARP request.
        server.device.received.push_back(question());
        server.turn()?;
        server.device.taken = 0;
        Ok(server)
    }

    fn serve(&mut self) -> Result<(), Box<dyn Error>> {
        for _ in 0..TURN {
            let mut frame = self.device.spare.pop().unwrap_or_default();
            frame.clear();
            frame.extend_from_slice(&self.frame);
            self.device.received.push_back(frame);
        }
        self.served += TURN;
        self.turn()
    }

    /// Receives datagrams, answers them, and sends the answers.
    fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        self.now += smoltcp::time::Duration::from_micros(1);
        let Self { device, interface, sockets, socket, now, .. } = self;
        interface.poll(*now, device, sockets);
        let socket = sockets.get_mut::<Socket<'_>>(*socket);
        let mut bytes = [0; ECHO_PAYLOAD];
        while socket.can_recv() {
            let (len, metadata) = socket.recv_slice(&mut bytes)?;
            socket.send_slice(&bytes[..len], metadata.endpoint)?;
        }
        interface.poll(*now, device, sockets);
        Ok(())
    }

    fn check(&self) -> Result<String, Box<dyn Error>> {
        let bytes = &self.device.last;
        let frame = EthernetFrame::new_checked(bytes)?;
        let ip = Ipv4Packet::new_checked(frame.payload())?;
        let datagram = UdpPacket::new_checked(ip.payload())?;
        let is_right = frame.dst_addr() == PEER_MAC
            && ip.verify_checksum()
            && (ip.src_addr(), ip.dst_addr()) == (OURS, PEER)
            && datagram.checksum() != 0
            && datagram.verify_checksum(&OURS.into(), &PEER.into())
            && (datagram.src_port(), datagram.dst_port()) == (PORT, SRC_PORT)
            && datagram.payload() == [0x5a; ECHO_PAYLOAD];
        is_right.then(|| format!("{} B frame", bytes.len())).ok_or_else(|| "a wrong answer".into())
    }
}

fn frame() -> [u8; FRAME_LEN] {
    let mut bytes = [0; FRAME_LEN];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    let ethertype = EthernetProtocol::Ipv4;
    EthernetRepr { src_addr: PEER_MAC, dst_addr: OUR_MAC, ethertype }.emit(&mut frame);
    let udp = UdpRepr { src_port: SRC_PORT, dst_port: PORT };
    let ip = Ipv4Repr {
        src_addr: PEER,
        dst_addr: OURS,
        next_header: IpProtocol::Udp,
        payload_len: udp.header_len() + ECHO_PAYLOAD,
        hop_limit: 64,
    };
    let all = smoltcp::phy::ChecksumCapabilities::default();
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &all);
    let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
    let (src, dst) = (PEER.into(), OURS.into());
    udp.emit(&mut datagram, &src, &dst, ECHO_PAYLOAD, |payload| payload.fill(0x5a), &all);
    bytes
}

fn question() -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: PEER_MAC,
        source_protocol_addr: PEER,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: OURS,
    };
    let mut bytes = vec![0; 14 + arp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    let ethertype = EthernetProtocol::Arp;
    EthernetRepr { src_addr: PEER_MAC, dst_addr: EthernetAddress::BROADCAST, ethertype }
        .emit(&mut frame);
    arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    bytes
}

/// Device that delivers queued frames and drops sent ones. Reuses its buffers.
#[derive(Default)]
struct Memory {
    received: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    last: Vec<u8>,
    taken: u64,
}

impl Device for Memory {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sent<'_>)> {
        let frame = self.received.pop_front()?;
        let Self { spare, last, taken, .. } = self;
        Some((Received { frame, spare }, Sent { last, taken }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sent<'_>> {
        Some(Sent { last: &mut self.last, taken: &mut self.taken })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut all = DeviceCapabilities::default();
        (all.medium, all.max_transmission_unit) = (Medium::Ethernet, 1514);
        all
    }
}

struct Received<'a> {
    frame: Vec<u8>,
    spare: &'a mut Vec<Vec<u8>>,
}

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.frame);
        self.spare.push(self.frame);
        result
    }
}

struct Sent<'a> {
    last: &'a mut Vec<u8>,
    taken: &'a mut u64,
}

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        *self.taken += 1;
        self.last.resize(len, 0);
        f(self.last)
    }
}
