//! UDP datagrams from the call of the socket to a device that drops them.
//!
//! The device has Ethernet headers, and a neighbour that is resolved before the measurement. The
//! destination is another host, because packets to the own address use loopback. The datagrams have
//! no DF bit, so that each needs an identification.

use std::error::Error;
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_lab_measure::Run;
use towpath_pool::{Checksum, Fragments, Pool};
use towpath_ring::Payload;
use towpath_stack::{
    Budget, DatagramOut, Family, Instant, MtuDiscovery, SocketId, SocketKind, SocketOption, Stack,
    StackConfig,
};
use towpath_wire::{IpProtocol, checksum, ethernet, ipv4, udp};

use crate::device::{Memory, PEER, PEER_MAC, interface};
use crate::owner::Owner;

const PORT: u16 = 8080;
/// Datagrams per turn of a busy engine.
const TURN: u64 = 32;
/// Payload lengths in bytes.
const LENGTHS: [usize; 13] = [2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 0];

pub fn measure(run: &mut Run) -> Result<(), Box<dyn Error>> {
    for (is_offloaded, checksum) in [(false, "checksum computed"), (true, "checksum offloaded")] {
        for len in LENGTHS {
            for (datagrams, how) in [(1, ""), (TURN, ", 32 a turn")] {
                let name = format!("write {len} B, {checksum}{how}");
                if run.wants(&name) {
                    let mut sender = Sender::new(is_offloaded)?;
                    let payload = vec![0x5a; len];
                    sender.send(&payload, 1)?;
                    let made = sender.check(&payload, is_offloaded)?;
                    run.measure_batches(datagrams, || sender.send(black_box(&payload), datagrams));
                    sender.end()?;
                    run.say(&name, &made)?;
                }
            }
        }
    }
    Ok(())
}

/// A stack with a connected socket.
struct Sender {
    stack: Stack<Owner>,
    pool: Pool,
    ports: [Box<Memory>; 1],
    socket: SocketId,
    now: Instant,
    sent: u64,
}

impl Sender {
    fn new(is_offloaded: bool) -> Result<Self, Box<dyn Error>> {
        let now = Instant(1_000_000_000);
        let port = Memory { is_offloaded, ..Memory::default() };
        let mut stack = Stack::new(StackConfig::default(), [7; 32], now);
        stack.net.add_interface(now, interface(&port)?);
        let socket = stack.open(SocketKind::Datagram, Family::V4, 0)?;
        stack.set_option(socket, SocketOption::MtuDiscover(MtuDiscovery::Dont))?;
        stack.connect_datagram(now, socket, SocketAddr::from((PEER, PORT)))?;
        let ports = [Box::new(port)];
        let mut sender = Self { stack, pool: Pool::default(), ports, socket, now, sent: 0 };
        // Resolve the neighbour.
        sender.send(&[], 1)?;
        sender.turn();
        sender.turn();
        let device = &mut sender.ports[0];
        if device.taken == 0 {
            return Err("the neighbour was not found".into());
        }
        device.is_ready = true;
        Ok(sender)
    }

    /// Sends `count` datagrams in one turn. The device has all of them when this returns.
    fn send(&mut self, payload: &[u8], count: u64) -> Result<(), towpath_stack::SendError> {
        let out = DatagramOut::default();
        for _ in 0..count {
            let payload = Payload::new(payload, Fragments::empty());
            self.stack.send_datagram(self.now, self.socket, &out, &payload, &mut self.pool)?;
        }
        self.sent += count;
        self.turn();
        Ok(())
    }

    fn turn(&mut self) {
        // Advance the time without a system call. An engine reads the clock once per turn.
        self.now += Duration::from_micros(1);
        let Self { stack, pool, ports, now, .. } = self;
        stack.turn(*now, &mut Owner::default(), ports, pool, Budget::default());
    }

    /// Checks that the last frame contains the payload. Returns the frame's length, which all
    /// programs have in common.
    fn check(&mut self, payload: &[u8], is_offloaded: bool) -> Result<String, Box<dyn Error>> {
        self.ports[0].keeps = true;
        self.send(payload, 1)?;
        let device = &mut self.ports[0];
        device.keeps = false;
        let frame = device.kept.take().ok_or("no frame came")?;
        let (link, at) = ethernet::Header::parse(frame.linear())?;
        let bytes = &frame.linear()[at..];
        let (ip, data) = ipv4::Header::parse(bytes)?;
        let datagram = &bytes[data.clone()];
        let (header, range) = udp::Header::parse(datagram)?;
        let pseudo = checksum::pseudo_v4(ip.src, ip.dst, IpProtocol::UDP, header.length);
        let is_summed = match frame.meta.checksum {
            Checksum::Partial { .. } => is_offloaded,
            _ => !is_offloaded && header.checksum != 0 && udp::checksum_ok_v4(datagram, pseudo),
        };
        let is_right = link.dst == PEER_MAC
            && checksum::finish(checksum::sum(&bytes[..data.start], 0)) == 0
            && !ip.dont_fragment
            && header.dst_port == PORT
            && &datagram[range] == payload;
        if !is_right || !is_summed {
            return Err(format!("a wrong frame: {link:?} {ip:?} {header:?}").into());
        }
        let made = format!("{} B frame", frame.len());
        self.pool.give(frame);
        Ok(made)
    }

    /// Checks that every datagram reached the device.
    fn end(&self) -> Result<(), Box<dyn Error>> {
        let taken = self.ports[0].taken;
        if taken != self.sent {
            return Err(format!("{taken} of {} datagrams reached the device", self.sent).into());
        }
        Ok(())
    }
}
