//! Measures the cost per packet of each discipline, for several queue lengths: `cargo run --release
//! -p towpath-qdisc --example cost`.
//!
//! The work per packet does not depend on the queue length, so the columns differ only because of
//! the caches.
#![allow(clippy::print_stdout)] // The table is what the example is for.
#![allow(clippy::disallowed_methods)] // Measures time.

use std::time::Instant;

use towpath_qdisc::{
    Cobalt, CobaltParams, Codel, CodelParams, Dice, Fifo, FqCodel, FqCodelParams, PRIOMAP, Pie,
    PieParams, Prio, Qdisc, Queueable, Red, RedParams, Tbf, TbfParams,
};

/// A test packet with a flow.
struct Packet(u32);

impl Queueable for Packet {
    fn bytes(&self) -> usize {
        1000
    }

    fn flow_hash(&self) -> u32 {
        self.0
    }

    fn priority(&self) -> u8 {
        (self.0 & 15) as u8
    }
}

const PACKETS: u64 = 1_000_000;
const BACKLOGS: [u64; 3] = [10, 1000, 100_000];

fn disciplines() -> Vec<Box<dyn Qdisc<Packet>>> {
    let limit = usize::MAX;
    let codel = CodelParams { limit, ..CodelParams::default() };
    let tbf = TbfParams { rate: 1 << 40, burst: 1 << 20, peakrate: None, mtu: 0, limit };
    let red = RedParams {
        limit: 1 << 40,
        min: 1 << 38,
        max: 1 << 39,
        avpkt: 1000,
        burst: 50,
        bandwidth: 1 << 30,
        probability: 0.1,
        ecn: false,
        harddrop: false,
        adaptive: true,
        gentle: true,
    };
    let bands = (0..3).map(|_| Box::new(Fifo::packets(limit)) as Box<dyn Qdisc<Packet>>);
    let pie = PieParams { limit, ..PieParams::default() };
    let cobalt = CobaltParams { limit, ..CobaltParams::default() };
    vec![
        Box::new(Fifo::packets(limit)),
        Box::new(Prio::new(bands.collect(), PRIOMAP)),
        Box::new(Tbf::new(tbf)),
        Box::new(Red::new(red, Dice::new(1, 0))),
        Box::new(Codel::new(codel)),
        Box::new(FqCodel::new(FqCodelParams {
            codel,
            memory_limit: 1 << 40,
            ..Default::default()
        })),
        Box::new(Pie::new(pie, Dice::new(1, 1))),
        Box::new(Cobalt::new(cobalt, Dice::new(1, 2))),
    ]
}

/// Returns the nanoseconds of an enqueue and a dequeue with `backlog` waiting packets. Little time
/// passes on the discipline's clock, so no packet is dropped.
fn cost(mut queue: Box<dyn Qdisc<Packet>>, backlog: u64) -> f64 {
    let (mut drops, mut dice) = (Vec::new(), Dice::new(2, 0));
    let mut packet = move || Packet(dice.next_u32());
    (0..backlog).for_each(|_| queue.enqueue(0, packet(), &mut drops));
    let begin = Instant::now();
    for n in 0..PACKETS {
        queue.enqueue(n, packet(), &mut drops);
        queue.dequeue(n, &mut drops);
    }
    begin.elapsed().as_nanos() as f64 / PACKETS as f64
}

fn main() {
    println!("{:<12}{:>10}{:>10}{:>10}", "ns a packet", BACKLOGS[0], BACKLOGS[1], BACKLOGS[2]);
    for (at, queue) in disciplines().iter().enumerate() {
        let costs = BACKLOGS.map(|backlog| cost(disciplines().swap_remove(at), backlog));
        println!("{:<12}{:>10.1}{:>10.1}{:>10.1}", queue.kind(), costs[0], costs[1], costs[2]);
    }
}
