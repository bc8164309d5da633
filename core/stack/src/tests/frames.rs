//! Tests that frames of a device are given back, whatever they contained.

use std::cell::RefCell;
use std::rc::Rc;

use towpath_pool::{Batch, LinkType, Offloads, Owner, Packet, Pool, Port};
use towpath_ring::Payload;

use super::world::{Dice, World, WorldConfig};
use crate::{DatagramOut, Family, SocketKind};

const FRAMES: usize = 400;

type Frames = Rc<RefCell<Vec<&'static mut [u8]>>>;

/// A device with its own frames. Some received frames arrive again later, with changed bytes.
struct Framed {
    inner: Box<dyn Port>,
    frames: Frames,
    owner: Owner,
    dice: Dice,
    seen: Vec<Vec<u8>>,
}

impl Framed {
    fn put(&mut self, bytes: &[u8]) -> Option<Packet> {
        let frame = self.frames.borrow_mut().pop()?;
        let mut packet = Packet::in_frame(frame, self.owner);
        packet.spare_mut()[..bytes.len()].copy_from_slice(bytes);
        packet.received(bytes.len());
        Some(packet)
    }
}

impl Port for Framed {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        while let Some(frame) = pool.take_frame(self.owner) {
            self.frames.borrow_mut().push(frame);
        }
        let mut got = Batch::new();
        let n = self.inner.poll(now_ns, pool, &mut got, max);
        let mut extra = 0;
        for packet in got {
            let mut bytes = vec![0; packet.len()];
            packet.copy_to(0, &mut bytes);
            assert!(bytes.len() < 2000);
            match self.put(&bytes) {
                Some(mut framed) => {
                    framed.meta = packet.meta;
                    out.push_back(framed);
                    pool.give(packet);
                }
                None => out.push_back(packet),
            }
            if self.dice.below(3) == 0 {
                if self.seen.len() < 200 {
                    self.seen.push(bytes);
                } else {
                    let at = self.dice.below(200) as usize;
                    self.seen[at] = bytes;
                }
                let mut again = self.seen[self.dice.below(self.seen.len() as u64) as usize].clone();
                for _ in 0..self.dice.below(4) {
                    let at = self.dice.below(again.len().min(80) as u64) as usize;
                    again[at] = self.dice.next_u64() as u8;
                }
                if let Some(framed) = self.put(&again) {
                    out.push_back(framed);
                    extra += 1;
                }
            }
        }
        n + extra
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.inner.submit(now_ns, pool, batch)
    }

    fn offloads(&self) -> Offloads {
        self.inner.offloads()
    }

    fn link_type(&self) -> LinkType {
        self.inner.link_type()
    }

    fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        self.inner.next_timeout_ns()
    }
}

#[test]
fn frames_come_back_whatever_arrives_in_them() {
    for seed in 1..13u64 {
        let link = if seed % 2 == 0 { LinkType::Ethernet } else { LinkType::Ip };
        let any = seed % 3 == 0;
        let config = WorldConfig { link, loss: 30 * (seed % 4), ..WorldConfig::default() };
        let mut w = World::with(config, crate::StackConfig::default(), any);
        let frames: Frames = Rc::default();
        for _ in 0..FRAMES {
            frames.borrow_mut().push(vec![0; Pool::HEADROOM + 2000].leak());
        }
        let owner = w.b.pool.add_owner();
        let inner = w.b.ports.remove(0);
        w.b.ports.push(Box::new(Framed {
            inner,
            frames: Rc::clone(&frames),
            owner,
            dice: Dice::new(seed, 0),
            seen: Vec::new(),
        }));
        let (listener, _) = w.b.listen("[::]:80", 4);
        let (udp_b, _) = w.b.open(SocketKind::Datagram, Family::V4);
        w.b.stack.bind(udp_b, "0.0.0.0:9".parse().unwrap(), Default::default()).unwrap();
        let (udp, _) = w.a.open(SocketKind::Datagram, Family::V4);
        let (udp6, _) = w.a.open(SocketKind::Datagram, Family::V6);
        let mut conns = Vec::new();
        let mut servers = Vec::new();
        for round in 0..60u64 {
            if round % 6 == 0 {
                let to = if round % 12 == 0 { "10.0.0.2:80" } else { "[fd00::2]:80" };
                conns.push(w.a.connect(to));
            }
            for conn in &conns {
                w.a.write(conn, &[round as u8; 9000]);
            }
            for (id, to) in [
                (udp, "10.0.0.2:9"),
                (udp, "10.0.0.2:10"),
                (udp6, "[fd00::2]:9"),
                (udp, "255.255.255.255:9"),
                (udp, "10.0.0.77:9"),
                (udp6, "[ff02::1]:9"),
            ] {
                for len in [1, 1000, 4000] {
                    let out =
                        DatagramOut { remote: Some(to.parse().unwrap()), ..Default::default() };
                    let payload = vec![7; len];
                    let payload = Payload::new(&payload, Default::default());
                    let _ = w.a.stack.send_datagram(w.a.now, id, &out, &payload, &mut w.a.pool);
                }
            }
            w.run(30);
            while let Some(server) = w.b.accept(listener) {
                servers.push(server);
            }
            for server in servers.iter().filter(|_| round % 3 == 0) {
                w.b.read_some(server, 3000);
            }
            if round % 10 == 9 && conns.len() > 2 {
                w.a.abort(conns.remove(0).id);
            }
        }
        w.run(200_000);
        for conn in conns {
            w.a.abort(conn.id);
        }
        for server in servers {
            w.b.abort(server.id);
        }
        w.run(700_000);
        w.b.turn();
        let there = frames.borrow().len();
        assert_eq!(there, FRAMES, "seed {seed}");
    }
}
