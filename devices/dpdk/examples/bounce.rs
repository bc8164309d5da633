//! Returns every frame of a port with exchanged Ethernet addresses, as testpmd does with
//! `--forward-mode=macswap`, and prints frames per second.
//!
//! ```text
//! bounce 'EAL ARGS' SECONDS [SEEDS]
//! ```
//!
//! First sends SEEDS frames of 64 bytes, for a port that loops frames back.
#![allow(clippy::print_stdout)] // Prints results for the user of the example.

use std::time::{Duration, Instant};

use towpath_dpdk::{Options, open};
use towpath_pool::{Batch, Pool, Port};

/// Frames per poll, as testpmd's `--burst`.
const BURST: usize = 32;
/// Number of polls between clock readings.
const POLLS: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("bounce 'EAL ARGS' SECONDS [SEEDS]");
    let (eal, seconds) = (next()?, next()?.parse()?);
    let seeds: usize = next().unwrap_or_else(|_| "0".into()).parse()?;
    let mut opened = open(&Options { eal, queues: 1, mtu: None })?;
    let queue = opened.queues.first_mut().ok_or("a port has a queue")?;
    let (mut pool, mut batch) = (Pool::default(), Batch::new());
    for _ in 0..seeds {
        let mut packet = pool.take(60);
        packet.push_back(60).ok_or("room for 60 bytes")?.fill(0);
        batch.push_back(packet);
        queue.submit(0, &mut pool, &mut batch);
    }
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let (mut frames, mut now) = (0_u64, start);
    while now < end {
        let now_ns = now.duration_since(start).as_nanos() as u64;
        for _ in 0..POLLS {
            frames += queue.poll(now_ns, &mut pool, &mut batch, BURST) as u64;
            for packet in &mut batch {
                let Some((macs, _)) = packet.linear_mut().split_first_chunk_mut::<12>() else {
                    continue;
                };
                let (to, from) = macs.split_at_mut(6);
                to.swap_with_slice(from);
            }
            queue.submit(now_ns, &mut pool, &mut batch);
        }
        now = Instant::now();
    }
    let took = now.duration_since(start).as_secs_f64();
    println!(
        "{frames} frames in {took:.1} s: {:.2} million per second",
        frames as f64 / took / 1e6
    );
    for (name, value) in queue.counters().iter().filter(|(_, value)| *value > 0) {
        println!("  {name} {value}");
    }
    Ok(())
}
