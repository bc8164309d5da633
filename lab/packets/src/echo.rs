//! Echo of datagrams of 64 bytes: received from the device, passed to the socket's owner, and sent
//! back by the socket.
//!
//! A turn of the stack receives 32 frames and sends 32, as in a busy engine. The frames have
//! Ethernet and IPv4 headers. The checksums of both directions are computed.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_lab_measure::{ECHO_PAYLOAD, Run, SRC_PORT};
use towpath_pool::{Fragments, Packet, Pool};
use towpath_ring::Payload;
use towpath_stack::{
    BindOptions, Budget, DatagramOut, Family, Instant, SocketId, SocketKind, Stack, StackConfig,
};
use towpath_wire::{IpProtocol, checksum, ethernet, ipv4, udp};

use crate::device::{Memory, OUR_MAC, OURS, PEER, PEER_MAC, interface};
use crate::owner::Owner;

/// Port of the echo service (RFC 862).
const PORT: u16 = 7;
/// Datagrams per turn.
const TURN: u64 = 32;
/// Length of the Ethernet, IPv4 and UDP headers in bytes.
const HEADERS_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN;
/// Length of a frame in bytes: 64 with Ethernet's checksum, which in-memory frames lack.
const FRAME_LEN: usize = HEADERS_LEN + ECHO_PAYLOAD;

pub fn measure(run: &mut Run) -> Result<(), Box<dyn Error>> {
    let name = "echo 64 B";
    if run.wants(name) {
        let mut server = Server::new()?;
        let made = server.check()?;
        run.measure_batches(TURN, || server.serve());
        server.end()?;
        run.say(name, &made)?;
    }
    Ok(())
}

/// A stack with a bound socket.
struct Server {
    stack: Stack<Owner>,
    owner: Owner,
    pool: Pool,
    ports: [Box<Memory>; 1],
    socket: SocketId,
    now: Instant,
    frame: [u8; FRAME_LEN],
    served: u64,
}

impl Server {
    fn new() -> Result<Self, Box<dyn Error>> {
        let now = Instant(1_000_000_000);
        let port = Memory::default();
        let mut stack = Stack::new(StackConfig::default(), [7; 32], now);
        stack.net.add_interface(now, interface(&port)?);
        let socket = stack.open(SocketKind::Datagram, Family::V4, 0)?;
        stack.bind(socket, SocketAddr::from((OURS, PORT)), BindOptions::default())?;
        let owner = Owner { received: Vec::with_capacity(TURN as usize) };
        let (pool, ports, frame) = (Pool::default(), [Box::new(port)], frame());
        let mut server = Self { stack, owner, pool, ports, socket, now, frame, served: 0 };
        // The first answer waits until ARP has resolved the neighbour.
        server.receive(1);
        server.turn()?;
        server.turn()?;
        server.turn()?;
        let device = &mut server.ports[0];
        if device.taken != 1 {
            return Err("the first datagram was not answered".into());
        }
        (device.is_ready, server.served) = (true, 1);
        Ok(server)
    }

    /// Queues frames that the device delivers in the next turn.
    fn receive(&mut self, count: u64) {
        for _ in 0..count {
            let mut packet = self.pool.take(FRAME_LEN);
            packet.push_back(FRAME_LEN).expect("taken with room").copy_from_slice(&self.frame);
            self.ports[0].received.push_back(packet);
        }
    }

    /// Answers the datagrams of the last turn, and receives the next ones. The device has the
    /// answers when this returns.
    fn turn(&mut self) -> Result<(), towpath_stack::SendError> {
        self.now += Duration::from_micros(1);
        let Self { stack, owner, pool, ports, socket, now, .. } = self;
        for (remote, payload) in owner.received.drain(..) {
            let out = DatagramOut { remote: Some(remote), ..DatagramOut::default() };
            let payload = Payload::new(&payload, Fragments::empty());
            stack.send_datagram(*now, *socket, &out, &payload, pool)?;
        }
        stack.turn(*now, owner, ports, pool, Budget::default());
        Ok(())
    }

    fn serve(&mut self) -> Result<(), towpath_stack::SendError> {
        self.receive(TURN);
        self.served += TURN;
        self.turn()
    }

    /// Checks that an answer contains the data that was sent, with source and destination
    /// exchanged.
    fn check(&mut self) -> Result<String, Box<dyn Error>> {
        self.receive(1);
        self.turn()?;
        self.ports[0].keeps = true;
        self.turn()?;
        self.served += 1;
        let device = &mut self.ports[0];
        device.keeps = false;
        let frame = device.kept.take().ok_or("no answer came")?;
        let is_right = is_answer(&frame)?;
        let made = format!("{} B frame", frame.len());
        self.pool.give(frame);
        is_right.then_some(made).ok_or_else(|| "a wrong answer".into())
    }

    /// Checks that all datagrams were answered, except those of the last turn.
    fn end(&self) -> Result<(), Box<dyn Error>> {
        let taken = self.ports[0].taken + self.owner.received.len() as u64;
        if taken != self.served {
            return Err(format!("{taken} of {} datagrams were answered", self.served).into());
        }
        Ok(())
    }
}

fn frame() -> [u8; FRAME_LEN] {
    let mut frame = [0x5a; FRAME_LEN];
    let ethertype = ethernet::EtherType::IPV4;
    let link = ethernet::Header { dst: OUR_MAC, src: PEER_MAC, vlan: None, ethertype };
    let at = link.emit(&mut frame);
    let ip = ipv4::Header {
        tos: 0,
        total_len: (FRAME_LEN - ethernet::HEADER_LEN) as u16,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: IpProtocol::UDP,
        src: PEER,
        dst: OURS,
        options: ipv4::Options::EMPTY,
    };
    let at = at + ip.emit(&mut frame[at..]);
    let length = (FRAME_LEN - at) as u16;
    let mut header = udp::Header { src_port: SRC_PORT, dst_port: PORT, length, checksum: 0 };
    let sum = checksum::sum(&frame[at + udp::HEADER_LEN..], 0);
    let pseudo = checksum::pseudo_v4(PEER, OURS, IpProtocol::UDP, length);
    header.checksum = header.checksum_for(pseudo, sum);
    header.emit(&mut frame[at..]);
    frame
}

fn is_answer(frame: &Packet) -> Result<bool, Box<dyn Error>> {
    let (link, at) = ethernet::Header::parse(frame.linear())?;
    let bytes = &frame.linear()[at..];
    let (ip, data) = ipv4::Header::parse(bytes)?;
    let datagram = &bytes[data.clone()];
    let (header, payload) = udp::Header::parse(datagram)?;
    let pseudo = checksum::pseudo_v4(ip.src, ip.dst, IpProtocol::UDP, header.length);
    Ok((link.dst, ip.src, ip.dst) == (PEER_MAC, OURS, PEER)
        && (header.src_port, header.dst_port) == (PORT, SRC_PORT)
        && ipv4::checksum_ok(&bytes[..data.start])
        && header.checksum != 0
        && udp::checksum_ok_v4(datagram, pseudo)
        && datagram[payload] == [0x5a; ECHO_PAYLOAD])
}
